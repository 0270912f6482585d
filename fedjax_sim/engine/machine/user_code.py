"""Which program a user's code is traced to, so that edited code is compiled again.

JAX keeps what it has traced for static arguments of equal value. A function that does something
else than before may be equal to itself: a method is assigned to its class, a notebook reloads a
module, a number in a global or a field of an object changes. So code of users is traced afresh at
each call, and the number of what it was traced to is a static argument of the compiled programs.
"""

import contextlib
import dataclasses
import fnmatch
import functools
import gc
import hashlib
import itertools
import sys
import sysconfig
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.extend.linear_util import WrappedFun

from fedjax_sim.core import lifecycle, trees

_INSTALLED = (
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    # Those of the user, of the system, and of other environments are not among these.
    *fnmatch.filter(sys.path, "*/site-packages"),
    *fnmatch.filter(sys.path, "*/dist-packages"),
)
FIXED = tuple(map("{}/".format, (Path(__file__).parents[2], *_INSTALLED)))
"""Folders of this package and of installed ones, in which nobody edits code while it runs."""


PLAIN = (bool, int, float, complex, str, bytes, type(None))
HOLDERS = (
    *(tuple, list, set, frozenset, dict, MethodType, functools.partial),
    *(property, staticmethod, classmethod),
)
OWN = f"{__name__.partition('.')[0]}."
MOST_NUMBERED = 512
"""Programs that keep their numbers; one that is seen again later gets a new number."""


SLOW = 0.1, 10
"""Seconds from which a trace is slow, and within how many times as long it is not repeated."""

_numbers, _lock = itertools.count(1), threading.Lock()
_arrays: dict[int, Hashable] = {}
"""Objects that are alive, by their address: contents of arrays, and numbers of others."""

_last: OrderedDict[Hashable, tuple[float, float, int]] = OrderedDict()
"""When code was last asked for, how long its trace took, and its number."""

_of_call: ContextVar[dict[Hashable, tuple[int, object]] | None] = ContextVar(
    "of_call", default=None
)
"""Numbers of the code in the call that is under way, in which nobody edits code, and its objects.

A context variable and no argument, because it only spares traces and decides no number: every
function between a caller and a schedule would pass it on.
"""

_said: set[Hashable] = set()
_failed: set[Hashable] = set()


@contextlib.contextmanager
def in_one_call() -> Iterator[None]:
    """Trace the same code once within the statement."""
    token = _of_call.set({})
    try:
        yield
    finally:
        _of_call.reset(token)


def number_of_code(
    trace: Callable[[], tuple[ClosedJaxpr, object]],
    *used: object,
    facts: Hashable = None,
    may_rest: bool = False,
) -> int:
    """Number the program that code of users is traced to: 0 without any, else equal programs alike.

    It keeps no arrays and no functions of programs alive.

    Args:
      trace: Traces the program in a function that JAX has not seen, and returns it with what
        describes its results. It is called if there is code of users, and twice for a new program,
        to find out whether traces of the same code differ.
      used: Trees that the program is made of: problems, settings, systems and functions.
      facts: What else decides the program.
      may_rest: Whether a slow trace need not be repeated soon; the user is then told so.
    """
    of_call, objects = _of_call.get(), (*map(id, used), facts)
    if of_call is not None and objects in of_call:
        return of_call[objects][0]
    is_users, parts = _look_through(used)
    if is_users:
        number = _number_of_users(trace, parts, used, facts, may_rest)
    else:
        number = _number(parts) if parts else 0
    if of_call is not None:
        of_call[objects] = number, used  # Kept, so that nothing else gets their addresses.
    return number


