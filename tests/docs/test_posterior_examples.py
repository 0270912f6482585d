"""The scripts of docs/examples, run as they are: each under 30 lines, with sane results."""

import runpy
import warnings
from pathlib import Path
from typing import Any

import arviz_stats as az
import jax
import numpy as np
import pytest
from scipy.optimize import minimize

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a script in an empty folder, where it draws a picture, and return its names."""

    def run(name: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        path = EXAMPLES / name
        assert len(path.read_text().splitlines()) < 30
        with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
            warnings.simplefilter("ignore")  # ArviZ warns of single observations
            found = runpy.run_path(str(path))
        assert (tmp_path / "reliability.png").stat().st_size > 10_000
        return found

    return run


@pytest.mark.slow
def test_logistic_posterior(ran: Any, capsys: pytest.CaptureFixture) -> None:
    """Means and deviations are near those of Laplace's approximation, and chains agree."""
    found = ran("logistic_posterior.py")
    printed = capsys.readouterr().out
    assert "r_hat" in printed and "elpd_loo" in printed
    samples, posterior = found["samples"], found["posterior"]
    weights = samples["posterior"]["w"]
    assert (az.rhat(samples)["w"] < 1.03).all()
    with jax.enable_x64(True):
        data = jax.tree.map(lambda leaf: np.asarray(leaf, float), posterior.data)
        exact = posterior.replace(data=data)
        energy = jax.jit(lambda w: -exact.log_density(w))
        mode = minimize(energy, np.zeros(5), jac=jax.jit(jax.grad(energy))).x
        deviation = np.sqrt(np.diag(np.linalg.inv(jax.hessian(energy)(mode))))
    off = np.abs(weights.mean(["chain", "draw"]).values - mode) / deviation
    assert off.max() < 0.5
    np.testing.assert_allclose(weights.std(["chain", "draw"]), deviation, rtol=0.25)
    loo = az.loo(samples)
    inside = float(samples["log_likelihood"]["y"].mean(["chain", "draw"]).sum())
    assert loo.good_k > loo.pareto_k.max() and loo.elpd < inside and 3 < loo.p < 12


@pytest.mark.slow
def test_neural_posterior(ran: Any) -> None:
    """Chains agree in the log-density, and predictions beat the frequency of the classes."""
    found = ran("neural_posterior.py")
    samples = found["samples"]
    assert float(az.rhat(samples["sample_stats"].to_dataset()[["lp"]])["lp"]) < 1.05
    assert samples["posterior"]["params.Dense_0.kernel"].dims[:2] == ("chain", "draw")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loo = az.loo(samples)
    assert 200 * np.log(0.5) < -100 < loo.elpd < -40
    assert np.mean(loo.pareto_k.values < loo.good_k) > 0.9
    bins = found["bins"]
    assert int(bins.examples.sum()) == 100
    assert float((bins.accuracy * bins.examples).sum()) > 80
