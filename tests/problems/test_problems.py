"""Bayesian problems: their energies, exact gradients and predictions against other code."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression as Fitted

import fedjax_sim
from experiments import fald_logistic
from experiments.sampling import Estimate
from fedjax_sim import ConfigError, Layout, datasets
from fedjax_sim.diagnostics import posterior
from fedjax_sim.diagnostics.gaussians import Gaussian
from fedjax_sim.models import MLP, LogisticRegression
from fedjax_sim.partition import Partition, iid
from fedjax_sim.problems import (
    GaussianClients,
    Logistic,
    gaussian,
    make_classification,
    make_gaussian_clients,
    make_logistic,
)
from fedjax_sim.systems import langevin

KEY = jax.random.key(0)
RAGGED = Partition(
    np.array([[0, 5, 7, 9], [3, 2, 0, 0], [1, 4, 8, 0]], np.int32), np.array([4, 2, 3], np.int32)
)


def test_gaussian_clients_by_hand() -> None:
    """f^c / n and its gradient; the weighted sum is the energy of the posterior N(w_*, tau H^-1)."""
    with jax.enable_x64(True):
        hessians = np.array([[[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.3], [-0.3, 3.0]]])
        centers, counts, w = (
            np.array([[1.0, -1.0], [0.0, 2.0]]),
            np.array([1, 3]),
            np.array([0.4, -0.7]),
        )
        problem = GaussianClients.of(hessians, centers, counts=counts)
        slopes = np.array([jax.grad(problem.client_loss)(jnp.asarray(w), c, KEY) for c in range(2)])
        found = problem.evaluate(jnp.asarray(w))["loss"]
    expected = np.einsum("cij,cj->ci", hessians, w - centers) / 4
    np.testing.assert_allclose(slopes, expected, rtol=1e-12)
    mean, covariance = problem.posterior(temperature=0.5)
    precision = (hessians[0] + 3 * hessians[1]) / 4
    np.testing.assert_allclose(covariance @ precision, 0.5 * np.eye(2), atol=1e-12)
    np.testing.assert_allclose(counts @ slopes, precision @ (w - mean), rtol=1e-12)
    energies = np.einsum("ci,cij,cj->c", w - centers, hessians, w - centers) / 2
    np.testing.assert_allclose(found, counts @ energies / 4 / 4, rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 3, gaussian.UNROLLED + 1])
def test_derivatives_of_the_quadratic(dim: int) -> None:
    random = np.random.default_rng(dim)
    root, x, along = (
        jnp.asarray(random.normal(size=shape), "float32") for shape in ((dim, dim), (dim,), (dim,))
    )
    hessian = root @ root.T
    turn = jnp.eye(dim) + root + root.T
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    close(gaussian.quadratic_form(x, hessian), x @ hessian @ x / 2)
    close(jax.grad(gaussian.quadratic_form)(x, hessian), hessian @ x)
    close(jax.hessian(gaussian.quadratic_form)(x, hessian), hessian)
    close(
        jax.jvp(gaussian.quadratic_form, (x, hessian), (along, turn))[1],
        along @ hessian @ x + x @ turn @ x / 2,
    )
    close(
        jax.jvp(lambda h: gaussian.quadratic_form(x, h), (hessian,), (turn,))[1], x @ turn @ x / 2
    )


def test_gradient_noise_has_its_covariance() -> None:
    """Of the gradient of f^c, factor factor', within five standard errors; without it the loss is exact."""
    factor = np.array([[2.0, 0.0], [1.0, 0.5]])
    noisy = GaussianClients.of(1.0, np.zeros((3, 2)), counts=2, noise=factor)
    keys = jax.vmap(jax.random.key)(jnp.arange(4000))
    slopes = 6 * np.asarray(
        jax.vmap(lambda key: jax.grad(noisy.loss)(jnp.zeros(2), 1, jnp.zeros(1, int), key))(keys)
    )
    products = slopes[:, :, None] * slopes[:, None, :]
    np.testing.assert_array_less(
        np.abs(products.mean(axis=0) - factor @ factor.T), 5 * products.std(axis=0) / np.sqrt(4000)
    )
    exact = GaussianClients.of(1.0, np.ones((3, 2)))
    assert (
        exact.loss(jnp.zeros(2), 0, jnp.zeros(1, int), KEY)
        == exact.client_loss(jnp.zeros(2), 0, KEY)
        == 1 / 3
    )