def _number_of_users(
    trace: Callable, parts: Hashable, used: Iterable[object], facts: Hashable, may_rest: bool
) -> int:
    """Number a program with code of users, as `number_of_code`."""
    forms = tuple(jax.typeof(leaf) for leaf in jax.tree.leaves(used) if _is_data(leaf))
    asked = parts, trees.typed_structure(used), forms, jax.dtypes.result_type(float), facts
    of_call = _of_call.get()
    if of_call is not None and asked in of_call:
        return of_call[asked][0]
    now = time.monotonic()
    asked_at, seconds, number = _last.pop(asked, (0.0, 0.0, 0))
    if may_rest and seconds > SLOW[0] and now - asked_at < SLOW[1] * seconds:
        _say_once(
            parts,
            f"tracing {_named(used)} takes {seconds:.1f} s; in calls that follow each other soon "
            "it is taken for unchanged, unless a function or class in it is another one: changes "
            f"inside it are not noticed until {SLOW[1] * seconds:.0f} s have passed.",
        )
    else:
        number, seconds = _number_of_trace(trace, parts, used)
    if of_call is not None:
        of_call[asked] = number, None
    if may_rest and seconds > SLOW[0]:
        _last[asked] = now, seconds, number
    while len(_last) > MOST_NUMBERED:
        _last.popitem(last=False)
    return number


def _number_of_trace(trace: Callable, parts: Hashable, used: Iterable[object]) -> tuple[int, float]:
    """Trace, and return the number of the program and the seconds that it took."""

    def traced() -> tuple[Hashable, float]:
        begin = time.thread_time()
        key = parts, parts_of_program(*trace())
        return key, time.thread_time() - begin

    try:
        key, seconds = traced()
    except Exception as error:  # Where it is called next says what is wrong, in better words.
        if parts in _failed:
            sentence = f"is compiled at each call, as its trace fails: {error!r}"
            _say_once(parts, f"{_named(used)} {sentence}")
        _failed.add(parts)
        return next(_numbers), 0.0
    with _lock:
        known = _number.cache_info().misses
        number = _number(key)
        is_new = _number.cache_info().misses > known
    if is_new:
        again, seconds = traced()[0], 0.0  # What is traced first takes longer than later.
        if again != key:
            _say_once(
                parts,
                f"{_named(used)} is traced to another program each time, as with random numbers "
                "or the time of Python, and is compiled at each call: draw from the key that it "
                "gets.",
            )
    return number, seconds


@functools.lru_cache(maxsize=64)
def number_of_program(program: ClosedJaxpr) -> int:
    """Number a traced program; equal programs have one number."""
    return _number(parts_of_program(program, None))


def together(*codes: int) -> int:
    """Number some numbers of code together; 0 if all are 0."""
    return _number(codes) if any(codes) else 0


@functools.lru_cache(maxsize=MOST_NUMBERED)
def _number(parts: Hashable) -> int:
    return next(_numbers)


def _say_once(about: Hashable, sentence: str) -> None:
    if (about, sentence[:7]) not in _said:
        _said.add((about, sentence[:7]))
        lifecycle.say(sentence)


def _named(used: Iterable[object]) -> str:
    """Name functions, and others by their classes."""
    named = (each if type(each) is FunctionType else type(each) for each in used)
    return " and ".join(each.__qualname__ for each in named)


# Which code is there.


def _look_through(
    used: Iterable[object], found: set[type] | None = None
) -> tuple[bool, tuple[Hashable, ...]]:
    """Look for code of users in values, without running any of it.

    Args:
      used: The values.
      found: Classes of this package in which there is some. If they are given, only whether there
        is some is asked for, and nothing is looked at twice for it.

    Returns:
      Whether there is some, and what tells apart the functions and classes that were found, and
      arrays of NumPy that are no data but parts of objects, such as traces.
    """
    leaves = jax.tree.leaves(used)
    known = {id(leaf): leaf for leaf in leaves if _is_data(leaf)}
    rest: list[Any] = list(used)
    is_users, parts, classes = False, [], set[type]() if found is None else found
    while rest and (found is None or not is_users):
        value = rest.pop()
        kind = type(value)
        if kind in PLAIN or id(value) in known:
            continue
        known[id(value)] = value  # Kept, so that nothing else gets its address.
        if issubclass(kind, np.ndarray):
            parts.append(_part(value))
        elif issubclass(kind, jax.Array | np.generic | np.dtype | ModuleType):
            continue
        elif kind is FunctionType:
            if _is_edited(value):
                is_users = True
                parts.append(value.__code__)
                rest += _named_in(value)
            rest += _inside_function(value)
        elif issubclass(kind, type):
            if _is_fixed(value.__module__):
                if value.__module__.startswith(OWN):
                    replaced = _replaced(value, classes)
                    is_users |= found is not None and bool(replaced)
                    rest += replaced
                continue
            is_users = True
            parts.append(value.__qualname__)
            for name, member in vars(value).items():
                if type(member) in PLAIN and not name.startswith("__"):
                    parts.append((name, _part(member)))
                rest.append(member)
            rest += value.__bases__
        else:
            rest.append(kind)
            rest += _inside(value)
    return is_users, tuple(parts)


