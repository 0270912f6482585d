"""The types in which lanes learn: those of the problem's models, whatever JAX has enabled."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.privacy import AdaptiveClipping
from tests.conftest import slow_but
from tests.systems.conftest import LIKE_FEDAVGM

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]


def models_of(system: Any, problem: Any, hyper: Any) -> np.ndarray:
    """Learn for two ticks."""
    return np.asarray(
        fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(2)).models
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["fedadam"], LIKE_FEDAVGM))
def test_optimizers_of_the_server_keep_32_bits(
    name: str, regression: Callable, small: Callable
) -> None:
    """The contract tests run all other systems with 64 bits enabled."""
    system = fedjax_sim.SYSTEMS[name]
    narrow = models_of(system, regression(), small(system))
    with jax.enable_x64(True):
        wide = models_of(system, regression(), small(system))
    assert wide.dtype == narrow.dtype == "float32"
    np.testing.assert_allclose(wide, narrow, rtol=1e-6, atol=1e-7)


def test_problems_in_64_bits_learn_with_settings_of_64(small: Callable) -> None:
    """A learning rate in 32 bits would move the model by about 1e-9."""
    centers = np.random.default_rng(0).normal(size=(7, 2))
    hyper = small(FEDAVG, num_selected=7, local_steps=1, batch_size=1, lr=0.1)
    with jax.enable_x64(True):
        found = models_of(FEDAVG, Quadratic.of(centers), hyper)
    assert found.dtype == "float64"
    # From the start 0, a round goes a tenth of the way to the mean of the centres.
    np.testing.assert_allclose(found, (1 - 0.9**2) * centers.mean(axis=0), rtol=1e-14)


@pytest.mark.slow
def test_an_adaptive_bound_has_the_type_of_the_model(regression: Callable, small: Callable) -> None:
    hyper = small(FEDAVG, sampling="reshuffled", privacy=AdaptiveClipping(clip=0.1))

    def bounds() -> np.ndarray:
        run = fedjax_sim.simulate(FEDAVG, regression(), hyper, budget=fedjax_sim.Ticks(2))
        return run.curves.clip_norm.values

    narrow = bounds()
    with jax.enable_x64(True):
        wide = bounds()
    assert wide.dtype == narrow.dtype == "float32"
    np.testing.assert_allclose(wide, narrow, rtol=1e-6)
