"""Synthetic(alpha, beta): the laws of models, inputs and sizes, and FedProx's names."""

import numpy as np
import pytest

from fedjax_sim import datasets, partition
from fedjax_sim.core.settings import ConfigError


def inputs_of(data: datasets.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return features `[n, 60]` and clients `[n]` of the training examples."""
    assert data.train_clients is not None
    return data.train_images.reshape(len(data.train_images), -1), data.train_clients


def test_inputs_have_the_laws_of_the_paper() -> None:
    """With N clients, B_k ~ N(0, beta^2), v_k ~ N(B_k, 1) and Sigma_jj = j^-1.2."""
    beta, num_clients = 2.0, 400
    data = datasets.make_synthetic(0.0, beta, num_clients=num_clients, seed=1)
    x, clients = inputs_of(data)
    counts = np.bincount(clients)
    means = np.stack([np.bincount(clients, weights=x[:, j]) for j in range(60)], axis=1)
    means = means / counts[:, None]
    # Within clients, of which every mean takes a degree of freedom.
    squares = (x - means[clients]).astype(float) ** 2
    variance = squares.sum(axis=0) / (len(x) - num_clients)
    expected = np.arange(1, 61) ** -1.2
    assert np.abs(variance / expected - 1).max() < 5 * np.sqrt(2 / len(x))
    # Between clients: a coordinate has variance beta^2 + 1, two coordinates covariance beta^2.
    noise = np.mean(expected.mean() / counts)
    centers = means.mean(axis=1)
    spread = beta**2 + (1 + noise) / 60
    assert abs(centers.var() / spread - 1) < 5 * np.sqrt(2 / num_clients)
    within = (means - centers[:, None]).var(axis=1, ddof=1).mean()
    assert abs(within / (1 + noise) - 1) < 5 * np.sqrt(2 / (59 * num_clients))


def test_sizes_are_lognormal_and_a_tenth_is_held_out() -> None:
    data = datasets.make_synthetic(1.0, 1.0, num_clients=400, seed=2)
    _, clients = inputs_of(data)
    train = np.bincount(clients)
    # n - floor(n / 10) examples remain of n, so that n is known up to one.
    logs = np.log(np.maximum(train / 0.9 - 50, 1))
    assert train.min() >= 45
    # The median of 50 + lognormal(4, 2) and its quartiles, by which no outlier counts.
    quartiles = np.percentile(logs, [25, 50, 75])
    np.testing.assert_allclose(quartiles, 4 + 2 * np.array([-0.6745, 0, 0.6745]), atol=0.7)
    assert len(data.test_labels) == pytest.approx(len(clients) / 9, rel=0.02)


def test_alpha_changes_no_label() -> None:
    """The mean u_k adds the same number to the logits of all classes, so it shows in rounding."""
    small, large = (datasets.make_synthetic(alpha, 0.0, seed=3) for alpha in (0.0, 5.0))
    np.testing.assert_array_equal(small.train_images, large.train_images)
    assert np.mean(small.train_labels == large.train_labels) > 0.999


def test_iid_clients_share_a_linear_model_and_others_do_not() -> None:
    def accuracy(data: datasets.Dataset) -> float:
        """Fit half of the clients' labels by least squares, and measure it on the others."""
        x, clients = inputs_of(data)
        x = np.column_stack([x, np.ones(len(x))])
        half = clients < 15
        fit = np.linalg.lstsq(x[half], np.eye(10)[data.train_labels[half]], rcond=None)[0]
        return float(np.mean(np.argmax(x[~half] @ fit, axis=1) == data.train_labels[~half]))

    assert accuracy(datasets.load("synthetic_iid")) > 0.6
    assert accuracy(datasets.load("synthetic_0_0")) < 0.4


def test_names_are_those_of_fedproxs_code() -> None:
    data = datasets.load("synthetic_0.5_1")
    assert data.name == "synthetic_0.5_1" and data.num_classes == 10
    assert data.train_images.shape[1:] == (1, 1, 60)
    same = datasets.make_synthetic(0.5, 1)
    assert all(np.array_equal(a, b) for a, b in zip(data[:4], same[:4], strict=True))
    part = partition.natural(
        data.train_labels, client_ids=inputs_of(data)[1], num_clients=30, seed=0
    )
    assert part.counts.sum() == len(data.train_labels)
    number = datasets.make_synthetic(0.5, 1, seed=np.int64(0), num_clients=np.int32(30))
    np.testing.assert_array_equal(number.train_labels, data.train_labels)
    for name in ("synthetic_1", "synthetic_a_b", "synthetic_-1_0"):
        with pytest.raises(ConfigError, match=r"dataset is .*synthetic_0\.5_0\.5"):
            datasets.load(name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"is_iid": True}, "alpha is 1.0, but must be 0, as the data are IID"),
    ],
)
def test_bad_values_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        datasets.make_synthetic(**{"alpha": 1.0, "beta": 1.0} | options)
