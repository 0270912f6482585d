"""Labelled image sets as numpy arrays: bundled, fetched by tensorflow-datasets, or a user's own.

Fetched sets are prepared once without TensorFlow, in the standard format of tensorflow-datasets, and their decoded arrays are kept
beside it in one file. Letters: `n` examples, `H`, `W`, `C` height, width and channels of an image, `D` features of a flat example.
"""

import contextlib
import gzip
import os
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError


class Dataset(NamedTuple):
    """A training and a test set. Images are bytes 0..255 as they came, or finite float32 where the user's own are floats."""

    train_images: np.ndarray  # u8 or f32 [n, H, W, C]
    train_labels: np.ndarray  # i32[n], 0..num_classes-1
    test_images: np.ndarray  # of another n, otherwise as the training set
    test_labels: np.ndarray
    num_classes: int
    name: str


class _Source(NamedTuple):
    """A set that tensorflow-datasets knows. A new one needs an entry in `_SOURCES` and, for another file format, a reader."""

    summary: str
    url: str  # with a file name appended, an address whose checksum tensorflow-datasets has registered
    files: Mapping[str, tuple[str, ...]]  # raw files of each split
    read: Callable[..., tuple[np.ndarray, np.ndarray]]  # paths of a split's raw files -> u8[n, H, W], integers [n]

    @property
    def raw_files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(file for files in self.files.values() for file in files))


_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


def names() -> dict[str, str]:
    """What `load` accepts, each with one line of description."""
    return {
        "digits": "scikit-learn's handwritten digits, 1437 + 360 images of 8x8, 10 classes, bundled",
        **{name: source.summary for name, source in _SOURCES.items()},
        "npz:PATH": "your own .npz file with the arrays " + ", ".join(_ARRAYS),
    }


def load(name: str, *, data_dir: str | os.PathLike | None = None, cache_dir: str | os.PathLike | None = None) -> Dataset:
    """Load a data set by name.

    name: one of `names()`; a path that ends in .npz needs no `npz:` before it. data_dir: the folder with a fetched set's raw files,
    which are then not downloaded; other sets have no use for it. cache_dir: where fetched sets are kept, by default
    `$FEDJAX_SIM_CACHE` or `~/.cache/fedjax_sim`. Raises ConfigError for an unknown name, a folder without the files, files that are
    not the registered ones, a download that fails, and everything `from_arrays` refuses.
    """
    if name == "digits":
        return _digits()
    if name in _SOURCES:
        cache = cache_dir or os.environ.get("FEDJAX_SIM_CACHE") or "~/.cache/fedjax_sim"
        return _fetched(name, None if data_dir is None else Path(data_dir).expanduser(), Path(cache).expanduser())
    if name.startswith("npz:") or name.endswith(".npz"):
        return _from_npz(Path(name.removeprefix("npz:")).expanduser())
    raise ConfigError("dataset", name, "one of " + ", ".join(names()))


def from_arrays(
    train_images: np.ndarray,
    train_labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    *,
    num_classes: int | None = None,
    name: str = "own",
) -> Dataset:
    """Make a data set of a user's arrays, or raise ConfigError naming what is wrong with them.

    images: bytes or floats, `[n, H, W, C]`, `[n, H, W]` (one channel) or `[n, D]` (kept as D channels of one pixel), finite.
    labels: integers `[n]` in 0..num_classes-1. num_classes: where not given, the number of classes among the training labels.
    """
    train_images, test_images = _checked_images("train_images", train_images), _checked_images("test_images", test_images)
    train_labels = _checked_labels("train_labels", train_labels, len(train_images))
    test_labels = _checked_labels("test_labels", test_labels, len(test_images))
    train_form, test_form = (f"{images.dtype}{list(images.shape[1:])}" for images in (train_images, test_images))
    if test_form != train_form:
        raise ConfigError("each of test_images", test_form, f"{train_form}, as in train_images")
    largest = int(max(train_labels.max(), test_labels.max()))
    if num_classes is None and (found := len(np.unique(train_labels))) != largest + 1:
        raise ConfigError("number of classes among train_labels", found, f"{largest + 1}, as labels go from 0 to {largest}")
    num_classes = largest + 1 if num_classes is None else num_classes
    if largest >= num_classes:
        raise ConfigError("largest label", largest, f"below the number of classes, {num_classes}")
    return Dataset(train_images, train_labels.astype(np.int32), test_images, test_labels.astype(np.int32), num_classes, name)


def _checked_images(field: str, images: np.ndarray) -> np.ndarray:
    images = np.asarray(images)
    if images.ndim not in (2, 3, 4) or images.size == 0:
        raise ConfigError(f"shape of {field}", images.shape, "[n, H, W, C], [n, H, W] or [n, D], none of them zero")
    if np.issubdtype(images.dtype, np.floating):
        with np.errstate(over="ignore"):
            images = images.astype(np.float32)
        if num_bad := int(np.sum(~np.isfinite(images))):
            raise ConfigError(f"number of NaN or infinite values (in float32) in {field}", num_bad, "0")
    elif images.dtype != np.uint8:
        raise ConfigError(f"dtype of {field}", str(images.dtype), "uint8 or a floating type")
    return images[:, None, None, :] if images.ndim == 2 else images.reshape(*images.shape[:3], -1)


