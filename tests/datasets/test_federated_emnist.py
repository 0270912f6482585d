"""EMNIST by writers: every image keeps its writer, and damaged files are refused."""

import io
import tarfile

import h5py
import numpy as np
import pytest

from fedjax_sim import datasets, partition
from fedjax_sim.core.settings import ConfigError
from tests.datasets.small_files import add_member, register

WRITERS = {"f0002_01": 5, "f0001_41": 3, "f0003_07": 4}


def write_emnist(path, **changes) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Write a tar in the published form; return pixels and labels by split and writer."""
    rng = np.random.default_rng(0)
    content: dict = {}
    with tarfile.open(path, "w:bz2") as tar:
        for split, factor in (("train", 2), ("test", 1)):
            file, examples = io.BytesIO(), {}
            with h5py.File(file, "w") as h5:
                for writer, num in WRITERS.items():
                    pixels = rng.integers(0, 256, (factor * num, 28, 28)).astype(np.float32) / 255
                    labels = rng.integers(0, 62, (factor * num, 1)).astype(np.int32)
                    examples[writer] = (pixels, labels)
                    h5[f"examples/{writer}/pixels"] = pixels
                    h5[f"examples/{writer}/label"] = labels
            content[split] = examples
            data = changes.get(split, file.getvalue())
            if data is not None:
                add_member(tar, f"fed_emnist_{split}.h5", data)
    return content


def test_emnist_by_writers_keeps_who_wrote_what(tmp_path, monkeypatch) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    content = write_emnist(raw / "fed_emnist.tar.bz2")
    with pytest.raises(ConfigError, match="original files of federated_emnist"):
        datasets.load("federated_emnist", data_dir=raw, cache_dir=tmp_path / "cache")
    register(monkeypatch, raw)
    data = datasets.load("federated_emnist", data_dir=raw, cache_dir=tmp_path / "cache")
    assert data.train_images.shape == (24, 28, 28, 1) and data.test_images.shape == (12, 28, 28, 1)
    assert data.num_classes == 62 and data.train_images.dtype == np.uint8
    for client, writer in enumerate(sorted(WRITERS)):
        pixels, labels = content["train"][writer]
        is_writers = data.train_clients == client
        found = {
            (image.tobytes(), int(label))
            for image, label in zip(
                data.train_images[is_writers], data.train_labels[is_writers], strict=True
            )
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
def test_damaged_emnist_is_refused(tmp_path, monkeypatch, changes: dict | None, words: str) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    if changes is None:
        (raw / "fed_emnist.tar.bz2").write_bytes(b"BZh9 not really")
    else:
        write_emnist(raw / "fed_emnist.tar.bz2", **changes)
    register(monkeypatch, raw)
    with pytest.raises(ConfigError, match=words):
        datasets.load("federated_emnist", data_dir=raw, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache" / "federated_emnist.npz").exists()
