"""FedStaleWeight and FedAsync: influence of slow clients, fixed points on quadratics, settings.

Influence is compared with another simulator and with theory.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Layout, Timeline
from fedjax_sim.core.settings import check
from fedjax_sim.results.diagnostics import fairness_report
from fedjax_sim.server.staleness import staleness_weights
from fedjax_sim.theory import fedstaleweight as theory
from tests.systems.hand_made import Located

SYSTEM, FEDASYNC = fedjax_sim.SYSTEMS["fedstaleweight"], fedjax_sim.SYSTEMS["fedasync"]
IS_SLOW = np.arange(15) >= 10
FAST, SLOW = 1 / 1.5, 1 / 10


def reweighted(timeline: Timeline, **rule: Any) -> Timeline:
    """Return a schedule with the weights of another rule; arrivals do not depend on weights."""
    staleness = np.arange(len(timeline.time), dtype="int32")[:, None] - timeline.version
    with jax.enable_x64(True):
        weight = _weigh(
            timeline.clients,
            staleness,
            SYSTEM.paper(**rule).staleness,
            num_clients=int(np.max(timeline.clients)) + 1,
        )
    return timeline._replace(weight=np.asarray(weight))


_weigh = jax.jit(staleness_weights, static_argnames="num_clients")


def slow_influence(timeline: Timeline, *, skip: float = 0.0) -> float:
    """Sum the weights of slow clients, relative to all, after a share `skip` of the ticks."""
    return float(fairness_report(timeline, 15, IS_SLOW.astype(int), skip=skip).group_influence[1])


# The paper's clients on quadratics with one coordinate. The optimum of fast clients is 0, that of
# slow ones is 1, and every gradient is exact.
OPTIMA = {"batch_size": 1, "sampling": "with_replacement"}
RUN = {"budget": fedjax_sim.Ticks(8000), "num_evals": 1000, "layout": Layout(5, False, 1)}


@pytest.fixture(scope="module")
def quadratics() -> Located:
    return Located.of(IS_SLOW[:, None].astype("float32"))


@pytest.fixture(scope="module")
def run(quadratics: Located) -> fedjax_sim.Run:
    """Six runs of FedStaleWeight with its default weights."""
    return fedjax_sim.sweep(SYSTEM, quadratics, SYSTEM.paper(**OPTIMA), seeds=6, **RUN)


# Mean and standard deviation over six runs of another simulator (three for the last), noted with
# four digits.
INFLUENCE = {
    "buffer mean": ({"rule": "mean"}, 0.0698, 0.0002),
    "equation 8": ({}, 0.2021, 0.0015),
    "equation 8, cumulative": ({"average": "cumulative"}, 0.2021, 0.0015),
    "algorithm 1": ({"rule": "alg1"}, 0.1830, 0.0010),
    "as coded": ({"rule": "code_exact"}, 0.2193, 0.0018),
    "reverse exponential": ({"rule": "exponential", "base": 2.0}, 0.3120, 0.0037),
    "inverse root": ({"rule": "polynomial"}, 0.0359, 0.0002),
    "not normalised": ({"normalised": False}, 0.333, 0.001 * 2**0.5),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", INFLUENCE)
def test_influence_of_slow_clients(run: fedjax_sim.Run, name: str) -> None:
    """After 4000 server steps, within 5 standard errors of both simulations and rounding."""
    rule, expected, deviation = INFLUENCE[name]
    found = [
        slow_influence(reweighted(Timeline(*(leaf[:4000] for leaf in each)), **rule))
        for each in run.timelines
    ]
    error = np.sqrt(np.var(found, ddof=1) + deviation**2) / np.sqrt(len(found))
    assert error < 0.02 * expected
    assert abs(np.mean(found) - expected) < 5 * error + 5e-5


def test_the_runs_weights_are_those_of_equation_8(run: fedjax_sim.Run) -> None:
    """They are equal in the first buffer, where nothing is stale, but not in general."""
    for timeline in run.timelines:
        np.testing.assert_allclose(timeline.weight, reweighted(timeline).weight, rtol=1e-12)
        np.testing.assert_allclose(timeline.weight[0], 1 / 5, rtol=1e-12)
        assert np.ptp(timeline.weight, axis=1).max() > 0.5


@pytest.mark.parametrize(
    "rule", [{"average": "window"}, {"average": "exponential"}], ids=lambda rule: rule["average"]
)
def test_first_weights_do_not_depend_on_how_many_are_asked_for(
    run: fedjax_sim.Run, rule: dict[str, Any]
) -> None:
    """Bit for bit: a lane for which more ticks are drawn than it needs must not change."""
    long, short = (
        reweighted(Timeline(*(leaf[:num] for leaf in run.timelines[0])), **rule).weight
        for num in (1000, 37)
    )
    np.testing.assert_array_equal(short, long[:37])


def test_staleness_of_fast_and_slow_clients(run: fedjax_sim.Run) -> None:
    """Eq. 6, within 5 standard errors over runs."""
    expected = theory.expected_staleness(
        theory.arrival_shares(np.where(IS_SLOW, SLOW, FAST)), buffer_size=5
    )
    known = np.array(
        [fairness_report(timeline, 15, skip=0.1).mean_staleness for timeline in run.timelines]
    )
    for group in (IS_SLOW, ~IS_SLOW):
        means = known[:, group].mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert error < 0.005 * expected[group][0]
        assert abs(means.mean() - expected[group][0]) < 5 * error


def settled(curves: Any) -> np.ndarray:
    """Average the model over the second half of a run."""
    return curves.w0.values[..., 501:].mean(axis=-1)


def late_influence(timeline: Timeline) -> float:
    """Compute the influence of slow clients in the second half of a run."""
    return slow_influence(timeline, skip=0.5)


def test_the_model_settles_at_the_slow_clients_influence(run: fedjax_sim.Run) -> None:
    """At 0.203 +- 0.006 in each run, and at the influence that slow clients have in its schedule.

    The latter up to the average difference between base models and the model.
    """
    np.testing.assert_allclose(settled(run.curves), 0.203, atol=0.006)
    np.testing.assert_allclose(
        settled(run.curves), [late_influence(each) for each in run.timelines], atol=0.0015
    )


@pytest.mark.parametrize(
    ("rule", "point"), [({"rule": "mean"}, 0.070), ({"normalised": False}, 1 / 3)]
)
def test_the_model_settles_by_its_weights(
    run: fedjax_sim.Run, quadratics: Located, rule: dict[str, Any], point: float
) -> None:
    """With the buffer mean, at the slow clients' share of arrivals; unnormalised, at their share.

    Both on the same arrivals.
    """
    known = reweighted(run.timelines[0], **rule)
    system = SYSTEM._replace(
        timeline=lambda key, hyper, num_ticks: Timeline(*map(jnp.asarray, known))
    )
    other = fedjax_sim.simulate(system, quadratics, SYSTEM.paper(**OPTIMA, **rule), **RUN)
    assert settled(other.curves) == pytest.approx(point, abs=0.006)
    assert settled(other.curves) == pytest.approx(late_influence(known), abs=0.0015)


@pytest.mark.slow
def test_influence_with_exponential_delays_is_that_of_independent_slots(draw: Callable) -> None:
    """Averages over all updates approach the expected staleness.

    Within 5 standard errors, and 0.0005 because these averages have not yet converged.
    """
    settings = {
        "runtime_law": "runtime_exp",
        "spread_fast": 0.0,
        "spread_slow": 0.0,
        "average": "cumulative",
    }
    schedules = draw(SYSTEM.timeline, SYSTEM.paper(**settings), num_ticks=10_000, seeds=6)
    timelines = [Timeline(*(leaf[seed] for leaf in schedules)) for seed in range(6)]
    formulas: dict[str, Callable] = {
        "mean": np.ones_like,
        "eq8": lambda staleness: 5 * staleness + 1,
        "alg1": lambda staleness: staleness + 1,
        "code": lambda staleness: staleness,
    }
    for weighting, formula in formulas.items():
        expected = theory.expected_influence(
            [FAST, SLOW], num_clients=[10, 5], buffer_size=5, weight=formula
        )[1]
        found = [
            slow_influence(reweighted(each, **(settings | {"rule": weighting})), skip=0.1)
            for each in timelines
        ]
        error = np.std(found, ddof=1) / np.sqrt(len(found))
        assert error < 0.01 * expected
        assert abs(np.mean(found) - expected) < 5 * error + 0.0005


def test_the_code_leaves_the_model_as_it_is_where_nothing_is_stale() -> None:
    """In a schedule made by hand, the clients of the first two buffers were never stale.

    Versions are counted, but the model does not move before the third.
    """
    clients, version = (
        np.array([[0, 1], [1, 0], [2, 0], [1, 0]], "int32"),
        np.array([[0, 0], [1, 1], [0, 1], [2, 3]], "int32"),
    )
    by_hand = Timeline(
        np.arange(1.0, 5.0),
        clients,
        np.ones_like(clients),
        version,
        np.zeros(clients.shape),
        version,
    )
    known = reweighted(by_hand, rule="code")
    # Staleness: 0, 0, 1 and 0 of client 0; 0, 0 and 1 of client 1; 2 of client 2.
    np.testing.assert_allclose(
        known.weight, [[0, 0], [0, 0], [6 / 7, 1 / 7], [4 / 7, 3 / 7]], rtol=1e-12
    )
    system = SYSTEM._replace(
        timeline=lambda key, hyper, num_ticks: Timeline(*map(jnp.asarray, known))
    )
    problem = Located.of(np.array([[1.0], [2.0], [5.0]], "float32"))
    hyper = SYSTEM.paper(num_clients=3, buffer_size=2, rule="code", **OPTIMA)
    run = fedjax_sim.simulate(
        system, problem, hyper, budget=fedjax_sim.Ticks(4), num_evals=4, layout=Layout(2, False, 1)
    )
    third = 0.01 * (6 / 7 * 5 + 1 / 7 * 1)
    fourth = third + 0.01 * (4 / 7 * 2 + 3 / 7 * (1 - third))
    np.testing.assert_array_equal(run.curves.w0[:3], np.zeros(3))
    np.testing.assert_allclose(run.curves.w0[3:], [third, fourth], rtol=1e-6)


@pytest.mark.slow
def test_fedasync_that_mixes_nothing_takes_each_model_as_it_comes() -> None:
    """With mixing 1, no discount and no proximal term, the server's model becomes y.

    It has a closed form, even if y started from a stale model.
    """
    centers, curvature = np.random.default_rng(3).normal(size=(7, 1)), np.linspace(0.2, 2.0, 7)
    settings = {
        "num_clients": 7,
        "local_steps": 5,
        "lr": 0.1,
        "mixing": 1.0,
        "exponent": 0.0,
        "proximal": 0.0,
    }
    with jax.enable_x64(True):
        problem = Located.of(centers, curvature=curvature, start=4.0)
        hyper = FEDASYNC.paper(**settings, batch_size=1)
        run = fedjax_sim.simulate(
            FEDASYNC,
            problem,
            hyper,
            budget=fedjax_sim.Ticks(24),
            num_evals=24,
            layout=Layout(1, False, 1),
        )
    schedule, models = run.timelines[0], run.curves.w0.values
    clients, bases = schedule.clients[:, 0], models[schedule.version[:, 0]]
    received = centers[clients, 0] + (1 - 0.1 * curvature[clients]) ** 5 * (
        bases - centers[clients, 0]
    )
    np.testing.assert_allclose(models[1:], received, rtol=1e-12)
    assert (schedule.version[:, 0] < np.arange(24)).any()


@pytest.mark.slow
def test_a_buffer_for_more_clients_than_there_are() -> None:
    """Free clients can fill it; clients that wait for the exchange never could."""
    check(SYSTEM.paper(buffer_size=30))
    with pytest.raises(
        ConfigError, match=r"^buffer_size is 30, but must be at most num_clients = 15"
    ):
        check(SYSTEM.paper(buffer_size=30, restart="after_interaction"))
