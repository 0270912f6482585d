"""Which examples of data in files a program reads, found out in the program itself.

A traced program is followed equation by equation. In *following* a tick on the host, what is known
before learning (the schedule, random keys, settings, partitions) is computed, and what is not (the
model, the examples) is left out with all that depends on it. What remains are the numbers of the
examples that are looked up. In *checking* a chunk on the device everything is computed, and a flag
is carried along that says whether an example was looked up that is not in the window.

Dimension letters: those of `fedjax_sim.core.types`; `n` examples in files.
"""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from fedjax_sim.core.types import Array

Mark = Callable[[Any, Array], Any]
"""From a value that is carried along and positions of examples, `i32[...]`, to the next value."""


class NotKnownError(Exception):
    """Which examples are read is not known before learning; the text says why."""


class Rows(NamedTuple):
    """An array of examples `[n, ...]`; look-ups in it are noted.

    Attributes:
      array: The array; None if only its look-ups matter.
    """

    array: Any


UNKNOWN: Any = None
"""A value that is not known before learning. JAX's loops carry it along, as no leaf of a tree."""
CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters with the program of an equation that does nothing but call it."""


def follow(
    program: Jaxpr, consts: Sequence[Any], given: Sequence[Any], noted: Any, mark: Mark
) -> tuple[list, Any]:
    """Compute the known results of a program, and mark the examples that it looks up.

    Args:
      program: The program.
      consts: Its constants.
      given: Its inputs: arrays, `Rows` or `UNKNOWN`.
      noted: What is carried along: a pytree of arrays.
      mark: What happens to it at each look-up.

    Returns:
      The results, `UNKNOWN` if they are, and what was carried along.

    Raises:
      NotKnownError: If it is not known which examples are read.
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
    has_rows = any(map(_is_rows, inputs))
    is_known = not any(each is UNKNOWN for each in inputs)
    if not has_rows and is_known:
        return _bind(equation, inputs), noted
    if name == "optimization_barrier":
        return [_barred(each) for each in inputs], noted
    loops = {"scan": _scan, "while": _while, "cond": _cond}
    if name in loops and has_rows:
        return loops[name](equation, inputs, noted, mark)
    inner = next((params[each] for each in CALLS if each in params), None)
    if inner is not None and name not in ("scan", "pallas_call", "shard_map"):
        program, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
        return follow(program, consts, inputs, noted, mark)
    if has_rows:
        return _look_up(equation, inputs, noted, mark)
    return [UNKNOWN] * len(equation.outvars), noted


def _barred(value: Any) -> Any:
    """Put an optimization barrier around an array; leave `Rows` and `UNKNOWN` as they are."""
    is_array = value is not UNKNOWN and not _is_rows(value)
    return jax.lax.optimization_barrier(value) if is_array else value


def _bind(equation: JaxprEqn, inputs: list) -> Sequence:
    """Compute an equation of arrays alone."""
    params, functions = equation.primitive.get_bind_params(equation.params), ()
    if isinstance(params, tuple):  # JAX before 0.10
        functions, params = params
    with equation.ctx.manager:
        outputs = equation.primitive.bind(*functions, *inputs, **params)
    return outputs if equation.primitive.multiple_results else [outputs]


