"""The decorator `checked`: declared types are read at the first call, and checked at every call."""

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from numpy.typing import ArrayLike

from fedjax_sim.core.checking.kinds import Limit, OneOf, Shape

TargetT = TypeVar("TargetT", bound=Callable[..., Any])
NUMPYS = ("numpy._typing", "<class 'numpy._typing")
"""How the types begin that NumPy's `ArrayLike` is a union of."""
NAMED_TYPES: Any = getattr(typing, "TypeAliasType", ())
"""The class of types that are named by a statement `type`, as NumPy's are from Python 3.12 on."""
CONTAINERS = ("builtins", "collections.abc")
NO_LISTS = (str, bytes, Mapping)
KEY, KEYS, TREE, SETTINGS = "a random key", "random keys", "a pytree of arrays", "settings"
"""Words of annotations for random keys of JAX, for models and for settings."""
CHECK = "__check_known__"
"""Name of the method of settings structs that checks their values."""
MOST_WHOLE = 2**63 - 1
"""Largest whole number that an array can hold."""
Lengths = dict[str, int]
"""Lengths of the dimensions that have been seen in a call, by letter."""


class Kind(NamedTuple):
    """The values that an annotation allows.

    Attributes:
      accepts: Whether a value is allowed, given the lengths of dimensions seen so far in the call.
      words: What is allowed, in words.
      parse: Reads a value from the command line's text; None if there is no such text.
    """

    accepts: Callable[[object, Lengths], bool]
    words: str
    parse: Callable[[str], object] | None = None


def checked(target: TargetT) -> TargetT:
    """Check the arguments of every call against the types that the signature declares.

    Args:
      target: A function, or a class whose constructor is to be checked.

    Returns:
      The function, or the same class. Calls raise ConfigError, which names the argument, its value
      and what is allowed, before anything else happens.
    """
    if not isinstance(target, type):
        return typing.cast(TargetT, _guard(target, target))
    # A NamedTuple has no __init__. `_make`, by which `_replace` works, passes by its __new__.
    maker = "__new__" if issubclass(target, tuple) else "__init__"
    setattr(target, maker, _guard(getattr(target, maker), target))
    return target


def checked_all(module: str) -> None:
    """Check the arguments of every call of a module's public functions, from here on.

    Args:
      module: The module's `__name__`. This is called after the last of its functions.
    """
    held = vars(sys.modules[module])
    for name, value in list(held.items()):
        is_public = inspect.isfunction(value) and not name.startswith("_")
        if is_public and value.__module__ == module:
            held[name] = checked(value)


def unchecked(function: TargetT) -> TargetT:
    """Return a checked function without its checks, for arguments that were checked before.

    Args:
      function: A function that `checked` returned.
    """
    return function.__wrapped__  # type: ignore[attr-defined]


def _guard(function: Callable[..., Any], owner: object) -> Callable[..., Any]:
    """Return a function that checks its arguments and calls `function`."""
    read = functools.cache(lambda: (inspect.signature(function), _kinds_of(function, owner)))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        signature, kinds = read()
        try:
            given = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # Python says which argument is too much.
        lengths: Lengths = {}
        # In the order of the declaration, as a limit may be the length of an earlier argument.
        for name, value in given.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for place, each in enumerate(value, len(args) - len(value) + 1):
                    _check(f"argument {place}", each, kinds[name], lengths)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                for further, each in value.items():
                    if (allowed := kinds.get(further, kinds.get(name))) is None:
                        words = f"{function.__qualname__}() got an unexpected keyword argument"
                        raise TypeError(f"{words} {further!r}")
                    _check(further, each, allowed, lengths)
            else:
                _check(name, value, kinds[name], lengths)
        return function(*args, **kwargs)

    call.__checked__ = read  # type: ignore[attr-defined]
    return call


def _check(name: str, value: object, kind: Kind, lengths: Lengths) -> None:
    """Check one argument, and the settings in it."""
    if kind is OPEN:
        return
    if kind is not ANYTHING and not kind.accepts(value, lengths):
        from fedjax_sim.core.checking.errors import ConfigError

        named = re.findall(r"[^\[\], ]+", " ".join(re.findall(r"\[.*?\]|below \w+", kind.words)))
        known = [f"{dim} = {length}" for dim, length in lengths.items() if dim in named]
        allowed = kind.words + (f" with {', '.join(known)}" * bool(known))
        if isinstance(value, int) and abs(value) > MOST_WHOLE:
            allowed += ", of 64 bits"
        if isinstance(value, types.ModuleType):  # Such as that of a system in its place.
            module = value.__name__.rpartition(".")[2]
            own = {name: held for name, held in vars(value).items() if _is_own(held)}
            meant = [name for name, held in own.items() if kind.accepts(held, lengths)]
            allowed += f" (did you mean {module}.{meant[0]}?)" if len(meant) == 1 else ""
        raise ConfigError(name, value, allowed)
    if hasattr(type(value), CHECK):
        getattr(type(value), CHECK)(value)


