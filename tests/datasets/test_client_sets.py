"""Sets that come by clients, read from small archives made here in the published forms."""

import inspect
import tarfile
import zipfile

import numpy as np
import pytest

from fedjax_sim import datasets, partition
from fedjax_sim.datasets import fetched, raw_files
from fedjax_sim.settings import ConfigError
from tests.datasets.small_files import add_member, jpeg, quarters, register, rows, write_hdf5


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a set from the raw files in the folder `tmp_path`, which count as the original ones."""

    def load_it(name):
        register(monkeypatch, tmp_path)
        read = datasets.load_text if datasets.is_text(name) else datasets.load
        return read(name, data_dir=tmp_path, cache_dir=tmp_path / "cache")

    return load_it


def decoded(data: datasets.Text, sequences: np.ndarray, between: str = "") -> list[str]:
    symbols = ("_", "?", "<", ">", *data.characters[2:])
    return [between.join(symbols[code] for code in sequence) for sequence in sequences]


def test_shakespeare_keeps_roles_and_leafs_split(load, tmp_path) -> None:
    long = "To be, or not to be, that is the question. " * 3  # 129 characters
    train = {"PLAY_ROMEO": [b"Ay me!", long.encode()], "PLAY_JULIET": ["Ô".encode()]}
    test = {"PLAY_ROMEO": [b"Farewell."], "PLAY_JULIET": [b"O!"]}
    write_hdf5(
        tmp_path / "shakespeare.tar.bz2",
        {
            f"shakespeare_{split}.h5": {c: {"snippets": lines} for c, lines in clients.items()}
            for split, clients in (("train", train), ("test", test))
        },
    )
    data = load("shakespeare")
    assert data.speakers == ("PLAY_JULIET", "PLAY_ROMEO") and data.num_classes == 90
    assert data.train_sequences.shape == (4, 81) and data.train_sequences.dtype == np.uint8
    assert data.train_clients.tolist() == [0, 1, 1, 1] and data.test_speakers.tolist() == [0, 1]
    juliet, short, first, second = decoded(data, data.train_sequences)
    assert juliet.rstrip("_") == "<?>" and short.rstrip("_") == "<Ay me!>"
    # Every character is predicted once: a sequence begins with the last one of that before it.
    assert first + second[1:].rstrip("_") == f"<{long}>"
    assert [line.rstrip("_") for line in decoded(data, data.test_sequences)] == [
        "<O!>",
        "<Farewell.>",
    ]
    (tmp_path / "shakespeare.tar.bz2").unlink()
    again = datasets.load_text("shakespeare", cache_dir=tmp_path / "cache")
    assert again[4:] == data[4:] and np.array_equal(again[0], data[0])
    part = partition.natural(
        data.train_speakers, client_ids=data.train_clients, num_clients=2, seed=0
    )
    assert part.counts.tolist() == [1, 3]


def write_stackoverflow(folder, num_words: int = 300) -> None:
    train = {"7": [b"w0 w1 unheard-of", b"w299 ."], "12": [b" ".join([b"w2"] * 25)] * 3}
    test = {str(i): [f"w{i}".encode(), b"w0"] for i in (7, 30, 31, 32)}
    write_hdf5(
        folder / "stackoverflow.tar.bz2",
        {
            f"stackoverflow_{split}.h5": {c: {"tokens": lines} for c, lines in clients.items()}
            for split, clients in (("train", train), ("test", test))
        },
    )
    counts = "".join(f"w{i} {1000 - i}\n" for i in range(num_words)).encode()
    with tarfile.open(folder / "stackoverflow.word_count.tar.bz2", "w:bz2") as tar:
        add_member(tar, "stackoverflow.word_count", counts)


def test_stackoverflow_keeps_users_first_sentences_and_frequent_words(
    load, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(raw_files, "STACKOVERFLOW_SENTENCES", 2)
    monkeypatch.setattr(raw_files, "STACKOVERFLOW_TESTS", 2)
    write_stackoverflow(tmp_path)
    data = load("stackoverflow")
    assert data.speakers == ("12", "7") and data.num_classes == 304
    assert data.train_sequences.shape == (4, 21) and data.train_sequences.dtype == np.uint16
    assert data.train_speakers.tolist() == [0, 0, 1, 1]
    lines = decoded(data, data.train_sequences, " ")
    # A long sentence is cut after 20 words, before its end.
    assert lines[0] == lines[1] == " ".join(["<"] + 20 * ["w2"])
    assert [line.replace(" _", "") for line in lines[2:]] == ["< w0 w1 ? >", "< w299 ? >"]
    # Two of four test users, equally far apart; neither has training sentences.
    assert [line.replace(" _", "") for line in decoded(data, data.test_sequences, " ")] == [
        "< w30 >",
        "< w32 >",
    ]
    assert data.test_speakers.tolist() == [-1, -1]


def test_federated_cifar100_keeps_clients(load, tmp_path) -> None:
    rng = np.random.default_rng(0)

    def clients(number, size):
        return {
            str(i): {
                "image": rng.integers(0, 256, (size, 32, 32, 3), np.uint8),
                "label": rng.integers(0, 100, (size, 1)),
                "coarse_label": np.zeros((size, 1), int),
            }
            for i in range(number)
        }

    files = {
        f"fed_cifar100_{split}.h5": clients(*n)
        for split, n in (("train", (3, 4)), ("test", (2, 3)))
    }
    write_hdf5(tmp_path / "fed_cifar100.tar.bz2", files)
    data = load("federated_cifar100")
    assert data.train_images.shape == (12, 32, 32, 3) and len(data.test_labels) == 6
    assert data.num_classes == 100
    for client, written in files["fed_cifar100_train.h5"].items():
        own = data.train_clients == int(client)
        assert rows(data.train_images[own], data.train_labels[own]) == rows(
            written["image"], written["label"][:, 0]
        )


def write_cifar100(path, **changes) -> None:
    rng = np.random.default_rng(1)
    records = rng.integers(0, 100, (8, 2 + 3072), np.uint8)
    members = {
        "train.bin": records[:6].tobytes(),
        "test.bin": records[6:].tobytes(),
        "fine_label_names.txt": "\n".join(f"class{i}" for i in range(100)).encode(),
    } | changes
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            add_member(tar, f"cifar-100-binary/{name}", content)


def test_cifar100_takes_the_second_label(load, tmp_path) -> None:
    write_cifar100(tmp_path / "cifar-100-binary.tar.gz")
    data = load("cifar100")
    records = np.random.default_rng(1).integers(0, 100, (8, 2 + 3072), np.uint8)
    images = records[:6, 2:].reshape(6, 3, 32, 32).transpose(0, 2, 3, 1)
    assert rows(data.train_images, data.train_labels) == rows(images, records[:6, 1])
    assert data.num_classes == 100 and len(data.test_labels) == 2


def write_celeba(folder, sizes=(5, 4, 12), **changes) -> list[int]:
    """Write images of celebrities 30, 20 and 10 in turns; return the celebrity of each image."""
    celebrities = [c for c, size in zip((30, 20, 10), sizes, strict=True) for _ in range(size)]
    order = np.random.default_rng(2).permutation(len(celebrities))
    celebrities = [celebrities[i] for i in order]
    names = [f"{i + 1:06d}.jpg" for i in range(len(celebrities))]
    smiles = {name: i % 3 == 0 for i, name in enumerate(names)}
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as file:
        for i, name in enumerate(names):
            grey = np.full((218, 178, 3), 10 * i, np.uint8)
            file.writestr(f"img_align_celeba/{name}", changes.get(name) or jpeg(grey))
    lines = [f"{name}  -1 {'1' if smiles[name] else '-1'} 1" for name in names]
    head = f"{len(names)}\nBald Smiling Young\n"
    (folder / "list_attr_celeba.txt").write_text(head + "\n".join(lines) + "\n")
    pairs = zip(names, celebrities, strict=True)
    (folder / "identity_CelebA.txt").write_text("".join(f"{n} {c}\n" for n, c in pairs))
    return celebrities


def test_celeba_has_a_client_for_each_celebrity_with_five_images(load, tmp_path) -> None:
    celebrities = write_celeba(tmp_path)
    data = load("celeba")
    assert data.train_images.shape == (15, 84, 84, 3) and data.num_classes == 2
    numbers = np.rint(data.train_images.mean(axis=(1, 2, 3)) / 10).astype(int)
    assert [celebrities[i] for i in numbers] == [(10, 30)[c] for c in data.train_clients]
    assert data.train_labels.tolist() == [int(i % 3 == 0) for i in numbers]
    # A tenth of five images is one, of twelve too: the last ones.
    tests = sorted(np.rint(data.test_images.mean(axis=(1, 2, 3)) / 10).astype(int).tolist())
    assert tests == sorted(
        max(i for i, c in enumerate(celebrities) if c == who) for who in (10, 30)
    )


DAMAGED = {
    "shakespeare without test": (
        "shakespeare",
        lambda folder: write_hdf5(folder / "shakespeare.tar.bz2", {"shakespeare_train.h5": {}}),
        "shakespeare_test.h5, which is missing",
    ),
    "shakespeare without snippets": (
        "shakespeare",
        lambda folder: write_hdf5(
            folder / "shakespeare.tar.bz2",
            {f"shakespeare_{split}.h5": {"A": {"x": [1]}} for split in ("train", "test")},
        ),
        "shakespeare_train.h5, A: .*snippets",
    ),
    "stackoverflow without its words": (
        "stackoverflow",
        lambda folder: (
            write_stackoverflow(folder),
            (folder / "stackoverflow.word_count.tar.bz2").write_bytes(b"BZh9"),
        ),
        "word_count.tar.bz2.* undamaged",
    ),
    "federated CIFAR-100 of another size": (
        "federated_cifar100",
        lambda folder: write_hdf5(
            folder / "fed_cifar100.tar.bz2",
            {
                f"fed_cifar100_{split}.h5": {
                    "0": {"image": np.zeros((2, 28, 28, 3), np.uint8), "label": np.zeros((2, 1))}
                }
                for split in ("train", "test")
            },
        ),
        "no images of 32x32x3 with labels from 0 to 99",
    ),
    "CIFAR-100 with a label too large": (
        "cifar100",
        lambda folder: write_cifar100(
            folder / "cifar-100-binary.tar.gz", **{"test.bin": bytes([0, 100]) + bytes(3072)}
        ),
        "a hundred class names and labels from 0 to 99",
    ),
    "CelebA without the attribute": (
        "celeba",
        lambda folder: (
            write_celeba(folder),
            (folder / "list_attr_celeba.txt").write_text("1\nBald\n000001.jpg 1\n"),
        ),
        "list_attr_celeba.txt.* undamaged",
    ),
    "CelebA with an image of another size": (
        "celeba",
        lambda folder: write_celeba(folder, **{"000001.jpg": jpeg(quarters(0))}),
        "000001.jpg: an image of 64x64 instead of 178x218",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_client_sets_are_refused_in_one_sentence(load, tmp_path, case) -> None:
    name, write, words = DAMAGED[case]
    write(tmp_path)
    with pytest.raises(ConfigError, match=words) as caught:
        load(name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache" / f"{name}.npz").exists()


def test_damaged_cache_of_a_text_is_named(tmp_path) -> None:
    (tmp_path / "stackoverflow.npz").write_bytes(b"PK not really")
    with pytest.raises(ConfigError, match=r"file in the cache is .*stackoverflow\.npz"):
        datasets.load_text("stackoverflow", cache_dir=tmp_path)


def test_a_text_is_downloaded_and_checked_before_it_is_read(served, tmp_path, monkeypatch) -> None:
    write_stackoverflow(served)
    url = fetched.SOURCES["cifar10"].url
    source = fetched.CLIENT_TEXTS["stackoverflow"]._replace(url=url)
    monkeypatch.setitem(fetched.CLIENT_TEXTS, "stackoverflow", source)
    with pytest.raises(ConfigError, match=r"stackoverflow\.tar\.bz2 was downloaded with another"):
        datasets.load_text("stackoverflow", cache_dir=tmp_path / "cache")
    register(monkeypatch, served)
    assert len(datasets.load_text("stackoverflow", cache_dir=tmp_path / "cache")[0]) == 5


def test_the_table_of_what_to_fetch_stands_in_the_docstring() -> None:
    lines = [" ".join(line.split()) for line in (inspect.getdoc(datasets) or "").splitlines()]
    for row in datasets.what_to_fetch():
        assert all(row.values())
        columns = ("data set", "to fetch", "licence", "from")
        assert " ".join(row[column] for column in columns) in lines


def test_the_command_line_prints_what_to_fetch(capsys, monkeypatch) -> None:
    from fedjax_sim.cli.commands import main

    monkeypatch.setenv("COLUMNS", "400")
    assert main(["list", "datasets"]) == 0
    printed = capsys.readouterr().out
    for row in datasets.what_to_fetch():
        assert row["data set"] in printed
        assert all(file in printed for file in row["raw files"].split(", "))


@pytest.mark.slow
def test_sequences_of_words_train_a_network(load, tmp_path) -> None:
    import jax

    from fedjax_sim import models, problems

    write_stackoverflow(tmp_path)
    data = load("stackoverflow")
    part = partition.natural(
        data.train_speakers, client_ids=data.train_clients, num_clients=2, seed=0
    )
    network = models.CharacterRNN(data.num_classes, embedding=3, hidden=(4,))
    [problem] = problems.make_next_characters(network, data, [part])
    params = problem.init(jax.random.key(0))
    loss = problem.loss(params, jax.numpy.int32(1), jax.numpy.arange(2), jax.random.key(1))
    # The initial network hardly prefers any of the words.
    assert abs(float(loss) - np.log(data.num_classes)) < 0.5
