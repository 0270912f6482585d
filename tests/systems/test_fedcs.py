"""FedCS against a loop in NumPy, written from the paper, on a problem without noise."""

from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Ticks, Time
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.streams import clock_key, stream
from fedjax_sim.core.types import EMPTY
from fedjax_sim.engine.program.opened import learning_key
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import fedavg, fedcs
from fedjax_sim.timelines import ClientTable, Trace
from fedjax_sim.timelines.delays.laws import Speeds, draw_runtimes
from tests.systems.live_traces import choice_key, trace

CLIENTS, STEPS, TICKS, RATE, SEED = 12, 5, 40, 0.05, 3
CENTERS = np.random.default_rng(0).normal(size=(CLIENTS, 3)).astype("float32")
PROBLEM = Quadratic.of(CENTERS, start=2.0)
SPEEDS = np.random.default_rng(1).lognormal(sigma=0.7, size=CLIENTS).astype("float32")


def settings(**changes: Any) -> fedcs.Hyper:
    """Return settings of clients with exponential times."""
    given = {"num_clients": CLIENTS, "num_selected": 4, "local_steps": STEPS, "lr": RATE}
    given |= {"batch_size": 1, "server_interact": 0.5, "client_table": ClientTable(SPEEDS)}
    return fedcs.Hyper(**(given | changes))


def drawn_times(law: str, number: int, cohort: np.ndarray) -> np.ndarray:
    """Draw how long a cohort's work takes, by the place in the cohort, as all rounds do."""
    key = jax.random.fold_in(stream(clock_key(learning_key(SEED)), "runtimes"), number)
    speeds = Speeds(SPEEDS[cohort], np.zeros(len(cohort), "float32"))
    return np.asarray(draw_runtimes(key, speeds, STEPS, law).sum(axis=-1))


@pytest.mark.parametrize(
    "changes",
    [
        {"quantile": 0.55},
        {
            "num_candidates": 9,
            "quantile": 0.4,
            "follows": "loss",
            "loss_window": 3,
            "lengthen": 1.5,
            "shorten": 0.7,
            "most": 3.0,
        },
    ],
)
def test_a_loop_of_the_paper_gives_the_same_rounds(changes: dict[str, Any]) -> None:
    hyper = settings(**changes)
    found = trace(fedcs.system, PROBLEM, hyper, ticks=TICKS, seed=SEED)
    choice, slots = hyper.choice, hyper.num_selected
    expected = STEPS / SPEEDS.astype(float)
    response, x, now = expected.copy(), np.full(3, 2.0), 0.0
    factor, window, before = 1.0, [], None
    late, extended, factors = 0, 0, []
    for r in range(TICKS):
        deadline = factor * np.quantile(response, choice.quantile)
        candidates = np.asarray(jax.random.permutation(choice_key(SEED, r), CLIENTS))
        candidates = candidates[: choice.num_candidates or slots]
        fastest = candidates[np.argsort(expected[candidates])][:slots]
        extended += expected[fastest[0]] > deadline
        deadline = max(deadline, expected[fastest[0]]) * (1 + 1e-5)
        chosen = expected[fastest] <= deadline
        assert (np.abs(expected[fastest] / deadline - 1) > 2e-6).all()
        cohort = np.where(chosen, fastest, EMPTY)
        np.testing.assert_array_equal(found.memory.asked[r], cohort)
        assert found.memory.deadline[r] == pytest.approx(deadline, rel=1e-5)
        # Times are those of the same 32 bits, but for the sums.
        deadline_in_32_bits = found.memory.deadline[r]
        took = drawn_times("runtime_exp", r, np.maximum(cohort, 0))
        is_in = chosen & (took <= deadline_in_32_bits)
        late += (chosen & ~is_in).any()
        waits = deadline_in_32_bits if (chosen & ~is_in).any() else took[is_in].max()
        now += float(waits) + 0.5
        assert found.time[r] == pytest.approx(now, rel=1e-12)
        reporters = sorted(zip(took[is_in], cohort[is_in], strict=True)) if is_in.any() else []
        there = found.clients[r] != EMPTY
        assert sorted(found.clients[r][there]) == sorted(i for _, i in reporters)
        assert (found.steps[r] == np.where(there, STEPS, 0)).all()
        np.testing.assert_allclose(found.weight[r], there / max(1, there.sum()), rtol=1e-6)
        losses, ends = [], []
        for took_here, i in reporters:
            losses.append(((x - CENTERS[i]) ** 2).sum() / 2)
            ends.append(CENTERS[i] + (1 - RATE) ** STEPS * (x - CENTERS[i]))
            response[i] = took_here
        x = np.mean(ends, axis=0) if ends else x
        for i in cohort[chosen & ~is_in]:
            known = response[i] if not np.isnan(found.memory.taken[r - 1][i]) and r else 0
            response[i] = max(known, deadline_in_32_bits)
        np.testing.assert_allclose(found.model[r], x, rtol=1e-4, atol=1e-5)
        known = ~np.isnan(found.memory.taken[r])
        np.testing.assert_allclose(found.memory.taken[r][known], response[known], rtol=1e-6)
        np.testing.assert_allclose(expected[~known], response[~known])
        if choice.follows == "loss":
            window += [np.mean(losses)] if losses else []
            if (r + 1) % 3 == 0 and window:
                if before is not None:
                    assert abs(np.mean(window) / before - 1) > 1e-5
                    factor *= 0.7 if np.mean(window) < before else 1.5
                    factor = min(max(factor, 1 / 3), 3)
                before, window = np.mean(window), []
            assert found.memory.factor[r] == pytest.approx(factor, rel=1e-5)
            factors.append(factor)
    assert late >= 5
    if choice.follows == "loss":
        assert extended and min(factors) < 1 < max(factors)
        np.testing.assert_array_equal(
            found.needed, found.steps.sum(axis=1) + (found.clients != EMPTY).sum(axis=1)
        )
    else:
        np.testing.assert_array_equal(found.needed, found.steps.sum(axis=1))


