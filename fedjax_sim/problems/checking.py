"""Check that a network, a loss and metrics fit the data, before anything is computed.

They are traced with a mini-batch of `CHECKED` examples.
"""

import functools
import inspect
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.errors import InvalidRngError

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.trees import TypedStructure, typed_structure
from fedjax_sim.core.types import Array, Params
from fedjax_sim.models.calls import PARAMETERS, SWITCHES, check_switches, outputs_of, state_of
from fedjax_sim.problems.losses import Metric, PerExample
from fedjax_sim.problems.supervision import Supervised

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
            allowed = f"such that it can be prepared ({first_line(error)})"
            raise ConfigError(kind, form_of(getattr(problem, kind)), allowed) from error
    if form_of(found[0]) != form_of(found[1]):
        raise ConfigError("examples of test", form_of(found[1]), f"{form_of(found[0])}, as of data")
    inputs, targets = found[0]
    try:
        outputs = _outputs_for(problem, inputs)
    except ConfigError:
        raise
    except InvalidRngError as error:
        allowed = "one that draws only in local steps, which set one of " + ", ".join(SWITCHES)
        allowed += f", and from the streams dropout and quantize ({first_line(error)})"
        raise ConfigError("model", type(problem.model).__name__, allowed) from error
    except Exception as error:  # Whatever a network raises.
        allowed = f"a network that takes inputs {form_of(inputs)} ({first_line(error)})"
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


def _outputs_for(problem: Supervised, inputs: Params) -> Params:
    """Describe the outputs of a network, and check that it can be trained and evaluated.

    Raises:
      ConfigError: If variables cannot be told from parameters, or dropout is off in local steps.
    """
    model = problem.model
    if not isinstance(getattr(model.apply, "__self__", None), nn.Module):
        check_switches(model.apply)
    params = jax.eval_shape(lambda problem: problem.init(jax.random.key(0)), problem)
    state = state_of(model, params)
    has_names = isinstance(params, Mapping)
    if not state and has_names and (PARAMETERS in params or isinstance(model, nn.Module)):
        for name in params.keys() - {PARAMETERS}:
            if jax.tree.leaves(params[name]):
                allowed = "params or frozen, as its apply does not take mutable="
                raise ConfigError("collection of the network's variables", name, allowed)

    def outputs_in(train: bool, mutable: tuple[str, ...] = ()) -> Params:
        def compute(problem: Supervised, params: Params, x: Params) -> Params:
            key = jax.random.key(0)
            rngs = {"dropout": key, "quantize": key} if train else None
            whole = problem.parameters(params)
            return outputs_of(model, whole, x, train=train, rngs=rngs, mutable=mutable)

        return jax.eval_shape(compute, problem, params, inputs)

    outputs = outputs_in(train=False)
    # Without a switch local steps and evaluations make the same call.
    with nn.intercept_methods(_refuse_idle_dropout):
        found = outputs_in(train=True, mutable=state)
    for name in state:
        known, after = problem.parameters(params)[name], found[1][name]
        if form_of(known) != form_of(after):
            allowed = f"{form_of(known)} after a local step, as before it"
            raise ConfigError(f"collection {name} of the network", form_of(after), allowed)
    return outputs


def _refuse_idle_dropout(
    compute: Callable[..., Params], args: tuple, kwargs: dict, context: nn.module.InterceptorContext
) -> Params:
    """Call a method of a flax module, unless it is a dropout that is switched off."""
    module = context.module
    if isinstance(module, nn.Dropout | nn.MultiHeadDotProductAttention):
        rate = module.rate if isinstance(module, nn.Dropout) else module.dropout_rate
        given = inspect.signature(compute).bind(*args, **kwargs).arguments
        if rate > 0 and (module.deterministic or given.get("deterministic")):
            allowed = (
                "random in local steps: the network takes none of "
                f"{', '.join(SWITCHES)}, or does not pass it on; or else of rate 0"
            )
            raise ConfigError(f"dropout {'/'.join(module.path)}", "off", allowed)
    return compute(*args, **kwargs)


def _check_values(
    name: str, metric: Metric, outputs: Params, targets: Params, counted: tuple[int, ...]
) -> None:
    """Check the shape of a loss or metric of two examples."""
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


def _traced(name: str, function: PerExample, outputs: Params, targets: Params) -> Params:
    """Describe the result of a loss, a mask or a metric."""
    try:
        return jax.eval_shape(function, outputs, targets)
    except ConfigError:
        raise
    except Exception as error:  # Whatever a user's function raises.
        given = f"outputs {form_of(outputs)} and targets {form_of(targets)}"
        label = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(name, label, f"a function of {given} ({first_line(error)})") from error


def _prepared(
    prepare: Callable[..., tuple[Params, Params]], data: Params, rows: Array
) -> tuple[Params, Params]:
    inputs, targets = prepare(jax.tree.map(lambda leaf: leaf[rows], data))
    return inputs, targets


def form_of(tree: Params) -> str:
    """Write the types and shapes of a pytree, such as "float32[2, 5]"."""
    return str(jax.tree.map(lambda leaf: _Text(f"{leaf.dtype}{list(leaf.shape)}"), tree))


class _Text(str):
    """Text that is written without quotation marks."""

    __repr__ = str.__str__


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or else its type."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:200]
