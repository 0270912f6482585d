"""Test the distance of Gaussians against SciPy's matrix square root, and the fit against NumPy."""

import numpy as np
import pytest
import scipy.linalg

from fedjax_sim.results.diagnostics import Gaussian, fit_gaussian, wasserstein2


def laws(seed: int, *batch: int) -> Gaussian:
    """Draw three-dimensional laws whose covariances do not commute, with eigenvalues 0.1 to 10."""
    random = np.random.default_rng(seed)
    turns, _ = np.linalg.qr(random.normal(size=(*batch, 3, 3)))
    values = 10 ** random.uniform(-1, 1, (*batch, 1, 3))
    return Gaussian(random.normal(size=(*batch, 3)), (turns * values) @ np.swapaxes(turns, -1, -2))


def by_definition(one: Gaussian, other: Gaussian) -> float:
    """Compute W2 by its formula with SciPy's matrix square root."""
    root = scipy.linalg.sqrtm(other.covariance).real
    overlap = scipy.linalg.sqrtm(root @ one.covariance @ root).real
    return float(
        np.sqrt(
            np.sum((one.mean - other.mean) ** 2)
            + np.trace(one.covariance + other.covariance - 2 * overlap)
        )
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_distance_of_covariances_that_do_not_commute(seed: int) -> None:
    """The distance agrees with SciPy's.

    The trace of the product of the square roots, which is right only for covariances that commute,
    would give another one.
    """
    one, other = laws(2 * seed), laws(2 * seed + 1)
    expected = by_definition(one, other)
    np.testing.assert_allclose(wasserstein2(*one, *other), expected, rtol=1e-10)
    np.testing.assert_allclose(wasserstein2(*other, *one), expected, rtol=1e-10)
    roots = scipy.linalg.sqrtm(one.covariance).real @ scipy.linalg.sqrtm(other.covariance).real
    commuting = np.sqrt(
        np.sum((one.mean - other.mean) ** 2)
        + np.trace(one.covariance + other.covariance - 2 * roots)
    )
    assert commuting > 1.001 * expected


def test_the_distance_of_covariances_that_commute() -> None:
    """It is the distance of the means and of the standard deviations along the axes."""
    one, other = (
        Gaussian(np.array([1.0, 2.0]), np.diag([4.0, 9.0])),
        Gaussian(np.array([1.0, -1.0]), np.diag([1.0, 25.0])),
    )
    np.testing.assert_allclose(wasserstein2(*one, *other), np.sqrt(9 + 1 + 4), rtol=1e-12)


def test_equal_laws_are_at_no_distance() -> None:
    """The distance is 0 up to the square root of rounding."""
    same = laws(0, 50)
    np.testing.assert_allclose(wasserstein2(*same, *same), 0, atol=1e-6)


def test_the_distance_to_a_point_mass() -> None:
    law, point = laws(1), Gaussian(np.array([1.0, -2.0, 0.5]), np.zeros((3, 3)))
    expected = np.sqrt(np.sum((law.mean - point.mean) ** 2) + np.trace(law.covariance))
    np.testing.assert_allclose(wasserstein2(*law, *point), expected, rtol=1e-12)
    np.testing.assert_allclose(wasserstein2(*point, *law), expected, rtol=1e-12)
    np.testing.assert_allclose(
        wasserstein2(*point, *point._replace(mean=np.zeros(3))), np.sqrt(5.25), rtol=1e-12
    )


def test_leading_axes_are_a_batch_and_broadcast() -> None:
    many, few = laws(2, 4, 1), laws(3, 2)
    found = wasserstein2(*many, *few)
    assert found.shape == (4, 2)
    for i, j in np.ndindex(4, 2):
        expected = by_definition(
            Gaussian(*(leaf[i, 0] for leaf in many)), Gaussian(*(leaf[j] for leaf in few))
        )
        np.testing.assert_allclose(found[i, j], expected, rtol=1e-10)
    np.testing.assert_allclose(
        wasserstein2(*(leaf[1, 0] for leaf in many), *few), found[1], rtol=1e-12
    )


def test_the_fit_is_the_mean_and_the_covariance_of_samples() -> None:
    """The divisor of the covariance is R - 1."""
    samples = 5 + np.random.default_rng(4).normal(size=(2, 4, 7, 3))
    found = fit_gaussian(samples)
    np.testing.assert_allclose(found.mean, samples.mean(axis=2), rtol=1e-12)
    expected = [[np.cov(each, rowvar=False) for each in row] for row in samples]
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-10)
    # Two samples in one dimension, by hand, given as lists of integers.
    two = fit_gaussian([[1], [5]])
    assert (two.mean.tolist(), two.covariance.tolist()) == ([3.0], [[8.0]])
