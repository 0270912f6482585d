"""A user's function that does something else than before is another program, however it came to it.

The ways to change it are generated: places from which a function takes a value, with values of many
kinds. What plain JAX does not notice either may go unnoticed.
"""

import gc
import os
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim.engine.machine import user_code
from fedjax_sim.engine.machine.user_code import number_of_code
from fedjax_sim.engine.program.prepare import _trace_problem
from fedjax_sim.problems import Quadratic

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]

START = """
import abc, array, collections, contextvars, copy, dataclasses, datetime, decimal, enum, fractions
import functools, operator, os, sys, threading, types, weakref
import jax, jax.numpy as jnp, numpy as np, pandas as pd, xarray as xr

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Problem:
    counts: jax.Array
    def init(self, key):
        return jnp.ones(3)
    def loss(self, params, client, examples, key):
        return jnp.sum(params * term(params))
    def evaluate(self, params):
        return {"norm": jnp.sum(params)}
class Holder:
    pass
"""
"""What the source of each problem begins with."""


VALUES: dict[str, tuple[str, str, str]] = {
    "float": ("1.0", "2.0", "v"),
    "negative zero": ("0.0", "-0.0", "jnp.copysign(x, v)"),
    "int": ("1", "2", "v"),
    "type of number": ("1", "1.0", "x.astype(int) // 2 * v"),
    "bool": ("True", "False", "x if v else -x"),
    "text": ("'sin'", "'cos'", "getattr(jnp, v)(x)"),
    "bytes": ("b'a'", "b'b'", "v[0]"),
    "None": ("None", "1.0", "x if v is None else 2 * x"),
    "complex": ("1j", "2j", "(v * x).imag"),
    "keys": ("{'a': 1, 'b': 2}", "{'b': 1, 'a': 2}", "v['a']"),
    "order of a dict": ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", "[*v.values()][0]"),
    "nested lists": ("[[1], [2, 3]]", "[[1, 2], [3]]", "len(v[0])"),
    "tuple": ("(1, (2, 3))", "((1, 2), 3)", "v[0] if isinstance(v[0], int) else 5"),
    "dtype": ("jnp.float32", "jnp.float16", "x.astype(v).astype('float32')"),
    "dtype of NumPy": ("np.dtype('f4')", "np.dtype('f2')", "x.astype(v).astype('float32')"),
    "Decimal": ("decimal.Decimal('1.0')", "decimal.Decimal('1.5')", "float(v)"),
    "Fraction": ("fractions.Fraction(1, 2)", "fractions.Fraction(1, 3)", "float(v)"),
    "range": ("range(3)", "range(4)", "sum(v)"),
    "slice": ("slice(0, 2)", "slice(0, 1)", "jnp.sum(x[v])"),
    "set": ("{1, 2}", "{1, 3}", "sum(v)"),
    "frozenset": ("frozenset({1, 2})", "frozenset({1, 3})", "sum(v)"),
    "deque": ("collections.deque([1, 2])", "collections.deque([2, 1])", "v[0]"),
    "counter": ("collections.Counter('aab')", "collections.Counter('abb')", "v['a']"),
    "array": ("np.arange(3.0)", "np.arange(3.0) * 2", "v"),
    "array of 32 bits": ("np.float32([1, 2, 3])", "np.float32([1, 2, 4])", "v"),
    "array of JAX": ("jnp.arange(3.0)", "jnp.arange(3.0) * 2", "v"),
    "array of objects": ("np.array([1, 'a'], object)", "np.array([2, 'a'], object)", "v[0]"),
    "scalar of NumPy": ("np.float32(1)", "np.float32(2)", "v"),
    "array.array": ("array.array('d', [1])", "array.array('d', [2])", "v[0]"),
    "bytearray": ("bytearray(b'a')", "bytearray(b'b')", "v[0]"),
    "series": ("pd.Series([1.0, 2.0])", "pd.Series([2.0, 1.0])", "v.iloc[0]"),
    "frame": ("pd.DataFrame({'a': [1.0]})", "pd.DataFrame({'a': [2.0]})", "v['a'].sum()"),
    "xarray": ("xr.DataArray([1.0, 2.0])", "xr.DataArray([2.0, 1.0])", "float(v[0])"),
    "timedelta": ("datetime.timedelta(1)", "datetime.timedelta(2)", "v.days"),
    "namespace": ("types.SimpleNamespace(k=1)", "types.SimpleNamespace(k=2)", "v.k"),
    "function": ("lambda x: x", "lambda x: -x", "v(x)"),
    "builtin": ("max", "min", "v(1, 2)"),
    "partial": ("functools.partial(jnp.sum, axis=0)", "functools.partial(jnp.max, axis=0)", "v(x)"),
    "getter": ("operator.itemgetter(0)", "operator.itemgetter(1)", "v((1, 2))"),
}
"""Kinds of values: one, another, and what a function computes with one, `v`, and the model, `x`."""


