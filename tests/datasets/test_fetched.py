"""Fetched sets: from raw files or a download through tensorflow-datasets into the cache."""

import os
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.datasets import fetched
from tests.datasets.small_files import (
    ARCHIVES,
    CIFAR10_NAMES,
    RAW_FILES,
    WNIDS,
    cifar10_parts,
    rows,
    write_cifar10,
    write_idx,
)
from tests.kept_files import NUM_FLIPS, count_refusals, without_seal

EVERY_SOURCE = fetched.SOURCES | fetched.TEXTS
RAW_DATA = os.environ.get("FEDJAX_SIM_RAW_DATA")


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

    monkeypatch.setattr(fetched, "_prepare_images", None)
    again = datasets.load(name, cache_dir=cache)
    assert all(np.array_equal(a, b) for a, b in zip(got[:4], again[:4], strict=True))


def test_prepared_set_is_read_without_raw_files_or_network(raw, tmp_path, monkeypatch):
    """The raw files lie in a folder of several sets, each in one of its name."""
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "mnist").symlink_to(raw[0])
    got = datasets.load("mnist", data_dir=tmp_path / "sets", cache_dir=tmp_path / "cache")
    (tmp_path / "cache" / "mnist.npz").unlink()
    monkeypatch.setattr(fetched.urllib.request, "urlopen", None)
    again = datasets.load("mnist", cache_dir=tmp_path / "cache")
    assert all(np.array_equal(a, b) for a, b in zip(got[:4], again[:4], strict=True))


def test_a_set_that_another_process_prepares_meanwhile_is_taken_from_it(raw, tmp_path, monkeypatch):
    folder, _ = raw
    source = fetched.SOURCES["mnist"]

    def read_late(*paths):
        monkeypatch.setitem(fetched.SOURCES, "mnist", source)
        prepared_meanwhile.append(
            datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "cache")
        )
        return source.read(*paths)

    prepared_meanwhile = []
    monkeypatch.setitem(fetched.SOURCES, "mnist", source._replace(read=read_late))
    got = datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "cache")
    assert all(
        np.array_equal(a, b) for a, b in zip(got[:4], prepared_meanwhile[0][:4], strict=True)
    )
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
        "mnist.npz",
        "tensorflow_datasets",
    ]


def test_cache_folder_from_the_environment(raw, tmp_path, monkeypatch):
    folder, _ = raw
    monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "elsewhere"))
    datasets.load("mnist", data_dir=folder)
    assert (tmp_path / "elsewhere" / "mnist.npz").is_file()


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_come_back_as_arrays_and_the_cache_is_all_they_need_then(
    archives, tmp_path, monkeypatch, name
):
    file, read, train_shape, test_shape, num_classes = ARCHIVES[name]
    raw = {split: list(examples) for split, examples in read(archives / file).splits.items()}
    cache = tmp_path / "cache"
    had_tensorflow = "tensorflow" in sys.modules
    monkeypatch.setattr(fetched, "_BLOCK", 5)
    got = datasets.load(name, data_dir=archives, cache_dir=cache)
    assert ("tensorflow" in sys.modules) == had_tensorflow
    assert (got.train_images.shape, got.test_images.shape) == (train_shape, test_shape)
    assert got.train_images.dtype == np.uint8 and got.train_labels.dtype == np.int32
    assert rows(got.train_images, got.train_labels) == rows(*zip(*raw["train"], strict=True))
    assert rows(got.test_images, got.test_labels) == rows(*zip(*raw["test"], strict=True))
    assert (got.num_classes, got.name) == (num_classes, name)
    assert list(cache.glob(f"tensorflow_datasets/{name}/*/dataset_info.json"))
    assert {path.name for path in cache.iterdir()} == {f"{name}.npz", "tensorflow_datasets"}
    assert not list(tmp_path.parent.rglob("escaped.txt"))

    (archives / file).unlink()
    monkeypatch.setattr(fetched, "_prepare_images", None)
    again = datasets.load(name, cache_dir=cache)
    assert (
        all(np.array_equal(a, b) for a, b in zip(got[:4], again[:4], strict=True))
        and again[4:] == got[4:]
    )


