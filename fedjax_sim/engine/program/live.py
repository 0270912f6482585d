"""The step of a live system: its clock makes the event, the algorithm learns, the clock goes on.

What a planned schedule says before learning is found out within the tick: which row of the store
of old models each slot reads and where the new model goes, each client's place in its stream of
mini-batches, and whether the lane's time is over.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import types
from fedjax_sim.core.clocks import ENDINGS, RUNS, Clock, Instant, Received, Sizes
from fedjax_sim.core.events import HAPPENED
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.streams import clock_key, tick_key
from fedjax_sim.core.targets import TreeT, is_for_cpu, put
from fedjax_sim.core.types import EMPTY, Array, HyperT, InfoT, StateT
from fedjax_sim.engine.planning.schedule import Ends

TICKS, BUDGET, IDLE, DONE, TIME, STEPS, VERSIONS, CLIENTS, _ = range(len(ENDINGS))
"""Why a lane does nothing more: places in `ENDINGS`."""

MOST_AHEAD = 2**20
"""Random numbers that a lane draws ahead, at most."""
INVARIANT = "threefry2x32"
"""JAX's random numbers that do not depend on which others are drawn with them by `vmap`."""
FEW_SLOTS = 128
"""Slots up to which it is quicker to compare all pairs than to sort."""


class LiveState(NamedTuple):
    """State of a live lane between two ticks.

    Attributes:
      state: The algorithm's state.
      clock: What the clock carries.
      now: When the server acted last.
      tick: `i32[]`, server actions so far.
      held: `i32[R]`, the version in each row of the store, without the scratch row; negative where
        there is none.
      delivered: `i32[N]`, local steps that each client has delivered.
      used: Energy of the work received and of its messages.
      until: When the lane is over in any case.
      ended: `i32[]`, why the lane did nothing at the last tick, the number of one of `ENDINGS`;
        `RUNS` if it did something.
    """

    state: Any
    clock: Any
    now: Instant
    tick: Array
    held: Array
    delivered: Array
    used: Instant
    until: Ends
    ended: Array


