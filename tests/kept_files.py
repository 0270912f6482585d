"""What tests do to kept files: damage them, and write what runs code when it is unpickled."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.lifecycle import InputError

NUM_FLIPS = 40


class Touch:
    """Makes a file when it is read as a pickle."""

    def __init__(self, path: Path):
        self.path = path

    def __call__(self, rate: float) -> None:
        """Look like an optimizer."""

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def flipped(path: Path, seed: int = 0) -> Iterator[None]:
    """Flip one random bit of a file in turn, and set it back at the end."""
    sound = path.read_bytes()
    random = np.random.default_rng(seed)
    try:
        for _ in range(NUM_FLIPS):
            place, bit = int(random.integers(len(sound))), int(random.integers(8))
            damaged = bytearray(sound)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            yield
    finally:
        path.write_bytes(sound)


def count_refusals(path: Path, read: Callable[[], Any], is_as_before: Callable[[Any], bool]) -> int:
    """Read with each of the flips: every refusal is one sentence that names the file."""
    refused = 0
    for _ in flipped(path):
        try:
            assert is_as_before(read())
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error), error
            refused += 1
    return refused


def without_seal(content: bytes) -> bytes:
    """Return a file's content without its SHA-256."""
    return re.sub(rb',?\n *"sha256": "[0-9a-f]{64}"\n(?=}?\n?\Z)', rb"\n", content)
