"""Schedules: factors by which a rate, or another strength, changes during a run.

A setting such as `lr` has a schedule, `lr_schedule`. The rate of a local step is then lr times the
factor at time t, and t is read from one of six clocks, the schedule's field `by`:

    "round"      server actions before the tick
    "version"    number of the server's model that the slot's work started from
    "staleness"  server actions since then, before the tick, tau
    "step"       local steps before this one in the same update, q
    "client"     number of the slot's client, or of its group where groups report
    "work"       local steps of the slot's update, or iterations of a group

Schedules are frozen structs whose numbers are traced leaves: schedules of one kind share a compiled
program, also those with different numbers.
"""

import typing
from collections.abc import Callable, Collection
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp

from fedjax_sim.core import settings
from fedjax_sim.core.settings import ConfigError, Kind, Named, fixed, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0
from fedjax_sim.core.types import Array

HyperT = TypeVar("HyperT")
Clock = Literal["round", "version", "staleness", "step", "client", "work"]
CLOCKS = typing.get_args(Clock)


@struct
class Schedule(Kind):
    """The interface of schedules.

    @settings.struct
    class Halving(Schedule):
        "Half as much after every so many rounds."
        name: str = settings.fixed("halving")
        every: Above0 = settings.setting(10.0, "Rounds.")

        def factor(self, t):
            return 0.5 ** (t / self.every)

    SCHEDULES["halving"] = Halving  # for the command line
    hyper = fedavg.Hyper(lr=0.5, lr_schedule=Halving(every=20.0))
    """

    name: str = fixed("")
    by: Clock = setting("round", "Clock that the factor follows.")

    @property
    def clock(self) -> str:
        """Name of the clock."""
        return self.by

    @property
    def is_constant(self) -> bool:
        """Whether the factor is 1 at all times."""
        return isinstance(self, Constant)

    def factor(self, t: Array) -> Array:
        """Compute the factor.

        Args:
          t: `f[]`, time since the beginning, from 0.
        """
        raise NotImplementedError

    def of(self, rate: Any, t: Array) -> Any:
        """Compute a rate at a time. A constant rate comes back as it is.

        Args:
          rate: The rate without a schedule.
          t: Time, a whole number of any shape.
        """
        if self.is_constant:
            return rate
        return rate * self.factor(jnp.asarray(t, jnp.result_type(rate, float)))

    def lasting(self, length: float | None, where: str) -> "Schedule":
        """Fill in the length of the run where the schedule has none.

        Args:
          length: The length; None if it is not known before the run.
          where: Name of the setting that holds the schedule.

        Raises:
          ConfigError: If it is needed and not known.
        """
        return self


@struct
class Constant(Schedule):
    """The factor 1."""

    name: str = fixed("constant")

    def factor(self, t: Array) -> Array:
        """Return 1."""
        return jnp.ones_like(t)


@struct
class Cosine(Schedule):
    """Half a wave: final + (1 - final) (1 + cos(pi min(t / over, 1))) / 2."""

    name: str = fixed("cosine")
    over: AtLeast0 = setting(
        0.0, "Time of the fall. 0 stands for all ticks of the lane, where they are planned."
    )
    final: AtLeast0 = setting(0.0, "Factor in the end.")

    def factor(self, t: Array) -> Array:
        """Compute the factor."""
        if settings.is_known(self.over, 0):
            self.lasting(None, self.name)
        wave = jnp.cos(jnp.pi * jnp.minimum(t / self.over, 1))
        return self.final + (1 - self.final) * (1 + wave) / 2

    def lasting(self, length: float | None, where: str) -> Schedule:
        """Take the length for that of the fall."""
        if not settings.is_known(self.over, 0):
            return self
        if length is None or length <= 0 or self.by not in ("round", "version"):
            allowed = "above 0, except by round or version where all ticks are known before the run"
            raise ConfigError(f"{where}.over", 0.0, allowed)
        return self.replace(over=float(length))  # type: ignore[attr-defined]


@struct
class Exponential(Schedule):
    """Exponential decay: decay^t."""

    name: str = fixed("exponential")
    decay: Above0 = setting(0.99, "Factor of each unit of time.")

    def factor(self, t: Array) -> Array:
        """Compute the factor."""
        return self.decay**t


@struct
class Step(Schedule):
    """Steps: decay^floor(t / every)."""

    name: str = fixed("step")
    decay: Above0 = setting(0.5, "Factor of each step down.")
    every: Above0 = setting(30.0, "Time between steps down.")

    def factor(self, t: Array) -> Array:
        """Compute the factor."""
        # A compiled quotient of equal numbers may be just below 1.
        return self.decay ** jnp.floor(t / self.every * (1 + 2 * jnp.finfo(t.dtype).eps))


@struct
class InverseTime(Schedule):
    """Inverse decay: 1 / (1 + decay t)."""

    name: str = fixed("inverse_time")
    decay: AtLeast0 = setting(1.0, "Growth of the inverse factor per unit of time.")

    def factor(self, t: Array) -> Array:
        """Compute the factor."""
        return 1 / (1 + self.decay * t)


