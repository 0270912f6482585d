"""Data sets that are fetched: downloaded or read from a folder of raw files, then cached.

tensorflow-datasets prepares a set in its standard format, without TensorFlow. The decoded arrays
are then written next to it into one .npz file, which all later calls read. Texts go straight into
an .npz file, and are only downloaded by it. Raw files, downloaded or given, are read only if they
have the digests noted here. The .npz file ends with its own digest, which is checked.
"""

import contextlib
import hashlib
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.core.lifecycle import InputError, check_seal, is_terminal, write_arrays
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.datasets import raw_files
from fedjax_sim.datasets.arrays import Dataset, from_npz
from fedjax_sim.datasets.raw_files import Raw
from fedjax_sim.datasets.text import Text, from_text
from fedjax_sim.datasets.text import from_npz as text_from_npz


class Source(NamedTuple):
    """Where a fetched set comes from and how its raw files are read.

    To add a set of images, add an entry to `SOURCES` and, if no reader in `raw_files` fits, a
    reader.

    Attributes:
      summary: Description of one line.
      licence: Licence of the data, or the conditions under which it is published.
      size: Size of the raw files, such as "170 MB". If the publisher does not name it, a question
        mark and the memory that the arrays take.
      url: Address of the raw files, without their names.
      raw_files: Names of the raw files.
      sha256: SHA-256 of each raw file, in hexadecimal digits.
      read: Reader that takes the paths of the raw files, in that order. It returns `Raw`, or the
        arrays of a text: those of a text by clients, or the bytes of a play as `text`.
      image_shape: Shape `(H, W, C)` of an image; None for a text.
      has_clients: Whether each training example belongs to a client.
    """

    summary: str
    licence: str
    size: str
    url: str
    raw_files: tuple[str, ...]
    sha256: tuple[str, ...]
    read: Callable[..., Raw] | Callable[..., dict[str, np.ndarray]]
    image_shape: tuple[int, int, int] | None = None
    has_clients: bool = False


_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)

SOURCES: dict[str, Source] = {
    "mnist": Source(
        "handwritten digits, 60000 + 10000 images of 28x28, 10 classes, fetched or from raw files",
        "CC BY-SA 3.0",
        "12 MB",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        _IDX_FILES,
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        raw_files.read_idx,
        image_shape=(28, 28, 1),
    ),
    "fashion_mnist": Source(
        "pieces of clothing, 60000 + 10000 images of 28x28, 10 classes, fetched or from raw files",
        "MIT",
        "31 MB",
        # The same bucket as the http address that tensorflow-datasets knows.
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        _IDX_FILES,
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        raw_files.read_idx,
        image_shape=(28, 28, 1),
    ),
    "cifar10": Source(
        "animals and vehicles, 50000 + 10000 colour images of 32x32, 10 classes, "
        "fetched or from the raw file",
        "none stated",
        "170 MB",
        "https://www.cs.toronto.edu/~kriz/",
        ("cifar-10-binary.tar.gz",),
        ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
        raw_files.read_cifar10,
        image_shape=(32, 32, 3),
    ),
    "tiny_imagenet": Source(
        "things of all kinds, 100000 + 10000 colour images of 64x64 (its validation set as test "
        "set), 200 classes, fetched or from the raw file",
        "non-commercial",
        "248 MB",
        "https://cs231n.stanford.edu/",
        ("tiny-imagenet-200.zip",),
        ("6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",),
        raw_files.read_tiny_imagenet,
        image_shape=(64, 64, 3),
    ),
    "federated_emnist": Source(
        "handwritten characters by 3400 writers, 671585 + 77483 images of 28x28, 62 classes, "
        "fetched or from the raw file",
        "none stated, by NIST",
        "?, 587 MB held",
        "https://storage.googleapis.com/tff-datasets-public/",
        ("fed_emnist.tar.bz2",),
        ("fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",),
        raw_files.read_federated_emnist,
        image_shape=(28, 28, 1),
        has_clients=True,
    ),
    "cifar100": Source(
        "things of a hundred classes, 50000 + 10000 colour images of 32x32, for the partition "
        "pachinko, fetched or from the raw file",
        "none stated",
        "169 MB",
        "https://www.cs.toronto.edu/~kriz/",
        ("cifar-100-binary.tar.gz",),
        ("58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",),
        raw_files.read_cifar100,
        image_shape=(32, 32, 3),
    ),
}
"""Sets of images that are fetched, by name."""

