"""Check arguments of calls and values of settings, before anything is compiled.

`checked` is for the functions and constructors that users call, `checked_all` for all public
functions of a module. A signature such as

    @checked
    def flip(labels: Annotated[Array, shape("n")], share: Probability, *, seed: Seed) -> Array:

is then all that a function needs: a call with `share=5` is refused with one sentence. Settings
structs among the arguments are checked too, see `check`. JAX rebuilds pytrees from leaves of any
kind, so of those only static fields are checked when they are made.
"""

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from fedjax_sim.core.settings import declared, names
from fedjax_sim.core.settings.declared import Kind, Lengths
from fedjax_sim.core.settings.errors import ConfigError

TargetT = TypeVar("TargetT", bound=Callable[..., Any])
MOST_COUNTED = 2**31 - 1
"""Largest whole number of a setting, as the engine counts in 32 bits."""
Seen = set[tuple[type, str, int]]
"""Values that were checked: class and name of the field, and the object's number."""


def checked(target: TargetT) -> TargetT:
    """Check the arguments of every call against the types that the signature declares.

    Args:
      target: A function, or a class whose constructor is to be checked.

    Returns:
      The function, or the same class. Calls raise ConfigError, which names the argument, its value
      and what is allowed, before anything else happens.
    """
    if not isinstance(target, type):
        return typing.cast(TargetT, guard(target, target))
    # A NamedTuple has no __init__. `_make`, by which `_replace` works, passes by its __new__.
    maker = "__new__" if issubclass(target, tuple) else "__init__"
    setattr(target, maker, guard(getattr(target, maker), target))
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


def guard(
    function: Callable[..., Any],
    owner: object,
    within: Callable[[Mapping[str, object]], contextlib.AbstractContextManager] | None = None,
) -> Callable[..., Any]:
    """Return a function that checks its arguments and calls `function`.

    Args:
      function: The function.
      owner: The function, or the class that it makes.
      within: From the arguments by name to a context in which the function is called.
    """
    read = functools.cache(lambda: (inspect.signature(function), _Kinds(function, owner)))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        signature, by_name = read()
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
                    _check_argument(f"argument {place}", each, by_name[name], lengths)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                for further, each in value.items():
                    declared_as = further if further in by_name.hints else name
                    if declared_as not in by_name.hints:
                        words = f"{function.__qualname__}() got an unexpected keyword argument"
                        raise TypeError(f"{words} {further!r}")
                    _check_argument(further, each, by_name[declared_as], lengths)
            else:
                _check_argument(name, value, by_name[name], lengths)
        if within is None:
            return function(*args, **kwargs)
        with within(signature.bind_partial(*args).arguments | kwargs):
            return function(*args, **kwargs)

    call.__checked__ = read  # type: ignore[attr-defined]
    return call


def _check_argument(name: str, value: object, kind: Kind, lengths: Lengths) -> None:
    """Check one argument, and the settings in it."""
    if kind is declared.OPEN:
        return
    if kind is not declared.ANYTHING and not kind.accepts(value, lengths):
        raise _refusal(name, value, kind, lengths)
    if hasattr(type(value), names.ASSUMED):
        check_known(value)


def _refusal(name: str, value: object, kind: Kind, lengths: Lengths) -> ConfigError:
    """Return the error for an argument that is not of its kind."""
    named = re.findall(r"[^\[\], ]+", " ".join(re.findall(r"\[.*?\]|below \w+", kind.words)))
    known = [f"{dim} = {length}" for dim, length in lengths.items() if dim in named]
    allowed = kind.words + (f" with {', '.join(known)}" * bool(known))
    if isinstance(value, int) and abs(value) > declared.MOST_WHOLE:
        allowed += ", of 64 bits"
    if isinstance(value, types.ModuleType):  # Such as that of a system in its place.
        module = value.__name__.rpartition(".")[2]
        meant = [
            name
            for name, held in vars(value).items()
            if type(held).__module__.startswith("fedjax_sim.") and kind.accepts(held, lengths)
        ]
        if len(meant) == 1 or "system" in meant:  # A family's module has several systems.
            which = "system" if "system" in meant else meant[0]
            allowed += f" (did you mean {module}.{which}?)"
    return ConfigError(name, value, allowed)


