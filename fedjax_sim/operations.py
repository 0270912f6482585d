"""How much arithmetic a local step is, read off its program."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.types import Params


def of_a_step(problem: Any, parameters: Params, batch_size: int) -> float:
    """Count operations of a local step, about: three times those of the matrix products and convolutions in the loss of a mini-batch.

    At least six for each parameter and example, which is all for problems without a loss of mini-batches. parameters: shapes and dtypes.
    """
    least = 6.0 * sum(leaf.size for leaf in jax.tree.leaves(parameters)) * batch_size
    if not hasattr(problem, "loss"):
        return least
    number, examples = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    return max(least, 3.0 * _products(jax.make_jaxpr(problem.loss)(parameters, number, examples, jax.random.key(0)).jaxpr))


def _products(program: Any) -> float:
    """Operations of the products in a program, loops by their lengths, of which only those of `scan` are known."""
    total = 0.0
    for equation in program.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval, equation.outvars[0].aval
            total += 2.0 * out.size * math.prod(left.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, out = equation.invars[1].aval, equation.outvars[0].aval
            total += 2.0 * out.size * kernel.size / kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
        else:
            inner = (getattr(value, "jaxpr", value) for value in jax.tree.leaves(equation.params, is_leaf=_is_program))
            times = equation.params["length"] if name == "scan" else 1
            total += times * sum(_products(each) for each in inner if hasattr(each, "eqns"))
    return total


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