PLACES: dict[str, tuple[str, str, str]] = {
    "global": ("K = OLD", "K", "K = NEW"),
    "globals()": ("K = OLD", "globals()['K']", "K = NEW"),
    "eval": ("K = OLD", "eval('K')", "K = NEW"),
    "closure": (
        "def make(k):\n    def get(): return k\n    def put(new):\n        nonlocal k\n"
        "        k = new\n    return get, put\nget, put = make(OLD)",
        "get()",
        "put(NEW)",
    ),
    "default": ("def get(k=OLD): return k", "get()", "get.__defaults__ = (NEW,)"),
    "keyword default": (
        "def get(*, k=OLD): return k",
        "get()",
        "get.__kwdefaults__ = {'k': NEW}",
    ),
    "attribute": ("o = Holder(); o.k = OLD", "o.k", "o.k = NEW"),
    "attribute of an attribute": (
        "o = Holder(); o.a = Holder(); o.a.k = OLD",
        "o.a.k",
        "o.a.k = NEW",
    ),
    "getattr": ("o = Holder(); o.k = OLD", "getattr(o, chr(107))", "o.k = NEW"),
    "vars": ("o = Holder(); o.k = OLD", "vars(o)['k']", "o.k = NEW"),
    "slots": (
        "class Slots:\n    __slots__ = ('k',)\no = Slots(); o.k = OLD",
        "o.k",
        "o.k = NEW",
    ),
    "field": (
        "@dataclasses.dataclass\nclass Call:\n    k: object\n"
        "    def __call__(self): return self.k\no = Call(OLD)",
        "o()",
        "o.k = NEW",
    ),
    "frozen field": (
        "@dataclasses.dataclass(frozen=True)\nclass Call:\n    k: object\n"
        "    def __call__(self): return self.k\no = Call(OLD)",
        "o()",
        "object.__setattr__(o, 'k', NEW)",
    ),
    "class": ("class Kind:\n    k = OLD", "Kind().__class__.__dict__['k']", "Kind.k = NEW"),
    "base class": (
        "class Base:\n    k = (OLD,)\nclass Kind(Base): pass",
        "Kind.k[0]",
        "Base.k = (NEW,)",
    ),
    "metaclass": (
        "class Meta(type):\n    @property\n    def k(cls): return cls.j[0]\n"
        "class Kind(metaclass=Meta):\n    j = [OLD]",
        "Kind.k",
        "Kind.j[0] = NEW",
    ),
    "property": (
        "class Kind:\n    @property\n    def k(self): return self.j\no = Kind(); o.j = OLD",
        "o.k",
        "o.j = NEW",
    ),
    "replaced property": (
        "class Kind:\n    @property\n    def k(self): return OLD",
        "Kind().k",
        "Kind.k = property(lambda self: NEW)",
    ),
    "static method": (
        "class Kind:\n    @staticmethod\n    def k(): return OLD",
        "Kind.k()",
        "Kind.k = staticmethod(lambda: NEW)",
    ),
    "class method": (
        "class Kind:\n    @classmethod\n    def k(cls): return OLD",
        "Kind.k()",
        "Kind.k = classmethod(lambda cls: NEW)",
    ),
    "partial method": (
        "class Kind:\n    def get(self, k): return k\n    k = functools.partialmethod(get, OLD)",
        "Kind().k()",
        "Kind.k = functools.partialmethod(Kind.get, NEW)",
    ),
    "__getattr__": (
        "class Kind:\n    def __getattr__(self, name): return HELD[name]\nHELD = {'k': OLD}",
        "Kind().k",
        "HELD['k'] = NEW",
    ),
    "descriptor": (
        "class Field:\n    def __get__(self, o, kind): return self.k\n"
        "class Kind: f = Field()\nvars(Kind)['f'].k = OLD",
        "Kind().f",
        "vars(Kind)['f'].k = NEW",
    ),
    "attribute of a function": ("def f(): return f.k\nf.k = OLD", "f()", "f.k = NEW"),
    "argument of a partial": (
        "held = [OLD]\np = functools.partial(lambda h: h[0], held)",
        "p()",
        "held[0] = NEW",
    ),
    "item": ("D = {'k': [OLD]}", "D['k'][0]", "D['k'][0] = NEW"),
    "module": (
        "a = types.ModuleType('a'); a.b = types.ModuleType('b'); a.b.K = OLD",
        "a.b.K",
        "a.b.K = NEW",
    ),
    "import": (
        "sys.modules['edited_'] = types.ModuleType('edited_'); sys.modules['edited_'].K = OLD",
        "__import__('edited_').K",
        "sys.modules['edited_'].K = NEW",
    ),
    "context variable": ("C = contextvars.ContextVar('C'); C.set(OLD)", "C.get()", "C.set(NEW)"),
    "thread": ("L = threading.local(); L.k = OLD", "L.k", "L.k = NEW"),
    "weak reference": (
        "o = Holder(); o.k = OLD; w = weakref.ref(o)",
        "w().k",
        "o.k = NEW",
    ),
    "function": ("def get(): return OLD", "get()", "def get(): return NEW"),
    "code": (
        "def get(): return OLD\ndef other(): return NEW",
        "get()",
        "get.__code__ = other.__code__",
    ),
    "decorated": (
        "def twice(f):\n    @functools.wraps(f)\n    def g(): return f()\n    return g\n"
        "K = OLD\n@twice\ndef get(): return K",
        "get()",
        "K = NEW",
    ),
    "generator": ("K = OLD\ndef g():\n    yield K", "next(g())", "K = NEW"),
    "exception": (
        "K = OLD\ndef get():\n    try: raise KeyError\n    except KeyError: return K",
        "get()",
        "K = NEW",
    ),
    "named tuple": ("P = collections.namedtuple('P', 'k'); o = P([OLD])", "o.k[0]", "o.k[0] = NEW"),
    "chain": ("D = collections.ChainMap({}, {'k': OLD})", "D['k']", "D.maps[0]['k'] = NEW"),
    "proxy": ("D = {'k': OLD}; M = types.MappingProxyType(D)", "M['k']", "D['k'] = NEW"),
    "cached": (
        "K = OLD\n@functools.lru_cache\ndef get(): return K",
        "get()",
        "K = NEW; get.cache_clear()",
    ),
}
"""Places of values: source with one, an expression that finds it, and source that changes it."""


