"""Bundled sets are those that scikit-learn reads and splits."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

from fedjax_sim import datasets
from fedjax_sim.datasets.catalogue import split_stratified


@pytest.mark.parametrize(
    ("labels", "num_test"),
    [
        (load_digits().target, 360),
        (load_breast_cancer().target, 143),
        (np.arange(60) % 7, 20),
        (np.repeat([0, 1, 2], 5), 4),
        (np.repeat([3, 1], [9, 11]), 10),
    ],
)
def test_a_stratified_split(labels: np.ndarray, num_test: int) -> None:
    """Ties between remainders, with none and with several left over, are broken alike."""
    theirs = train_test_split(
        np.arange(len(labels)), test_size=num_test, stratify=labels, random_state=0
    )
    for our, their in zip(split_stratified(labels, num_test), theirs, strict=True):
        np.testing.assert_array_equal(our, their)


def test_the_digits_in_the_file() -> None:
    images, labels = load_digits(return_X_y=True)
    digits = datasets.load("digits")
    train, test = split_stratified(labels, 360)
    bytes_of = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    np.testing.assert_array_equal(digits.train_images, bytes_of[train])
    np.testing.assert_array_equal(digits.test_images, bytes_of[test])
    np.testing.assert_array_equal(digits.test_labels, labels[test])