class LiveLane(NamedTuple):
    """A live system's clock, bound for the trace that is under way.

    Attributes:
      system: The system.
      clock: The clock.
      key: Its random key, which is derived once and not at every tick.
      sizes: What it never exceeds.
      num_clients: Clients, N.
      energies: Energy of a local step and of a byte of each client, `f64[N]`, on the host; None if
        it is not counted.
      is_batched: Whether lanes are computed together.
    """

    system: types.System
    clock: Clock
    key: types.Key
    sizes: Sizes
    num_clients: int
    energies: tuple[np.ndarray, np.ndarray] | None
    is_batched: bool

    def init(self, state: StateT) -> LiveState:
        """Begin at time 0, without a limit.

        Args:
          state: The algorithm's first state.
        """
        held = jnp.full(rows_of(self.sizes) - 1, EMPTY, "int32").at[0].set(0)
        return LiveState(
            state,
            self.clock.init(self.key),
            Instant.at(0.0),
            jnp.int32(0),
            held,
            jnp.zeros(self.num_clients, "int32"),
            Instant.at(0.0),
            Ends.never(),
            jnp.int32(RUNS),
        )

    def draw_ahead(self, live_state: LiveState, number: int) -> tuple[Array, Any] | None:
        """Pre-draw the clock's random numbers, for the next ticks of an accelerator.

        Args:
          live_state: What the lane carries before these ticks.
          number: How many they are.

        Returns:
          The ticks' numbers, `i32[number]`, and what was drawn for them, leaves `[number, ...]`;
          None if ticks draw for themselves, because it is nothing or much, or depends on how many
          ticks there are.
        """
        draw = self.clock.ahead
        if draw is None or is_for_cpu() or str(jax.random.key_impl(self.key)) != INVARIANT:
            return None
        ticks = live_state.tick + jnp.arange(number, dtype="int32")
        drawn = jax.vmap(lambda tick: draw(tick_key(self.key, tick, "ahead"), tick))
        size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(drawn, ticks)))
        # Few clients may be drawn by an order of all.
        is_little = max(size, number * self.num_clients) <= MOST_AHEAD
        return (ticks, drawn(ticks)) if is_little else None

    def step(
        self,
        live_state: LiveState,
        frame: types.Event,
        ahead: tuple[Array, Any] | None = None,
        *,
        learn: Callable[[Any, types.Event], tuple[Any, Any]],
        rests: bool,
    ) -> tuple[LiveState, Any]:
        """Take one tick, or nothing if the lane has ended.

        Args:
          live_state: What the lane carries.
          frame: The event of a timeline that says nothing.
          ahead: A tick's number, `i32[]`, and what was drawn ahead for it; None if nothing was. A
            lane that has ended at an earlier tick does not get so far.
          learn: The algorithm's step, from state and event.
          rests: Whether the step does nothing if no slot is filled.

        Returns:
          What it carries then, and the step's `Info`.
        """
        if frame.facts.replaced:
            allowed = "as it was bound: a live clock makes the event, which a step may change"
            raise ConfigError("event", f"with other {' and '.join(frame.facts.replaced)}", allowed)
        sizes, tick = self.sizes, live_state.tick
        time, received = self._next(live_state, ahead)
        clients = jnp.asarray(received.clients, "int32")
        if not is_for_cpu():
            # Otherwise a GPU decides again, for each pair of slots, who reports.
            clients = jax.lax.optimization_barrier(clients)
        is_there, is_full = clients != EMPTY, sizes.is_full and frame.facts.all_filled
        version = jnp.asarray(received.version, "int32")
        steps = jnp.where(is_there, jnp.asarray(received.steps, "int32"), 0)
        read, write, is_known = self._rows(live_state, time, version)
        ended = self._ended(live_state, received, clients, steps, is_there, is_known)
        # Ticks beyond those that were asked for have no slots.
        if not frame.facts.all_filled:
            ended = jnp.where((frame.clients != EMPTY).any(), ended, TICKS)
        if ahead is not None:
            # What was drawn for a later tick decides nothing.
            ended = jnp.where(ahead[0] == tick, ended, live_state.ended)
        goes_on = ended == RUNS
        skips = is_full and is_for_cpu() and not self.is_batched
        if skips:
            # The event has the clients of the frame, and the step is left out.
            clients = jnp.where(goes_on, clients, frame.clients)
            steps = jnp.where(goes_on, steps, frame.steps)
        else:
            is_there &= goes_on
            clients, steps = jnp.where(is_there, clients, EMPTY), jnp.where(is_there, steps, 0)
        is_there |= skips
        offset = self._offsets(live_state.delivered, clients, steps)
        if not is_for_cpu():
            # Otherwise a GPU looks it up again for each mini-batch.
            offset = jax.lax.optimization_barrier(offset)
        event = frame.within(
            tick=tick,
            clients=clients,
            steps=steps,
            version=version,
            weight=jnp.where(is_there, received.weight, 0).astype(frame.weight.dtype),
            offset=offset,
            read=jnp.where(is_there, read, jnp.int32(rows_of(sizes) - 1)),
            write=jnp.where(goes_on, write, jnp.int32(rows_of(sizes) - 1)),
            facts=_facts(frame.facts, sizes, is_full=is_full, is_filled=skips),
        )
        is_left_out = skips or not rests
        take = functools.partial(learn_if, goes_on, learn) if is_left_out else learn
        state, info = take(live_state.state, event)
        seen, info = _realised(info, event, received, goes_on, is_left_out=is_left_out)
        event = info.event
        time = self.clock.after(tick_key(self.key, tick, "after"), time, event, state, seen)
        counted = jnp.where(event.clients >= 0, event.clients, self.num_clients)
        after = LiveState(
            state,
            _where(goes_on, time, live_state.clock),
            received.time.where(goes_on, live_state.now),
            tick + goes_on,
            put(live_state.held, jnp.where(goes_on, write, len(live_state.held)), tick + 1),
            live_state.delivered.at[counted].add(event.steps, mode="drop"),
            self._used(live_state, event.clients, event.steps).where(goes_on, live_state.used),
            live_state.until,
            ended,
        )
        return after, info

    def _next(self, live_state: LiveState, ahead: tuple[Array, Any] | None) -> tuple[Any, Received]:
        """Ask the clock for the next reports: its state then, and these."""
        tick = live_state.tick
        given = [tick_key(self.key, tick, "next"), live_state.clock, live_state.state]
        if ahead is not None:
            given.append(ahead[1])
        elif self.clock.ahead is not None:
            given.append(self.clock.ahead(tick_key(self.key, tick, "ahead"), tick))
        time, received = self.clock.next(*given)
        _check_received(received, self.sizes)
        return time, received

    def _rows(self, live_state: LiveState, time: Any, version: Array) -> tuple[Array, Array, Array]:
        """Find the rows of the versions that are read, and one that nobody needs for the new one.

        Args:
          live_state: What the lane carries.
          time: The clock's state after the reports.
          version: `i32[S]`.

        Returns:
          `i32[S]`, `i32[]`, and `bool[S]`, which versions are known.
        """
        held = live_state.held
        found = _first(version[:, None] == held[None])
        read = jnp.where(found < len(held), found, 0)
        if self.clock.in_use is None:
            return read, jnp.int32(0), version == live_state.tick
        used = self.clock.in_use(time)
        is_used = (held[:, None] == used[None]).any(axis=1) & (held >= 0)
        write = _first(~is_used)
        # Every row is in use if more versions are than the clock has declared.
        return read, write, (found < len(held)) & (write < len(held))

    def _ended(
        self,
        live_state: LiveState,
        received: Received,
        clients: Array,
        steps: Array,
        is_there: Array,
        is_known: Array,
    ) -> Array:
        """Find out why the lane does not go on: the number of one of `ENDINGS`, or `RUNS`.

        Args:
          live_state: What the lane carries.
          received: The clock's reports.
          clients: `i32[S]`, who reports.
          steps: `i32[S]`, local steps, 0 in empty slots.
          is_there: `bool[S]`, which slots are filled.
          is_known: `bool[S]`, which slots read versions that are in the store.
        """
        sizes, until = self.sizes, live_state.until
        is_client = (clients >= EMPTY) & (clients < self.num_clients)
        is_client &= is_there | (not sizes.is_full)
        if not self.system.can_repeat:
            is_client &= ~report_again(clients, is_there, self.num_clients)
        is_allowed = (steps >= 0) & (steps <= sizes.most_steps)
        is_allowed &= (steps == sizes.most_steps) | (not sizes.is_even)
        if self.system.overshoot:
            begins = live_state.now if received.begins is None else received.begins
            is_over = ~begins.is_before(until.time)
        else:
            is_over = until.time.is_before(received.time)
        is_over |= until.energy.is_before(self._used(live_state, clients, steps))
        ended = jnp.int32(RUNS)
        for reason, holds in (
            (CLIENTS, ~is_client.all()),
            (VERSIONS, (is_there & ~is_known).any()),
            (TIME, received.time.is_before(live_state.now) | jnp.isnan(received.time.value)),
            (STEPS, (is_there & ~is_allowed).any()),
            (BUDGET, is_over),
            (IDLE, jnp.isposinf(received.time.value)),
            (DONE, received.is_done),
        ):
            ended = jnp.where(holds, reason, ended)
        return ended

    def _used(self, live_state: LiveState, clients: Array, steps: Array) -> Instant:
        """Add the energy of the slots of a tick, with their messages, to the energy used before."""
        if self.energies is None:
            return live_state.used
        of_step, of_byte = (jnp.asarray(each, float)[clients] for each in self.energies)
        each = steps * of_step + live_state.until.message * of_byte
        return live_state.used.later(jnp.where(clients != EMPTY, each, 0).sum())

    def _offsets(self, delivered: Array, clients: Array, steps: Array) -> Array:
        """Count the local steps that each slot's client delivered before: `i32[S]`."""
        found = delivered[jnp.maximum(clients, 0)]
        if not self.system.can_repeat:
            return found
        return found + jnp.where(_is_earlier(clients), steps[None], 0).sum(axis=1, dtype="int32")