def test_a_client_alone_has_the_losses_that_it_has_among_others() -> None:
    """And nothing else that could be asked of it with another's number."""
    problem = GaussianClients.of(
        np.array([1.0, 4.0]),
        np.array([[-1.0, 2.0], [1.0, 0.5]]),
        counts=np.array([1, 3]),
        noise=0.7,
    )
    w, examples = jnp.array([0.3, -0.2]), jnp.zeros(1, int)
    for client in range(2):
        part = problem.alone(client)
        assert not hasattr(part, "counts") and not hasattr(part, "evaluate")
        for number in (0, client, 7):
            assert part.client_loss(w, number, KEY) == problem.client_loss(w, client, KEY)
            assert part.loss(w, number, examples, KEY) == problem.loss(w, client, examples, KEY)
    away = np.array([0.3, -0.2]) - np.array([1.0, 0.5])
    np.testing.assert_allclose(
        problem.alone(1).client_loss(w, 0, KEY), 4 * away @ away / 2 / 4, rtol=1e-6
    )


def test_the_simulated_data() -> None:
    """Equal Hessians n Sigma^-1, a target N(mean of all points, Sigma / n), and gamma^2 of the order of the paper's values."""
    sigma = np.array([[5.0, -2.0], [-2.0, 1.0]])
    with jax.enable_x64(True):
        problem = make_gaussian_clients(3, alpha=0.0)
        mean, covariance = problem.posterior()
        np.testing.assert_allclose(covariance, sigma / 50_000, rtol=1e-10)
        np.testing.assert_allclose(mean, np.asarray(problem.centers).mean(axis=0), rtol=1e-8)
        # Clients' means are of variance Sigma / 1000 without differences between them: five standard errors, of 49 degrees of freedom.
        spread = np.cov(np.asarray(problem.centers).T) * 1000
        np.testing.assert_array_less(
            np.abs(spread - sigma),
            5 * np.sqrt((np.outer(np.diag(sigma), np.diag(sigma)) + sigma**2) / 49),
        )
        for alpha, printed in ((0.0, 1e8), (1.0, 4e11), (100.0, 4e13)):
            data = make_gaussian_clients(4, alpha=alpha)
            slopes = np.einsum(
                "cij,cj->ci", data.hessians, data.posterior().mean - np.asarray(data.centers)
            )
            assert 1 / 4 < np.square(slopes).sum(axis=1).max() / printed < 4
        unequal = make_gaussian_clients(
            5,
            alpha=1.0,
            num_clients=2,
            examples_per_client=[10, 30],
            covariance=np.stack([sigma, np.eye(2)]),
        )
        np.testing.assert_allclose(np.linalg.inv(unequal.hessians[0]) * 40, sigma, rtol=1e-9)
        np.testing.assert_allclose(unequal.hessians[1], 40 * np.eye(2), rtol=1e-12)
        assert unequal.counts.tolist() == [10, 30]
    with pytest.raises(ConfigError, match=r"alpha is -1\.0"):
        make_gaussian_clients(0, alpha=-1.0)


@pytest.fixture(scope="module")
def cancer() -> datasets.Dataset:
    return datasets.load("breast_cancer")


