"""Texts as sequences of characters, each with its speaker, to predict the next one.

LEAF's Shakespeare, a text that was published by clients, is made of speeches (`encode_clients`) and
cached as arrays (`from_npz`). A play is read from text (`from_text`, `from_file`).

A play is plain text made of speeches, separated by empty lines. The first line of a speech names
the speaker, followed by a colon:

    First Citizen:
    Before we proceed any further, hear me speak.

Letters: `n` sequences; `L` characters to predict in a sequence.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_sim.core.settings import ConfigError, Count, Fraction, check_file, checked, shape
from fedjax_sim.datasets.files import refusing

PADDING = 0
"""Code that fills the end of a sequence."""
UNKNOWN = 1
"""Code of every character that has no code."""
FIRST_CHARACTER = 2
"""Code of the first character in `Text.characters`; the others follow in order."""
MOST_CHARACTERS = 254
"""Largest number of different characters, because codes are bytes."""
ENDS = ("<beginning>", "<end>")
"""The beginning and the end of a speech, in texts that were published by clients."""


@checked
class Text(NamedTuple):
    """Sequences of character codes for training and testing, each with its speaker.

    The first L codes of a sequence are inputs. The last L codes are the targets: the character that
    follows each input.

    Attributes:
      train_sequences: `u8[n, L + 1]`. A code is PADDING, UNKNOWN, or FIRST_CHARACTER plus the
        position in `characters`.
      train_speakers: `i32[n]`, positions in `speakers`.
      test_sequences: As `train_sequences`, with its own number of sequences.
      test_speakers: As `train_speakers`, one for each test sequence.
      characters: The characters that have a code; in a text by clients also the names in `ENDS`.
      speakers: Names of the speakers.
      name: Name of the text, used in tables and pictures.
    """

    train_sequences: Annotated[np.ndarray, shape("n L")]
    train_speakers: Annotated[np.ndarray, shape("n")]
    test_sequences: Annotated[np.ndarray, shape("m L")]
    test_speakers: Annotated[np.ndarray, shape("m")]
    characters: str | tuple[str, ...]
    speakers: tuple[str, ...]
    name: str

    @property
    def num_classes(self) -> int:
        """Number of different codes, PADDING and UNKNOWN included."""
        return FIRST_CHARACTER + len(self.characters)

    @property
    def train_clients(self) -> np.ndarray:
        """Client to which each training sequence belongs, `i32[n]`: a client is a speaker."""
        return self.train_speakers


@checked
def from_text(
    text: str,
    *,
    sequence_length: Count = 80,
    held_out: Fraction = 0.2,
    min_characters: Count | None = None,
    name: str,
) -> Text:
    """Make a data set from the text of a play.

    Speakers are known by name alone, so one name in several plays is one speaker. The speeches
    of a speaker are joined by line ends, the end is kept for testing, and both parts are cut into
    sequences in which every character but a part's first is predicted once.

    Sequences have 80 characters, as in the benchmark of adaptive federated optimisation (Reddi et
    al., arXiv 2003.00295). That benchmark has 86 fixed characters and two further codes, for the
    beginning and the end of a speech.

        play = "ANNA:\\nHello.\\n\\nBEN:\\nGoodbye.\\n\\n" * 20
        text = from_text(play, sequence_length=10, name="play")
        assert text.speakers == ("ANNA", "BEN") and text.train_sequences.shape[1] == 11

    Args:
      text: The play, in the form that the module's docstring shows.
      sequence_length: Characters to predict in a sequence, L, at least 1.
      held_out: Share of each speaker's characters, at the end, that is kept for testing. Between 0
        and 1, exclusive.
      min_characters: Speakers with fewer characters are left out. By default two sequences' worth,
        2 L.
      name: Name of the text.

    Returns:
      The sequences. The last sequence of a speaker's part is padded.

    Raises:
      ConfigError: If an option is out of its range, if the text has no speech, or if no speaker has
        `min_characters`.
    """
    least = 2 * sequence_length if min_characters is None else min_characters
    words_of = speeches(text)
    if not words_of:
        allowed = 'at least 1; speeches are separated by empty lines, each under a line "NAME:"'
        raise ConfigError(f"number of speeches in {name}", 0, allowed)
    parts = {}
    for speaker, words in words_of.items():
        num_train = len(words) - max(2, round(held_out * len(words)))
        # Each part needs two characters: an input and its target.
        if len(words) >= least and num_train >= 2:
            parts[speaker] = (words[:num_train], words[num_train:])
    if not parts:
        most = max(map(len, words_of.values()))
        allowed = f"at most {most}, the most that a speaker of {name} has"
        raise ConfigError("min_characters", least, allowed)
    frequency = Counter("".join(train for train, _ in parts.values()))
    characters = "".join(sorted(each for each, _ in frequency.most_common(MOST_CHARACTERS)))
    code = {character: FIRST_CHARACTER + i for i, character in enumerate(characters)}

    def sequences(side: int) -> tuple[np.ndarray, np.ndarray]:
        of_speakers = []
        for part in parts.values():
            codes = np.array([code.get(character, UNKNOWN) for character in part[side]], np.uint8)
            of_speakers.append(_cut(codes, sequence_length))
        speakers = np.arange(len(of_speakers), dtype=np.int32)
        return np.concatenate(of_speakers), np.repeat(speakers, [len(rows) for rows in of_speakers])

    return Text(*sequences(0), *sequences(1), characters, tuple(parts), name)


def from_file(path: Path, name: str | None = None) -> Text:
    """Read a play from a file in UTF-8, with the default options of `from_text`.

    Args:
      path: File with the play.
      name: Name of the text; by default the file's name without its suffix.

    Returns:
      The sequences for training and testing.

    Raises:
      ConfigError: If the file cannot be read as UTF-8, or if `from_text` refuses its text.
    """
    check_file("text file", path)
    allowed = "an existing file of text in UTF-8"
    with refusing("text file", str(path), allowed, OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
    return from_text(text, name=name or path.stem)


def encode_clients(
    train: Iterable[tuple[str, list[str]]],
    test: Iterable[tuple[str, list[str]]],
    characters: str,
    *,
    length: int,
) -> dict[str, np.ndarray]:
    """Turn clients' speeches into the arrays that `from_npz` reads.

    A speech gets a code at its beginning and at its end. Each character is predicted once, and so
    is the end.

    Args:
      train: Names of the training clients, each with its speeches.
      test: The same for testing, with a client once at most. Clients without training speeches
        count as the client -1.
      characters: The characters that have a code, after those of `ENDS`.
      length: Characters to predict in a sequence, L.

    Returns:
      The first four arrays of `Text` by name, `characters` and `speakers`.
    """
    code = {symbol: i for i, symbol in enumerate(characters, FIRST_CHARACTER + len(ENDS))}
    arrays: dict[str, np.ndarray] = {}
    number: dict[str, int] = {}
    for split, clients in (("train", train), ("test", test)):
        sequences, speakers = [], []
        for name, speeches_of in clients:
            if split == "train":
                number[name] = len(number)
            for speech in speeches_of:
                codes = [code.get(character, UNKNOWN) for character in speech]
                whole = np.array([FIRST_CHARACTER, *codes, FIRST_CHARACTER + 1], np.uint8)
                sequences.append(_cut(whole, length))
                speakers.append(np.full(len(sequences[-1]), number.get(name, -1), np.int32))
        arrays[f"{split}_sequences"] = np.concatenate(sequences)
        arrays[f"{split}_speakers"] = np.concatenate(speakers)
    names = {"characters": np.array([*ENDS, *characters]), "speakers": np.array(list(number))}
    return arrays | names


def from_npz(path: Path, name: str) -> Text:
    """Read a text from the arrays that `encode_clients` made.

    Args:
      path: File with the arrays.
      name: Name of the text.

    Returns:
      The sequences for training and testing.

    Raises:
      ConfigError: If the file is damaged or incomplete.
    """
    check_file("npz file", path)
    allowed = "an undamaged file with the sequences of a text"
    with refusing("npz file", str(path), allowed), np.load(path, allow_pickle=False) as file:
        arrays = {field: file[field] for field in Text._fields[:4]}
        characters, speakers = (tuple(file[field].tolist()) for field in Text._fields[4:6])
        return Text(**arrays, characters=characters, speakers=speakers, name=name)


def speeches(text: str) -> dict[str, str]:
    """Join the speeches of each speaker.

    A paragraph without a name continues the speech before it. Paragraphs before the first name are
    left out.

    Args:
      text: The play, in the form that the module's docstring shows.

    Returns:
      The joined speeches by speaker, in order of first appearance.
    """
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
    """Cut codes `[m]`, m at least 2, into overlapping sequences `[n, length + 1]`.

    Each sequence begins with the last code of the one before it; the last one is padded.
    """
    num = -(-(len(codes) - 1) // length)
    padded = np.pad(codes, (0, num * length + 1 - len(codes)), constant_values=PADDING)
    return padded[np.arange(num)[:, None] * length + np.arange(length + 1)]