def learn_if(
    goes_on: Array,
    learn: Callable[[StateT, types.Event], tuple[StateT, InfoT]],
    state: StateT,
    event: types.Event,
) -> tuple[StateT, InfoT]:
    """Take the algorithm's step, or leave the state and count nothing.

    Without a copy of the state, unless lanes that are batched together may end at different ticks.

    Args:
      goes_on: `bool[]`, whether to take it.
      learn: The step.
      event: The event.
    """

    def step(state: StateT) -> tuple[StateT, Any]:
        info: Any
        state, info = learn(state, event)
        if isinstance(changed := getattr(info, "event", ()), types.Event):
            # Facts hold the trace, and the two branches are traced apart.
            known = changed.within(facts=changed.facts._replace(trace=None))
            info = info._replace(event=known)
        return state, info

    nothing = zeros_of(lambda state: step(state)[1], state)
    return jax.lax.cond(goes_on, step, lambda state: (state, nothing), state)


def zeros_of(function: Callable[..., TreeT], *given: Any) -> TreeT:
    """Make zeros in the form of a function's result, which is traced and not computed."""
    shapes = jax.eval_shape(function, *given)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def open_live(
    system: types.System,
    problem: types.AnyProblem,
    hyper: HyperT,
    key: types.Key,
    plan: types.Plan,
) -> LiveLane:
    """Bind the clock of a live system.

    Args:
      key: The random key of learning.
      plan: How the machine is used, with what the clock never exceeds.
    """
    assert system.live is not None and plan.live is not None
    sizes = plan.live
    clock = system.live.clock(problem, hyper)
    if (clock.in_use is None) != (sizes.versions == 0):
        allowed = "given if, and only if, sizes say how many versions are in use"
        raise ConfigError("in_use of the clock", clock.in_use, allowed)
    is_batched = plan.lanes_at_once or plan.family_size > 1
    energies = getattr(hyper, "energies", None)
    return LiveLane(
        system, clock, clock_key(key), sizes, problem.counts.shape[0], energies, is_batched
    )


