"""How commands end: every way has its exit code, and at most one sentence."""

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from jax.experimental import multihost_utils

from fedjax_sim.cli import main, plotting, training
from fedjax_sim.core import lifecycle
from fedjax_sim.core.lifecycle import (
    BAD_INPUT,
    EXIT_CODES,
    INTERRUPTED,
    STOPPED,
    STORAGE,
    InputError,
    StorageError,
    asked_to_stop,
    deferring_stops,
    exit_code_of,
    nearest,
    remove_scratch,
)
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.machine.processes import on_first

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/file")
HDF5 = OSError("Can't write data (file write failed: errno = 28, error message = 'No space')")
ENDS: dict[str, tuple[BaseException, int, str]] = {
    "input": (InputError("lr is 0."), BAD_INPUT, "lr is 0."),
    "settings": (ConfigError("lr", 0, "above 0"), BAD_INPUT, "lr is 0, but must be above 0."),
    "interrupt": (KeyboardInterrupt(), INTERRUPTED, "interrupted; --resume continues"),
    "full disk": (FULL, STORAGE, "writing to out/file failed (No space left on device); --resume"),
    "full disk, told by HDF5": (
        StorageError("out/results.nc", HDF5),
        STORAGE,
        "writing to out/results.nc failed (No space left on device); --resume",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_error_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    error, code, says = ENDS[name]

    def work() -> None:
        raise error

    assert exit_code_of("test", work) == code
    said = capsys.readouterr().err
    assert said.startswith(f"test: {says}")
    assert said.count("\n") == 1
    assert code in EXIT_CODES


def test_a_command_that_cannot_be_resumed_advises_no_resume(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fedjax-sim merge` that a signal stops; `run` that it stops is resumed."""

    def stopped(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(plotting.parts, "read_parts", lambda *_, **__: stopped())
    monkeypatch.setattr(training.Study, "metrics", stopped)
    words = "stopped by SIGTERM while no lane was running; run it again"
    assert main(["merge", "a", "b"]) == STOPPED
    assert capsys.readouterr().err == f"fedjax-sim: {words}.\n"
    assert main(["run", "fedavg", "--seeds", "1"]) == STOPPED
    assert capsys.readouterr().err == f"fedjax-sim: {words} with --resume.\n"


def test_all_processes_end_if_the_first_finds_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a folder to which another run writes. They wait to hear how the first fared."""
    told: list[bool] = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda fails: told.append(fails))

    def work() -> None:
        raise InputError("out is being written by process 7.")

    with pytest.raises(InputError, match="process 7"):
        on_first(work)
    assert told == [True]


def test_a_fault_of_the_program_is_raised() -> None:
    for error in (ValueError("mistake"), OSError(errno.ECONNREFUSED, "refused")):

        def work(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            exit_code_of("test", work)
    assert exit_code_of("test", lambda: "anything") == 0


class Collected:
    """An object that gets a signal while it is finalised, where Python loses exceptions."""

    def __init__(self, number: int):
        self._number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self._number)
        time.sleep(0.01)


def at_once(number: int) -> None:
    """Get a signal anywhere."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("receive", [at_once, Collected], ids=["anywhere", "while finalising"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, STOPPED),
        (signal.SIGUSR1, STOPPED),
        (signal.SIGUSR2, STOPPED),
        (signal.SIGINT, INTERRUPTED),
    ],
    ids=["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"],
)
def test_a_signal_ends_what_is_not_replaying(
    number: signal.Signals,
    code: int,
    receive: Callable[[int], object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever the tests were started with: what a shell runs in the background ignores Ctrl-C."""

    def work() -> None:
        receive(number)
        time.sleep(20)

    began = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert exit_code_of("test", work) == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 10
    assert capsys.readouterr().err.count("\n") == 1
    assert asked_to_stop() is None


def test_a_second_signal_does_not_end_the_ending(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm signals all processes, and then a launcher asks its parts, which may be saying why."""
    say, unheard = lifecycle.say, []

    def work() -> None:
        try:
            at_once(signal.SIGUSR2)
            time.sleep(20)
        finally:
            at_once(signal.SIGTERM)

    def say_slowly(*words: str) -> None:
        at_once(signal.SIGTERM)
        time.sleep(0.01)
        say(*words)

    monkeypatch.setattr(lifecycle, "say", say_slowly)
    before = signal.signal(signal.SIGTERM, lambda *_: unheard.append(1))
    try:
        assert exit_code_of("test", work) == STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "stopped by SIGUSR2" in capsys.readouterr().err and not unheard
    assert asked_to_stop() is None


def test_a_stop_waits_where_it_is_looked_for() -> None:
    seen = []

    def work() -> None:
        with deferring_stops():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            seen.append(asked_to_stop())

    assert exit_code_of("test", work) == 0
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_nearest_name_is_suggested() -> None:
    known = ["fedavg", "fedbuff", "favano"]
    assert nearest("FedAvgg", known) == " (did you mean 'fedavg'?)"
    assert nearest("langevin", known) == ""
    assert "(did you mean 'favano'?)" in str(
        ConfigError("system", "favno", "one of fedavg, favano")
    )
    assert "did you mean" not in str(ConfigError("lr", "favno", "a number"))


def test_half_written_files_are_removed(tmp_path: Path) -> None:
    for name in (".state.npz.1a2b3c4d.fedjax_sim.tmp", "state.npz", ".hidden", ".other.tmp"):
        (tmp_path / name).write_text("x")
    remove_scratch(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"state.npz", ".hidden", ".other.tmp"}