@struct
class InverseSqrt(Schedule):
    """Decay by an inverse root: (1 + decay t)^(-1/2)."""

    name: str = fixed("inverse_sqrt")
    decay: AtLeast0 = setting(1.0, "Growth of the inverse square of the factor per unit of time.")

    def factor(self, t: Array) -> Array:
        """Compute the factor."""
        return (1 + self.decay * t) ** -0.5


@struct
class Capped(Schedule):
    """Inverse decay from a time on: min(1, threshold / t).

    By staleness it is the delay-adaptive rate min(eta, c / tau) of asynchronous SGD (Koloskova,
    Stich and Jaggi 2022, arXiv 2206.08307; Mishchenko et al. 2022, arXiv 2206.07638), with
    `threshold` c / eta. The server knows tau when it steps; to scale each of an update's plain
    local steps by it, as here, is the same for one step, and to first order in eta for more.
    """

    name: str = fixed("capped")
    threshold: Above0 = setting(1.0, "Longest time with the factor 1.")

    def factor(self, t: Array) -> Array:
        """Compute the factor."""
        return jnp.minimum(1, self.threshold / jnp.maximum(t, 1e-30))


@struct
class Table(Schedule):
    """Given factors for t = 0, 1, ...; the last one holds from then on.

    By client, each has its rate; by step, each local step of an update has.
    """

    name: str = fixed("table")
    factors: tuple[AtLeast0, ...] = setting((1.0,), "The factors.")

    def factor(self, t: Array) -> Array:
        """Look the factor up."""
        place = jnp.clip(t.astype("int32"), 0, len(self.factors) - 1)
        return jnp.stack([jnp.asarray(each, t.dtype) for each in self.factors])[place]


@struct
class Function(Schedule):
    """A function of time, such as a schedule of optax with the first value 1.

    It has no name on the command line, and its numbers are part of the program.
    """

    name: str = fixed("function")
    function: Callable[[Array], Array] = setting(
        jnp.ones_like,
        "The factor as a function of time.",
        allowed="a function from a number to a number",
        accepts=callable,
    )

    def factor(self, t: Array) -> Array:
        """Call the function."""
        return jnp.asarray(self.function(t), t.dtype)


@struct
class Warmup(Schedule):
    """Linear growth to 1, (t + 1) / (over + 1) for t below `over`, and then another schedule.

    The other one starts with its time 0 at `over`, and its clock is that of both.
    """

    name: str = fixed("warmup")
    by: Clock = fixed("round")
    over: Above0 = setting(10.0, "Time of the growth.")
    then: Schedule = setting(
        Constant(), "What follows.", parse=lambda text: parse_schedule(text), allowed="a schedule"
    )

    @property
    def clock(self) -> str:
        """Clock of the schedule that follows."""
        return self.then.clock

    def factor(self, t: Array) -> Array:
        """Compute the factor."""
        after = self.then.factor(jnp.maximum(t - self.over, 0))
        return jnp.where(t < self.over, (t + 1) / (self.over + 1), after)

    def lasting(self, length: float | None, where: str) -> Schedule:
        """Leave the rest of the length to the schedule that follows."""
        rest = None
        if length is not None and not isinstance(self.over, jax.core.Tracer):
            rest = length - float(self.over)
        then = self.then.lasting(rest, f"{where}.then")
        return self.replace(then=then)  # type: ignore[attr-defined]


_KINDS = Constant, Cosine, Exponential, Step, InverseTime, InverseSqrt, Capped, Table, Warmup
SCHEDULES: Named[type[Schedule]] = Named.of(
    "schedule", *_KINDS, example="cosine:over=99:final=0.01 or warmup:over=5:then=step:every=20"
)
"""Every kind of schedule, by name."""


def parse_schedule(text: str) -> Schedule:
    """Read a schedule from text.

        assert parse_schedule("step:every=20:by=version") == Step(every=20.0, by="version")
        parse_schedule("warmup:over=5:then=cosine:final=0.01")

    Args:
      text: A name of `SCHEDULES`, followed by values for its fields. Other fields have their
        defaults. What follows ":then=" is all about the schedule after a warm-up.

    Returns:
      The schedule.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return settings.parse_kind("schedule", SCHEDULES, text, last="then")


def schedule_of(name: str, clocks: Collection[str] = ("round",)) -> Any:
    """Declare the schedule of a setting.

    Args:
      name: The setting.
      clocks: Clocks that the schedule may follow.
    """

    def accepts(value: object) -> bool:
        if isinstance(value, Schedule) and not value.is_constant and value.clock not in clocks:
            raise ConfigError(f"{name}_schedule.by", value.clock, f"one of {', '.join(clocks)}")
        return True

    return setting(
        Constant(),
        f"Factor on `{name}`, by {', '.join(clocks)}.",
        allowed=SCHEDULES,
        parse=parse_schedule,
        accepts=accepts,
    )


def with_length(hyper: HyperT, length: float | None) -> HyperT:
    """Give the schedules of settings the run's number of ticks, where they have no length.

    Raises:
      ConfigError: If a schedule needs it, and it is not known before the run: None.
    """
    for name in settings.fields(type(hyper)):
        value = settings.value_of(hyper, name)
        whole = value.lasting(length, name) if isinstance(value, Schedule) else value
        if whole is not value:
            hyper = hyper.replace(**{name: whole})  # type: ignore[attr-defined]
    return hyper