@pytest.mark.slow
def test_with_a_deadline_for_everyone_it_is_fedavg() -> None:
    """The slowest client's time is the deadline, though rounding makes it a little shorter."""
    law = {"runtime_law": "runtime_constant", "num_selected": CLIENTS}
    hyper = settings(**law, quantile=1.0)
    options: dict[str, Any] = {"budget": Ticks(15), "num_evals": 5}
    ours = fedjax_sim.simulate(fedcs.system, PROBLEM, hyper, **options)
    given = {"num_clients": CLIENTS, "local_steps": STEPS, "lr": RATE, "batch_size": 1} | law
    given |= {"server_interact": 0.5, "client_table": ClientTable(SPEEDS)}
    planned = fedjax_sim.simulate(fedavg.system, PROBLEM, fedavg.Hyper(**given), **options)
    np.testing.assert_allclose(ours.curves.time, planned.curves.time, rtol=1e-6)
    np.testing.assert_allclose(ours.curves.loss, planned.curves.loss, rtol=1e-5)
    np.testing.assert_array_equal(ours.curves.local_steps, planned.curves.local_steps)


def test_no_client_slower_than_the_deadline_is_asked_and_time_ends_lanes() -> None:
    """With constant times the deadline is the quantile of all clients' times."""
    hyper = settings(runtime_law="runtime_constant", quantile=0.5, num_selected=6)
    run = fedjax_sim.simulate(fedcs.system, PROBLEM, hyper, budget=Time(150.0), num_evals=20)
    assert run.curves.ended == "budget"
    timeline = run.timelines[0]
    assert timeline.time[-2] < 150 <= timeline.time[-1]
    asked = set(timeline.clients.ravel().tolist()) - {EMPTY}
    assert asked == set(np.argsort(SPEEDS)[CLIENTS // 2 :].tolist())
    assert np.diff(timeline.time, prepend=0).max() <= np.median(STEPS / SPEEDS) + 0.5001


@pytest.mark.slow
def test_clients_of_a_trace_expect_the_mean_of_their_rows() -> None:
    """Times alternate, so the slower half of the rows of those who are asked may be late."""
    client = np.repeat(np.arange(CLIENTS), 2)
    length = np.stack([np.arange(1, CLIENTS + 1), np.arange(1, CLIENTS + 1) + 2.0], 1).ravel()
    start = np.where(np.arange(2 * CLIENTS) % 2, 20.0, 0.0)
    rows = Trace(client, start, start + length)
    given = {"num_clients": CLIENTS, "num_selected": CLIENTS, "batch_size": 1, "trace": rows}
    found = trace(fedcs.system, PROBLEM, fedcs.Hyper(**given, quantile=0.5), ticks=2)
    # Means of 2, 3, ..., 13: those of at most 7.5 are asked.
    assert set(found.memory.asked[0].tolist()) == {EMPTY, *range(6)}
    assert found.memory.deadline[0] == pytest.approx(7.5, rel=2e-5)
    assert found.time[0] == 6


@pytest.mark.parametrize("name", ["deadline", "num_asked"])
def test_settings_that_follow_from_others_are_none(name: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=name):
        fedjax_sim.simulate(fedcs.system, PROBLEM, settings(**{name: 5}), budget=Ticks(2))