def _is_data(leaf: object) -> bool:
    return issubclass(type(leaf), jax.Array | np.ndarray | np.generic | bool | int | float)


def _is_edited(function: FunctionType) -> bool:
    """Tell whether users may edit a function: it is theirs, and no dataclass generated it."""
    code = function.__code__
    if code.co_filename.startswith("<") and _is_fixed(function.__module__ or ""):
        return False
    return not (code.co_filename.startswith(FIXED) or code.co_qualname.startswith("__create_fn__"))


@functools.lru_cache(maxsize=1024)
def _is_fixed(module: str) -> bool:
    """Tell whether a module belongs to this package, to Python or to an installed package."""
    if module.partition(".")[0] in sys.stdlib_module_names or module.startswith("namedtuple_"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and file.startswith(FIXED)


_members_lock = threading.RLock()
_members: "weakref.WeakKeyDictionary[type, tuple[list, list]]" = weakref.WeakKeyDictionary()
"""Members of classes of this package, and their addresses, when nothing of them was a user's."""


def _replaced(kind: type, classes: set[type]) -> list[object]:
    """List the members of a class of this package and of its bases if there may be other ones.

    The classes that have some are added to `classes`.
    """
    found: list[object] = []
    for base in kind.__mro__:
        if not base.__module__.startswith(OWN):
            continue
        members = list(vars(base).values())
        addresses = [*map(id, members)]
        with _members_lock:  # Another thread must not see what is not looked through yet.
            if base not in _members or addresses != _members[base][1]:
                known = {*_members} - {base}
                _members[base] = members, addresses
                if base in classes or any(_look_through((each,), classes)[0] for each in members):
                    # And classes that name this one, which was taken for unchanged meanwhile.
                    for each in {*_members} - known:
                        del _members[each]
                    classes.add(base)
                    found += members
    return found


def _inside_function(function: FunctionType) -> Iterator[object]:
    """Iterate over a function's closed-over values, its defaults, and the function it decorates."""
    yield from gc.get_referents(*(function.__closure__ or ()))
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()


def _named_in(function: FunctionType) -> Iterator[object]:
    """Iterate over the globals that a function names, and over those of modules among them.

    Its trace reads the same. But there JAX takes an array of NumPy for what it has met before, so
    that arrays which were changed in place are looked for.
    """
    names: dict[str, None] = {}
    codes = [function.__code__]
    for code in codes:
        names |= dict.fromkeys(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    for name in (each for each in names if each in function.__globals__):
        value = function.__globals__[name]
        if not issubclass(type(value), ModuleType):
            yield value
        elif not _is_fixed(value.__name__):
            yield from (vars(value)[each] for each in names if each in vars(value))


def _inside(value: object) -> Iterator[object]:
    """Iterate over parts of a value. No code of its class is run, such as `__getattr__`."""
    kind = type(value)
    if issubclass(kind, HOLDERS):
        yield from gc.get_referents(value)
    with contextlib.suppress(AttributeError):
        yield from object.__getattribute__(value, "__dict__").values()
    for member in _slots_of(kind):  # type: ignore[arg-type]
        with contextlib.suppress(AttributeError):  # Not assigned yet.
            yield member.__get__(value, kind)


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: type) -> list[MemberDescriptorType]:
    """List the slots of a class; a class has those that it was made with."""
    members = [member for base in kind.__mro__ for member in vars(base).values()]
    return [member for member in members if type(member) is MemberDescriptorType]


# What a program computes.


def parts_of_program(program: ClosedJaxpr, results: object) -> Hashable:
    """Key of a traced program: its structure, and the contents of its constants.

    Args:
      program: The program.
      results: A tree that describes its results.
    """
    known: dict[int, Hashable] = {}

    def of(value: Any) -> Hashable:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            if id(value) not in known:
                # From JAX 0.11 on both are one class, with a `jaxpr` that is the program again.
                body = value.jaxpr if isinstance(value, ClosedJaxpr) else value
                consts = getattr(value, "consts", ())
                known[id(value)] = _parts_of_jaxpr(body, of), *map(of, consts)
            return known[id(value)]
        if type(value) in (tuple, list):
            return type(value), *map(of, value)
        return _part(value)

    return of(program), jax.tree.structure(results)


def _parts_of_jaxpr(jaxpr: Jaxpr, of: Callable[[object], Hashable]) -> Hashable:
    """Return the equations of a program, its variables numbered in their order."""
    number: dict[Var, int] = {}

    def atom(var: Any) -> Hashable:
        if isinstance(var, Literal):
            return var.aval, _part(var.val)
        return number.setdefault(var, len(number)), var.aval

    parts: list[Hashable] = [*map(atom, (*jaxpr.constvars, *jaxpr.invars))]
    for equation in jaxpr.eqns:
        # Functions that a program is made of are new in each trace.
        is_made = any(map(_has_program, equation.params.values()))
        told = [
            (name, of(each))
            for name, each in equation.params.items()
            if not (is_made and (isinstance(each, WrappedFun) or callable(each)))
        ]
        outs = [*map(atom, equation.outvars)]
        parts.append((equation.primitive, *map(atom, equation.invars), *outs, *told))
    return *parts, *map(atom, jaxpr.outvars)


def _has_program(value: object) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_program, value))
    return isinstance(value, Jaxpr | ClosedJaxpr)


