"""Plays as sequences of characters with speakers."""

import itertools

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.datasets import fetched
from fedjax_sim.datasets import text as texts
from tests.datasets.plays import PLAY
from tests.datasets.small_files import register


def decoded(data: datasets.Text, sequence: np.ndarray) -> str:
    return "".join(("_?" + data.characters)[code] for code in sequence)


def test_speeches_of_a_speaker_are_joined() -> None:
    assert texts.speeches(PLAY) == {
        "ANNA": "abab abab\nabab\nabab abab!",
        "BERT": "ccdd ccdd ccdd ccdd\n ccdd",
        "CLOWN": "ha",
    }
    assert texts.speeches(PLAY.replace("\n", "\r\n")) == texts.speeches(PLAY)
    # Several empty lines separate speeches; a line within a speech may end in a colon.
    assert texts.speeches("X:\n\n\n\nY:\none:\ntwo\n\n\n\nX:\nthree") == {
        "Y": "one:\ntwo",
        "X": "three",
    }


def test_sequences_predict_every_character_but_the_first_once() -> None:
    data = datasets.from_text(PLAY, sequence_length=4, held_out=0.2, min_characters=8, name="play")
    assert data.speakers == ("ANNA", "BERT")  # the clown has too little to say
    for i, words in enumerate(("abab abab\nabab\nabab abab!", "ccdd ccdd ccdd ccdd\n ccdd")):
        train = len(words) - round(0.2 * len(words))
        for rows, speakers, part in (
            (data.train_sequences, data.train_speakers, words[:train]),
            (data.test_sequences, data.test_speakers, words[train:]),
        ):
            sequences = [decoded(data, row) for row in rows[speakers == i]]
            assert {len(sequence) for sequence in sequences} == {5}
            assert all(before[-1] == after[0] for before, after in itertools.pairwise(sequences))
            read = sequences[0][0] + "".join(sequence[1:] for sequence in sequences)
            padding = len(read) - len(part)
            assert 0 <= padding < 4
            assert read == part.replace("!", "?") + "_" * padding  # no training text has a "!"
    assert data.characters == "\n abcd" and data.num_classes == 8
    assert data.train_sequences.dtype == np.uint8
    assert data.train_clients is data.train_speakers


def test_the_most_frequent_characters_have_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MOST_CHARACTERS", 2)
    few = datasets.from_text(
        "X:\n" + "zzyxyzyy" * 5, sequence_length=4, min_characters=8, name="few"
    )
    assert few.characters == "yz"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("To be, or not to be", "number of speeches in play is 0"),
        ("", "number of speeches in play is 0"),
        (PLAY, "min_characters is 160, but must be at most 25, the most that a speaker"),
    ],
)
def test_bad_texts_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        datasets.from_text(text, name="play")


def test_own_file(tmp_path) -> None:
    path = tmp_path / "play.txt"
    path.write_text(
        "\n\n".join(f"{name}:\n" + "word " * 40 for name in ("Ä", "B")), encoding="utf-8"
    )
    for name in (str(path), f"text:{path}"):
        data = datasets.load_text(name)
        assert data.name == "play" and data.speakers == ("Ä", "B")
        assert data.train_sequences.shape[1] == 81
    with pytest.raises(ConfigError, match=r"text file is .*nowhere\.txt"):
        datasets.load_text("nowhere.txt")
    (tmp_path / "bad.txt").write_bytes(b"A:\n\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"text file is .*bad\.txt.*UTF-8"):
        datasets.load_text(str(tmp_path / "bad.txt"))
    with pytest.raises(
        ConfigError, match="dataset is 'digits', but must be one of tiny_shakespeare"
    ):
        datasets.load_text("digits")
    with pytest.raises(ConfigError, match=r"dataset is .*, but must be a set of images"):
        datasets.load(str(path))


def test_tiny_shakespeare_comes_through_tensorflow_datasets(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = "\n\n".join(f"S{i % 3}:\n" + f"line {i}\n" * 30 for i in range(10)) + "\n"
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "input.txt").write_text(play)
    with pytest.raises(
        ConfigError, match=r"data_dir is .*original files of tiny_shakespeare.*checksum"
    ):
        datasets.load_text("tiny_shakespeare", data_dir=raw, cache_dir=tmp_path / "cache")
    register(monkeypatch, raw)
    got = datasets.load_text("tiny_shakespeare", data_dir=raw, cache_dir=tmp_path / "cache")
    expected = datasets.from_text(play, name="tiny_shakespeare")
    assert got[4:] == expected[4:] and all(
        np.array_equal(a, b) for a, b in zip(got[:4], expected[:4], strict=True)
    )
    with np.load(tmp_path / "cache" / "tiny_shakespeare.npz") as file:
        assert file["text"].tobytes().decode() == play
    monkeypatch.setattr(fetched, "_prepare_text", None)
    assert datasets.load_text("tiny_shakespeare", cache_dir=tmp_path / "cache")[4:] == got[4:]

    def no_network(*_, **__):
        raise OSError("no route to host")

    monkeypatch.undo()
    monkeypatch.setattr(fetched.urllib.request, "urlopen", no_network)
    with pytest.raises(
        ConfigError,
        match=r"data_dir is None, but must be a folder with input.txt.*no route to host",
    ):
        datasets.load_text("tiny_shakespeare", cache_dir=tmp_path / "other")
