"""Small files in the forms in which image sets are published."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from fedjax_sim.datasets import fetched

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

TINY = "tiny-imagenet-200"

WNIDS = ["n03", "n01", "n02"]
"""Classes of a small TinyImageNet, not in alphabetical order."""


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def write_cifar10(
    path: Path, parts: list[tuple[np.ndarray, np.ndarray]], **changes: bytes | None
) -> None:
    """Write a tar in CIFAR-10's form.

    Args:
      path: File to write.
      parts: Images and labels of five parts for training and one for testing.
      **changes: New contents of members by name; None leaves a member out.
    """
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


def quarters(seed: int) -> np.ndarray:
    """Make an image of four quarters with one colour each; JPEG changes it by a few units."""
    colours = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), np.uint8)
    return colours.repeat(32, axis=0).repeat(32, axis=1)


def jpeg(image: np.ndarray, form: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(
        file, form, **({"quality": 95, "subsampling": 0} if form == "JPEG" else {})
    )
    return file.getvalue()


def tiny_members() -> dict[str, bytes]:
    """Make the files of a small TinyImageNet.

    Each of three classes has four training and two validation images. The first image of each class
    for training is grey, and the first image for validation.
    """
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
    for i, label in enumerate((2, 0, 1) * 2):
        image = quarters(100 + i)
        members[f"val/images/val_{i}.JPEG"] = jpeg(image[..., 0] if i == 0 else image)
        line = f"val_{i}.JPEG\t{WNIDS[label]}\t0\t32\t44\t62\n".encode()
        members["val/val_annotations.txt"] = members.get("val/val_annotations.txt", b"") + line
    return {**members, "test/images/test_0.JPEG": jpeg(quarters(200))}


def write_tiny(path: Path, **changes: bytes | None) -> None:
    """Write a zip in TinyImageNet's form.

    Args:
      path: File to write.
      **changes: New contents of members by name; None leaves a member out.
    """
    with zipfile.ZipFile(path, "w") as file:
        for name, content in (tiny_members() | changes).items():
            if content is not None:
                file.writestr(f"{TINY}/{name}", content)


def register(monkeypatch, folder):
    """Note the digests of the files in a folder as those of the original ones."""

    def noted(source: fetched.Source) -> fetched.Source:
        paths = [folder / file for file in source.raw_files]
        if not all(path.is_file() for path in paths):
            return source
        digests = (hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
        return source._replace(sha256=tuple(digests))

    for table in ("SOURCES", "TEXTS"):
        known = getattr(fetched, table)
        sources = {name: noted(source) for name, source in known.items()}
        monkeypatch.setattr(fetched, table, sources)


def write_hdf5(path: Path, files: dict[str, dict[str, dict]]) -> None:
    """Write a tar of HDF5 files in TensorFlow Federated's form.

    Args:
      path: File to write.
      files: Arrays or lists of bytes, by file, client and name.
    """
    with tarfile.open(path, "w:bz2") as tar:
        for name, clients in files.items():
            file = io.BytesIO()
            with h5py.File(file, "w") as h5:
                for client, arrays in clients.items():
                    for key, array in arrays.items():
                        h5[f"examples/{client}/{key}"] = array
            add_member(tar, name, file.getvalue())


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def rows(images, labels):
    """List examples in sorted order, because tensorflow-datasets shuffles them."""
    return sorted(
        (image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)
    )


ARCHIVES = {
    "cifar10": (
        "cifar-10-binary.tar.gz",
        fetched.read_cifar10,
        (15, 32, 32, 3),
        (4, 32, 32, 3),
        10,
    ),
    "tiny_imagenet": (
        "tiny-imagenet-200.zip",
        fetched.read_tiny_imagenet,
        (12, 64, 64, 3),
        (6, 64, 64, 3),
        3,
    ),
}