def _kinds_of(function: Callable[..., Any], owner: Any) -> dict[str, Kind]:
    """Read the kinds of a function's arguments; of a record's class those of its fields."""
    is_record = owner is not function and (
        issubclass(owner, tuple) or dataclasses.is_dataclass(owner)
    )
    hints = hints_of(owner if is_record else function)
    is_pytree = dataclasses.is_dataclass(owner) and hasattr(owner, "replace")
    for field in dataclasses.fields(owner) if is_pytree else ():
        if field.metadata.get("pytree_node", True):
            hints.pop(field.name, None)  # JAX makes pytrees with leaves of any kind.
    names = list(inspect.signature(function).parameters)
    kinds = {name: kind_of(hints[name]) if name in hints else ANYTHING for name in names}
    if owner is not function:
        kinds[names[0]] = OPEN  # An object that is being made is not looked at.
    for name, hint in hints.items():
        if typing.get_origin(hint) is typing.Unpack:  # Further arguments are listed by name.
            del kinds[name]
            listed = hints_of(typing.get_args(hint)[0])
            kinds |= {each: kind_of(of_each) for each, of_each in listed.items()}
    return kinds


def hints_of(source: object) -> dict[str, Any]:
    """Read annotations, also those with names that are imported for type checkers alone.

    Args:
      source: A function or a class.

    Returns:
      The annotations by name.
    """
    try:
        return typing.get_type_hints(source, include_extras=True)
    except NameError:
        module = sys.modules[source.__module__]
        names = dict(vars(module))
        # Python's `ast.parse` fails now and then if two threads call it.
        blocks = re.findall(r"^if TYPE_CHECKING:\n((?: .*\n|\n)+)", inspect.getsource(module), re.M)
        exec(textwrap.dedent("".join(blocks)), names)
        return typing.get_type_hints(source, names, include_extras=True)


def kind_of(annotation: Any) -> Kind:
    """Read the values that an annotation allows.

    Args:
      annotation: A type, perhaps with limits or a shape.

    Returns:
      The test of a value, with its words and reader of text.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if annotation == ArrayLike:
        return ARRAY
    if origin is typing.Annotated:
        return functools.reduce(_narrowed, annotation.__metadata__, kind_of(args[0]))
    if origin in (types.UnionType, typing.Union):
        return _kind_of_union(args)
    if origin is typing.Literal:
        return _kind_of_names(args)
    kind = origin or annotation
    if isinstance(kind, TypeVar):
        return OPEN
    if isinstance(kind, NAMED_TYPES):
        return kind_of(kind.__value__)
    if kind in UNCHECKED:
        return ANYTHING
    if not isinstance(kind, type):
        raise TypeError(f"The annotation {annotation} cannot be checked.")
    if kind is type:
        return Kind(lambda value, _: isinstance(value, type), "a class")
    if kind.__module__.partition(".")[0] in ("numpy", "jax", "jaxlib") and hasattr(kind, "ndim"):
        return ARRAY
    if issubclass(kind, os.PathLike):
        return Kind(_accepts_path, "a path")
    if kind is collections.abc.Callable:
        return Kind(lambda value, _: callable(value), "a function")
    if issubclass(kind, Mapping):
        return _kind_of_mapping(*(args or (Any, Any)))
    if issubclass(kind, collections.abc.Iterable) and kind.__module__ in CONTAINERS:
        return _kind_of_several(kind, args)
    name = f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"
    if getattr(kind, "_is_protocol", False):
        bases = [base for base in kind.__mro__ if getattr(base, "_is_protocol", False)]
        members = {
            member
            for base in bases
            for member in {**vars(base), **inspect.get_annotations(base)}
            if not member.startswith("_")
        }
        # Looked up in the class where possible, as a property may take long to compute.
        return Kind(
            lambda value, _: all(
                hasattr(type(value), each) or each in getattr(value, "__dict__", ())
                for each in members
            ),
            f"{name}, with {', '.join(sorted(members))}",
        )
    return Kind(lambda value, _: isinstance(value, kind), name)


def _narrowed(kind: Kind, narrow: object) -> Kind:
    """Narrow a kind by an annotation's further conditions."""
    if isinstance(narrow, Limit):
        words = kind.words.replace("a number", "a finite number")
        if "array" in words:
            words += f" of {'whole' if narrow.is_whole else 'finite'} numbers"
        return kind._replace(
            accepts=lambda value, lengths: (
                kind.accepts(value, lengths)
                and (_is_traced(value) or narrow.within(lengths).holds(value))
            ),
            words=f"{words} {narrow}".rstrip(),
        )
    if isinstance(narrow, OneOf):
        return _kind_of_names(narrow.names)
    if isinstance(narrow, Shape):
        return Kind(
            lambda value, lengths: kind.accepts(value, lengths) and narrow.fits(value, lengths),
            f"{kind.words} {narrow}",
        )
    return NAMED.get(narrow, kind) if isinstance(narrow, str) else kind


