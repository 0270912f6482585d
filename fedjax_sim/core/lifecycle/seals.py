"""Files that end with their own SHA-256, so that damage shows when they are read.

A sealed file ends with the line `"sha256": "..."`, the digest of all bytes before it. Programs that
read netCDF or NumPy's archives ignore what follows after their content. In a JSON file the line is
the last entry of the object. Content and digest are renamed into place together, so that no file
is without its digest, whenever its writer is killed.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_sim.core.lifecycle.endings import InputError
from fedjax_sim.core.lifecycle.folders import write_whole

DIGEST = "sha256"
"""Name of the entry in a JSON file."""
SEAL = re.compile(rb'\n *"sha256": "([0-9a-f]{64})"\n(?:}\n)?\Z')
LONGEST = 100
"""Bytes at the end of a file that hold its seal."""
PIECE = 2**20
"""Bytes that are read at a time."""


def write_sealed(path: Path, write: Callable[[Path], object]) -> str:
    """Write a file whole, and its SHA-256 at its end.

    Args:
      path: The file, which is no JSON.
      write: Writes the content to the path that it is given.

    Returns:
      The SHA-256 of the whole file.

    Raises:
      StorageError: If the disk or the folder refuses. An older file is then kept.
    """

    digest = hashlib.sha256()

    def write_and_seal(scratch: Path) -> None:
        nonlocal digest
        write(scratch)
        with scratch.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256")
            start = f'\n"{DIGEST}": "'.encode()
            digest.update(start)
            end = f'{digest.hexdigest()}"\n'.encode()
            digest.update(end)
            file.seek(0, os.SEEK_END)
            file.write(start + end)

    write_whole(path, write_and_seal)
    return digest.hexdigest()


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> str:
    """Write arrays into a sealed .npz file.

    Args:
      arrays: The arrays by name.

    Returns:
      The SHA-256 of the whole file.

    Raises:
      StorageError: If the disk or the folder refuses. An older file is then kept.
    """
    import numpy as np

    def write(scratch: Path) -> None:
        with scratch.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    return write_sealed(path, write)


def read_arrays(path: Path, *, trust: bool = False) -> dict[str, Any]:
    """Read arrays from a sealed .npz file.

    Args:
      trust: Whether a file that carries no SHA-256 is taken as it is.

    Returns:
      The arrays by name.

    Raises:
      InputError: If it is damaged, or holds anything else.
      OSError: If it cannot be read.
    """
    import numpy as np

    check_seal(path, trust=trust)
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # Forged archives raise errors of many kinds.
        raise InputError(f"{path} is damaged, or no archive of arrays ({error}).") from None


def seal_json(content: Mapping[str, object], write: Callable[[object], str] = json.dumps) -> bytes:
    """Write an object as JSON, with its SHA-256 as the last entry.

    Args:
      content: The object, without an entry `sha256`.
      write: Writes it as JSON; the form of the text is kept.

    Returns:
      The content of a file.
    """
    body = write(content).rstrip()[:-1].rstrip()
    start = f'{body}{"," if content else ""}\n "{DIGEST}": "'.encode()
    return start + f'{hashlib.sha256(start).hexdigest()}"\n}}\n'.encode()


def check_seal(path: Path, *, trust: bool = False) -> str:
    """Check that a file is as it was written.

    Args:
      trust: Whether a file that carries no SHA-256 is taken as it is.

    Returns:
      The SHA-256 of the whole file.

    Raises:
      InputError: If it is not, or is no file.
      OSError: If it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file.")
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        tail = size - file.seek(max(0, size - LONGEST))
        found = SEAL.search(file.read())
        if found is None:
            if trust:
                return digest_of(path)
            raise InputError(
                f"{path} does not end with its SHA-256: it is damaged or was changed, or another "
                "program wrote it. If you trust it as it is, read it with trust=True, on the "
                "command line --trust."
            )
        left, digest = size - tail + found.start(1), hashlib.sha256()
        file.seek(0)
        while left > 0 and (piece := file.read(min(left, PIECE))):
            digest.update(piece)
            left -= len(piece)
        if digest.hexdigest().encode() != found[1]:
            raise InputError(
                f"{path} is damaged or was changed: its SHA-256 is not the one that it ends with."
            )
        digest.update(file.read())
    return digest.hexdigest()


def _refuse(constant: str) -> None:
    """Refuse NaN and the infinities, which are no JSON."""
    raise ValueError(constant)


def read_json(
    path: Path, *, trust: bool = False, parse_constant: Callable[[str], object] | None = _refuse
) -> dict[str, Any]:
    """Read a sealed JSON file.

    Args:
      trust: Whether a file that carries no SHA-256 is taken as it is.
      parse_constant: As in `json.loads`, for NaN and the infinities.

    Returns:
      The object in it, without its SHA-256.

    Raises:
      InputError: If it is damaged, or holds anything else, such as NaN or an entry twice.
      OSError: If it cannot be read.
    """
    check_seal(path, trust=trust)
    try:
        text = path.read_bytes()
        content = json.loads(text, object_pairs_hook=_once, parse_constant=parse_constant)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged or was changed: it is not one JSON object.")
    content.pop(DIGEST, None)
    return content


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object of its entries, none of which may be there twice."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("an entry is there twice")
    return found


def write_record(path: Path, content: Mapping[str, object]) -> str:
    """Write a JSON object for `read_record`.

    Args:
      content: What JSON can hold.

    Returns:
      The SHA-256 of the whole file.

    Raises:
      StorageError: If the disk refuses. An older file is then kept.
    """
    sealed = seal_json(content, partial(json.dumps, indent=1))
    write_whole(path, lambda scratch: scratch.write_bytes(sealed))
    return hashlib.sha256(sealed).hexdigest()


def read_record(path: Path) -> dict[str, Any] | None:
    """Read a JSON object.

    Args:
      path: A file of `write_record`.

    Returns:
      The object; None if the file is missing or damaged.
    """
    try:
        return read_json(path, parse_constant=None)
    except (OSError, InputError):
        return None


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
