"""Plays as sequences with speakers, next-character prediction on them, and EMNIST by writers."""

import io
import itertools
import tarfile

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.cli.commands import main
from fedjax_sim.datasets import fetched
from fedjax_sim.datasets import text as texts
from fedjax_sim.problems import next_character
from fedjax_sim.settings import ConfigError
from fedjax_sim.systems import fedavg

PLAY = """A title page, of no speaker.

ANNA:
abab abab
abab

BERT:
ccdd ccdd ccdd ccdd

 ccdd

ANNA:
abab abab!

CLOWN:
ha
"""


def decoded(data: datasets.Text, sequence: np.ndarray) -> str:
    return "".join(("_?" + data.characters)[code] for code in sequence)


# Reading ------------------------------------------------------------------------------------------------------------------------------


def test_speeches_of_a_speaker_are_joined() -> None:
    assert texts.speeches(PLAY) == {
        "ANNA": "abab abab\nabab\nabab abab!",
        "BERT": "ccdd ccdd ccdd ccdd\n ccdd",
        "CLOWN": "ha",
    }
    assert texts.speeches(PLAY.replace("\n", "\r\n")) == texts.speeches(PLAY)
    # More than one empty line, and a line that ends in a colon within a speech.
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
            own = [decoded(data, row) for row in rows[speakers == i]]
            assert {len(row) for row in own} == {5}
            assert all(before[-1] == after[0] for before, after in itertools.pairwise(own))
            read = own[0][0] + "".join(row[1:] for row in own)
            padding = len(read) - len(part)
            assert 0 <= padding < 4
            assert read == part.replace("!", "?") + "_" * padding  # no training text has a "!"
    assert data.characters == "\n abcd" and data.num_classes == 8
    assert data.train_sequences.dtype == np.uint8
    assert data.train_clients is data.train_speakers


def test_characters_may_be_given_and_are_the_most_frequent_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = datasets.from_text(
        PLAY, sequence_length=4, min_characters=8, characters="ba!", name="play"
    )
    assert data.characters == "ba!" and data.num_classes == 5
    assert decoded(data, data.train_sequences[0]) == "abab?"
    monkeypatch.setattr(texts, "MOST_CHARACTERS", 2)
    few = datasets.from_text(
        "X:\n" + "zzyxyzyy" * 5, sequence_length=4, min_characters=8, name="few"
    )
    assert few.characters == "yz"


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("To be, or not to be", {}, "number of speeches in play is 0"),
        ("", {}, "number of speeches in play is 0"),
        (PLAY, {}, "min_characters is 160, but must be at most 25, the most that a speaker"),
        (PLAY, {"sequence_length": 0}, "sequence_length is 0"),
        (PLAY, {"held_out": 1.0}, "held_out is 1.0"),
        (PLAY, {"min_characters": 0}, "min_characters is 0"),
        (PLAY, {"characters": "aa"}, "characters is 'aa', but must be from 1 to 254 different"),
    ],
)
def test_bad_texts_are_refused(text: str, options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        datasets.from_text(text, name="play", **options)


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
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import checksums

    play = "\n\n".join(f"S{i % 3}:\n" + f"line {i}\n" * 30 for i in range(10)) + "\n"
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "input.txt").write_text(play)
    with pytest.raises(
        ConfigError, match=r"data_dir is .*original files of tiny_shakespeare.*checksum"
    ):
        datasets.load_text("tiny_shakespeare", data_dir=raw, cache_dir=tmp_path / "cache")
    source = fetched.TEXTS["tiny_shakespeare"]
    address = source.url + source.raw_files[0]
    assert address in fetched._registered_files(tfds.builder_cls("tiny_shakespeare"))
    monkeypatch.setattr(
        fetched,
        "_registered_files",
        lambda _: {address: checksums.compute_url_info(raw / "input.txt")},
    )
    got = datasets.load_text("tiny_shakespeare", data_dir=raw, cache_dir=tmp_path / "cache")
    expected = datasets.from_text(play, name="tiny_shakespeare")
    assert got[4:] == expected[4:] and all(
        np.array_equal(a, b) for a, b in zip(got[:4], expected[:4], strict=True)
    )
    assert (tmp_path / "cache" / "tiny_shakespeare.txt").read_text() == play
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


