"""Data sets by name: which names there are, how a set is loaded by its name, and bundled sets.

The digits are read from scikit-learn's file and split here, by the random numbers of its
`train_test_split`, because importing scikit-learn takes longer than many a first run.
"""

import importlib.util
import os
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.datasets import fetched, synthetic, text
from fedjax_sim.datasets.arrays import ARRAYS, Dataset, from_arrays, from_npz


def names() -> dict[str, str]:
    """List the names that `load` and `load_text` accept.

        assert {"digits", "mnist", "tiny_shakespeare"} <= fedjax_sim.datasets.names().keys()

    Returns:
      A description of one line for each name. The names "npz:PATH" and "text:PATH" stand for your
      own files.
    """
    return {
        "digits": "scikit-learn's handwritten digits, 1437 + 360 images of 8x8, 10 classes, "
        "bundled",
        "breast_cancer": "scikit-learn's breast cancer, 426 + 143 examples of 30 standardised "
        "features, 2 classes, bundled",
        **{name: source.summary for name, source in (fetched.SOURCES | fetched.TEXTS).items()},
        "synthetic_A_B": "FedProx's Synthetic(A, B), 60 features, 10 classes, 30 clients, such as "
        "synthetic_0.5_0.5, or synthetic_iid, computed",
        "npz:PATH": "your own .npz file with the arrays " + ", ".join(ARRAYS),
        "text:PATH": "your own .txt file with the speeches of a play, separated by empty lines, "
        "each under a line NAME:",
    }


def what_to_fetch() -> list[dict[str, str]]:
    """List how to fetch or download the sets that are not bundled.

    Returns:
      For each set its name ("data set"), the size of its raw files ("to fetch"), "licence", "from"
      (the address of the raw files) and "raw files".
    """
    return [
        {
            "data set": name,
            "to fetch": source.size,
            "licence": source.licence,
            "from": urlsplit(source.url).netloc,
            "raw files": ", ".join(source.raw_files),
        }
        for name, source in (fetched.SOURCES | fetched.TEXTS).items()
    ]


def is_text(name: str) -> bool:
    """Tell whether a name stands for a text, to be loaded by `load_text`, and not for images.

        assert is_text("tiny_shakespeare") and not is_text("digits")

    Args:
      name: A name as `load` and `load_text` accept it.

    Returns:
      Whether it is the name of a fetched text, starts with `text:` or ends in `.txt`.
    """
    return name in fetched.TEXTS or name.startswith("text:") or name.endswith(".txt")


