"""Estimate the arithmetic of a local step from its program."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.types import Params


def operations_of_a_step(
    problem: Any, parameters: Params, num_examples: int, *, has_loss: bool = True
) -> float:
    """Estimate the operations of one local step.

    It is three times the operations of the matrix products and convolutions in the loss of the
    step's examples, and at least six for each parameter and example. Problems of expectation
    maximisation have no loss, and get the latter.

    Args:
      problem: What is learnt.
      parameters: Shapes and dtypes of a model.
      num_examples: Examples of the step.
      has_loss: Whether the problem has a loss.
    """
    least = 6.0 * sum(leaf.size for leaf in jax.tree.leaves(parameters)) * num_examples
    if not has_loss:
        return least
    client = jax.ShapeDtypeStruct((), jnp.int32)
    examples = jax.ShapeDtypeStruct((num_examples,), jnp.int32)
    program = jax.make_jaxpr(lambda problem, *given: problem.loss(*given))(
        problem, parameters, client, examples, jax.random.key(0)
    )
    return max(least, 3.0 * _count_products(program.jaxpr))


def _count_products(program: Any) -> float:
    """Count the operations of matrix products and convolutions in a jaxpr.

    The body of a `scan` counts once per iteration, of other loops once; of a `cond` the largest
    branch counts.
    """
    total = 0.0
    for equation in program.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval, equation.outvars[0].aval
            total += 2.0 * out.size * math.prod(left.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            features = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            total += 2.0 * out.size * kernel.size / features
        else:
            leaves = jax.tree.leaves(equation.params, is_leaf=_is_program)
            programs = (getattr(value, "jaxpr", value) for value in leaves)
            counts = [_count_products(inner) for inner in programs if hasattr(inner, "eqns")]
            if name == "cond":
                total += max(counts, default=0)
            else:
                total += sum(counts) * (equation.params["length"] if name == "scan" else 1)
    return total


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
