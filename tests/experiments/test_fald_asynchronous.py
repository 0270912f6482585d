"""Asynchronous FA-LD: its exact law given a schedule, and the study in small."""

from pathlib import Path

import numpy as np
import pytest

from experiments.fald import asynchronous
from experiments.fald.formulas import exact_laws
from experiments.fald.formulas.exact_laws import GaussianTarget
from experiments.harness import Arguments
from fedjax_sim.core.types import Timeline
from fedjax_sim.results.diagnostics import Gaussian


def schedule(clients: np.ndarray, version: np.ndarray) -> Timeline:
    nothing = np.zeros(clients.shape)
    weight = np.full(clients.shape, 1 / clients.shape[1])
    return Timeline(np.arange(len(clients)), clients, nothing, version, weight, version)


def test_without_staleness_it_is_fald() -> None:
    """With everyone in each buffer and fresh models, the law is that of synchronous rounds."""
    random = np.random.default_rng(0)
    hessians = np.array([[[2.0, 0.3], [0.3, 1.0]], [[1.0, 0.0], [0.0, 3.0]]])
    target = GaussianTarget(hessians, random.normal(size=(2, 2)), np.full(2, 0.5), 1.5)
    ticks = np.arange(5)[:, None] * np.ones((1, 2), int)
    everyone = schedule(np.tile([0, 1], (5, 1)), ticks)
    how = {"step_size": 0.1, "local_steps": 3}
    found = asynchronous.conditional_laws(target, everyone, np.ones(2), **how)
    taken = exact_laws.one_round(target, rho=0.0, **how)
    exact = exact_laws.iterate_rounds(taken, exact_laws.point(np.ones(2)), 5)
    for ours, theirs in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    stale = everyone._replace(version=np.maximum(ticks - 2, 0))
    late = asynchronous.conditional_laws(target, stale, np.ones(2), **how)
    fresh = asynchronous.conditional_laws(target, stale, np.ones(2), **how, is_fresh=True)
    np.testing.assert_array_equal(fresh.covariance, found.covariance)
    assert late.covariance[-1].trace() > 1.2 * found.covariance[-1].trace()


def test_a_constant_delay_of_one_client() -> None:
    """Its variance at rest is that of a delayed equation, up to the error of the steps."""
    target = GaussianTarget(np.ones((1, 1, 1)), np.zeros((1, 1)), np.ones(1))
    num, delay = 6000, 60
    late = np.maximum(np.arange(num)[:, None] - delay, 0)
    one = schedule(np.zeros((num, 1), int), late)
    laws = asynchronous.conditional_laws(target, one, np.zeros(1), step_size=0.01, local_steps=1)
    expected = asynchronous.constant_delay(0.6)
    assert expected == (1 + np.sin(0.6)) / np.cos(0.6)
    np.testing.assert_allclose(laws.covariance[-1, 0, 0], expected, rtol=0.01)


def test_residuals_of_another_law_are_seen() -> None:
    draws = np.random.default_rng(1).normal(size=(400, 2))
    laws = [Gaussian(np.ones((1, 2)), np.array([[[4.0, 2.0], [2.0, 3.0]]]))] * 400
    models = 1 + draws @ np.linalg.cholesky(laws[0].covariance[0]).T
    assert asynchronous.deviation(asynchronous.whitened(models, laws)) < 4
    assert asynchronous.deviation(asynchronous.whitened(1.3 * models, laws)) > 5
    assert asynchronous.deviation(asynchronous.whitened(models * [1, -1], laws)) > 5


@pytest.mark.slow
def test_small_study(tmp_path: Path) -> None:
    """Chains follow their laws, and staleness makes the variance larger than fresh models would."""
    done = asynchronous.run(Arguments(smoke=True, out=str(tmp_path)))
    assert max(done.config["standard errors off"].values()) < 4.5
    rows = [line.split("|") for line in done.text.splitlines() if line.startswith("| 2")]
    ratios = {row[2].strip(): float(row[6]) for row in rows}
    assert ratios["0.04"] > ratios["0.02"] > 1.1
    assert set(done.figures) == {"asynchronous.png"} and not done.verdicts
