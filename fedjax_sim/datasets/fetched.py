"""Sets that are fetched: downloaded or taken from a folder of raw files, prepared once, and kept decoded.

tensorflow-datasets prepares them in its standard format, without TensorFlow; their arrays are kept beside it in one .npz file, which is
what is read ever after.
"""

import contextlib
import itertools
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fedjax_sim.datasets.arrays import Dataset, from_npz
from fedjax_sim.datasets.raw_files import (
    Raw,
    read_cifar10,
    read_federated_emnist,
    read_idx,
    read_tiny_imagenet,
)
from fedjax_sim.datasets.text import Text, from_file
from fedjax_sim.settings import ConfigError


class Source(NamedTuple):
    """A set that is fetched. A new one needs an entry in `SOURCES` and, where none in `raw_files` fits, a reader."""

    summary: str  # one line for the user
    url: str  # the raw files' address without their names
    raw_files: tuple[str, ...]  # their names
    read: Callable[..., Raw]  # is given the paths of the raw files, in their order
    own_shape: tuple[int, int, int] | None = (
        None  # of an image, if tensorflow-datasets does not know the set nor its files' checksums
    )
    has_clients: bool = False  # whether each example says whose it is


_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)

SOURCES = {
    "mnist": Source(
        "handwritten digits, 60000 + 10000 images of 28x28, 10 classes, fetched or from raw files",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        _IDX_FILES,
        read_idx,
    ),
    "fashion_mnist": Source(
        "pieces of clothing, 60000 + 10000 images of 28x28, 10 classes, fetched or from raw files",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        _IDX_FILES,
        read_idx,
    ),
    "cifar10": Source(
        "animals and vehicles, 50000 + 10000 colour images of 32x32, 10 classes, fetched or from the raw file",
        "https://www.cs.toronto.edu/~kriz/",
        ("cifar-10-binary.tar.gz",),
        read_cifar10,
    ),
    "tiny_imagenet": Source(
        "things of all kinds, 100000 + 10000 colour images of 64x64 (its validation set as test set), 200 classes, "
        "fetched or from the raw file",
        "http://cs231n.stanford.edu/",
        ("tiny-imagenet-200.zip",),
        read_tiny_imagenet,
        own_shape=(64, 64, 3),
    ),
    "federated_emnist": Source(
        "handwritten characters by 3400 writers, 671585 + 77483 images of 28x28, 62 classes, fetched or from the raw file",
        "https://storage.googleapis.com/tff-datasets-public/",
        ("fed_emnist.tar.bz2",),
        read_federated_emnist,
        own_shape=(28, 28, 1),
        has_clients=True,
    ),
}

TEXTS = {
    "tiny_shakespeare": Source(
        "40,000 lines of plays, next-character prediction, a speaker is a client, fetched or from the raw file",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        ("input.txt",),
        lambda path: path.read_text(encoding="utf-8"),
    ),
}
"""Texts that are fetched."""

_BLOCK = 1000
"""Examples decoded at a time, so that a large set is not held twice."""


def fetch(name: str, data_dir: Path | None, cache: Path) -> Dataset:
    """Read a set of images from the cache, preparing it first if it has never been."""
    return from_npz(_kept(SOURCES, name, data_dir, cache / f"{name}.npz"), name)


def fetch_text(name: str, data_dir: Path | None, cache: Path) -> Text:
    """Read a text from the cache, preparing it first if it has never been."""
    return from_file(_kept(TEXTS, name, data_dir, cache / f"{name}.txt"), name)


def _kept(sources: Mapping[str, Source], name: str, data_dir: Path | None, decoded: Path) -> Path:
    """The file in the cache with a prepared set, which is made if it is not there."""
    absent = [
        file for file in sources[name].raw_files if data_dir and not (data_dir / file).is_file()
    ]
    if absent:
        raise ConfigError(
            "data_dir",
            str(data_dir),
            f"a folder with the raw files of {name} ({absent[0]} is missing)",
        )
    cache = decoded.parent
    if not decoded.is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                complete = Path(scratch) / decoded.name
                if name in TEXTS:
                    complete.write_text(
                        _prepared_text(name, data_dir, cache), encoding="utf-8", newline=""
                    )
                else:
                    np.savez(complete, allow_pickle=False, **_prepared(name, data_dir, cache))
                complete.replace(decoded)
        except OSError as error:
            raise ConfigError(
                "cache_dir", str(cache), f"a folder that can be written to ({error})"
            ) from None
    return decoded


