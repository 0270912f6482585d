"""What partitions share: Dirichlet shares, the histogram of labels, and its picture."""

import numpy as np
import pytest

from fedjax_sim import partition
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.partition import parts as partition_parts
from fedjax_sim.results.plots import holdings_figure
from tests.partition.checks import labels_of


def test_dirichlet_shares_have_their_mean_and_variance():
    """A client's share of one class has mean 1/N and variance (1/N)(1 - 1/N) / (N alpha + 1)."""
    num_clients, alpha, draws = 4, 0.5, 2000
    labels = np.zeros(10_000, int)
    shares = np.empty((draws, num_clients))
    for seed in range(draws):
        rng = partition_parts.make_generator(seed)
        shares[seed] = partition_parts.cut_classes(
            rng, num_clients, alpha, np.array([len(labels)]), least=0
        )[0] / len(labels)
    variance = (1 / num_clients) * (1 - 1 / num_clients) / (num_clients * alpha + 1)
    assert np.abs(shares.mean(axis=0) - 1 / num_clients).max() < 5 * np.sqrt(variance / draws)
    squares = (shares - 1 / num_clients) ** 2
    assert np.abs(squares.mean(axis=0) - variance).max() < 5 * squares.std() / np.sqrt(draws)


def test_shares_of_a_huge_concentration_are_equal():
    """Sums of the largest numbers are infinite."""
    labels = labels_of([100] * 4)
    for alpha in (1e300, 1.7e308):
        clients = partition.dirichlet(labels, num_clients=4, alpha=alpha, seed=0)
        assert np.ptp(clients.counts) <= 4 * 2
        given = {"superclasses": (0, 0, 1, 1), "alpha": alpha, "beta": alpha}
        clients = partition.pachinko(labels, num_clients=2, seed=0, **given)
        held = partition.label_histogram(clients, labels, 4)[0]
        assert (np.abs(held - 50) < 5 * np.sqrt(200 / 4)).all()


def test_histogram_counts_labels_of_unequal_clients():
    part = partition.Partition(np.array([0, 2, 3, 1], np.int32), np.array([3, 1], np.int32))
    np.testing.assert_array_equal(
        partition.label_histogram(part, np.array([1, 0, 1, 2]), 4), [[0, 2, 1, 0], [1, 0, 0, 0]]
    )
    with pytest.raises(ConfigError, match="largest label is 2"):
        partition.label_histogram(part, np.array([1, 0, 1, 2]), 2)
    short = part._replace(counts=np.array([2, 1]))
    with pytest.raises(ConfigError, match="counts is 3, but must be 4, the length"):
        partition.label_histogram(short, np.array([1, 0, 1, 2]), 4)
    for labels, words in (
        ([1, 0, 1], "largest of partition.index is 3, but must be below the number of labels, 3"),
        ([1, 0, 1, -1], "smallest label is -1"),
        ([1.0, 0.0, 1.0, 2.0], "dtype of labels is 'float64'"),
    ):
        with pytest.raises(ConfigError, match=words):
            partition.label_histogram(part, np.array(labels), 4)


def test_picture_shows_the_histogram(tmp_path):
    labels = labels_of([30] * 3)
    part = partition.dirichlet(labels, num_clients=5, alpha=0.5, seed=0)
    held = partition.label_histogram(part, labels, 3)
    figure = holdings_figure(held, class_names=["coot", "teal", "wigeon"], title="birds")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), held.T)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["coot", "teal", "wigeon"]
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
