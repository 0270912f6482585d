"""Plays as sequences of characters with a speaker each: what next-character prediction learns from.

A play is plain text of speeches, parted by empty lines, whose first line names the speaker, followed by a colon:

    First Citizen:
    Before we proceed any further, hear me speak.

Letters: `n` sequences, `L` characters that are predicted in a sequence.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError

PADDING, UNKNOWN = 0, 1
FIRST_CHARACTER = 2
MOST_CHARACTERS = 254
"""Codes are bytes."""


class Text(NamedTuple):
    """Sequences of character codes to train on and to test on. The first L codes of a sequence are inputs, the last L what follows each."""

    train_sequences: (
        np.ndarray
    )  # u8[n, L + 1]  PADDING, UNKNOWN, or FIRST_CHARACTER + place in `characters`
    train_speakers: np.ndarray  # i32[n], places in `speakers`
    test_sequences: np.ndarray  # of another n
    test_speakers: np.ndarray
    characters: str
    speakers: tuple[str, ...]
    name: str

    @property
    def num_classes(self) -> int:
        """Number of codes."""
        return FIRST_CHARACTER + len(self.characters)

    @property
    def train_clients(self) -> np.ndarray:
        """Whose each training sequence is: a client is a speaker."""
        return self.train_speakers


def from_text(
    text: str,
    *,
    sequence_length: int = 80,
    held_out: float = 0.2,
    min_characters: int | None = None,
    characters: str | None = None,
    name: str,
) -> Text:
    """Make a data set of a play, or raise ConfigError naming what is wrong with it.

    A speaker is a name, in whatever play of the text; the speeches of one are joined by line ends. The last `held_out` share of each
    speaker's characters is for testing, the rest for training; both are cut into sequences, of which each character but the first is
    predicted once, and the last is padded. min_characters: speakers with fewer are left out, by default two sequences' worth.
    characters: what has a code, by default the characters of the training text, or its `MOST_CHARACTERS` most frequent ones; others
    are UNKNOWN. Sequences are of 80 as in the benchmark of adaptive federated optimisation (Reddi et al., arXiv 2003.00295), which
    has 86 fixed characters and two codes more, for a speech's beginning and end.
    """
    if not isinstance(sequence_length, int) or sequence_length < 1:
        raise ConfigError("sequence_length", sequence_length, "a whole number of at least 1")
    if not 0 < held_out < 1:
        raise ConfigError("held_out", held_out, "above 0 and below 1")
    if (
        characters is not None
        and not 0 < len(set(characters)) == len(characters) <= MOST_CHARACTERS
    ):
        raise ConfigError("characters", characters, f"from 1 to {MOST_CHARACTERS} different ones")
    least = 2 * sequence_length if min_characters is None else min_characters
    if not isinstance(least, int) or least < 1:
        raise ConfigError("min_characters", min_characters, "a whole number of at least 1")
    whole = speeches(text)
    if not whole:
        raise ConfigError(
            f"number of speeches in {name}",
            0,
            'at least 1: parted by empty lines, each headed by a line "NAME:"',
        )
    parts = {}
    for speaker, words in whole.items():
        train = len(words) - max(2, round(held_out * len(words)))
        if len(words) >= least and train >= 2:  # a character and what follows it, on both sides
            parts[speaker] = (words[:train], words[train:])
    if not parts:
        raise ConfigError(
            "min_characters",
            least,
            f"at most {max(map(len, whole.values()))}, the most that a speaker of {name} has",
        )
    if characters is None:
        counted = Counter("".join(train for train, _ in parts.values()))
        characters = "".join(
            sorted(character for character, _ in counted.most_common(MOST_CHARACTERS))
        )
    code = {character: FIRST_CHARACTER + i for i, character in enumerate(characters)}

    def sequences(side: int) -> tuple[np.ndarray, np.ndarray]:
        own = [
            _cut(
                np.array([code.get(character, UNKNOWN) for character in each[side]], np.uint8),
                sequence_length,
            )
            for each in parts.values()
        ]
        return np.concatenate(own), np.repeat(
            np.arange(len(own), dtype=np.int32), [len(rows) for rows in own]
        )

    return Text(*sequences(0), *sequences(1), characters, tuple(parts), name)


def speeches(text: str) -> dict[str, str]:
    """Join each speaker's speeches, in order of first appearance. A paragraph without a name goes on with the speech before it."""
    found: dict[str, list[str]] = {}
    speaker = None
    for paragraph in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        head, _, body = paragraph.strip("\n").partition("\n")
        if head.endswith(":"):
            speaker = head[:-1].strip()
        else:
            body = paragraph.strip("\n")
        if speaker is not None and body:
            found.setdefault(speaker, []).append(body)
    return {speaker: "\n".join(bodies) for speaker, bodies in found.items()}


def _cut(codes: np.ndarray, length: int) -> np.ndarray:
    """Cut codes `u8[m]`, m at least 2, into sequences `u8[n, length + 1]`, each beginning with the last code of the one before."""
    num = -(-(len(codes) - 1) // length)
    padded = np.pad(codes, (0, num * length + 1 - len(codes)), constant_values=PADDING)
    return padded[np.arange(num)[:, None] * length + np.arange(length + 1)]


def from_file(path: Path, name: str | None = None) -> Text:
    """Read a play in UTF-8; the file's name without its ending is the set's, unless one is given."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "text file", str(path), f"an existing file of text in UTF-8 ({error})"
        ) from None
    return from_text(text, name=name or path.stem)
