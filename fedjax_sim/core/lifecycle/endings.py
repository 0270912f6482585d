"""How a command ends: an exit code, and at most one sentence on the error stream."""

import contextlib
import difflib
import errno
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path

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
        when = "after saving" if saved else "while no lane was running"
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")


class _Asked:
    """The signal that asked to stop, if one did; whether stops wait; whether anybody listens."""

    number: int | None = None
    deferred: bool = False
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
        if not _Asked.deferred:
            raise Stopped(number, saved=False)

    def send_again(lost: "sys.UnraisableHookArgs") -> None:
        """Repeat a signal if Python lost its exception, because it was collecting garbage."""
        error = lost.exc_value
        if not isinstance(error, Stopped | KeyboardInterrupt):
            hook(lost)
            return
        number = error.number if isinstance(error, Stopped) else signal.SIGINT

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
        _Asked.listening, _Asked.number = False, None
        sys.unraisablehook = hook
        for number, handler in earlier.items():
            signal.signal(number, handler)


class PartError(Exception):
    """Parts of a study that failed in processes of their own, as one sentence.

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
    with _usable_streams():
        try:
            with listening():
                work()
                sys.stdout.flush()
        except BrokenPipeError:
            if not _is_output_closed():
                raise
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


def _is_output_closed() -> bool:
    """Tell whether nobody reads the output any more, as after `| head`, and then let go of it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_closed:
        _let_go_of_output()
    return is_closed


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
