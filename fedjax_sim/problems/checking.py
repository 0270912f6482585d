"""Check that a network, a loss and metrics fit the data, before anything is computed.

They are traced with a mini-batch of `CHECKED` examples.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.problems.losses import Metric, PerExample
from fedjax_sim.problems.supervision import Supervised
from fedjax_sim.settings import ConfigError
from fedjax_sim.trees import TypedStructure, typed_structure
from fedjax_sim.types import Array

CHECKED = 2
"""Examples of the mini-batch with which shapes are checked."""


def check_shapes(problem: Supervised) -> tuple[int, ...]:
    """Check that a network, a loss and metrics fit the data, without computing anything.

    Args:
      problem: The problem; its partition does not matter.

    Returns:
      The shape of the outputs for two examples; () if these are no single array.

    Raises:
      ConfigError: If they do not fit, naming what has which shape.
    """
    described = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.result_type(leaf)), problem
    )
    return _shape_of_outputs(typed_structure(described), tuple(jax.tree.leaves(described)))


@functools.lru_cache(maxsize=256)
def _shape_of_outputs(structure: TypedStructure, leaves: tuple) -> tuple[int, ...]:
    """Check shapes once for problems that differ in values only."""
    problem = structure.unflatten(leaves)
    rows = jax.ShapeDtypeStruct((CHECKED,), jnp.int32)
    found = []
    for kind in ("data", "test_data"):
        try:
            pair = jax.eval_shape(_prepared, problem.prepare, getattr(problem, kind), rows)
            found.append(pair)
        except (TypeError, ValueError) as error:
            allowed = f"such that it can be prepared ({_first_line(error)})"
            raise ConfigError(kind, form_of(getattr(problem, kind)), allowed) from error
    if form_of(found[0]) != form_of(found[1]):
        raise ConfigError("examples of test", form_of(found[1]), f"{form_of(found[0])}, as of data")
    inputs, targets = found[0]
    try:
        params = jax.eval_shape(lambda problem: problem.init(jax.random.key(0)), problem)
        outputs = jax.eval_shape(
            lambda problem, params, x: problem.model.apply(problem.parameters(params), x),
            problem,
            params,
            inputs,
        )
    except ConfigError:
        raise
    except Exception as error:  # Whatever a network raises.
        allowed = f"a network that takes inputs {form_of(inputs)} ({_first_line(error)})"
        raise ConfigError("model", type(problem.model).__name__, allowed) from error
    counted: tuple[int, ...] = (CHECKED,)
    if problem.mask_of is not None:
        mask = _traced("mask", lambda outputs, targets: problem.mask_of(targets), outputs, targets)
        if mask.dtype != bool or mask.shape[:1] != counted:
            allowed = f"bools of shape {counted} and perhaps more axes"
            raise ConfigError("mask of two examples", form_of(mask), allowed)
        counted = mask.shape
    _check_values("loss", Metric(problem.loss_of), outputs, targets, counted)
    for name, metric in problem.metrics:
        if not name or "[" in name or "/" in name or name == "loss":
            raise ConfigError("name of a metric", name, 'another one, without brackets and "/"')
        _check_values(f"metric {name}", metric, outputs, targets, counted)
    return getattr(outputs, "shape", ())


def _check_values(
    name: str, metric: Metric, outputs: Any, targets: Any, counted: tuple[int, ...]
) -> None:
    """Check the shape of what a loss or metric computes for two examples."""
    values = _traced(name, metric.values, outputs, targets)
    shape, whole = np.shape(values), (*counted, *metric.dims)
    rank = len(counted) + len(metric.dims)
    if len(shape) != rank or shape[: len(counted)] != counted:
        sizes = f"({', '.join(map(str, whole))}{',' if rank == 1 else ''})"
        entries = "each entry of the mask" if len(counted) > 1 else "each example"
        allowed = f"{sizes} for {CHECKED} examples, one number for {entries}"
        raise ConfigError(f"shape of the {name}", shape, allowed)
    for dim, labels, size in zip(metric.dims, metric.labels, shape[len(counted) :], strict=False):
        if len(labels) != size:
            raise ConfigError(f"labels of {dim} of the {name}", labels, f"as many as {size}")
    if metric.among is not None:
        among = _traced(name, metric.among, outputs, targets)
        if among.dtype != bool or len(among.shape) != rank:
            allowed = f"bools of shape {shape}, as its values"
            raise ConfigError(f"`among` of the {name}", form_of(among), allowed)


def _traced(name: str, function: PerExample, outputs: Any, targets: Any) -> Any:
    """Describe what a loss, a mask or a metric computes."""
    try:
        return jax.eval_shape(function, outputs, targets)
    except ConfigError:
        raise
    except Exception as error:  # Whatever a user's function raises.
        given = f"outputs {form_of(outputs)} and targets {form_of(targets)}"
        label = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(name, label, f"a function of {given} ({_first_line(error)})") from error


def _prepared(prepare: Any, data: Any, rows: Array) -> tuple[Any, Any]:
    inputs, targets = prepare(jax.tree.map(lambda leaf: leaf[rows], data))
    return inputs, targets


def form_of(tree: Any) -> str:
    """Write the types and shapes of a pytree, such as "float32[2, 5]"."""
    return str(jax.tree.map(lambda leaf: _Text(f"{leaf.dtype}{list(leaf.shape)}"), tree))


class _Text(str):
    """Text that is written without quotation marks."""

    __repr__ = str.__str__


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:200]
