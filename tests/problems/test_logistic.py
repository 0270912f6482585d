"""Logistic regression: losses, energy and predictions, and FA-LD's posterior against NUTS."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression as Fitted

import fedjax_sim
from experiments.fald import logistic as fald_logistic
from experiments.harness import Estimate
from fedjax_sim import ConfigError, Layout, datasets
from fedjax_sim.models import LogisticRegression
from fedjax_sim.partition import Partition, iid
from fedjax_sim.problems import Logistic, make_classification, make_logistic
from fedjax_sim.results import diagnostics
from fedjax_sim.results.diagnostics import Gaussian
from fedjax_sim.systems import langevin

KEY = jax.random.key(0)
RAGGED = Partition(np.array([0, 5, 7, 9, 3, 2, 1, 4, 8], np.int32), np.array([4, 2, 3], np.int32))
STEP_SIZE = 3e-3


def test_breast_cancer_is_standardised(cancer: datasets.Dataset) -> None:
    """Training features have mean 0 and standard deviation 1."""
    assert cancer.train_images.shape == (426, 1, 1, 30)
    assert cancer.test_images.shape == (143, 1, 1, 30)
    np.testing.assert_allclose(cancer.train_images.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(cancer.train_images.std(axis=0), 1, atol=1e-5)
    assert np.bincount(cancer.train_labels).tolist() == [159, 267]


def test_logistic_regression_agrees_with_scikit_learn(cancer: datasets.Dataset) -> None:
    """At scikit-learn's optimum the gradient is zero and predictions are equal.

    The energy is the sum of the clients' losses.
    """
    with jax.enable_x64(True):
        problem = make_logistic(
            cancer,
            iid(cancer.train_labels, num_clients=6, seed=0),
            prior_precision=2.0,
            dtype="float64",
        )
        inputs, labels = np.asarray(problem.data[0]), cancer.train_labels
        fitted = Fitted(C=0.5, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(inputs, labels)
        best = jnp.asarray(fitted.coef_[0])
        np.testing.assert_allclose(jax.jit(jax.grad(problem.energy))(best), 0, atol=1e-4)
        np.testing.assert_allclose(
            problem.predict(best), fitted.predict_proba(np.asarray(problem.test_data[0])), rtol=1e-6
        )
        assert float(jax.jit(problem.evaluate)(best)["accuracy"]) == fitted.score(
            np.asarray(problem.test_data[0]), cancer.test_labels
        )
        w = jnp.linspace(-1, 1, 31)
        odds = np.where(labels == 1, 1, -1) * (inputs @ np.asarray(w))
        by_hand = np.log1p(np.exp(-odds)).sum() + np.sum(np.square(w))
        np.testing.assert_allclose(jax.jit(problem.energy)(w), by_hand, rtol=1e-10)


def test_the_loss_of_a_whole_client_is_that_of_all_its_examples(cancer: datasets.Dataset) -> None:
    """For clients with different numbers of examples, in both problems; padding is ignored."""
    few = cancer._replace(
        train_images=cancer.train_images[:10], train_labels=cancer.train_labels[:10]
    )
    images = Partition(RAGGED.index % 10, RAGGED.counts)
    for problem in (
        make_logistic(few, images),
        make_classification(LogisticRegression(2), few, images, prior_precision=3.0),
    ):
        params = jax.tree.map(lambda leaf: leaf + 0.1, problem.init(KEY))
        loss, client_loss = jax.jit(problem.loss), jax.jit(problem.client_loss)
        for client, count in enumerate(RAGGED.counts):
            expected = loss(params, client, jnp.arange(count), KEY)
            np.testing.assert_allclose(client_loss(params, client, KEY), expected, rtol=1e-6)
    with pytest.raises(ConfigError, match="num_classes of the data set is 10"):
        make_logistic(datasets.load("digits"), images)


def test_clients_may_have_test_examples_of_their_own(cancer: datasets.Dataset) -> None:
    """The model is measured on these alone; padding is ignored."""
    split = iid(cancer.train_labels, num_clients=3, seed=0)
    problem = make_logistic(cancer, split, test_partition=RAGGED)
    w = jnp.linspace(-1, 1, 31)
    found = problem.evaluate(w)
    one = np.asarray(problem.predict(w)[:, 1], float)
    for client in range(3):
        rows = RAGGED.rows()[client]
        labels = cancer.test_labels[rows]
        right = np.mean((one[rows] > 0.5) == labels)
        losses = -np.log(np.where(labels == 1, one[rows], 1 - one[rows]))
        np.testing.assert_allclose(found["client_accuracy[client]"][client], right, rtol=1e-6)
        np.testing.assert_allclose(found["client_loss[client]"][client], losses.mean(), rtol=1e-4)
    assert set(make_logistic(cancer, split).evaluate(w)) == {"accuracy", "loss"}
    two = Partition(RAGGED.index[:6], RAGGED.counts[:2])
    with pytest.raises(ConfigError, match="clients of test_partition is 2, but must be 3"):
        make_logistic(cancer, split, test_partition=two)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_labels": np.array([0, 2])}, "largest of train_labels is 2, but must be at most 1"),
        ({"test_labels": np.array([3, 1])}, "largest of test_labels is 3, but must be at most 1"),
        ({"test_labels": np.array([-1, 1])}, "test_labels is 'an array with negative labels'"),
        ({"train_labels": np.array([0.5, 1])}, "dtype of train_labels is 'float64', but must be"),
    ],
)
def test_labels_other_than_0_and_1_are_refused(change: dict, words: str) -> None:
    labels, split = np.array([0, 1]), Partition(np.array([0, 1]), np.array([2]))
    data = datasets.Dataset(np.eye(2), labels, np.eye(2), labels, 2, "two")
    make_logistic(data, split)
    with pytest.raises(ConfigError, match=words):
        make_logistic(data._replace(**change), split)


def test_empty_test_sets_are_refused() -> None:
    labels, split = np.array([0, 1]), Partition(np.array([0, 1]), np.array([2]))
    data = datasets.Dataset(np.eye(2), labels, np.zeros((0, 2)), labels[:0], 2, "two")
    for make in (partial(make_classification, LogisticRegression(2)), make_logistic):
        with pytest.raises(ConfigError, match="number of test examples is 0, but must be at least"):
            make(data, split)


@pytest.fixture(scope="module")
def uneven(cancer: datasets.Dataset) -> Logistic:
    """All 30 features of every third patient, held by clients with 20, 50 and 72 examples.

    Examples are sorted by class, so that only the second client has both classes.
    """
    few = cancer._replace(
        train_images=cancer.train_images[::3], train_labels=cancer.train_labels[::3]
    )
    sizes = np.array([20, 50, 72], np.int32)
    index = np.argsort(few.train_labels, kind="stable")
    return fald_logistic.at_mode(
        make_logistic(few, Partition(index.astype(np.int32), sizes), prior_precision=10.0)
    )


class Reference(NamedTuple):
    """The posterior according to NUTS.

    Attributes:
      draws: `f[4, 3_000, 31]`, chains of coefficients.
      moments: Means and standard deviations of the coefficients.
      law: The normal law with the moments of the draws.
    """

    draws: np.ndarray
    moments: fald_logistic.Moments
    law: Gaussian


@pytest.fixture(scope="module")
def reference(uneven: Logistic) -> Reference:
    """Draw the posterior by NUTS."""
    draws = fald_logistic.nuts(uneven, 3_000)
    moments = fald_logistic.moments(draws)
    return Reference(
        draws, moments, Gaussian(moments.mean.mean, np.cov(draws.reshape(-1, 31).T.astype(float)))
    )


def _chains(
    problem: Logistic, local_steps: int, num_evals: int, **settings: list[float]
) -> np.ndarray:
    """Run chains of FA-LD from the mode, kept every ten rounds: `[settings, 150, evals, 31]`."""
    hyper = langevin.paper(
        num_clients=3, local_steps=local_steps, step_size=STEP_SIZE, gradient="exact"
    )
    # 200 steps are six times the correlation time of the slowest direction.
    burn_in = -(-200 // (10 * local_steps))
    num_all = burn_in + num_evals
    run = fedjax_sim.sweep(
        langevin.system,
        problem,
        hyper,
        seeds=150,
        settings=settings,
        layout=Layout(3, True, 1, evals_per_chunk=1),
        budget=fedjax_sim.Ticks(10 * num_all),
        num_evals=num_all,
        keep=fedjax_sim.Keep(models=True),
    )
    return diagnostics.thin_samples(run.samples, burn_in=1 + burn_in).reshape(2, 150, num_evals, 31)


def _temperature(draws: np.ndarray, law: Gaussian) -> Estimate:
    """Estimate the temperature of draws from all directions together.

    It is the mean squared Mahalanobis distance from a law's mean, divided by the dimension.
    """
    distance = draws.astype(float) - law.mean
    squares = (
        np.einsum("cti,ij,ctj->ct", distance, np.linalg.inv(law.covariance), distance)
        / distance.shape[-1]
    )
    return Estimate(
        squares.mean(),
        squares.std() / np.sqrt(fald_logistic.effective_size(squares[..., None])[0]),
    )


@pytest.mark.slow
def test_the_posterior_of_a_logistic_regression(uneven: Logistic, reference: Reference) -> None:
    """With one local step all means and standard deviations are within five errors of NUTS.

    The errors combine both samplers and come from effective sample sizes (for standard deviations,
    those of the squares). They are about 0.02 and 0.01 of a standard deviation.

    For a normal law, steps of size eta give the covariance (H - eta H^2 / 2)^-1 instead of H^-1.
    The excess, at most 0.03 of a variance, is known and subtracted. Skewness adds at most a quarter
    of the errors.

    A temperature of 1.15 is detected in the coefficients, and also in the temperature estimated
    from all directions together, whose error is 0.004.
    """
    assert (np.abs(reference.moments.rhat - 1) < 0.005).all()
    precision = np.linalg.inv(reference.law.covariance)
    widened = np.linalg.inv(precision - STEP_SIZE / 2 * precision @ precision)
    excess = np.diagonal(widened - reference.law.covariance)
    error = _temperature(reference.draws, reference.law).error
    for draws, is_right in zip(
        _chains(uneven, 1, 120, temperature=[1.0, 1.15]), (True, False), strict=True
    ):
        off = fald_logistic.bias(fald_logistic.moments(draws, excess=excess), reference.moments)
        assert off.mean.error.max() < 0.03 and off.deviation.error.max() < 0.015
        assert off.mean.deviation(0.0) < 5
        assert (off.deviation.deviation(0.0) < 5) == is_right
        found = _temperature(draws, Gaussian(reference.law.mean, widened))
        assert (abs(found.mean - 1) < 5 * np.hypot(found.error, error)) == is_right