@pytest.mark.parametrize("name", ARCHIVES)
def test_prepared_archive_is_read_without_it_or_network(archives, tmp_path, monkeypatch, name):
    got = datasets.load(name, data_dir=archives, cache_dir=tmp_path / "cache")
    (tmp_path / "cache" / f"{name}.npz").unlink()
    (archives / ARCHIVES[name][0]).unlink()
    monkeypatch.setattr(fetched.urllib.request, "urlopen", None)
    again = datasets.load(name, cache_dir=tmp_path / "cache")
    assert (
        all(np.array_equal(a, b) for a, b in zip(got[:4], again[:4], strict=True))
        and again[4:] == got[4:]
    )
    with np.load(tmp_path / "cache" / f"{name}.npz") as file:
        assert (
            file["class_names"].tolist() == {"cifar10": CIFAR10_NAMES, "tiny_imagenet": WNIDS}[name]
        )


@pytest.mark.parametrize("name", ARCHIVES)
def test_downloaded_archive_is_the_same_as_one_in_a_folder(served, tmp_path, name):
    given = datasets.load(name, data_dir=served, cache_dir=tmp_path / "given")
    downloaded = datasets.load(name, cache_dir=tmp_path / "downloaded")
    assert (
        all(np.array_equal(a, b) for a, b in zip(given[:4], downloaded[:4], strict=True))
        and given[4:] == downloaded[4:]
    )
    assert list((tmp_path / "downloaded").rglob("*.INFO")) and not list(
        (tmp_path / "given").rglob("*.INFO")
    )


def test_damaged_download_is_refused_and_not_taken_again(served, tmp_path):
    """Its digest is checked before it is read."""
    file = served / "tiny-imagenet-200.zip"
    whole = file.read_bytes()
    file.write_bytes(whole + b"!")
    with pytest.raises(ConfigError, match=r"data_dir is None, .*tiny-imagenet-200\.zip was downl"):
        datasets.load("tiny_imagenet", cache_dir=tmp_path / "cache")
    file.write_bytes(whole)
    assert len(datasets.load("tiny_imagenet", cache_dir=tmp_path / "cache").train_images) == 12


def test_downloads_are_encrypted():
    assert all(source.url.startswith("https://") for source in EVERY_SOURCE.values())


