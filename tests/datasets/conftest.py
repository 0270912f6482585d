"""Folders of small raw files that tensorflow-datasets accepts as the original ones."""

import functools
import http.server
import threading

import numpy as np
import pytest

from fedjax_sim.datasets import fetched
from tests.datasets.small_files import (
    RAW_FILES,
    cifar10_parts,
    register,
    write_cifar10,
    write_idx,
    write_tiny,
)


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """Make a folder of small raw files in MNIST's form; return the folder and the arrays."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "raw"
    folder.mkdir()
    arrays = [
        array
        for n in (30, 12)
        for array in (rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 10, n, np.uint8))
    ]
    for file, array in zip(RAW_FILES, arrays, strict=True):
        write_idx(folder / file, array)
    register(monkeypatch, folder)
    return folder, arrays


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """Make a folder of small archives, for the sets that are published as one archive."""
    folder = tmp_path / "raw"
    folder.mkdir()
    write_cifar10(folder / "cifar-10-binary.tar.gz", cifar10_parts())
    write_tiny(folder / "tiny-imagenet-200.zip")
    register(monkeypatch, folder)
    return folder


@pytest.fixture
def served(archives, monkeypatch):
    """Serve the folder of archives, and point the addresses of the sets to it."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(archives))
    monkeypatch.setattr(handler.func, "log_message", lambda *_: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setattr(
            fetched,
            "SOURCES",
            {name: source._replace(url=url) for name, source in fetched.SOURCES.items()},
        )
        register(monkeypatch, archives)
        yield archives
        server.shutdown()
