"""AdaComm against a loop in NumPy, written from the paper, on a problem without noise."""

from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Ticks, Time
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import adacomm, fedavg
from fedjax_sim.timelines import ClientTable, Trace
from tests.systems.live_traces import choice_key, trace

CLIENTS, TICKS, RATE = 6, 40, 0.03
CENTERS = np.random.default_rng(0).normal(size=(CLIENTS, 3)).astype("float32")
CURVATURE = np.array([1, 2, 0.5, 1, 1.5, 1], "float32")
PROBLEM = Quadratic.of(CENTERS, curvature=CURVATURE, start=5.0)
SPEEDS = np.array([1, 1 / 2, 1 / 4, 3, 1 / 3, 5])
CONSTANT: dict[str, Any] = {"runtime_law": "runtime_constant", "client_table": ClientTable(SPEEDS)}


def settings(**changes: Any) -> adacomm.Hyper:
    """Return settings of clients whose steps take constant times."""
    given = {"num_clients": CLIENTS, "num_selected": CLIENTS, "local_steps": 12, "lr": RATE}
    given |= {"batch_size": 1, "adapt_every": 50.0, "server_interact": 2.0} | CONSTANT
    return adacomm.Hyper(**(given | changes))


def loss(client: int, model: np.ndarray) -> float:
    return CURVATURE[client] / 2 * ((model - CENTERS[client]) ** 2).sum()


def wanted_steps(now_loss: float, first_loss: float, most: int) -> int:
    """The basic rule; the test would say nothing if rounding decided."""
    exact = np.sqrt(now_loss / first_loss) * most
    assert abs(exact - round(exact)) > 1e-4 or now_loss == first_loss
    return most if now_loss == first_loss else int(np.ceil(exact))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"shrink": 0.9},
        {"num_selected": 4, "pace": "speed", "adapt_every": 5.0, "shrink": 1.0},
        {"num_selected": 3, "num_asked": 5, "shrink": 1.0},
    ],
)
def test_a_loop_of_the_paper_gives_the_same_rounds(changes: dict[str, Any]) -> None:
    hyper = settings(**changes)
    found = trace(adacomm.system, PROBLEM, hyper, ticks=TICKS)
    settled = hyper.communication
    x, tau, now = np.full(3, 5.0), hyper.local_steps, 0.0
    due, first_loss, by_loss, by_shrink = float(settled.adapt_every), None, 0, 0
    for r in range(TICKS):
        cohort = np.asarray(jax.random.permutation(choice_key(0, r), CLIENTS))[: hyper.num_asked]
        steps = dict.fromkeys(cohort.tolist(), tau)
        if settled.pace == "speed":
            fastest = SPEEDS[cohort].max()
            steps = {i: max(1, int(tau * SPEEDS[i] / fastest + 1e-6)) for i in steps}
        took = {}
        for i, number in steps.items():
            took[i] = np.float32(0)
            for _ in range(number):
                took[i] += np.float32(1) / np.float32(SPEEDS[i])
        used = sorted(steps, key=lambda i: took[i])[: hyper.num_selected]
        now += float(max(took[i] for i in used)) + 2.0
        ends = []
        for i in used:
            y = x
            for _ in range(steps[i]):
                y = y - RATE * CURVATURE[i] * (y - CENTERS[i])
            ends.append(y)
        mean_loss = float(np.mean([loss(i, x) for i in used]))
        x = np.mean(ends, axis=0)
        first_loss = mean_loss if first_loss is None else first_loss
        assert found.time[r] == pytest.approx(now, rel=1e-12)
        there = dict(zip(found.clients[r].tolist(), found.steps[r].tolist(), strict=True))
        assert there == {i: steps[i] for i in used}
        np.testing.assert_allclose(found.model[r], x, rtol=1e-4, atol=1e-5)
        if now >= due:
            fewer = wanted_steps(mean_loss, first_loss, hyper.local_steps)
            by_loss, by_shrink = by_loss + (fewer < tau), by_shrink + (fewer >= tau)
            tau = fewer if fewer < tau else max(1, int(settled.shrink * tau + 1e-6))
            while due <= now:
                due += float(settled.adapt_every)
        assert found.memory.steps[r] == tau
        assert found.memory.first_loss[r] == pytest.approx(first_loss, rel=1e-5)
        ours = float(found.memory.due.value[r]) + float(found.memory.due.rest[r])
        assert ours == pytest.approx(due, rel=1e-6)
    # Both cases of the rule have happened, and no client was given more steps than the first.
    assert by_loss >= 2 and by_shrink >= 1 and 1 <= tau <= 6
    assert found.steps.max() == hyper.local_steps
    # One evaluation for each step and one for each loss.
    np.testing.assert_array_equal(found.needed, found.steps.sum(axis=1) + hyper.num_selected)


