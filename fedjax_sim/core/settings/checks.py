"""Check the values of settings, one by one and together, before anything is compiled."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.core.checking.errors import ConfigError
from fedjax_sim.core.settings import names
from fedjax_sim.core.settings.names import fields, groups

MOST_WHOLE = 2**31 - 1
"""Largest whole number of a setting, as the engine counts in 32 bits."""
Seen = set[tuple[type, str, int]]
"""Values that were checked: class and name of the field, and the object's number."""


def check(hyper: object) -> None:
    """Check every field, and then combinations of fields by `check_together` if it is defined.

    Settings that a struct has fixed must be as it fixed them, and settings that have no effect at
    the given choices must be left at their defaults or those of a preset, see `idle_of`.

    Raises:
      ConfigError: If a value or a combination of values is not allowed.
    """
    check_all([hyper])


def check_all(hypers: Sequence[object]) -> None:
    """Check settings that have many values in common, each of these once.

    A setting may be other than its default if it has an effect in one of them at least.

    Args:
      hypers: Settings of one struct, such as the points of a sweep.

    Raises:
      ConfigError: As `check`.
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
    kind: type = type(hypers[0])
    for name in names.idle_of(hypers[0]):
        top = name.partition(".")[0]  # Most points of a sweep share a group.
        for hyper in {id(getattr(hyper, top)): hyper for hyper in hypers}.values():
            value, usual = names.value_of(hyper, name), names.usual_values(kind, name)
            if names.is_given(hyper, name) and not any(_is_same(value, each) for each in usual):
                idle = [names.idle_of(hyper).get(name) for hyper in hypers]
                if all(idle):
                    allowed = f"left at {names.default_text(fields(kind)[name])} {idle[0]}"
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
        value = names.value_of(hyper, name) if name in fields(type(hyper)) else only
        if not _is_same(value, only):
            raise ConfigError(name, value, f"{only!r} {why}")


def check_known(value: object) -> None:
    """Check the values of settings among the arguments of a call, unless some are traced.

    Settings without effect are accepted, as the points of a sweep have them.

    Args:
      value: The settings.

    Raises:
      ConfigError: If a value or a combination of values is not allowed.
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
    own = {name: field for name, field in fields(kind).items() if "." not in name}
    for name, field in (own | {owner.name: owner for owner in groups(kind)}).items():
        value = getattr(hyper, name)
        if (kind, name, id(value)) not in seen:
            seen.add((kind, name, id(value)))
            if name in own:
                _check_setting(name, value, field.metadata)
            else:
                check_kind(field, value)
                _check_group(field, value, seen)
    for field in names.fields_of(kind)[2]:
        value = getattr(hyper, field.name)
        if not _is_same(value, field.default):
            given = getattr(value, "__name__", value)
            raise ConfigError(field.name, given, f"left at {names.default_text(field)}")


def _check_setting(name: str, value: Any, about: Mapping[str, Any]) -> None:
    """Check one setting alone."""
    allowed, held = about["allowed"], value if isinstance(value, tuple) else (value,)
    if not about["accepts"](value) or (
        about["is_part"] and not all(names.is_struct(type(part)) for part in held)
    ):
        is_several = about["is_single"] and (
            isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0
        )
        raise ConfigError(name, value, allowed + " (to sweep, use settings=...)" * is_several)
    for part in held if about["is_part"] else ():
        try:
            check(part)
        except ConfigError as error:
            raise error if isinstance(value, tuple) else _inside(name, error) from None
    if about["parse"] is int and value > MOST_WHOLE:
        raise ConfigError(name, value, f"{allowed} and at most {MOST_WHOLE}")
    if about["pytree_node"]:
        _check_range(name, value, allowed)


def check_kind(owner: dataclasses.Field, value: object) -> None:
    """Check that a group is of its class.

    Args:
      owner: The field that holds it.
      value: The group.

    Raises:
      ConfigError: If it is of another class.
    """
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