class _Kinds(dict[str, Kind]):
    """Kinds of a function's arguments, each read from its annotation when it is first given.

    Attributes:
      hints: The annotations; of a record's class those of its fields.
    """

    def __init__(self, function: Callable[..., Any], owner: Any):
        is_class = owner is not function
        is_record = is_class and (issubclass(owner, tuple) or dataclasses.is_dataclass(owner))
        hints = declared.hints_of(owner if is_record else function)
        is_pytree = dataclasses.is_dataclass(owner) and hasattr(owner, "replace")
        for field in dataclasses.fields(owner) if is_pytree else ():
            if field.metadata.get("pytree_node", True):
                hints.pop(field.name, None)  # JAX makes pytrees with leaves of any kind.
        parameters = list(inspect.signature(function).parameters)
        for name in parameters:
            hint = hints.setdefault(name, Any)
            if typing.get_origin(hint) is typing.Unpack:  # Further arguments are listed by name.
                del hints[name]
                hints |= declared.hints_of(typing.get_args(hint)[0])
        if is_class:
            hints[parameters[0]] = TargetT  # An object that is being made is not looked at.
        self.hints = hints

    def __missing__(self, name: str) -> Kind:
        return self.setdefault(name, declared.kind_of(self.hints[name]))


def check(hyper: object) -> None:
    """Check every field, and then combinations of fields by `check_together` if it is defined.

    Settings that a struct has fixed must be as it fixed them, and settings that have no effect at
    the given choices must be left at their defaults or those of a preset, see `idle_of`.

    Raises:
      ConfigError: If a value or a combination of values is not allowed.
    """
    check_all([hyper])


def check_all(hypers: Sequence[object]) -> None:
    """Check settings of one struct as `check` does, but common values of many settings only once.

    A setting may be other than its default if it has an effect in one of the `hypers` at least.
    """
    seen: Seen = set()
    for hyper in hypers:
        _check_fields(hyper, seen)
    if hypers:
        _refuse_idle(hypers)
    for hyper in hypers:
        _check_together(hyper)


def _check_together(hyper: object) -> None:
    if hasattr(hyper, "check_together"):
        hyper.check_together()


def _refuse_idle(hypers: Sequence[object]) -> None:
    """Refuse a setting that has no effect in any of several settings, and is not at its default."""
    kind, idle = type(hypers[0]), names.idle_of(hypers[0])
    for name in idle:
        top = name.partition(".")[0]  # Most points of a sweep share a group.
        for hyper in {id(getattr(hyper, top)): hyper for hyper in hypers}.values():
            if not names.is_given(hyper, name):
                continue
            value, usual = names.value_of(hyper, name), names.usual_values(kind, name)
            if not any(_is_same(value, each) for each in usual):
                if all(name in names.idle_of(hyper) for hyper in hypers):
                    why = names.why_idle(hypers[0], idle[name])
                    allowed = f"left at {names.default_text(names.fields(kind)[name])} {why}"
                    raise ConfigError(name, value, allowed)
                break


def _is_same(value: object, default: object) -> bool:
    """Tell whether a value is the default, or an array of it."""
    return value is default or (default is not None and not np.any(np.asarray(value != default)))


def check_left(hyper: object, values: Mapping[str, object], why: str) -> None:
    """Check that settings are left at the only values that another choice allows.

    Args:
      hyper: A settings struct, which need not have all of them.
      values: The values by the names of the settings.
      why: What follows a value in the sentence of an error.

    Raises:
      ConfigError: If a setting has another value.
    """
    for name, only in values.items():
        value = names.value_of(hyper, name) if name in names.fields(type(hyper)) else only
        if not _is_same(value, only):
            raise ConfigError(name, value, f"{only!r} {why}")


