"""Data sets: forms, the path from raw files through tensorflow-datasets to arrays, and what is refused."""

import gzip
import os
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.settings import ConfigError

RAW_FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
RAW_DATA = os.environ.get("FEDJAX_SIM_RAW_DATA")


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """A folder of small raw files in MNIST's form, which tensorflow-datasets takes for the original ones."""
    from tensorflow_datasets.core.download import checksums

    rng = np.random.default_rng(0)
    folder = tmp_path / "raw"
    folder.mkdir()
    arrays = [array for n in (30, 12) for array in (rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 10, n, np.uint8))]
    for file, array in zip(RAW_FILES, arrays, strict=True):
        write_idx(folder / file, array)
    infos = {
        source.url + file: checksums.compute_url_info(folder / file) for source in datasets._SOURCES.values() for file in source.raw_files
    }
    monkeypatch.setattr(checksums, "get_all_url_infos", lambda: dict(infos))
    return folder, arrays


def rows(images, labels):
    """Examples as a sorted list: tensorflow-datasets shuffles them once."""
    return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))


def own(**changes):
    """A user's arrays, all right but for the changes."""
    arrays = {
        "train_images": np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": np.zeros((2, 4, 3), np.uint8),
        "test_labels": np.array([2, 0]),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def test_digits_are_bytes_split_once_and_for_all():
    digits = datasets.load("digits")
    assert digits.train_images.shape == (1437, 8, 8, 1) and digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.uint8 and digits.train_labels.dtype == np.int32
    assert digits.train_images.min() == 0 and digits.train_images.max() == 255
    assert (digits.num_classes, digits.name) == (10, "digits")
    shares = np.bincount(digits.test_labels) / np.bincount(np.concatenate([digits.train_labels, digits.test_labels]))
    np.testing.assert_allclose(shares, 0.2, atol=0.01)
    again = datasets.load("digits")
    assert all(np.array_equal(a, b) for a, b in zip(digits[:4], again[:4], strict=True))


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    digits = datasets.load("digits")
    ours = np.concatenate([digits.train_images, digits.test_images])
    back = np.rint(ours / 255 * 16).astype(np.uint8)
    assert rows(back, np.concatenate([digits.train_labels, digits.test_labels])) == rows(images.astype(np.uint8), labels)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_raw_files_come_back_as_arrays_and_are_prepared_once(raw, tmp_path, monkeypatch, name):
    folder, (train_images, train_labels, test_images, test_labels) = raw
    cache = tmp_path / "cache"
    had_tensorflow = "tensorflow" in sys.modules
    got = datasets.load(name, data_dir=folder, cache_dir=cache)
    assert ("tensorflow" in sys.modules) == had_tensorflow
    assert got.train_images.shape == (30, 28, 28, 1) and got.test_images.shape == (12, 28, 28, 1)
    assert got.train_images.dtype == np.uint8 and got.train_labels.dtype == np.int32
    assert rows(got.train_images, got.train_labels) == rows(train_images, train_labels)
    assert rows(got.test_images, got.test_labels) == rows(test_images, test_labels)
    assert (got.num_classes, got.name) == (10, name)
    assert list(cache.glob(f"tensorflow_datasets/{name}/*/dataset_info.json"))
    assert sorted(path.name for path in cache.iterdir()) == [f"{name}.npz", "tensorflow_datasets"]

    monkeypatch.setattr(datasets, "_prepared", None)
    again = datasets.load(name, cache_dir=cache)
    assert all(np.array_equal(a, b) for a, b in zip(got[:4], again[:4], strict=True))


def test_prepared_set_is_read_without_raw_files_or_network(raw, tmp_path, monkeypatch):
    folder, _ = raw
    got = datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "cache")
    (tmp_path / "cache" / "mnist.npz").unlink()
    monkeypatch.setattr(datasets.urllib.request, "urlopen", None)
    again = datasets.load("mnist", cache_dir=tmp_path / "cache")
    assert all(np.array_equal(a, b) for a, b in zip(got[:4], again[:4], strict=True))


def test_cache_folder_from_the_environment(raw, tmp_path, monkeypatch):
    folder, _ = raw
    monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "elsewhere"))
    datasets.load("mnist", data_dir=folder)
    assert (tmp_path / "elsewhere" / "mnist.npz").is_file()


def test_addresses_have_registered_checksums():
    from tensorflow_datasets.core.download import checksums

    known = checksums.get_all_url_infos()
    assert {source.url + file for source in datasets._SOURCES.values() for file in source.raw_files} <= set(known)


def test_raw_files_with_another_checksum_are_refused(raw, tmp_path):
    folder, (train_images, *_) = raw
    write_idx(folder / RAW_FILES[0], train_images[::-1])
    with pytest.raises(ConfigError, match=r"data_dir is .*original files of mnist.*checksum"):
        datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache" / "mnist.npz").exists()


def test_missing_raw_file_or_folder_is_named(raw, tmp_path):
    folder, _ = raw
    (folder / RAW_FILES[3]).unlink()
    with pytest.raises(ConfigError, match=rf"data_dir is .*{RAW_FILES[3]} is missing"):
        datasets.load("mnist", data_dir=folder, cache_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"data_dir is .*nowhere"):
        datasets.load("mnist", data_dir=tmp_path / "nowhere", cache_dir=tmp_path)