def _kind_of_names(names: Sequence[str]) -> Kind:
    """Describe a text that is one of a few."""

    def accepts(value: object, _: Lengths) -> bool:
        return isinstance(value, str) and value in names

    def parse(text: str) -> str:
        return names[names.index(text)]

    return Kind(accepts, "one of " + ", ".join(map(str, names)), parse)


def _kind_of_union(args: Sequence[object]) -> Kind:
    """Join kinds. A union has an array where it has all that NumPy makes an array of."""
    kinds = [kind_of(each) for each in args if not str(each).startswith(NUMPYS)]
    alike = [SIMPLE[each] for each in (bool, int, float, complex, str, bytes)]
    for kind in (OPEN, ANYTHING):
        if kind in kinds:
            return kind
    if ARRAY in kinds or len(kinds) < len(args):
        kinds = [kind for kind in kinds if kind not in (*alike, ARRAY)] + [ARRAY]
    if any(kind.words == "a path" for kind in kinds):
        kinds.remove(SIMPLE[str])
    kinds.sort(key=lambda kind: kind is SIMPLE[None])
    words = list(dict.fromkeys(kind.words for kind in kinds))

    def parse(text: str) -> Any:
        for kind in kinds:
            with contextlib.suppress(ValueError):
                return _parsed(kind, text)
        raise ValueError(text)

    return Kind(
        lambda value, lengths: any(kind.accepts(value, lengths) for kind in kinds),
        ", ".join([*words[:-2], " or ".join(words[-2:])]),
        parse,
    )


def _kind_of_mapping(key: object, value: object) -> Kind:
    """Describe a mapping by the kinds of its keys and values."""
    keys, values = kind_of(key), kind_of(value)
    return Kind(
        lambda given, _: (
            isinstance(given, Mapping)
            and all(keys.accepts(k, {}) and values.accepts(v, {}) for k, v in given.items())
        ),
        f"a mapping from {keys.words} to {values.words}",
    )


def _kind_of_several(kind: type, args: Sequence[object]) -> Kind:
    """Describe a list, a tuple, an array of one dimension, or another iterable.

    Elements are looked at only if this does not use them up.
    """
    if kind is tuple and args and args[-1] is not Ellipsis:
        kinds = [kind_of(each) for each in args]
        return Kind(
            lambda value, _: (
                _is_list(value)
                and len(value) == len(kinds)
                and all(each.accepts(item, {}) for each, item in zip(kinds, value, strict=True))
            ),
            f"{len(kinds)} values: " + ", ".join(each.words for each in kinds),
            lambda text: tuple(map(_parsed, kinds, text.split("+"))),
        )
    of = kind_of(args[0]) if args else ANYTHING
    is_open = not issubclass(kind, Sequence)  # To sets and iterators too.
    return Kind(
        lambda value, _: (
            of is ANYTHING or all(of.accepts(item, {}) for item in _elements(value))
            if _is_list(value)
            else is_open
            and isinstance(value, kind)
            and not isinstance(value, NO_LISTS)
            and _dims(value) != 0
        ),
        "a list" if of is ANYTHING else f"a list, each {of.words}",
        lambda text: tuple(_parsed(of, word) for word in text.split("+")),
    )


def _elements(values: object) -> Any:
    """Return the elements of a list, or of an array as Python has them."""
    return values.tolist() if hasattr(values, "tolist") else values


def _dims(value: object) -> int | None:
    """Return an array's number of dimensions; None of anything else."""
    found = getattr(value, "ndim", None)
    return found if isinstance(found, int) and not isinstance(value, type) else None


def _is_list(value: object) -> typing.TypeGuard[Sequence[object]]:
    return bool(_dims(value)) or (isinstance(value, Sequence) and not isinstance(value, NO_LISTS))


def _is_own(value: object) -> bool:
    return type(value).__module__.startswith("fedjax_sim.")


