"""Data sets by name, and the bundled ones."""

import subprocess
import sys

import numpy as np

from fedjax_sim import datasets
from tests.datasets.small_files import rows


def test_names_have_one_line_each():
    assert all(line and "\n" not in line for line in datasets.names().values())


def test_digits_are_bytes_split_once_and_for_all():
    digits = datasets.load("digits")
    assert digits.train_images.shape == (1437, 8, 8, 1) and digits.test_images.shape == (
        360,
        8,
        8,
        1,
    )
    assert digits.train_images.dtype == np.uint8 and digits.train_labels.dtype == np.int32
    assert digits.train_images.min() == 0 and digits.train_images.max() == 255
    assert (digits.num_classes, digits.name) == (10, "digits")
    shares = np.bincount(digits.test_labels) / np.bincount(
        np.concatenate([digits.train_labels, digits.test_labels])
    )
    np.testing.assert_allclose(shares, 0.2, atol=0.01)
    again = datasets.load("digits")
    assert all(np.array_equal(a, b) for a, b in zip(digits[:4], again[:4], strict=True))


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    digits = datasets.load("digits")
    ours = np.concatenate([digits.train_images, digits.test_images])
    back = np.rint(ours / 255 * 16).astype(np.uint8)
    assert rows(back, np.concatenate([digits.train_labels, digits.test_labels])) == rows(
        images.astype(np.uint8), labels
    )


def test_importing_data_sets_and_partitions_loads_no_reader():
    """The large packages are imported when a set is loaded or a picture is drawn."""
    program = (
        "import sys; import fedjax_sim.datasets, fedjax_sim.partition; print([name for name in "
        "('tensorflow_datasets', 'array_record', 'sklearn', 'matplotlib', 'PIL', 'h5py') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