def test_failed_download_says_what_to_do(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(datasets.urllib.request, "urlopen", no_network)
    with pytest.raises(ConfigError, match=rf"data_dir is None, but must be a folder with {RAW_FILES[0]}.*no route to host"):
        datasets.load("mnist", cache_dir=tmp_path)
    assert not (tmp_path / "mnist.npz").exists()


def test_cache_folder_that_cannot_be_made_is_refused(raw, tmp_path):
    folder, _ = raw
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cache_dir is"):
        datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "file")


def test_damaged_cache_is_named_and_not_replaced_in_silence(tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"PK not really")
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "mnist.npz"))):
        datasets.load("mnist", cache_dir=tmp_path)


@pytest.mark.skipif(RAW_DATA is None, reason="FEDJAX_SIM_RAW_DATA names no folder with mnist/ and fashion_mnist/")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_real_raw_files(tmp_path, name):
    got = datasets.load(name, data_dir=Path(RAW_DATA) / name, cache_dir=tmp_path)
    assert got.train_images.shape == (60000, 28, 28, 1) and got.test_images.shape == (10000, 28, 28, 1)
    assert got.num_classes == 10
    smallest = {"mnist": (5421, 892), "fashion_mnist": (6000, 1000)}[name]
    assert (np.bincount(got.train_labels).min(), np.bincount(got.test_labels).min()) == smallest


@pytest.mark.parametrize("prefix", ["npz:", ""])
def test_own_file(tmp_path, prefix):
    np.savez(tmp_path / "birds.npz", **own())
    got = datasets.load(f"{prefix}{tmp_path / 'birds.npz'}")
    assert (got.num_classes, got.name) == (3, "birds")
    np.testing.assert_array_equal(got.train_images, own()["train_images"][..., None])
    np.testing.assert_array_equal(got.test_labels, [2, 0])
    assert got.train_labels.dtype == np.int32


def test_own_class_names_tell_the_number_of_classes(tmp_path):
    np.savez(tmp_path / "birds.npz", **own(class_names=np.array(["coot", "gadwall", "teal", "wigeon"])))
    assert datasets.load(str(tmp_path / "birds.npz")).num_classes == 4


@pytest.mark.parametrize(("shape", "expected"), [((5,), (1, 1, 5)), ((4, 3), (4, 3, 1)), ((4, 3, 2), (4, 3, 2))])
def test_own_images_get_four_axes(shape, expected):
    images = {"train_images": np.ones((6, *shape)), "test_images": np.ones((2, *shape))}
    got = datasets.from_arrays(**own(**images))
    assert got.train_images.shape == (6, *expected) and got.train_images.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"test_labels": None}, "test_labels is missing"),
        ({"train_images": np.zeros(6)}, r"shape of train_images is \(6,\)"),
        ({"train_images": np.zeros((0, 4, 3))}, r"shape of train_images is \(0, 4, 3\)"),
        ({"train_images": np.zeros((6, 4, 3), np.int64)}, "dtype of train_images is 'int64'"),
        ({"train_images": np.full((6, 4, 3), np.nan)}, "NaN .* train_images is 72,"),
        ({"test_images": np.array([[[1.0]], [[np.inf]]])}, "infinite .* test_images is 1,"),
        ({"train_images": np.full((6, 4, 3), 1e300)}, "infinite .* train_images is 72,"),
        ({"test_images": np.zeros((2, 3, 4), np.uint8)}, r"each of test_images is 'uint8\[3, 4, 1\]'.*uint8\[4, 3, 1\]"),
        ({"test_images": np.zeros((2, 4, 3))}, r"each of test_images is 'float32"),
        ({"train_labels": np.array([0, 1, 2])}, r"shape of train_labels is \(3,\), but must be \(6,\)"),
        ({"train_labels": np.zeros((6, 1), int)}, r"shape of train_labels is \(6, 1\)"),
        ({"train_labels": np.array([0, 1, 2, 0, 1, -2])}, "smallest of train_labels is -2"),
        ({"train_labels": np.array([0, 1, 2, 0, 1, 2.0])}, "dtype of train_labels is 'float64'"),
        ({"test_labels": np.array([True, False])}, "dtype of test_labels is 'bool'"),
        ({"train_labels": np.array([1, 2, 3, 1, 2, 3])}, "number of classes among train_labels is 3, but must be 4"),
        ({"test_labels": np.array([10**12, 0])}, "number of classes among train_labels is 3"),
        ({"class_names": np.array(["coot", "teal"])}, "largest label is 2, but must be below the number of classes, 2"),
        ({"train_labels": np.array([0, 1, 2, 0, 1, None])}, "without Python objects"),
    ],
)
def test_bad_own_arrays_are_refused_in_one_short_sentence(tmp_path, changes, sentence):
    np.savez(tmp_path / "a.npz", **own(**changes))
    with pytest.raises(ConfigError, match=sentence) as caught:
        datasets.load(str(tmp_path / "a.npz"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 350


def test_own_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "a.npz").write_text("hello")
    np.savez(tmp_path / "b.npz", **own())
    (tmp_path / "b.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:-100])
    for file in ("a.npz", "b.npz", "missing.npz"):
        with pytest.raises(ConfigError, match=f"npz file is .*{file}"):
            datasets.load(str(tmp_path / file))


def test_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="dataset is 'mnits', but must be one of digits, mnist, fashion_mnist, npz:PATH"):
        datasets.load("mnits")


def test_names_have_one_line_each():
    assert all(line and "\n" not in line for line in datasets.names().values())
