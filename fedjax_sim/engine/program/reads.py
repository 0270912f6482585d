"""Which examples of data in files a program reads, found out in the program itself.

A traced program is run equation by equation, and each look-up of examples changes a value that is
carried along. In a chunk on the device this value is a flag, which says whether an example was
looked up that is not in the window. Before the chunk, on the host, it has a flag for each example.
There JAX's partial evaluation computes what follows from known inputs (the schedule, random keys,
settings, partitions), and leaves out what follows from others (the model, the examples).

Dimension letters: those of `fedjax_sim.core.types`; `n` examples in files.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.api_util import debug_info
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.extend.linear_util import wrap_init
from jax.interpreters.partial_eval import PartialVal, trace_to_jaxpr_nounits

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Array

Mark = Callable[[Any, Array], Any]
"""From a value that is carried along and positions of examples, `i32[...]`, to the next value."""


class Rows(NamedTuple):
    """An array of examples `[n, ...]`, the look-ups in which are marked.

    Attributes:
      array: The array; None where it is not there yet.
    """

    array: Any


CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters with the program of an equation that does nothing but call it."""


def find(program: ClosedJaxpr, given: Sequence[Any], num: int) -> Array:
    """Find the examples that a program looks up.

    Args:
      program: The program.
      given: Its inputs: arrays, `Rows(None)` for examples, and None for others that are not known
        before learning.
      num: Number of examples, n.

    Returns:
      `bool[n]`.

    Raises:
      ConfigError: If what is looked up is not known before learning.
    """

    def marked(*arrays: Any) -> list[Array]:
        pairs = zip(given, arrays, strict=True)
        inputs = [Rows(array) if _is_rows(each) else array for each, array in pairs]
        return [follow(program.jaxpr, program.consts, inputs, jnp.zeros(num, bool), _mark_row)[1]]

    values = [
        PartialVal.unknown(form) if each is None or _is_rows(each) else PartialVal.known(each)
        for each, form in zip(given, program.in_avals, strict=True)
    ]
    wrapped = wrap_init(marked, debug_info=debug_info("find", marked, values, {}))
    _, [flags], _ = trace_to_jaxpr_nounits(wrapped, values)
    if not flags.is_known():
        raise _refusal("what is learnt decides which examples are read")
    return flags.get_known()


def _refusal(reason: str) -> ConfigError:
    return ConfigError("data", "in files", f"in memory (layout.window), because {reason}")


def check(function: Callable[..., Any], data: Any, *given: Any) -> tuple[Any, Array]:
    """Call a function, and tell whether it has looked up an example that is not there.

    Args:
      function: From examples and further arguments to a pytree of arrays.
      data: Examples, leaves `[W + 1, ...]`. The last of them stands for what is not there.
      *given: The further arguments.

    Returns:
      The function's result, and `bool[]`.

    Raises:
      ConfigError: If it uses examples otherwise than by look-ups.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(data, *given)
    examples = jax.tree.leaves(data)

    def mark(is_outside: Array, positions: Array) -> Array:
        return is_outside | (positions >= len(examples[0]) - 1).any()

    inputs = [*map(Rows, examples), *jax.tree.leaves(given)]
    outputs, is_outside = follow(closed.jaxpr, closed.consts, inputs, jnp.bool_(False), mark)
    return jax.tree.unflatten(jax.tree.structure(shapes), outputs), is_outside


def _mark_row(flags: Array, positions: Array) -> Array:
    """Mark the examples at some positions, `i32[...]`: the next flags, `bool[n]`."""
    return flags.at[positions.reshape(-1)].set(True)


def follow(
    program: Jaxpr, consts: Sequence[Any], given: Sequence[Any], noted: Any, mark: Mark
) -> tuple[list, Any]:
    """Run a program, and mark the examples that it looks up.

    Args:
      program: The program.
      consts: Its constants.
      given: Its inputs: arrays or `Rows`.
      noted: The value that is carried along: a pytree of arrays.
      mark: The change of this value at each look-up.

    Returns:
      The results, and the value after it.

    Raises:
      ConfigError: If it uses examples otherwise than by look-ups.
    """
    values: dict[Any, Any] = dict(zip(program.constvars, consts, strict=True))
    values |= zip(program.invars, given, strict=True)
    for equation in program.eqns:
        inputs = [var.val if isinstance(var, Literal) else values[var] for var in equation.invars]
        outputs, noted = _equation(equation, inputs, noted, mark)
        values |= zip(equation.outvars, outputs, strict=True)
    outputs = [var.val if isinstance(var, Literal) else values[var] for var in program.outvars]
    return outputs, noted


def _equation(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Compute an equation's outputs, and mark the examples that it looks up."""
    name, params = equation.primitive.name, equation.params
    if name == "optimization_barrier" and mark is _mark_row:
        return inputs, noted  # One of several arrays would make all unknown.
    if not any(map(_is_rows, inputs)):
        return _bind(equation, inputs), noted
    loops = {"scan": _scan, "while": _while, "cond": _cond}
    if name in loops:
        return loops[name](equation, inputs, noted, mark)
    inner = next((params[each] for each in CALLS if each in params), None)
    if inner is not None and name not in ("pallas_call", "shard_map"):
        program, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
        return follow(program, consts, inputs, noted, mark)
    return _look_up(equation, inputs, noted, mark)


