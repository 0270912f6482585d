"""Gaussian clients: losses, exact gradients, gradient noise and the posterior."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.problems import GaussianClients, gaussian, make_gaussian_clients

KEY = jax.random.key(0)


def test_gaussian_clients_by_hand() -> None:
    """The gradients of f^c / n add up to that of the energy of the posterior N(w_*, tau H^-1)."""
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


@pytest.mark.few(1)
@pytest.mark.parametrize("dim", [1, 3, gaussian.UNROLLED + 1])
def test_derivatives_of_the_quadratic_form(dim: int) -> None:
    """Gradient, Hessian, and directional derivatives in x and in H, small and large dimensions."""
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
    """The gradient of f^c has noise of covariance factor factor', within five standard errors.

    Without noise the loss is exact.
    """
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


def test_the_losses_of_one_client_equal_those_of_the_problem() -> None:
    """Whatever client number is given; what depends on other clients is not there."""
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
    """Clients have Hessians n Sigma^-1 and the target is N(mean of all points, Sigma / n).

    gamma^2 is within a factor of four of the paper's values.
    """
    sigma = np.array([[5.0, -2.0], [-2.0, 1.0]])
    with jax.enable_x64(True):
        problem = make_gaussian_clients(3, alpha=0.0)
        mean, covariance = problem.posterior()
        np.testing.assert_allclose(covariance, sigma / 50_000, rtol=1e-10)
        np.testing.assert_allclose(mean, np.asarray(problem.centers).mean(axis=0), rtol=1e-8)
        # With alpha = 0, clients' means have the covariance Sigma / 1000: within five standard
        # errors, from 49 degrees of freedom.
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