def _part(value: Any) -> Any:
    """Key of a constant or a parameter of a program; numbers by their bits."""
    kind = type(value)
    if issubclass(kind, float | complex):
        return kind, np.asarray(value).tobytes()
    if kind in PLAIN or isinstance(value, type | np.dtype):
        return kind, value
    if isinstance(value, jax.core.Tracer):
        return kind
    if isinstance(value, jax.Array):
        if (seen := _arrays.get(id(value))) is None:
            is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
            whole = not is_key and value.is_fully_addressable and not value.is_deleted()
            seen = _part_of_array(np.asarray(value)) if whole else next(_numbers)
            _see(value, seen)
        return "array", seen, value.aval
    if isinstance(value, np.ndarray | np.generic):
        part = _part_of_array(np.asarray(value))
        if isinstance(value, np.ndarray) and (seen := _arrays.get(id(value))) != part:
            if seen is not None:
                # JAX takes an array that it has met in a loop for what it was.
                jax.clear_caches()
            _see(value, part)
        return part
    if kind is FunctionType:
        return value.__code__, *map(_part, _inside_function(value))
    if kind is MethodType:
        return _part(value.__func__), _part(value.__self__)
    if issubclass(kind, tuple | list):
        return kind, *map(_part, value)
    if issubclass(kind, Mapping):
        return kind, *((_part(key), _part(each)) for key, each in value.items())
    if dataclasses.is_dataclass(kind):
        return kind, *(_part(getattr(value, each.name, None)) for each in dataclasses.fields(kind))
    if kind.__hash__ not in (None, object.__hash__):
        return kind, value
    return kind, _arrays.get(id(value)) or _see(value, next(_numbers))


def _part_of_array(array: np.ndarray) -> Hashable:
    if array.dtype.hasobject:
        return tuple(map(id, array.flat))
    # What is broadcast is looked at once: such an array may be larger than the memory.
    once = array[tuple(slice(None if stride else 1) for stride in array.strides)]
    flat = np.ascontiguousarray(once).reshape(-1).view("uint8")
    return array.dtype, array.shape, hashlib.blake2b(flat.data).digest()


def _see(value: object, seen: Hashable) -> Hashable:
    """Keep the key of an object while it is alive, and return it."""
    if id(value) not in _arrays:
        weakref.finalize(value, _arrays.pop, id(value)).atexit = False
    _arrays[id(value)] = seen
    return seen
