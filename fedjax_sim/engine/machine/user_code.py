"""Which code a program was traced from, so that edited code is traced again.

JAX keeps what it has traced for static arguments of equal value. A class or a function that is
defined again is another value. One that is changed in place is not: a method that is assigned to
its class, as in `Problem.loss = other`, or a function whose code a notebook's `%autoreload`
replaces. The number of the code makes a difference there.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

FIXED = (
    str(Path(__file__).parents[2]),
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
)
"""Folders of this package and of what is installed, in which nobody edits code while it runs."""


LIBRARIES = {*sys.stdlib_module_names, "chex", "flax", "jax", "jaxlib", "numpy", "optax"}
"""Modules whose classes are not looked at."""


PLAIN = (bool, int, float, complex, str, bytes, type(None))
OWN = f"{__name__.partition('.')[0]}."
MOST_NUMBERED = 512
"""Codes whose numbers are kept; one that is seen again later gets a new number."""


WITHOUT_ATTRIBUTES = (type, ModuleType, FunctionType, MethodType, np.ndarray, jax.Array)
"""Kinds of values whose attributes, if any, are looked at in another way or not at all."""

_numbers, _lock = itertools.count(1), threading.Lock()
_arrays: dict[int, tuple["weakref.ref[Any]", Any]] = {}
"""Arrays that are alive, by their address: numbers of JAX's, and contents of NumPy's."""


def number_of_code(*used: Any) -> int:
    """Number the code of users that some values run when they are called.

    What is noticed: other code, defaults, plain constants (numbers, texts, None) and arrays of
    functions, of methods and properties of classes and their bases, of the functions and values
    that these have closed over, and of those that they name in their modules; also in lists and
    mappings, and in attributes of objects that the code names; and what traces and tables of
    clients hold. What is not: the code of this
    package and of installed ones, unless a class has got another method; and what code finds in
    another way, such as sets, files, arrays of objects and what `getattr` returns.

    Args:
      used: Functions, classes, and dataclasses, of which numbers and arrays are left out.

    Returns:
      A number from 1, the same for equal code. It keeps no arrays and no functions alive. NumPy's
      arrays are compared by their contents, and JAX's, which nobody changes, by which they are.
    """
    with _lock:
        return _number(tuple(_parts_of(used)))


@functools.lru_cache(maxsize=MOST_NUMBERED)
def _number(parts: tuple[Hashable, ...]) -> int:
    return next(_numbers)


def _parts_of(used: tuple[Any, ...]) -> Iterator[Hashable]:
    """Iterate over codes and constants, each once, in an order that the values decide."""
    rest, known = list(used), set()
    while rest:
        value = rest.pop()
        kind = type(value)
        if kind in PLAIN:
            yield kind, value
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            yield from _parts_of_array(value)
        elif id(value) not in known:
            known.add(id(value))
            if kind is not FunctionType:
                rest += _inside(value)
                continue
            # Decorators of any package keep what they decorate.
            read = [*_closed_over(value)]
            if "__wrapped__" in vars(value):
                rest.append(value.__wrapped__)
            if _is_edited(value.__code__):
                yield value.__code__
                read += value.__defaults__ or ()
                read += (value.__kwdefaults__ or {}).values()
                names = _names_in(value.__code__)
                read += _named(names, value.__globals__)
                read += _attributes(read, names)
            rest += read


def _parts_of_array(array: Any) -> Iterator[Hashable]:
    """Tell arrays apart; those that a trace stands for are known to it."""
    if isinstance(array, jax.core.Tracer):
        return
    if isinstance(array, jax.Array):
        yield "array", _seen_as(array) or _see(array, next(_numbers))
        return
    flat = np.ascontiguousarray(array)
    if not flat.dtype.hasobject:
        parts = flat.dtype.str, flat.shape, hashlib.blake2b(flat.view("uint8").data).digest()
        if isinstance(array, np.ndarray) and _seen_as(array) != parts:
            if _seen_as(array) is not None:
                # JAX takes an array that it has met in a loop for what it was.
                jax.clear_caches()
            _see(array, parts)
        yield parts


def _seen_as(array: Any) -> Any:
    """Look up what an array that is alive was seen as; None if it was not seen."""
    ref, seen = _arrays.get(id(array), (None, None))
    return seen if ref is not None and ref() is array else None


def _see(array: Any, seen: Any) -> Any:
    """Keep what an array is seen as while it is alive, and return that."""
    place = id(array)

    def forget(gone: "weakref.ref[Any]") -> None:
        if place in _arrays and _arrays[place][0] is gone:
            del _arrays[place]

    _arrays[place] = weakref.ref(array, forget), seen
    return seen


def _is_edited(code: CodeType) -> bool:
    """Tell whether code is a user's. What dataclasses generate follows from their fields."""
    return not (code.co_filename.startswith(FIXED) or code.co_qualname.startswith("__create_fn__"))


