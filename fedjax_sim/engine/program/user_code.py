"""Which code a program was traced from, so that edited code is traced again.

JAX keeps what it has traced for static arguments of equal value. A class or a function that is
defined again is another value. One that is changed in place is not: a method that is assigned to
its class, as in `Problem.loss = other`, or a function whose code a notebook's `%autoreload`
replaces. The number of the code makes a difference there.
"""

import contextlib
import dataclasses
import functools
import itertools
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

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


_numbers, _lock = itertools.count(1), threading.Lock()


def number_of_code(*used: Any) -> int:
    """Number the code of users that some values run when they are called.

    What is noticed: other code, defaults and plain constants (numbers, texts, None) of functions,
    of methods and properties of classes and their bases, of the functions and values that these
    have closed over, and of those that they name in their modules. What is not: the code of this
    package and of installed ones, unless a class has got another method; other values that
    functions read, such as arrays; and what code finds in another way, such as attributes of
    objects and items of lists.

    Args:
      used: Functions, classes, and dataclasses, of which numbers and arrays are left out.

    Returns:
      A number from 1, the same for equal code. It keeps no arrays and no functions alive.
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
        elif id(value) not in known:
            known.add(id(value))
            if kind is not FunctionType:
                rest += _inside(value)
                continue
            # Decorators of any package keep what they decorate.
            rest += _closed_over(value)
            if "__wrapped__" in vars(value):
                rest.append(value.__wrapped__)
            if _is_edited(value.__code__):
                yield value.__code__
                rest += value.__defaults__ or ()
                rest += (value.__kwdefaults__ or {}).values()
                rest += _named(value.__code__, value.__globals__)


def _is_edited(code: CodeType) -> bool:
    """Tell whether code is a user's. What dataclasses generate follows from their fields."""
    return not (code.co_filename.startswith(FIXED) or code.co_qualname.startswith("__create_fn__"))


def _closed_over(function: Callable[..., Any]) -> Iterator[Any]:
    """Iterate over what a function has closed over."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # Not assigned yet.
            yield cell.cell_contents


def _named(code: CodeType, names: Mapping[str, Any]) -> Iterator[Any]:
    """Iterate over what code names in its module, and in modules that it names."""
    wanted: set[str] = set()
    codes = [code]
    while codes:
        each = codes.pop()
        wanted.update(each.co_names)
        codes += [const for const in each.co_consts if isinstance(const, CodeType)]
    for name in sorted(wanted & names.keys()):
        value = names[name]
        if not isinstance(value, ModuleType):
            yield value
        elif not _is_library(value.__name__):
            yield from (vars(value)[each] for each in sorted(wanted & vars(value).keys()))


def _inside(value: Any) -> Collection[Any]:
    """List the functions that a value may run."""
    if isinstance(value, type):
        return _members(value)
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
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
    return getattr(value, "__wrapped__", None), type(value)


def _parts_with_code(value: Any) -> Iterator[Any]:
    """Iterate over the fields of a dataclass that are no data, and over elements of tuples."""
    for field in dataclasses.fields(value):
        part = getattr(value, field.name, None)
        for each in part if isinstance(part, tuple | list) else (part,):
            if callable(each) or dataclasses.is_dataclass(each):
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
