"""The program of one run in a user's hands, which `fedjax_sim.bind` returns.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from fedjax_sim.core import schedules, trees, types
from fedjax_sim.core.events import check_fixed
from fedjax_sim.core.settings import ConfigError, check, fields, value_of
from fedjax_sim.core.types import EMPTY, Array, HyperT, InfoT, StateT
from fedjax_sim.engine import contract
from fedjax_sim.engine.machine.compiling import RunsOnce
from fedjax_sim.engine.planning.schedule import Ends, Ticks
from fedjax_sim.engine.program.opened import BoundLane, Machine, TreeT, lane_of, nan_if, to_leaves
from fedjax_sim.kernels import linear

LEAST_BLOCKS = 4
"""Ticks from which on a scan is cut into blocks for a backward pass."""


class Static(NamedTuple):
    """Further static parts of a `Bound`, which decide the program.

    Attributes:
      facts: What is known of all ticks.
      weighing: Names of the settings that only the weights of the schedule's slots have read.
      known: Settings whose values are part of the program, because it is simpler with them.
      machine: What is traced for.
      differentiable: Whether reverse mode can go through steps.
      structure: The structure of problem and settings.
      code: The number of the code of the caller's functions, as in `Program`.
    """

    facts: types.Facts
    weighing: tuple[str, ...]
    known: tuple[tuple[str, float], ...]
    machine: Machine
    differentiable: bool
    structure: trees.TypedStructure
    code: int


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("problem", "hyper", "key", "start", "_ticks", "time", "_until"),
    meta_fields=("system", "plan", "num_ticks", "frozen", "_static"),
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Bound(Generic[HyperT, StateT, InfoT]):
    """The program of one run: a system's algorithm, bound to everything that it needs.

    It is a pytree. Problem, settings, random key and schedule are its leaves, the rest is part of
    the program, so it can be passed to `jit`, `vmap` and `scan`. All methods are pure; each
    compiles itself, and can be called within `jit`, `scan`, `vmap` and `grad` as well.

        bound = fedjax_sim.bind(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(20))
        state = bound.init()
        for t in range(bound.num_ticks):
            state, info = bound.step(state, bound.event(t))
        print(bound.evaluate(state))

    Models, metrics and what steps report have the bits of `simulate` with
    `Layout(lanes_at_once=False, lane_devices=1, client_devices=1)`, step by step or scanned. Two
    things may differ in their last bits. On a CPU, small programs that run once are compiled
    quickly instead of well: the first evaluation of `simulate` is, and `init` is unless it is
    called within a trace. In expectation maximisation XLA fuses sums in other ways within a loop.
    Under `jax.disable_jit` all agree to rounding.

    Attributes:
      problem: The problem.
      hyper: The settings; numbers are arrays.
      key: The random key of learning, a scalar.
      start: The model that `init` starts from by default; None to draw it.
      time: `f64[T]` on the host, virtual time of each tick; infinite after the end of a schedule
        that is shorter than others which were bound together with it. Of a live system nan: its
        states say what time it is, `state.now.to_float64()`.
      system: The system.
      plan: How the machine is used.
      num_ticks: Ticks of the schedule, T.
      frozen: Names of the settings that the schedule has read, and not only for weights of slots
        that the system can compute again (`System.weigh`); and of those from which others were
        filled in, such as `local_epochs`, from which local steps follow.
    """

    problem: types.AnyProblem
    hyper: HyperT
    key: types.Key
    start: types.Params | None
    _ticks: Ticks
    time: np.ndarray
    _until: Ends | None
    system: types.System[HyperT, StateT, InfoT]
    plan: types.Plan
    num_ticks: int
    frozen: tuple[str, ...]
    _static: Static

    def event(self, t: int | Array | slice) -> types.Event:
        """Return the event of a tick, or of some ticks.

        Args:
          t: The tick's number, from 0. Or a slice of ticks, such as `np.s_[:5]`. Where a traced
            number is that of no tick, weights are nan, and so is the state after a step.

        Returns:
          The event; for a slice of T' ticks their events, leaves `[T', ...]`.

        Raises:
          ConfigError: If there is no such tick, or the number is not a whole one.
        """
        if isinstance(t, slice):
            numbers = jnp.asarray(np.arange(self.num_ticks, dtype="int32")[t])
            return jax.vmap(functools.partial(_event, self))(numbers)
        is_known = not isinstance(t, jax.core.Tracer)
        found: Any = np.asarray(t) if is_known else t
        if found.ndim or found.dtype.kind not in "iu":
            value = t if is_known else f"a traced {found.dtype}{list(found.shape)}"
            raise ConfigError("t", value, "the number of a tick, one whole number, or a slice")
        if is_known and not 0 <= int(t) < self.num_ticks:
            raise ConfigError("t", int(t), f"from 0 to {self.num_ticks - 1}")
        event = _event(self, jnp.asarray(t, "int32"))
        return event if is_known else self._nan_outside(event, event)

    def _nan_outside(self, tree: TreeT, event: types.Event) -> TreeT:
        """Make a tree nan if an event is of no tick of the schedule."""
        return nan_if(tree, [((event.tick < 0) | (event.tick >= self.num_ticks)).any()])

    @property
    def events(self) -> types.Event:
        """The events of all ticks, leaves `[T, ...]`."""
        return self.event(slice(None))

    def init(self, start: types.Params | None = None) -> StateT:
        """Make the initial state.

        A model that is drawn has the bits of the one that `simulate` draws, because it is compiled
        with the same options. Within a caller's own `jit`, `vmap` or `grad` the caller's options
        hold; on a CPU it may then differ from that by rounding.

        Args:
          start: The model to start from; by default `bound.start`, and where that is None a drawn
            one.

        Raises:
          ConfigError: If it has not the form of the problem's models.
        """
        start = self.start if start is None else start
        self._check_slopes()
        contract.check_arrays("start", start)
        is_quick = self._static.machine.begins_quickly and not trees.is_traced((self, start))
        return (_init.quickly if is_quick else _init.well)(self, start)

    def step(self, state: StateT, event: types.Event) -> tuple[StateT, InfoT]:
        """Take one tick.

        Args:
          state: The state before it.
          event: The event, as `event` returns it. It may be changed before, as
            `fedjax_sim.Event` says.

        Returns:
          The next state and what the algorithm reports of the tick.

        Raises:
          ConfigError: If the state does not have the form that `init` gives it, or the event is not
            that of one tick of this program. If a changed event names a client that does not exist,
            or one twice that may report once only; if clients are traced, the next state is nan
            instead. In a differentiable program, if `steps` were replaced without `most_steps`.
        """
        self._check_slopes()
        self._check_given(state, event, num_dims=1)
        return _step(self, state, event)

    def run(self, state: StateT, events: types.Event | None = None) -> tuple[StateT, InfoT]:
        """Take many ticks in one scan.

        Where the run is differentiable, the backward pass keeps about three times the cube root of
        T states and computes everything else again, each tick three times.

        Args:
          state: The state before the first of them.
          events: Their events, leaves `[T', ...]`; by default those of all ticks.

        Returns:
          The state after the last one, and what was reported of each, leaves `[T', ...]`.

        Raises:
          ConfigError: As `step`.
        """
        self._check_slopes()
        if events is None:
            contract.check_arrays("state", state)
        else:
            self._check_given(state, events, num_dims=2)
        return _run(self, state, events)

    def model(self, state: StateT) -> types.Params:
        """Return the model of a state that is evaluated and returned.

        Returns:
          The model.
        """
        contract.check_arrays("state", state)
        return _model(self, state)

    def evaluate(self, state: StateT) -> Mapping[str, Array]:
        """Compute the metrics of a state by name, as the curves of a run have them.

        Returns:
          Each metric, named as `Problem.evaluate` names it.
        """
        contract.check_arrays("state", state)
        return _evaluate(self, state)

    def replace(
        self,
        *,
        problem: types.AnyProblem | None = None,
        hyper: HyperT | None = None,
        key: types.Key | None = None,
    ) -> Self:
        """Return the same program with other data or settings; its schedule and its length stay.

        New values may be traced, so that results can be mapped over them and differentiated.

        Args:
          problem: Another problem of equal shapes, such as another partition. Settings that were
            completed from the old one, such as weights by numbers of examples, stay.
          hyper: Other settings; see also `with_settings`.
          key: Another random key of learning.

        Raises:
          ConfigError: If a setting is changed that is `frozen`, or something that is part of the
            program: both need another `bind`. Or if values that are not traced are not
            allowed, or the server cannot do with the messages of a tick what they ask for, as in
            `simulate`. Traced ones cannot be checked: where a rule needs more messages than there
            are, models are nan.
        """
        static, ticks, found = self._static, self._ticks, self.hyper
        if hyper is not None:
            found, changed = self._changed(hyper)
            known = tuple(pair for pair in static.known if pair[0] not in changed)
            static = static._replace(known=known)
            if changed & {*static.weighing}:
                ticks = self._weighed(found)
            if changed:
                self._check(hyper, ticks)
                self._check_live(found, changed)
        problem = self.problem if problem is None else problem
        is_alike = trees.typed_structure((problem, found)) == self._static.structure
        if not is_alike or _shapes(problem) != _shapes(self.problem):
            allowed = "one of the same class, static fields and shapes; others are bound anew"
            raise ConfigError("problem", type(problem).__name__, allowed)
        key = self.key if key is None else key
        kind: Any = getattr(key, "dtype", None)
        if not (kind == "uint32" or jnp.issubdtype(kind, jax.dtypes.prng_key)):
            raise ConfigError("key", key, "a random key, such as jax.random.key(0)")
        return dataclasses.replace(
            self, problem=problem, hyper=found, key=key, _ticks=ticks, _static=static
        )

    def with_settings(self, **settings: Any) -> Self:
        """Return the same program with other settings: `bound.with_settings(lr=0.1)`.

        Args:
          settings: New values by name, as in `replace`.

        Raises:
          ConfigError: If there is no such setting, or as in `replace`.
        """
        hyper: Any = self.hyper
        return self.replace(hyper=dataclasses.replace(hyper, **settings))

    def _check(self, hyper: HyperT, ticks: Ticks) -> None:
        """Check new settings, and the messages of a schedule, where no value is traced.

        Those that are not changed may have no effect: some were arrays of a preset's values.
        """
        # Programs that were stacked have several keys, and several values of settings.
        if trees.is_traced((hyper, ticks)) or np.ndim(self.key) or np.ndim(ticks.clients) > 4:
            return
        try:
            check(self.hyper)
        except ConfigError:
            pass  # What was filled in from the problem is nothing that a caller could give.
        else:
            check(hyper)
        if self.system.live is None:
            self.system.messages.check(hyper, self._timeline(ticks))

    def _check_slopes(self) -> None:
        """Refuse derivatives by settings that the schedule has read: they are unknown, and not 0.

        `replace` refuses traced values, but a program is a pytree, and all of it may be traced.
        """
        for name, leaf in trees.named_leaves(self.hyper) if self.frozen else ():
            if name in self.frozen and isinstance(leaf, jax.core.Tracer):
                _fixed(name, leaf)

    def _check_given(self, state: StateT, event: types.Event, *, num_dims: int) -> None:
        """Check the arguments of a step, and the clients of a changed event where they are known.

        Args:
          num_dims: Dimensions of the event's clients, 1 of one tick and 2 of several.
        """
        contract.check_arrays("state", state)
        dims = np.ndim(event.clients) if isinstance(event, types.Event) else None
        if dims != num_dims:
            value = event if dims is None else f"an Event with clients of {dims} dimensions"
            whose = ("one tick", "bound.event(t)"), ("ticks", "bound.event(np.s_[:5])")
            allowed = "an Event of {}, as {} returns it".format(*whose[num_dims - 1])
            raise ConfigError("event", value, allowed)
        ours = *self._static.facts.owner, np.shape(self._ticks.clients)[-1]
        theirs = *event.facts.owner, np.shape(event.clients)[-1]
        if theirs[-1] != ours[-1] or theirs[:-1] not in (ours[:-1], ()):
            value, allowed = (_words_of(each) for each in (theirs, ours))
            raise ConfigError("event", value, f"{allowed}, as this program has them")
        if not isinstance(event.tick, jax.core.Tracer):
            # In NumPy: what JAX computes within a caller's trace is traced.
            tick = np.ravel(event.tick)
            if (wrong := tick[(tick < 0) | (tick >= self.num_ticks)]).size:
                allowed = f"from 0 to {self.num_ticks - 1}"
                raise ConfigError("event.tick", int(wrong[0]), allowed)
        if event.facts.has_own_clients or isinstance(event.clients, jax.core.Tracer):
            return
        clients = np.sort(np.asarray(event.clients), axis=-1)
        num_clients = int(ours[1])
        if (largest := clients.max(initial=EMPTY)) >= num_clients:
            allowed = f"from 0 to {num_clients - 1}, or {EMPTY} for nobody"
            raise ConfigError("event.clients", int(largest), allowed)
        is_twice = (clients[..., 1:] == clients[..., :-1]) & (clients[..., 1:] != EMPTY)
        if is_twice.any() and not self.system.can_repeat:
            allowed = f"once in a tick, as {self.system.name} takes one report of a client"
            value = f"client {clients[..., 1:][is_twice][0]} in several slots"
            raise ConfigError("event.clients", value, allowed)

    def _check_live(self, hyper: HyperT, changed: set[str]) -> None:
        """Check that new settings, traced ones too, keep the facts of a live program."""
        live, names = self.plan.live, ", ".join(sorted(changed))
        if live is None or self.system.live is None or self._until is None:
            return
        if live.is_full and not self.system.live.sizes(hyper).is_full:
            allowed = (
                "such that every slot stays filled, as where it was bound; others are bound anew"
            )
            raise ConfigError(names, "changed", allowed)
        if np.isfinite(self._until.energy.value).all():
            model = trees.shapes_of_model(self.problem)
            message = np.float32(sum(self.system.messages.bits(model, hyper)) / 8)
            if (message != np.asarray(self._until.message)).any():
                allowed = "such that messages keep their bits, whose energy is limited"
                raise ConfigError(names, "changed", allowed)

    def _timeline(self, ticks: Ticks) -> types.Timeline:
        """Return the schedule, on the host; `holds` is the version trained from."""
        shape = (self.num_ticks, np.shape(ticks.clients)[-1])
        clients, steps, staleness, weight = (
            np.broadcast_to(np.asarray(leaf)[0, 0], shape)
            for leaf in (ticks.clients, ticks.steps, ticks.staleness, ticks.weight)
        )
        version = np.arange(self.num_ticks, dtype="int32")[:, None] - staleness
        return types.Timeline(self.time, clients, steps, version, weight, version)

    def _changed(self, hyper: HyperT) -> tuple[HyperT, set[str]]:
        """Check new settings, give them the types of the old ones, and name those that differ."""
        ours, theirs = trees.typed_structure(self.hyper), trees.typed_structure(hyper)
        if ours != theirs:
            is_ours = type(hyper) is type(self.hyper)
            value = {
                name: value_of(hyper, name)
                for name in (fields(type(hyper)) if is_ours else ())
                if not _is_same(value_of(hyper, name), value_of(self.hyper, name))
            } or f"{type(hyper).__module__}.{type(hyper).__name__}"
            allowed = "as they were bound where they are part of the program; bind again"
            raise ConfigError("hyper", value, allowed)
        if schedules.with_length(hyper, np.inf) is not hyper:
            is_known = isinstance(self.time, np.ndarray) and self.time.ndim == 1
            length = int(np.isfinite(self.time).sum()) if is_known else None
            hyper = schedules.with_length(hyper, length)
        found, held = [], jax.tree.leaves(self.hyper)
        changed: set[str] = set()
        for (name, new), old in zip(trees.named_leaves(hyper), held, strict=True):
            contract.check_arrays(name, new, "a number")
            if new is not old and not _is_same(new, old):
                changed.add(name)
                if name in self.frozen:
                    allowed = (
                        "as it was bound, because the schedule has read it or other settings "
                        "follow from it: it can be neither changed nor traced; bind again"
                    )
                    value = "a traced value" if isinstance(new, jax.core.Tracer) else new
                    raise ConfigError(name, value, allowed)
                if jnp.shape(new) != jnp.shape(old):
                    allowed = f"of shape {list(jnp.shape(old))}, as it was bound"
                    raise ConfigError(name, f"shape {list(jnp.shape(new))}", allowed)
                new = jnp.asarray(new, jnp.result_type(old))
            found.append(new if name in changed else old)
        return ours.unflatten(found), changed

    @property
    def is_weighed(self) -> bool:
        """Whether the weights of the schedule are those that `System.weigh` computes."""
        ours, theirs = self._ticks.weight, self._weighed(self.hyper).weight
        return np.allclose(ours, theirs, rtol=1e-5, atol=1e-7)

    def _weighed(self, hyper: HyperT) -> Ticks:
        """Compute the weights of all slots again, by other settings."""
        assert self.system.weigh is not None
        shape = (self.num_ticks, self._ticks.clients.shape[-1])
        clients, staleness = (
            jnp.broadcast_to(leaf[0, 0], shape)
            for leaf in (self._ticks.clients, self._ticks.staleness)
        )
        is_there = clients != EMPTY
        weight = self.system.weigh(hyper, jnp.where(is_there, clients, 0), staleness)
        weight = jnp.where(is_there, weight, 0).astype(self._ticks.weight.dtype)
        return self._ticks._replace(weight=weight[None, None])

    @staticmethod
    def stack(bounds: "Sequence[Bound]") -> "tuple[Bound, Bound]":
        """Stack programs that were bound together, to map over them.

            bounds = fedjax_sim.bind_together(
                fedavg.system, problem, hyper, seeds=[0, 1, 2], budget=fedjax_sim.Ticks(20)
            )
            stacked, axes = fedjax_sim.Bound.stack(bounds)
            jax.vmap(lambda bound: bound.run(bound.init()), in_axes=(axes,))(stacked)

        Args:
          bounds: Programs of equal structure.

        Returns:
          One program with leaves `[D, ...]`, but for leaves that are the same array in all; and the
          axes over which to map it, 0 or None.

        Raises:
          ConfigError: If they are not of equal structure.
        """
        if not (isinstance(bounds, Sequence) and all(isinstance(each, Bound) for each in bounds)):
            raise ConfigError("bounds", bounds, "a list of programs that were bound together")
        structures = {jax.tree.structure(bound) for bound in bounds}
        if len(structures) != 1:
            raise ConfigError("bounds", f"{len(bounds)} programs", "those of one call of bind")
        columns = list(zip(*(jax.tree.leaves(bound) for bound in bounds), strict=True))
        axes = [None if all(leaf is column[0] for leaf in column) else 0 for column in columns]
        # Arrays of the host that have 64 bits stay there.
        are_host = [all(isinstance(leaf, np.ndarray) for leaf in column) for column in columns]
        leaves = [
            column[0] if axis is None else (np if is_host else jnp).stack(column)
            for column, axis, is_host in zip(columns, axes, are_host, strict=True)
        ]
        structure = structures.pop()
        return jax.tree.unflatten(structure, leaves), jax.tree.unflatten(structure, axes)


def _words_of(owner: tuple[str | int, ...]) -> str:
    """Name the owner of an event, see `Facts.owner`, and the number of its slots."""
    *known, slots = owner
    if not known:
        return f"an Event of {slots} slots"
    name, clients, rows = known
    return f"an Event of {name} with {clients} clients, {slots} slots and {rows} stored models"


def _is_same(new: object, old: object) -> bool:
    """Tell whether two values are known to be equal."""
    if new is old:
        return True
    if isinstance(new, jax.core.Tracer) or isinstance(old, jax.core.Tracer):
        return False
    if isinstance(old, jax.Array | np.ndarray | float | int):
        new, old = np.asarray(new), np.asarray(old)
        return new.shape == old.shape and bool((new.astype(old.dtype) == old).all())
    return type(new) is type(old) and bool(np.all(new == old))


def _shapes(tree: object) -> list[tuple]:
    return [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(tree)]


@jax.jit
def _event(bound: Bound, t: Array) -> types.Event:
    return bound._ticks.event(jnp.int32(0), t, (jnp.int32(0), t), bound._static.facts)


@contextlib.contextmanager
def _opened(bound: Bound, *states: object) -> Iterator[BoundLane]:
    """Make the algorithm for the trace that is under way, in which a given state is checked."""
    for state in states:  # Within a trace, so once for a program.
        contract.check_alike("state", state, jax.eval_shape(_init.well, bound, None))
    with bound._static.machine.tracing():
        hyper: Any = dataclasses.replace(bound.hyper, **dict(bound._static.known))
        given = bound.system, bound.problem, hyper, bound.key, bound.plan
        yield lane_of(*given, is_differentiable=bound._static.differentiable)


@RunsOnce
def _init(bound: Bound[HyperT, StateT, InfoT], start: types.Params | None) -> StateT:
    with _opened(bound) as lane:
        start = None if start is None else contract.fit_start(start, bound.problem)
        state = lane.init(start)
        return state if bound._until is None else state._replace(until=bound._until)


def _step_of(lane: BoundLane) -> Callable[[StateT, types.Event], tuple[StateT, Any]]:
    """Return the algorithm's step. Where the run is differentiable, a backward pass repeats it."""
    if not lane.is_differentiable:
        return lane.step

    def repeatable(state: StateT, event: types.Event) -> tuple[StateT, Any]:
        check_fixed(event.facts)
        return lane.step(state, event)

    return jax.checkpoint(repeatable)


@jax.jit
def _step(
    bound: Bound[HyperT, StateT, InfoT], state: StateT, event: types.Event
) -> tuple[StateT, InfoT]:
    with _opened(bound, state) as lane:
        state, info = _step_of(lane)(state, event)
        return _guarded(bound, bound._nan_outside(state, event)), info


@jax.jit
def _run(
    bound: Bound[HyperT, StateT, InfoT], state: StateT, events: types.Event | None
) -> tuple[StateT, InfoT]:
    with _opened(bound, state) as lane:
        step = _step_of(lane)

        def tick(state: StateT, given: Any) -> tuple[StateT, InfoT]:
            event = _event(bound, given) if events is None else given
            state, info = step(state, event)
            return state if events is None else bound._nan_outside(state, event), info

        given: Any = jnp.arange(bound.num_ticks, dtype="int32") if events is None else events
        if not lane.is_differentiable:
            state, infos = jax.lax.scan(tick, state, given)
            return _guarded(bound, state), infos
        return _scan_in_blocks(tick, state, given)


def _scan_in_blocks(
    tick: Callable[[StateT, TreeT], tuple[StateT, InfoT]],
    state: StateT,
    given: TreeT,
    levels: int = 2,
) -> tuple[StateT, InfoT]:
    """Scan in blocks of blocks, which a backward pass computes again from the states before them.

    Args:
      tick: The body.
      state: The state before the first tick.
      given: What ticks are given, leaves `[T, ...]`.
      levels: How often blocks are cut into blocks, n. About n + 1 times the (n + 1)-th root of T
        states are kept.
    """
    num = jax.tree.leaves(given)[0].shape[0]
    if not levels or num < LEAST_BLOCKS:
        return jax.lax.scan(tick, state, given)

    @jax.checkpoint
    def block(state: StateT, given: TreeT) -> tuple[StateT, InfoT]:
        return _scan_in_blocks(tick, state, given, levels - 1)

    length = round(num ** (levels / (levels + 1)))
    whole = num // length * length
    blocks = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, length, *leaf.shape[1:]), given)
    state, infos = jax.lax.scan(block, state, blocks)
    infos = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), infos)
    if whole < num:
        state, more = block(state, jax.tree.map(lambda leaf: leaf[whole:], given))
        infos = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), infos, more)
    return state, infos


@jax.jit
def _model(bound: Bound[HyperT, StateT, InfoT], state: StateT) -> types.Params:
    with _opened(bound, state) as lane:
        return lane.algorithm.model(lane.learnt(state))


@jax.jit
def _evaluate(bound: Bound[HyperT, StateT, InfoT], state: StateT) -> dict[str, Array]:
    with _opened(bound, state) as lane:
        return lane.evaluate(state)[1]


def _guarded(bound: Bound[HyperT, StateT, InfoT], state: StateT) -> StateT:
    """Let derivatives pass in forward mode alone, unless the program is differentiable."""
    if bound._static.differentiable:
        return state
    return to_leaves(_forward_only, lambda kind: jnp.issubdtype(kind, jnp.inexact), state)


@jax.custom_jvp
def _forward_only(leaves: list[Array]) -> list[Array]:
    return leaves


@_forward_only.defjvp
def _forward_only_jvp(primals: tuple, tangents: tuple) -> tuple[list[Array], list[Array]]:
    (leaves,), (given,) = primals, tangents
    passed = linear.linear_with_transpose(lambda _, given: given, _refuse, (), given, like=leaves)
    return leaves, passed


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _fixed(name: str, value: Array) -> Array:
    return value


def _fixed_jvp(name: str, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (value,), (slope,) = primals, tangents
    is_zero = type(slope) is SymbolicZero
    if not (is_zero or (not isinstance(slope, jax.core.Tracer) and not np.any(slope))):
        allowed = "no value to differentiate by, because the schedule has read it; bind again"
        raise ConfigError(name, "a traced value", allowed)
    return value, jnp.zeros_like(value) if is_zero else slope


_fixed.defjvp(_fixed_jvp, symbolic_zeros=True)


def _refuse(_: tuple, slopes: list[Array]) -> list[Array]:
    allowed = (
        "True in fedjax_sim.bind for reverse mode, such as jax.grad, because loops of local steps "
        "then have a fixed length (forward mode, such as jax.jvp, needs nothing)"
    )
    raise ConfigError("differentiable", False, allowed)