def _closed_over(function: Callable[..., Any]) -> Iterator[Any]:
    """Iterate over what a function has closed over."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # Not assigned yet.
            yield cell.cell_contents


def _names_in(*codes: CodeType) -> set[str]:
    """Collect the names of globals and of attributes in code."""
    names: set[str] = set()
    rest = [*codes]
    while rest:
        each = rest.pop()
        names.update(each.co_names)
        rest += [const for const in each.co_consts if isinstance(const, CodeType)]
    return names


def _named(wanted: set[str], names: Mapping[str, Any]) -> Iterator[Any]:
    """Iterate over what code names in its module, and in modules that it names."""
    for name in sorted(wanted & names.keys()):
        value = names[name]
        if not isinstance(value, ModuleType):
            yield value
        elif not _is_library(value.__name__):
            yield from (vars(value)[each] for each in sorted(wanted & vars(value).keys()))


def _attributes(values: Collection[Any], wanted: set[str]) -> list[Any]:
    """List the attributes that code names of objects, and of those that stand in these."""
    rest, found, known = [*values], [], set()
    while rest:
        value = rest.pop()
        if isinstance(value, WITHOUT_ATTRIBUTES) or id(value) in known:
            continue
        known.add(id(value))
        held = getattr(value, "__dict__", {})
        inside = [held[name] for name in sorted(wanted & held.keys())]
        rest += inside
        found += inside
    return found


def _inside(value: Any) -> Collection[Any]:
    """List the functions that a value may run."""
    if isinstance(value, type):
        return _members(value)
    if isinstance(value, MethodType):
        code = getattr(value.__func__, "__code__", None)
        read = _attributes([value.__self__], _names_in(code)) if code and _is_edited(code) else ()
        return value.__func__, value.__self__, *read
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, tuple | list):
        return type(value), *value
    if isinstance(value, Mapping):
        return tuple(value.values())
    if dataclasses.is_dataclass(value):
        return type(value), *_parts_with_code(value)
    if hasattr(value, "made_of_attributes"):  # A trace, or a table of clients.
        return vars(value).values()
    members = _members(type(value))
    codes = [each.__code__ for each in members if type(each) is FunctionType]
    return (
        getattr(value, "__wrapped__", None),
        type(value),
        *_attributes([value], _names_in(*codes)),
    )


def _parts_with_code(value: Any) -> Iterator[Any]:
    """Iterate over the fields of a dataclass that are no data, and over elements of tuples.

    Data that are no leaves, such as those of a trace, are parts of the program.
    """
    for field in dataclasses.fields(value):
        part = getattr(value, field.name, None)
        for each in part if isinstance(part, tuple | list) else (part,):
            is_code = callable(each) or dataclasses.is_dataclass(each)
            if is_code or hasattr(each, "made_of_attributes"):
                yield each


def _members(kind: type) -> list[Any]:
    """List what a class and its bases define, of classes of this package what is not its own."""
    found: list[Any] = []
    for base in kind.__mro__:
        if _is_library(base.__module__):
            continue
        members = list(vars(base).values())
        if base.__module__.startswith(OWN):
            members = [
                each
                for each in members
                if type(each) is FunctionType and not each.__module__.startswith(OWN)
            ]
        found += members
    return found


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES
