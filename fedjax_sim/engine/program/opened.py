"""A lane's algorithm within a trace: its first state, its steps and its evaluations, checked.

`replay` scans it for every lane of a group, and `Bound` gives it into a user's hands.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp

from fedjax_sim.core import events, settings, streams, trees, types
from fedjax_sim.core.targets import is_for_cpu, tracing_for
from fedjax_sim.core.types import Algorithm
from fedjax_sim.engine import contract
from fedjax_sim.engine.program.live import LiveLane, open_live, report_again
from fedjax_sim.results.metric_names import check_metrics

TreeT = TypeVar("TreeT")
"""A pytree of arrays."""


class Machine(NamedTuple):
    """The problem, settings and plan for which a program is traced.

    Attributes:
      platform: Kind of machine, such as "cpu".
      precision: Precision of matrix products, one of `PRECISIONS`.
      begins_quickly: Whether programs of the first state are compiled quickly instead of well,
        because they have little to do.
    """

    platform: str = "cpu"
    precision: str = "float32"
    begins_quickly: bool = False

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


class BoundLane(NamedTuple):
    """A system's algorithm, made once for the trace that is under way.

    Attributes:
      system: The system.
      problem: What is learnt.
      hyper: The settings.
      key: The random key of learning.
      plan: How the machine is used.
      algorithm: The algorithm.
      live: The system's live clock; None if the schedule is planned.
      is_differentiable: Whether loops of local steps have a fixed length, for reverse mode.
    """

    system: types.System
    problem: types.AnyProblem
    hyper: Any
    key: types.Key
    plan: types.Plan
    algorithm: Algorithm
    live: LiveLane | None = None
    is_differentiable: bool = False

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
        state = algorithm.init(streams.stream(self.key, "init"))
        return state if self.live is None else self.live.init(state)

    def learnt(self, state: Any) -> Any:
        """Return the algorithm's state: a live lane carries its clock as well."""
        return state if self.live is None else state.state

    @property
    def step(self) -> Callable[..., tuple[Any, Any]]:
        """The checked step, from state and event; of a live lane also from numbers drawn ahead."""
        if self.live is None:
            return self._learn
        return functools.partial(self.live.step, learn=self._learn, rests=self.rests)

    @property
    def rests(self) -> bool:
        """Whether the step is of this package, where tests show that empty ticks do nothing."""
        module = getattr(self.algorithm.step, "__module__", None) or ""
        return module.partition(".")[0] == __name__.partition(".")[0]

    def _learn(self, state: Any, event: types.Event) -> tuple[Any, Any]:
        trace = events.Trace(self.is_differentiable)
        state, event = _barrier((state, event.within(facts=event.facts._replace(trace=trace))))
        key = streams.tick_key(self.key, event.tick)
        result = self.algorithm.step(key, state, event)
        contract.check_step(state, event, result, trace.replaced)
        after, info = _barrier((contract.keep_narrow(state, result[0]), result[1]))
        faults = self._faults_of(event)
        if "steps" in trace.replaced:
            faults += _impossible_steps(info.event)
        return nan_if(after, faults), info

    def _faults_of(self, event: types.Event) -> list[types.Array]:
        """List faults of a changed event, in its clients or steps: `bool[]` each."""
        faults = _impossible_steps(event)
        if not event.facts.has_own_clients:
            num_clients = self.system.messages.num_senders(self.hyper) or self.hyper.num_clients
            faults.append((event.clients >= num_clients).any())
            if not self.system.can_repeat:
                again = report_again(event.clients, event.clients >= 0, num_clients)
                faults.append(again.any())
        return faults

    def evaluate(
        self, state: Any, further: Collection[str] = ()
    ) -> tuple[types.Params, dict[str, types.Array]]:
        """Compute the model and the metrics of a state.

        Args:
          further: Names that no metric may have, besides those of settings.
        """
        # What is fused with a step, or what of the model with its metrics, must not depend on where
        # they are computed: last bits would.
        state = jax.lax.optimization_barrier(self.learnt(state))
        model = jax.lax.optimization_barrier(self.algorithm.model(state))
        found = [
            contract.read_metrics(self.problem.evaluate(model)),
            self.algorithm.metrics(state),
        ]
        taken = {*settings.names_of(self.system.Hyper), *further}
        check_metrics([pair for each in found for pair in each.items()], taken)
        return model, trees.in_32_bits({**found[0], **found[1]})


def _impossible_steps(event: types.Event) -> list[types.Array]:
    """Tell whether a slot has fewer steps than none, or more than its changed event said.

    Nothing if steps are those of the schedule; see `Event._replace`.
    """
    if event.facts.keeps("steps"):
        return []
    most = event.facts.most_steps
    is_wrong = event.steps < 0 if most is None else (event.steps < 0) | (event.steps > most)
    return [is_wrong.any()]


def nan_if(tree: TreeT, faults: list[types.Array]) -> TreeT:
    """Make a tree nan if there is a fault."""
    if not faults:
        return tree
    is_wrong = functools.reduce(jnp.logical_or, faults)

    def marked(leaf: types.Array) -> types.Array:
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
    function: Callable[[list[types.Array]], list[types.Array]],
    chosen: Callable[[jnp.dtype], bool],
    tree: TreeT,
) -> TreeT:
    """Apply a function to the list of those leaves of a tree that are chosen by their types."""
    leaves, structure = jax.tree.flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if chosen(jnp.result_type(leaf))]
    for place, leaf in zip(places, function([leaves[place] for place in places]), strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(structure, leaves)


def open_lane(
    system: types.System,
    problem: types.AnyProblem,
    hyper: types.HyperT,
    key: types.Key,
    plan: types.Plan,
) -> BoundLane:
    """Make the algorithm of a lane and check it.

    Args:
      key: The random key of learning.
      plan: How the machine is used.
    """
    algorithm = system.algorithm(problem, hyper, plan)
    contract.check_algorithm(algorithm, system, hyper)
    live = None if plan.live is None else open_live(system, problem, hyper, key, plan)
    return BoundLane(system, problem, hyper, key, plan, algorithm, live)


def learning_key(seed: int | types.Array) -> types.Key:
    """Return the random key of learning of a lane, by its seed."""
    return streams.stream(jax.random.key(seed), "learning")
