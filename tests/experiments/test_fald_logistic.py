"""The experiment on a logistic regression as a user runs it, and how it compares draws."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.fald import gaussian as fald_gaussian
from experiments.fald import logistic as fald_logistic
from fedjax_sim import ConfigError
from fedjax_sim.problems import GaussianClients
from fedjax_sim.results.reports import load
from tests.experiments.running import FILES, claims, run


@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """It has too few chains to judge; K = 1 compared with itself changes nothing."""
    done = run("fald/logistic", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "logistic.png"}
    assert {id: each["verdict"] for id, each in claims(tmp_path / "out").items()} == {
        "fald-8": "undecided"
    }
    assert done.stdout.count("| 50 |") == 2 and "NUTS: R-hat at most 1.0" in done.stdout
    results = load(tmp_path / "out")
    assert results.summary["failed_lanes"] == 0


def test_effective_sample_sizes_are_those_of_the_mean() -> None:
    """The size is that of the mean of exp(1.5 x) and not that of its ranks.

    If a normal x has the autocorrelations a^k, exp(1.5 x) has the autocorrelations
    (exp(2.25 a^k) - 1) / (exp(2.25) - 1), while its ranks are those of x.
    """
    random, a, num = np.random.default_rng(2), 0.8, 20_000
    walk = random.normal(size=(4, num))
    for t in range(1, num):
        walk[:, t] = a * walk[:, t - 1] + np.sqrt(1 - a**2) * walk[:, t]
    correlations = np.expm1(2.25 * a ** np.arange(1, 200)) / np.expm1(2.25)
    expected = 4 * num / (1 + 2 * correlations.sum())
    assert expected > 1.5 * 4 * num / 9
    found = fald_logistic.effective_size(np.exp(1.5 * walk)[..., None])
    np.testing.assert_allclose(found, expected, rtol=0.15)


def draws(num: int, correlation: float, seed: int) -> np.ndarray:
    """Draw stationary normal chains of mean 1 and variance 4: `f64[8, num, 30]`."""
    random = np.random.default_rng(seed)
    walk = random.normal(size=(8, num, 30))
    for t in range(1, num):
        walk[:, t] = correlation * walk[:, t - 1] + np.sqrt(1 - correlation**2) * walk[:, t]
    return 1 + 2 * walk


@pytest.mark.slow
def test_moments_know_their_errors() -> None:
    """Deviations from the truth have mean square one, in standard errors.

    So have the differences of two samplers.
    """
    for correlation in (0.0, 0.8):
        found, other = (fald_logistic.moments(draws(2000, correlation, seed)) for seed in (0, 1))
        off = [
            (found.mean.mean - 1) / found.mean.error,
            (found.log_deviation.mean - np.log(2)) / found.log_deviation.error,
        ]
        off += [each.mean / each.error for each in fald_logistic.bias(found, other)]
        assert all(0.5 < np.mean(np.square(each)) < 1.7 for each in off)
        assert found.rhat.max() < 1.02
    wider = fald_logistic.moments(draws(2000, 0.0, 2), excess=3.0)
    np.testing.assert_allclose(wider.log_deviation.mean, 0, atol=0.15)


def test_bias_is_in_units_of_the_reference() -> None:
    """Draws are shifted by half a standard deviation and wider by a tenth.

    With the same noise the comparison has hardly an error.
    """
    reference, other = draws(500, 0.5, 0), draws(500, 0.5, 1)
    apart = fald_logistic.bias(
        fald_logistic.moments(2 + 1.1 * (other - 1)), fald_logistic.moments(reference)
    )
    assert apart.mean.deviation(0.5) < 4 and apart.mean.deviation(0.0) > 4
    assert apart.deviation.deviation(np.log(1.1)) < 4 and apart.deviation.deviation(0.0) > 4
    same = fald_logistic.paired_bias(2 + 1.1 * (reference - 1), reference)
    np.testing.assert_allclose(same.mean.mean, 0.5, atol=0.05)
    np.testing.assert_allclose(same.deviation.mean, np.log(1.1), rtol=1e-9)
    assert (
        same.mean.error.max() < 0.2 * apart.mean.error.min() and same.deviation.error.max() < 1e-9
    )
    unlike = fald_logistic.paired_bias(other, reference)
    assert all(0.4 < np.mean(np.square(each.mean / each.error)) < 2 for each in unlike)


def test_quadratic_clients_are_found() -> None:
    """Quadratic clients are found from draws anywhere.

    Their biases are those of the exact laws of two clients with curvatures 1 and 4.
    """
    random = np.random.default_rng(0)
    roots = random.normal(size=(3, 2, 2))
    problem = GaussianClients.of(
        roots @ roots.mT + np.eye(2), random.normal(size=(3, 2)), counts=np.array([1, 2, 5])
    )
    found = fald_logistic.quadratics(problem, random.normal(size=(7, 2)).astype("float32"))
    for each, expected in zip(found[:3], fald_gaussian.clients_of(problem)[:3], strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-5)
    line = fald_gaussian.clients_of(fald_gaussian.r1())
    for local_steps, rho, mean, variance in (
        (1, 0.0, 0.6, 0.426667),
        (5, 0.0, 0.496474, 0.473308),
        (20, 1.0, 0.212859, 0.518099),
    ):
        of_mean, of_deviation = fald_logistic.normal_bias(
            line, step_size=0.05, local_steps=local_steps, rho=rho
        )
        np.testing.assert_allclose(of_mean, (mean - 0.6) / np.sqrt(0.4), atol=1e-5)
        np.testing.assert_allclose(of_deviation, np.log(variance / 0.4) / 2, atol=1e-5)


def test_the_problem_is_split_unevenly_and_starts_at_its_mode() -> None:
    problem = fald_logistic.split_problem()
    assert sorted(np.asarray(problem.counts).tolist()) == [54, 62, 76, 117, 117]
    labels = [
        np.asarray(problem.data[1])[problem.held.at(client, np.arange(count))].mean()
        for client, count in enumerate(problem.counts)
    ]
    np.testing.assert_allclose((min(labels), max(labels)), (0.13, 0.98), atol=0.005)
    np.testing.assert_allclose(jax.grad(problem.energy)(problem.start), 0, atol=1e-2)
    assert float(problem.energy(problem.start)) < float(problem.energy(0.98 * problem.start))


def test_the_reference_needs_blackjax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(
        ConfigError,
        match=r"^blackjax is None, but must be installed, as the reference is drawn by it\.$",
    ):
        fald_logistic.nuts(fald_logistic.split_problem(), 1)