OTHERS: dict[str, tuple[str, str, str]] = {
    "environment": (
        "os.environ['EDITED_'] = '1'",
        "float(os.environ['EDITED_'])",
        "os.environ['EDITED_'] = '2'",
    ),
    "array in place": ("K = np.ones(3)", "K", "K *= 2"),
    "array of 32 bits in place": ("K = np.ones(3, 'f4')", "K", "K *= 2"),
    "array in a list in place": ("o = Holder(); o.k = [np.ones(3)]", "o.k[0]", "o.k[0][:] = 2"),
    "array of zeros in place": ("K = np.zeros(3)", "jnp.copysign(x, K)", "K *= -1"),
    "method of the problem": (
        "def term(x): return x",
        "x",
        "Problem.loss = lambda self, params, *rest: jnp.sum(params)",
    ),
    "evaluation": ("", "x", "Problem.evaluate = lambda self, p: {'norm': 2 * jnp.sum(p)}"),
    "name of a metric": ("", "x", "Problem.evaluate = lambda self, p: {'other': jnp.sum(p)}"),
    "first model": ("", "x", "Problem.init = lambda self, key: jnp.zeros(3)"),
    "slope alone": (
        "@jax.custom_vjp\ndef f(x): return x\nS = 1.0\n"
        "f.defvjp(lambda x: (x, None), lambda _, g: (S * g,))",
        "f(x)",
        "S = 2.0",
    ),
    "tangent alone": (
        "@jax.custom_jvp\ndef f(x): return x\nS = 1.0\nf.defjvp(lambda p, t: (p[0], S * t[0]))",
        "f(x)",
        "S = 2.0",
    ),
    "called back": (
        "def back(x): return np.asarray(x)\n",
        "jax.lax.stop_gradient(jax.pure_callback(back, jax.ShapeDtypeStruct((3,), 'float32'), "
        "jax.lax.stop_gradient(x)))",
        "def back(x): return 2 * np.asarray(x)",
    ),
    "body of a loop": (
        "K = 1.0",
        "jax.lax.fori_loop(0, 2, lambda i, y: K * y, x)",
        "K = 2.0",
    ),
    "jitted helper": ("K = 1.0\n@jax.jit\ndef help(x): return K * x", "help(x)", "K = 2.0"),
    "checkpointed helper": (
        "K = 1.0\n@jax.checkpoint\ndef help(x): return K * x",
        "help(x)",
        "K = 2.0",
    ),
    "body in a module": (
        "K = 1.0\ndef body(c, _): return K * c, None",
        "jax.lax.scan(body, x, None, 2)[0]",
        "K = 2.0",
    ),
    "branches in a module": (
        "K = 1.0\ndef yes(x): return K * x\ndef no(x): return -x",
        "jax.lax.cond(x[0] > 0, yes, no, x)",
        "K = 2.0",
    ),
}


