"""Readers of the files in which image sets and texts by clients are published.

A reader takes the paths of a set's raw files and returns `Raw`, or the arrays of a text. Archives
are read in place; only HDF5 files are unpacked, into a temporary folder. A file that is damaged or
incomplete raises a ConfigError that names it.
"""

import contextlib
import gzip
import io
import shutil
import string
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedjax_sim.core.settings import ConfigError, check_file
from fedjax_sim.datasets.text import encode_clients

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
    train_images = sorted(
        name for name in members if name.startswith(folder + "train/") and name.endswith(".JPEG")
    )
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
    train, test = (
        _emnist_examples(archive, file) for file in _files_of_clients(archive, "fed_emnist")
    )
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
    return encode_clients(train, test, SHAKESPEARE_CHARACTERS, length=80)


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


@contextlib.contextmanager
def _report_damage(path: Path, member: str = "") -> Iterator[None]:
    """Turn the errors of a damaged file into a ConfigError that says which file and why."""
    check_file("raw file", path)
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # The readers of a damaged file raise errors of many kinds.
        where = f"{member}: " if member else ""
        allowed = f"an undamaged file of the published form ({where}{error})"
        raise ConfigError("raw file", str(path), allowed) from None
