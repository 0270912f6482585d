"""Data sets that come with scikit-learn, with fixed stratified splits.

The digits are read from scikit-learn's file and split here, by the random numbers of its
`train_test_split`, because importing scikit-learn takes longer than many a first run.
"""

import importlib.util
from pathlib import Path

import numpy as np

from fedjax_sim.datasets.arrays import Dataset, from_arrays


def load_digits() -> Dataset:
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


def load_breast_cancer() -> Dataset:
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
    test = [
        each[first : first + num] for each, first, num in zip(mixed, of_train, of_test, strict=True)
    ]
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