def cases() -> dict[str, tuple[str, str, str]]:
    """Generate ways: every place with several values, every value in several places."""
    found = dict(OTHERS)
    for i, (place, (source, get, edit)) in enumerate(PLACES.items()):
        for j, (kind, (old, new, use)) in enumerate(VALUES.items()):
            if i and j and (i + j) % 6:
                continue
            term = f"(lambda v: {use})({get})"
            found[f"{place}: {kind}"] = (
                source.replace("OLD", old).replace("NEW", new),
                term,
                edit.replace("NEW", new),
            )
    return found


CASES = cases()


class User:
    """A problem in a namespace as that of a notebook."""

    def __init__(self, source: str, term: str) -> None:
        self.names: dict[str, Any] = {"__name__": "notebook"}
        self.run(f"{START}\n{source}\ndef term(x):\n    return {term}\n")

    def run(self, source: str) -> None:
        exec(compile(source, "<cell>", "exec"), self.names)

    @property
    def problem(self) -> Any:
        return self.names["Problem"](np.ones(2, "int32"))

    def number(self) -> int:
        problem = self.problem
        return number_of_code(partial(_trace_problem, problem, 1), problem)

    def in_plain_jax(self) -> Any:
        """Compute what a new function computes that calls the user's."""
        term, model = self.names["Problem"].loss, jnp.arange(1.0, 4.0)
        loss = lambda model: term(self.problem, model, 0, 0, None)  # noqa: E731
        return jax.device_get(jax.jit(lambda model: jax.value_and_grad(loss)(model))(model))


def test_there_are_many_ways() -> None:
    assert len(CASES) >= 300
    for names in (PLACES, VALUES):
        assert all(any(name in case for case in CASES) for name in names)


STALE = {"jitted helper", "checkpointed helper", "body in a module", "branches in a module"}
"""Ways that JAX does not notice, as the guide on limits says."""


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name: str) -> None:
    source, term, edit = CASES[name]
    user = User(source, term)
    before = user.number()
    assert user.number() == before, "equal code has an equal number"
    known = user.in_plain_jax() if name in STALE else None
    user.run(edit)
    is_noticed = user.number() != before
    assert is_noticed == (name not in STALE)
    if not is_noticed:
        jax.tree.map(np.testing.assert_array_equal, user.in_plain_jax(), known)


def sweep(problem: Any, system: Any = FEDAVG, **options: Any) -> fedjax_sim.Run:
    hyper = system.paper(num_clients=2, num_selected=1, batch_size=1, local_steps=1)
    given = {"hyper": hyper, "seeds": 2, "budget": fedjax_sim.Ticks(2), "num_evals": 1}
    layout = fedjax_sim.Layout(lane_devices=1)
    return fedjax_sim.sweep(system, problem, **given | options, layout=layout)


def norms(problem: Any, **options: Any) -> list[float]:
    return sweep(problem, **options).curves["norm"].values.ravel().tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    ["field: float", "import: float", "global: negative zero", "evaluation", "array in place"],
)
def test_a_sweep_runs_what_was_edited(name: str) -> None:
    """And what it ran before, once that is there again. So does `bind`."""
    source, term, edit = CASES[name]
    user, edited = User(source, term), User(source, term)
    before = norms(user.problem)
    assert norms(user.problem) == before
    edited.run(edit)
    user.run(edit)
    after = norms(user.problem)
    jax.clear_caches()
    assert after == norms(edited.problem)
    if name != "global: negative zero":  # Of which the first step makes the same.
        assert after != before
    hyper = FEDAVG.paper(num_clients=2, num_selected=1, batch_size=1, local_steps=1)
    bound = fedjax_sim.bind(FEDAVG, user.problem, hyper, budget=fedjax_sim.Ticks(2), seed=0)
    state, _ = bound.run(bound.init())
    assert float(bound.evaluate(state)["norm"]) == after[1]


