"""Delay laws: which clients are fast, and how long their work takes.

Times are in units of virtual time. Draws are 64-bit floats where these are enabled, as they are
when the engine draws timelines.

Dimension letters: `N` clients, `K` local steps of an update.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fedjax_sim.core import settings, streams, trees
from fedjax_sim.core.settings import Checked, ConfigError, Kind, Named, checked, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, Limit, Probability
from fedjax_sim.core.types import Array, Key, Leaf, Settings
from fedjax_sim.timelines.delays import client_table as tables
from fedjax_sim.timelines.delays.client_table import ClientTable, Trace

RATES, SPREADS = ("rate_fast", "rate_slow"), ("spread_fast", "spread_slow")
"""Names of the settings for fast and slow clients."""
STEP_COUNT_LAWS = ("runtime_geom", "runtime_exp", "count_geom")
"""Laws with a number of steps in closed form between two contacts, as FAVANO needs it."""


class Speeds(NamedTuple):
    """Parameters of the delay law for every client.

    Attributes:
      rate: `f64[N]`, local steps (or updates) per unit of virtual time.
      spread: `f64[N]`, spread relative to the mean time.
    """

    rate: Leaf
    spread: Leaf


class Law(Kind):
    """The interface of delay laws, which say how long clients' work takes.

    @settings.struct
    class Weibull(Law):
        "Weibull of shape 1 / spread."
        name: str = settings.fixed("weibull")
        spreads = "any"

        def scale(self, standard, rate, spread):
            return standard**spread / jnp.exp(jax.lax.lgamma(1 + spread)) / rate

    LAWS["weibull"] = Weibull
    hyper = fedavg.Hyper(runtime_law="weibull", spread_fast=2.0)

    Attributes:
      spreads: Spreads that it allows, "any", "at most 1" or "below 1"; "" for a law that has none.
      has_probabilities: Whether rates are probabilities.
      is_count: Whether it is the law of the number of steps between two contacts, whatever the time
        between them.
    """

    spreads, has_probabilities, is_count = "", False, False

    def draw(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Draw unit-scale numbers, by default exponential ones.

        Args:
          key: Key of the draws.
          shape: Their shape, `(..., num)`.
          dtype: Their type.

        Returns:
          The numbers, `f[..., num]`.
        """
        return jax.random.exponential(key, shape, dtype)

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Scale unit-scale numbers to running times of mean 1/rate.

        Args:
          standard: Numbers that `draw` has drawn, `f[..., num]`.
          rate: The clients' rates, `f[..., 1]`.
          spread: Their spreads, `f[..., 1]`.

        Returns:
          Virtual times, `f[..., num]`.
        """
        raise NotImplementedError

    def times(self, standard: Array, speeds: Speeds) -> Array:
        """Return virtual times `f[..., num]`: `standard` numbers of `draw`, scaled by `speeds`."""
        return self.scale(standard, *(leaf[..., None] for leaf in speeds))


@struct
class Geometric(Law):
    """Geometric on {1, 2, ...}: each unit of time completes the step with probability `rate`."""

    name: str = settings.fixed("runtime_geom")
    has_probabilities = True

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Round exponential numbers up to whole times."""
        return 1 + jnp.floor(standard / -jnp.log1p(-rate))