def test_digests_are_those_that_tensorflow_datasets_knows():
    """It lists five of the sets, one of them at another address."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import checksums

    text = tfds.builder_cls("tiny_shakespeare").url_infos
    known = {info.checksum for info in (checksums.get_all_url_infos() | text).values()}
    listed = {name for name, each in EVERY_SOURCE.items() if known.issuperset(each.sha256)}
    assert listed == {
        *("mnist", "fashion_mnist", "cifar10", "cifar100"),
        "tiny_shakespeare",
    }


def test_raw_files_with_another_checksum_are_refused(raw, tmp_path):
    folder, (train_images, *_) = raw
    write_idx(folder / RAW_FILES[0], train_images[::-1])
    with pytest.raises(ConfigError, match=r"data_dir is .*original files of mnist.*checksum"):
        datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache" / "mnist.npz").exists()


def test_archive_with_another_checksum_is_refused(archives, tmp_path):
    write_cifar10(archives / "cifar-10-binary.tar.gz", cifar10_parts()[::-1])
    with pytest.raises(ConfigError, match=r"data_dir is .*original files of cifar10.*checksum"):
        datasets.load("cifar10", data_dir=archives, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache" / "cifar10.npz").exists()


@pytest.mark.parametrize("name", ARCHIVES)
def test_missing_archive_is_named(archives, tmp_path, name):
    (archives / ARCHIVES[name][0]).unlink()
    with pytest.raises(
        ConfigError, match=rf"data_dir is .*raw files of {name} \({ARCHIVES[name][0]} is missing"
    ):
        datasets.load(name, data_dir=archives, cache_dir=tmp_path)


def test_missing_raw_file_or_folder_is_named(raw, tmp_path):
    folder, _ = raw
    (folder / RAW_FILES[3]).unlink()
    with pytest.raises(ConfigError, match=rf"data_dir is .*{RAW_FILES[3]} is missing"):
        datasets.load("mnist", data_dir=folder, cache_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"data_dir is .*nowhere"):
        datasets.load("mnist", data_dir=tmp_path / "nowhere", cache_dir=tmp_path)


@pytest.mark.parametrize("name", fetched.SOURCES | fetched.TEXTS)
def test_failed_download_says_what_to_do(tmp_path, monkeypatch, name):
    def no_network(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(fetched.urllib.request, "urlopen", no_network)
    source = EVERY_SOURCE[name]
    end = f"{name} .*no route to host"
    load = datasets.load_text if datasets.is_text(name) else datasets.load
    with pytest.raises(
        ConfigError,
        match=rf"data_dir is None, but must be a folder with {source.raw_files[0]}.*{end}",
    ):
        load(name, cache_dir=tmp_path)
    assert not (tmp_path / f"{name}.npz").exists()


def test_cache_folder_that_cannot_be_made_is_refused(raw, tmp_path):
    folder, _ = raw
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cache_dir is"):
        datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "file")


def test_damaged_cache_is_named_and_not_replaced_in_silence(tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"PK not really")
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "mnist.npz"))):
        datasets.load("mnist", cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "tiny_shakespeare"])
def test_no_flipped_bit_in_the_cache_gives_other_data(tmp_path, monkeypatch, name):
    """Nor is a file without its SHA-256 taken as it is."""
    images = {f"{split}_images": np.arange(4 * 9, dtype="uint8") for split in ("train", "test")}
    images = {key: each.reshape(4, 3, 3) for key, each in images.items()}
    labels = {f"{split}_labels": np.arange(4) % 2 for split in ("train", "test")}
    play = "".join(f"{who}:\n{'To be or not to be. ' * 20}\n\n" for who in "AB").encode()
    text = {"text": np.frombuffer(play, np.uint8)}
    monkeypatch.setattr(fetched, "_prepare_images", lambda *_: images | labels)
    monkeypatch.setattr(fetched, "_prepare_text", lambda *_: text)
    load = datasets.load if name == "mnist" else datasets.load_text
    sound, path = load(name, cache_dir=tmp_path), tmp_path / f"{name}.npz"

    def is_as_before(found):
        return all(np.array_equal(a, b) for a, b in zip(found[:4], sound[:4], strict=True))

    read = partial(load, name, cache_dir=tmp_path)
    assert count_refusals(path, read, is_as_before) == NUM_FLIPS and is_as_before(read())
    path.write_bytes(without_seal(path.read_bytes()))
    with pytest.raises(ConfigError, match="remove it, and it is prepared again"):
        read()
    path.unlink()
    assert is_as_before(read())


REAL = {
    "mnist": ((28, 28, 1), 10, (60000, 10000), (5421, 892)),
    "fashion_mnist": ((28, 28, 1), 10, (60000, 10000), (6000, 1000)),
    "cifar10": ((32, 32, 3), 10, (50000, 10000), (5000, 1000)),
    "tiny_imagenet": ((64, 64, 3), 200, (100000, 10000), (500, 50)),
}
"""By set: shape of an image, number of classes, numbers of images, numbers of the rarest class."""


@pytest.mark.skipif(
    RAW_DATA is None,
    reason="FEDJAX_SIM_RAW_DATA names no folder with a folder of raw files for each set",
)
@pytest.mark.parametrize("name", REAL)
def test_real_raw_files(tmp_path, name):
    folder = Path(RAW_DATA) / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    got = datasets.load(name, data_dir=folder, cache_dir=tmp_path)
    shape, num_classes, (num_train, num_test), rarest = REAL[name]
    assert got.train_images.shape == (num_train, *shape) and got.test_images.shape == (
        num_test,
        *shape,
    )
    assert got.num_classes == num_classes
    assert (np.bincount(got.train_labels).min(), np.bincount(got.test_labels).min()) == rarest
