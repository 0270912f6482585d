"""Readers of published files: what was written is read, and damaged files are refused."""

import struct
import tarfile
import zlib

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.datasets import fetched
from tests.datasets.small_files import (
    ARCHIVES,
    CIFAR10_NAMES,
    TINY,
    WNIDS,
    cifar10_parts,
    jpeg,
    quarters,
    register,
    tiny_members,
    write_cifar10,
    write_tiny,
)


def test_cifar10_is_read_as_it_was_written(archives):
    parts = cifar10_parts()
    raw = fetched.read_cifar10(archives / "cifar-10-binary.tar.gz")
    assert raw.class_names == CIFAR10_NAMES
    for split, (images, labels) in {
        "train": map(np.concatenate, zip(*parts[:5], strict=True)),
        "test": parts[5],
    }.items():
        got_images, got_labels = zip(*raw.splits[split], strict=True)
        np.testing.assert_array_equal(np.stack(got_images), images)
        np.testing.assert_array_equal(got_labels, labels)


def test_tiny_imagenet_is_read_as_it_was_written_but_for_losses_of_jpeg(archives):
    raw = fetched.read_tiny_imagenet(archives / "tiny-imagenet-200.zip")
    assert raw.class_names == WNIDS
    train, test = list(raw.splits["train"]), list(raw.splits["test"])
    expected = {label: [quarters(10 * label + i) for i in range(4)] for label in range(3)}
    for label, images in expected.items():
        images[0] = images[0][..., :1].repeat(3, axis=-1)
        got = [image for image, found in train if found == label]
        # Each quarter has one colour, so JPEG loses no detail of it, only rounding.
        np.testing.assert_allclose(np.stack(got).astype(int), np.stack(images), atol=4)
    assert len(train) == 12 and [label for _, label in test] == [2, 0, 1, 2, 0, 1]
    np.testing.assert_allclose(
        test[0][0].astype(int), quarters(100)[..., :1].repeat(3, axis=-1), atol=4
    )
    np.testing.assert_allclose(test[5][0].astype(int), quarters(105), atol=4)
    assert {image.shape for image, _ in train + test} == {(64, 64, 3)} and {
        image.dtype for image, _ in train
    } == {np.dtype(np.uint8)}


def test_tiny_imagenet_may_have_a_png_in_spite_of_its_name(tmp_path):
    write_tiny(tmp_path / "a.zip", **{"val/images/val_1.JPEG": jpeg(quarters(7), "PNG")})
    np.testing.assert_array_equal(
        list(fetched.read_tiny_imagenet(tmp_path / "a.zip").splits["test"])[1][0], quarters(7)
    )


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
    """Make a PNG whose header announces 30000 x 30000 pixels."""
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
