"""Files that are either whole or absent, and folders to which one process writes at a time."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from fedjax_sim.core.lifecycle.endings import InputError, StorageError, say

LOCK = ".lock"
"""Name of the file in a folder that its writer holds locked."""
HOLDER = re.compile(rb"process \d+ on .*")
"""Content of that file: the writer of the folder."""
SCRATCH = ".fedjax_sim.tmp"
"""End of the names of half-written files."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems that know no locks, such as some network ones."""


def write_whole(
    path: Path,
    write: Callable[[Path], object],
    *,
    lasts: bool = True,
) -> None:
    """Write a file under another name in its folder, and rename it once it is complete.

    A process that is killed leaves at most a scratch file behind, see `remove_scratch`.

    Args:
      path: The file. An older one is replaced only by the complete new one.
      write: Writes the content to the path that it is given.
      lasts: Whether to wait until it is on the disk, where a loss of power spares it.

    Raises:
      StorageError: If the disk or the folder refuses. An older file is then kept.
    """
    # Processes in containers may have the same number, and the same name of the machine.
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}{SCRATCH}")
    try:
        write(scratch)
        if lasts:
            with scratch.open("rb+") as file:
                os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise StorageError(path, error) from None
    finally:
        # If even this fails, the folder is gone or cannot be written, and the error above says so.
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


def remove_scratch(folder: Path) -> None:
    """Remove half-written files of killed processes. The folder must be locked.

    Args:
      folder: The results folder.
    """
    for path in folder.glob(f".*{SCRATCH}"):
        path.unlink(missing_ok=True)


def open_own(path: str | Path, flags: int) -> int:
    """Open a file for writing under a name that somebody else may have taken.

    It may be the `opener` of `open`. What a link leads to, another name of the same file, and
    whatever reads a pipe or a device are left alone.

    Args:
      path: The file; it is made if it does not exist.
      flags: As of `os.open`.

    Returns:
      The open file's number.

    Raises:
      InputError: If the name is not that of a regular file with this one name.
      OSError: If the folder refuses.
    """
    try:
        # A pipe that nobody reads is not waited for.
        kept = flags & ~os.O_TRUNC | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(path, kept, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise _foreign(path) from None
    found = os.fstat(file)
    # A file without a name has just been removed by another process, which also had opened it.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(file)
        raise _foreign(path)
    if flags & os.O_TRUNC:
        os.ftruncate(file, 0)
    return file


def _foreign(path: str | Path) -> InputError:
    """Make the error for a name that is taken."""
    return InputError(
        f"{path} is needed for a file of this program, but is a link, or something else that this "
        "program did not make: remove it, or choose another folder."
    )


def cache_folder(named: str | os.PathLike | None = None) -> Path | None:
    """Return the folder of files that outlast a process, such as compiled programs.

    Args:
      named: What the user calls it; by default `$FEDJAX_SIM_CACHE`, or else `~/.cache/fedjax_sim`.

    Returns:
      The folder, which need not exist; None if it is in a home folder and this process has none, as
      in some containers.
    """
    try:
        named = named or os.environ.get("FEDJAX_SIM_CACHE") or "~/.cache/fedjax_sim"
        return Path(named).expanduser()
    except RuntimeError:
        return None


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
          InputError: If another process, or another run of this one, is writing to the folder; or
            if something else there has the name of the lock's file.
          OSError: If the folder refuses the lock's file.
        """
        self._path, self._process, self._file = folder / LOCK, os.getpid(), -1
        while True:
            file, refusal = open_own(self._path, os.O_RDWR), None
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                refusal = error
            # Nothing is in it if a process was killed, or is slow, before it wrote who it is.
            holder = os.pread(file, 1000, 0)
            if holder and not HOLDER.fullmatch(holder):
                os.close(file)
                raise _foreign(self._path)
            if refusal is not None:
                os.close(file)
                if refusal.errno in NO_LOCKS:
                    say(f"{folder} cannot be locked: make sure that no other run writes to it.")
                    return
                if refusal.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise refusal
                writer = holder.decode(errors="replace") or "another process"
                raise InputError(
                    f"{folder} is being written by {writer}: wait for its end, or choose another "
                    "folder."
                )
            # The last holder may have removed the file between the two calls.
            if _is_in_place(file, self._path):
                break
            os.close(file)
        self._file = file
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def release(self) -> None:
        """Give the lock up and remove its file. Nothing happens the second time."""
        if self._file >= 0:
            # A process that was forked from the writer shares its lock, and must leave it.
            if self._process == os.getpid() and _is_in_place(self._file, self._path):
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # The interpreter may be shutting down.
            self.release()


def _is_in_place(file: int, path: Path) -> bool:
    """Tell whether a locked file is still the one in the folder."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except OSError:
        return False
