"""FedStaleWeight's incentives and convergence bound, and weights as the paper prints them.

Compared with schedules, derivatives, values worked out separately, and runs that refute the paper's
bound. A weight that falls faster than the share of arrivals rises makes it pay to be slow; the
paper says "more slowly".
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.fedstaleweight import formulas
from fedjax_sim.theory import fedstaleweight as theory
from tests.experiments.fedstaleweight import more_formulas as more
from tests.theory.fedstaleweight_arrivals import arrivals, staleness_of

Numbers = npt.NDArray[np.float64]
FAST, SLOW = 1 / 1.5, 1 / 10
NUM_FAST, NUM_SLOW = 10, 5
RATES = np.array([FAST] * NUM_FAST + [SLOW] * NUM_SLOW)
log_rates = st.floats(-4, 4)
some_rates = st.lists(log_rates, min_size=2, max_size=5).map(np.exp)
positive = st.floats(1e-3, 1e3)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(23)


# Staleness and weights


def test_algorithm_1_as_printed_does_not_even_out_shares() -> None:
    """The factor b is missing, and scaling to meet the constraint does not help; b = 1 is fine."""
    share = theory.arrival_shares(RATES)
    deviations = []
    for buffer_size in (1, 5):
        printed = (theory.expected_staleness(share, buffer_size=buffer_size) + 1) / 15
        deviations.append(more.welfare_deviation(printed / (printed @ share), share))
    assert deviations[0] < 1e-12
    assert deviations[1] > 0.1


@given(some_rates, st.integers(-20, 20))
def test_unit_of_time_does_not_matter(rate: Numbers, power: int) -> None:
    """For units that differ by a power of two the results are equal to the bit."""
    scaled = rate * 2.0**power
    np.testing.assert_array_equal(theory.arrival_shares(scaled), theory.arrival_shares(rate))
    np.testing.assert_array_equal(more.slot_weights(scaled), more.slot_weights(rate))


@given(st.integers(1, 8), positive, st.floats(0, 40))
def test_equal_slots_weigh_the_same(buffer_size: int, rate: float, staleness: float) -> None:
    np.testing.assert_allclose(more.slot_weights([rate] * buffer_size), 1 / buffer_size, rtol=1e-14)
    raw = theory.raw_weight([staleness] * buffer_size, buffer_size=buffer_size, num_clients=9)
    np.testing.assert_allclose(raw / raw.sum(), 1 / buffer_size, rtol=1e-14)


# Incentives


def utility_by_definition(report: jax.Array, rate: jax.Array, slot_client: jax.Array) -> jax.Array:
    """Compute client 0's weight, from b E[tau] + 1 of all slots, times its share of arrivals.

    Args:
        report: `f[]`, the rate that client 0 reports.
        rate: `f[N]`, rates of the clients.
        slot_client: `i32[S]`, the client in each slot, client 0 first.
    """
    reported = jnp.concatenate([report[None], rate[1:]])
    weight = jnp.sum(reported) / reported[slot_client]
    return weight[0] / jnp.sum(weight) * report / jnp.sum(reported)


@pytest.mark.parametrize("buffer_size", [1, 2, 5, 9])
def test_utility_and_its_slope(random: np.random.Generator, buffer_size: int) -> None:
    n, trials = 6, 300
    rates = np.exp(random.uniform(-3, 3, (trials, n)))
    slots = np.concatenate(
        [np.zeros((trials, 1), int), random.integers(1, n, (trials, buffer_size - 1))], axis=1
    )
    others = [
        formulas.competition(rate, slot_client=slot, client=0)
        for rate, slot in zip(rates, slots, strict=True)
    ]
    with jax.enable_x64(True):
        value_and_slope = jax.jit(jax.vmap(jax.value_and_grad(utility_by_definition)))
        values, slopes = map(
            np.asarray,
            value_and_slope(jnp.asarray(rates[:, 0]), jnp.asarray(rates), jnp.asarray(slots)),
        )
        short_slopes = [
            float(jax.grad(formulas.utility)(float(rate[0]), other))
            for rate, other in zip(rates[:20], others, strict=False)
        ]
    found = np.array(
        [formulas.utility(rate[0], other) for rate, other in zip(rates, others, strict=True)]
    )
    np.testing.assert_allclose(found, values, rtol=1e-12)
    # Compare elasticities, because near its zero a slope is a small difference of large numbers.
    found_slopes = np.array(
        [formulas.utility_slope(rate[0], other) for rate, other in zip(rates, others, strict=True)]
    )
    elasticity = rates[:, 0] / values
    np.testing.assert_allclose(found_slopes * elasticity, slopes * elasticity, atol=1e-12)
    np.testing.assert_allclose(
        found_slopes[:20] * elasticity[:20], short_slopes * elasticity[:20], atol=1e-12
    )


@given(positive, positive)
def test_slope_changes_sign_at_the_optimal_report(other_rate: float, other_delay: float) -> None:
    others = formulas.Competition(other_rate, other_delay)
    best = formulas.optimal_report(others)
    reports = best * np.geomspace(1e-3, 1e3, 61)
    assert np.all(formulas.utility(reports, others) <= formulas.utility(best, others) * (1 + 1e-12))
    assert (
        formulas.utility_slope(best * 0.999, others)
        > 0
        > formulas.utility_slope(best * 1.001, others)
    )
    assert formulas.is_truthful(best * 0.999, others)
    assert not formulas.is_truthful(best * 1.001, others)


def test_alone_in_the_buffer_faster_is_always_better() -> None:
    others = formulas.competition([2.0, 3.0], slot_client=[0], client=0)
    assert others == (3.0, 0.0)
    assert formulas.optimal_report(others) == np.inf
    assert formulas.is_truthful(1e9, others)


def test_a_client_with_two_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="one slot"):
        formulas.competition([1.0, 2.0], slot_client=[0, 0, 1], client=0)


def test_truthfulness_depends_on_the_buffer() -> None:
    """In the paper's setting, b = 5, being slow pays for a fast client next to two slow slots.

    It does with two slow slots or more among the other four, whatever the unit of time.
    """
    values = []
    for num_slow in range(5):
        slots = [0, *range(1, 5 - num_slow), *range(NUM_FAST, NUM_FAST + num_slow)]
        others = formulas.competition(RATES, slot_client=slots, client=0)
        np.testing.assert_allclose(others.other_rate, 6.5)
        values.append(others.other_delay * FAST**2)
        assert formulas.is_truthful(FAST, others) == (num_slow <= 1)
        assert (formulas.utility(FAST / 1.5, others) > formulas.utility(FAST, others)) == (
            num_slow >= 2
        )
        scaled = formulas.competition(8 * RATES, slot_client=slots, client=0)
        assert formulas.is_truthful(8 * FAST, scaled) == (num_slow <= 1)
        slow_slots = [NUM_FAST, *range(4 - num_slow), *range(NUM_FAST + 1, NUM_FAST + 1 + num_slow)]
        assert formulas.is_truthful(
            SLOW, formulas.competition(RATES, slot_client=slow_slots, client=NUM_FAST)
        )
    np.testing.assert_allclose(values, [2.667, 6.444, 10.222, 14, 17.778], atol=5e-4)
    # With four slow slots, truthfulness takes 17 more fast clients: (17.778 - 6.5) / FAST, rounded
    # up.
    for num_more in (16, 17):
        crowd = np.concatenate([RATES, np.full(num_more, FAST)])
        others = formulas.competition(
            crowd, slot_client=[0, *range(NUM_FAST, NUM_FAST + 4)], client=0
        )
        assert formulas.is_truthful(FAST, others) == (num_more == 17)


@pytest.mark.parametrize("num_clients", [2, 3, 6])
@pytest.mark.parametrize("buffer_size", range(1, 9))
def test_truthfulness_at_equal_rates(num_clients: int, buffer_size: int) -> None:
    slots = [0, *(1 + slot % (num_clients - 1) for slot in range(buffer_size - 1))]
    others = formulas.competition(np.ones(num_clients), slot_client=slots, client=0)
    assert formulas.is_truthful(1.0, others) == (buffer_size <= num_clients)
    assert (formulas.utility_slope(1.0, others) > 0) == (buffer_size < num_clients)


# Influence


def influence_of_a_throttled_client(
    speed: float, weight: Callable[[Numbers], Numbers] | None = None
) -> float:
    """Compute the influence of one fast client that runs at a fraction `speed` of its rate."""
    rates, sizes = [FAST, speed * FAST, SLOW], [NUM_FAST - 1, 1, NUM_SLOW]
    return float(
        theory.expected_influence(rates, num_clients=sizes, buffer_size=5, weight=weight)[1]
    )


@pytest.mark.parametrize(
    ("speed", "influence"),
    [(1, 0.0802), (0.7, 0.0747), (0.5, 0.0686), (0.25, 0.0538), (0.1, 0.0327)],
)
def test_influence_of_a_throttled_client(speed: float, influence: float) -> None:
    np.testing.assert_allclose(influence_of_a_throttled_client(speed), influence, atol=5e-5)


def test_weights_that_fall_too_fast_reward_throttling() -> None:
    """Throttling pays if the weight falls faster than the share of arrivals rises.

    The paper says the opposite. Powers of 1 / p up to 1 are safe; 2 to the power of the staleness
    is not.
    """

    def gain(weight: Callable[[Numbers], Numbers]) -> float:
        """Compute what a fast client gains in influence by running at half its rate."""
        return influence_of_a_throttled_client(0.5, weight) - influence_of_a_throttled_client(
            1, weight
        )

    assert gain(lambda staleness: (5 * staleness + 1) ** 0.5) < 0
    assert gain(lambda staleness: 5 * staleness + 1) < 0
    assert gain(lambda staleness: (5 * staleness + 1) ** 3) > 0
    assert gain(lambda staleness: 2.0**staleness) > 0


def test_stationary_point_of_two_groups() -> None:
    """Slow clients have optimum 1, fast ones 0, so the point is the influence of the slow group."""
    optima, share = np.repeat([0.0, 1.0], [NUM_FAST, NUM_SLOW]), theory.arrival_shares(RATES)
    np.testing.assert_allclose(more.stationary_point(share, optima), 0.0698, atol=5e-5)
    groups = theory.expected_influence(
        [FAST, SLOW], num_clients=[NUM_FAST, NUM_SLOW], buffer_size=5
    )
    np.testing.assert_allclose(more.stationary_point(groups, [0.0, 1.0]), 0.1980, atol=5e-5)
    np.testing.assert_allclose(
        more.stationary_point(theory.fair_weight(share) * share, optima), 1 / 3, rtol=1e-12
    )


def test_stationary_point_is_where_expected_updates_vanish(random: np.random.Generator) -> None:
    influence, curvature, optima = (
        random.random(4),
        random.uniform(0.5, 4, 4),
        random.normal(size=(4, 3)),
    )
    point = more.stationary_point(influence, optima, curvature=curvature)
    np.testing.assert_allclose((influence * curvature) @ (point - optima), np.zeros(3), atol=1e-12)
    np.testing.assert_allclose(
        more.stationary_point(influence, optima), influence @ optima / influence.sum(), rtol=1e-12
    )
    # For three local steps, follow the mean update until it settles.
    point, step_size = np.zeros(3), 0.1
    for _ in range(200):
        local = np.tile(point, (4, 1))
        for _ in range(3):
            local = local - step_size * curvature[:, None] * (local - optima)
        point = point + influence / influence.sum() @ (local - point)
    covered = 1 - (1 - step_size * curvature) ** 3
    np.testing.assert_allclose(
        more.stationary_point(influence, optima, curvature=covered), point, rtol=1e-10
    )


# Convergence


@given(st.integers(1, 39), st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_normalised_weights_are_bounded(max_staleness: int, fractions: list[float]) -> None:
    buffer_size = len(fractions)
    raw = theory.raw_weight(
        np.array(fractions) * max_staleness, buffer_size=buffer_size, num_clients=9
    )
    weight = raw / raw.sum()
    least, most = formulas.weight_bounds(max_staleness, buffer_size=buffer_size)
    assert np.all((least * (1 - 1e-12) <= weight) & (weight <= most * (1 + 1e-12)))
    gap = formulas.squared_weight_gap(max_staleness, buffer_size=buffer_size)
    assert np.all((weight - 1 / buffer_size) ** 2 <= gap * (1 + 1e-12) + 1e-30)


GRID = [(buffer_size, max_staleness) for buffer_size in range(1, 9) for max_staleness in range(40)]


def test_bounds_on_weights_are_attained() -> None:
    """One fresh slot among stalest ones attains the lower bound, and the reverse the upper one."""
    for b, tau in GRID:
        extremes = []
        for first, rest in ((0, tau), (tau, 0)):
            raw = theory.raw_weight([first] + [rest] * (b - 1), buffer_size=b, num_clients=9)
            extremes.append(raw[0] / raw.sum())
        np.testing.assert_allclose(formulas.weight_bounds(tau, buffer_size=b), extremes, rtol=1e-12)


def test_closed_form_of_the_squared_gap() -> None:
    for b, tau in GRID:
        printed = formulas.squared_weight_gap_printed(tau, buffer_size=b)
        np.testing.assert_allclose(
            formulas.squared_weight_gap(tau, buffer_size=b), printed, rtol=1e-9, atol=1e-30
        )
    np.testing.assert_allclose(
        formulas.squared_weight_gap_printed(2, buffer_size=3), (7 / 9 - 1 / 3) ** 2, rtol=1e-12
    )


def setup_of(**changes: object) -> formulas.FedStaleWeightSetup:
    """Make the setup of quadratics 1/2 (w - c_i)^2 without noise, with b = 1 and one local step."""
    defaults: dict = {
        "buffer_size": 1,
        "max_staleness": 0,
        "client_lr": (0.01,),
        "server_lr": 1.0,
        "smoothness": 1.0,
        "local_variance": 0.0,
        "global_variance": 1.0,
        "gradient_bound": 4.0,
        "initial_gap": 0.0,
    }
    return formulas.FedStaleWeightSetup(**(defaults | changes))


def test_bound_of_a_worked_case() -> None:
    setup = formulas.FedStaleWeightSetup(
        buffer_size=3,
        max_staleness=2,
        client_lr=(0.1, 0.2),
        server_lr=0.5,
        smoothness=2.0,
        local_variance=1.0,
        global_variance=2.0,
        gradient_bound=3.0,
        initial_gap=4.0,
    )
    terms = formulas.bound(setup, num_ticks=10)
    np.testing.assert_allclose(terms, [16 / 3, 156.8, 28.8, 64 / 3], rtol=1e-12)
    np.testing.assert_allclose(terms.total, 16 / 3 + 156.8 + 28.8 + 64 / 3, rtol=1e-12)


def test_bound_is_vacuous_beyond_single_updates() -> None:
    """However small the steps and long the run, unless nothing is ever stale or b = 1."""
    for b, tau in GRID:
        assert formulas.is_vacuous(tau, buffer_size=b) == (b >= 2 and tau >= 1)
        setup = setup_of(
            buffer_size=b, max_staleness=tau, client_lr=(1e-9,), gradient_bound=0.3, initial_gap=1.0
        )
        assert (formulas.bound(setup, num_ticks=10**15).total >= 0.3) == (b >= 2 and tau >= 1)


@pytest.mark.parametrize(
    ("lr", "measured", "bound"), [(0.01, 0.0050, 0.0033), (0.002, 0.00100, 0.00011)]
)
def test_bound_is_violated_by_drawing_clients(
    random: np.random.Generator, lr: float, measured: float, bound: float
) -> None:
    """Optima are -1 and 1, and one is drawn per step; nothing is stale.

    f is w^2 / 2 up to a constant, and the run starts at its minimum.
    """
    runs, ticks = 60, 10_000
    model, squares, largest = np.zeros(runs), np.zeros(runs), 0.0
    for _ in range(ticks):
        squares += model**2
        largest = max(largest, float(np.max(np.abs(model))))
        model = model + lr * (random.choice([-1.0, 1.0], runs) - model)
    squares /= ticks
    error = squares.std(ddof=1) / np.sqrt(runs)
    kept = (1 - lr) ** 2
    expected = lr / (2 - lr) * (1 - (1 - kept**ticks) / (ticks * (1 - kept)))
    assert abs(squares.mean() - expected) < 5 * error
    np.testing.assert_allclose(expected, measured, rtol=0.03)
    total = formulas.bound(
        setup_of(client_lr=(lr,), gradient_bound=(1 + largest) ** 2), num_ticks=ticks
    ).total
    np.testing.assert_allclose(total, bound, rtol=0.1)
    assert squares.mean() - 5 * error > total
    # With the gradient bound of all models between the optima, which does not refer to the run, the
    # bound is exceeded for step sizes below 1 / 120.
    assert (expected > formulas.bound(setup_of(client_lr=(lr,)), num_ticks=ticks).total) == (
        lr < 1 / 120
    )


def test_bound_is_violated_by_unequal_rates(random: np.random.Generator) -> None:
    """With b = 1, the model settles at the slow client's share of arrivals, not where f is least.

    The optima are 0 (fast client) and 1 (slow client); f has its minimum at 1/2.
    """
    ticks, lr = 300_000, 0.001
    client, previous = arrivals(random, [(1.0, 2.0), (8.0, 12.0)], ticks)
    models = [0.5]
    for optimum, base in zip(client.tolist(), (previous + 1).tolist(), strict=True):
        models.append(models[-1] - lr * (models[base] - optimum))
    model = np.array(models[:-1])
    slow_share = theory.arrival_shares([FAST, SLOW])[1]
    point = more.stationary_point([1 - slow_share, slow_share], [0.0, 1.0])
    # The mean over the bases differs from the slow client's share of the drawn arrivals by how far
    # the model moved, divided by lr T. That share is within 0.1 % of the expected one.
    np.testing.assert_allclose(model[ticks // 2 :].mean(), point, atol=1e-3)
    left = np.mean((model - 0.5) ** 2)
    np.testing.assert_allclose(left, 0.136, atol=1e-3)
    setup = setup_of(
        max_staleness=int(staleness_of(previous, buffer_size=1).max()),
        client_lr=(lr,),
        global_variance=0.25,
        gradient_bound=float(max(np.max(model**2), np.max((model - 1) ** 2))),
    )
    total = formulas.bound(setup, num_ticks=ticks).total
    np.testing.assert_allclose(total, 0.0012, rtol=0.2)
    assert more.is_step_small(setup)
    assert left > 50 * total
