"""A lane's algorithm within a trace: its first state, its steps and its evaluations, checked.

`replay` scans it for every lane of a group, and `Bound` gives it into a user's hands.

In a live lane the clock makes the event of a step, the algorithm learns, and the clock goes on. The
facts that a planned schedule states before learning are found out within the tick: which row of the
store of old models each slot reads and where the new model goes, each client's place in its stream
of mini-batches, and whether the lane's time is over.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp

from fedjax_sim.core import events, settings, streams, trees, types
from fedjax_sim.core.clocks import ENDINGS, RUNS, Instant, Received, Sizes
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.targets import is_for_cpu, put, tracing_for
from fedjax_sim.core.types import EMPTY, Array, StateT
from fedjax_sim.engine import contract
from fedjax_sim.engine.planning.schedule import Ends
from fedjax_sim.results.curves import check_metrics

TreeT = TypeVar("TreeT")
"""A pytree of arrays."""
FEW_SLOTS = 128
"""Slots up to which it is quicker to compare all pairs than to sort."""


TICKS, BUDGET, IDLE, DONE, TIME, STEPS, VERSIONS, CLIENTS, _ = range(len(ENDINGS))
"""Why a lane does nothing more: places in `ENDINGS`."""

MOST_AHEAD = 2**20
"""Random numbers that a lane draws ahead, at most."""
INVARIANT = "threefry2x32"
"""JAX's random numbers that do not depend on which others are drawn with them by `vmap`."""


class Machine(NamedTuple):
    """The problem, settings and plan for which a program is traced.

    Attributes:
      platform: Kind of machine, such as "cpu".
      precision: Precision of matrix products, one of `PRECISIONS`.
      begins_quickly: Whether programs of the first state are compiled quickly instead of well,
        because they have little to do.
      random: JAX's implementation of random numbers. What JAX has traced with another one is not
        used again.
    """

    platform: str = "cpu"
    precision: str = "float32"
    begins_quickly: bool = False
    random: str = ""

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace for the machine and in the precision."""
        # On a CPU, asking for float32 changes no result and makes XLA avoid its fastest products.
        asked = None if self.platform == "cpu" else self.precision
        with tracing_for(self.platform), jax.default_matmul_precision(asked):
            yield


@jax.tree_util.register_pytree_node_class
class _Starting:
    """A problem with a given initial model; all else is the problem's."""

    is_given = True

    def __init__(self, problem: types.AnyProblem, start: types.Params):
        self._problem, self._start = problem, start

    def init(self, key: types.Key) -> types.Params:
        return self._start

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Also of an instance that is being made.
            raise AttributeError(name)
        return getattr(self._problem, name)

    def tree_flatten(self) -> tuple[Any, None]:
        return (self._problem, self._start), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Self:
        return cls(*children)