def test_breast_cancer_is_standardised(cancer: datasets.Dataset) -> None:
    assert cancer.train_images.shape == (426, 1, 1, 30)
    assert cancer.test_images.shape == (143, 1, 1, 30)
    np.testing.assert_allclose(cancer.train_images.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(cancer.train_images.std(axis=0), 1, atol=1e-5)
    assert np.bincount(cancer.train_labels).tolist() == [159, 267]


def test_logistic_regression_is_scikit_learns(cancer: datasets.Dataset) -> None:
    """Its optimum has no gradient, and its predictions are ours there; the energy is the sum of what clients have."""
    with jax.enable_x64(True):
        problem = make_logistic(
            cancer,
            iid(cancer.train_labels, num_clients=6, seed=0),
            prior_precision=2.0,
            dtype="float64",
        )
        inputs, labels = np.asarray(problem.inputs), cancer.train_labels
        fitted = Fitted(C=0.5, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(inputs, labels)
        best = jnp.asarray(fitted.coef_[0])
        np.testing.assert_allclose(jax.grad(problem.energy)(best), 0, atol=1e-4)
        np.testing.assert_allclose(
            problem.predict(best), fitted.predict_proba(np.asarray(problem.test_inputs)), rtol=1e-6
        )
        assert float(problem.evaluate(best)["accuracy"]) == fitted.score(
            np.asarray(problem.test_inputs), cancer.test_labels
        )
        w = jnp.linspace(-1, 1, 31)
        odds = np.where(labels == 1, 1, -1) * (inputs @ np.asarray(w))
        by_hand = np.log1p(np.exp(-odds)).sum() + np.sum(np.square(w))
        np.testing.assert_allclose(problem.energy(w), by_hand, rtol=1e-10)


def test_a_clients_whole_loss_is_that_of_all_its_examples(cancer: datasets.Dataset) -> None:
    """However many a client has, for both kinds of problem; padding is not looked at."""
    few = cancer._replace(
        train_images=cancer.train_images[:10], train_labels=cancer.train_labels[:10]
    )
    images = Partition(RAGGED.index % 10, RAGGED.counts)
    for problem in (
        make_logistic(few, images),
        make_classification(LogisticRegression(2), few, images, prior_precision=3.0),
    ):
        params = jax.tree.map(lambda leaf: leaf + 0.1, problem.init(KEY))
        for client, count in enumerate(RAGGED.counts):
            expected = problem.loss(params, client, jnp.arange(count), KEY)
            np.testing.assert_allclose(
                problem.client_loss(params, client, KEY), expected, rtol=1e-6
            )
    with pytest.raises(ConfigError, match="num_classes of the data set is 10"):
        make_logistic(datasets.load("digits"), images)
    with pytest.raises(ConfigError, match=r"prior_precision is -1\.0"):
        make_logistic(few, images, prior_precision=-1.0)
    with pytest.raises(ConfigError, match="prior_precision is nan"):
        make_classification(LogisticRegression(2), few, images, prior_precision=float("nan"))


def test_the_prior_adds_a_ridge_to_every_examples_loss(cancer: datasets.Dataset) -> None:
    """A pull of precision / n towards 0; summed over n examples it is the prior's."""
    part = iid(cancer.train_labels, num_clients=3, seed=0)
    flat, ridge = (
        make_classification(LogisticRegression(2), cancer, part, prior_precision=prior)
        for prior in (None, 5.0)
    )
    params = flat.init(KEY)
    slopes = [jax.grad(problem.loss)(params, 1, jnp.arange(4), KEY) for problem in (flat, ridge)]
    jax.tree.map(
        lambda a, b, w: np.testing.assert_allclose(b - a, 5 / 426 * w, atol=1e-6), *slopes, params
    )
    logits = flat.model.apply(params, jnp.asarray(cancer.test_images))
    np.testing.assert_allclose(flat.predict(params), jax.nn.softmax(logits), rtol=1e-5)


def test_a_bayesian_perceptron_on_digits() -> None:
    """Predictions averaged over samples are better than samples' own on average (Jensen), and good."""
    digits = datasets.load("digits")
    problem = make_classification(
        MLP((16,), 10),
        digits,
        iid(digits.train_labels, num_clients=5, seed=0),
        prior_precision=10.0,
    )
    hyper = langevin.Hyper(num_clients=5, local_steps=5, batch_size=32, step_size=2e-4)
    how = {"num_ticks": 60, "num_evals": 12, "keep_models": True, "layout": Layout(5, True, 1)}
    run = fedjax_sim.sweep(langevin.system, problem, hyper, seeds=2, **how)
    found = posterior.predictive(problem, run.samples, burn_in=5)
    assert found.probabilities.shape == (2, 360, 10)
    np.testing.assert_allclose(found.probabilities.sum(axis=-1), 1, rtol=1e-5)
    own = run.curves.loss.values[:, 5:]
    np.testing.assert_allclose(found.curves["nll"][:, 0], own[:, 0], rtol=1e-4)
    assert (found.curves["nll"][:, -1] < own.mean(axis=1)).all()
    assert (found.curves["accuracy"][:, -1] > 0.9).all()


def test_effective_samples_are_those_behind_the_mean() -> None:
    """Of exp(1.5 x), whose autocorrelations are (exp(2.25 a^k) - 1) / (exp(2.25) - 1) if those of a normal x are a^k; ranks have x's."""
    random, a, num = np.random.default_rng(2), 0.8, 20_000
    walk = random.normal(size=(4, num))
    for t in range(1, num):
        walk[:, t] = a * walk[:, t - 1] + np.sqrt(1 - a**2) * walk[:, t]
    correlations = np.expm1(2.25 * a ** np.arange(1, 200)) / np.expm1(2.25)
    expected = 4 * num / (1 + 2 * correlations.sum())
    assert expected > 1.5 * 4 * num / 9
    np.testing.assert_allclose(
        posterior.mixing(np.exp(1.5 * walk), burn_in=0).ess, expected, rtol=0.15
    )


STEP_SIZE = 3e-3


@pytest.fixture(scope="module")
def uneven(cancer: datasets.Dataset) -> Logistic:
    """All 30 features of every third patient; clients of 20, 50 and 72, sorted by class, so that only the second has both."""
    few = cancer._replace(
        train_images=cancer.train_images[::3], train_labels=cancer.train_labels[::3]
    )
    ends, sizes = np.cumsum([0, 20, 50]), np.array([20, 50, 72], np.int32)
    index = np.argsort(few.train_labels, kind="stable")[
        np.minimum(ends[:, None] + np.arange(72), 141)
    ]
    return fald_logistic.at_mode(
        make_logistic(few, Partition(index.astype(np.int32), sizes), prior_precision=10.0)
    )


class Reference(NamedTuple):
    draws: np.ndarray  # f[4, 10_000, 31]
    moments: fald_logistic.Moments
    law: Gaussian


@pytest.fixture(scope="module")
def reference(uneven: Logistic) -> Reference:
    """What NUTS draws."""
    draws = fald_logistic.nuts(uneven, 10_000)
    moments = fald_logistic.moments(draws)
    return Reference(
        draws, moments, Gaussian(moments.mean.mean, np.cov(draws.reshape(-1, 31).T.astype(float)))
    )


def _chains(
    problem: Logistic, local_steps: int, num_evals: int, **settings: list[float]
) -> np.ndarray:
    """Chains of FA-LD from the mode, kept every ten rounds: `[settings, 150, evals, 31]`."""
    hyper = langevin.Hyper(
        num_clients=3, local_steps=local_steps, step_size=STEP_SIZE, gradient="exact"
    )
    burn_in = -(
        -200 // (10 * local_steps)
    )  # 200 steps are six times the correlation time of the slowest direction
    total = burn_in + num_evals
    how = {
        "num_ticks": 10 * total,
        "num_evals": total,
        "evals_per_chunk": 1,
        "keep_models": True,
        "reports": False,
    }
    run = fedjax_sim.sweep(
        langevin.system,
        problem,
        hyper,
        seeds=150,
        settings=settings,
        layout=Layout(3, True, 1),
        **how,
    )
    return posterior.thinned(run.samples, burn_in=1 + burn_in).reshape(2, 150, num_evals, 31)


def _temperature(draws: np.ndarray, law: Gaussian) -> Estimate:
    """Mean square of the distance from a law's mean in its own metric, over the dimension: from all directions at once."""
    apart = draws.astype(float) - law.mean
    squares = (
        np.einsum("cti,ij,ctj->ct", apart, np.linalg.inv(law.covariance), apart) / apart.shape[-1]
    )
    return Estimate(
        squares.mean(),
        squares.std() / np.sqrt(posterior.mixing(squares[..., None], burn_in=0).ess[0]),
    )


def test_the_posterior_of_a_logistic_regression(uneven: Logistic, reference: Reference) -> None:
    """One local step: means and standard deviations of all coefficients against NUTS, within five standard errors.

    Errors are of both samplers, from effective sample sizes, those of the squares for standard deviations: about 0.02 and 0.01 of a
    standard deviation. Steps of eta leave (H - eta H^2 / 2)^-1 in place of a normal law's H^-1, at most 0.03 of a variance too much, which
    is known and subtracted; what skewness adds is a quarter of the errors at most. A temperature of 1.1 is seen in coefficients, and from
    all directions at once, where the error is 0.004.
    """
    assert (np.abs(reference.moments.mixing.rhat - 1) < 0.005).all()
    precision = np.linalg.inv(reference.law.covariance)
    widened = np.linalg.inv(precision - STEP_SIZE / 2 * precision @ precision)
    excess = np.diagonal(widened - reference.law.covariance)
    error = _temperature(reference.draws, reference.law).error
    for draws, is_right in zip(
        _chains(uneven, 1, 120, temperature=[1.0, 1.1]), (True, False), strict=True
    ):
        off = fald_logistic.bias(fald_logistic.moments(draws, excess=excess), reference.moments)
        assert off.mean.error.max() < 0.03 and off.deviation.error.max() < 0.015
        assert off.mean.deviation(0.0) < 5
        assert (off.deviation.deviation(0.0) < 5) == is_right
        found = _temperature(draws, Gaussian(reference.law.mean, widened))
        assert (abs(found.mean - 1) < 5 * np.hypot(found.error, error)) == is_right


def test_long_rounds_bias_the_posterior_of_a_logistic_regression(
    uneven: Logistic, reference: Reference
) -> None:
    """The more local steps, the more, in means and standard deviations; with shared noise means move as those of quadratic clients do.

    Private noise of unequal clients moves the means of a skewed posterior besides.
    """
    clients = fald_logistic.quadratics(uneven, fald_logistic.thin(reference.draws))
    expected, _ = fald_logistic.normal_bias(clients, step_size=STEP_SIZE, local_steps=20, rho=1.0)
    few, many = (
        [
            fald_logistic.bias(fald_logistic.moments(draws), reference.moments)
            for draws in _chains(uneven, *how, rho=[0.0, 1.0])
        ]
        for how in ((5, 10), (20, 4))
    )
    for fewer, more in zip(few, many, strict=True):
        for one, other in zip(fewer, more, strict=True):
            assert np.linalg.norm(other.mean) > 1.2 * np.linalg.norm(one.mean)
            assert other.deviation(0.0) > 4
    slopes = [each.mean.mean @ expected / (expected @ expected) for each in many]
    assert 0.8 < slopes[1] < 1.2 and slopes[0] < 0.5
