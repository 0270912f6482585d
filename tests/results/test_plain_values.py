"""Settings and containers as JSON: what comes back, what is refused, and what needs trust."""

import dataclasses
import functools
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim.compression import BlockQuantization
from fedjax_sim.results.plain_values import Reader, UnreadableError, Writer
from fedjax_sim.settings import fields, value_of
from fedjax_sim.timelines import Trace


class Named(NamedTuple):
    """A container of this module."""

    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Strict:
    """A struct whose constructor must not be called."""

    value: Any = 1

    def __post_init__(self) -> None:
        if CALLED is not None:
            CALLED.append(self.value)


CALLED: list[Any] | None = None


def there_and_back(value: Any, *, trust: bool = False) -> Any:
    """Write a value as JSON text, and read it."""
    writer = Writer()
    content, tables = json.loads(json.dumps([writer.plain(value), writer.tables], allow_nan=False))
    return Reader(tables, trust=trust).value(content, "it")


def same(a: Any, b: Any) -> bool:
    """Tell whether two values are of equal types, structure and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic | jax.Array):
        a, b = np.asarray(a), np.asarray(b)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return [*a] == [*b] and all(map(same, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, functools.partial):
        return all(map(same, (a.func, a.args, a.keywords), (b.func, b.args, b.keywords)))
    if isinstance(a, Trace):
        return same(vars(a), vars(b))
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        names = [field.name for field in dataclasses.fields(a)]
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    return bool(a == b) or a != a


VALUES = {
    "numbers": [0, -(10**30), 0.1, 5e-324, math.inf, -math.inf, math.nan, True, None, "ä\n"],
    "containers": {"a": (1, [2, {}]), 3: (), (4, "b"): None, "struct": {"fields": {}}, "name": 1},
    "arrays": [
        np.arange(6, dtype="int16").reshape(2, 3)[:, ::2],
        np.array(["a", "bcd"]),
        np.array([], "float64"),
        np.array(7),
        np.float32(0.1),
        np.int64(2**40),
        np.bool_(True),
        np.asarray(jnp.arange(3, dtype="bfloat16")),
        jnp.arange(3.0, dtype="float32"),
    ],
    "functions": [optax.sgd, optax.adam, jnp.tanh, jax.nn.relu, fedjax_sim.sweep, np.ndarray],
    "arguments": functools.partial(optax.sgd, momentum=0.9, nesterov=True),
    "structs": [BlockQuantization(block=9), Named(np.float32(1), Named(None, [])), Strict((2,))],
    "trace": Trace(np.arange(3), np.arange(3.0), np.arange(3.0) + 1),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(name: str) -> None:
    assert same(there_and_back(VALUES[name]), VALUES[name])


def test_every_systems_settings_come_back() -> None:
    """Also in the types that tell a default, which nobody has given, from an equal number."""
    for system in fedjax_sim.SYSTEMS.values():
        hyper, back = system.paper(), there_and_back(system.paper())
        assert back == hyper
        for name in fields(system.Hyper):
            assert type(value_of(back, name)) is type(value_of(hyper, name)), name


def test_wide_arrays_of_jax_keep_their_bits() -> None:
    with jax.enable_x64(True):
        wide = jnp.asarray([1 / 3])
    assert same(there_and_back(wide), wide)


def test_what_lanes_share_is_kept_once_and_shared_again() -> None:
    large, rate = np.arange(1000.0), lambda step: 0.1
    writer = Writer()
    writer.plain([large, large.copy(), rate, rate])
    assert {name: len(table) for name, table in writer.tables.items()} == {
        "array": 1,
        "object": 0,
        "pickle": 1,
    }
    trace = VALUES["trace"]
    back = there_and_back([rate, rate, large, large.copy(), trace, trace], trust=True)
    assert back[0] is back[1] and back[0](3) == 0.1 and back[2] is back[3] and back[4] is back[5]


def test_no_constructor_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(sys.modules[__name__], "CALLED", written)
    value = Strict(5)
    assert written == [5]
    assert there_and_back(value) == value and written == [5]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"name": "os:system"}, "names os:system, which is not allowed"),
        ({"name": "builtins:eval"}, "which is not allowed"),
        ({"name": "__main__:anything"}, "which is not allowed"),
        ({"name": "fedjax_sim.lifecycle.folders:os.system"}, "no function or class of fedjax_sim"),
        ({"name": "fedjax_sim.results.plain_values:cloudpickle.loads"}, "no function or class of"),
        ({"name": "fedjax_sim:__version__"}, "no function or class of fedjax_sim"),
        ({"name": "optax:no_such"}, "names optax:no_such, which is not here"),
        ({"name": "fedjax_sim.no_such:f"}, "which is not here"),
        ({"name": "fedjax_sim.__main__:main"}, "import fedjax_sim.__main__ first"),
        ({"name": "not_imported_here:f"}, "import not_imported_here first, if you trust it"),
        (
            {"partial": [{"name": "numpy:load"}, {"tuple": ["x"]}, {"dict": []}]},
            "names numpy:load with arguments: if you trust",
        ),
        ({"struct": "tests.results.test_plain_values:Strict", "fields": {"x": 1}}, "differs in x"),
        ({"struct": "tests.results.test_plain_values:Named", "fields": {"first": 1}}, "in second"),
        ({"pickle": 0}, "keeps it as a pickle, which can run any code"),
    ],
)
def test_what_may_run_code_is_refused(
    content: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fedjax_sim.__main__", raising=False)
    with pytest.raises(UnreadableError, match=words):
        Reader({"pickle": ["gARLAC4="]}, trust=False).value(content, "it")


def test_a_module_is_imported_with_trust_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "imported"
    (tmp_path / "a_strangers_module.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\ndef f(rate): return rate\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    content = {"name": "a_strangers_module:f"}
    with pytest.raises(UnreadableError, match="import a_strangers_module first"):
        Reader({}, trust=False).value(content, "it")
    assert not marker.exists()
    assert Reader({}, trust=True).value(content, "it")(3) == 3 and marker.exists()
    monkeypatch.delitem(sys.modules, "a_strangers_module")


def test_a_lambda_and_a_local_class_need_trust() -> None:
    class Local:
        """A class that no name finds."""

    for value in (lambda rate: optax.sgd(rate), Local(), Local, {1, 2}, b"bytes"):
        with pytest.raises(UnreadableError, match="keeps it as a pickle"):
            there_and_back(value)
        assert type(there_and_back(value, trust=True)).__name__ == type(value).__name__
