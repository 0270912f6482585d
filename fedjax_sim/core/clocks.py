"""Live clocks: the contract of systems with events that follow from learning.

A planned system draws its whole schedule before learning. A live system makes its next event within
the step, from the state of its clock and of learning: who reports, with how many steps, and what
time it is. `timelines.live` has the parts that clocks are made of.

Times are sums of two floats, because one of 32 bits puts arrivals in the wrong order.

Dimension letters: `N` clients, `S` slots of a tick, `M` versions of the server's model in use.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from fedjax_sim.core.events import Event
from fedjax_sim.core.settings import Count, Whole, checked

TimeT = TypeVar("TimeT")
"""State of a clock: a pytree."""
HyperT = TypeVar("HyperT")
"""A system's settings."""

ENDINGS = ("ticks", "budget", "idle", "done", "time", "steps", "versions", "clients", "stopped")
"""Why a live lane did nothing more: it had its ticks; its time was over; nobody will ever report;
its clock says that it is done; or, the last one, `on_evaluation` stopped it. The others are faults
of its clock: a time that is nan or before the last one; other steps than its sizes, or more than
its `most_steps`, say; more versions in use than its sizes say; or a client that does not exist, is
given a second task, reports twice, or is missing."""


RUNS = -1
"""In place of the number of one of `ENDINGS`, while a lane goes on."""


class Instant(NamedTuple):
    """A virtual time, as the sum of a float and a much smaller one: 48 bits of two with 32.

        large = Instant.at(2.0**30).later(jnp.float32(0.5))
        assert large.to_float64() == 2**30 + 0.5  # a float of 32 bits has no such number

    Attributes:
      value: `f[...]`, the time, rounded.
      rest: `f[...]`, what is missing.
    """

    value: jax.Array
    rest: jax.Array

    @classmethod
    def at(cls, time: ArrayLike) -> Self:
        """Make an instant of a number, or of an array of numbers.

        Args:
          time: Units of virtual time, `f[...]`. A float of Python is kept to 48 bits.

        Returns:
          The instant.
        """
        kind = jnp.result_type(float)
        if isinstance(time, (int, float, np.ndarray, np.generic)):
            wide = np.asarray(time, "float64")
            with np.errstate(over="ignore"):  # Later than any float is never.
                near = wide.astype(kind)
            is_finite = np.isfinite(near)
            rest = np.where(is_finite, wide - np.where(is_finite, near, 0), 0).astype(kind)
            return cls(*jax.device_put((near, rest)))
        value = jnp.asarray(time, kind)
        return cls(value, jnp.zeros_like(value))

    def later(self, by: "jax.Array | Instant") -> Self:
        """Add a duration: a float, or an instant counted from 0. It may be infinite.

        Args:
          by: `f[...]`, or an instant.

        Returns:
          The later instant.
        """
        other = by if isinstance(by, Instant) else Instant(by, jnp.zeros_like(by))
        total = self.value + other.value
        # What was lost when the values were added (Knuth's TwoSum), and what was missing before.
        shown = total - self.value
        lost = (self.value - (total - shown)) + (other.value - shown)
        lost = lost + (self.rest + other.rest)
        value = total + lost
        rest = lost - (value - total)
        is_finite = jnp.isfinite(total)
        return type(self)(jnp.where(is_finite, value, total), jnp.where(is_finite, rest, 0.0))

    def since(self, earlier: Self) -> jax.Array:
        """Compute the time since an earlier instant, as one float: `f[...]`.

        Args:
          earlier: The other one.
        """
        return self.later(type(self)(-earlier.value, -earlier.rest)).value

    def is_before(self, other: Self) -> jax.Array:
        """Tell whether it is before another instant: `bool[...]`."""
        return (self.value < other.value) | ((self.value == other.value) & (self.rest < other.rest))

    def or_later(self, other: Self) -> Self:
        """Return the later one of two instants."""
        return self.where(~self.is_before(other), other)

    def where(self, is_self: jax.Array, other: Self) -> Self:
        """Take this instant where a condition holds, otherwise another.

        Args:
          is_self: The condition, `bool[...]`.

        Returns:
          The instants.
        """
        return type(self)(*(jnp.where(is_self, a, b) for a, b in zip(self, other, strict=True)))

    def take(self, index: Any) -> Self:
        """Select some of several instants.

        Args:
          index: Places, as an array is indexed.
        """
        return type(self)(self.value[index], self.rest[index])

    @property
    def is_finite(self) -> jax.Array:
        """Whether it will ever come: `bool[...]`."""
        return jnp.isfinite(self.value)

    def to_float64(self) -> np.ndarray:
        """Put it together on the host: `f64[...]`."""
        return np.asarray(self.value, "float64") + np.asarray(self.rest, "float64")