@struct
class Exponential(Law):
    """Exponential."""

    name: str = settings.fixed("runtime_exp")

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Divide by the rate."""
        return standard / rate


@struct
class GeometricCount(Geometric):
    """The number of steps between two contacts is geometric with mean 1/rate, whatever the time.

    This is the literal sentence of FAVANO's App. C.2. Where a running time is needed it is
    geometric, as under "runtime_geom".
    """

    name: str = settings.fixed("count_geom")
    is_count = True


@struct
class Constant(Law):
    """Always 1/rate."""

    name: str = settings.fixed("runtime_constant")

    def draw(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return ones."""
        return jnp.ones(shape, dtype)

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Return the mean."""
        return jnp.broadcast_to(1 / rate, standard.shape)


@struct
class Uniform(Law):
    """Uniform from 1 - spread to 1 + spread times the mean."""

    name: str = settings.fixed("runtime_uniform")
    spreads = "at most 1"

    def draw(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Draw numbers from 0 to 1."""
        return jax.random.uniform(key, shape, dtype)

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Stretch them between the least and the largest time."""
        least = 1 - spread
        return jnp.maximum(standard * (1 + spread - least) + least, least) / rate


@struct
class Normal(Law):
    """Normal, with a standard deviation of spread times the mean.

    Negative times are replaced by 0, which adds 0.4 % to the mean at a spread of 1/2, and 8 % at a
    spread of 1.
    """

    name: str = settings.fixed("runtime_normal")
    spreads = "any"

    def draw(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Draw standard normal numbers."""
        return jax.random.normal(key, shape, dtype)

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Add them to the mean, and cut at 0."""
        return jnp.maximum(1 + spread * standard, 0) / rate


@struct
class ShiftedExponential(Law):
    """A constant plus an exponential time, which is the share `spread` of the mean."""

    name: str = settings.fixed("runtime_shifted_exp")
    spreads = "at most 1"

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Add the constant to the exponential part."""
        return (1 - spread + spread * standard) / rate


@struct
class LogNormal(Normal):
    """Log-normal; the logarithm has the standard deviation `spread`."""

    name: str = settings.fixed("runtime_lognormal")

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Exponentiate, with the mean kept."""
        return jnp.exp(spread * standard - spread**2 / 2) / rate


@struct
class Pareto(Law):
    """Pareto with tail index 1 / spread; the smallest time is 1 - spread times the mean."""

    name: str = settings.fixed("runtime_pareto")
    spreads = "below 1"

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Exponentiate exponential numbers."""
        return (1 - spread) * jnp.exp(spread * standard) / rate


_KINDS = Geometric, Exponential, GeometricCount, Constant, Uniform, Normal
LAWS: Named[type[Law]] = Named.of("delay law", *_KINDS, ShiftedExponential, LogNormal, Pareto)
"""Every delay law, by name."""


