"""The form of an image data set, `Dataset`, made from a user's arrays or an .npz file and checked.

Letters: `n` examples; `H`, `W`, `C` height, width and channels of an image; `D` features of a flat
example.
"""

import zipfile
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_sim.core.settings import ConfigError, Count, check_file, checked, shape
from fedjax_sim.datasets.files import form_of, refusing

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
"""Arrays that an .npz file must have."""


@checked
class Dataset(NamedTuple):
    """A training set and a test set of labelled images.

    Images are kept as they were published, as bytes from 0 to 255; images that a user gives as
    floating-point numbers are finite float32.

        digits = load("digits")
        assert digits.train_images.shape == (1437, 8, 8, 1) and digits.num_classes == 10

    Attributes:
      train_images: `u8[n, H, W, C]` or `f32[n, H, W, C]`.
      train_labels: `i32[n]`, from 0 to num_classes - 1.
      test_images: As `train_images`, with its own number of examples.
      test_labels: As `train_labels`, one for each test image.
      num_classes: Number of classes.
      name: Name of the set, used in tables and pictures.
      train_clients: `i32[n]`, the client to which each training example belongs, or None if the
        data has no clients.
    """

    train_images: Annotated[np.ndarray, shape("n ...")]
    train_labels: Annotated[np.ndarray, shape("n")]
    test_images: Annotated[np.ndarray, shape("m ...")]
    test_labels: Annotated[np.ndarray, shape("m")]
    num_classes: Count
    name: str
    train_clients: np.ndarray | None = None


@checked
def from_arrays(
    train_images: np.ndarray,
    train_labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    *,
    num_classes: Count | None = None,
    name: str = "own",
    train_clients: np.ndarray | None = None,
) -> Dataset:
    """Make a data set from your own arrays.

        images, labels = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2
        own = from_arrays(images[:15], labels[:15], images[15:], labels[15:])
        assert own.num_classes == 2

    Args:
      train_images: Finite bytes or floats `[n, H, W, C]`, `[n, H, W]` (one channel) or `[n, D]`
        (kept as one pixel with D channels).
      train_labels: Integers `[n]` from 0 to num_classes - 1.
      test_images: As `train_images`; the same dtype and the same shape of an image.
      test_labels: As `train_labels`, one for each test image.
      num_classes: Number of classes. By default it is counted among the training labels, which
        must then contain every class.
      name: Name of the set.
      train_clients: Whole numbers `[n]`, the client to which each training example belongs. The
        partition "natural" follows them.

    Returns:
      The data set, with images of four axes and int32 labels.

    Raises:
      ConfigError: If an array has a wrong shape, dtype or value, naming the array.
    """
    train_images = _checked_images("train_images", train_images)
    test_images = _checked_images("test_images", test_images)
    train_labels = _checked_labels("train_labels", train_labels, len(train_images))
    test_labels = _checked_labels("test_labels", test_labels, len(test_images))
    train_form, test_form = form_of(train_images[0]), form_of(test_images[0])
    if test_form != train_form:
        raise ConfigError("each of test_images", test_form, f"{train_form}, as in train_images")
    largest = int(max(train_labels.max(), test_labels.max()))
    if num_classes is None and (found := len(np.unique(train_labels))) != largest + 1:
        allowed = f"{largest + 1}, because labels go from 0 to {largest}"
        raise ConfigError("number of classes among train_labels", found, allowed)
    num_classes = largest + 1 if num_classes is None else num_classes
    if largest >= num_classes:
        raise ConfigError("largest label", largest, f"below the number of classes, {num_classes}")
    if train_clients is not None:
        clients = _checked_labels("train_clients", train_clients, len(train_images))
        if (largest := int(clients.max())) > np.iinfo(np.int32).max:  # Would be another client.
            raise ConfigError("largest of train_clients", largest, "below 2^31")
        train_clients = clients.astype(np.int32)
    train_labels, test_labels = train_labels.astype(np.int32), test_labels.astype(np.int32)
    arrays = train_images, train_labels, test_images, test_labels
    return Dataset(*arrays, num_classes, name, train_clients)


def from_npz(path: Path, name: str | None = None) -> Dataset:
    """Read a data set from an .npz file.

    Args:
      path: File with the arrays in `ARRAYS`, and optionally `class_names` (one per class) and
        `train_clients`.
      name: Name of the set; by default the file's name without its suffix.

    Returns:
      The data set.

    Raises:
      ConfigError: If the file is missing, damaged or incomplete, or holds Python objects, or if
        `from_arrays` refuses its arrays.
    """
    check_file("npz file", path)
    if not zipfile.is_zipfile(path):
        allowed = "an existing file, complete and written by numpy.savez"
        raise ConfigError("npz file", str(path), allowed)
    allowed = "an undamaged file of plain arrays, without Python objects or a password"
    with refusing("npz file", str(path), allowed), np.load(path, allow_pickle=False) as file:
        missing = [array for array in ARRAYS if array not in file]
        names = (*ARRAYS, "class_names", "train_clients")
        arrays = {array: file[array] for array in names if array in file}
    if missing:
        allowed = f"one with the arrays {', '.join(ARRAYS)} ({missing[0]} is missing)"
        raise ConfigError("npz file", str(path), allowed)
    num_classes = len(np.atleast_1d(arrays.pop("class_names"))) if "class_names" in arrays else None
    return from_arrays(**arrays, num_classes=num_classes, name=name or path.stem)


def _checked_images(field: str, images: np.ndarray) -> np.ndarray:
    """Check images and give them four axes; floats become float32."""
    images = np.asarray(images)
    if images.ndim not in (2, 3, 4) or images.size == 0:
        allowed = "[n, H, W, C], [n, H, W] or [n, D], every size at least 1"
        raise ConfigError(f"shape of {field}", images.shape, allowed)
    if np.issubdtype(images.dtype, np.floating):
        # A float64 too large for float32 becomes infinite and is then counted as bad.
        with np.errstate(over="ignore"):
            images = images.astype(np.float32)
        if num_bad := int(np.sum(~np.isfinite(images))):
            found = f"number of NaN or infinite values (in float32) in {field}"
            raise ConfigError(found, num_bad, "0")
    elif images.dtype != np.uint8:
        raise ConfigError(f"dtype of {field}", str(images.dtype), "uint8 or a floating type")
    return images[:, None, None, :] if images.ndim == 2 else images.reshape(*images.shape[:3], -1)


def _checked_labels(field: str, labels: np.ndarray, num_images: int) -> np.ndarray:
    """Check whole numbers that belong to images: labels or clients."""
    labels = np.asarray(labels)
    if labels.shape != (num_images,):
        allowed = f"({num_images},), one number for each image"
        raise ConfigError(f"shape of {field}", labels.shape, allowed)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError(f"dtype of {field}", str(labels.dtype), "an integer type")
    if labels.min() < 0:
        raise ConfigError(f"smallest of {field}", int(labels.min()), "at least 0")
    return labels