@checked
class Sizes(NamedTuple):
    """Upper bounds of a live clock, from which memory and layout are planned.

    A lane that exceeds any of it ends there, and `curves.ended` names what.

        three = Sizes(slots=3, most_steps=10)
        from_old_models = Sizes(slots=3, most_steps=10, versions=20)  # of 20 clients at work

    Attributes:
      slots: Slots of a tick, S.
      most_steps: Most local steps of a slot.
      versions: Most versions of the server's model from which somebody works at one time, M, such
        as clients at work. 0 if all work starts from the newest model.
      is_full: Whether every slot is filled at every tick and has `most_steps` steps, which makes
        local work quicker.
      is_even: Whether every slot that is filled has `most_steps` steps, which makes local work
        quicker on an accelerator. True if it `is_full`.
    """

    slots: Count
    most_steps: Whole
    versions: Whole = 0
    is_full: bool = False
    is_even: bool = False


class Received(NamedTuple):
    """The reception of the server at its next action, as a live clock decides it.

    Attributes:
      time: When the server acts: not before its last action (several may have one time); infinite
        if it never will, which ends the lane.
      clients: `i32[S]`, who reports; `EMPTY` in empty slots.
      steps: `i32[S]`, local steps behind each report.
      version: `i32[S]`, server version from which that work started.
      weight: `f[S]`, weight of each report.
      executed: `i32[]`, evaluations that the program ran to decide this, such as those of losses.
      needed: `i32[]`, evaluations of these that the algorithm asked for.
      is_done: `bool[]`, whether the lane ends before this, because it has learnt enough.
      begins: When a round begins that ends with this; none begins after the lane's time. None if
        that is the server's last action.
    """

    time: Instant
    clients: jax.Array
    steps: jax.Array
    version: jax.Array
    weight: jax.Array
    executed: ArrayLike = 0
    needed: ArrayLike = 0
    is_done: ArrayLike = False
    begins: Instant | None = None


class Clock(NamedTuple, Generic[TimeT]):
    """A live clock, bound to a problem and settings. All functions are pure and traced.

    Each call of `next`, `after` and `ahead` gets a key of its own tick, and each of the three
    another one. `core.streams.lane_stream` derives from it what is the same at every tick.

        def next_tick(key, number, state):  # one client in turn, in every unit of time
            time, turn = Instant.at(number + 1.0), number[None]
            return number + 1, Received(time, turn % 8, jnp.full(1, 5, "int32"), turn, jnp.ones(1))

        clock = Clock(lambda key: jnp.int32(0), next_tick)
        number, received = clock.next(key, jnp.int32(9), None)
        assert received.clients == 9 % 8 and received.time.value == 9 + 1

    Attributes:
      init: From a key to what the clock carries, such as the work in flight.
      next: From key, what it carries, and the algorithm's state, to what it carries then and what
        the server receives next. It may compute losses of the state's models. If `ahead` is given,
        what that drew for the tick is a fourth argument.
      after: From key, what it carries, the event, the algorithm's next state, and what the step
        has `seen` (the field of its `Work`), to what it carries then: what the clock learns from
        the tick, and who starts from the new model.
      in_use: From what it carries to the versions from which somebody works, `i32[M]`; entries
        without work are negative. None if all work starts from the newest model.
      ahead: From key and a tick's number to random numbers that `next` needs at that tick, whatever
        was learnt before. An accelerator draws those of many ticks at once. None if there are none.
    """

    init: Callable[[jax.Array], TimeT]
    next: Callable[..., tuple[TimeT, Received]]
    after: Callable[[jax.Array, TimeT, Event, Any, Any], TimeT] = lambda key, time, *seen: time
    in_use: Callable[[TimeT], jax.Array] | None = None
    ahead: Callable[[jax.Array, jax.Array], Any] | None = None


class Live(NamedTuple, Generic[HyperT]):
    """That a system is live, and how.

        def clock(problem, hyper):
            return live_tasks(hyper, num_tasks=20, num_used=hyper.buffer_size)

        live = Live(lambda hyper: Sizes(hyper.buffer_size, hyper.local_steps, 20), clock)
        system = with_clock(fedjax_sim.SYSTEMS["fedbuff"], live)

    Attributes:
      sizes: From the settings to what is never exceeded; called before learning.
      clock: From the problem and the settings to the clock.
    """

    sizes: Callable[[HyperT], Sizes]
    clock: Callable[[Any, HyperT], Clock]
