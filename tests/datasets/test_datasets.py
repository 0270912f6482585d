"""Data sets: forms, the path from raw files through tensorflow-datasets to arrays, and what is refused."""

import functools
import gzip
import http.server
import io
import os
import re
import struct
import sys
import tarfile
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_sim import datasets
from fedjax_sim.datasets import fetched, raw_files
from fedjax_sim.settings import ConfigError

RAW_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CIFAR10_NAMES = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]
RAW_DATA = os.environ.get("FEDJAX_SIM_RAW_DATA")


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def write_cifar10(
    path: Path, parts: list[tuple[np.ndarray, np.ndarray]], **changes: bytes | None
) -> None:
    """Write a tar in CIFAR-10's form: five parts to train on and one to test. changes: other contents of members, None to leave out."""
    members = {
        "batches.meta.txt": "\n".join(CIFAR10_NAMES).encode() + b"\n\n",
        "readme.html": b"<p>",
    }
    for file, (images, labels) in zip(
        [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"], parts, strict=True
    ):
        members[file] = b"".join(
            bytes([label]) + b"".join(image[..., c].tobytes() for c in range(3))
            for image, label in zip(images, labels, strict=True)
        )
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {**members, "../../../escaped.txt": b"", **changes}.items():
            if content is not None:
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def cifar10_parts() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        (rng.integers(0, 256, (n, 32, 32, 3), np.uint8), rng.integers(0, 10, n, np.uint8))
        for n in (3, 3, 3, 3, 3, 4)
    ]


TINY = "tiny-imagenet-200"
WNIDS = ["n03", "n01", "n02"]
"""Classes of a small TinyImageNet, in another order than the alphabet's."""


def quarters(seed: int) -> np.ndarray:
    """An image of four even quarters, which JPEG keeps but for a few units."""
    colours = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), np.uint8)
    return colours.repeat(32, axis=0).repeat(32, axis=1)


