"""Labelled image sets and texts as numpy arrays: bundled, fetched by tensorflow-datasets, or a user's own.

Where to look: `arrays` and `text` have the forms in which they are handed out, `fetched` the list of sets that are fetched (add one there),
and `raw_files` the readers of the files in which those are published. Letters: `n` examples, `H`, `W`, `C` height, width and channels of
an image, `D` features of a flat example.
"""

import os
from pathlib import Path

import numpy as np

from fedjax_sim.datasets.arrays import ARRAYS, Dataset, from_arrays, from_npz
from fedjax_sim.datasets.fetched import SOURCES, TEXTS, fetch, fetch_text
from fedjax_sim.datasets.text import Text, from_file, from_text
from fedjax_sim.settings import ConfigError

__all__ = ["Dataset", "Text", "from_arrays", "from_text", "is_text", "load", "load_text", "names"]


def names() -> dict[str, str]:
    """What `load` and, for texts, `load_text` accept, each with one line of description."""
    return {
        "digits": "scikit-learn's handwritten digits, 1437 + 360 images of 8x8, 10 classes, bundled",
        "breast_cancer": "scikit-learn's breast cancer, 426 + 143 examples of 30 standardised features, 2 classes, bundled",
        **{name: source.summary for name, source in (SOURCES | TEXTS).items()},
        "npz:PATH": "your own .npz file with the arrays " + ", ".join(ARRAYS),
        "text:PATH": "your own .txt file of speeches parted by empty lines, each headed by a line NAME:, as a text",
    }


def is_text(name: str) -> bool:
    """Whether a name stands for a text, which `load_text` loads."""
    return name in TEXTS or name.startswith("text:") or name.endswith(".txt")


def load(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Dataset:
    """Load a set of images by name.

    name: one of `names()`; a path that ends in .npz needs no `npz:` before it, and the set is called like the file. data_dir: the
    folder with a fetched set's raw files, which are then not downloaded; other sets have no use for it. cache_dir: where fetched sets
    are kept, by default `$FEDJAX_SIM_CACHE` or `~/.cache/fedjax_sim`; what has been prepared there is not prepared again, whatever
    data_dir then holds. The test set of `tiny_imagenet` is its validation set, as its test images have no public labels; its raw file
    has no registered checksum, so that a smaller one of the same form is taken too.

    Raises ConfigError for an unknown name, raw files that are absent, damaged, incomplete or not the registered ones, a download that
    fails, and everything `from_arrays` refuses.
    """
    if name == "digits":
        return _digits()
    if name == "breast_cancer":
        return _breast_cancer()
    if is_text(name):
        raise ConfigError("dataset", name, "a set of images, and no text")
    if name in SOURCES:
        return fetch(name, *_folders(data_dir, cache_dir))
    if name.startswith("npz:") or name.endswith(".npz"):
        return from_npz(Path(name.removeprefix("npz:")).expanduser())
    raise ConfigError("dataset", name, "one of " + ", ".join(names()))


def load_text(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Text:
    """Load a text by name, in the form that `from_text` gives it by default.

    name: "tiny_shakespeare", or the path of a .txt file, with or without `text:` before it. The rest is as for `load`.
    """
    if name in TEXTS:
        return fetch_text(name, *_folders(data_dir, cache_dir))
    if not is_text(name):
        raise ConfigError("dataset", name, "one of " + ", ".join(TEXTS) + ", or a .txt file")
    return from_file(Path(name.removeprefix("text:")).expanduser())


def _folders(
    data_dir: str | os.PathLike | None, cache_dir: str | os.PathLike | None
) -> tuple[Path | None, Path]:
    cache = cache_dir or os.environ.get("FEDJAX_SIM_CACHE") or "~/.cache/fedjax_sim"
    return None if data_dir is None else Path(data_dir).expanduser(), Path(cache).expanduser()


def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    return from_arrays(
        images[train], labels[train], images[test], labels[test], num_classes=10, name="digits"
    )


def _breast_cancer() -> Dataset:
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    features, labels = load_breast_cancer(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=143, stratify=labels, random_state=0
    )
    features = (features - features[train].mean(axis=0)) / features[train].std(axis=0)
    return from_arrays(
        features[train],
        labels[train],
        features[test],
        labels[test],
        num_classes=2,
        name="breast_cancer",
    )
