"""Means of losses and metrics over test examples, which are evaluated in blocks.

Dimension letters: `B` examples of a block.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Var

from fedjax_sim.problems.losses import Metric
from fedjax_sim.targets import is_for_cpu, lanes_together
from fedjax_sim.trees import in_32_bits, programs_within
from fedjax_sim.types import Array, Params

Sums = dict[str, tuple[Array, Array | None]]
"""Sums over entries by name, and how many entries these are; None for the number of examples."""
LARGEST = 2**28
"""Bytes up to which an accelerator evaluates a lane's test examples together: of the examples, and
of activations that are in memory at the same time."""
LARGEST_OF_ALL = 2**31
"""The same of all lanes that are evaluated at once."""


def evaluated_at_once(
    apply: Callable[[Params, Array], Params], params: Params, example: Array, *, on_cpu: int
) -> int:
    """Choose how many test examples to evaluate together.

    Args:
      apply: From parameters and examples to logits.
      params: The parameters.
      example: One example, `[1, ...]`.
      on_cpu: The number on a CPU, whose cache should hold the activations.

    Returns:
      On an accelerator, as many as `LARGEST` bytes allow, and `LARGEST_OF_ALL` of all lanes: mostly
      all.
    """
    if is_for_cpu():
        return on_cpu
    largest = min(LARGEST, LARGEST_OF_ALL // lanes_together())
    program = jax.make_jaxpr(apply)(params, example).jaxpr
    needed = _bytes_at_once(program, [False] * (len(program.invars) - 1) + [True])
    return max(1, largest // max(1, example.size * example.dtype.itemsize + needed))


def _bytes_at_once(program: Jaxpr, are_given: list[bool]) -> int:
    """Count the results of a program's equations that are needed at the same time, at most.

    Equations run in their order; inner programs have their own results. What follows from the
    parameters alone, such as these in bfloat16, there is once for all examples.

    Args:
      program: The program, traced.
      are_given: Which of its inputs follow from the example.
    """
    last_uses = {
        var: number
        for number, equation in enumerate(program.eqns)
        for var in equation.invars
        if not hasattr(var, "val")  # literals
    } | dict.fromkeys((var for var in program.outvars if not hasattr(var, "val")), math.inf)
    found = {var for var, is_given in zip(program.invars, are_given, strict=True) if is_given}
    held: dict[Var, int] = {}
    most = 0
    for number, equation in enumerate(program.eqns):
        follow = [not hasattr(var, "val") and var in found for var in equation.invars]
        if not any(follow):
            continue
        found |= {*equation.outvars}
        held |= {var: var.aval.size * var.aval.dtype.itemsize for var in equation.outvars}
        # What a loop carries may follow from the example later.
        is_call = equation.primitive.name not in ("scan", "while")
        of_inner = 0
        for inner in programs_within(equation):
            num = len(inner.invars)
            is_same = is_call and num == len(follow)
            of_inner = max(of_inner, _bytes_at_once(inner, follow if is_same else [True] * num))
        most = max(most, sum(held.values()) + of_inner)
        held = {var: size for var, size in held.items() if last_uses.get(var, -1) > number}
    return most


def sums_over_examples(
    metrics: Sequence[tuple[str, Metric]],
    outputs: Params,
    targets: Params,
    is_there: Array,
    mask: Array | None,
) -> Sums:
    """Sum losses and metrics over the examples of a block.

    Args:
      metrics: The metrics by name.
      outputs: What the network computed, leaves `[B, ...]`.
      targets: What it should have computed, leaves `[B, ...]`.
      is_there: `bool[B]`, which examples count.
      mask: `bool[B, ...]`, which of their entries count; None for all.

    Returns:
      By name the sum over what counts, along the metric's dimensions, and how many entries
      these are; None for the latter if it is the number of examples.
    """
    counted = is_there if mask is None else mask & along(is_there, mask)
    sums: Sums = {}
    for name, metric in metrics:
        values, among = in_32_bits(metric.values(outputs, targets)), counted
        if jnp.issubdtype(values.dtype, jnp.integer):
            values = values.astype("float32")  # Long sums of whole numbers could overflow.
        if metric.dims:
            among = along(counted, values)
        if metric.among is not None:
            among = among & metric.among(outputs, targets)
        axes = tuple(range(counted.ndim))
        number = None
        if metric.among is not None or mask is not None:
            number = jnp.broadcast_to(among, values.shape).sum(axis=axes)
        name = f"{name}[{', '.join(metric.dims)}]" if metric.dims else name
        sums[name] = jnp.where(among, values, 0).sum(axis=axes), number
    return sums


def means_over_examples(sums: Sums, num: Array | int) -> dict[str, Array]:
    """Divide sums by numbers of entries.

    Args:
      sums: What `sums_over_examples` returned for all blocks, added up.
      num: Number of examples, by which sums are divided that name no number.
    """
    dtype = jnp.promote_types(sums["loss"][0].dtype, "float32")
    return {
        name: total.astype(dtype) / (num if number is None else number)
        for name, (total, number) in sums.items()
    }


def along(flags: Array, like: Array) -> Array:
    """Give flags `[B, ...]` further axes of length 1, as many as `like` has more."""
    return flags.reshape(flags.shape + (1,) * (like.ndim - flags.ndim))