# Learning -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "expected"), [("lstm", 820_522), ("gru", None)])
def test_recurrent_network(cell: str, expected: int | None) -> None:
    """The published number of parameters; what follows a character has no influence on its logits."""
    model = models.CharacterRNN(90, cell=cell)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 80), int))
    assert expected in (None, sum(leaf.size for leaf in jax.tree.leaves(params)))
    small = models.CharacterRNN(5, 3, (4, 4), cell)
    codes = jnp.array([[0, 1, 2, 3, 4], [0, 1, 2, 4, 4]])
    weights = small.init(jax.random.key(1), codes)
    logits = small.apply(weights, codes)
    assert logits.shape == (2, 5, 5)
    np.testing.assert_array_equal(logits[0, :3], logits[1, :3])
    assert not np.allclose(logits[0, 3:], logits[1, 3:])
    np.testing.assert_allclose(small.apply(weights, codes[0]), logits[0], atol=1e-6)
    assert models.MODELS[f"char_{cell}"].make(90, None) == model  # type: ignore[arg-type]


class Bigrams:
    """A model whose parameters are the logits of what follows each character."""

    def __init__(self, num: int):
        self.num = num

    def init(self, key: jax.Array, x: jax.Array) -> jax.Array:
        return jax.random.normal(key, (self.num, self.num))

    def apply(self, params: jax.Array, x: jax.Array) -> jax.Array:
        return params[x]


@pytest.fixture(scope="module")
def play() -> datasets.Text:
    return datasets.from_text(PLAY, sequence_length=4, held_out=0.45, min_characters=8, name="play")


def speakers_of(data: datasets.Text) -> partition.Partition:
    return partition.natural(
        data.train_speakers, client_ids=data.train_clients, num_clients=len(data.speakers), seed=0
    )