class BoundLane:
    """A system's algorithm, made once for the trace that is under way, and checked.

    Attributes:
      system: The system.
      problem: The problem.
      hyper: The settings.
      key: The random key of learning.
      plan: How the machine is used.
      algorithm: The algorithm.
      num_clients: Clients that send, N.
      is_differentiable: Whether loops of local steps have a fixed length, for reverse mode.
    """

    def __init__(
        self,
        system: types.System,
        problem: types.AnyProblem,
        hyper: Any,
        key: types.Key,
        plan: types.Plan,
        *,
        is_differentiable: bool = False,
    ):
        self.system, self.problem, self.hyper, self.key = system, problem, hyper, key
        self.plan, self.is_differentiable = plan, is_differentiable
        self.algorithm = system.algorithm(problem, hyper, plan)
        self.num_clients = system.messages.num_senders(hyper) or hyper.num_clients
        contract.check_algorithm(self.algorithm, system, hyper)

    def init(self, start: types.Params | None = None) -> Any:
        """Make the initial state.

        A system draws its first model by `problem.init` and by nothing else, whatever else its
        state holds. So it starts from a given model if `init` of its problem returns that.

        Args:
          start: The model to start from; None to draw it.
        """
        algorithm = self.algorithm
        if start is not None:
            problem: Any = _Starting(self.problem, start)
            algorithm = self.system.algorithm(problem, self.hyper, self.plan)
        return algorithm.init(streams.stream(self.key, "init"))

    def learnt(self, state: Any) -> Any:
        """Return the algorithm's state."""
        return state

    def received(self, state: Any) -> types.Params:
        """Return the model that clients receive of the server's version."""
        return (self.algorithm.received or self.algorithm.model)(self.learnt(state))

    def draw_ahead(self, state: Any, number: int) -> Any:
        """Draw random numbers of the next ticks at once, for `step`; None if it needs none."""

    @property
    def rests(self) -> bool:
        """Whether the step is of this package, where tests show that empty ticks do nothing."""
        module = getattr(self.algorithm.step, "__module__", None) or ""
        return module.partition(".")[0] == __name__.partition(".")[0]

    def step(self, state: Any, event: types.Event, ahead: Any = None) -> tuple[Any, Any]:
        """Take a tick, checked: the next state and the step's `Info`.

        Args:
          state: The state before it.
          event: The tick.
          ahead: Random numbers that were drawn ahead for it.
        """
        trace = events.Trace(self.is_differentiable)
        state, event = _barrier((state, event.within(facts=event.facts._replace(trace=trace))))
        key = streams.tick_key(self.key, event.tick)
        result = self.algorithm.step(key, state, event)
        contract.check_step(state, event, result, trace.replaced)
        # A state keeps the narrow types that it had before a step, as settings have 32 bits.
        is_narrow = lambda old: trees.is_narrow(jax.typeof(old).dtype)  # noqa: E731
        kept = lambda old, new: new.astype(old.dtype) if is_narrow(old) else new  # noqa: E731
        after, info = _barrier((jax.tree.map(kept, state, result[0]), result[1]))
        faults = _impossible_steps(event)
        if not event.facts.has_own_clients:
            faults.append((event.clients >= self.num_clients).any())
            if not self.system.can_repeat:
                again = report_again(event.clients, event.clients >= 0, self.num_clients)
                faults.append(again.any())
        if "steps" in trace.replaced:
            faults += _impossible_steps(info.event)
        return nan_if(after, faults), info

    def realised(self, state: Any, info: Any) -> dict[str, Array]:
        """Name facts of a tick that are known after it; the schedule of a planned lane has them."""
        return {}

    def evaluate(
        self,
        state: Any,
        further: Collection[str] = (),
        output: Callable[[types.Params], types.Params] = lambda server: server,
    ) -> tuple[types.Params, dict[str, Array]]:
        """Compute the model and the metrics of a state.

        Args:
          further: Names that no metric may have, besides those of settings.
          output: From the server's model to the one that is evaluated.
        """
        # What is fused with a step, or what of the model with its metrics, must not depend on where
        # they are computed: last bits would.
        state = jax.lax.optimization_barrier(self.learnt(state))
        model = output(jax.lax.optimization_barrier(self.algorithm.model(state)))
        found, more = self.problem.evaluate(model), self.algorithm.metrics(state)
        contract.check_metrics(found)
        taken = {*settings.names_of(self.system.Hyper), *further}
        check_metrics([*found.items(), *more.items()], taken)
        return model, trees.in_32_bits({**found, **more})


def _impossible_steps(event: types.Event) -> list[Array]:
    """Tell whether a slot has fewer steps than none, or more than its changed event said.

    Nothing if steps are those of the schedule; see `Event._replace`.
    """
    if event.facts.keeps("steps"):
        return []
    most = event.facts.most_steps
    is_wrong = event.steps < 0 if most is None else (event.steps < 0) | (event.steps > most)
    return [is_wrong.any()]


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


