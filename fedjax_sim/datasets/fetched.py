"""Data sets that are fetched: downloaded or read from a folder of raw files, then cached.

tensorflow-datasets prepares a set in its standard format, without TensorFlow. The decoded arrays
are then written next to it into one .npz file, which all later calls read. Texts go straight into
an .npz file, and are only downloaded by it. Raw files, downloaded or given, are read only if they
have the digests noted here. The .npz file ends with its own digest, which is checked.

A reader takes the paths of a set's raw files and returns `Raw`, or the arrays of a text. Archives
are read in place; only HDF5 files are unpacked, into a temporary folder. A file that is damaged or
incomplete raises a ConfigError that names it.
"""

import contextlib
import fnmatch
import gzip
import hashlib
import io
import shutil
import string
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedjax_sim.core.lifecycle import InputError, check_seal, is_terminal, write_arrays
from fedjax_sim.core.settings import ConfigError, check_file
from fedjax_sim.datasets import text
from fedjax_sim.datasets.arrays import Dataset, from_npz
from fedjax_sim.datasets.files import refusing

T = TypeVar("T")

SHAKESPEARE_CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
"""The characters of the benchmarks on LEAF's Shakespeare (arXiv 2003.00295)."""


class Raw(NamedTuple):
    """The contents of a set's raw files.

    Attributes:
      splits: Examples of "train" and of "test". An example is an image, `u8[H, W]` or
        `u8[H, W, 3]`, its label and, if the set has clients, its client.
      class_names: Names in the order of the labels.
    """

    splits: dict[str, Iterable[tuple]]
    class_names: list[str]


def read_idx(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> Raw:
    """Read gzipped IDX files, the format of MNIST.

    A file has two zero bytes, a type code, the number of axes, the sizes as big-endian integers of
    four bytes, and the data. See http://yann.lecun.com/exdb/mnist/.

    Args:
      train_images: File of training images, `u8[n, H, W]`.
      train_labels: File of training labels, `u8[n]`.
      test_images: File of test images.
      test_labels: File of test labels.

    Returns:
      The examples, and the digits, which stand for the ten classes.

    Raises:
      ConfigError: If a file is damaged.
    """

    def read(path: Path) -> np.ndarray:
        with _report_damage(path):
            data = gzip.decompress(path.read_bytes())
            shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
            return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)

    train = list(zip(read(train_images), read(train_labels), strict=True))
    test = list(zip(read(test_images), read(test_labels), strict=True))
    return Raw({"train": train, "test": test}, list(string.digits))


def read_cifar10(archive: Path) -> Raw:
    """Read CIFAR-10's tar of binary files.

    A record is one byte for the label and 3 x 32 x 32 bytes for the image, channels first. See
    https://www.cs.toronto.edu/~kriz/cifar.html.

    Args:
      archive: Path of `cifar-10-binary.tar.gz`.

    Returns:
      The examples, with images `u8[32, 32, 3]`, and the names of the ten classes.

    Raises:
      ConfigError: If the archive is damaged or incomplete, or if it does not have ten classes.
    """
    files = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    return _read_cifar(archive, "cifar-10-batches-bin/", "batches.meta.txt", files, label_bytes=1)


def read_cifar100(archive: Path) -> Raw:
    """Read CIFAR-100's tar of binary files.

    A record is one byte for the superclass, one for the class, and the image as in CIFAR-10. The
    superclasses are those of `fedjax_sim.partition.schemes.CIFAR100_SUPERCLASSES`.

    Args:
      archive: Path of `cifar-100-binary.tar.gz`.

    Returns:
      The examples, with images `u8[32, 32, 3]`, and the names of the hundred classes.

    Raises:
      ConfigError: If the archive is damaged or incomplete, or if it does not have 100 classes.
    """
    files = {"train": ["train.bin"], "test": ["test.bin"]}
    return _read_cifar(archive, "cifar-100-binary/", "fine_label_names.txt", files, label_bytes=2)