def as_law(law: Law | str) -> Law:
    """Return a delay law, or read one from text.

        assert as_law("runtime_pareto") == Pareto()

    Args:
      law: A law; or a name of `LAWS`, followed by values for its fields if it has some.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return settings.parse_kind("law", LAWS, law) if isinstance(law, str) else law


BLOCK = 2**14
"""Limit of updates in one draw of running times."""


def _has_spread(law: object) -> bool:
    """Whether running times of a law have a spread that can be set."""
    return bool(getattr(law, "spreads", ""))


def _has_bandwidth(table: ClientTable | None) -> bool:
    """Tell whether a table of clients says how long messages take."""
    return table is not None and table.has_bandwidth


@struct
class ClientDelays(Checked):
    """Settings of the clients' delays: speeds, or speeds from a table, and a delay law.

    The defaults are the one clock that all systems have: a client does a local step in an
    exponential time ("runtime_exp"), on average at rate 1, so that a unit of virtual time is the
    mean time of a step at that rate. The rates are log-normal with `rate_spread` 0.5: the tenth
    fastest of 100 clients is about 3.6 times as fast as the tenth slowest. There is no group of
    slow clients, there are no breaks, losses or bandwidths, and servers take no time.

    A client of rate r completes a local step (or a whole update, under `time_of = "update"`) after
    a time of mean 1/r, with the law `runtime_law`, one of `LAWS`.

    A client works in windows of `on_time` with breaks of `off_time` between them, such as the hours
    of a day in which a phone is charged; each begins at a random place of such a day. A table of
    clients gives single clients their own speeds, windows, losses, and bandwidths, see
    `fedjax_sim.timelines.delays.client_table`. A recorded trace replaces all of this.

        slow = ClientDelays(slow_fraction=0.5, rate_slow=0.1)
        assert fedavg.Hyper(delays=slow) == fedavg.Hyper(slow_fraction=0.5, rate_slow=0.1)
    """

    slow_fraction: Probability = setting(
        0.0, "Share of slow clients; their number is rounded up to a whole number."
    )
    slow_clients: Literal["random", "last"] = setting(
        "random",
        "Which clients are slow: a random set per lane, or the clients with the highest numbers.",
        only_with={"slow_fraction": settings.is_not(0)},
    )
    rate_fast: Above0 = setting(
        1.0,
        "Rate of fast clients: local steps (or updates, see `time_of`) per unit of virtual time.",
        of_time=True,
        only_with={"slow_fraction": settings.is_not(1)},
    )
    rate_slow: Above0 = setting(
        1 / 8,
        "Rate of slow clients: local steps (or updates, see `time_of`) per unit of virtual time.",
        of_time=True,
        only_with={"slow_fraction": settings.is_not(0)},
    )
    rate_spread: AtLeast0 = setting(
        0.5,
        "Spread of the clients' rates around those of fast and slow clients: rates are log-normal "
        "with unchanged means, and their logarithm has this standard deviation. 0 for equal rates.",
        simpler_at=(0.0,),
    )
    runtime_law: Law | str = setting(
        Exponential(),
        "Law of running times; `fedjax-sim list` explains the laws.",
        traced=False,
        accepts=lambda law: isinstance(law, Law) or (isinstance(law, str) and law in LAWS),
        allowed=LAWS.in_words(),
        parse=as_law,
    )
    spread_fast: AtLeast0 = setting(
        0.0,
        "Spread of fast clients' running times, relative to their mean; its exact meaning depends "
        "on `runtime_law`. 0 makes times constant.",
        only_with={"runtime_law": _has_spread, "slow_fraction": settings.is_not(1)},
    )
    spread_slow: AtLeast0 = setting(
        0.0,
        "Spread of slow clients' running times, relative to their mean; its exact meaning depends "
        "on `runtime_law`. 0 makes times constant.",
        only_with={"runtime_law": _has_spread, "slow_fraction": settings.is_not(0)},
    )
    time_of: Literal["step", "update"] = setting(
        "step", "What one running time covers: each of the K local steps, or the update as a whole."
    )
    drop_rate: Annotated[float, Limit(least=0, most=0.99)] = setting(
        0.0, "Share of finished updates that are lost on the way to the server.", simpler_at=(0.0,)
    )
    on_time: Above0 = setting(
        1.0,
        "Length of the windows in which a client works, in units of virtual time. A break of "
        "`off_time` follows each window, and each client starts at a random place of this cycle.",
        of_time=True,
        only_with={"off_time": settings.is_not(0)},
    )
    off_time: AtLeast0 = setting(
        0.0,
        "Length of the break after each working window, in units of virtual time; 0 for no breaks.",
        simpler_at=(0.0,),
    )
    bits_up: AtLeast0 = setting(
        0.0,
        "Bits of a client's update, for the time that a table's bandwidths make it take; 0 for the "
        "bits that the system sends.",
        only_with={"client_table": _has_bandwidth},
    )
    bits_down: AtLeast0 = setting(
        0.0,
        "Bits of the model that a client receives, for the time that a table's bandwidths make it "
        "take; 0 for the bits that the system sends.",
        only_with={"client_table": _has_bandwidth},
    )
    client_table: ClientTable | None = setting(
        None,
        "Names, speeds, bandwidths, losses and windows of single clients.",
        allowed="a ClientTable, or the name of a CSV file as in "
        "`fedjax_sim.timelines.delays.client_table`",
        parse=tables.read_client_table,
        traced=True,
    )
    trace: Trace | None = setting(
        None,
        "Recorded times of the clients' work, which replace speeds and delay law.",
        allowed="a Trace, or the name of a CSV file with columns client, start, finish",
        parse=tables.read_trace,
    )

    def __post_init__(self) -> None:
        """Read the law if it is given by its text; `check` refuses unknown names."""
        if isinstance(self.runtime_law, str) and self.runtime_law.partition(":")[0] in LAWS:
            object.__setattr__(self, "runtime_law", as_law(self.runtime_law))

    @property
    def law(self) -> Law:
        """The law of running times."""
        return cast(Law, self.runtime_law)

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If a speed is not allowed under the law, or is of another unit of work.
        """
        super().check_together()
        law, own, table = self.law, self.own_speeds, self.client_table
        if table is not None and table.time_of not in (None, self.time_of):
            allowed = f'"{table.time_of}", of which the client_table has the times'
            raise ConfigError("time_of", self.time_of, allowed)
        rates, spreads = ({name: getattr(self, name) for name in each} for each in (RATES, SPREADS))
        if own is not None:
            rates, spreads = {"client_table rate": own.rate}, {"client_table spread": own.spread}
        is_probability, allowed = law.has_probabilities, law.spreads
        for name, value in rates.items():
            if is_probability and (most := float(np.max(value))) > 1:
                raise ConfigError(name, most, f"at most 1, a probability, under {law}")
        for name, value in spreads.items():
            most = float(np.max(value))
            if own is not None and most > 0 and not allowed:
                raise ConfigError(name, most, f"0 under {law}, which has no spread")
            if (allowed == "at most 1" and most > 1) or (allowed == "below 1" and most >= 1):
                raise ConfigError(name, most, f"{allowed} under {law}")
        if is_probability and own is None and np.any(np.asarray(self.rate_spread) > 0):
            allowed = f"0 under {law}, whose rates are probabilities"
            raise ConfigError("rate_spread", self.rate_spread, allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements.

        Returns:
          Words for what takes the place of each setting, by its name.
        """
        table, names = self.client_table, []
        if self.own_speeds is not None:
            names += ["slow_fraction", "slow_clients", *RATES, "rate_spread", *SPREADS]
        if table is not None and table.drop_rate is not None:
            names += ["drop_rate"]
        if table is not None and table.windows is not None:
            names += ["on_time", "off_time"]
        only_names = table is not None and not table.has_times and table.drop_rate is None
        kept = ("trace", "client_table") if only_names else ("trace",)
        replaced = (name for name in settings.fields(type(self)) if name not in kept)
        return dict.fromkeys(names, "a table of clients") | self.decided_by_trace(*replaced)

    def decided_by_trace(self, *names: str) -> dict[str, str]:
        """Map the given settings to words for a recorded trace if one is set, else nothing.

        Args:
          names: Names of settings that a trace replaces.

        Returns:
          Words by name of the setting.
        """
        return {} if self.trace is None else dict.fromkeys(names, "a recorded trace")

    @property
    def own_speeds(self) -> Speeds | None:
        """Every client's speed, if the table has them."""
        table = self.client_table
        return None if table is None or table.rate is None else Speeds(table.rate, table.spread)

    @property
    def mean_rate(self) -> float:
        """Average rate of the clients, in steps or updates (see `time_of`) per unit of time.

        Not inside a trace.
        """
        if self.own_speeds is not None:
            return self.own_speeds.rate.mean()
        return self.rate_fast + self.slow_fraction * (self.rate_slow - self.rate_fast)

    @property
    def mean_time(self) -> float:
        """Average over clients of the mean time of a step or update (see `time_of`).

        Not inside a trace.
        """
        if self.own_speeds is not None:
            return (1 / self.own_speeds.rate).mean()
        typical = (1 - self.slow_fraction) / self.rate_fast + self.slow_fraction / self.rate_slow
        return typical * np.exp(self.rate_spread**2)

    @property
    def largest_rate(self) -> float:
        """Rate of the fastest client, without any spread of rates; not inside a trace."""
        if self.own_speeds is not None:
            return self.own_speeds.rate.max()
        return np.maximum(self.rate_fast, self.rate_slow)

    @property
    def drop_rates(self) -> float | np.ndarray:
        """Share of updates that is lost, of all clients or, by the table, `f64[N]` of each."""
        table = self.client_table
        return self.drop_rate if table is None or table.drop_rate is None else table.drop_rate

    @property
    def loses_updates(self) -> bool:
        """Whether updates may be lost, as far as is known."""
        return self.drop_rates is not self.drop_rate or not settings.is_known(self.drop_rate, 0)

    @property
    def has_breaks(self) -> bool:
        """Whether clients may be away, as far as is known."""
        table = self.client_table
        has_windows = table is not None and table.windows is not None
        return has_windows or not settings.is_known(self.off_time, 0)

    @property
    def connections(self) -> list[tuple[float, np.ndarray]]:
        """Bits of the messages to and from clients that take time, with speeds, `f64[N]` each."""
        if self.client_table is None:
            return []
        both = (self.bits_down, self.client_table.down), (self.bits_up, self.client_table.up)
        return [(bits, speed) for bits, speed in both if speed is not None]

    @property
    def transfer(self) -> Array | None:
        """Time in which each client receives a model and sends an update, `f64[N]`; None if 0."""
        times = [jnp.asarray(x, float) / jnp.asarray(speed, float) for x, speed in self.connections]
        return sum(times, jnp.zeros_like(times[0])) if times else None


@struct
class Clients(Checked):
    """Settings that every clock has: the clients, their local steps and their delays.

    The settings of a clock inherit from it.

        hyper = Clients(num_clients=8, local_steps=5, delays=ClientDelays(time_of="update"))
        assert hyper.times_per_update == 1  # one running time covers all five steps
    """

    num_clients: Count = setting(
        100, "Number of clients, N; in a run, if not given, those of the problem."
    )
    local_steps: Count = setting(
        10, "Local steps of a client's update, or at most between two contacts, K."
    )
    delays: ClientDelays = settings.group(
        ClientDelays(), "which clients are fast, and how long work takes"
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the table or trace does not fit the number of clients, or a time has its
            default although table or trace have another unit.
        """
        super().check_together()
        table = self.delays.client_table
        if table is not None and table.size != self.num_clients:
            allowed = f"of num_clients = {self.num_clients} rows"
            raise ConfigError("delays.client_table", f"of {table.size} rows", allowed)
        if self.delays.trace is not None:
            self.recorded  # noqa: B018 - checks the clients
        if not self.source_of_times:
            return
        idle = settings.idle_of(self)
        left = [
            name
            for name, field in settings.fields(type(self)).items()
            if field.metadata["of_time"]
            and name not in idle
            and not settings.is_given(self, name)
            and np.any(np.asarray(settings.value_of(self, name)) != 0)
        ]
        if left:
            others = f", and so must {', '.join(left[1:])}" if left[1:] else ""
            allowed = f"given in the unit of time of {self.source_of_times}{others}"
            allowed += ": defaults are in another unit"
            raise ConfigError(left[0], settings.value_of(self, left[0]), allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements.

        Returns:
          Words for what takes the place of each setting, by its full name.
        """
        found = {f"delays.{name}": what for name, what in self.delays.decided().items()}
        of_clock = {"clock.round_time"} & settings.fields(type(self)).keys()
        if of_clock and settings.value_of(self, *of_clock) == "mean":
            of_law = [f"delays.{name}" for name in ("runtime_law", *SPREADS)]
            found = dict.fromkeys(of_law, 'clock.round_time = "mean"') | found
        return super().decided() | found | self.delays.decided_by_trace(*of_clock)

    def check_at_most_clients(self, *names: str) -> None:
        """Check that settings are at most the number of clients.

        Args:
          names: Their full names.

        Raises:
          ConfigError: If one is more.
        """
        for name in names:
            if (value := settings.value_of(self, name)) > self.num_clients:
                raise ConfigError(name, value, f"at most num_clients = {self.num_clients}")

    @property
    def recorded(self) -> Trace:
        """The trace, with the numbers of its clients."""
        table, trace = self.delays.client_table, cast(Trace, self.delays.trace)
        return trace.of_clients(self.num_clients, () if table is None else table.names)

    @property
    def source_of_times(self) -> str:
        """Source of another unit of time, in words; "" if all times come from settings."""
        if self.delays.trace is not None:
            return "the trace"
        has_times = self.delays.client_table is not None and self.delays.client_table.has_times
        return "the client_table" if has_times else ""

    @property
    def needs_message_bits(self) -> bool:
        """Whether messages take time, and it is not set how many bits they have."""
        return any(not np.all(np.asarray(bits) > 0) for bits, _ in self.delays.connections)

    def with_client_names(self, names: Sequence[object]) -> Self:
        """Put the rows of a table, and a trace's clients, in the order of a problem's clients.

        Args:
          names: What the clients are called, in the order of their numbers.

        Returns:
          The settings, the same object if nothing changes.
        """
        this: Settings = self.delays
        table, trace = this.client_table, this.trace
        if table is not None and table.names:
            # The function's cache would keep tracers alive.
            order = tables.in_order_of.__wrapped__ if trees.is_traced(table) else tables.in_order_of
            table = order(table, tables.names_as_text(names))
        elif trace is not None:
            trace = tables.of_names(trace, tables.names_as_text(names))
        if table is this.client_table and trace is this.trace:
            return self
        delays = this.replace(client_table=table, trace=trace)
        return self.replace(delays=delays)  # type: ignore[attr-defined]

    def with_message_bits(self, up: int, down: int) -> Self:
        """Set the bits of messages that are not set.

        Args:
          up: Bits of a client's message.
          down: Bits of the server's message.

        Returns:
          The settings.
        """
        this: Settings = self
        bits = {"bits_up": up, "bits_down": down}
        own = {name: np.asarray(getattr(this.delays, name)) for name in bits}
        known = {name: np.where(x > 0, x, float(bits[name]))[()] for name, x in own.items()}
        return this.replace(**known)

    @property
    def energies(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Energy of a local step and of a byte of each client, `f64[N]`; None if not counted."""
        table = self.delays.client_table
        if table is None or not table.counts_energy:
            return None
        step, byte, none = table.energy_step, table.energy_byte, np.zeros(table.size)
        return none if step is None else step, none if byte is None else byte

    @property
    def times_per_update(self) -> int:
        """Number of running times that add up to the time of an update: K or 1."""
        return self.local_steps if self.delays.time_of == "step" else 1

    def ticks_within(self, time: float, at_once: float, *, used: int = 1) -> float:
        """Estimate how many ticks fit in a stretch of time, from the clients' mean rate.

        With a recorded trace these are the ticks of all of it. Not inside a trace of JAX.

        Args:
          time: Units of virtual time.
          at_once: Number of ticks in the time of an update.
          used: Rows of a recorded trace that a tick uses.
        """
        if self.delays.trace is not None:
            return self.delays.trace.client.size / used
        return time * at_once * self.delays.mean_rate / self.times_per_update


@checked
def draw_client_speeds(key: Key, clients: Clients) -> Speeds:
    """Draw every client's speed, or take it from the table.

        speeds = draw_client_speeds(key, Clients(num_clients=8, rate_fast=0.5, rate_spread=0.0))
        assert speeds.rate.tolist() == [0.5] * 8

    Args:
      clients: Settings.

    Returns:
      Rates and spreads, `f64[N]` each.
    """
    delays, num = clients.delays, clients.num_clients
    if delays.own_speeds is not None:
        return Speeds(*(jnp.asarray(each, float) for each in delays.own_speeds))
    place = jnp.arange(num)[::-1]
    if delays.slow_clients == "random":
        place = jax.random.permutation(streams.lane_stream(key, "speeds"), num)
    num_slow = jnp.ceil(jnp.asarray(delays.slow_fraction, float) * num - 1e-6)
    pairs = (delays.rate_slow, delays.rate_fast), (delays.spread_slow, delays.spread_fast)
    floats = [[jnp.asarray(x, float) for x in pair] for pair in pairs]
    speeds = Speeds(*(jnp.where(place < num_slow, slow, fast) for slow, fast in floats))
    spread = delays.rate_spread
    if settings.is_known(spread, 0):
        return speeds
    normal = jax.random.normal(streams.lane_stream(key, "rates"), (num,), speeds.rate.dtype)
    return speeds._replace(rate=speeds.rate * jnp.exp(spread * normal - spread**2 / 2))


def draw_client_rates(key: Key, clients: Clients) -> Array:
    """Draw every client's rate.

        slow = ClientDelays(slow_fraction=0.5, slow_clients="last", rate_spread=0.0)
        rates = draw_client_rates(key, fedavg.Hyper(num_clients=4, num_selected=2, delays=slow))
        assert rates.tolist() == [1.0, 1.0, 1 / 8, 1 / 8]

    Args:
      clients: Settings.

    Returns:
      Local steps (or updates) per unit of virtual time, `f64[N]`.
    """
    return draw_client_speeds(key, clients).rate


@checked
def draw_runtimes(key: Key, speeds: Speeds, num: Count, law: Law | str) -> Array:
    """Draw running times of mean 1/rate.

        speeds = Speeds(rate=jnp.array([0.5, 2.0]), spread=jnp.zeros(2))
        times = draw_runtimes(key, speeds, 3, "runtime_constant")
        assert times.tolist() == [[1 / 0.5] * 3, [1 / 2.0] * 3]

    Args:
      key: Key of the draws.
      speeds: Rates and spreads, `f64[...]` each.
      num: Number of times to draw for each entry of the speeds.
      law: One of `LAWS`, or its name.

    Returns:
      Virtual times, `f64[..., num]`.

    Raises:
      ConfigError: If rates and spreads differ in shape.
    """
    if speeds.rate.shape != speeds.spread.shape:
        allowed = f"{speeds.rate.shape}, as of the rates"
        raise ConfigError("shape of the spreads", speeds.spread.shape, allowed)
    shape, law = (*speeds.rate.shape, num), as_law(law)
    return law.times(law.draw(key, shape, speeds.rate.dtype), speeds)


def update_time(key: Key, client: Array, update: Array, speeds: Speeds, clients: Clients) -> Array:
    """Draw the running time of a client's update of K local steps.

    The time depends only on `key`, client and number of the update, not on the order of calls.

    Args:
      key: Key of the running times.
      client: Client numbers, `i32[...]`.
      update: Numbers of the clients' updates, from 0, `i32[...]`.
      speeds: Rates and spreads, `f64[N]` each.
      clients: Settings.

    Returns:
      Virtual times, `f64[...]`.
    """

    num, law = clients.times_per_update, clients.delays.law

    def one(client: Array, update: Array) -> Array:
        update_key = jax.random.fold_in(jax.random.fold_in(key, client), update)
        own = Speeds(*(leaf[client] for leaf in speeds))
        return draw_runtimes(update_key, own, num, law).sum()

    draw = jnp.vectorize(one)
    client, update = jnp.broadcast_arrays(client, update)
    if client.size <= BLOCK:
        return draw(client, update)
    # Draw in blocks, because the K running times of all updates together may not fit in memory.
    blocks = [jnp.pad(x.ravel(), (0, -x.size % BLOCK)).reshape(-1, BLOCK) for x in (client, update)]
    taken = jax.lax.map(lambda block: draw(*block), tuple(blocks))
    return taken.ravel()[: client.size].reshape(client.shape)
