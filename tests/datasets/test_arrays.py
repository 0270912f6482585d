"""Data sets from a user's arrays and .npz files, and what is refused."""

import struct
import zipfile

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.core.settings import ConfigError
from tests.datasets.small_files import CIFAR10_NAMES


def user_arrays(**changes):
    """Return a user's arrays, which are correct except for the changes; None leaves one out."""
    arrays = {
        "train_images": np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": np.zeros((2, 4, 3), np.uint8),
        "test_labels": np.array([2, 0]),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


@pytest.mark.parametrize("prefix", ["npz:", ""])
def test_own_file(tmp_path, prefix):
    np.savez(tmp_path / "birds.npz", **user_arrays())
    got = datasets.load(f"{prefix}{tmp_path / 'birds.npz'}")
    assert (got.num_classes, got.name) == (3, "birds")
    np.testing.assert_array_equal(got.train_images, user_arrays()["train_images"][..., None])
    np.testing.assert_array_equal(got.test_labels, [2, 0])
    assert got.train_labels.dtype == np.int32


@pytest.mark.parametrize("prefix", ["npz:", ""])
def test_own_class_names_tell_the_number_of_classes_and_the_file_the_name(tmp_path, prefix):
    labels = {
        "train_labels": np.array([0, 1, 2, 0, 1, 2], np.uint8),
        "test_labels": np.array([2, 0], np.uint8),
    }
    np.savez(
        tmp_path / "cifar10_jpeg.npz", **user_arrays(class_names=np.array(CIFAR10_NAMES), **labels)
    )
    got = datasets.load(f"{prefix}{tmp_path / 'cifar10_jpeg.npz'}")
    assert (got.num_classes, got.name) == (10, "cifar10_jpeg")
    assert got.train_labels.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("shape", "expected"), [((5,), (1, 1, 5)), ((4, 3), (4, 3, 1)), ((4, 3, 2), (4, 3, 2))]
)
def test_own_images_get_four_axes(shape, expected):
    images = {"train_images": np.ones((6, *shape)), "test_images": np.ones((2, *shape))}
    got = datasets.from_arrays(**user_arrays(**images))
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
        (  # Their last 32 bits are equal.
            {"train_clients": np.array([1, 2**32 + 1] * 3)},
            r"largest of train_clients is 4294967297, but must be below 2\^31",
        ),
        (
            {"class_names": np.array(["coot", "teal"])},
            "largest label is 2, but must be below the number of classes, 2",
        ),
        ({"train_labels": np.array([0, 1, 2, 0, 1, None])}, "without Python objects"),
    ],
)
def test_bad_own_arrays_are_refused_in_one_short_sentence(tmp_path, changes, sentence):
    np.savez(tmp_path / "a.npz", **user_arrays(**changes))
    with pytest.raises(ConfigError, match=sentence) as caught:
        datasets.load(str(tmp_path / "a.npz"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 350


def test_own_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "a.npz").write_text("hello")
    np.savez(tmp_path / "b.npz", **user_arrays())
    (tmp_path / "b.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:-100])
    for file in ("a.npz", "b.npz", "missing.npz"):
        with pytest.raises(ConfigError, match=f"npz file is .*{file}"):
            datasets.load(str(tmp_path / file))


def test_a_file_with_a_password_or_too_many_rows_is_refused(tmp_path):
    """Neither is noticed before an array is read."""
    for name in ("locked.npz", "huge.npz"):
        np.savez(tmp_path / name, **user_arrays())
    content = bytearray((tmp_path / "locked.npz").read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = content.find(header)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(header, place + 1)
    (tmp_path / "locked.npz").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "huge.npz", "a") as file:
        header = "{'descr': '|u1', 'fortran_order': False, 'shape': (100000000000000000000, 4), }"
        header = header.ljust(117) + "\n"
        file.writestr(
            "train_clients.npy", b"\x93NUMPY\1\0" + struct.pack("<H", 118) + header.encode()
        )
    for name in ("locked.npz", "huge.npz"):
        with pytest.raises(ConfigError, match=f"npz file is .*{name}', but must be an undamaged"):
            datasets.load(str(tmp_path / name))
