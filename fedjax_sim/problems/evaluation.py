"""How many test examples to evaluate together."""

from collections.abc import Callable
from typing import Any

import jax

from fedjax_sim.targets import is_for_cpu
from fedjax_sim.types import Array, Params

LARGEST = 2**28
"""Bytes of activations up to which an accelerator evaluates a lane's test examples together."""


def evaluated_at_once(
    apply: Callable[[Params, Array], Any], params: Params, example: Array, *, on_cpu: int
) -> int:
    """Choose how many test examples to evaluate together.

    Args:
      apply: From parameters and examples to logits.
      params: The parameters.
      example: One example, `[1, ...]`.
      on_cpu: The number on a CPU, whose cache should hold the activations.

    Returns:
      On an accelerator, as many as `LARGEST` bytes of activations allow: mostly all.
    """
    if is_for_cpu():
        return on_cpu
    program = jax.make_jaxpr(apply)(params, example)
    results = (var.aval for equation in program.eqns for var in equation.outvars)
    return max(1, LARGEST // sum(result.size * result.dtype.itemsize for result in results))