class LiveLane(BoundLane):
    """A live system's algorithm and clock, bound for the trace that is under way.

    Attributes:
      clock: The clock.
      clock_key: Its random key, which is derived once and not at every tick.
      sizes: What it never exceeds.
    """

    def __init__(self, *given: Any, **options: Any):
        """Bind the algorithm and the clock to the arguments of `BoundLane`."""
        super().__init__(*given, **options)
        live, sizes = self.system.live, self.plan.live
        assert live is not None and sizes is not None
        self.clock, self.sizes = live.clock(self.problem, self.hyper), sizes
        if (self.clock.in_use is None) != (sizes.versions == 0):
            allowed = "given if, and only if, sizes say how many versions are in use"
            raise ConfigError("in_use of the clock", self.clock.in_use, allowed)
        self.clock_key = streams.clock_key(self.key)

    def init(self, start: types.Params | None = None) -> LiveState:
        """Begin at time 0, without a limit; see `BoundLane.init`."""
        return LiveState(
            super().init(start),
            self.clock.init(self.clock_key),
            Instant.at(0.0),
            jnp.int32(0),
            jnp.full(rows_of(self.sizes) - 1, EMPTY, "int32").at[0].set(0),
            jnp.zeros(self.num_clients, "int32"),
            Instant.at(0.0),
            Ends.never(),
            jnp.int32(RUNS),
        )

    def learnt(self, state: LiveState) -> Any:
        """Return the algorithm's state, without the clock's."""
        return state.state

    def draw_ahead(self, state: LiveState, number: int) -> tuple[Array, Any] | None:
        """Pre-draw the clock's random numbers, for the next ticks of an accelerator.

        Args:
          state: The state before these ticks.
          number: How many they are.

        Returns:
          The ticks' numbers, `i32[number]`, and what was drawn for them, leaves `[number, ...]`;
          None if ticks draw for themselves, because it is nothing or much, or depends on how many
          ticks there are.
        """
        draw, key = self.clock.ahead, self.clock_key
        if draw is None or is_for_cpu() or str(jax.random.key_impl(key)) != INVARIANT:
            return None
        ticks = state.tick + jnp.arange(number, dtype="int32")
        drawn = jax.vmap(lambda tick: draw(streams.tick_key(key, tick, "ahead"), tick))
        size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(drawn, ticks)))
        # Few clients may be drawn by an order of all.
        is_little = max(size, number * self.num_clients) <= MOST_AHEAD
        return (ticks, drawn(ticks)) if is_little else None

    def step(
        self, state: LiveState, event: types.Event, ahead: tuple[Array, Any] | None = None
    ) -> tuple[LiveState, Any]:
        """Take one tick, or nothing if the lane has ended.

        Args:
          state: The state before it.
          event: The event of a timeline that says nothing.
          ahead: A tick's number, `i32[]`, and what was drawn ahead for it; None if nothing was. A
            lane that has ended at an earlier tick does not get so far.

        Returns:
          The next state, and the step's `Info`.
        """
        facts, sizes, tick = event.facts, self.sizes, state.tick
        if facts.replaced:
            allowed = "as it was bound: a live clock makes the event, which a step may change"
            raise ConfigError("event", f"with other {' and '.join(facts.replaced)}", allowed)
        time, received = self._next(state, ahead)
        clients = _settled(jnp.asarray(received.clients, "int32"))
        is_there, is_full = clients != EMPTY, sizes.is_full and facts.all_filled
        version = jnp.asarray(received.version, "int32")
        steps = jnp.where(is_there, jnp.asarray(received.steps, "int32"), 0)
        read, write, is_known = self._rows(state, time, version)
        ended = self._ended(state, received, clients, steps, is_known)
        # Ticks beyond those that were asked for have no slots.
        if not facts.all_filled:
            ended = jnp.where((event.clients != EMPTY).any(), ended, TICKS)
        if ahead is not None:
            # What was drawn for a later tick decides nothing.
            ended = jnp.where(ahead[0] == tick, ended, state.ended)
        goes_on = ended == RUNS
        is_batched = self.plan.lanes_at_once or self.plan.family_size > 1
        skips = is_full and is_for_cpu() and not is_batched
        if skips:
            # The event has the clients of the given one, and the step is left out.
            clients = jnp.where(goes_on, clients, event.clients)
            steps = jnp.where(goes_on, steps, event.steps)
        else:
            is_there &= goes_on
            clients, steps = (jnp.where(is_there, clients, EMPTY), jnp.where(is_there, steps, 0))
        is_there |= skips
        # The local steps that each slot's client delivered before.
        offset = state.delivered[jnp.maximum(clients, 0)]
        if self.system.can_repeat:
            earlier = jnp.where(is_earlier(clients), steps[None], 0)
            offset += earlier.sum(axis=1, dtype="int32")
        scratch = jnp.int32(rows_of(sizes) - 1)
        event = event.within(
            tick=tick,
            clients=clients,
            steps=steps,
            version=version,
            weight=jnp.where(is_there, received.weight, 0).astype(event.weight.dtype),
            offset=_settled(offset),
            read=jnp.where(is_there, read, scratch),
            write=jnp.where(goes_on, write, scratch),
            facts=_facts(facts, sizes, is_full=is_full, is_filled=skips),
        )
        is_left_out = skips or not self.rests
        learn = super().step
        take = functools.partial(learn_if, goes_on, learn) if is_left_out else learn
        learnt, info = take(state.state, event)
        seen, info = _realised(info, event, received, goes_on, is_left_out=is_left_out)
        event = info.event
        time = self.clock.after(
            streams.tick_key(self.clock_key, tick, "after"), time, event, learnt, seen
        )
        counted = jnp.where(event.clients >= 0, event.clients, self.num_clients)
        after = state._replace(
            state=learnt,
            clock=jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), time, state.clock),
            now=received.time.where(goes_on, state.now),
            tick=tick + goes_on,
            held=put(state.held, jnp.where(goes_on, write, len(state.held)), tick + 1),
            delivered=state.delivered.at[counted].add(event.steps, mode="drop"),
            used=self._used(state, event.clients, event.steps).where(goes_on, state.used),
            ended=ended,
        )
        return after, info

    def realised(self, state: LiveState, info: Any) -> dict[str, Array]:
        """Name further facts of a tick than its clients: times are infinite if nothing happened."""
        goes_on = state.ended == RUNS
        return {
            f"{events.HAPPENED}version": info.event.version,
            f"{events.HAPPENED}time": jnp.where(goes_on, state.now.value, jnp.inf),
            f"{events.HAPPENED}rest": jnp.where(goes_on, state.now.rest, 0),
            f"{events.HAPPENED}ended": state.ended,
        }

    def _next(self, state: LiveState, ahead: tuple[Array, Any] | None) -> tuple[Any, Received]:
        """Ask the clock for the next reports: its state then, and these, of the declared form."""
        tick, draw, key = state.tick, self.clock.ahead, self.clock_key
        given = [streams.tick_key(key, tick, "next"), state.clock, state.state]
        if ahead is not None:
            given.append(ahead[1])
        elif draw is not None:
            given.append(draw(streams.tick_key(key, tick, "ahead"), tick))
        time, received = self.clock.next(*given)
        if not isinstance(received, Received):
            allowed = "a fedjax_sim.timelines.live.Received, with what the clock carries before it"
            raise ConfigError("what the clock's next returned", type(received).__name__, allowed)
        slots = self.sizes.slots
        for name in ("clients", "steps", "version", "weight"):
            if (shape := jnp.shape(getattr(received, name))) != (slots,):
                allowed = f"{[slots]}, as its sizes say"
                raise ConfigError(f"shape of {name} that the clock returned", list(shape), allowed)
        if not isinstance(received.time, Instant) or jnp.shape(received.time.value):
            allowed = "one Instant, such as now.later(taken)"
            kind = type(received.time).__name__
            raise ConfigError("time that the clock returned", kind, allowed)
        return time, received

    def _rows(self, state: LiveState, time: Any, version: Array) -> tuple[Array, Array, Array]:
        """Find the rows of the versions that are read, and one that nobody needs for the new one.

        Args:
          state: The state before the tick.
          time: The clock's state after the reports.
          version: `i32[S]`.

        Returns:
          `i32[S]`, `i32[]`, and `bool[S]`, which versions are known.
        """
        held = state.held
        found = _first(version[:, None] == held[None])
        read = jnp.where(found < len(held), found, 0)
        if self.clock.in_use is None:
            return read, jnp.int32(0), version == state.tick
        used = self.clock.in_use(time)
        is_used = (held[:, None] == used[None]).any(axis=1) & (held >= 0)
        write = _first(~is_used)
        # Every row is in use if more versions are than the clock has declared.
        return read, write, (found < len(held)) & (write < len(held))

    def _ended(
        self, state: LiveState, received: Received, clients: Array, steps: Array, is_known: Array
    ) -> Array:
        """Find out why the lane does not go on: the number of one of `ENDINGS`, or `RUNS`.

        Args:
          state: The state before the tick.
          received: The clock's reports.
          clients: `i32[S]`, who reports.
          steps: `i32[S]`, local steps, 0 in empty slots.
          is_known: `bool[S]`, which slots read versions that are in the store.
        """
        sizes, until, is_there = self.sizes, state.until, clients != EMPTY
        is_client = (clients >= EMPTY) & (clients < self.num_clients)
        is_client &= is_there | (not sizes.is_full)
        if not self.system.can_repeat:
            is_client &= ~report_again(clients, is_there, self.num_clients)
        is_allowed = (steps >= 0) & (steps <= sizes.most_steps)
        is_allowed &= (steps == sizes.most_steps) | (not sizes.is_even)
        if self.system.overshoot:
            begins = state.now if received.begins is None else received.begins
            is_over = ~begins.is_before(until.time)
        else:
            is_over = until.time.is_before(received.time)
        is_over |= until.energy.is_before(self._used(state, clients, steps))
        ended = jnp.int32(RUNS)
        for reason, holds in (
            (CLIENTS, ~is_client.all()),
            (VERSIONS, (is_there & ~is_known).any()),
            (TIME, received.time.is_before(state.now) | jnp.isnan(received.time.value)),
            (STEPS, (is_there & ~is_allowed).any()),
            (BUDGET, is_over),
            (IDLE, jnp.isposinf(received.time.value)),
            (DONE, received.is_done),
        ):
            ended = jnp.where(holds, reason, ended)
        return ended

    def _used(self, state: LiveState, clients: Array, steps: Array) -> Instant:
        """Add the energy of the slots of a tick, with their messages, to the energy used before."""
        energies = getattr(self.hyper, "energies", None)
        if energies is None:
            return state.used
        of_step, of_byte = (jnp.asarray(each, float)[clients] for each in energies)
        each = steps * of_step + state.until.message * of_byte
        return state.used.later(jnp.where(clients != EMPTY, each, 0).sum())


