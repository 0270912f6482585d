"""Life of a process and of its files: exit codes, stops, and folders that stay readable.

Every way in which a command ends becomes an exit code and at most one sentence on the error stream
(`exit_code_of`), and a running sweep can save before it stops (`deferring_stops`). Files are either
whole or absent (`write_whole`), and one process at a time writes to a folder (`FolderLock`).

Sealed files end with the line `"sha256": "..."`, the digest of all bytes before it, so that damage
shows when they are read. Programs that read netCDF or NumPy's archives ignore what follows after
their content. In a JSON file the line is the last entry of the object. Content and digest are
renamed into place together, so that no file is without its digest, whenever its writer is killed.

This module loads neither JAX nor NumPy before it is used.
"""

import contextlib
import difflib
import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import secrets
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

FAULT = 1
"""Exit code of a fault of the program."""
BAD_INPUT = 2
"""Exit code of input that is refused."""
STORAGE = 74
"""Exit code of trouble with the disk or a folder."""
STOPPED = 75
"""Exit code of a run that a signal stopped after it saved."""
INTERRUPTED = 130
"""Exit code of Ctrl-C."""
EXIT_CODES = {
    0: "done, also if some lanes diverged (summary.json names them)",
    FAULT: "a fault of the program, with a traceback",
    BAD_INPUT: "bad input, or a folder or checkpoint that cannot be used",
    STORAGE: "the disk or a folder failed (full, removed, not writable); --resume goes on",
    STOPPED: "stopped by SIGTERM, SIGUSR1 or SIGUSR2 after saving; run it again with --resume",
    INTERRUPTED: "interrupted by Ctrl-C; --resume goes on from the last checkpoint",
}
"""Every exit code and its meaning. 74 and 75 are `EX_IOERR` and `EX_TEMPFAIL` of `sysexits.h`."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask a run to save and stop: queues send them before they kill."""
OF_STORAGE = frozenset(
    getattr(errno, name)
    for name in (
        *("EACCES", "EDQUOT", "EFBIG", "EIO", "EISDIR", "EMFILE", "ENAMETOOLONG", "ENFILE"),
        *("ENODEV", "ENOENT", "ENOSPC", "ENOTDIR", "ENXIO", "EPERM", "EROFS", "ESTALE"),
    )
)
"""Errors of the operating system that are due to a disk or a folder, and not to a mistake here."""


PARENT = "FEDJAX_SIM_PARENT"
"""Variable with the number of the process that this one ends with."""
PR_SET_PDEATHSIG = 1
"""From Linux's `sys/prctl.h`."""


class InputError(ValueError):
    """Bad input, as one sentence."""


class StorageError(OSError):
    """A disk or folder that failed while the program used it, as one sentence."""

    def __init__(self, path: object, error: OSError):
        """Name the file and the refusal of the operating system.

        Args:
          path: The file or folder.
          error: What was raised.
        """
        # HDF5 hides the number of the error in its text.
        hidden = re.search(r"errno = (\d+)", str(error))
        number = error.errno or (int(hidden[1]) if hidden else errno.EIO)
        super().__init__(number, os.strerror(number), str(path))

    def __str__(self) -> str:
        return f"writing to {self.filename} failed ({self.strerror})"


class Stopped(BaseException):
    """A signal asked the run to stop.

    It is no `Exception`, so that code which recovers from errors lets it pass.
    """

    def __init__(self, number: int, *, saved: bool):
        """Name the signal that stopped the run.

        Args:
          number: The signal.
          saved: Whether the run's newest state was saved just before.
        """
        self.number = number
        _Asked.ending = _Asked.listening  # A second signal must not end the ending.
        when = "after saving" if saved else "while no lane was running"
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")


class _Asked:
    """The signal that asked to stop, if any; whether stops wait, work ends, anybody listens."""

    number: int | None = None
    deferred: bool = False
    ending: bool = False
    listening: bool = False


def asked_to_stop() -> int | None:
    """Return the signal that asked the run to stop, or None."""
    return _Asked.number


