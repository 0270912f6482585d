"""The decorator `checked`: what each kind of annotation allows, and what it leaves as it is."""

import gc
import inspect
import math
import pickle
import sys
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from flax import linen, struct

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.core.settings import Count, Limit, OneOf, Probability, checked, shape
from fedjax_sim.core.types import Array, Key
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import Arrivals

if TYPE_CHECKING:
    from fractions import Fraction


class Named(Protocol):
    name: str

    def call(self) -> None: ...


class Dog:
    def __init__(self) -> None:
        self.name = "Rex"

    def call(self) -> None: ...


def checker_of(annotation: Any) -> Callable[[Any], None]:
    """Make a checked function of one argument `x`."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    return checked(function)


NUMBERS: list[Any] = [2, np.int64(2), np.uint8(2), jnp.int32(2), np.array(2)]
REALS: list[Any] = [*NUMBERS, 0.5, np.float32(0.5), jnp.bfloat16(0.5), np.array(0.5), float("inf")]
FEW: list[Any] = [[1, 2], (1, 2), range(3), np.arange(3), jnp.arange(3)]
KINDS: list[tuple[Any, list[Any], list[Any]]] = [
    (bool, [True, np.bool_(False)], [0, 1, "no", None, 1.0]),
    (int, NUMBERS, [True, 2.0, "2", None, np.array([2]), np.float32(2), 2j]),
    (float, REALS, [True, "1", None, float("nan"), np.float64("nan"), np.ones(1), 1j]),
    (str, ["", "a"], [1, None, b"a", Path("a")]),
    (Path, ["a", Path("a")], ["", "a\0b", 3, None, b"a"]),
    (str | Path | None, ["a", Path("a"), None], ["", 3]),
    (bool | str | Path | None, [True, None, "a"], ["", 3]),
    (int | None, [1, None], [1.5, "1"]),
    (int | Sequence[int], [1, *FEW], ["12", [1.5], [True], {1, 2}, {1: 2}, iter([1])]),
    (Collection[int], [*FEW, {1, 2}], ["12", [1.5], iter([1])]),
    (Iterable[int], [*FEW, {1, 2}, iter("a")], ["12", [1.5], 3, {1: 2}]),
    (tuple[int, ...], [(), (1, 2), [1]], [1, (1.5,), "1"]),
    (tuple[int, str], [(1, "a"), [1, "a"]], [(1,), (1, 2), ("a", 1), 1]),
    (Mapping[str, Sequence[Any]], [{}, {"a": [1]}], [{"a": 1}, {1: [1]}, [("a", [1])]]),
    (Literal["a", "b"], ["a"], ["c", 1, ["a"]]),
    (Annotated[str, OneOf(("a", "b"))], ["a"], ["c", 1, ["a"]]),
    (Callable[[int], int], [len, Dog], [3, "len"]),
    (type[Dog], [Dog], [Dog(), 3]),
    (Dog, [Dog()], [Dog, "Rex"]),
    (Named, [Dog()], [Dog, "Rex", None]),
    (Sequence[Hashable], [["a", 1]], [3, "ab"]),
    (Any, [None, 3], []),
    (Array, [np.ones(2), jnp.ones(2), [1.0, 2.0], 3, True], ["a", None, {}, [[1], [1, 2]], len]),
    (npt.ArrayLike, [np.ones(2), [1, 2], 3.0, np.array(["a"])], ["a", None, [[1], [1, 2]]]),
    (npt.ArrayLike | None, [None, 3.0], ["a"]),
    (npt.NDArray[np.float64], [np.ones(2)], ["a", None]),
    (Key, [jax.random.key(0), jax.random.PRNGKey(0)], [0, None, np.zeros(2)]),
    (Count, [1, np.int32(3)], [0, -1, 1.5, True]),
    (Probability, [0, 1, 0.5, jnp.float32(1)], [5, -0.1, float("inf"), True, "0"]),
    (
        Annotated[npt.ArrayLike, Limit(least=0, most=1)],
        [[0, 1], np.float32(1 + 1e-7), np.zeros(0)],
        [[2], [-1], [np.nan], 5, True, ["a"], [1.001]],
    ),
    (Annotated[Array, Limit(least=0, may_be_nan=True)], [[np.nan, 1]], [[np.nan, -1]]),
    (Annotated[Array, Limit(is_whole=True)], [[1, 2.0]], [[0.5], [np.nan], [np.inf]]),
    (Annotated[Array, shape("N 2", "")], [np.ones((3, 2)), 1.0], [np.ones(2), np.ones((2, 3))]),
    (Annotated[Array, shape("... P P")], [np.eye(2), np.ones((4, 2, 2))], [1.0, np.ones((2, 3))]),
    (Annotated[Array, shape("n ...")], [np.ones(2), np.ones((3, 2))], [1.0]),
]


@pytest.mark.parametrize(("annotation", "right", "wrong"), KINDS, ids=lambda x: str(x)[:40])
def test_what_an_annotation_allows(annotation: Any, right: list[Any], wrong: list[Any]) -> None:
    check = checker_of(annotation)
    for value in right:
        check(value)
    for value in wrong:
        with pytest.raises(ConfigError, match=r"^x is .*, but must be .*\.$"):
            check(value)


@checked
def scaled(
    x: Annotated[Array, shape("N"), Limit(least=0)],
    by: Probability = 1.0,
    *more: int,
    y: Annotated[Array, shape("N")] = 0,  # type: ignore[assignment]
    **named: str,
) -> Array:
    """Scale."""
    return x * by


def test_tracers_are_not_looked_into() -> None:
    """Their type and shape are known, their value is not."""
    out = jax.jit(jax.vmap(scaled))(-jnp.ones((2, 3)), 5 * jnp.ones(2))
    np.testing.assert_array_equal(out, -5 * np.ones((2, 3)))
    with pytest.raises(ConfigError, match=r"x is .*, but must be an array of shape \[N\]"):
        jax.jit(scaled)(jnp.ones((2, 3)))
    with pytest.raises(ConfigError, match=r"by is .*, but must be a finite number from 0 to 1"):
        jax.jit(scaled)(jnp.ones(2), jnp.ones(2))


def test_letters_stand_for_one_length_in_a_call() -> None:
    scaled(np.ones(3), y=np.ones(3))
    words = r"y is array\(\[1., 1.\]\), but must be an array of shape \[N\] with N = 3"
    with pytest.raises(ConfigError, match=words):
        scaled(np.ones(3), y=np.ones(2))


def test_further_arguments_are_checked() -> None:
    scaled(np.ones(3), 1.0, 2, 3, word="a")
    with pytest.raises(ConfigError, match="argument 4 is 'a', but must be a whole number"):
        scaled(np.ones(3), 1.0, 2, "a")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="word is 3, but must be text"):
        scaled(np.ones(3), word=3)  # type: ignore[arg-type]


def test_a_function_keeps_its_face() -> None:
    assert scaled.__doc__ == "Scale."
    assert list(inspect.signature(scaled).parameters) == ["x", "by", "more", "y", "named"]
    assert pickle.loads(pickle.dumps(scaled)) is scaled
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        scaled()  # type: ignore[call-arg]


@checked
def late(part: "Fraction | None" = None) -> None: ...


def test_names_for_type_checkers_alone_are_found() -> None:
    late()
    with pytest.raises(ConfigError, match="part is 3, but must be a Fraction or None"):
        late(3)  # type: ignore[arg-type]


@checked
class Pair(NamedTuple):
    first: int
    second: Probability = 0.5


@checked
@struct.dataclass
class Leaves:
    leaf: Count
    size: Count = struct.field(pytree_node=False, default=1)


@checked
class Net(linen.Module):
    features: Count

    @linen.compact
    def __call__(self, x: Array) -> Array:
        return linen.Dense(self.features)(x)


def test_classes_check_what_they_are_made_of() -> None:
    assert pickle.loads(pickle.dumps(Pair(1))) == Pair(1)
    assert Pair(1)._replace(first=2) == Pair(2)
    for make in (lambda: Pair(0.5), lambda: Pair(first="1")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"first is .*, but must be a whole number\."):
            make()
    with pytest.raises(ConfigError, match=r"features is 0, but must be"):
        Net(0)
    Net(2).init(jax.random.key(0), jnp.ones((1, 3)))


def test_leaves_of_pytrees_can_be_anything() -> None:
    """JAX makes a pytree of what a transformation puts in its leaves."""
    assert jax.tree.map(str, Leaves(3)).leaf == "3"
    with pytest.raises(ConfigError, match=r"size is 0, but must be"):
        Leaves(3, 0)


def test_settings_among_the_arguments_are_checked() -> None:
    check = checker_of(Any)
    check(Arrivals(num_clients=20))
    jax.jit(lambda rate: check(Arrivals(num_clients=20, rate_fast=rate)))(-1.0)
    with pytest.raises(ConfigError, match=r"delays.rate_fast is -1.0, but must be"):
        check(Arrivals(num_clients=20, rate_fast=-1.0))


def test_threads_read_declared_types_at_once() -> None:
    """Some are of names that are imported for type checkers alone."""
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(100):
                fedjax_sim.Watch.__init__.__checked__.__wrapped__()  # type: ignore[attr-defined]
        except BaseException as error:
            errors.append(error)

    usual, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(100)  # Python takes turns when it collects garbage in the middle of a call.
    try:
        threads = [threading.Thread(target=read) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(usual)
        gc.set_threshold(*thresholds)
    assert errors == []


def test_long_values_are_cut() -> None:
    check = checker_of(str)
    with pytest.raises(ConfigError, match=r"^x is an array of shape \[30, 2\] of int32, but"):
        check(np.zeros((30, 2), "int32"))
    with pytest.raises(ConfigError) as caught:
        check(list(range(1000)))
    assert len(str(caught.value)) < 300


def test_a_module_gets_what_it_has_of_the_kind() -> None:
    """`fedavg` is a module, whose system is `fedavg.system`."""
    with pytest.raises(ConfigError, match=r"but must be a System \(did you mean fedavg.system\?\)"):
        fedjax_sim.sweep(fedavg, None, budget=fedjax_sim.Ticks(1))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"but must be a System\.$"):
        fedjax_sim.sweep(math, None, budget=fedjax_sim.Ticks(1))  # type: ignore[arg-type]
