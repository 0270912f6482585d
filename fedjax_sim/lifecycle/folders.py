"""Files that are either whole or absent, and folders to which one process writes at a time."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedjax_sim.lifecycle.endings import InputError, StorageError, say

LOCK = ".lock"
"""Name of the file in a folder that its writer holds locked."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems that know no locks, such as some network ones."""


def write_whole(
    path: Path, write: Callable[[Path], Any], *, named: Callable[[Path], str] | None = None
) -> Path:
    """Write a file under another name in its folder, and rename it once it is complete.

    A process that is killed leaves at most a scratch file behind, see `remove_scratch`.

    Args:
      path: The file. An older one is replaced only by the complete new one.
      write: Writes the content to the path that it is given.
      named: From the complete file to the name that it gets instead of that of `path`.

    Returns:
      The file.

    Raises:
      StorageError: If the disk or the folder refuses. An older file is then kept.
    """
    # Processes in containers may have the same number, and the same name of the machine.
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        write(scratch)
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        return scratch.replace(path if named is None else path.with_name(named(scratch)))
    except OSError as error:
        raise StorageError(path, error) from None
    finally:
        # If even this fails, the folder is gone or cannot be written, and the error above says so.
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object together with its digest, for `read_record`.

    Args:
      path: The file.
      content: What JSON can hold.

    Raises:
      StorageError: If the disk refuses. An older file is then kept.
    """
    text = json.dumps({"sha256": _digest_of(content), **content}, indent=1)
    write_whole(path, lambda scratch: scratch.write_text(text))


def read_record(path: Path) -> dict[str, Any] | None:
    """Read a JSON object that `write_record` wrote.

    Args:
      path: The file.

    Returns:
      The object; None if the file is missing or damaged.
    """
    try:
        content = json.loads(path.read_text())
        digest = content.pop("sha256")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None
    return content if digest == _digest_of(content) else None


def _digest_of(content: Mapping[str, Any]) -> str:
    """Hash a JSON object: 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def remove_scratch(folder: Path) -> None:
    """Remove what killed processes left half written. The folder must be locked.

    Args:
      folder: The results folder.
    """
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


class FolderLock:
    """The right to write to a folder, which one process has at a time.

    The operating system takes the lock away from a process that ends, however it ends, so a dead
    process leaves none behind. On a network file system it holds between machines if the file
    system passes locks on (NFS 4 does); one that knows no locks is reported in a sentence.
    """

    def __init__(self, folder: Path):
        """Lock a folder.

        Args:
          folder: The folder, which must exist.

        Raises:
          InputError: If another process, or another run of this one, is writing to the folder.
          OSError: If the folder refuses the lock's file.
        """
        self._path, self._process = folder / LOCK, os.getpid()
        while True:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(self._file, 1000, 0).decode(errors="replace")
                os.close(self._file)
                self._file = -1
                if error.errno in NO_LOCKS:
                    say(f"{folder} cannot be locked: make sure that no other run writes to it.")
                    return
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                raise InputError(
                    f"{folder} is being written by {holder or 'another process'}: "
                    "wait for its end, or choose another folder."
                ) from None
            # The last holder may have removed the file between the two calls.
            if self._is_in_place():
                break
            os.close(self._file)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def release(self) -> None:
        """Give the lock up and remove its file. Nothing happens the second time."""
        if self._file >= 0:
            # A process that was forked from the writer shares its lock, and must leave it.
            if self._process == os.getpid() and self._is_in_place():
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # The interpreter may be shutting down.
            self.release()

    def _is_in_place(self) -> bool:
        """Tell whether the locked file is still the one in the folder."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except OSError:
            return False
