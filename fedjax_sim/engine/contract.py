"""Checks of users' code: timelines, problems, algorithms, and their results.

What shows without tracing is checked when a sweep begins; models, losses, metrics and steps are
checked where they are traced anyway, before anything learns.

Dimension letters: those of `fedjax_sim.core.types`, `D` timelines.
"""

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import trees, types
from fedjax_sim.core.settings import ConfigError, checks, declared, fields, is_known, value_of
from fedjax_sim.engine.machine.user_code import in_one_call

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

LEAVES = (jax.Array, np.ndarray, np.generic, int, float, complex)
"""Types of the leaves of pytrees of arrays."""
STATISTICS = "batch_stats"
"""The collection of a flax module's variables with batch normalisation's running statistics."""


def check_known(name: str, tree: object) -> None:
    """Check that no leaf of a pytree, an input of schedules, programs and files, is a tracer.

    name: What the tree is. A traced leaf raises a ConfigError.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        allowed = (
            "known here, where schedules are drawn and programs compiled; to map over it, or to "
            "differentiate by it, give it to `replace` or `init` of what fedjax_sim.bind returns"
        )
        raise ConfigError(name, "a traced value", allowed)


@contextlib.contextmanager
def _known(given: Mapping[str, object]) -> Iterator[None]:
    """Refuse traced arguments; computations in the block are known, also within a trace."""
    for name, value in given.items():
        is_record = isinstance(value, types.Ticks | types.Time | types.Energy)
        check_known(name, vars(value) if is_record else value)
    known = jax.ensure_compile_time_eval() if trees.is_traced(()) else contextlib.nullcontext()
    with known, in_one_call():
        yield


def with_known_inputs(function: FunctionT) -> FunctionT:
    """Check the arguments of a function that plans, as `settings.checked`, and refuse traced ones.

    Args:
      function: The function.

    Returns:
      The function.
    """
    return cast(FunctionT, checks.guard(function, function, within=_known))


def check_problem(system: types.System, problem: Any) -> None:
    """Check that an object can be a system's problem, without calling it.

    Raises:
      ConfigError: If it lacks a field or method, a method takes other arguments, it is no pytree of
        arrays, or `counts` is not a whole number from 1 for each client.
    """
    check_known("problem", problem)
    kind = system.fit.learns
    name = (problem if isinstance(problem, type) else type(problem)).__name__
    members = declared.members_of(kind)
    # Looked up in the class where possible, as a property may take long to compute.
    owner = type(problem)
    lacking = [each for each in members if not (hasattr(owner, each) or trees.has(problem, each))]
    if lacking or isinstance(problem, type):
        further = f"; it lacks {' and '.join(lacking)}" if len(lacking) < len(members) else ""
        further = ", not a class" if isinstance(problem, type) else further
        allowed = f"a {kind.__name__} (see fedjax_sim/core/types.py) for {system.name}{further}"
        raise ConfigError("problem", name, allowed)
    for member in members:
        if callable(asked := getattr(kind, member)):
            _check_arguments(f"{member} of {name}", getattr(problem, member), asked)
    if hasattr(owner, "check_values"):
        problem.check_values()
    for leaf in jax.tree.leaves(problem):
        if not isinstance(leaf, LEAVES):
            allowed = "a pytree of arrays, such as a class with @flax.struct.dataclass"
            if leaf is not problem:
                allowed += f"; it holds {type(leaf).__name__!r}"
            raise ConfigError("problem", name, allowed)
    counts = problem.counts
    if np.ndim(counts) != 1 or not jnp.issubdtype(getattr(counts, "dtype", object), np.integer):
        raise ConfigError("counts", _form(counts), "an array i32[N], the examples of each client")
    if (least := int(np.asarray(counts).min(initial=1))) < 1:
        raise ConfigError("counts", least, "at least 1, for every client")


def _form(value: Any) -> str:
    """Return dtype and shape of an array, such as "float32[3]", or the name of another type."""
    if hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def _check_arguments(field: str, method: Callable[..., Any], asked: Callable[..., Any]) -> None:
    names = list(inspect.signature(asked).parameters)[1:]
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # Not everything that is callable tells.
        return
    try:
        signature.bind(*names)
    except TypeError:
        allowed = f"a method that can be called with ({', '.join(names)})"
        raise ConfigError(f"signature of {field}", str(signature), allowed) from None


def check_arrays(name: str, tree: object, allowed: str = "a pytree of arrays") -> None:
    """Check that all leaves of a tree are arrays or numbers. They may be traced.

    Args:
      name: What it is.
      tree: A pytree.
      allowed: What it must be, in words.

    Raises:
      ConfigError: If one is neither.
    """
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, LEAVES):
            raise ConfigError(name, leaf, allowed)


def fit_start(model: types.Params, problem: types.AnyProblem) -> types.Params:
    """Check that a model has the form of the problem's, and give it the same types.

    Args:
      model: The model; its leaves may be traced.
      problem: The problem.

    Returns:
      The model. Leaves that are not traced are on the host.

    Raises:
      ConfigError: If it has another structure, shape or kind of numbers.
    """
    check_arrays("start", model)
    drawn = trees.shapes_of_model(problem)
    ours: Any = jax.tree.structure(drawn)
    theirs: Any = jax.tree.structure(model)
    if ours != theirs:
        raise ConfigError("structure of start", theirs, f"{ours}, as of models of the problem")

    def fit(path: tuple, like: jax.ShapeDtypeStruct, leaf: types.Leaf) -> types.Leaf:
        found = jnp.result_type(leaf)
        if np.shape(leaf) != like.shape or not np.can_cast(found, like.dtype, "same_kind"):
            place = jax.tree_util.keystr(path) or "the model"
            allowed = f"{like.dtype}{list(like.shape)}, as in models of the problem"
            raise ConfigError(f"start at {place}", f"{found}{list(np.shape(leaf))}", allowed)
        is_known = not isinstance(leaf, jax.core.Tracer)
        return np.array(leaf, like.dtype) if is_known else leaf.astype(like.dtype)

    return jax.tree_util.tree_map_with_path(fit, drawn, model)


def check_alike(name: str, state: object, first: object, *, may_widen: bool = False) -> None:
    """Check that a state has the form of an earlier one. Leaves are traced.

    Args:
      name: What the state is called, `state` with more words or none.
      state: The state.
      first: The earlier state, or only its shapes.
      may_widen: Whether a leaf of fewer than 32 bits may become a wider one.

    Raises:
      ConfigError: If it has another structure, or a leaf another shape or dtype.
    """
    had, has = trees.typed_structure(first), trees.typed_structure(state)
    if had != has:
        found = "an array" if isinstance(state, jax.Array) else f"a {type(state).__name__}"
        raise ConfigError(name, found, f"of the structure that init returns, {had.structure}")
    leaves = zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(state), strict=True)
    for (path, before), leaf in leaves:
        was, now = (x if hasattr(x, "weak_type") else jax.typeof(x) for x in (before, leaf))
        # A scan promotes what has no definite type, such as a number that Python made.
        is_free = was.weak_type or (may_widen and trees.is_narrow(was.dtype))
        if was.shape != now.shape or not (is_free or was.dtype == now.dtype):
            field = name.replace("state", f"state{jax.tree_util.keystr(path)}", 1)
            raise ConfigError(field, _form(now), f"{_form(was)}, as init returns it")


def check_model(problem: types.AnyProblem, model: object) -> None:
    """Check that all leaves of a model can be learnt. It may be described or traced.

    Raises:
      ConfigError: If a leaf does not hold real or complex numbers, or there is no leaf, or flax's
        running statistics are among them.
    """
    has_state = hasattr(type(problem), "untrained")
    if not has_state and isinstance(model, Mapping) and jax.tree.leaves(model.get(STATISTICS)):
        allowed = "left out, frozen, or marked by the problem's method `untrained`"
        raise ConfigError("statistics in the model that init returns", STATISTICS, allowed)
    leaves = jax.tree_util.tree_leaves_with_path(model)
    if not leaves:
        raise ConfigError("model that init returns", model, "a pytree with at least one array")
    for path, leaf in leaves:
        if not jnp.issubdtype(getattr(leaf, "dtype", object), np.inexact):
            field = f"model{jax.tree_util.keystr(path)} that init returns"
            raise ConfigError(field, _form(leaf), "an array of floating-point numbers")


def check_loss(values: list[Any]) -> None:
    """Check the loss of a mini-batch.

    Args:
      values: The leaves that the loss returns, described or traced.

    Raises:
      ConfigError: If it is not one real number.
    """
    if len(values) != 1 or values[0].shape or not jnp.issubdtype(values[0].dtype, np.floating):
        found = ", ".join(map(_form, values))
        raise ConfigError("loss of a mini-batch", found, "one real number, f[], such as a mean")


def check_metrics(found: object) -> None:
    """Check that `evaluate` returned a mapping from names to numbers, which may be traced."""
    if not isinstance(found, Mapping):
        raise ConfigError("result of evaluate", _form(found), "a mapping from names to numbers")
    for name, value in found.items():
        if not isinstance(name, str):
            raise ConfigError("name of a metric", name, "a string")
        if not isinstance(value, (jax.Array, np.ndarray, np.generic, int, float)):
            allowed = "a number, or an array of numbers"
            raise ConfigError(f"metric {name}", _form(value), allowed)


def check_algorithm(found: object, system: types.System, hyper: types.HyperT) -> None:
    """Check that a system's `algorithm` returned an `Algorithm`, or raise a ConfigError.

    It must obey the settings on which the counts of the system's messages rely.
    """
    if not isinstance(found, types.Algorithm):
        raise ConfigError("result of algorithm", type(found).__name__, "a fedjax_sim.Algorithm")
    known = fields(type(hyper))
    for name, idle in system.messages.relies_on:
        if name in known and name not in found.supports:
            _check_idle(name, value_of(hyper, name), idle, system)


def _check_idle(name: str, value: object, idle: Any, system: types.System) -> None:
    """Check that a setting has no effect, see `check_algorithm`. idle: Its value without one."""
    is_plain = isinstance(idle, (str, int, float))
    if not (is_known(value, idle) if is_plain else type(value) is type(idle)):
        allowed = (
            f"{idle}, because the algorithm of {system.name} does not name it in `supports`, "
            "but the messages of the system would be counted with it"
        )
        # Numbers are traced here, those of a kind too, and cannot be shown.
        is_shown = is_plain and not isinstance(value, jax.core.Tracer)
        raise ConfigError(name, value if is_shown else type(value).__name__, allowed)


def check_step(
    state: object, event: types.Event, result: Any, changes: Collection[str] = ()
) -> None:
    """Check that a step returns the next state, like the last one, and counts. Leaves are traced.

    The result is a pair with a state of the same structure, shapes and dtypes, and a NamedTuple of
    counts. This tells who took part if the step changed that, by the fields of its event that it
    replaced, `changes`. Otherwise a ConfigError is raised.
    """
    if type(result) is not tuple or len(result) != 2:
        raise ConfigError("result of step", type(result).__name__, "the pair (state, info)")
    after, info = result
    if not hasattr(info, "_asdict"):
        allowed = "a NamedTuple of numbers, such as fedjax_sim.core.types.Work"
        raise ConfigError("info that step returns", type(info).__name__, allowed)
    changed = getattr(info, "event", None)
    if changes or isinstance(changed, types.Event):
        _check_changed(changed, event, changes)
    check_alike("state that step returns", after, state, may_widen=True)


def _check_changed(changed: object, event: types.Event, changes: Collection[str]) -> None:
    """Check the event of a step's info against the given one, see `check_step`."""
    if not isinstance(changed, types.Event):
        allowed = (
            "the changed event, as in the Work of local training, because the step replaced "
            f"{' and '.join(sorted(changes))} of its event (event.within describes other work "
            "within a tick, which changes nothing that is counted)"
        )
        raise ConfigError("field event of the info that step returns", changed, allowed)
    if changed.clients.shape != (slots := event.clients.shape):
        allowed = f"{list(slots)}, the slots of the tick"
        raise ConfigError("shape of the event in the info", list(changed.clients.shape), allowed)