def jpeg(image: np.ndarray, form: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(
        file, form, **({"quality": 95, "subsampling": 0} if form == "JPEG" else {})
    )
    return file.getvalue()


def tiny_members() -> dict[str, bytes]:
    """Files of a small TinyImageNet: four training and two validation images of each of three classes, the first of each are grey."""
    members = {
        "wnids.txt": "\n".join(WNIDS).encode() + b"\n",
        "words.txt": b"n01\ttench, Tinca tinca\nn04\tnot in it\n",
    }
    for label, wnid in enumerate(WNIDS):
        members[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        for i in range(4):
            image = quarters(10 * label + i)
            members[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(
                image[..., 0] if i == 0 else image
            )
    # Of classes 2, 0, 1, 2, 0, 1.
    for i, label in enumerate((2, 0, 1) * 2):
        image = quarters(100 + i)
        members[f"val/images/val_{i}.JPEG"] = jpeg(image[..., 0] if i == 0 else image)
        line = f"val_{i}.JPEG\t{WNIDS[label]}\t0\t32\t44\t62\n".encode()
        members["val/val_annotations.txt"] = members.get("val/val_annotations.txt", b"") + line
    return {**members, "test/images/test_0.JPEG": jpeg(quarters(200))}


def write_tiny(path: Path, **changes: bytes | None) -> None:
    """Write a zip in TinyImageNet's form. changes: other contents of members, None to leave out."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in (tiny_members() | changes).items():
            if content is not None:
                file.writestr(f"{TINY}/{name}", content)


def register(monkeypatch, folder):
    """Let tensorflow-datasets take the files in a folder for the original ones of the sets it knows."""
    from tensorflow_datasets.core.download import checksums

    infos = {
        source.url + file: checksums.compute_url_info(folder / file)
        for source in fetched.SOURCES.values()
        for file in source.raw_files
        if source.image_shape is None and (folder / file).is_file()
    }
    monkeypatch.setattr(checksums, "get_all_url_infos", lambda: dict(infos))


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """A folder of small raw files in MNIST's form, which tensorflow-datasets takes for the original ones."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "raw"
    folder.mkdir()
    arrays = [
        array
        for n in (30, 12)
        for array in (rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 10, n, np.uint8))
    ]
    for file, array in zip(RAW_FILES, arrays, strict=True):
        write_idx(folder / file, array)
    register(monkeypatch, folder)
    return folder, arrays


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """A folder of small raw files of the sets that come in one archive."""
    folder = tmp_path / "raw"
    folder.mkdir()
    write_cifar10(folder / "cifar-10-binary.tar.gz", cifar10_parts())
    write_tiny(folder / "tiny-imagenet-200.zip")
    register(monkeypatch, folder)
    return folder


@pytest.fixture
def served(archives, monkeypatch):
    """The folder of archives, from where they can be downloaded under the addresses that the sets then have."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(archives))
    monkeypatch.setattr(handler.func, "log_message", lambda *_: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setattr(
            fetched,
            "SOURCES",
            {name: source._replace(url=url) for name, source in fetched.SOURCES.items()},
        )
        register(monkeypatch, archives)
        yield archives
        server.shutdown()


def rows(images, labels):
    """Examples as a sorted list: tensorflow-datasets shuffles them once."""
    return sorted(
        (image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)
    )


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
    assert digits.train_images.shape == (1437, 8, 8, 1) and digits.test_images.shape == (
        360,
        8,
        8,
        1,
    )
    assert digits.train_images.dtype == np.uint8 and digits.train_labels.dtype == np.int32
    assert digits.train_images.min() == 0 and digits.train_images.max() == 255
    assert (digits.num_classes, digits.name) == (10, "digits")
    shares = np.bincount(digits.test_labels) / np.bincount(
        np.concatenate([digits.train_labels, digits.test_labels])
    )
    np.testing.assert_allclose(shares, 0.2, atol=0.01)
    again = datasets.load("digits")
    assert all(np.array_equal(a, b) for a, b in zip(digits[:4], again[:4], strict=True))


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    digits = datasets.load("digits")
    ours = np.concatenate([digits.train_images, digits.test_images])
    back = np.rint(ours / 255 * 16).astype(np.uint8)
    assert rows(back, np.concatenate([digits.train_labels, digits.test_labels])) == rows(
        images.astype(np.uint8), labels
    )


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
    folder, _ = raw
    got = datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "cache")
    (tmp_path / "cache" / "mnist.npz").unlink()
    monkeypatch.setattr(fetched.urllib.request, "urlopen", None)
    again = datasets.load("mnist", cache_dir=tmp_path / "cache")
    assert all(np.array_equal(a, b) for a, b in zip(got[:4], again[:4], strict=True))


def test_a_set_that_another_process_prepares_meanwhile_is_taken_from_it(raw, tmp_path, monkeypatch):
    folder, _ = raw
    source = fetched.SOURCES["mnist"]

    def read_late(*paths):
        monkeypatch.setitem(fetched.SOURCES, "mnist", source)
        others.append(datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "cache"))
        return source.read(*paths)

    others = []
    monkeypatch.setitem(fetched.SOURCES, "mnist", source._replace(read=read_late))
    got = datasets.load("mnist", data_dir=folder, cache_dir=tmp_path / "cache")
    assert all(np.array_equal(a, b) for a, b in zip(got[:4], others[0][:4], strict=True))
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
        "mnist.npz",
        "tensorflow_datasets",
    ]


def test_cache_folder_from_the_environment(raw, tmp_path, monkeypatch):
    folder, _ = raw
    monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "elsewhere"))
    datasets.load("mnist", data_dir=folder)
    assert (tmp_path / "elsewhere" / "mnist.npz").is_file()


def test_cifar10_is_read_as_it_was_written(archives):
    parts = cifar10_parts()
    raw = raw_files.read_cifar10(archives / "cifar-10-binary.tar.gz")
    assert raw.class_names == CIFAR10_NAMES
    for split, (images, labels) in {
        "train": map(np.concatenate, zip(*parts[:5], strict=True)),
        "test": parts[5],
    }.items():
        got_images, got_labels = zip(*raw.splits[split], strict=True)
        np.testing.assert_array_equal(np.stack(got_images), images)
        np.testing.assert_array_equal(got_labels, labels)


def test_tiny_imagenet_is_read_as_it_was_written_but_for_losses_of_jpeg(archives):
    raw = raw_files.read_tiny_imagenet(archives / "tiny-imagenet-200.zip")
    assert raw.class_names == WNIDS
    train, test = list(raw.splits["train"]), list(raw.splits["test"])
    expected = {label: [quarters(10 * label + i) for i in range(4)] for label in range(3)}
    for label, images in expected.items():
        images[0] = images[0][..., :1].repeat(3, axis=-1)
        got = [image for image, found in train if found == label]
        # A quarter has one colour: what JPEG loses of it is rounding, not detail.
        np.testing.assert_allclose(np.stack(got).astype(int), np.stack(images), atol=4)
    assert len(train) == 12 and [label for _, label in test] == [2, 0, 1, 2, 0, 1]
    np.testing.assert_allclose(
        test[0][0].astype(int), quarters(100)[..., :1].repeat(3, axis=-1), atol=4
    )
    np.testing.assert_allclose(test[5][0].astype(int), quarters(105), atol=4)
    assert {image.shape for image, _ in train + test} == {(64, 64, 3)} and {
        image.dtype for image, _ in train
    } == {np.dtype(np.uint8)}


ARCHIVES = {
    "cifar10": (
        "cifar-10-binary.tar.gz",
        raw_files.read_cifar10,
        (15, 32, 32, 3),
        (4, 32, 32, 3),
        10,
    ),
    "tiny_imagenet": (
        "tiny-imagenet-200.zip",
        raw_files.read_tiny_imagenet,
        (12, 64, 64, 3),
        (6, 64, 64, 3),
        3,
    ),
}


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


def test_damaged_download_is_not_taken_again(served, tmp_path):
    file = served / "tiny-imagenet-200.zip"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(ConfigError, match=r"raw file is .*undamaged"):
        datasets.load("tiny_imagenet", cache_dir=tmp_path / "cache")
    file.write_bytes(whole)
    assert len(datasets.load("tiny_imagenet", cache_dir=tmp_path / "cache").train_images) == 12


def cifar10_with(**changes):
    return lambda path: write_cifar10(path, cifar10_parts(), **changes)


def tiny_with(**changes):
    return lambda path: write_tiny(path, **changes)


def shortened(path):
    path.write_bytes(path.read_bytes()[:-200])


def no_archive(path):
    path.write_text("<html>not found</html>")


def link_for_member(path):
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("cifar-10-batches-bin/batches.meta.txt")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(info)


def one_bit_turned(path):
    data = bytearray(path.read_bytes())
    image = tiny_members()["train/n02/images/n02_3.JPEG"]
    data[data.index(image) + len(image) // 2] ^= 1
    path.write_bytes(data)


def huge_png():
    """A PNG whose header announces 30000 x 30000 points."""
    data = bytearray(jpeg(quarters(0), "PNG"))
    data[16:24] = struct.pack(">II", 30000, 30000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


ANNOTATIONS = tiny_members()["val/val_annotations.txt"]
DAMAGED = {
    "cifar10, no archive": ("cifar10", no_archive, "undamaged"),
    "cifar10, shortened": ("cifar10", shortened, "undamaged"),
    "cifar10, without test": (
        "cifar10",
        cifar10_with(**{"test_batch.bin": None}),
        "cifar-10-batches-bin/test_batch.bin, which is missing",
    ),
    "cifar10, without names": (
        "cifar10",
        cifar10_with(**{"batches.meta.txt": None}),
        "batches.meta.txt, which is missing",
    ),
    "cifar10, link": ("cifar10", link_for_member, "batches.meta.txt, which is missing"),
    "cifar10, part of a record": (
        "cifar10",
        cifar10_with(**{"data_batch_2.bin": bytes(3072)}),
        "undamaged",
    ),
    "cifar10, no test images": ("cifar10", cifar10_with(**{"test_batch.bin": b""}), "undamaged"),
    "cifar10, nine names": (
        "cifar10",
        cifar10_with(**{"batches.meta.txt": b"a b c d e f g h i"}),
        "ten class names",
    ),
    "cifar10, eleventh class": (
        "cifar10",
        cifar10_with(**{"data_batch_2.bin": bytes([10]) + bytes(3072)}),
        "labels from 0 to 9",
    ),
    "tiny, no archive": ("tiny_imagenet", no_archive, "undamaged"),
    "tiny, shortened": ("tiny_imagenet", shortened, "undamaged"),
    "tiny, one bit": ("tiny_imagenet", one_bit_turned, "undamaged .*n02_3.JPEG"),
    "tiny, without classes": (
        "tiny_imagenet",
        tiny_with(**{"wnids.txt": None}),
        f"{TINY}/wnids.txt, which is missing",
    ),
    "tiny, no class": (
        "tiny_imagenet",
        tiny_with(**{"wnids.txt": b"\n"}),
        "training images of exactly the classes in .*wnids.txt",
    ),
    "tiny, without annotations": (
        "tiny_imagenet",
        tiny_with(**{"val/val_annotations.txt": None}),
        "val_annotations.txt, which is missing",
    ),
    "tiny, short annotation": (
        "tiny_imagenet",
        tiny_with(**{"val/val_annotations.txt": b"val_0.JPEG\n"}),
        "undamaged",
    ),
    "tiny, annotations not text": (
        "tiny_imagenet",
        tiny_with(**{"val/val_annotations.txt": b"\xff\xfe\n"}),
        "undamaged",
    ),
    "tiny, without a validation image": (
        "tiny_imagenet",
        tiny_with(**{"val/images/val_3.JPEG": None}),
        "val_3.JPEG, which is missing",
    ),
    "tiny, without a training image": (
        "tiny_imagenet",
        tiny_with(**{"train/n01/images/n01_3.JPEG": None}),
        "training .*equally many",
    ),
    "tiny, too few annotations": (
        "tiny_imagenet",
        tiny_with(**{"val/val_annotations.txt": ANNOTATIONS.partition(b"\n")[2]}),
        "validation images .*equally many",
    ),
    "tiny, unknown class in annotations": (
        "tiny_imagenet",
        tiny_with(**{"val/val_annotations.txt": ANNOTATIONS.replace(b"n01", b"n04")}),
        "validation images of exactly the classes",
    ),
    "tiny, one class more": (
        "tiny_imagenet",
        tiny_with(**{"wnids.txt": b"n01\nn02\nn03\nn04\n"}),
        "training images of exactly the classes",
    ),
    "tiny, text for an image": (
        "tiny_imagenet",
        tiny_with(**{"val/images/val_1.JPEG": b"hello"}),
        "undamaged .*val_1.JPEG: neither JPEG nor PNG",
    ),
    "tiny, other size": (
        "tiny_imagenet",
        tiny_with(**{"val/images/val_1.JPEG": jpeg(quarters(0)[:, :32])}),
        "undamaged .*val_1.JPEG: .* 32x64 instead of 64x64",
    ),
    "tiny, huge": (
        "tiny_imagenet",
        tiny_with(**{"val/images/val_1.JPEG": huge_png()}),
        "undamaged .*val_1.JPEG: .*900000000",
    ),
    "tiny, image cut short": (
        "tiny_imagenet",
        tiny_with(**{"val/images/val_1.JPEG": jpeg(quarters(0))[:-20]}),
        "undamaged .*val_1.JPEG: .*truncated",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_or_incomplete_archive_is_refused_in_one_sentence_and_leaves_nothing(
    archives, tmp_path, monkeypatch, case
):
    name, damage, sentence = DAMAGED[case]
    file = archives / ARCHIVES[name][0]
    whole = file.read_bytes()
    damage(file)
    register(monkeypatch, archives)
    with pytest.raises(
        ConfigError, match=f"^raw file is '{file}', but must be .*{sentence}"
    ) as caught:
        datasets.load(name, data_dir=archives, cache_dir=tmp_path / "cache")
    assert "\n" not in str(caught.value) and str(caught.value).count("raw file") == 1
    assert len(str(caught.value).replace(str(file), "")) < 250
    file.write_bytes(whole)
    register(monkeypatch, archives)
    assert (
        len(datasets.load(name, data_dir=archives, cache_dir=tmp_path / "cache").train_images)
        == ARCHIVES[name][2][0]
    )


def test_tiny_imagenet_may_have_a_png_in_spite_of_its_name(tmp_path):
    write_tiny(tmp_path / "a.zip", **{"val/images/val_1.JPEG": jpeg(quarters(7), "PNG")})
    np.testing.assert_array_equal(
        list(raw_files.read_tiny_imagenet(tmp_path / "a.zip").splits["test"])[1][0], quarters(7)
    )


def test_addresses_have_registered_checksums():
    from tensorflow_datasets.core.download import checksums

    known = checksums.get_all_url_infos()
    for source in fetched.SOURCES.values():
        if source.image_shape is None:
            assert {source.url + file for file in source.raw_files} <= set(known)
    assert (
        known["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"].filename
        == "cifar-10-binary.tar.gz"
    )


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


@pytest.mark.parametrize("name", fetched.SOURCES)
def test_failed_download_says_what_to_do(tmp_path, monkeypatch, name):
    def no_network(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(fetched.urllib.request, "urlopen", no_network)
    file = fetched.SOURCES[name].raw_files[0]
    with pytest.raises(
        ConfigError,
        match=rf"data_dir is None, but must be a folder with {file}.*{name} .*no route to host",
    ):
        datasets.load(name, cache_dir=tmp_path)
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


REAL = {
    "mnist": ((28, 28, 1), 10, (60000, 10000), (5421, 892)),
    "fashion_mnist": ((28, 28, 1), 10, (60000, 10000), (6000, 1000)),
    "cifar10": ((32, 32, 3), 10, (50000, 10000), (5000, 1000)),
    "tiny_imagenet": ((64, 64, 3), 200, (100000, 10000), (500, 50)),
}
"""Shape of an image, number of classes, of images, and of images of the rarest class."""


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


@pytest.mark.parametrize("prefix", ["npz:", ""])
def test_own_file(tmp_path, prefix):
    np.savez(tmp_path / "birds.npz", **own())
    got = datasets.load(f"{prefix}{tmp_path / 'birds.npz'}")
    assert (got.num_classes, got.name) == (3, "birds")
    np.testing.assert_array_equal(got.train_images, own()["train_images"][..., None])
    np.testing.assert_array_equal(got.test_labels, [2, 0])
    assert got.train_labels.dtype == np.int32


@pytest.mark.parametrize("prefix", ["npz:", ""])
def test_own_class_names_tell_the_number_of_classes_and_the_file_the_name(tmp_path, prefix):
    labels = {
        "train_labels": np.array([0, 1, 2, 0, 1, 2], np.uint8),
        "test_labels": np.array([2, 0], np.uint8),
    }
    np.savez(tmp_path / "cifar10_jpeg.npz", **own(class_names=np.array(CIFAR10_NAMES), **labels))
    got = datasets.load(f"{prefix}{tmp_path / 'cifar10_jpeg.npz'}")
    assert (got.num_classes, got.name) == (10, "cifar10_jpeg")
    assert got.train_labels.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("shape", "expected"), [((5,), (1, 1, 5)), ((4, 3), (4, 3, 1)), ((4, 3, 2), (4, 3, 2))]
)
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
        (
            {"test_images": np.zeros((2, 3, 4), np.uint8)},
            r"each of test_images is 'uint8\[3, 4, 1\]'.*uint8\[4, 3, 1\]",
        ),
        ({"test_images": np.zeros((2, 4, 3))}, r"each of test_images is 'float32"),
        (
            {"train_labels": np.array([0, 1, 2])},
            r"shape of train_labels is \(3,\), but must be \(6,\)",
        ),
        ({"train_labels": np.zeros((6, 1), int)}, r"shape of train_labels is \(6, 1\)"),
        ({"train_labels": np.array([0, 1, 2, 0, 1, -2])}, "smallest of train_labels is -2"),
        ({"train_labels": np.array([0, 1, 2, 0, 1, 2.0])}, "dtype of train_labels is 'float64'"),
        ({"test_labels": np.array([True, False])}, "dtype of test_labels is 'bool'"),
        (
            {"train_labels": np.array([1, 2, 3, 1, 2, 3])},
            "number of classes among train_labels is 3, but must be 4",
        ),
        ({"test_labels": np.array([10**12, 0])}, "number of classes among train_labels is 3"),
        (
            {"class_names": np.array(["coot", "teal"])},
            "largest label is 2, but must be below the number of classes, 2",
        ),
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
    with pytest.raises(
        ConfigError,
        match="dataset is 'mnits', but must be one of digits, breast_cancer, mnist, fashion_mnist, cifar10",
    ):
        datasets.load("mnits")


def test_names_have_one_line_each():
    assert all(line and "\n" not in line for line in datasets.names().values())