def test_loss_and_metrics_by_hand(play: datasets.Text) -> None:
    """Per character, without padding; a character without a code is never right but costs its loss."""
    problem = problems.make_next_characters(Bigrams(play.num_classes), play, [speakers_of(play)])[0]
    params = problem.init(jax.random.key(3))
    log_probability = np.asarray(jax.nn.log_softmax(params))

    def by_hand(rows: np.ndarray) -> tuple[float, float]:
        pairs = [(a, b) for row in rows for a, b in itertools.pairwise(row) if b != texts.PADDING]
        right = [np.argmax(log_probability[a]) == b != texts.UNKNOWN for a, b in pairs]
        return -float(np.mean([log_probability[pair] for pair in pairs])), float(np.mean(right))

    for client in range(2):
        own = play.train_sequences[play.train_speakers == client]
        assert problem.counts[client] == len(own)
        picked = np.array([len(own) - 1, 0, 0])  # the padded one, and one twice
        loss = problem.loss(params, jnp.asarray(client), jnp.asarray(picked), jax.random.key(0))
        assert float(loss) == pytest.approx(by_hand(own[picked])[0], rel=1e-5)
    found = problem.evaluate(params)
    loss, accuracy = by_hand(play.test_sequences)
    assert float(found["loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(found["accuracy"]) == pytest.approx(accuracy, rel=1e-5)
    # Test texts have a "!" without a code; foreseeing that there is one is not knowing it.
    assert np.sum(play.test_sequences[:, 1:] == texts.UNKNOWN) == 1
    foreseen = jnp.zeros((play.num_classes,) * 2).at[:, texts.UNKNOWN].set(50.0)
    assert float(problem.evaluate(foreseen)["accuracy"]) == 0


def test_evaluation_in_batches_is_the_same(
    play: datasets.Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problems.make_next_characters(Bigrams(play.num_classes), play, [speakers_of(play)])[0]
    params = problem.init(jax.random.key(3))
    whole = problem.evaluate(params)
    monkeypatch.setattr(next_character, "EVALUATED_AT_ONCE", 4)
    assert len(play.test_sequences) == 6
    for name, value in problem.evaluate(params).items():
        assert float(value) == pytest.approx(float(whole[name]), rel=1e-6)


def test_a_network_learns_two_speakers_in_the_engine(play: datasets.Text) -> None:
    """Ragged clients, each with words of its own that it says again and again."""
    text = "\n\n".join(
        f"{name}:\n{words * times}" for name, words, times in (("A", "abc ", 20), ("B", "dca, ", 9))
    )
    data = datasets.from_text(text, sequence_length=6, min_characters=8, name="two")
    problem = problems.make_next_characters(
        models.CharacterRNN(data.num_classes, 4, (12,), "gru"), data, [speakers_of(data)]
    )[0]
    assert problem.counts[0] != problem.counts[1]
    hyper = fedavg.Hyper(
        num_clients=2, num_selected=2, local_steps=5, batch_size=4, lr=0.02, optimizer=optax.adam
    )
    curves = fedjax_sim.simulate(fedavg.system, problem, hyper, num_ticks=40, num_evals=2).curves
    assert float(curves.loss[-1]) < 0.6 * float(curves.loss[0])
    assert float(curves.accuracy[-1]) > 0.6


def test_models_that_are_not_of_sequences_are_refused(play: datasets.Text) -> None:
    for model in (
        models.MLP((3,), play.num_classes),
        models.LeNet(play.num_classes),
        models.CharacterRNN(play.num_classes + 1),
    ):
        with pytest.raises(
            ConfigError, match=r"model is .*, but must be one with logits of shape \(1, 4, 8\)"
        ):
            problems.make_next_characters(model, play, [speakers_of(play)])
    bad = partition.Partition(np.array([[100]]), np.array([1]))
    with pytest.raises(ConfigError, match=r"partition\.index is 100"):
        problems.make_next_characters(Bigrams(play.num_classes), play, [bad])


def test_the_command_line_takes_a_text(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Words that are wrong; a run is left to Python, above."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.txt").write_text("\n\n".join(f"S{i}:\n" + "word " * 80 for i in range(4)))
    common = [
        "run",
        "fedavg",
        "--dataset",
        "play.txt",
        "--set",
        "num_clients=4",
        "--set",
        "num_selected=2",
    ]
    for words, message in (
        (["--model", "mlp32"], "model is 'MLP', but must be one with logits of shape (1, 80, 7)"),
        (["--augmentation", "flip"], "augmentation is 'flip', but must be none with a text"),
        (["--set", "local_steps=0"], "local_steps"),
        (["--dataset", "missing.txt"], "second --dataset"),
    ):
        assert main([*common, *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["run", "fedavg", "--partition", "natural"]) == 2
    assert (
        "partition is 'natural', but must be another one, as digits comes without clients"
        in capsys.readouterr().err
    )


# EMNIST by writers --------------------------------------------------------------------------------------------------------------------

WRITERS = {"f0002_01": 5, "f0001_41": 3, "f0003_07": 4}


def write_emnist(path, **changes) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Write a tar in the published form; returns pixels and labels by split and writer."""
    rng = np.random.default_rng(0)
    content: dict = {}
    with tarfile.open(path, "w:bz2") as tar:
        for split, factor in (("train", 2), ("test", 1)):
            file, own = io.BytesIO(), {}
            with h5py.File(file, "w") as h5:
                for writer, num in WRITERS.items():
                    pixels = rng.integers(0, 256, (factor * num, 28, 28)).astype(np.float32) / 255
                    own[writer] = (pixels, rng.integers(0, 62, (factor * num, 1)).astype(np.int32))
                    h5[f"examples/{writer}/pixels"], h5[f"examples/{writer}/label"] = own[writer]
            content[split] = own
            data = changes.get(split, file.getvalue())
            if data is not None:
                info = tarfile.TarInfo(f"fed_emnist_{split}.h5")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return content


def test_emnist_by_writers_keeps_who_wrote_what(tmp_path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    content = write_emnist(raw / "fed_emnist.tar.bz2")
    data = datasets.load("federated_emnist", data_dir=raw, cache_dir=tmp_path / "cache")
    assert data.train_images.shape == (24, 28, 28, 1) and data.test_images.shape == (12, 28, 28, 1)
    assert data.num_classes == 62 and data.train_images.dtype == np.uint8
    for client, writer in enumerate(sorted(WRITERS)):
        pixels, labels = content["train"][writer]
        own = data.train_clients == client
        found = {
            (image.tobytes(), int(label))
            for image, label in zip(data.train_images[own], data.train_labels[own], strict=True)
        }
        assert found == {
            (np.rint(255 * image).astype(np.uint8).tobytes(), int(label))
            for image, label in zip(pixels, labels[:, 0], strict=True)
        }
    part = partition.natural(
        data.train_labels, client_ids=data.train_clients, num_clients=3, seed=0
    )
    assert part.counts.tolist() == [6, 10, 8]
    (raw / "fed_emnist.tar.bz2").unlink()
    again = datasets.load("federated_emnist", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(again.train_clients, data.train_clients)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test": None}, "fed_emnist_test.h5, which is missing"),
        ({"train": b"no HDF5"}, "fed_emnist_train.h5"),
        (None, "undamaged"),
    ],
)
def test_damaged_emnist_is_refused(tmp_path, changes: dict | None, words: str) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    if changes is None:
        (raw / "fed_emnist.tar.bz2").write_bytes(b"BZh9 not really")
    else:
        write_emnist(raw / "fed_emnist.tar.bz2", **changes)
    with pytest.raises(ConfigError, match=words):
        datasets.load("federated_emnist", data_dir=raw, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache" / "federated_emnist.npz").exists()
