"""Pipes and devices in the place of data files: one sentence from every reader, and no waiting."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedjax_sim import ConfigError, datasets
from fedjax_sim.cli.commands import main
from fedjax_sim.datasets import arrays, fetched, text
from fedjax_sim.problems import latent
from fedjax_sim.timelines import read_client_table, read_trace

READERS: dict[str, Callable[[Path], Any]] = {
    "npz": arrays.from_npz,
    "npz by name": lambda path: datasets.load(f"npz:{path}"),
    "text": text.from_file,
    "text by name": lambda path: datasets.load_text(f"text:{path}"),
    "text by clients": lambda path: text.from_npz(path, "text"),
    "idx": lambda path: fetched.read_idx(path, path, path, path),
    "cifar10": fetched.read_cifar10,
    "cifar100": fetched.read_cifar100,
    "tiny imagenet": fetched.read_tiny_imagenet,
    "shakespeare": fetched.read_shakespeare,
    "federated": lambda path: list(fetched.read_federated_emnist(path).splits["train"]),
    "client table": read_client_table,
    "trace": read_trace,
    "fit": latent.load_fit,
}


def stop(number: int, frame: Any) -> None:
    raise AssertionError("the reader waited")


@pytest.fixture
def no_waiting() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["pipe", "link to a pipe", "device"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "device":
        return Path("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    return tmp_path / ("pipe" if request.param == "pipe" else "link")


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_waits_for_a_pipe(reader: str, no_file: Path) -> None:
    with pytest.raises(ConfigError, match=f"'{no_file}', but must be a file on disk, not a pipe"):
        READERS[reader](no_file)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("name", ["pipe.npz", "pipe.txt"])
def test_the_command_line_refuses_a_pipe(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / name)
    words = ["run", "fedavg", "--dataset", str(tmp_path / name), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "must be a file on disk, not a pipe or a device" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
