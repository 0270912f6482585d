"""The form in which data sets are handed out, made of a user's arrays or of an .npz file with them, and checked."""

import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


class Dataset(NamedTuple):
    """A training and a test set. Images are bytes 0..255 as they came, or finite float32 where the user's own are floats."""

    train_images: np.ndarray  # u8 or f32 [n, H, W, C]
    train_labels: np.ndarray  # i32[n], 0..num_classes-1
    test_images: np.ndarray  # of another n, otherwise as the training set
    test_labels: np.ndarray
    num_classes: int
    name: str
    train_clients: np.ndarray | None = (
        None  # i32[n], whose each training example is, where the data came with clients
    )


def from_arrays(
    train_images: np.ndarray,
    train_labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    *,
    num_classes: int | None = None,
    name: str = "own",
    train_clients: np.ndarray | None = None,
) -> Dataset:
    """Make a data set of a user's arrays, or raise ConfigError naming what is wrong with them.

    images: bytes or floats, `[n, H, W, C]`, `[n, H, W]` (one channel) or `[n, D]` (kept as D channels of one pixel), finite.
    labels: integers `[n]` in 0..num_classes-1. num_classes: where not given, the number of classes among the training labels.
    train_clients: whole numbers `[n]`, whose each training example is; the natural split keeps to them.
    """
    train_images, test_images = (
        _checked_images("train_images", train_images),
        _checked_images("test_images", test_images),
    )
    train_labels = _checked_labels("train_labels", train_labels, len(train_images))
    test_labels = _checked_labels("test_labels", test_labels, len(test_images))
    train_form, test_form = (
        f"{images.dtype}{list(images.shape[1:])}" for images in (train_images, test_images)
    )
    if test_form != train_form:
        raise ConfigError("each of test_images", test_form, f"{train_form}, as in train_images")
    largest = int(max(train_labels.max(), test_labels.max()))
    if num_classes is None and (found := len(np.unique(train_labels))) != largest + 1:
        raise ConfigError(
            "number of classes among train_labels",
            found,
            f"{largest + 1}, as labels go from 0 to {largest}",
        )
    num_classes = largest + 1 if num_classes is None else num_classes
    if largest >= num_classes:
        raise ConfigError("largest label", largest, f"below the number of classes, {num_classes}")
    if train_clients is not None:
        train_clients = _checked_labels("train_clients", train_clients, len(train_images)).astype(
            np.int32
        )
    return Dataset(
        train_images,
        train_labels.astype(np.int32),
        test_images,
        test_labels.astype(np.int32),
        num_classes,
        name,
        train_clients,
    )


def _checked_images(field: str, images: np.ndarray) -> np.ndarray:
    images = np.asarray(images)
    if images.ndim not in (2, 3, 4) or images.size == 0:
        raise ConfigError(
            f"shape of {field}",
            images.shape,
            "[n, H, W, C], [n, H, W] or [n, D], none of them zero",
        )
    if np.issubdtype(images.dtype, np.floating):
        with np.errstate(over="ignore"):
            images = images.astype(np.float32)
        if num_bad := int(np.sum(~np.isfinite(images))):
            raise ConfigError(
                f"number of NaN or infinite values (in float32) in {field}", num_bad, "0"
            )
    elif images.dtype != np.uint8:
        raise ConfigError(f"dtype of {field}", str(images.dtype), "uint8 or a floating type")
    return images[:, None, None, :] if images.ndim == 2 else images.reshape(*images.shape[:3], -1)


def _checked_labels(field: str, labels: np.ndarray, num_images: int) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != (num_images,):
        raise ConfigError(
            f"shape of {field}", labels.shape, f"({num_images},), one label for each image"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError(f"dtype of {field}", str(labels.dtype), "an integer type")
    if labels.min() < 0:
        raise ConfigError(f"smallest of {field}", int(labels.min()), "at least 0")
    return labels


def from_npz(path: Path, name: str | None = None) -> Dataset:
    """Read a file of the arrays of `Dataset` and perhaps `class_names` and `train_clients`.

    Its name without the suffix is the set's, unless one is given.
    """
    if not zipfile.is_zipfile(path):
        raise ConfigError(
            "npz file", str(path), "an existing file, complete and written by numpy.savez"
        )
    with np.load(path, allow_pickle=False) as file:
        for array in ARRAYS:
            if array not in file:
                raise ConfigError(
                    "npz file",
                    str(path),
                    f"one with the arrays {', '.join(ARRAYS)} ({array} is missing)",
                )
        try:
            arrays = {
                array: file[array]
                for array in (*ARRAYS, "class_names", "train_clients")
                if array in file
            }
        except (ValueError, OSError, zipfile.BadZipFile, zlib.error):
            raise ConfigError(
                "npz file", str(path), "an undamaged file of plain arrays, without Python objects"
            ) from None
    num_classes = len(np.atleast_1d(arrays.pop("class_names"))) if "class_names" in arrays else None
    return from_arrays(**arrays, num_classes=num_classes, name=name or path.stem)