def _is_rows(value: object) -> bool:
    return isinstance(value, Rows)


def _bind(equation: JaxprEqn, inputs: list) -> Sequence:
    """Compute an equation of arrays alone."""
    params, functions = equation.primitive.get_bind_params(equation.params), ()
    if isinstance(params, tuple):  # JAX before 0.10
        functions, params = params
    with equation.ctx.manager:
        outputs = equation.primitive.bind(*functions, *inputs, **params)
    return outputs if equation.primitive.multiple_results else [outputs]


def _look_up(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Compute an equation of examples, and mark those that it looks up."""
    name, params = equation.primitive.name, equation.params
    outputs = _bind(equation, [each.array if _is_rows(each) else each for each in inputs])
    if name == "reshape" and outputs[0].shape[:1] == inputs[0].array.shape[:1]:
        return [Rows(outputs[0])], noted
    if name == "slice" and params["start_indices"][0] == 0 and params["limit_indices"][0] == 1:
        # The first example is the first one of every window.
        return outputs, mark(noted, jnp.zeros(1, "int32"))
    numbers: Any = params.get("dimension_numbers")
    is_look_up = (name == "dynamic_slice" and params["slice_sizes"][0] == 1) or (
        name == "gather" and numbers.start_index_map == numbers.collapsed_slice_dims == (0,)
    )
    if not is_look_up or not _is_rows(inputs[0]):
        raise _refusal(f"all examples are read ({name})")
    return outputs, mark(noted, inputs[1])


def _scan(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Follow a loop of known length."""
    params, body = equation.params, equation.params["jaxpr"]
    # Slices have an axis less; versions of JAX name these numbers differently.
    num, last = (
        sum(outer.aval.ndim == inner.aval.ndim for outer, inner in zip(*pair, strict=True))
        for pair in ((equation.outvars, body.jaxpr.outvars), (equation.invars, body.jaxpr.invars))
    )
    consts, carried, each = inputs[: last - num], inputs[last - num : last], inputs[last:]
    if any(map(_is_rows, each)):
        raise _refusal("all examples are read (scan)")

    def step(both: tuple[list, Any], slices: list) -> tuple[tuple[list, Any], list]:
        given = [*consts, *both[0], *slices]
        outputs, after = follow(body.jaxpr, body.consts, given, both[1], mark)
        return (outputs[:num], after), outputs[num:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    (kept, noted), found = jax.lax.scan(step, (carried, noted), each, **options)
    return [*kept, *found], noted


def _while(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Follow a loop that decides as it runs how long it is."""
    test, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    first = equation.params["cond_nconsts"]
    last = first + equation.params["body_nconsts"]
    of_test, consts, carried = inputs[:first], inputs[first:last], inputs[last:]
    if any(map(_is_rows, of_test)):
        raise _refusal("examples decide how many steps there are")

    def goes_on(both: tuple[list, Any]) -> Array:
        return follow(test.jaxpr, test.consts, [*of_test, *both[0]], (), mark)[0][0]

    def step(both: tuple[list, Any]) -> tuple[list, Any]:
        return follow(body.jaxpr, body.consts, [*consts, *both[0]], both[1], mark)

    return jax.lax.while_loop(goes_on, step, (carried, noted))


def _cond(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Follow the branch that is taken."""
    index, *given = inputs
    branches = [
        partial(follow, branch.jaxpr, branch.consts, given, mark=mark)
        for branch in equation.params["branches"]
    ]
    return jax.lax.switch(index, branches, noted)