def lane_of(system: types.System, *given: Any, **options: Any) -> BoundLane:
    """Make a lane in a trace, of a planned or a live system; the arguments of `BoundLane`."""
    return (BoundLane if system.live is None else LiveLane)(system, *given, **options)


def _settled(array: Array) -> Array:
    """Keep a GPU from deciding or looking up an array again for each slot or mini-batch."""
    return array if is_for_cpu() else jax.lax.optimization_barrier(array)


def is_earlier(clients: Array) -> Array:
    """Mark the earlier slots of the client of each slot: `bool[S, S]`."""
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
        return is_earlier(own).any(axis=1)
    order = jnp.sort(own)
    return jnp.append(order[1:] == order[:-1], False)


def take_if(
    condition: Array, take: Callable[[StateT], tuple[StateT, TreeT]], state: StateT
) -> tuple[StateT, TreeT]:
    """Take a step if a condition holds, and otherwise keep the state and return zeros.

    Without a copy of the state, unless the condition differs in lanes that are batched together.

    Args:
      condition: `bool[]`.
      take: From the state to the next one and to arrays.
      state: The state.
    """
    nothing = zeros_of(lambda state: take(state)[1], state)
    return jax.lax.cond(condition, take, lambda state: (state, nothing), state)


def learn_if(
    goes_on: Array,
    learn: Callable[[StateT, types.Event], tuple[StateT, TreeT]],
    state: StateT,
    event: types.Event,
) -> tuple[StateT, TreeT]:
    """Take the algorithm's step if a lane goes on, `bool[]`; see `take_if`."""

    def step(state: StateT) -> tuple[StateT, TreeT]:
        info: Any
        state, info = learn(state, event)
        if isinstance(changed := getattr(info, "event", ()), types.Event):
            # Facts hold the trace, and the two branches are traced apart.
            known = changed.within(facts=changed.facts._replace(trace=None))
            info = info._replace(event=known)
        return state, info

    return take_if(goes_on, step, state)


