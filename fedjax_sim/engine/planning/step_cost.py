"""Estimate the cost of a local step from its program."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr

from fedjax_sim.core.trees import TypedStructure, programs_within, typed_structure
from fedjax_sim.core.types import AnyProblem, Params
from fedjax_sim.engine.contract import check_loss, check_model


class StepCost(NamedTuple):
    """Cost of one local step of one slot.

    Attributes:
      operations: Arithmetic operations.
      bytes: Weights and gradients.
    """

    operations: float
    bytes: int


def describe_model(problem: AnyProblem, code: int = 0) -> Params:
    """Describe the models that a problem draws, once for problems of equal shapes.

    Args:
      code: Number of the problem's code, see `number_of_code`.

    Returns:
      Shapes and dtypes of a model, which are checked.

    Raises:
      ConfigError: If it cannot be learnt.
    """
    leaves = tuple(map(jax.typeof, jax.tree.leaves(problem)))
    is_wide = jax.dtypes.result_type(float) == "float64"
    return _model_of(typed_structure(problem), leaves, code, is_wide)


@functools.lru_cache(maxsize=256)
def _model_of(structure: TypedStructure, leaves: tuple, code: int, is_wide: bool) -> Params:
    described = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type) for leaf in leaves
    ]

    def init(leaves: list[jax.Array]) -> Params:
        problem = structure.unflatten(leaves)
        model = problem.init(jax.random.key(0))
        check_model(problem, model)  # Outside of the trace, numbers of Python would be arrays.
        return model

    return jax.eval_shape(init, described)


def measure_step(
    problem: AnyProblem, model: Params, num_examples: int, *, has_loss: bool = True, code: int = 0
) -> StepCost:
    """Estimate the cost of one local step.

    The operations are three times those of the matrix products and convolutions in the loss of the
    step's examples, and at least six for each parameter and example. Problems of expectation
    maximisation have no loss, and get the latter.

    Args:
      model: Shapes and dtypes of a model.
      num_examples: Examples of the step.
      has_loss: Whether the problem has a loss.
      code: Number of the problem's code, see `number_of_code`.
    """
    leaves = jax.tree.leaves(model)
    operations = 6.0 * sum(leaf.size for leaf in leaves) * num_examples
    if has_loss:
        described = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.result_type(leaf)),
            (problem, model),
        )
        given = tuple(jax.tree.leaves(described))
        products = _products_of_loss(typed_structure(described), given, num_examples, code)
        operations = max(operations, 3.0 * products)
    return StepCost(operations, 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))


@functools.lru_cache(maxsize=256)
def _products_of_loss(
    structure: TypedStructure, leaves: tuple, num_examples: int, code: int
) -> float:
    """Check the loss and count its products' operations, once for problems of equal shapes."""
    problem, model = structure.unflatten(leaves)
    client = jax.ShapeDtypeStruct((), jnp.int32)
    examples = jax.ShapeDtypeStruct((num_examples,), jnp.int32)
    program = jax.make_jaxpr(lambda problem, *given: problem.loss(*given, jax.random.key(0)))(
        problem, model, client, examples
    )
    check_loss(program.out_avals)
    return _count_products(program.jaxpr)


def _count_products(program: Jaxpr) -> float:
    """Count the operations of matrix products and convolutions in a jaxpr.

    The body of a `scan` counts once per iteration, of other loops once; of a `cond` the largest
    branch counts.
    """
    total = 0.0
    for equation in program.eqns:
        name, shaped = equation.primitive.name, jax.core.ShapedArray
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval, equation.outvars[0].aval
            assert isinstance(left, shaped) and isinstance(out, shaped)
            total += 2.0 * out.size * math.prod(left.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            assert isinstance(kernel, shaped) and isinstance(out, shaped)
            features = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            total += 2.0 * out.size * kernel.size / features
        else:
            counts = [_count_products(inner) for inner in programs_within(equation)]
            if name == "cond":
                total += max(counts, default=0)
            else:
                total += sum(counts) * (equation.params["length"] if name == "scan" else 1)
    return total
