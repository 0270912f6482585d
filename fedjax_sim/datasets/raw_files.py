"""Readers of the files in which image sets are published.

A reader takes the paths of a set's raw files and returns `Raw`. Archives are read in place; only
HDF5 files are unpacked, into a temporary folder. A file that is damaged or incomplete raises a
ConfigError that names it.
"""

import contextlib
import gzip
import io
import string
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError

_DAMAGE = (
    *(OSError, EOFError, IndexError, KeyError, RuntimeError, SyntaxError, ValueError),
    *(struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
"""Errors that the standard library, NumPy, h5py and Pillow raise when a file is damaged."""


class Raw(NamedTuple):
    """The contents of a set's raw files.

    Attributes:
      splits: Examples of "train" and of "test". An example is an image, `u8[H, W]` or
        `u8[H, W, 3]`, its label and, if the set has clients, its client.
      class_names: Names in the order of the labels, or None if the files have none.
    """

    splits: dict[str, Iterable[tuple]]
    class_names: list[str] | None = None


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
      The examples, without class names.

    Raises:
      ConfigError: If a file is damaged.
    """

    def read(path: Path) -> np.ndarray:
        with _report_damage(path):
            data = gzip.decompress(path.read_bytes())
            shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
            return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)

    files = {"train": (train_images, train_labels), "test": (test_images, test_labels)}
    return Raw(
        {
            split: list(zip(read(images), read(labels), strict=True))
            for split, (images, labels) in files.items()
        }
    )


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
    folder = "cifar-10-batches-bin/"
    names = folder + "batches.meta.txt"
    files = {
        "train": [f"{folder}data_batch_{i}.bin" for i in range(1, 6)],
        "test": [folder + "test_batch.bin"],
    }
    wanted = [names, *files["train"], *files["test"]]
    found = {}
    with _report_damage(archive), tarfile.open(archive, "r:gz") as tar:
        # Members are visited once, in order: to go back would decompress the archive again.
        for member in tar:
            if member.name in wanted and member.isreg() and (file := tar.extractfile(member)):
                found[member.name] = file.read()
        _require(wanted, found, archive)
        class_names = found[names].decode().split()
        data = {
            split: np.frombuffer(b"".join(found[part] for part in parts), np.uint8)
            for split, parts in files.items()
        }
        records = {split: flat.reshape(-1, 1 + 3 * 32 * 32) for split, flat in data.items()}
        if len(class_names) != 10 or max(rows[:, 0].max() for rows in records.values()) > 9:
            raise ConfigError(
                "raw file", str(archive), "an archive with ten class names and labels from 0 to 9"
            )
    images = {
        split: rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        for split, rows in records.items()
    }
    return Raw(
        {
            split: list(zip(images[split], rows[:, 0], strict=True))
            for split, rows in records.items()
        },
        class_names,
    )


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
        annotations = [
            line.split()
            for line in file.read(annotations_file).decode().splitlines()
            if line.strip()
        ]
        test = [(f"{folder}val/images/{name}", wnid) for name, wnid, *_ in annotations]
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
                    image = _decode(file.read(name), 64)
                yield image, label_of[wnid]

    return Raw({"train": decode_all(train), "test": decode_all(test)}, wnids)


def read_federated_emnist(archive: Path) -> Raw:
    """Read the tar of HDF5 files in which TensorFlow Federated publishes EMNIST by writers.

    The background is white, 255, as published. A file is unpacked into a temporary folder while it
    is read, because HDF5 needs random access. See
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
    files = {"train": "fed_emnist_train.h5", "test": "fed_emnist_test.h5"}
    with _report_damage(archive), tarfile.open(archive, "r:bz2") as tar:
        _require(files.values(), tar.getnames(), archive)

    def examples(file: str) -> Iterator[tuple[np.ndarray, int, int]]:
        import h5py

        with tempfile.TemporaryDirectory() as folder:
            with _report_damage(archive, file), tarfile.open(archive, "r:bz2") as tar:
                tar.extract(file, folder, filter="data")
            with _report_damage(archive, file), h5py.File(Path(folder) / file) as writers:
                for client, name in enumerate(sorted(writers["examples"])):
                    writer = writers["examples"][name]
                    pixels = np.asarray(writer["pixels"])
                    labels = np.asarray(writer["label"]).ravel()
                    if (
                        pixels.shape[1:] != (28, 28)
                        or len(pixels) != len(labels)
                        or labels.max() >= 62
                    ):
                        raise ValueError(f"{name} has no images of 28x28 with labels from 0 to 61")
                    images = np.rint(255 * pixels).astype(np.uint8)
                    for image, label in zip(images, labels, strict=True):
                        yield image, int(label), client

    return Raw(
        {split: examples(file) for split, file in files.items()},
        list(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    )


def _decode(data: bytes, size: int) -> np.ndarray:
    """Decode a square image of a known size to RGB.

    The size in the header is checked before decoding, so that a damaged header cannot ask for more
    memory than there is.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        # One of ImageNet's files with the suffix .JPEG is known to be a PNG.
        image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
    except UnidentifiedImageError:
        raise ValueError("neither JPEG nor PNG") from None
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    if image.size != (size, size):
        raise ValueError(f"an image of {image.width}x{image.height} instead of {size}x{size}")
    return np.asarray(image.convert("RGB"))


def _require(names: Iterable[str], members: Collection[str], archive: Path) -> None:
    """Raise a ConfigError if a file is missing from an archive."""
    if missing := [name for name in names if name not in members]:
        raise ConfigError(
            "raw file", str(archive), f"an archive with {missing[0]}, which is missing"
        )


@contextlib.contextmanager
def _report_damage(path: Path, member: str = "") -> Iterator[None]:
    """Turn the errors of a damaged file into a ConfigError that says which file and why."""
    try:
        yield
    except ConfigError:
        raise
    except _DAMAGE as error:
        where = f"{member}: " if member else ""
        raise ConfigError(
            "raw file", str(path), f"an undamaged file of the published form ({where}{error})"
        ) from None
