"""A delay law from outside the package, in planned and live systems and on the command line."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim import ConfigError, settings, timelines
from fedjax_sim.cli.commands import main
from fedjax_sim.core.settings import Above0
from fedjax_sim.core.types import Array
from fedjax_sim.problems import Quadratic
from fedjax_sim.timelines import LAWS, Law, Speeds


@settings.struct
class Weibull(Law):
    """Weibull; with the shape 1 it is exponential."""

    name: str = settings.fixed("weibull")
    shape: Above0 = settings.setting(1.0, "Shape.")

    def scale(self, standard: Array, rate: Array, spread: Array) -> Array:
        """Raise exponential numbers to the inverse of the shape."""
        return standard ** (1 / self.shape) / jnp.exp(jax.lax.lgamma(1 + 1 / self.shape)) / rate


PROBLEM = Quadratic.of(np.random.default_rng(0).normal(size=(8, 2)))
SYSTEMS: dict[str, dict[str, Any]] = {
    "fedavg": {"num_selected": 3},
    "fedbuff": {"buffer_size": 3},
    "favano": {"num_selected": 3, "server_wait": 9.0, "reweight": "none"},
    "hierarchical": {"num_groups": 2, "delays_of": "client"},
    "oort": {"num_selected": 3},
}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    LAWS["weibull"] = Weibull
    yield
    del LAWS["weibull"]


def runs(name: str, law: Any) -> fedjax_sim.Run:
    hyper = fedjax_sim.SYSTEMS[name].Hyper(num_clients=8, **SYSTEMS[name], runtime_law=law)
    budget = fedjax_sim.Ticks(6)
    return fedjax_sim.simulate(fedjax_sim.SYSTEMS[name], PROBLEM, hyper, budget=budget)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_clock_draws_by_it(name: str) -> None:
    """With the shape 1 schedules are those of exponential times, with another one they are not."""
    known, same, other = (
        runs(name, law).timelines[0] for law in ("runtime_exp", Weibull(), "weibull:shape=4")
    )
    np.testing.assert_array_equal(same.clients, known.clients)
    np.testing.assert_allclose(same.time, known.time, rtol=1e-6)
    if name == "favano":  # Its contacts are at fixed times.
        np.testing.assert_array_equal(same.steps, known.steps)
        assert (other.steps != known.steps).any()
    else:
        assert not np.allclose(other.time, known.time, rtol=0.01)


def test_its_distribution() -> None:
    with jax.enable_x64(True):
        speeds = Speeds(jnp.float64(0.5), jnp.float64(0.0))
        drawn = timelines.draw_runtimes(jax.random.key(0), speeds, 4000, "weibull:shape=4")
        times = np.asarray(drawn)
    assert times.mean() == pytest.approx(2, rel=0.02)
    scale = 2 / math.gamma(1.25)
    assert stats.kstest(times, stats.weibull_min(4, scale=scale).cdf).pvalue > 1e-3


def test_it_is_swept() -> None:
    hyper = fedjax_sim.SYSTEMS["fedavg"].Hyper(num_clients=8, num_selected=3)
    swept = {"runtime_law": [Weibull(shape=1.0), Weibull(shape=4.0)]}
    options: dict[str, Any] = {"seeds": 2, "budget": fedjax_sim.Ticks(6)}
    run = fedjax_sim.sweep(fedjax_sim.SYSTEMS["fedavg"], PROBLEM, hyper, settings=swept, **options)
    assert run.curves.runtime_law.values.tolist() == ["weibull", "weibull:shape=4"]
    first = runs("fedavg", Weibull(shape=4.0)).timelines[0].time
    np.testing.assert_allclose(run.timelines[2].time, first, rtol=1e-6)


@pytest.mark.slow
def test_the_command_line_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["timeline", "fedavg", "--seeds", "1", "--time-budget", "100", "--json"]
    shown = []
    for law in ("runtime_exp", "weibull", "weibull:shape=4"):
        assert main([*words, "--out", str(tmp_path / law), "--set", f"runtime_law={law}"]) == 0
        out = capsys.readouterr().out.replace(law, "")
        shown.append(re.sub(r"(\.\d{6})\d+", r"\1", out))
    assert shown[0] == shown[1] != shown[2]
    assert main([*words, "--set", "runtime_law=weibull:size=4"]) == 2
    assert "size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ("weibul", "delays.runtime_law is 'weibul', but must be one of runtime_geom"),
        ("weibull:shape=-1", "shape is -1.0, but must be"),
        (3, "delays.runtime_law is 3, but must be one of runtime_geom"),
    ],
)
def test_what_is_no_law(law: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        runs("fedavg", law)