def _checked_labels(field: str, labels: np.ndarray, num_images: int) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != (num_images,):
        raise ConfigError(f"shape of {field}", labels.shape, f"({num_images},), one label for each image")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError(f"dtype of {field}", str(labels.dtype), "an integer type")
    if labels.min() < 0:
        raise ConfigError(f"smallest of {field}", int(labels.min()), "at least 0")
    return labels


def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
    return from_arrays(images[train], labels[train], images[test], labels[test], num_classes=10, name="digits")


def _from_npz(path: Path, name: str | None = None) -> Dataset:
    if not zipfile.is_zipfile(path):
        raise ConfigError("npz file", str(path), "an existing file, complete and written by numpy.savez")
    with np.load(path, allow_pickle=False) as file:
        for array in _ARRAYS:
            if array not in file:
                raise ConfigError("npz file", str(path), f"one with the arrays {', '.join(_ARRAYS)} ({array} is missing)")
        try:
            arrays = {array: file[array] for array in (*_ARRAYS, "class_names") if array in file}
        except (ValueError, OSError, zipfile.BadZipFile, zlib.error):
            raise ConfigError("npz file", str(path), "an undamaged file of plain arrays, without Python objects") from None
    num_classes = len(np.atleast_1d(arrays.pop("class_names"))) if "class_names" in arrays else None
    return from_arrays(**arrays, num_classes=num_classes, name=name or path.stem)


def _fetched(name: str, data_dir: Path | None, cache: Path) -> Dataset:
    """Read a fetched set's arrays from the cache, preparing it first if it has never been."""
    absent = [file for file in _SOURCES[name].raw_files if data_dir and not (data_dir / file).is_file()]
    if absent:
        raise ConfigError("data_dir", str(data_dir), f"a folder with the raw files of {name} ({absent[0]} is missing)")
    decoded = cache / f"{name}.npz"
    if not decoded.is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                complete = Path(scratch) / decoded.name
                np.savez(complete, allow_pickle=False, **_prepared(name, data_dir, cache))
                complete.replace(decoded)
        except OSError as error:
            raise ConfigError("cache_dir", str(cache), f"a folder that can be written to ({error})") from None
    return _from_npz(decoded, name)


def _prepared(name: str, data_dir: Path | None, cache: Path) -> dict[str, np.ndarray]:
    """Prepare a set with tensorflow-datasets, which checks the raw files' checksums, and decode it."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    source = _SOURCES[name]
    builder = _builder_class(name, source)(data_dir=cache / "tensorflow_datasets")
    config = tfds.download.DownloadConfig(manual_dir=data_dir, try_download_gcs=False, force_checksums_validation=True)
    tfds.display_progress_bar(sys.stderr.isatty())
    try:
        if data_dir is None and not builder.data_path.exists():
            # One quick attempt: tensorflow-datasets itself goes on trying for minutes where there is no network.
            urllib.request.urlopen(urllib.request.Request(source.url + source.raw_files[-1], method="HEAD"), timeout=30).close()
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(download_config=config, file_format="array_record")
    except NonMatchingChecksumError:
        allowed = f"a folder with the original files of {name}: a checksum of those found is another one"
        raise ConfigError("data_dir", data_dir and str(data_dir), allowed) from None
    except (tfds.download.DownloadError, OSError) as error:
        if data_dir is not None:
            raise
        allowed = f"a folder with {', '.join(source.raw_files)}, because {name} cannot be downloaded ({error})"
        raise ConfigError("data_dir", None, allowed) from None
    arrays = {"class_names": np.asarray(builder.info.features["label"].names)}
    for split, examples in builder.as_data_source().items():
        rows = examples.__getitems__(range(len(examples)))
        arrays[f"{split}_images"] = np.stack([row["image"] for row in rows])
        arrays[f"{split}_labels"] = np.asarray([row["label"] for row in rows], np.int32)
    return arrays


def _builder_class(name: str, source: _Source) -> Any:
    """Derive from the stock builder one that prepares the same set without TensorFlow, whose readers and encoders it replaces."""
    import tensorflow_datasets as tfds
    from PIL import Image

    stock: Any = tfds.builder_cls(name)

    class Builder(stock, skip_registration=True):  # type: ignore[call-arg]
        name = stock.name  # which tensorflow-datasets would otherwise make of this class's name

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            paths = dl_manager.download({split: [source.url + file for file in files] for split, files in source.files.items()})
            return {split: self._generate_examples(*paths[split]) for split in source.files}

        def _generate_examples(self, *paths: Any) -> Any:
            for i, (image, label) in enumerate(zip(*source.read(*paths), strict=True)):
                yield i, {"image": Image.fromarray(image), "label": int(label)}

    return Builder


def _read_idx(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read gzipped IDX files: two zeros, a type code, the number of axes, then big-endian sizes and the bytes."""

    def read(path: Path) -> np.ndarray:
        data = gzip.decompress(Path(path).read_bytes())
        shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)

    return read(images), read(labels)


_SOURCES = {
    name: _Source(
        f"{what}, 60000 + 10000 images of 28x28, 10 classes, fetched or from raw files",
        url,
        {split: (f"{stem}-images-idx3-ubyte.gz", f"{stem}-labels-idx1-ubyte.gz") for split, stem in (("train", "train"), ("test", "t10k"))},
        _read_idx,
    )
    for name, what, url in (
        ("mnist", "handwritten digits", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        ("fashion_mnist", "pieces of clothing", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
    )
}
