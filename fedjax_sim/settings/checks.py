"""Check the values of settings, one by one and together, before anything is compiled."""

import contextvars
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.settings import names
from fedjax_sim.settings.errors import ConfigError
from fedjax_sim.settings.names import fields, groups

MOST_WHOLE = 2**31 - 1
"""Largest whole number of a setting, as the engine counts in 32 bits."""
_CHECKING = contextvars.ContextVar("_CHECKING", default=False)
_CHECKED: contextvars.ContextVar[set[Any] | None] = contextvars.ContextVar("_CHECKED", default=None)


def check(hyper: Any, given: Collection[str] | None = None) -> None:
    """Check every field, and then combinations of fields by `check_together` if it is defined.

    Settings that a struct has fixed must be as it fixed them, and settings that have no effect at
    the given choices must be left at their defaults or those of a preset, see `idle_of`.

    Args:
      given: Full names of the settings that must have an effect unless at their defaults; None for
        all.

    Raises:
      ConfigError: If a value or a combination of values is not allowed.
    """
    check_all([hyper], given)


def check_all(hypers: Sequence[Any], given: Collection[str] | None = None) -> None:
    """Check settings that have many values in common, each of these once.

    A setting may be other than its default if it has an effect in one of them at least.

    Args:
      hypers: Settings of one struct, such as the points of a sweep.
      given: As in `check`.

    Raises:
      ConfigError: As `check`.
    """
    known, within = _CHECKED.set(set()), _CHECKING.set(True)
    try:
        for hyper in hypers:
            _check_fields(hyper)
        _refuse_idle(hypers, given)
        for hyper in hypers:
            _check_together(hyper)
    finally:
        _CHECKED.reset(known)
        _CHECKING.reset(within)


def _check_values(hyper: Any) -> None:
    """Check settings that may have no effect."""
    within = _CHECKING.set(True)
    try:
        _check_fields(hyper)
        _check_together(hyper)
    finally:
        _CHECKING.reset(within)


def _check_together(hyper: Any) -> None:
    if hasattr(hyper, "check_together"):
        hyper.check_together()


def _refuse_idle(hypers: Sequence[Any], given: Collection[str] | None) -> None:
    """Refuse a setting that has no effect in any of several settings, and is not at its default."""
    if not hypers:
        return
    kind: type = type(hypers[0])
    held: dict[str, list[Any]] = {}  # Most points of a sweep share a group.
    for name in names.idle_of(hypers[0]):
        if given is not None and name not in given:
            continue
        top, _, inside = name.partition(".")
        if top not in held:
            found = [getattr(hyper, top) for hyper in hypers]
            held[top] = list({id(value): value for value in found}.values())
        for owner in held[top]:
            value = names.value_of(owner, inside) if inside else owner
            if type(value) in names.NOT_GIVEN:
                continue
            if not any(_is_same(value, usual) for usual in names.usual_values(kind, name)):
                idle = [names.idle_of(hyper).get(name) for hyper in hypers]
                if all(idle):
                    allowed = f"left at {names.default_text(fields(kind)[name])} {idle[0]}"
                    raise ConfigError(name, value, allowed)
                break


def _is_same(value: Any, default: Any) -> bool:
    """Tell whether a value is the default, or an array of it."""
    return value is default or (default is not None and not np.any(np.asarray(value != default)))


def check_left(hyper: Any, values: Mapping[str, Any], why: str) -> None:
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


def check_known(value: Any) -> None:
    """Check values of settings, unless some are traced or a check calls functions itself.

    Settings without effect are accepted, as the points of a sweep have them.

    Args:
      value: Settings; any other dataclass is accepted.

    Raises:
      ConfigError: If a value or a combination of values is not allowed.
    """
    if (
        not _CHECKING.get()
        and fields(type(value))
        and not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))
    ):
        # While something is traced, JAX would trace what a check computes.
        on_host = lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf  # noqa: E731
        _check_values(jax.tree.map(on_host, value))


def _is_checked(hyper: Any, name: str) -> bool:
    """Tell whether `check_all` has seen the very value of a field already, and note it."""
    known, entry = _CHECKED.get(), (type(hyper), name, id(getattr(hyper, name)))
    if known is None or entry in known:
        return known is not None
    known.add(entry)
    return False


def _check_fields(hyper: Any) -> None:
    """Check every field alone, and every group."""
    for owner in groups(type(hyper)):
        if not _is_checked(hyper, owner.name):
            check_kind(owner, getattr(hyper, owner.name))
            _check_group(owner, getattr(hyper, owner.name))
    for name, field in fields(type(hyper)).items():
        if "." in name or _is_checked(hyper, name):
            continue
        value, allowed = getattr(hyper, name), field.metadata["allowed"]
        is_number = isinstance(value, int | float)
        if field.metadata.get("is_single") and not is_number and np.ndim(value) > 0:
            raise ConfigError(name, value, f"{allowed} (to sweep, use settings=...)")
        try:
            is_accepted = field.metadata["accepts"](value)
        except ConfigError as error:
            raise _inside(name, error) if dataclasses.is_dataclass(value) else error from None
        if not is_accepted:
            raise ConfigError(name, value, allowed)
        if field.metadata["parse"] is int and np.any(np.asarray(value) > MOST_WHOLE):
            raise ConfigError(name, value, f"{allowed} and at most {MOST_WHOLE}")
        if names.is_traced(field) and accepts_numbers(value):
            _check_range(name, value, allowed)
    kind: type = type(hyper)
    for field in names.fields_of(kind)[2]:
        value = getattr(hyper, field.name)
        if not _is_same(value, field.default):
            given = getattr(value, "__name__", value)
            raise ConfigError(field.name, given, f"left at {names.default_text(field)}")


def check_kind(owner: dataclasses.Field, value: Any) -> None:
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


def _check_group(owner: dataclasses.Field, value: Any) -> None:
    """Check a group, whose settings are then named with it."""
    try:
        _check_values(value)
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


def _check_range(name: str, value: Any, allowed: str) -> None:
    """Check that numbers are neither infinite nor 0 in the type in which lanes compute."""
    if isinstance(value, int | float) and (value == 0 or 1e-30 < abs(value) < 1e30):
        return  # In any type.
    dtype = jax.dtypes.result_type(float)  # 32 bits, unless 64 are enabled.
    limits, size = np.finfo(dtype), np.abs(np.asarray(value, float))
    if np.any((size > 0) & (size < limits.smallest_normal)) or np.any(size > limits.max):
        least, most = float(limits.smallest_normal), float(limits.max)
        allowed += f", and from {least:.2g} to {most:.2g} in size, as a {dtype} can hold it"
        raise ConfigError(name, value, allowed)


def accepts_numbers(value: Any) -> bool:
    """Tell whether a value is a finite number, or an array of finite numbers.

    Args:
      value: Any value. Complex numbers are refused.
    """
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (str, bytes, bool)) or value is None:
        return False
    x = np.asarray(value)
    return bool(x.dtype.kind in "iuf" and np.all(np.isfinite(x)))
