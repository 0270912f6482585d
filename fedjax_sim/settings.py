"""Hyperparameter structs whose fields know what is allowed.

A `Hyper` is a frozen pytree: `real`, `reals`, `whole` and `weights` fields are leaves, traced and swept without recompiling; `count`,
`choice`, `switch` and `static` fields are part of its static structure; a `part` is such a struct again. `check` turns a bad value into
one sentence before anything is compiled.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flax import struct as flax_struct
from flax.struct import dataclass as struct  # noqa: F401, imported by name so that type checkers see the constructors it makes


class ConfigError(ValueError):
    """Bad input, as one sentence naming the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field} is {value!r}, but must be {allowed}.")


def real(
    default: float,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A traced number; the limits are exclusive (`above`) or inclusive (`least`, `most`)."""

    def accepts(value: Any) -> bool:
        return (
            _accepts_numbers(value)
            and (above is None or bool(np.all(np.asarray(value) > above)))
            and (least is None or bool(np.all(np.asarray(value) >= least)))
            and (most is None or bool(np.all(np.asarray(value) <= most)))
        )

    limits = [(above, "above"), (least, "at least"), (most, "at most")]
    words = " and ".join(f"{word} {limit:g}" for limit, word in limits if limit is not None)
    return _field(default, True, accepts, f"a finite number {words}".rstrip(), float)


def reals(default: float, **limits: float) -> Any:
    """A traced number, or a tuple of several, such as one per group; as text they are joined by +."""
    metadata = dict(real(default, **limits).metadata)
    return flax_struct.field(
        default=default,
        metadata=metadata
        | {"allowed": metadata["allowed"] + ", or several", "parse": _parse_reals},
    )


def count(default: int, *, least: int = 1) -> Any:
    """A static whole number (a size)."""

    def accepts(value: Any) -> bool:
        return (
            isinstance(value, (int, np.integer))
            and not isinstance(value, bool)
            and int(value) >= least
        )

    return _field(default, False, accepts, f"a whole number of at least {least}", int)


def whole(default: int, *, least: int = 1) -> Any:
    """A traced whole number: a count that no shape depends on."""

    def accepts(value: Any) -> bool:
        return _accepts_numbers(value) and bool(
            np.all(np.asarray(value) >= least) and np.all(np.asarray(value) == np.round(value))
        )

    return _field(default, True, accepts, f"a whole number of at least {least}", int)


def weights() -> Any:
    """A traced vector of positive numbers, or one for all, or None."""

    def accepts(value: Any) -> bool:
        return value is None or (
            _accepts_numbers(value) and np.ndim(value) <= 1 and bool(np.all(np.asarray(value) > 0))
        )

    return _field(
        None, True, accepts, "None, one finite number above 0, or one for each client", float
    )


def choice(default: str, options: Iterable[str]) -> Any:
    """A static name out of a few."""
    options = tuple(options)
    return _field(
        default, False, lambda value: value in options, "one of " + ", ".join(options), str
    )


def switch(default: bool) -> Any:
    """A static yes or no."""
    return _field(
        default, False, lambda value: isinstance(value, bool), "true or false", _parse_bool
    )


def static(
    default: Any, allowed: str, accepts: Callable[[Any], bool], parse: Callable[[str], Any] = str
) -> Any:
    """A static value of any other hashable kind; `parse` reads it from the command line's text."""
    return _field(default, False, accepts, allowed, parse)


def part(default: Any, allowed: str, kind: type, parse: Callable[[str], Any]) -> Any:
    """A struct with fields of its own, traced and static ones, as one setting; its kind and static fields are static."""

    def accepts(value: Any) -> bool:
        if isinstance(value, kind):
            check(value)
            return True
        return False

    return _field(default, True, accepts, allowed, parse)


def redefault(owner: type, name: str, default: Any) -> Any:
    """A field of a struct with another default, for one that inherits it."""
    return dataclasses.field(default=default, metadata=fields(owner)[name].metadata)


def fixed(value: Any) -> Any:
    """A field that is no setting in a struct that inherits it, because it can have one value only."""
    return flax_struct.field(pytree_node=False, default=value)


def _field(default: Any, is_traced: bool, accepts: Callable, allowed: str, parse: Callable) -> Any:
    metadata = {"accepts": accepts, "allowed": allowed, "parse": parse}
    return flax_struct.field(pytree_node=is_traced, default=default, metadata=metadata)


def _accepts_numbers(value: Any) -> bool:
    """Whether a value is a finite number, or an array of such."""
    if isinstance(value, (str, bytes, bool)) or value is None:
        return False
    x = np.asarray(value)
    return bool(np.issubdtype(x.dtype, np.number) and np.all(np.isfinite(x)))


def _parse_reals(text: str) -> float | tuple[float, ...]:
    try:
        return float(text)
    except ValueError:
        return tuple(float(word) for word in text.split("+"))


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def fields(hyper_type: type) -> Mapping[str, dataclasses.Field]:
    """The settable fields of a Hyper by name."""
    return {f.name: f for f in dataclasses.fields(hyper_type) if "accepts" in f.metadata}


def is_traced(field: dataclasses.Field) -> bool:
    """Whether a field can vary between lanes of one compiled program."""
    return bool(field.metadata.get("pytree_node", True))


def parse(hyper_type: type, name: str, text: str) -> Any:
    """Read one value of a field from the text given on the command line."""
    known = fields(hyper_type)
    if name not in known:
        raise ConfigError("setting name", name, "one of " + ", ".join(sorted(known)))
    metadata = known[name].metadata
    try:
        return metadata["parse"](text)
    except ConfigError:
        raise
    except (ValueError, KeyError, AttributeError):
        raise ConfigError(name, text, metadata["allowed"]) from None


def check(hyper: Any) -> None:
    """Raise ConfigError if a field of a concrete Hyper, or a combination its `check_together` knows of, is not allowed."""
    for name, field in fields(type(hyper)).items():
        value = getattr(hyper, name)
        if not field.metadata["accepts"](value):
            raise ConfigError(name, value, field.metadata["allowed"])
    if hasattr(hyper, "check_together"):
        hyper.check_together()
