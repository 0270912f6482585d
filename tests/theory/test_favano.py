"""FAVANO's step sizes, and times of server steps: against enumeration and values by hand."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from experiments.favano.formulas import bounds as formulas
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.theory import favano as theory
from tests.experiments.favano.quadratics import FAST, SLOW, small_quadratics


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


def test_conditions_of_a_worked_case() -> None:
    setup = theory.FavanoSetup(9, 2, 10, 0.5, 1.0, 1.0, 3.0, 3.0, 1.0, 2.0)
    found = {
        name: (value, limit) for name, value, limit in theory.conditions(setup, step_size=0.01)
    }
    expected = {
        "theorem": (0.01, 1 / 1200),
        "local gradients": (0.01, 1 / 200),
        "local drift": (0.01, 1 / 10),
        "descent": (0.12 + 0.024 + 1.728, 1 / 4),
        "contraction": (0.0032 / 3 + 1 / 45, 2 / 54),
    }
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        np.testing.assert_allclose(found[name], pair, err_msg=name)


def test_conditions_name_what_fails(random: np.random.Generator) -> None:
    setup = small_quadratics(random).setup(3, "stochastic")

    def failing(
        setup: theory.FavanoSetup,
        step_size: float,
        contraction: Callable[[int, int], float] = theory.kappa_sharp,
    ) -> set[str]:
        found = theory.conditions(setup, step_size=step_size, contraction=contraction)
        return {condition.name for condition in found if not condition.holds}

    largest = theory.largest_step_size(setup)
    assert failing(setup, 0.999 * largest) == set()
    assert failing(setup, 1.001 * largest) == {"theorem"}
    assert failing(setup, 1.0) == {
        "theorem",
        "local gradients",
        "local drift",
        "descent",
        "contraction",
    }
    # The paper's condition does not imply the others: with few local steps the descent condition
    # binds, with many the one on local gradients.
    few = setup._replace(max_steps=2, drift_constant=1.0)
    assert "descent" in failing(few, 1 / (20 * 2 * 3))
    many = setup._replace(max_steps=100)
    assert failing(many, 1 / (20 * many.drift_constant * 100 * 3)) == {"local gradients"}
    # The paper's rate of contraction is 0 if all clients are contacted.
    everyone = setup._replace(num_contacted=10)
    assert failing(everyone, 0.999 * theory.largest_step_size(everyone)) == set()
    assert failing(everyone, 1e-9, contraction=formulas.kappa) == {"contraction"}
    assert theory.largest_step_size(everyone, contraction=formulas.kappa) == 0

    def barely(n: int, s: int) -> float:
        return 1 / (5 * n) + 1e-7

    assert (
        failing(setup, 0.999 * theory.largest_step_size(setup, contraction=barely), barely) == set()
    )
    assert failing(setup, 1.001 * theory.largest_step_size(setup, contraction=barely), barely) == {
        "contraction"
    }
    for case in (setup, few, many, everyone):
        assert failing(case, 0.999 * theory.largest_step_size(case)) == set()
        assert failing(case, 1.001 * theory.largest_step_size(case)) != set()


@pytest.mark.parametrize(
    ("num_fast", "round_time", "step_time"), [(66, 418.89, 5.69), (11, 461.41, 18.08)]
)
def test_time_of_a_server_step(num_fast: int, round_time: float, step_time: float) -> None:
    rates = [FAST] * num_fast + [SLOW] * (100 - num_fast)
    found = theory.fedavg_round_time(rates, num_contacted=20, local_steps=20, interact_time=3)
    np.testing.assert_allclose(found, round_time, atol=5.1e-3)
    found = theory.fedbuff_step_time(rates, buffer_size=10, local_steps=20, interact_time=3)
    np.testing.assert_allclose(found, step_time, atol=5.1e-3)


def test_fedbuff_is_never_faster_than_its_messages() -> None:
    assert (
        theory.fedbuff_step_time([FAST] * 1000, buffer_size=10, local_steps=20, interact_time=3)
        == 3
    )


def test_fedavg_waits_for_the_slowest_of_those_drawn() -> None:
    """Compare with an enumeration of the subsets, for clients of different rates."""
    rates, times = np.array([0.9, 0.5, 0.3, 0.2]), np.arange(2000)
    finished = np.asarray(stats.nbinom.cdf(times[:, None] - 3, 3, rates))
    expected = np.mean(
        [np.sum(1 - finished[:, chosen].prod(1)) for chosen in itertools.combinations(range(4), 2)]
    )
    found = theory.fedavg_round_time(rates, num_contacted=2, local_steps=3, interact_time=1.5)
    np.testing.assert_allclose(found, 1.5 + expected, rtol=1e-10)
    everyone = theory.fedavg_round_time([0.25], num_contacted=1, local_steps=3, interact_time=0)
    np.testing.assert_allclose(everyone, 12)


def test_numbers_without_a_bound_or_a_time_are_refused() -> None:
    times = {"local_steps": 3, "interact_time": 1.0}
    with pytest.raises(ConfigError, match="num_contacted is 3, but must be at most 2, the clients"):
        theory.fedavg_round_time([0.5, 0.5], num_contacted=3, **times)
    for rate in (0.0, 2.0):
        with pytest.raises(ConfigError, match=r"rate is .* above 0 and of at most 1"):
            theory.fedavg_round_time([rate, 0.5], num_contacted=1, **times)
    assert theory.fedavg_round_time([1.0, 1.0], num_contacted=2, **times) == 1 + 3
    window = {"contact_probability": 0.2, "round_time": 7.5, "max_steps": 5}
    with pytest.raises(ConfigError, match=r"round_time is 7.5, but must be whole under runtime"):
        theory.step_law([0.5], law="runtime_geom", **window)
    for name, wrong in (("dissimilarity_factor", 0.5), ("drift_constant", -1.0)):
        constants = {"dissimilarity_factor": 1.0, "drift_constant": 1.0, name: wrong}
        with pytest.raises(ConfigError, match=f"{name} is "):
            theory.FavanoSetup(
                10, 3, 5, 1.0, 1.0, 1.0, initial_gap=1, noise_constant=1, **constants
            )