@pytest.mark.slow
def test_own_settings_and_steps_are_noticed() -> None:
    """An optimizer that reads a number, and a step that does."""
    held, user = {"factor": 1.0}, User("", "x")

    def optimizer(lr: Any) -> optax.GradientTransformation:
        return optax.sgd(held["factor"] * lr)

    def algorithm(*given: Any) -> Any:
        made = FEDAVG.algorithm(*given)

        def step(key: Any, state: Any, event: Any) -> Any:
            after, info = made.step(key, state, event)
            return jax.tree.map(lambda leaf: held["factor"] * leaf, after), info

        return made._replace(step=step)

    small = {"num_clients": 2, "num_selected": 1, "batch_size": 1, "local_steps": 1, "lr": 0.1}
    ways: list[dict[str, Any]] = [
        {"hyper": FEDAVG.paper(**small, optimizer=optimizer)},
        {"hyper": FEDAVG.paper(**small), "system": FEDAVG._replace(algorithm=algorithm)},
    ]
    before = [norms(user.problem, **way) for way in ways]
    held["factor"] = 0.5
    after = [norms(user.problem, **way) for way in ways]
    assert after[0] != before[0]
    assert after[1] != before[1]


def test_code_is_traced_once_in_a_call() -> None:
    """Whatever the number of lanes; that of this package is not traced."""
    user = User("TRACED = []", "TRACED.append(1) or x")
    for seeds in (1, 3):
        sweep(user.problem, seeds=seeds)
        user.names["TRACED"].clear()
        sweep(user.problem, seeds=seeds)
        assert len(user.names["TRACED"]) == 1

    def fail() -> Any:
        raise AssertionError

    problem = Quadratic.of([[0.0, 1.0], [2.0, 3.0]])
    assert number_of_code(fail, problem, FEDAVG, FEDAVG.paper(num_clients=2)) == 0


def test_a_method_that_is_put_into_a_class_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Quadratic.of([[0.0, 1.0], [2.0, 3.0]])
    trace = partial(_trace_problem, problem, 1)
    monkeypatch.setattr(Quadratic, "loss", lambda self, params, *rest: jnp.sum(params))
    first = number_of_code(trace, problem)
    monkeypatch.setattr(Quadratic, "loss", lambda self, params, *rest: -jnp.sum(params))
    assert 0 < first != number_of_code(trace, problem) > 0
    monkeypatch.undo()
    assert number_of_code(trace, problem) == 0


def test_classes_of_the_package_that_name_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # The second class is looked through while the first one, which is edited, still is.
    module = type(user_code)("fedjax_sim.pretended")
    module.__file__ = user_code.__file__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    first, second = (type(name, (), {"__module__": module.__name__}) for name in "AB")
    first.other, second.other = second, first  # type: ignore[attr-defined]
    first.method = lambda self: 1  # type: ignore[attr-defined]
    assert user_code._look_through((first(),))[0]
    is_users, parts = user_code._look_through((second(),))
    assert is_users and first.method.__code__ in parts  # type: ignore[attr-defined]


def test_random_numbers_of_python_get_one_warning(capsys: pytest.CaptureFixture) -> None:
    user = User("import random", "random.random() * x")
    numbers = {user.number() for _ in range(3)}
    assert len(numbers) == 3
    assert capsys.readouterr().err.count("Problem is traced to another program each time") == 1


