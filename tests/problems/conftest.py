"""Data shared by the tests of problems."""

import pytest

from fedjax_sim import datasets


@pytest.fixture(scope="session")
def cancer() -> datasets.Dataset:
    """The breast cancer data set."""
    return datasets.load("breast_cancer")
