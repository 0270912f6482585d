"""Delay laws: who is fast, and how long work takes. Times are virtual; all draws are 64-bit."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError, choice, count, fields, real, static, struct
from fedjax_sim.streams import stream
from fedjax_sim.timelines.trace import Trace, read_trace
from fedjax_sim.types import Array, Key

STEP_COUNT_LAWS = ("runtime_geom", "runtime_exp", "count_geom")
"""Laws whose number of steps between two contacts is known in closed form (`step_counts`)."""
SPREAD_LAWS = (
    "runtime_uniform",
    "runtime_normal",
    "runtime_shifted_exp",
    "runtime_lognormal",
    "runtime_pareto",
)
"""Laws that have a spread besides the mean."""
BOUNDED_SPREADS = ("runtime_uniform", "runtime_shifted_exp", "runtime_pareto")
RATES, SPREADS = ("rate_fast", "rate_slow"), ("spread_fast", "spread_slow")
"""Settings of fast and slow clients."""
RUNTIME_LAWS = (*STEP_COUNT_LAWS, "runtime_constant", *SPREAD_LAWS)


class ClientTable:
    """Speeds of given clients, in place of two drawn groups: rate `f64[N]`, and spread `f64[N]` or a number (0 if left out)."""

    def __init__(self, rate: Any, spread: Any = 0.0):
        rate = np.asarray(rate, float)
        if rate.ndim != 1 or rate.size == 0 or not np.all(np.isfinite(rate) & (rate > 0)):
            raise ConfigError(
                "client_table",
                "a rate that is no finite number above 0",
                "one rate above 0 per client",
            )
        spread = np.asarray(spread, float)
        if spread.shape not in ((), rate.shape) or not np.all(np.isfinite(spread) & (spread >= 0)):
            raise ConfigError(
                "client_table",
                "a spread that is no finite number from 0",
                "one number, or one per client, from 0",
            )
        self.rate, self.spread = rate, np.broadcast_to(spread, rate.shape).copy()


def read_client_table(path: str | Path) -> ClientTable:
    """Read speeds from a CSV file with a header that names rate and perhaps spread; its rows are the clients in order."""
    try:
        with Path(path).open(newline="") as file:
            rows = list(csv.DictReader(file))
        return ClientTable(
            [float(row["rate"]) for row in rows], [float(row.get("spread") or 0) for row in rows]
        )
    except OSError:
        raise ConfigError("client_table", str(path), "the name of a readable CSV file") from None
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            "client_table",
            str(path),
            "a CSV file with numbers in its column rate, and perhaps spread",
        ) from None


def _is_trace(value: Any) -> bool:
    return value is None or isinstance(value, Trace)


def _is_table(value: Any) -> bool:
    return value is None or isinstance(value, ClientTable)


@struct
class ClientDelays:
    """Clients of two speeds, or of speeds from a table.

    A client of rate r completes a local step (or, under `time_of="update"`, a whole update) after a time of mean 1/r. Its law:
    `runtime_geom`, geometric on {1, 2, ...}: in each unit of time it completes its step with probability r; `runtime_exp`, exponential;
    `runtime_constant`; `runtime_uniform`, from 1 - spread to 1 + spread means; `runtime_normal`, with a standard deviation of spread
    times the mean, and no less than 0, which adds 0.4 % to the mean at a spread of 1/2 and 8 % at 1; `runtime_shifted_exp`, whose
    exponential part is the share `spread` of the mean; `runtime_lognormal`, whose logarithm has the standard deviation `spread`;
    `runtime_pareto`, of tail index 1 / spread. `count_geom` draws the *number* of steps between two contacts as geometric whatever the
    time between them (the literal sentence of FAVANO's App. C.2); where a running time is needed it stays geometric. A recorded trace
    replaces the law.
    """

    num_clients: int = count(100, "Num clients.")
    local_steps: int = count(
        20, "K: steps of a client's update, or the most it does between two contacts."
    )
    slow_fraction: float = real(
        1 / 3, "Share of slow clients, rounded up to whole clients.", least=0, most=1
    )
    slow_clients: str = choice(
        "random",
        ("random", "last"),
        "Which clients are slow: drawn per lane, or those of the highest numbers.",
    )
    rate_fast: float = real(1 / 2, "Local steps per unit of virtual time.", above=0)
    rate_slow: float = real(1 / 16, "Rate slow.", above=0)
    runtime_law: str = choice("runtime_geom", RUNTIME_LAWS, "Runtime law.")
    spread_fast: float = real(
        0.0, "Relative to the mean, see the laws; 0 makes a time constant.", least=0
    )
    spread_slow: float = real(0.0, "Spread slow.", least=0)
    time_of: str = choice(
        "step",
        ("step", "update"),
        "What takes the time of the law: each of K local steps, or their update as a whole.",
    )
    client_table: Any = static(
        None,
        "a ClientTable, or the name of a CSV file with a column rate",
        _is_table,
        read_client_table,
        meaning="Rates and spreads by client, in place of fast and slow ones.",
    )
    trace: Any = static(
        None,
        "a Trace, or the name of a CSV file with columns client, start, finish",
        _is_trace,
        read_trace,
        meaning="Trace.",
    )

    def check_together(self) -> None:
        table = self.client_table
        if table is not None and table.rate.size != self.num_clients:
            raise ConfigError(
                "client_table",
                f"of {table.rate.size} rows",
                f"of num_clients = {self.num_clients} rows",
            )
        for name, what in self.decided().items():
            value, default = getattr(self, name), fields(type(self))[name].default
            is_default = (
                value is None if default is None else not np.any(np.asarray(value) != default)
            )
            if not is_default:
                raise ConfigError(name, value, f"left at {default!r} with {what}, which decides it")
        for names, of_table in ((RATES, "rate"), (SPREADS, "spread")):
            for name in names if table is None else (f"client_table {of_table}",):
                self._check_speed(
                    name,
                    getattr(self, name) if table is None else getattr(table, of_table),
                    is_rate=of_table == "rate",
                )
        if self.trace is not None:
            self.trace.check(self.num_clients)

    def decided(self) -> dict[str, str]:
        """Settings that have no use beside others and must be left at their defaults, by name, and what decides them."""
        found: dict[str, str] = {}
        if self.client_table is not None:
            found |= dict.fromkeys(
                ("slow_fraction", "slow_clients", *RATES, *SPREADS), "a table of clients"
            )
        return found | self.decided_by_trace(
            "slow_fraction",
            "slow_clients",
            *RATES,
            "runtime_law",
            *SPREADS,
            "time_of",
            "client_table",
        )

    def decided_by_trace(self, *names: str) -> dict[str, str]:
        """These settings, where there is a recorded trace."""
        return {} if self.trace is None else dict.fromkeys(names, "a recorded trace")

    @property
    def mean_rate(self) -> Any:
        """Average rate of the clients, per step or update as the law is; not inside a trace."""
        if self.client_table is not None:
            return self.client_table.rate.mean()
        return self.rate_fast + self.slow_fraction * (self.rate_slow - self.rate_fast)

    @property
    def largest_rate(self) -> Any:
        """Rate of the fastest clients; not inside a trace."""
        return (
            np.maximum(self.rate_fast, self.rate_slow)
            if self.client_table is None
            else self.client_table.rate.max()
        )

    @property
    def num_senders(self) -> int:
        """How many there are whom the slots of a timeline name: the clients, unless a system has others send for them."""
        return self.num_clients

    @property
    def times_per_update(self) -> int:
        """Times of the law that an update takes."""
        return self.local_steps if self.time_of == "step" else 1

    def _check_speed(self, name: str, value: Any, *, is_rate: bool) -> None:
        worst = float(np.max(value))
        if is_rate and self.runtime_law in ("runtime_geom", "count_geom") and worst > 1:
            raise ConfigError(name, worst, f"at most 1, a probability, under {self.runtime_law}")
        if not is_rate and worst > 0 and self.runtime_law not in SPREAD_LAWS:
            raise ConfigError(name, worst, f"0 under {self.runtime_law}, which has no spread")
        if not is_rate and self.runtime_law in BOUNDED_SPREADS:
            is_pareto = self.runtime_law == "runtime_pareto"
            if worst > 1 or (is_pareto and worst == 1):
                raise ConfigError(
                    name, worst, f"{'below' if is_pareto else 'at most'} 1 under {self.runtime_law}"
                )


class Speeds(NamedTuple):
    """What the law needs to know of every client."""

    rate: Array  # f64[N]  steps (or updates) per unit of time
    spread: Array  # f64[N]  relative to the mean time


def client_speeds(key: Key, clients: ClientDelays) -> Speeds:
    """Draw every client's speed. key: the lane's key."""
    if clients.client_table is not None:
        return Speeds(
            jnp.asarray(clients.client_table.rate), jnp.asarray(clients.client_table.spread)
        )
    num = clients.num_clients
    is_drawn = clients.slow_clients == "random"
    place = (
        jax.random.permutation(stream(key, "speeds"), num) if is_drawn else jnp.arange(num)[::-1]
    )
    num_slow = jnp.ceil(jnp.asarray(clients.slow_fraction, float) * num - 1e-6)
    pairs = ((clients.rate_slow, clients.rate_fast), (clients.spread_slow, clients.spread_fast))
    return Speeds(
        *(
            jnp.where(place < num_slow, jnp.asarray(slow, float), jnp.asarray(fast, float))
            for slow, fast in pairs
        )
    )


def client_rates(key: Key, clients: ClientDelays) -> Array:
    """Draw every client's rate, in local steps per unit of time: `f64[N]`. key: the lane's key."""
    return client_speeds(key, clients).rate


def runtimes(key: Key, speeds: Speeds, num: int, law: str) -> Array:
    """Draw running times, each of mean 1/rate. speeds: leaves `[...]`. Returns `f64[..., num]`, in units of virtual time."""
    rate, spread = (leaf[..., None] for leaf in speeds)
    shape, dtype = (*rate.shape[:-1], num), rate.dtype
    if law == "runtime_constant":
        return jnp.broadcast_to(1 / rate, shape)
    if law == "runtime_uniform":
        return jax.random.uniform(key, shape, dtype, 1 - spread, 1 + spread) / rate
    if law == "runtime_normal":
        return jnp.maximum(1 + spread * jax.random.normal(key, shape, dtype), 0) / rate
    if law == "runtime_lognormal":
        return jnp.exp(spread * jax.random.normal(key, shape, dtype) - spread**2 / 2) / rate
    standard = jax.random.exponential(key, shape, dtype)
    if law == "runtime_exp":
        return standard / rate
    if law == "runtime_shifted_exp":
        return (1 - spread + spread * standard) / rate
    if law == "runtime_pareto":  # The smallest time is 1 - spread means.
        return (1 - spread) * jnp.exp(spread * standard) / rate
    return 1 + jnp.floor(standard / -jnp.log1p(-rate))


def update_time(
    key: Key, client: Array, update: Array, speeds: Speeds, clients: ClientDelays
) -> Array:
    """Draw the running time of a client's update of K steps; the same whatever the order in which updates are asked for.

    client, update: `i32[...]`, the latter counted per client from 0. speeds: leaves `[N]`. Returns `f64[...]`.
    """

    def one(client: Array, update: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, client), update)
        return runtimes(
            own,
            Speeds(*(leaf[client] for leaf in speeds)),
            clients.times_per_update,
            clients.runtime_law,
        ).sum()

    return jnp.vectorize(one)(client, update)