def test_a_slow_trace_rests(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """In calls that follow each other soon; another function is noticed all the same."""
    user = User("D = {'k': 1.0}\ndef get(): return D['k']", "get() * x")

    def number() -> int:
        return number_of_code(partial(_trace_problem, user.problem, 1), user.problem, may_rest=True)

    monkeypatch.setattr(user_code, "SLOW", (0.0, 1e6))
    first = number()
    assert number() == first
    user.run("D['k'] = 2.0")
    assert number() == number() == first
    assert capsys.readouterr().err.count("changes inside it are not noticed until") == 1
    user.run("def get(): return 3.0")
    assert number() != first
    monkeypatch.undo()
    user.run("def get(): return D['k']")
    assert number() != first


def test_no_look_up_of_a_user_is_run() -> None:
    """What `__getattr__` raises ends no sweep, in the problem and in what its loss calls."""
    broken = "\n    def __getattr__(self, name): return {}[name]\n"
    source = f"class Call:{broken}    def __call__(self, x): return x\nf = Call()"
    source += f"\nclass Broken(Problem):{broken}"
    user, plain = User(source, "f(x)"), User("", "x")
    user.run("Problem = jax.tree_util.register_dataclass(dataclasses.dataclass(Broken))")
    assert norms(user.problem) == norms(plain.problem)
    # Systems that ask for more than a problem must have, such as metrics of single clients.
    extra = "\n    def evaluate_clients(self, of): return {'norm': jnp.sum(of(0)) * jnp.ones(2)}\n"
    made = "Problem = jax.tree_util.register_dataclass(dataclasses.dataclass(Personal))"
    for each in (user, plain):
        each.run(f"class Personal(Problem):{extra}\n{made}")
    for name in ("tifl", "ditto"):
        system = fedjax_sim.SYSTEMS[name]
        hyper = system.paper(num_clients=2, num_selected=1, batch_size=1, local_steps=1)
        hyper = hyper.replace(num_tiers=1) if name == "tifl" else hyper
        found, known = (norms(each.problem, system=system, hyper=hyper) for each in (user, plain))
        assert found == known


def test_arrays_are_not_kept_alive() -> None:
    user = User("K = jnp.arange(3.0)", "K")
    first, alive = user.number(), weakref.ref(user.names["K"])
    assert user.number() == first
    user.run("K = None")
    gc.collect()
    assert alive() is None


def test_data_and_settings_make_no_difference() -> None:
    user = User("", "x")
    other = user.names["Problem"](np.full(2, 7, "int32"))
    assert number_of_code(partial(_trace_problem, other, 1), other) == user.number()


def test_autoreload_and_cells_of_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that IPython's `%autoreload` patches in place, and a cell that is run again."""
    shells = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_by_autoreload.py"
    shell = shells.InteractiveShell()

    def run(cell: str) -> None:
        shell.run_cell(cell).raise_error()

    def write(body: str, second: int) -> None:
        path.write_text(f"def term(x):\n    return {body}\n")
        os.utime(path, (second, second))

    write("x", 1_000_000_000)
    run("%load_ext autoreload\n%autoreload 2")
    run(f"{START}\nimport edited_by_autoreload\nterm = edited_by_autoreload.term")

    def found() -> list[float]:
        run("problem = Problem(np.ones(2, 'int32'))")
        return norms(shell.user_ns["problem"])

    before = found()
    assert found() == before
    write("0.5 * x", 1_000_000_100)
    patched = found()
    run("def term(x): return 0.25 * x")
    redefined = found()
    assert len({before[1], patched[1], redefined[1]}) == 3
    for factor, values in ((1, before), (0.5, patched), (0.25, redefined)):
        assert values == norms(User("", f"{factor} * x").problem)


@pytest.mark.slow
def test_programs_that_are_kept_are_those_of_the_code(tmp_path: Path) -> None:
    """Two versions of a loss take turns on one folder of `keep_compiled`."""

    def run(factor: int) -> str:
        source = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import fedjax_sim
from tests.engine.test_edited_code import User, norms
fedjax_sim.keep_compiled()
print(norms(User("", "{factor} * x").problem))
"""
        done = subprocess.run(
            [sys.executable, "-c", source],
            env={name: text for name, text in os.environ.items() if "CACHE" not in name}
            | {"FEDJAX_SIM_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = [run(factor) for factor in (1, 2, 1)]
    assert found[0] == found[2] != found[1]
    assert any(tmp_path.rglob("*-cache")), "programs were kept"
    assert found[1] == f"{norms(User('', '2 * x').problem)}\n"


def test_a_view_that_is_larger_than_memory_is_looked_at_once() -> None:
    """Arrays of NumPy that are broadcast may be found in what a user's function refers to."""
    views = [np.broadcast_to(np.float32(number), (10**7, 10**7)) for number in (1.0, 1.0, 2.0)]
    one, same, other = map(user_code._part_of_array, views)
    assert one == same != other
    assert one != user_code._part_of_array(np.broadcast_to(np.float32(1.0), (10**7, 10**6)))
    rows = np.broadcast_to(np.arange(3.0), (2, 3))
    assert user_code._part_of_array(rows) != user_code._part_of_array(np.zeros((2, 3)))