def sizes_of(live: types.Live[HyperT], hypers: Sequence[HyperT]) -> Sizes:
    """Find the limits of the clocks of some lanes.

    Args:
      hypers: The lanes' settings, of equal static parts.
    """
    found = [live.sizes(hyper) for hyper in hypers]
    if len(slots := sorted({sizes.slots for sizes in found})) > 1:
        raise ConfigError("slots of a live clock", slots, "equal in lanes that run together")
    is_same = len({sizes.most_steps for sizes in found}) == 1
    return Sizes(
        slots[0],
        max(sizes.most_steps for sizes in found),
        max(sizes.versions for sizes in found),
        is_full=is_same and all(sizes.is_full for sizes in found),
        is_even=is_same and all(sizes.is_full or sizes.is_even for sizes in found),
    )


def rows_of(sizes: Sizes) -> int:
    """Count the rows of the store: those in use, one for the new version, and a scratch row."""
    return sizes.versions + 2


def realised_of(live_state: LiveState, event: types.Event) -> dict[str, Array]:
    """Name further facts of a tick than its clients: times are infinite if nothing happened.

    Args:
      live_state: What the lane carries after the tick.
    """
    goes_on = live_state.ended == RUNS
    return {
        f"{HAPPENED}version": event.version,
        f"{HAPPENED}time": jnp.where(goes_on, live_state.now.value, jnp.inf),
        f"{HAPPENED}rest": jnp.where(goes_on, live_state.now.rest, 0),
        f"{HAPPENED}ended": live_state.ended,
    }