def _prepare(
    name: str, source: Source, make_builder: Callable[[], Any], data_dir: Path | None, cache: Path
) -> Any:
    """Let tensorflow-datasets prepare a set; it checks the checksums that it knows. Returns the set's builder."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    builder = make_builder()
    config = tfds.download.DownloadConfig(
        manual_dir=data_dir,
        try_download_gcs=False,
        force_checksums_validation=source.own_shape is None,
    )
    tfds.display_progress_bar(sys.stderr.isatty())
    try:
        if data_dir is None and not builder.data_path.exists():
            # One quick attempt: tensorflow-datasets itself goes on trying for minutes where there is no network.
            urllib.request.urlopen(
                urllib.request.Request(source.url + source.raw_files[-1], method="HEAD"), timeout=30
            ).close()
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(download_config=config, file_format="array_record")
    except ConfigError:
        if data_dir is None:
            shutil.rmtree(
                cache / "tensorflow_datasets" / "downloads" / name, ignore_errors=True
            )  # or it would be taken again
        raise
    except NonMatchingChecksumError:
        allowed = (
            f"a folder with the original files of {name}: a checksum of those found is another one"
        )
        raise ConfigError("data_dir", data_dir and str(data_dir), allowed) from None
    except (tfds.download.DownloadError, OSError) as error:
        if builder.data_path.exists():
            return make_builder()  # another process was faster
        if data_dir is not None:
            raise
        allowed = f"a folder with {', '.join(source.raw_files)}, because {name} cannot be downloaded ({error})"
        raise ConfigError("data_dir", None, allowed) from None
    return builder


def _prepared(name: str, data_dir: Path | None, cache: Path) -> dict[str, np.ndarray]:
    """Prepare a set of images and decode it."""
    source = SOURCES[name]
    make_builder = partial(
        _builder_class(name, source, data_dir), data_dir=cache / "tensorflow_datasets"
    )
    builder = _prepare(name, source, make_builder, data_dir, cache)
    arrays = {"class_names": np.asarray(builder.info.features["label"].names)}
    for split, examples in builder.as_data_source().items():
        arrays[f"{split}_images"] = np.empty(
            (len(examples), *builder.info.features["image"].shape), np.uint8
        )
        arrays[f"{split}_labels"] = np.empty(len(examples), np.int32)
        for start in range(0, len(examples), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(examples)))
            rows = examples.__getitems__(range(block.start, block.stop))
            arrays[f"{split}_images"][block] = np.stack([row["image"] for row in rows])
            arrays[f"{split}_labels"][block] = [row["label"] for row in rows]
            if source.has_clients and split == "train":
                arrays.setdefault("train_clients", np.empty(len(examples), np.int32))[block] = [
                    row["client"] for row in rows
                ]
    return arrays


def _prepared_text(name: str, data_dir: Path | None, cache: Path) -> str:
    """Prepare a text and join its splits, which tensorflow-datasets cuts out of it in this order."""
    import tensorflow_datasets as tfds

    source = TEXTS[name]
    base: Any = tfds.builder_cls(name)

    class Builder(base, skip_registration=True):  # type: ignore[call-arg]
        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            """As the stock builder, which reads the file with TensorFlow."""
            text = source.read(Path(dl_manager.download(source.url + source.raw_files[0])))
            cuts = [0, int(len(text) * 0.9)]
            cuts += [cuts[1] + int((len(text) - cuts[1]) * 0.5), len(text)]
            parts = zip(("train", "validation", "test"), itertools.pairwise(cuts), strict=True)
            return {
                split: self._generate_examples(split, text[begin:end])
                for split, (begin, end) in parts
            }

    Builder.name = name
    Builder.url_infos = _registered_files(base)
    builder = _prepare(
        name, source, partial(Builder, data_dir=cache / "tensorflow_datasets"), data_dir, cache
    )
    splits = builder.as_data_source()
    return "".join(
        splits[split][0]["text"].decode("utf-8") for split in ("train", "validation", "test")
    )


def _registered_files(builder: Any) -> Any:
    """The checksums of a stock builder that keeps its own, which a subclass elsewhere would not find."""
    return builder.url_infos


def _builder_class(name: str, source: Source, data_dir: Path | None) -> Any:
    """Make a builder that needs no TensorFlow: the stock one with its readers and encoders replaced, or where there is none, our own."""
    import tensorflow_datasets as tfds

    class OwnBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features = {
                "image": tfds.features.Image(shape=source.own_shape),
                "label": tfds.features.ClassLabel(),
            }
            features |= {"client": tfds.features.Scalar(np.int32)} if source.has_clients else {}
            return tfds.core.DatasetInfo(
                builder=self,
                description=source.summary,
                features=tfds.features.FeaturesDict(features),
            )

    base: Any = tfds.builder_cls(name) if source.own_shape is None else OwnBuilder

    class Builder(base, skip_registration=True):  # type: ignore[call-arg]
        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            if data_dir is not None and source.own_shape is not None:
                paths = [
                    data_dir / file for file in source.raw_files
                ]  # which tensorflow-datasets would not find without a checksum
            else:
                paths = [
                    Path(path)
                    for path in dl_manager.download(
                        [source.url + file for file in source.raw_files]
                    )
                ]
            raw = source.read(*paths)
            if raw.class_names is not None:
                self.info.features["label"].names = raw.class_names
            return {
                split: self._generate_examples(split, examples)
                for split, examples in raw.splits.items()
            }

        def _generate_examples(self, split: str, examples: Iterable[tuple]) -> Any:
            for i, (image, label, *client) in enumerate(examples):
                example = {
                    "id": f"{split}_{i:05d}",
                    "image": Image.fromarray(image),
                    "label": int(label),
                    "client": sum(client),
                }
                yield i, {feature: example[feature] for feature in self.info.features}

    Builder.name = name  # which tensorflow-datasets would otherwise make of the class's name
    return Builder
