"""Readers of the files in which image sets are published. They read archives in place: nothing is unpacked to disk.

A reader takes the paths of a set's raw files and returns `Raw`. A file that is damaged, or that lacks what its format asks for, raises
ConfigError naming the file.
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
from PIL import Image, UnidentifiedImageError

from fedjax_sim.settings import ConfigError

_DAMAGE = (
    *(OSError, EOFError, IndexError, KeyError, RuntimeError, SyntaxError, ValueError),
    *(Image.DecompressionBombError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
"""What the standard library, numpy and pillow raise at a file that is not what it should be."""


class Raw(NamedTuple):
    """What a set's raw files hold."""

    splits: dict[
        str, Iterable[tuple]
    ]  # of "train" and "test": image u8[H, W] or u8[H, W, 3], label, and client if there are any
    class_names: list[str] | None = None  # in the order of the labels; None if the files have none


def read_idx(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> Raw:
    """Read MNIST's gzipped IDX files: two zeros, a type code, the number of axes, then big-endian sizes and the bytes.

    http://yann.lecun.com/exdb/mnist/
    """

    def read(path: Path) -> np.ndarray:
        with _readable(path):
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
    """Read CIFAR-10's tar of binary files: records of one byte for the label and 3 x 32 x 32 for the image, channels first.

    https://www.cs.toronto.edu/~kriz/cifar.html
    """
    folder = "cifar-10-batches-bin/"
    names = folder + "batches.meta.txt"
    files = {
        "train": [f"{folder}data_batch_{i}.bin" for i in range(1, 6)],
        "test": [folder + "test_batch.bin"],
    }
    wanted = [names, *files["train"], *files["test"]]
    found = {}
    with _readable(archive), tarfile.open(archive, "r:gz") as tar:
        for member in tar:  # once through, as the archive is compressed in one piece
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
    """Read TinyImageNet's zip of JPEGs; images u8[64, 64, 3], grey ones made RGB.

    http://cs231n.stanford.edu/tiny-imagenet-200.zip. Classes are WordNet ids in the order of its wnids.txt (words.txt says what they
    mean). The validation images serve as test set, as those in its folder `test` have no public labels. Any number of classes is read,
    and of images as long as it is the same for all classes.
    """
    folder = "tiny-imagenet-200/"
    wnids_file, annotations_file = folder + "wnids.txt", folder + "val/val_annotations.txt"
    with _readable(archive), zipfile.ZipFile(archive) as file:
        members = set(file.namelist())
        _require([wnids_file, annotations_file], members, archive)
        wnids = list(dict.fromkeys(file.read(wnids_file).decode().split()))
        # Lines of a file name, a WordNet id and the corners of a box.
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
        found = Counter(wnid for _, wnid in examples)
        if set(found) != set(wnids) or len(set(found.values())) != 1:
            allowed = f"an archive with {split} images of just the classes in {wnids_file}, and equally many of each"
            raise ConfigError("raw file", str(archive), allowed)
    number = {wnid: i for i, wnid in enumerate(wnids)}

    def decoded(examples: list[tuple[str, str]]) -> Iterator[tuple[np.ndarray, int]]:
        with zipfile.ZipFile(archive) as file:
            for name, wnid in examples:
                with _readable(archive, name):
                    image = _decoded(file.read(name), 64)
                yield image, number[wnid]

    # Images are decoded one by one, when they are asked for.
    return Raw({"train": decoded(train), "test": decoded(test)}, wnids)


def read_federated_emnist(archive: Path) -> Raw:
    """Read the tar of HDF5 files in which TensorFlow Federated publishes EMNIST by writers; images u8[28, 28], clients from 0 by name.

    https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/emnist/load_data. The background is white, 255, as
    published. The tar is unpacked for as long as it is read, since HDF5 is read in no order.
    """
    files = {"train": "fed_emnist_train.h5", "test": "fed_emnist_test.h5"}
    with _readable(archive), tarfile.open(archive, "r:bz2") as tar:
        _require(files.values(), tar.getnames(), archive)

    def examples(file: str) -> Iterator[tuple[np.ndarray, int, int]]:
        import h5py

        with tempfile.TemporaryDirectory() as folder:
            with _readable(archive, file), tarfile.open(archive, "r:bz2") as tar:
                tar.extract(file, folder, filter="data")
            with _readable(archive, file), h5py.File(Path(folder) / file) as writers:
                for client, name in enumerate(sorted(writers["examples"])):
                    own = writers["examples"][name]
                    pixels, labels = np.asarray(own["pixels"]), np.asarray(own["label"]).ravel()
                    if (
                        pixels.shape[1:] != (28, 28)
                        or len(pixels) != len(labels)
                        or labels.max() >= 62
                    ):
                        raise ValueError(f"{name} has no images of 28x28 with labels from 0 to 61")
                    for image, label in zip(
                        np.rint(255 * pixels).astype(np.uint8), labels, strict=True
                    ):
                        yield image, int(label), client

    return Raw(
        {split: examples(file) for split, file in files.items()},
        list(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    )


def _decoded(data: bytes, size: int) -> np.ndarray:
    """Decode a square image to RGB. Its size is looked at first, so that a header cannot ask for more memory than there is."""
    # ImageNet is known to have a PNG among its files that end in .JPEG.
    try:
        image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
    except UnidentifiedImageError:
        raise ValueError("neither JPEG nor PNG") from None
    if image.size != (size, size):
        raise ValueError(f"an image of {image.width}x{image.height} instead of {size}x{size}")
    return np.asarray(image.convert("RGB"))


def _require(names: Iterable[str], members: Collection[str], archive: Path) -> None:
    if missing := [name for name in names if name not in members]:
        raise ConfigError(
            "raw file", str(archive), f"an archive with {missing[0]}, which is missing"
        )


@contextlib.contextmanager
def _readable(path: Path, member: str = "") -> Iterator[None]:
    """Say in one sentence which file could not be read, and why."""
    try:
        yield
    except ConfigError:
        raise
    except _DAMAGE as error:
        where = f"{member}: " if member else ""
        raise ConfigError(
            "raw file", str(path), f"an undamaged file of the published form ({where}{error})"
        ) from None