def _read_cifar(
    archive: Path, folder: str, names_file: str, files: dict[str, list[str]], *, label_bytes: int
) -> Raw:
    """Read a tar of CIFAR's binary files.

    A record has one byte for each level of labels, of which the last one counts, and an image.
    There are 10 classes with one byte of labels and 100 with two.
    """
    num_classes = 10**label_bytes
    wanted = [folder + name for name in (names_file, *files["train"], *files["test"])]
    found = {}
    with _report_damage(archive), tarfile.open(archive, "r:gz") as tar:
        # Members are visited once, in order: to go back would decompress the archive again.
        for member in tar:
            if member.name in wanted and member.isreg() and (file := tar.extractfile(member)):
                found[member.name] = file.read()
        _require(wanted, found, archive)
        class_names = found[folder + names_file].decode().split()
        splits: dict[str, Iterable[tuple]] = {}
        largest = 0
        for split, parts in files.items():
            flat = np.frombuffer(b"".join(found[folder + part] for part in parts), np.uint8)
            records = flat.reshape(-1, label_bytes + 3 * 32 * 32)
            images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            labels = records[:, label_bytes - 1]
            splits[split] = list(zip(images, labels, strict=True))
            largest = max(largest, labels.max())
        if len(class_names) != num_classes or largest >= num_classes:
            many = {1: "ten", 2: "a hundred"}[label_bytes]
            allowed = f"an archive with {many} class names and labels from 0 to {num_classes - 1}"
            raise ConfigError("raw file", str(archive), allowed)
    return Raw(splits, class_names)


def read_tiny_imagenet(archive: Path) -> Raw:
    """Read TinyImageNet's zip of JPEG files.

    The validation images are the test set, because the images in the archive's folder `test` have
    no public labels. Any number of classes is accepted, and any number of images if it is the same
    for all classes. Images are decoded one at a time, as they are asked for. See
    http://cs231n.stanford.edu/tiny-imagenet-200.zip.

    Args:
      archive: Path of `tiny-imagenet-200.zip`.

    Returns:
      The examples, with images `u8[64, 64, 3]` (grey ones are converted to RGB), and the classes:
      WordNet ids in the order of the archive's `wnids.txt`. Its `words.txt` says what they mean.

    Raises:
      ConfigError: If the archive is damaged or incomplete, or if its classes have different numbers
        of images. Damage to an image is reported when the image is decoded.
    """
    folder = "tiny-imagenet-200/"
    wnids_file, annotations_file = folder + "wnids.txt", folder + "val/val_annotations.txt"
    with _report_damage(archive), zipfile.ZipFile(archive) as file:
        members = set(file.namelist())
        _require([wnids_file, annotations_file], members, archive)
        wnids = list(dict.fromkeys(file.read(wnids_file).decode().split()))
        # A line has a file name, a WordNet id and the corners of a box.
        lines = filter(None, map(str.split, file.read(annotations_file).decode().splitlines()))
        test = [(f"{folder}val/images/{name}", wnid) for name, wnid, *_ in lines]
    _require([name for name, _ in test], members, archive)
    train_images = sorted(fnmatch.filter(members, folder + "train/*.JPEG"))
    train = [(name, name.split("/")[2]) for name in train_images]
    for split, examples in (("training", train), ("validation", test)):
        num_images = Counter(wnid for _, wnid in examples)
        if set(num_images) != set(wnids) or len(set(num_images.values())) != 1:
            allowed = (
                f"an archive with {split} images of exactly the classes in {wnids_file}, "
                "equally many of each"
            )
            raise ConfigError("raw file", str(archive), allowed)
    label_of = {wnid: i for i, wnid in enumerate(wnids)}

    def decode_all(examples: list[tuple[str, str]]) -> Iterator[tuple[np.ndarray, int]]:
        with zipfile.ZipFile(archive) as file:
            for name, wnid in examples:
                with _report_damage(archive, name):
                    image = _decode(file.read(name), (64, 64))
                yield image, label_of[wnid]

    return Raw({"train": decode_all(train), "test": decode_all(test)}, wnids)


