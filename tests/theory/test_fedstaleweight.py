"""FedStaleWeight's weights and influence: schedules, enumeration, values worked out separately."""

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedjax_sim.theory import fedstaleweight as theory
from tests.experiments.fedstaleweight import more_formulas as more
from tests.theory.fedstaleweight_arrivals import arrivals, staleness_of

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
FAST, SLOW = 1 / 1.5, 1 / 10
NUM_FAST, NUM_SLOW = 10, 5
RATES = np.array([FAST] * NUM_FAST + [SLOW] * NUM_SLOW)
PULLS = ("after_aggregation", "before_aggregation")

log_rates = st.floats(-4, 4)
some_rates = st.lists(log_rates, min_size=2, max_size=5).map(np.exp)
positive = st.floats(1e-3, 1e3)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(23)


# Staleness and weights


def test_values_of_the_papers_setting() -> None:
    share = theory.arrival_shares(RATES)
    np.testing.assert_allclose(share[[0, -1]], [0.093023, 0.013953], atol=5e-7)
    np.testing.assert_allclose(
        theory.arrival_shares([FAST, SLOW], num_clients=[10, 5]), share[[0, -1]], rtol=1e-12
    )
    staleness = theory.expected_staleness(share, buffer_size=5)
    np.testing.assert_allclose(staleness[[0, -1]], [1.95, 14.1333], atol=5e-5)
    weight = theory.raw_weight(staleness, buffer_size=5, num_clients=15)
    np.testing.assert_allclose(weight[[0, -1]], [0.716667, 4.777778], atol=5e-7)
    np.testing.assert_allclose(more.welfare_deviation(np.ones(15), share), 0.5271, atol=5e-5)
    np.testing.assert_allclose(
        more.slot_weights([FAST] * 4 + [SLOW]), [0.09375] * 4 + [0.625], rtol=1e-12
    )


@pytest.mark.parametrize("pull", PULLS)
@pytest.mark.parametrize("buffer_size", [1, 2, 3, 5, 8])
def test_staleness_of_a_schedule(random: np.random.Generator, buffer_size: int, pull: str) -> None:
    """To 2 %; counting one arrival more or less would change even the slowest client by 8 %."""
    delays = [(0.5, 1.5)] * 2 + [(1.0, 3.0)] * 2 + [(3.0, 5.0)]
    client, previous = arrivals(random, delays, 60_000)
    staleness = staleness_of(previous, buffer_size=buffer_size, pull=pull)
    measured = np.array([staleness[client == each].mean() for each in range(5)])
    share = theory.arrival_shares([1, 1, 0.5, 0.5, 0.25])
    np.testing.assert_allclose(
        theory.expected_staleness(share, buffer_size=buffer_size, pull=pull), measured, rtol=0.02
    )
    found = theory.share_from_staleness(measured, buffer_size=buffer_size, pull=pull)
    np.testing.assert_allclose(found, share, rtol=0.02)
    np.testing.assert_allclose(found, np.bincount(client) / len(client), rtol=0.02)


@given(some_rates, st.integers(1, 8), st.sampled_from(PULLS))
def test_fair_weights_solve_the_welfare_problem(rate: Numbers, buffer_size: int, pull: str) -> None:
    share, n = theory.arrival_shares(rate), len(rate)
    staleness = theory.expected_staleness(share, buffer_size=buffer_size, pull=pull)
    np.testing.assert_allclose(
        theory.share_from_staleness(staleness, buffer_size=buffer_size, pull=pull),
        share,
        rtol=1e-10,
    )
    weight = theory.raw_weight(staleness, buffer_size=buffer_size, num_clients=n, pull=pull)
    np.testing.assert_allclose(weight, theory.fair_weight(share), rtol=1e-10)
    np.testing.assert_allclose(weight @ share, 1, rtol=1e-10)
    assert more.welfare_deviation(weight, share) < 1e-10
    np.testing.assert_allclose(
        more.welfare_deviation(np.ones(n), share), np.sum(np.abs(share - 1 / n)), rtol=1e-12
    )


@given(st.lists(st.floats(0, 40), min_size=1, max_size=8), st.integers(1, 500))
def test_number_of_clients_cancels(staleness: list[float], num_clients: int) -> None:
    raw = [
        theory.raw_weight(staleness, buffer_size=len(staleness), num_clients=n)
        for n in (num_clients, 1)
    ]
    np.testing.assert_allclose(raw[0] / raw[0].sum(), raw[1] / raw[1].sum(), rtol=1e-14)