def zeros_of(function: Callable[..., TreeT], *given: Any) -> TreeT:
    """Make zeros in the form of a function's result, which is traced and not computed."""
    shapes = jax.eval_shape(function, *given)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def nan_if(tree: TreeT, faults: list[Array]) -> TreeT:
    """Make a tree nan if there is a fault."""
    if not faults:
        return tree
    is_wrong = functools.reduce(jnp.logical_or, faults)

    def marked(leaf: Array) -> Array:
        is_real = jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
        return jnp.where(is_wrong, jnp.nan, leaf) if is_real else leaf

    return jax.tree.map(marked, tree)


def _barrier(tree: TreeT) -> TreeT:
    """Barrier: XLA must not fuse a step with its caller, or last bits would depend on both.

    Whole numbers have none, and on a GPU each that is kept apart may be a launch.
    """

    def has_one(kind: jnp.dtype) -> bool:
        return is_for_cpu() or not any(jnp.issubdtype(kind, each) for each in (jnp.integer, bool))

    return to_leaves(jax.lax.optimization_barrier, has_one, tree)


def to_leaves(
    function: Callable[[list[Array]], list[Array]], chosen: Callable[[jnp.dtype], bool], tree: TreeT
) -> TreeT:
    """Apply a function to the list of those leaves of a tree that are chosen by their types."""
    leaves, structure = jax.tree.flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if chosen(jnp.result_type(leaf))]
    for place, leaf in zip(places, function([leaves[place] for place in places]), strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(structure, leaves)


def sizes_of(live: types.Live[types.HyperT], hypers: Sequence[types.HyperT]) -> Sizes:
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


def _facts(known: types.Facts, sizes: Sizes, *, is_full: bool, is_filled: bool) -> types.Facts:
    """Return the facts of an event that a live clock has made.

    Args:
      known: What is known of its frame.
      is_full: Whether its slots are filled, and have the most steps, as long as the lane goes on.
      is_filled: Whether they are even afterwards.
    """
    if is_full:
        # Rows were counted for one lane's slots, and those of lanes that run together differ.
        return known.unpacked()._replace(is_live=True, all_filled=is_filled, sums_to_one=False)
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


def learning_key(seed: int | Array) -> types.Key:
    """Return the random key of learning of a lane, by its seed."""
    return streams.stream(jax.random.key(seed), "learning")
