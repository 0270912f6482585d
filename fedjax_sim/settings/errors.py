"""Bad input as one sentence, and values as such sentences show them."""

import re
import stat
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.lifecycle import InputError, nearest

MOST_SHOWN = 8
"""Numbers of an array up to which a message shows them."""
LONGEST = 200
"""Characters of a value that a message shows."""


class ConfigError(InputError):
    """Bad input, as one sentence that names the field, the value and what is allowed.

    If a text was given and the allowed values are a list of names ("one of a, b, c"), the nearest
    of these is suggested.
    """

    def __init__(self, field: str, value: object, allowed: str):
        self.parts = field, value, allowed
        known = allowed.removeprefix("one of ")
        if isinstance(value, str) and known != allowed:
            allowed += nearest(value, re.split(", (?:or )?", known))
        super().__init__(f"{field} is {_shown(value)}, but must be {allowed}.")


def check_file(field: str, path: str | Path) -> None:
    """Refuse a pipe, a device or a socket in the place of a file: reading it might never end.

    Args:
      field: What error messages call it.
      path: The file. Whether it exists is left to those who read it.

    Raises:
      ConfigError: If it is something else than a file or a folder.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError(field, str(path), "a file on disk, not a pipe or a device")


def plain(value: Any) -> Any:
    """Return a number of NumPy or JAX as Python has it, and any other value as it is.

    Args:
      value: Any value.
    """
    is_number = isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0
    return value.item() if is_number else value


def _shown(value: Any) -> str:
    """Write a value in one line that is not long."""
    if getattr(value, "size", 0) > MOST_SHOWN and hasattr(value, "dtype"):
        return f"an array of shape {list(value.shape)} of {value.dtype}"
    text = " ".join(repr(value).split())
    if len(text) <= LONGEST:
        return text
    is_plain = isinstance(value, str | list | tuple | dict)
    return f"{text[: LONGEST - 4]} ..." if is_plain else f"of type {type(value).__name__}"