@contextlib.contextmanager
def deferring_stops() -> Iterator[None]:
    """Let stops wait inside the block, which must look at `asked_to_stop` every few seconds.

    Outside such a block, a stop raises `Stopped` at once.
    """
    earlier, _Asked.deferred = _Asked.deferred, True
    try:
        yield
    finally:
        _Asked.deferred = earlier


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Note stops while the block runs. Only the main thread of a process receives signals."""
    if _Asked.listening:  # An outer block does.
        yield
        return

    def note(number: int, frame: object) -> None:
        _Asked.number = number
        if not _Asked.deferred and not _Asked.ending:
            raise Stopped(number, saved=False)

    def send_again(lost: "sys.UnraisableHookArgs") -> None:
        """Repeat a signal if Python lost its exception, because it was collecting garbage."""
        error = lost.exc_value
        if not isinstance(error, Stopped | KeyboardInterrupt):
            hook(lost)
            return
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        _Asked.ending = False

        def send() -> None:
            if _Asked.listening:
                os.kill(os.getpid(), number)

        timer = threading.Timer(0.05, send)
        timer.daemon = True
        timer.start()

    try:
        earlier = {number: signal.signal(number, note) for number in SIGNALS}
    except ValueError:  # raised in any other thread
        earlier = {}
    hook, sys.unraisablehook = sys.unraisablehook, send_again
    _Asked.listening = True
    try:
        yield
    finally:
        _Asked.listening, _Asked.ending, _Asked.number = False, False, None
        sys.unraisablehook = hook
        for number, handler in earlier.items():
            signal.signal(number, handler)


class PartError(Exception):
    """Parts of a study that failed in their processes, as one sentence.

    Attributes:
      code: The exit code for the whole.
    """

    def __init__(self, sentence: str, code: int):
        super().__init__(sentence)
        self.code = code


def exit_code_of(program: str, work: Callable[[], object], *, resumes: bool = True) -> int:
    """Run a command, and turn the way in which it ends into an exit code.

    Ctrl-C, the `SIGNALS`, bad input, and disks and folders that fail each print one sentence. If
    nobody reads the output to its end, as in `| head`, the command ends in silence. A standard
    stream that was closed beforehand, as by `>&-`, is the null device for the command. Any other
    error is a fault of the program and is raised.

    Args:
      program: Name of the program, with which sentences begin.
      work: The command. What it returns is ignored.
      resumes: Whether the command has a flag `--resume`.

    Returns:
      One of `EXIT_CODES`, or the exit code of a part that failed.
    """
    _end_with_parent()
    sentence, code = "", 0
    with _usable_streams(), listening():  # To the last word: a launcher may ask a second time.
        try:
            work()
            sys.stdout.flush()
        except BrokenPipeError:
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)
            if not any(event & select.POLLERR for _, event in poll.poll(0)):
                raise
            _let_go_of_output()  # Nobody reads it any more, as after `| head`.
        except InputError as error:
            sentence, code = str(error), BAD_INPUT
        except PartError as error:
            sentence, code = str(error), error.code
        except Stopped as stop:
            again = "run it again with --resume" if resumes else "run it again"
            sentence, code = f"{stop}; {again}.", STOPPED
        except KeyboardInterrupt:
            sentence = "interrupted; --resume continues a run from its last checkpoint."
            code = INTERRUPTED
        except OSError as error:
            sentence = f"{_of_storage(error)}; --resume continues the run once that is mended."
            code = STORAGE
        if sentence:
            say(sentence, program)
    return code


def _of_storage(error: OSError) -> StorageError:
    """Describe trouble with a disk or a folder; any other error is raised again."""
    if isinstance(error, StorageError):
        return error
    # A stream has no name, and its number is bad if it was opened for reading.
    is_output = error.filename is None and error.errno == errno.EBADF
    if error.errno not in OF_STORAGE and not is_output:
        raise error
    try:
        sys.stdout.flush()
    except OSError:
        _let_go_of_output()
    return StorageError(error.filename or "the output or a file", error)


def _end_with_parent() -> None:
    """Let Linux kill this process when the one that is named in `PARENT` ends, if there is one.

    Otherwise a part of a study would outlive a launcher that was killed. It is killed as well, and
    not asked to save, so that a launcher that is started again at once finds no part at work.
    """
    parent = os.environ.pop(PARENT, None)  # Processes that this one starts have another parent.
    if parent is None or sys.platform != "linux":
        return
    import ctypes  # Only parts of studies need it.

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # It ended before the call.
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _usable_streams() -> Iterator[None]:
    """Let anything be printed inside the block.

    A file that is opened gets the lowest free number. If a standard stream is closed, that is the
    stream's number, and what libraries print would end up in the file. Characters that the output
    cannot encode are escaped.
    """
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(number, number <= 2)
    os.close(number)
    with contextlib.ExitStack() as undo:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                undo.callback(setattr, sys, name, None)
                setattr(sys, name, undo.enter_context(Path(os.devnull).open("w")))
        output = sys.stdout
        if isinstance(output, TextIOWrapper):
            undo.callback(_set_errors, output, output.errors or "strict")
            _set_errors(output, "backslashreplace")
        yield


def _set_errors(stream: TextIOWrapper, errors: str) -> None:
    """Choose how a stream treats characters that it cannot encode."""
    # Flushing fails if nobody reads the stream. `exit_code_of` reports that.
    with contextlib.suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _let_go_of_output() -> None:
    """Send the output to the null device: Python flushes it once more at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def say(sentence: str, program: str = "fedjax-sim") -> None:
    """Print one line to the error stream, if it can be written.

    Args:
      sentence: What to say; line breaks become spaces.
      program: Name of the program.
    """
    tell(f"{program}: {sentence}".replace("\n", " "))


def tell(line: str) -> None:
    """Print a line as it is to the error stream, if it can be written.

    An error stream that is missing, closed or full ends no run and hides no exit code.

    Args:
      line: What to print.
    """
    if sys.stderr is not None:  # Otherwise `print` would take the output.
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