def test_rounds_that_exactly_fill_an_interval() -> None:
    """Ten times 0.7 is less than 7 in floats of 32 bits."""
    rates = ClientTable([2 / 0.7] * CLIENTS)
    own = {"local_steps": 2, "adapt_every": 7.0, "server_interact": 0.0, "client_table": rates}
    found = trace(adacomm.system, PROBLEM, settings(**own), ticks=12)
    assert found.steps[:, 0].tolist() == [2] * 10 + [1] * 2


@pytest.mark.few(1)
@pytest.mark.parametrize("is_wide", [False, True])
def test_the_fastest_client_does_all_steps(is_wide: bool) -> None:
    """Compiled, its rate divided by itself is not always 1; and 0.53 times 100 is not always 53."""
    own = {"client_table": None, "rate_spread": 0.5, "num_selected": 3, "pace": "speed"}
    own |= {"local_steps": 100, "lr": 0.0001, "adapt_every": 1e6}
    with jax.enable_x64(is_wide):
        found = trace(adacomm.system, PROBLEM, settings(**own), ticks=TICKS)
        assert (found.steps.max(axis=1) == 100).all()
        own |= {"pace": "equal", "adapt_every": 1.0, "shrink": 0.53}
        found = trace(adacomm.system, PROBLEM, settings(**own), ticks=2)
        assert found.steps[:, 0].tolist() == [100, 53]


def test_if_the_number_never_changes_it_is_fedavg() -> None:
    """Everyone takes part, in rounds as long as those of the planned clock."""
    hyper = settings(adapt_every=1e6)
    options: dict[str, Any] = {"budget": Ticks(15), "num_evals": 5}
    ours = fedjax_sim.simulate(adacomm.system, PROBLEM, hyper, **options)
    given = {"num_clients": CLIENTS, "num_selected": CLIENTS, "local_steps": 12, "lr": RATE}
    given |= {"batch_size": 1, "server_interact": 2.0} | CONSTANT
    planned = fedjax_sim.simulate(fedavg.system, PROBLEM, fedavg.Hyper(**given), **options)
    np.testing.assert_allclose(ours.curves.time, planned.curves.time, rtol=1e-6)
    np.testing.assert_allclose(ours.curves.loss, planned.curves.loss, rtol=1e-5)
    np.testing.assert_array_equal(ours.curves.local_steps, planned.curves.local_steps)


@pytest.mark.slow
def test_a_budget_of_time_ends_lanes() -> None:
    """The estimate of the number of ticks allows for rounds of one step."""
    hyper = settings(runtime_law="runtime_exp", adapt_every=20.0)
    run = fedjax_sim.sweep(
        adacomm.system, PROBLEM, hyper, seeds=3, budget=Time(400.0), num_evals=20
    )
    assert (run.curves.ended == "budget").all()
    for timeline in run.timelines:
        assert timeline.time[-2] < 400 <= timeline.time[-1]
        assert timeline.steps[0].max() == 12 and timeline.steps[-1].max() < 12


@pytest.mark.slow
def test_if_all_reports_are_lost_the_number_stays() -> None:
    hyper = settings(num_selected=1, drop_rate=0.9, adapt_every=1.0)
    found = trace(adacomm.system, PROBLEM, hyper, ticks=30)
    is_empty = (found.clients < 0).all(axis=1)
    assert is_empty.sum() > 10
    before = np.concatenate([[12], found.memory.steps[:-1]])
    np.testing.assert_array_equal(found.memory.steps[is_empty], before[is_empty])
    assert (found.memory.steps[~is_empty] < before[~is_empty]).any()


def test_a_trace_is_refused() -> None:
    rows = Trace(np.arange(CLIENTS), np.zeros(CLIENTS), np.ones(CLIENTS))
    given = {
        "num_clients": CLIENTS,
        "num_selected": 3,
        "batch_size": 1,
        "trace": rows,
        "adapt_every": 5.0,
    }
    with pytest.raises(ConfigError, match=r"delays.trace .* fewer local steps"):
        fedjax_sim.simulate(adacomm.system, PROBLEM, adacomm.Hyper(**given), budget=Ticks(2))