def check_known(value: object) -> None:
    """Check the settings among the arguments of a call, unless some are traced.

    Settings without effect are accepted, as the points of a sweep have them.

    Raises:
      ConfigError: If the value is not allowed, or a combination of values.
    """
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        # While something is traced, JAX would trace what a check computes.
        on_host = lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf  # noqa: E731
        known = jax.tree.map(on_host, value)
        _check_fields(known, set())
        _check_together(known)


def _check_fields(hyper: object, seen: Seen) -> None:
    """Check every field alone, and every group, unless its very value was seen before."""
    kind: type = type(hyper)
    table = names.table_of(kind)
    for name, field in table.own.items():
        value = getattr(hyper, name)
        if (kind, name, id(value)) not in seen:
            seen.add((kind, name, id(value)))
            if "group" in field.metadata:
                check_kind(field, value)
                _check_group(field, value, seen)
            else:
                _check_setting(name, value, field.metadata)
    for field in table.fixed:
        value = getattr(hyper, field.name)
        if not _is_same(value, field.default):
            given = getattr(value, "__name__", value)
            raise ConfigError(field.name, given, f"left at {names.default_text(field)}")


def _check_setting(name: str, value: Any, about: Mapping[str, Any]) -> None:
    """Check one setting alone."""
    allowed, held = about["allowed"], value if isinstance(value, tuple) else (value,)
    parts = held if about["is_part"] else ()
    if not about["accepts"](value) or not all(map(names.is_struct, map(type, parts))):
        is_several = about["is_single"] and (
            isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0
        )
        raise ConfigError(name, value, allowed + " (to sweep, use settings=...)" * is_several)
    for part in parts:
        try:
            check(part)
        except ConfigError as error:
            raise error if isinstance(value, tuple) else _inside(name, error) from None
    if about["parse"] is int and value > MOST_COUNTED:
        raise ConfigError(name, value, f"{allowed} and at most {MOST_COUNTED}")
    if about["pytree_node"] and not parts:
        _check_range(name, value, allowed)


def check_kind(owner: dataclasses.Field, value: object) -> None:
    """Check that the group in a field is of the class that the field declares."""
    kind = type(owner.default)
    if not isinstance(value, kind):
        raise ConfigError(owner.name, value, f"a `{kind.__module__}.{kind.__name__}`")


def _check_group(owner: dataclasses.Field, value: object, seen: Seen) -> None:
    """Check a group; errors name its settings in full."""
    try:
        _check_fields(value, seen)
        _check_together(value)
        for name in owner.metadata["without"]:
            if getattr(value, name) != getattr(owner.default, name):
                allowed = f"left at {getattr(owner.default, name)!r}"
                raise ConfigError(name, getattr(value, name), allowed)
    except ConfigError as error:
        raise _inside(owner.name, error) from None


def _inside(owner: str, error: ConfigError) -> ConfigError:
    """Return an error about a setting of a struct that is itself a setting, by its full name."""
    field, value, allowed = error.parts
    return ConfigError(f"{owner}.{field}", value, allowed)


def _check_range(name: str, value: object, allowed: str) -> None:
    """Check that finite numbers are neither infinite nor 0 in the type in which lanes compute."""
    if isinstance(value, int | float) and (value == 0 or 1e-30 < abs(value) < 1e30):
        return  # In any type.
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf" or not np.all(np.isfinite(numbers)):
        return
    dtype = jax.dtypes.result_type(float)  # 32 bits, unless 64 are enabled.
    limits, size = np.finfo(dtype), np.abs(numbers.astype(float))
    if np.any((size > 0) & (size < limits.smallest_normal)) or np.any(size > limits.max):
        least, most = float(limits.smallest_normal), float(limits.max)
        allowed += f", and from {least:.2g} to {most:.2g} in size, as a {dtype} can hold it"
        raise ConfigError(name, value, allowed)