def is_terminal(stream: object) -> bool:
    """Tell whether a stream is a terminal.

    Args:
      stream: `sys.stdout` or `sys.stderr`, which may be closed, None, or any object with `write`.
    """
    with contextlib.suppress(AttributeError, ValueError):
        return bool(stream.isatty())  # type: ignore[attr-defined]
    return False


def nearest(name: object, known: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """Suggest the known name that is nearest to a misspelt one.

    Args:
      name: What the user wrote.
      known: The names there are.
      shown: What is suggested for each of them, if it is not the name itself.

    Returns:
      Text such as " (did you mean 'favano'?)", to be put at the end of a sentence; empty if no
      name is near.
    """
    found = difflib.get_close_matches(str(name).lower(), list(known), 1)
    return f" (did you mean {(shown or {}).get(found[0], found[0])!r}?)" if found else ""


LOCK = ".lock"
"""Name of the file in a folder that its writer holds locked."""
HOLDER = re.compile(rb"process \d+ on .*")
"""Content of that file: the writer of the folder."""
SCRATCH = ".fedjax_sim.tmp"
"""End of the names of half-written files."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems that know no locks, such as some network ones."""


def write_whole(path: Path, write: Callable[[Path], object], *, lasts: bool = True) -> None:
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


def storable(values: Any) -> tuple[Any, str]:
    """Turn an array into one of a type that files know.

    Args:
      values: A NumPy array, such as of bfloat16.

    Returns:
      The array, or its bits as whole numbers; and its type's name, "" if files know it.
    """
    if values.dtype.isbuiltin != 2:
        return values, ""
    return values.view(f"u{values.dtype.itemsize}"), values.dtype.name


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> str:
    """Write arrays into a sealed .npz file.

    Args:
      path: The file.
      arrays: The arrays by name. Of a type that such files lack, the bits are written, and the name
        of the type after an "@".

    Returns:
      The SHA-256 of the file, in hexadecimal digits.

    Raises:
      StorageError: If the disk refuses. An older file is then kept.
    """
    import numpy as np

    entries = {}
    for name, values in arrays.items():
        bits, dtype = storable(np.asarray(values))
        entries[f"{name}@{dtype}" if dtype or "@" in name else name] = bits

    def write(scratch: Path) -> None:
        with scratch.open("wb") as file:
            np.savez(file, allow_pickle=False, **entries)

    return write_sealed(path, write)


def read_arrays(path: Path, *, trust: bool = False) -> dict[str, Any]:
    """Read the arrays that `write_arrays` wrote.

    Args:
      path: The file.
      trust: Whether a file without a digest is read too.

    Returns:
      The arrays by name.

    Raises:
      OSError: If the file cannot be read.
      InputError: If it is damaged or was changed, or is no archive of plain arrays.
    """
    import numpy as np

    check_seal(path, trust=trust)
    arrays = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for entry, values in file.items():
                name, at, dtype = entry.rpartition("@")
                arrays[name if at else entry] = values.view(dtype) if at and dtype else values
    except Exception as error:  # Forged archives raise errors of many kinds.
        raise InputError(f"{path} is damaged, or no archive of arrays ({error}).") from None
    return arrays


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


GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a control group with its limit and its use, and the entry of cached files, in the second
and in the first version of control groups."""


def free_on_host() -> float:
    """Measure the bytes that this process may still take on the host.

    It is the least of what the machine has left, what the process's control group may still take,
    and what its limit of address space (`ulimit -v`) leaves.
    """
    of_group = free_in_group(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return min(free_on_machine(Path("/proc/meminfo")), of_group, free_addresses())


def free_on_machine(meminfo: Path) -> float:
    """Read the bytes that are available on the machine; its whole memory where it does not say."""
    with contextlib.suppress(OSError):
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return 1024.0 * int(value.split()[0])
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float("inf")


def free_in_group(membership: Path, mount: Path) -> float:
    """Read the bytes that the control groups of this process leave it.

    Files that are only cached count as free, because the kernel gives them back.

    Args:
      membership: The file that names the groups, `/proc/self/cgroup`.
      mount: Folder in which the groups are mounted: version 2, or version 1 with a folder `memory`.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return float("inf")
    free = [float("inf")]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        limit, usage, cached = GROUP_FILES[bool(controllers)]
        root = mount / "memory" if controllers else mount
        folder = root / path.strip("/")
        # Groups above it count too; a container has only some mounted.
        for group in (folder, *folder.parents[: len(folder.parents) - len(root.parents)]):
            with contextlib.suppress(OSError, ValueError):
                # Without a limit the first version has a huge number, and the second "max".
                left = int((group / limit).read_text()) - int((group / usage).read_text())
                stats = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
                free.append(float(max(0, left + int(stats.get(cached, 0)))))
    return min(free)


def free_addresses() -> float:
    """Read the bytes of address space that this process has left under `ulimit -v`."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return float("inf")
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return float(most)
    return float(max(0, most - pages * resource.getpagesize()))


def write_bytes(number: float) -> str:
    """Write a number of bytes for people.

    Args:
      number: The bytes.

    Returns:
      Three digits and a unit, such as "1.5 GB" or "20 MB".
    """
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"