TEXTS: dict[str, Source] = {
    "tiny_shakespeare": Source(
        "40,000 lines of plays, next-character prediction, a speaker is a client, "
        "fetched or from the raw file",
        "public domain",
        "1 MB",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        ("input.txt",),
        ("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",),
        lambda path: {"text": np.frombuffer(path.read_bytes(), np.uint8)},
    ),
    "shakespeare": Source(
        "LEAF's Shakespeare, 16068 + 2356 speeches by 715 roles, next-character prediction, "
        "fetched or from the raw file",
        "public domain",
        "?, 5 MB held",
        "https://storage.googleapis.com/tff-datasets-public/",
        ("shakespeare.tar.bz2",),
        ("0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",),
        raw_files.read_shakespeare,
        has_clients=True,
    ),
}
"""Texts that are fetched, by name: plays, and texts by clients."""

_BLOCK = 1000
"""Number of examples decoded at a time, so that a large set is not held in memory twice."""


def fetch(name: str, data_dir: Path | None, cache: Path) -> Dataset:
    """Read a set of images from the cache, after preparing it there if necessary.

    Args:
      name: A name in `SOURCES`.
      data_dir: Folder with the raw files, or None to download them.
      cache: Folder of the cache.

    Returns:
      The images and labels for training and testing.

    Raises:
      ConfigError: If raw files are missing, damaged or not the registered ones, if a download
        fails, or if the cache cannot be written to.
    """
    asked = _Asked(name, SOURCES[name], data_dir, cache)
    return from_npz(_find_or_prepare(asked, _prepare_images), name)


def fetch_text(name: str, data_dir: Path | None, cache: Path) -> Text:
    """Read a text from the cache, after preparing it there if necessary.

    Args:
      name: A name in `TEXTS`.
      data_dir: Folder with the raw files, or None to download them.
      cache: Folder of the cache.

    Returns:
      The sequences for training and testing.

    Raises:
      ConfigError: As `fetch`.
    """
    asked = _Asked(name, TEXTS[name], data_dir, cache)
    path = _find_or_prepare(asked, _prepare_text)
    if asked.source.has_clients:
        return text_from_npz(path, name)
    with np.load(path, allow_pickle=False) as file:
        return from_text(file["text"].tobytes().decode(), name=name)


class _Asked(NamedTuple):
    """A set that is asked for, and the arguments of `fetch`."""

    name: str
    source: Source
    data_dir: Path | None
    cache: Path


def _find_or_prepare(asked: _Asked, prepare: Callable[[_Asked], dict[str, np.ndarray]]) -> Path:
    """Return the cache's file of a set, after writing it if it does not exist.

    Raises:
      ConfigError: As `fetch`, or if the file is damaged.
    """
    name, source, data_dir, cache = asked
    if data_dir and (data_dir / name).is_dir():
        data_dir = data_dir / name
        asked = asked._replace(data_dir=data_dir)
    missing = [file for file in source.raw_files if data_dir and not (data_dir / file).is_file()]
    if missing:
        allowed = f"a folder with the raw files of {name} ({missing[0]} is missing)"
        raise ConfigError("data_dir", str(data_dir), allowed)
    decoded = cache / f"{name}.npz"
    try:
        if decoded.exists():
            check_seal(decoded)
            return decoded
        cache.mkdir(parents=True, exist_ok=True)
        write_arrays(decoded, prepare(asked))
    except ConfigError:
        raise
    except InputError:
        allowed = "an undamaged one: remove it, and it is prepared again"
        raise ConfigError("file in the cache", str(decoded), allowed) from None
    except OSError as error:
        allowed = f"a folder that can be written to ({error})"
        raise ConfigError("cache_dir", str(cache), allowed) from None
    return decoded


def _prepare_images(asked: _Asked) -> dict[str, np.ndarray]:
    """Let tensorflow-datasets prepare a set of images, and return the decoded arrays."""
    import tensorflow_datasets as tfds

    builder = _make_builder(asked)
    if not builder.data_path.exists():
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        with _report_failure(asked):
            try:
                builder.download_and_prepare(download_config=config, file_format="array_record")
            except (tfds.download.DownloadError, OSError):
                if not builder.data_path.exists():
                    raise
                builder = _make_builder(asked)  # Another process has prepared the set meanwhile.
    features = builder.info.features
    arrays = {"class_names": np.asarray(features["label"].names)}
    for split, examples in builder.as_data_source().items():
        named = {"image": f"{split}_images", "label": f"{split}_labels"}
        if asked.source.has_clients and split == "train":
            named["client"] = "train_clients"
        for feature, array in named.items():
            whole = (len(examples), *features[feature].shape)
            arrays[array] = np.empty(whole, np.uint8 if feature == "image" else np.int32)
        for start in range(0, len(examples), _BLOCK):
            rows = examples.__getitems__(range(start, min(start + _BLOCK, len(examples))))
            for feature, array in named.items():
                arrays[array][start : start + len(rows)] = [row[feature] for row in rows]
    return arrays