def _is_traced(value: object) -> bool:
    jax = sys.modules.get("jax")  # Without JAX nothing is traced.
    return jax is not None and isinstance(value, jax.core.Tracer)


def _kind_of_scalar(value: object) -> str:
    """Return NumPy's letter for the kind of a single number, such as "f"; "" if it is none."""
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int | float):
        return "f" if isinstance(value, float) else "i"
    dtype = getattr(value, "dtype", None)
    if dtype is None or _dims(value) != 0:
        return ""
    return "f" if str(dtype).startswith(("bfloat", "float")) else getattr(dtype, "kind", "")


def _accepts_whole(value: object, _: Lengths) -> bool:
    is_whole = _kind_of_scalar(value) in ("i", "u")
    return is_whole and (not isinstance(value, int) or abs(value) <= MOST_WHOLE)


def _accepts_number(value: object, _: Lengths) -> bool:
    is_real = _kind_of_scalar(value) == "f" and (_is_traced(value) or bool(value == value))
    return is_real or _accepts_whole(value, _)


def _accepts_array(value: object, _: Lengths) -> bool:
    """Tell whether a value is an array or a number, or is listed as one."""
    if isinstance(value, bool | int | float):
        return isinstance(value, float) or abs(value) <= MOST_WHOLE
    if isinstance(value, type | types.ModuleType):
        return False
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        is_key = str(value.dtype).startswith("key<")
        return not (is_key or getattr(value.dtype, "kind", "") in "Oc")
    if not isinstance(value, list | tuple):
        return hasattr(value, "__array__")
    import numpy as np

    try:
        return np.asarray(value).dtype.kind in "biufUSV"
    except (TypeError, ValueError):  # Ragged, or traced.
        return bool(value) and all(_is_traced(each) for each in value)


def _accepts_key(value: object, _: Lengths) -> bool:
    return _shape_of_keys(value) == ()


def _shape_of_keys(value: object) -> tuple[int, ...] | None:
    """Return the shape of an array of random keys; None of anything else."""
    dtype, shape = str(getattr(value, "dtype", "")), getattr(value, "shape", ())
    if dtype == "uint32" and shape[-1:] == (2,):  # The older kind of keys.
        return shape[:-1]
    return shape if dtype.startswith("key<") else None


def _accepts_tree(value: object, _: Lengths) -> bool:
    """Tell whether a value is one model or more: a pytree of arrays."""
    import jax

    return value is not None and all(
        _dims(leaf) is not None and getattr(getattr(leaf, "dtype", None), "kind", "O") not in "OUSM"
        for leaf in jax.tree.leaves(value)
    )


def _accepts_path(value: object, _: Lengths) -> bool:
    if isinstance(value, str):
        return bool(value) and "\0" not in value
    return isinstance(value, os.PathLike)


def _parsed(kind: Kind, text: str) -> Any:
    """Read a value from the command line's text."""
    if kind.parse is None:
        raise ValueError(text)
    return kind.parse(text)


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


OPEN = Kind(lambda value, _: True, "anything")
"""The kind of a type variable: the function itself checks the argument."""
ANYTHING = Kind(lambda value, _: True, "anything")
ARRAY = Kind(_accepts_array, "an array")
NAMED = {
    KEY: Kind(_accepts_key, "a single random key, such as jax.random.key(0)"),
    KEYS: Kind(lambda value, _: len(_shape_of_keys(value) or ()) == 1, "random keys, `[S]`"),
    TREE: Kind(_accepts_tree, "a model, a pytree of arrays"),
    SETTINGS: Kind(
        lambda value, _: dataclasses.is_dataclass(value) and not isinstance(value, type),
        "settings, an instance of a class with the decorator `settings.struct`",
    ),
}
"""The kinds that annotations name."""
SIMPLE: dict[Any, Kind] = {
    Any: ANYTHING,
    None: Kind(lambda value, _: value is None, "None"),
    bool: Kind(lambda value, _: _kind_of_scalar(value) == "b", "true or false", _parse_bool),
    int: Kind(_accepts_whole, "a whole number", int),
    float: Kind(_accepts_number, "a number", float),
    complex: Kind(lambda value, _: isinstance(value, complex), "a complex number"),
    str: Kind(lambda value, _: isinstance(value, str), "text", str),
    bytes: Kind(lambda value, _: isinstance(value, bytes), "bytes"),
}
SIMPLE[type(None)] = SIMPLE[None]
UNCHECKED = (
    object,
    collections.abc.Hashable,
    typing.Self,
    typing.ClassVar,
    typing.Unpack,
    dataclasses.KW_ONLY,
)
"""Annotations that every argument satisfies, or that no argument has."""