def read_federated_emnist(archive: Path) -> Raw:
    """Read the tar of HDF5 files in which TensorFlow Federated publishes EMNIST by writers.

    The background is white, 255, as published. See
    https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/emnist/load_data.

    Args:
      archive: Path of `fed_emnist.tar.bz2`.

    Returns:
      The examples, with images `u8[28, 28]` and clients numbered from 0 in the order of the
      writers' names, and the 62 characters that are the classes.

    Raises:
      ConfigError: If the archive is damaged or incomplete. Damage to an HDF5 file is reported when
        its examples are read.
    """
    characters = list(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    files = _files_of_clients(archive, "fed_emnist")
    train, test = (_emnist_examples(archive, file) for file in files)
    return Raw({"train": train, "test": test}, characters)


def read_shakespeare(archive: Path) -> dict[str, np.ndarray]:
    """Read the tar of HDF5 files in which TensorFlow Federated publishes LEAF's Shakespeare.

    A client is a role of one play. LEAF (arXiv 1812.01097) keeps the last fifth of the speeches of
    each role for testing. See
    https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/shakespeare/load_data.

    Args:
      archive: Path of `shakespeare.tar.bz2`.

    Returns:
      The arrays that `fedjax_sim.datasets.text.from_npz` reads. Sequences have 80 characters, of
      `SHAKESPEARE_CHARACTERS` or the beginning or the end of a speech.

    Raises:
      ConfigError: If the archive is damaged or incomplete.
    """

    def speeches(group: Any) -> list[str]:
        return [speech.decode("utf-8", "replace") for speech in group["snippets"][()]]

    files = _files_of_clients(archive, "shakespeare")
    train, test = (_read_clients(archive, file, speeches) for file in files)
    return text.encode_clients(train, test, SHAKESPEARE_CHARACTERS, length=80)


def _emnist_examples(archive: Path, file: str) -> Iterator[tuple[np.ndarray, int, int]]:
    """Read the images, labels and writers of an HDF5 file of EMNIST.

    Writers are numbered from 0 in the order of their names.
    """

    def read(group: Any) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = np.asarray(group["pixels"]), np.asarray(group["label"]).ravel()
        if pixels.shape[1:] != (28, 28) or len(pixels) != len(labels) or labels.max() >= 62:
            raise ValueError("no images of 28x28 with labels from 0 to 61")
        if np.issubdtype(pixels.dtype, np.floating):
            pixels = np.rint(255 * pixels)
        return pixels.astype(np.uint8), labels

    for client, (_, (images, labels)) in enumerate(_read_clients(archive, file, read)):
        for image, label in zip(images, labels, strict=True):
            yield image, int(label), client


def _files_of_clients(archive: Path, prefix: str) -> tuple[str, str]:
    """Name the HDF5 files of training and of test examples, which must be in the archive."""
    files = f"{prefix}_train.h5", f"{prefix}_test.h5"
    with _report_damage(archive), tarfile.open(archive, "r:bz2") as tar:
        _require(files, tar.getnames(), archive)
    return files


def _read_clients(archive: Path, file: str, read: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """Read the clients of an HDF5 file in a tar, in the order of their names.

    The file is unpacked into a temporary folder, because HDF5 needs random access.

    Args:
      archive: Path of the tar.
      file: Name of the HDF5 file.
      read: Function of a client's group of arrays.

    Yields:
      The name of a client, and what `read` returns.
    """
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clients.h5"
        with (
            _report_damage(archive, file),
            tarfile.open(archive, "r:bz2") as tar,
            path.open("wb") as unpacked,
        ):
            # `TarFile.extract` has no safe filter in Python 3.11.0 to 3.11.3.
            shutil.copyfileobj(tar.extractfile(file) or io.BytesIO(), unpacked)
        with _report_damage(archive, file), h5py.File(path) as opened:
            for name in sorted(opened["examples"]):
                with _report_damage(archive, f"{file}, {name}"):
                    found = read(opened["examples"][name])
                yield name, found


def _decode(data: bytes, size: tuple[int, int]) -> np.ndarray:
    """Decode an image of a known width and height to RGB.

    The size in the header is checked before decoding, so that a damaged header cannot ask for more
    memory than there is.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        # One of ImageNet's files with the suffix .JPEG is known to be a PNG.
        image: Any = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
    except UnidentifiedImageError:
        raise ValueError("neither JPEG nor PNG") from None
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    if image.size != size:
        found, wanted = (f"{width}x{height}" for width, height in (image.size, size))
        raise ValueError(f"an image of {found} instead of {wanted}")
    return np.asarray(image.convert("RGB"))


def _require(names: Iterable[str], members: Collection[str], archive: Path) -> None:
    """Raise a ConfigError if a file is missing from an archive."""
    if missing := [name for name in names if name not in members]:
        allowed = f"an archive with {missing[0]}, which is missing"
        raise ConfigError("raw file", str(archive), allowed)


def _report_damage(path: Path, member: str = "") -> contextlib.AbstractContextManager[None]:
    """Turn a reader's error into a ConfigError with the file, and the member of an archive."""
    check_file("raw file", path)
    where, allowed = f"{member}: " if member else "", "an undamaged file of the published form"
    return refusing("raw file", str(path), allowed, where=where)


class Source(NamedTuple):
    """Where a fetched set comes from and how its raw files are read.

    To add a set of images, add an entry to `SOURCES` and, if no reader here fits, a
    reader.

    Attributes:
      summary: Description of one line.
      licence: Licence of the data, or the conditions under which it is published.
      size: Size of the raw files, such as "170 MB". If the publisher does not name it, a question
        mark and the memory that the arrays take.
      url: Address of the raw files, without their names.
      raw_files: Names of the raw files.
      sha256: SHA-256 of each raw file, in hexadecimal digits.
      read: Reader that takes the paths of the raw files, in that order. It returns `Raw`, or the
        arrays of a text: those of a text by clients, or the bytes of a play as `text`.
      image_shape: Shape `(H, W, C)` of an image; None for a text.
      has_clients: Whether each training example belongs to a client.
    """

    summary: str
    licence: str
    size: str
    url: str
    raw_files: tuple[str, ...]
    sha256: tuple[str, ...]
    read: Callable[..., Raw] | Callable[..., dict[str, np.ndarray]]
    image_shape: tuple[int, int, int] | None = None
    has_clients: bool = False


_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)

SOURCES: dict[str, Source] = {
    "mnist": Source(
        "handwritten digits, 60000 + 10000 images of 28x28, 10 classes, fetched or from raw files",
        "CC BY-SA 3.0",
        "12 MB",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        _IDX_FILES,
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        read_idx,
        image_shape=(28, 28, 1),
    ),
    "fashion_mnist": Source(
        "pieces of clothing, 60000 + 10000 images of 28x28, 10 classes, fetched or from raw files",
        "MIT",
        "31 MB",
        # The same bucket as the http address that tensorflow-datasets knows.
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        _IDX_FILES,
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        read_idx,
        image_shape=(28, 28, 1),
    ),
    "cifar10": Source(
        "animals and vehicles, 50000 + 10000 colour images of 32x32, 10 classes, "
        "fetched or from the raw file",
        "none stated",
        "170 MB",
        "https://www.cs.toronto.edu/~kriz/",
        ("cifar-10-binary.tar.gz",),
        ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
        read_cifar10,
        image_shape=(32, 32, 3),
    ),
    "tiny_imagenet": Source(
        "things of all kinds, 100000 + 10000 colour images of 64x64 (its validation set as test "
        "set), 200 classes, fetched or from the raw file",
        "non-commercial",
        "248 MB",
        "https://cs231n.stanford.edu/",
        ("tiny-imagenet-200.zip",),
        ("6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",),
        read_tiny_imagenet,
        image_shape=(64, 64, 3),
    ),
    "federated_emnist": Source(
        "handwritten characters by 3400 writers, 671585 + 77483 images of 28x28, 62 classes, "
        "fetched or from the raw file",
        "none stated, by NIST",
        "?, 587 MB held",
        "https://storage.googleapis.com/tff-datasets-public/",
        ("fed_emnist.tar.bz2",),
        ("fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",),
        read_federated_emnist,
        image_shape=(28, 28, 1),
        has_clients=True,
    ),
    "cifar100": Source(
        "things of a hundred classes, 50000 + 10000 colour images of 32x32, for the partition "
        "pachinko, fetched or from the raw file",
        "none stated",
        "169 MB",
        "https://www.cs.toronto.edu/~kriz/",
        ("cifar-100-binary.tar.gz",),
        ("58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",),
        read_cifar100,
        image_shape=(32, 32, 3),
    ),
}
"""Sets of images that are fetched, by name."""

TEXTS: dict[str, Source] = {
    "tiny_shakespeare": Source(
        "40,000 lines of plays, next-character prediction, a speaker is a client, "
        "fetched or from the raw file",
        "public domain",
        "1 MB",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        ("input.txt",),
        ("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",),
        lambda path: {"text": np.frombuffer(path.read_bytes(), np.uint8)},
    ),
    "shakespeare": Source(
        "LEAF's Shakespeare, 16068 + 2356 speeches by 715 roles, next-character prediction, "
        "fetched or from the raw file",
        "public domain",
        "?, 5 MB held",
        "https://storage.googleapis.com/tff-datasets-public/",
        ("shakespeare.tar.bz2",),
        ("0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",),
        read_shakespeare,
        has_clients=True,
    ),
}
"""Texts that are fetched, by name: plays, and texts by clients."""

_BLOCK = 1000
"""Number of examples decoded at a time, so that a large set is not held in memory twice."""


def fetch(name: str, data_dir: Path | None, cache: Path) -> Dataset:
    """Read a set of images from the cache, after preparing it there if necessary.

    Args:
      name: A name in `SOURCES`.
      data_dir: Folder with the raw files, or None to download them.
      cache: Folder of the cache.

    Returns:
      The images and labels for training and testing.

    Raises:
      ConfigError: If raw files are missing, damaged or not the registered ones, if a download
        fails, or if the cache cannot be written to.
    """
    asked = _Asked(name, SOURCES[name], data_dir, cache)
    return from_npz(_find_or_prepare(asked, _prepare_images), name)


def fetch_text(name: str, data_dir: Path | None, cache: Path) -> text.Text:
    """Read a text from the cache, after preparing it there if necessary.

    Args:
      name: A name in `TEXTS`.
      data_dir: Folder with the raw files, or None to download them.
      cache: Folder of the cache.

    Returns:
      The sequences for training and testing.

    Raises:
      ConfigError: As `fetch`.
    """
    asked = _Asked(name, TEXTS[name], data_dir, cache)
    path = _find_or_prepare(asked, _prepare_text)
    if asked.source.has_clients:
        return text.from_npz(path, name)
    with np.load(path, allow_pickle=False) as file:
        return text.from_text(file["text"].tobytes().decode(), name=name)


class _Asked(NamedTuple):
    """A set that is asked for, and the arguments of `fetch`."""

    name: str
    source: Source
    data_dir: Path | None
    cache: Path


def _find_or_prepare(asked: _Asked, prepare: Callable[[_Asked], dict[str, np.ndarray]]) -> Path:
    """Return the cache's file of a set, after writing it if it does not exist.

    Raises:
      ConfigError: As `fetch`, or if the file is damaged.
    """
    name, source, data_dir, cache = asked
    if data_dir and (data_dir / name).is_dir():
        data_dir = data_dir / name
        asked = asked._replace(data_dir=data_dir)
    missing = [file for file in source.raw_files if data_dir and not (data_dir / file).is_file()]
    if missing:
        allowed = f"a folder with the raw files of {name} ({missing[0]} is missing)"
        raise ConfigError("data_dir", str(data_dir), allowed)
    decoded = cache / f"{name}.npz"
    try:
        if decoded.exists():
            check_seal(decoded)
            return decoded
        cache.mkdir(parents=True, exist_ok=True)
        write_arrays(decoded, prepare(asked))
    except ConfigError:
        raise
    except InputError:
        allowed = "an undamaged one: remove it, and it is prepared again"
        raise ConfigError("file in the cache", str(decoded), allowed) from None
    except OSError as error:
        allowed = f"a folder that can be written to ({error})"
        raise ConfigError("cache_dir", str(cache), allowed) from None
    return decoded


def _prepare_images(asked: _Asked) -> dict[str, np.ndarray]:
    """Let tensorflow-datasets prepare a set of images, and return the decoded arrays."""
    import tensorflow_datasets as tfds

    builder = _make_builder(asked)
    if not builder.data_path.exists():
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        with _report_failure(asked):
            try:
                builder.download_and_prepare(download_config=config, file_format="array_record")
            except (tfds.download.DownloadError, OSError):
                if not builder.data_path.exists():
                    raise
                builder = _make_builder(asked)  # Another process has prepared the set meanwhile.
    features = builder.info.features
    arrays = {"class_names": np.asarray(features["label"].names)}
    for split, examples in builder.as_data_source().items():
        named = {"image": f"{split}_images", "label": f"{split}_labels"}
        if asked.source.has_clients and split == "train":
            named["client"] = "train_clients"
        for feature, array in named.items():
            whole = (len(examples), *features[feature].shape)
            arrays[array] = np.empty(whole, np.uint8 if feature == "image" else np.int32)
        for start in range(0, len(examples), _BLOCK):
            rows = examples.__getitems__(range(start, min(start + _BLOCK, len(examples))))
            for feature, array in named.items():
                arrays[array][start : start + len(rows)] = [row[feature] for row in rows]
    return arrays


def _prepare_text(asked: _Asked) -> dict[str, np.ndarray]:
    """Download a text, if its raw files are not given, and return its arrays."""
    import tensorflow_datasets as tfds

    with _report_failure(asked):
        folder = asked.cache / "tensorflow_datasets" / "downloads" / asked.name
        manager = None if asked.data_dir else tfds.download.DownloadManager(download_dir=folder)
        arrays = asked.source.read(*_find_raw_files(asked, manager))
    assert isinstance(arrays, dict)
    return arrays


def _find_raw_files(asked: _Asked, dl_manager: Any) -> list[Path]:
    """Download the raw files, or find them in a folder, and check their digests.

    Raises:
      ConfigError: If a file is not the original one.
    """
    _, source, data_dir, _ = asked
    if data_dir is None:
        downloads = dl_manager.download([source.url + file for file in source.raw_files])
        paths = [Path(path) for path in downloads]
    else:
        paths = [data_dir / file for file in source.raw_files]
    for path, file, expected in zip(paths, source.raw_files, source.sha256, strict=True):
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != expected:
            raise _other_checksum(asked, file)
    return paths


def _other_checksum(asked: _Asked, file: str) -> ConfigError:
    how = "has" if asked.data_dir else "was downloaded with"
    allowed = f"a folder with the original files of {asked.name}: {file} {how} another checksum"
    return ConfigError("data_dir", asked.data_dir and str(asked.data_dir), allowed)


def _make_builder(asked: _Asked) -> Any:
    """Make a builder of tensorflow-datasets that does not need TensorFlow."""
    import tensorflow_datasets as tfds
    from PIL import Image
    from tensorflow_datasets.core.dataset_builders.adhoc_builder import AdhocBuilder

    image = tfds.features.Image(shape=asked.source.image_shape)
    features = {"image": image, "label": tfds.features.ClassLabel()}
    features |= {"client": tfds.features.Scalar(np.int32)} if asked.source.has_clients else {}

    class Builder(AdhocBuilder, skip_registration=True):  # type: ignore[call-arg]
        def _split_generators(self, dl_manager: object) -> dict[str, Iterator]:
            raw: Any = asked.source.read(*_find_raw_files(asked, dl_manager))
            self.info.features["label"].names = raw.class_names
            return {split: self._generate_examples(each) for split, each in raw.splits.items()}

        def _generate_examples(self, examples: Iterable[tuple]) -> Iterator[tuple[int, dict]]:
            for i, (image, *numbers) in enumerate(examples):
                values = Image.fromarray(image), *map(int, numbers)
                yield i, dict(zip(features, values, strict=True))

    return Builder(
        name=asked.name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={},  # These are read when they are asked for.
        data_dir=asked.cache / "tensorflow_datasets",
        description=asked.source.summary,
    )


@contextlib.contextmanager
def _report_failure(asked: _Asked) -> Iterator[None]:
    """Turn the errors of a download into one sentence, and send its output to standard error."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    name, source, data_dir, cache = asked
    files = ", ".join(source.raw_files)
    tfds.display_progress_bar(is_terminal(sys.stderr))
    try:
        if data_dir is None:
            # Try once, quickly: without a network tensorflow-datasets would retry for minutes.
            asking = urllib.request.Request(source.url + source.raw_files[-1], method="HEAD")
            urllib.request.urlopen(asking, timeout=30).close()
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (ConfigError, NonMatchingChecksumError) as error:
        if data_dir is None:
            # The downloaded file is damaged; if it stayed, the next attempt would use it again.
            shutil.rmtree(cache / "tensorflow_datasets" / "downloads" / name, ignore_errors=True)
        if isinstance(error, ConfigError):
            raise
        raise _other_checksum(asked, "a file") from None
    except (tfds.download.DownloadError, OSError) as error:
        if data_dir is not None:
            raise
        allowed = f"a folder with {files}, because {name} cannot be downloaded ({error})"
        raise ConfigError("data_dir", None, allowed) from None