def _realised(
    info: Any, event: types.Event, received: Received, goes_on: Array, *, is_left_out: bool
) -> tuple[Any, Any]:
    """Split an `Info` into the measures that the clock sees, and counts of the realised event."""
    if not hasattr(info, "event"):
        allowed = "with a field event, such as Work: it says who took part"
        raise ConfigError("info of a live system's step", type(info).__name__, allowed)
    seen, event = getattr(info, "seen", ()), info.event or event
    if is_left_out:
        clients = jnp.where(goes_on, event.clients, EMPTY)
        event = event.within(facts=event.facts, clients=clients)
    info = info._replace(event=event)
    if "seen" in info._fields:
        info = info._replace(
            seen=(),
            executed=info.executed + jnp.where(goes_on, received.executed, 0),
            needed=info.needed + jnp.where(goes_on, received.needed, 0),
        )
    return seen, info


def _where(condition: Array, new: StateT, old: StateT) -> StateT:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _facts(known: types.Facts, sizes: Sizes, *, is_full: bool, is_filled: bool) -> types.Facts:
    """Return the facts of an event that a live clock has made.

    Args:
      known: What is known of its frame.
      is_full: Whether its slots are filled, and have the most steps, as long as the lane goes on.
      is_filled: Whether they are even afterwards.
    """
    if is_full:
        # Rows were counted for one lane's slots, and those of lanes that run together differ.
        return known.unpacked()._replace(is_live=True, all_filled=is_filled)
    is_even = sizes.is_even and not is_for_cpu()
    return types.Facts(
        known.is_drawn, most_steps=sizes.most_steps, same_steps=is_even, is_live=True
    )


def _first(holds: Array) -> Array:
    """Find the first place of each row at which a condition holds, or the number of places.

    A GPU computes a minimum together with what it is made of, and `argmax` in another kernel.

    Args:
      holds: `bool[..., R]`.

    Returns:
      `i32[...]`.
    """
    num = holds.shape[-1]
    return jnp.where(holds, jnp.arange(num, dtype="int32"), num).min(axis=-1)


def _is_earlier(clients: Array) -> Array:
    """Tell which other slots before a slot have the same client: `bool[S, S]`."""
    places = jnp.arange(len(clients))
    return (clients[:, None] == clients[None]) & (places[:, None] > places[None])


def report_again(clients: Array, is_there: Array, num_clients: int) -> Array:
    """Mark some slots if, and only if, a client has two that are filled.

    Args:
      clients: `i32[S]`.
      is_there: `bool[S]`, which slots are filled.
      num_clients: Number of clients, N.

    Returns:
      `bool[S]`, none of them true if no client has two.
    """
    own = jnp.where(is_there, clients, num_clients + jnp.arange(len(clients)))
    if len(clients) <= FEW_SLOTS:
        return _is_earlier(own).any(axis=1)
    order = jnp.sort(own)
    return jnp.append(order[1:] == order[:-1], False)


def _check_received(received: Received, sizes: Sizes) -> None:
    """Check the form of a clock's result. Values are traced."""
    if not isinstance(received, Received):
        allowed = "a fedjax_sim.timelines.live.Received, with what the clock carries before it"
        raise ConfigError("what the clock's next returned", type(received).__name__, allowed)
    for name in ("clients", "steps", "version", "weight"):
        if (shape := jnp.shape(getattr(received, name))) != (sizes.slots,):
            allowed = f"{[sizes.slots]}, as its sizes say"
            raise ConfigError(f"shape of {name} that the clock returned", list(shape), allowed)
    if not isinstance(received.time, Instant) or jnp.shape(received.time.value):
        allowed = "one Instant, such as now.later(taken)"
        raise ConfigError("time that the clock returned", type(received.time).__name__, allowed)
