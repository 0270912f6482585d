"""Sets that come by clients, read from small archives made here in the published forms."""

import inspect
import tarfile

import numpy as np
import pytest

from fedjax_sim import datasets, partition
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.datasets import fetched
from tests.datasets.small_files import add_member, register, rows, write_hdf5


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


LONG = "To be, or not to be, that is the question. " * 3
"""129 characters."""


def write_shakespeare(folder) -> None:
    train = {"PLAY_ROMEO": [b"Ay me!", LONG.encode()], "PLAY_JULIET": ["Ô".encode()]}
    test = {"PLAY_ROMEO": [b"Farewell."], "PLAY_JULIET": [b"O!"]}
    write_hdf5(
        folder / "shakespeare.tar.bz2",
        {
            f"shakespeare_{split}.h5": {c: {"snippets": lines} for c, lines in clients.items()}
            for split, clients in (("train", train), ("test", test))
        },
    )


def test_shakespeare_keeps_roles_and_leafs_split(load, tmp_path) -> None:
    write_shakespeare(tmp_path)
    data = load("shakespeare")
    assert data.speakers == ("PLAY_JULIET", "PLAY_ROMEO") and data.num_classes == 90
    assert data.train_sequences.shape == (4, 81) and data.train_sequences.dtype == np.uint8
    assert data.train_clients.tolist() == [0, 1, 1, 1] and data.test_speakers.tolist() == [0, 1]
    juliet, short, first, second = decoded(data, data.train_sequences)
    assert juliet.rstrip("_") == "<?>" and short.rstrip("_") == "<Ay me!>"
    # Every character is predicted once: a sequence begins with the last one of that before it.
    assert first + second[1:].rstrip("_") == f"<{LONG}>"
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
    "CIFAR-100 with a label too large": (
        "cifar100",
        lambda folder: write_cifar100(
            folder / "cifar-100-binary.tar.gz", **{"test.bin": bytes([0, 100]) + bytes(3072)}
        ),
        "a hundred class names and labels from 0 to 99",
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
    (tmp_path / "shakespeare.npz").write_bytes(b"PK not really")
    with pytest.raises(ConfigError, match=r"file in the cache is .*shakespeare\.npz"):
        datasets.load_text("shakespeare", cache_dir=tmp_path)


def test_a_text_is_downloaded_and_checked_before_it_is_read(served, tmp_path, monkeypatch) -> None:
    write_shakespeare(served)
    url = fetched.SOURCES["cifar10"].url
    source = fetched.TEXTS["shakespeare"]._replace(url=url)
    monkeypatch.setitem(fetched.TEXTS, "shakespeare", source)
    with pytest.raises(ConfigError, match=r"shakespeare\.tar\.bz2 was downloaded with another"):
        datasets.load_text("shakespeare", cache_dir=tmp_path / "cache")
    register(monkeypatch, served)
    assert len(datasets.load_text("shakespeare", cache_dir=tmp_path / "cache")[0]) == 4


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
