"""How much arithmetic a local step is, read off its program."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.types import Params


def of_a_step(
    problem: Any, parameters: Params, num_examples: int, *, has_loss: bool = True
) -> float:
    """Count operations of a local step, about: three times those of the matrix products and convolutions in the loss of its examples.

    At least six for each parameter and example, which is all for problems of expectation maximisation, without a loss. parameters: shapes
    and dtypes.
    """
    least = 6.0 * sum(leaf.size for leaf in jax.tree.leaves(parameters)) * num_examples
    if not has_loss:
        return least
    number, examples = (
        jax.ShapeDtypeStruct((), jnp.int32),
        jax.ShapeDtypeStruct((num_examples,), jnp.int32),
    )
    program = jax.make_jaxpr(lambda problem, *given: problem.loss(*given))(
        problem, parameters, number, examples, jax.random.key(0)
    )
    return max(least, 3.0 * _products(program.jaxpr))


def _products(program: Any) -> float:
    """Operations of `dot_general` and convolutions: `scan` by its length, other loops once, the largest branch of a choice."""
    total = 0.0
    for equation in program.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval, equation.outvars[0].aval
            total += 2.0 * out.size * math.prod(left.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            total += (
                2.0
                * out.size
                * kernel.size
                / kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            )
        else:
            inner = (
                getattr(value, "jaxpr", value)
                for value in jax.tree.leaves(equation.params, is_leaf=_is_program)
            )
            each = [_products(program) for program in inner if hasattr(program, "eqns")]
            total += (
                max(each, default=0)
                if name == "cond"
                else sum(each) * (equation.params["length"] if name == "scan" else 1)
            )
    return total


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