def _look_up(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Mark the examples that an equation looks up."""
    name, params, rows = equation.primitive.name, equation.params, inputs[0]
    shape, found = equation.invars[0].aval.shape, equation.outvars[0].aval.shape  # type: ignore
    arrays = [each.array if isinstance(each, Rows) else each for each in inputs]
    has_array = isinstance(rows, Rows) and rows.array is not None
    if name == "reshape" and found[:1] == shape[:1]:
        return [Rows(_bind(equation, arrays)[0] if has_array else None)], noted
    if name == "slice" and params["start_indices"][0] == 0 and params["limit_indices"][0] == 1:
        positions = jnp.zeros(1, "int32")  # The first example is the first one of every window.
    elif _is_look_up(equation):
        positions = inputs[1]
    else:
        raise NotKnownError(f"all examples are read ({name})")
    if positions is UNKNOWN:
        raise NotKnownError("examples are chosen by what is learnt")
    noted = mark(noted, positions)
    return (_bind(equation, arrays) if has_array else [UNKNOWN]), noted


def _is_look_up(equation: JaxprEqn) -> bool:
    """Tell whether an equation looks up examples by their positions."""
    name, params = equation.primitive.name, equation.params
    if name == "dynamic_slice":
        return params["slice_sizes"][0] == 1
    if name != "gather":
        return False
    numbers = params["dimension_numbers"]
    return numbers.start_index_map == numbers.collapsed_slice_dims == (0,)


def _found(run: Callable[..., list], *given: object) -> list:
    """Describe the results of `run`, `UNKNOWN` ones too; it is traced and computes nothing."""
    found = jax.eval_shape(run, *given)
    if any(map(_is_rows, [*found, *jax.tree.leaves(given, is_leaf=_is_rows)])):
        raise NotKnownError("all examples are carried along")
    return found


def _is_rows(value: object) -> bool:
    return isinstance(value, Rows)


def _like(known: Sequence[object], values: Sequence[object]) -> list:
    """Keep the values in the places of known ones."""
    pairs = zip(known, values, strict=True)
    return [UNKNOWN if its is UNKNOWN else value for its, value in pairs]


def _settled(carried: list, turn: Callable[..., list], *given: object) -> list:
    """Leave out the values that do not stay known in a loop."""
    while True:
        after = _like(_found(turn, carried, *given)[: len(carried)], carried)
        if [each is UNKNOWN for each in after] == [each is UNKNOWN for each in carried]:
            return carried
        carried = after


def _scan(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Follow a loop of known length."""
    params, body = equation.params, equation.params["jaxpr"]
    # Slices have an axis less; versions of JAX name these numbers differently.
    num, last = (
        sum(outer.aval.ndim == inner.aval.ndim for outer, inner in zip(*pair, strict=True))
        for pair in ((equation.outvars, body.jaxpr.outvars), (equation.invars, body.jaxpr.invars))
    )
    consts, carried, each = inputs[: last - num], inputs[last - num : last], inputs[last:]

    def turn(carried: list, slices: list, noted: Any) -> tuple[list, Any]:
        return follow(body.jaxpr, body.consts, [*consts, *carried, *slices], noted, mark)

    def first(carried: list, each: list) -> list:
        return turn(carried, jax.tree.map(lambda leaf: leaf[0], each), noted)[0]

    carried = _settled(carried, first, each)

    def step(both: tuple[list, Any], slices: list) -> tuple[tuple[list, Any], list]:
        outputs, after = turn(both[0], slices, both[1])
        return (_like(carried, outputs[:num]), after), outputs[num:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    (kept, noted), found = jax.lax.scan(step, (carried, noted), each, **options)
    return [*kept, *found], noted


def _while(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Follow a loop that decides as it runs how long it is."""
    test, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    first = equation.params["cond_nconsts"]
    last = first + equation.params["body_nconsts"]
    of_test, consts, carried = inputs[:first], inputs[first:last], inputs[last:]

    def turn(carried: list, noted: Any) -> tuple[list, Any]:
        return follow(body.jaxpr, body.consts, [*consts, *carried], noted, mark)

    carried = _settled(carried, lambda carried: turn(carried, noted)[0])

    def goes_on(both: tuple[list, Any]) -> Array:
        [is_next], _ = follow(test.jaxpr, test.consts, [*of_test, *both[0]], (), mark)
        if is_next is UNKNOWN:
            raise NotKnownError("what is learnt decides how many steps there are")
        return is_next

    def step(both: tuple[list, Any]) -> tuple[list, Any]:
        outputs, after = turn(*both)
        return _like(carried, outputs), after

    return jax.lax.while_loop(goes_on, step, (carried, noted))


def _cond(equation: JaxprEqn, inputs: list, noted: Any, mark: Mark) -> tuple[Sequence, Any]:
    """Follow the branch that is taken, or all of them if that is not known."""
    index, *given = inputs
    runs = [
        partial(follow, branch.jaxpr, branch.consts, given, mark=mark)
        for branch in equation.params["branches"]
    ]
    if index is UNKNOWN:
        for run in runs:
            _, noted = run(noted=noted)
        return [UNKNOWN] * len(equation.outvars), noted
    known = [_found(lambda noted, run=run: run(noted=noted)[0], noted) for run in runs]

    def kept(noted: Any, run: Callable[..., Any]) -> tuple[list, Any]:
        outputs, after = run(noted=noted)
        return functools.reduce(lambda values, of: _like(of, values), known, outputs), after

    return jax.lax.switch(index, [partial(kept, run=run) for run in runs], noted)


def checked(function: Callable[..., Any], data: Any, window: int, *given: Any) -> tuple[Any, Array]:
    """Call a function, and tell whether it has looked up an example that is not there.

    Args:
      function: From examples and further arguments to a pytree of arrays.
      data: Examples, leaves `[window + 1, ...]`. The last of them stands for what is not there.
      window: The number of examples that may be there.
      *given: The further arguments.

    Returns:
      What the function returns, and `bool[]`.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(data, *given)
    leaves = [*map(Rows, jax.tree.leaves(data)), *jax.tree.leaves(given)]

    def mark(is_outside: Array, positions: Array) -> Array:
        return is_outside | (positions >= window).any()

    outputs, is_outside = follow(closed.jaxpr, closed.consts, leaves, jnp.bool_(False), mark)
    return jax.tree.unflatten(jax.tree.structure(shapes), outputs), is_outside


def note_rows(flags: Array, positions: Array) -> Array:
    """Mark the examples at some positions, `i32[...]`: the next flags, `bool[n]`."""
    return flags.at[positions.reshape(-1)].set(True)