@settings.checked
def load(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Dataset:
    """Load a set of images by name.

    A fetched set is downloaded and prepared once; later calls read it from the cache. Preparing it
    does not need TensorFlow.

    The test set of `tiny_imagenet` is its validation set, because its test images have no public
    labels.

        cancer = load("breast_cancer")  # bundled, as "digits"; nothing is fetched
        computed = load("synthetic_0.5_0.5")  # whose examples come with 30 clients
        assert cancer.train_images.shape == (426, 1, 1, 30) and computed.train_clients.max() == 29

    Args:
      name: One of `names()`. For your own file, give its path; the prefix `npz:` may be left out
        if the path ends in `.npz`. The set is then named after the file.
      data_dir: Folder with the raw files of a fetched set, which are then not downloaded, or with a
        folder of its name that has them. The files must be there, but are not read if the cache
        already holds the set. Other sets ignore it.
      cache_dir: Folder in which fetched sets are kept. By default the folder in the environment
        variable FEDJAX_SIM_CACHE, otherwise `~/.cache/fedjax_sim`.

    Returns:
      The images and labels for training and testing.

    Raises:
      ConfigError: If the name is unknown or stands for a text; if raw files are missing, damaged,
        incomplete, or differ from the registered checksums; if a download fails; if the cache
        cannot be written to; or if `from_arrays` refuses the arrays.
    """
    if name == "digits":
        return _load_digits()
    if name == "breast_cancer":
        return _load_breast_cancer()
    if is_text(name):
        raise settings.ConfigError("dataset", name, "a set of images, not a text")
    if name in fetched.SOURCES:
        return fetched.fetch(name, *_resolve_folders(data_dir, cache_dir))
    if name.startswith("synthetic_"):
        return synthetic.from_name(name)
    if name.startswith("npz:") or name.endswith(".npz"):
        return from_npz(_expanded(name.removeprefix("npz:")))
    raise settings.ConfigError("dataset", name, "one of " + ", ".join(names()))


@settings.checked
def load_text(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> text.Text:
    """Load a text by name; plays are cut into sequences with the default options of `from_text`.

        (folder / "play.txt").write_text("ANNA:\\nHello.\\n\\n" * 100)
        assert load_text(str(folder / "play.txt")).speakers == ("ANNA",)

    Args:
      name: "tiny_shakespeare", "shakespeare", or the path of a `.txt` file with or without the
        prefix `text:`.
      data_dir: Folder with the raw files of a fetched text, as for `load`.
      cache_dir: Folder in which fetched texts are kept, as for `load`.

    Returns:
      The sequences for training and testing.

    Raises:
      ConfigError: If the name is not that of a text; if a file is missing, damaged or not UTF-8; if
        a download fails; if the cache cannot be written to; or if `from_text` refuses the text.
    """
    if name in fetched.TEXTS:
        return fetched.fetch_text(name, *_resolve_folders(data_dir, cache_dir))
    if not is_text(name):
        allowed = "one of " + ", ".join(fetched.TEXTS) + ", or a .txt file"
        raise settings.ConfigError("dataset", name, allowed)
    return text.from_file(_expanded(name.removeprefix("text:")))


def _resolve_folders(
    data_dir: str | os.PathLike | None, cache_dir: str | os.PathLike | None
) -> tuple[Path | None, Path]:
    """Return the folders of raw files and of the cache as paths, with the cache's default."""
    cache = lifecycle.cache_folder(cache_dir)
    if cache is None:
        allowed = "a folder, or FEDJAX_SIM_CACHE set to one: this process has no home folder"
        raise settings.ConfigError("cache_dir", cache_dir, allowed)
    return None if data_dir is None else _expanded(data_dir), cache


def _expanded(path: str | os.PathLike) -> Path:
    """Put the home folder in place of "~"; where there is none, the path stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (`Path.expanduser` raises an error)


def _load_digits() -> Dataset:
    """Load scikit-learn's digits as bytes, with a fixed stratified split."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",")
    images, labels = rows[:, :-1], rows[:, -1].astype(int)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train, test = split_stratified(labels, 360)
    arrays = images[train], labels[train], images[test], labels[test]
    return from_arrays(*arrays, num_classes=10, name="digits")


def _load_breast_cancer() -> Dataset:
    """Load scikit-learn's breast cancer, standardised by the training set, with a fixed split."""
    from sklearn import datasets  # Slow to import.

    features, labels = datasets.load_breast_cancer(return_X_y=True)
    train, test = split_stratified(labels, 143)
    features = (features - features[train].mean(axis=0)) / features[train].std(axis=0)
    arrays = features[train], labels[train], features[test], labels[test]
    return from_arrays(*arrays, num_classes=2, name="breast_cancer")


def split_stratified(labels: np.ndarray, num_test: int) -> tuple[np.ndarray, np.ndarray]:
    """Split examples so that both parts have the classes' shares.

    Args:
      labels: Classes of M examples.
      num_test: Examples to test on, of the M.

    Returns:
      The numbers of the examples to train and to test on: those of `train_test_split` with
      `stratify=labels` and `random_state=0`.
    """
    random = np.random.RandomState(0)
    counts = np.unique(labels, return_counts=True)[1]
    of_train = _shares(counts, len(labels) - num_test, random)
    of_test = _shares(counts - of_train, num_test, random)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    mixed = [each[random.permutation(len(each))] for each in members]
    train = [each[:num] for each, num in zip(mixed, of_train, strict=True)]
    rest = zip(mixed, of_train, of_test, strict=True)
    test = [each[first : first + num] for each, first, num in rest]
    return random.permutation(np.concatenate(train)), random.permutation(np.concatenate(test))


def _shares(counts: np.ndarray, total: int, random: np.random.RandomState) -> np.ndarray:
    """Divide a total among classes by their counts; the largest remainders are rounded up."""
    exact = counts / counts.sum() * total
    shares = np.floor(exact)
    remainders = exact - shares
    for remainder in np.unique(remainders)[::-1]:
        left = int(total - shares.sum())
        if left == 0:
            break
        equal = np.flatnonzero(remainders == remainder)
        shares[random.choice(equal, size=min(len(equal), left), replace=False)] += 1
    return shares.astype(int)