def _prepare_text(asked: _Asked) -> dict[str, np.ndarray]:
    """Download a text, if its raw files are not given, and return its arrays."""
    import tensorflow_datasets as tfds

    with _report_failure(asked):
        folder = asked.cache / "tensorflow_datasets" / "downloads" / asked.name
        manager = None if asked.data_dir else tfds.download.DownloadManager(download_dir=folder)
        arrays = asked.source.read(*_find_raw_files(asked, manager))
    assert isinstance(arrays, dict)
    return arrays


def _find_raw_files(asked: _Asked, dl_manager: Any) -> list[Path]:
    """Download the raw files, or find them in a folder, and check their digests.

    Raises:
      ConfigError: If a file is not the original one.
    """
    _, source, data_dir, _ = asked
    if data_dir is None:
        downloads = dl_manager.download([source.url + file for file in source.raw_files])
        paths = [Path(path) for path in downloads]
    else:
        paths = [data_dir / file for file in source.raw_files]
    for path, file, expected in zip(paths, source.raw_files, source.sha256, strict=True):
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != expected:
            raise _other_checksum(asked, file)
    return paths


def _other_checksum(asked: _Asked, file: str) -> ConfigError:
    how = "has" if asked.data_dir else "was downloaded with"
    allowed = f"a folder with the original files of {asked.name}: {file} {how} another checksum"
    return ConfigError("data_dir", asked.data_dir and str(asked.data_dir), allowed)


def _make_builder(asked: _Asked) -> Any:
    """Make a builder of tensorflow-datasets that does not need TensorFlow."""
    import tensorflow_datasets as tfds
    from PIL import Image
    from tensorflow_datasets.core.dataset_builders.adhoc_builder import AdhocBuilder

    image = tfds.features.Image(shape=asked.source.image_shape)
    features = {"image": image, "label": tfds.features.ClassLabel()}
    features |= {"client": tfds.features.Scalar(np.int32)} if asked.source.has_clients else {}

    class Builder(AdhocBuilder, skip_registration=True):  # type: ignore[call-arg]
        def _split_generators(self, dl_manager: object) -> dict[str, Iterator]:
            raw: Any = asked.source.read(*_find_raw_files(asked, dl_manager))
            self.info.features["label"].names = raw.class_names
            return {split: self._generate_examples(each) for split, each in raw.splits.items()}

        def _generate_examples(self, examples: Iterable[tuple]) -> Iterator[tuple[int, dict]]:
            for i, (image, *numbers) in enumerate(examples):
                values = Image.fromarray(image), *map(int, numbers)
                yield i, dict(zip(features, values, strict=True))

    return Builder(
        name=asked.name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={},  # These are read when they are asked for.
        data_dir=asked.cache / "tensorflow_datasets",
        description=asked.source.summary,
    )


@contextlib.contextmanager
def _report_failure(asked: _Asked) -> Iterator[None]:
    """Turn the errors of a download into one sentence, and send its output to standard error."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    name, source, data_dir, cache = asked
    files = ", ".join(source.raw_files)
    tfds.display_progress_bar(is_terminal(sys.stderr))
    try:
        if data_dir is None:
            # Try once, quickly: without a network tensorflow-datasets would retry for minutes.
            urllib.request.urlopen(
                urllib.request.Request(source.url + source.raw_files[-1], method="HEAD"), timeout=30
            ).close()
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (ConfigError, NonMatchingChecksumError) as error:
        if data_dir is None:
            # The downloaded file is damaged; if it stayed, the next attempt would use it again.
            downloads = cache / "tensorflow_datasets" / "downloads" / name
            shutil.rmtree(downloads, ignore_errors=True)
        if isinstance(error, ConfigError):
            raise
        raise _other_checksum(asked, "a file") from None
    except (tfds.download.DownloadError, OSError) as error:
        if data_dir is not None:
            raise
        allowed = f"a folder with {files}, because {name} cannot be downloaded ({error})"
        raise ConfigError("data_dir", None, allowed) from None