# Influence


@pytest.mark.parametrize(
    ("weight", "influence"),
    [
        (np.ones(2), 0.0698),
        (None, 0.1980),
        (lambda staleness: 5 * staleness + 1, 0.1980),
        (lambda staleness: staleness + 1, 0.1798),
        (lambda staleness: 5 * staleness, 0.2036),
        (lambda staleness: 2.0**staleness, 0.3032),
        (lambda staleness: (1 + staleness) ** -0.5, 0.0361),
    ],
    ids=[
        "mean",
        "eq8",
        "eq8_of_staleness",
        "algorithm_1",
        "code",
        "reverse_exponential",
        "inverse_root",
    ],
)
def test_influence_of_the_slow_group(
    weight: Numbers | Callable[[Numbers], Numbers] | None, influence: float
) -> None:
    found = theory.expected_influence(
        [FAST, SLOW], num_clients=[NUM_FAST, NUM_SLOW], buffer_size=5, weight=weight
    )
    np.testing.assert_allclose(found, [1 - influence, influence], atol=5e-5)


@pytest.mark.parametrize("buffer_size", [1, 2, 5, 30])
def test_influence_of_two_groups_is_a_binomial_sum(buffer_size: int) -> None:
    share, counts = (
        np.array([10 * FAST, 5 * SLOW]) / (10 * FAST + 5 * SLOW),
        np.arange(buffer_size + 1),
    )
    chance = np.asarray(stats.binom.pmf(counts, buffer_size, share[1]))
    expected = chance @ (counts / SLOW / (counts / SLOW + (buffer_size - counts) / FAST))
    found = theory.expected_influence([FAST, SLOW], num_clients=[10, 5], buffer_size=buffer_size)
    np.testing.assert_allclose(found, [1 - expected, expected], rtol=1e-10)


@pytest.mark.parametrize("buffer_size", [1, 2, 4])
def test_influence_by_enumerating_slots(random: np.random.Generator, buffer_size: int) -> None:
    """Enumerate all sequences of clients; for groups, add up the clients of one rate."""
    sizes, rates = [1, 2, 2], np.exp(random.uniform(-2, 2, 3))
    for weight in (1 / rates, np.array([1.0, 3.0, 0.5])):
        rate, omega = np.repeat(rates, sizes), np.repeat(weight, sizes)
        expected = np.zeros(5)
        for slots in itertools.product(range(5), repeat=buffer_size):
            chance = np.prod(rate[list(slots)] / rate.sum())
            np.add.at(expected, list(slots), chance * omega[list(slots)] / omega[list(slots)].sum())
        alone = theory.expected_influence(
            rate, num_clients=np.ones(5), buffer_size=buffer_size, weight=omega
        )
        np.testing.assert_allclose(alone, expected, rtol=1e-10)
        grouped = theory.expected_influence(
            rates, num_clients=sizes, buffer_size=buffer_size, weight=weight
        )
        np.testing.assert_allclose(grouped, np.add.reduceat(expected, [0, 1, 3]), rtol=1e-10)


def test_influence_approaches_fairness_with_the_buffer() -> None:
    slow = [
        theory.expected_influence([FAST, SLOW], num_clients=[10, 5], buffer_size=b)[1]
        for b in (1, 2, 3, 5, 8, 15, 30, 60, 300)
    ]
    np.testing.assert_allclose(slow[0], 5 * theory.arrival_shares(RATES)[-1], rtol=1e-12)
    assert np.all(np.diff(slow) > 0)
    assert 0.33 < slow[-1] < 1 / 3


@given(some_rates, st.integers(1, 6), st.floats(1.05, 3))
def test_influence_rises_with_the_clients_rate(
    rate: Numbers, buffer_size: int, factor: float
) -> None:
    ones = np.ones(len(rate))
    before = theory.expected_influence(rate, num_clients=ones, buffer_size=buffer_size)
    faster = np.concatenate([rate[:1] * factor, rate[1:]])
    assert (
        theory.expected_influence(faster, num_clients=ones, buffer_size=buffer_size)[0] > before[0]
    )
    np.testing.assert_allclose(before.sum(), 1, rtol=1e-12)
