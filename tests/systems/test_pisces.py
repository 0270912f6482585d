"""Pisces against an event loop in NumPy, and where it is a system that is known."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Ticks
from fedjax_sim.core.streams import stream
from fedjax_sim.systems import fedbuff, pisces
from tests.systems.live_loops import (
    NUM_TICKS,
    Tick,
    assert_same,
    clock_key,
    delays_of,
    local_work,
    loss_of,
    problem_of,
    ran,
    times_of,
    within_the_last,
)

NUM = 9


def settings(**changes: Any) -> pisces.Hyper:
    """Make settings of nine clients, four of which are at work."""
    known = {
        "num_clients": NUM,
        "concurrency": 4,
        "staleness_bound": 2.0,
        "local_steps": 2,
        "batch_size": 1,
        "lr": 0.1,
        "weighting": "examples",
    }
    return pisces.Hyper(**{**known, **delays_of(NUM), **changes})


def loop(problem: Any, hyper: Any, num_ticks: int) -> tuple[list[Tick], dict[str, int]]:
    """Follow Pisces event by event: the ticks, and how often each reason made the server act."""
    key, takes = clock_key(), times_of(hyper)
    sizes, window = np.asarray(problem.counts), hyper.choice.window
    order = np.asarray(jax.random.permutation(stream(key, "first clients"), NUM))
    # Client -> when it began, when it is done, and the version from which it works.
    running = {int(c): (0.0, float(takes[c]), 0) for c in order[: hyper.concurrency]}
    tried, latency = set(running), dict.fromkeys(range(NUM), np.float32(0))
    quality: dict[int, np.float32] = {}
    stale: dict[int, list[int]] = {c: [] for c in range(NUM)}
    models, acted, arrivals = [np.asarray(problem.start)], 0.0, 0
    ticks, why = [], {"pace": 0, "arrival": 0, "full": 0}

    def utility(client: int) -> float:
        if client not in tried:
            return np.inf
        if client not in quality:
            return -1
        expected = np.mean(stale[client][-window:])
        return quality[client] / (expected + 1) ** float(hyper.choice.staleness_penalty)

    while len(ticks) < num_ticks:
        now, buffer = acted, []
        while True:
            longest = max(latency[c] for c in running)
            earliest = acted + float(np.float32(longest) / np.float32(hyper.staleness_bound))
            due = max(now, earliest)
            done = min(running, key=lambda c: running[c][1])
            if len(buffer) == hyper.num_slots:
                due, reason = now, "full"
                break
            if buffer and due < running[done][1]:
                reason = "pace" if due > now else "arrival"
                break
            began, now, version = running.pop(done)
            latency[done] = np.float32(now - began)
            buffer.append((done, version))
            idle = [c for c in range(NUM) if c not in running]
            best = max(map(utility, idle))
            lots = np.asarray(
                jax.random.uniform(jax.random.fold_in(stream(key, "choice"), arrivals), (NUM,))
            )
            new = max((c for c in idle if utility(c) == best), key=lambda c: lots[c])
            arrivals += 1
            tried.add(new)
            running[new] = (now, now + float(takes[new]), len(ticks))
        why[reason] += 1
        total = sum(sizes[c] if hyper.weighting == "examples" else 1 for c, _ in buffer)
        step, reports = np.zeros(3, "float32"), []
        for client, version in buffer:
            own = sizes[client] if hyper.weighting == "examples" else 1
            weight = np.float32(own / total)
            reports.append((client, version, weight))
            start = models[version]
            step = step + weight * (local_work(problem, start, client, hyper) - start)
            quality[client] = sizes[client] * loss_of(problem, start, client)
            stale[client].append(len(ticks) - version)
        models.append(models[-1] + np.float32(hyper.server_lr) * step)
        ticks.append(Tick(due, reports, models[-1]))
        acted = due
        for client, (began, ends, _) in running.items():
            if began >= due:
                running[client] = (began, ends, len(ticks))
    return ticks, why


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"most_reports": 9},
        {"staleness_bound": 1.0, "staleness_penalty": 2.0, "window": 2, "most_reports": 3},
    ],
    ids=["paced", "full"],
)
def test_it_is_the_event_loop_of_the_paper(changes: dict[str, Any]) -> None:
    """Who reports from which version with which weight and when, the models, where time ends."""
    problem, hyper = problem_of(NUM), settings(**changes)
    ticks, why = loop(problem, hyper, 36)
    run = ran(pisces.system, problem, hyper, within_the_last(ticks))
    assert_same(run, ticks)
    assert run.curves.ended.item() == "budget"
    # Each reason to act is there, and so are ticks of several reports and stale ones.
    wanted = {"full"} if "staleness_penalty" in changes else {"pace", "arrival"}
    assert all(why[reason] > 2 for reason in wanted), why
    assert len({len(tick.reports) for tick in ticks}) > 1
    assert any(version < t for t, tick in enumerate(ticks) for _, version, _ in tick.reports)


@pytest.mark.slow
def test_no_report_is_staler_than_the_bound_once_response_times_are_known() -> None:
    """The paper's Theorem: b, whatever the speeds, if no tick is cut short by its slots."""
    hyper = settings(staleness_bound=3.0, most_reports=9)
    found = ran(pisces.system, problem_of(NUM), hyper).timelines[0]
    assert (found.clients >= 0).sum(axis=1).max() < 9
    heard: set[int] = set()
    known, others = [], []
    for t, clients in enumerate(found.clients):
        for client, version in zip(clients, found.version[t], strict=True):
            if client >= 0:
                (known if client in heard else others).append(t - version)
        heard |= {*clients.tolist()}
    assert max(known) == 3 < max(others)


@pytest.mark.slow
def test_with_all_at_work_and_no_pace_it_is_fedbuff() -> None:
    """Nobody can be chosen, and every report is used at once: FedBuff's schedule and models."""
    shared = {"num_clients": 5, "local_steps": 3, "batch_size": 1, "lr": 0.1, **delays_of(5)}
    live = pisces.Hyper(**shared, concurrency=5, staleness_bound=1e9, most_reports=1)
    planned = fedbuff.Hyper(**shared, concurrency=5, buffer_size=1, rule="mean")
    problem = problem_of(5)
    found = ran(pisces.system, problem, live)
    known = ran(fedbuff.system, problem, planned)
    for name in ("clients", "version", "steps"):
        np.testing.assert_array_equal(
            getattr(found.timelines[0], name), getattr(known.timelines[0], name)
        )
    np.testing.assert_allclose(found.timelines[0].time, known.timelines[0].time, rtol=1e-6)
    np.testing.assert_allclose(found.samples, known.samples, rtol=1e-6)


@pytest.mark.slow
def test_with_one_at_work_it_goes_on_from_the_newest_model() -> None:
    """No staleness, and without a discount always the client of the largest losses."""
    problem, hyper = problem_of(4), settings(num_clients=4, concurrency=1, **delays_of(4))
    hyper = dataclasses.replace(hyper, staleness_bound=1e9, most_reports=1).replace(
        staleness_penalty=0.0
    )
    run = ran(pisces.system, problem, hyper)
    timeline = run.timelines[0]
    np.testing.assert_array_equal(timeline.version[:, 0], np.arange(NUM_TICKS))
    clients = timeline.clients[:, 0]
    assert sorted(clients[:4]) == [0, 1, 2, 3]
    np.testing.assert_allclose(timeline.time, np.cumsum(times_of(hyper)[clients], dtype=float))
    model, quality, best = np.asarray(problem.start), np.zeros(4), -1
    for t, client in enumerate(clients):
        # Work begins when the last report arrives, before the server has looked at its losses.
        if t > 4:
            assert client == best, t
        best = int(quality.argmax())
        quality[client] = np.asarray(problem.counts)[client] * loss_of(problem, model, client)
        model = local_work(problem, model, client, hyper)
        np.testing.assert_allclose(run.samples[t + 1], model, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_clients_that_are_lost_or_away_are_replaced() -> None:
    """Reports go on, nobody is at work twice, and lost reports are in no tick."""
    hyper = settings(drop_rate=0.4, on_time=20.0, off_time=10.0)
    bound = fedjax_sim.bind(pisces.system, problem_of(NUM), hyper, budget=Ticks(40))
    lived, infos = bound.run(bound.init())
    pace = lived.clock
    assert len({*np.asarray(pace.flights.client).tolist()}) == 4
    reports = int((np.asarray(infos.event.clients) >= 0).sum())
    assert reports == int(pace.known.reports.sum())
    assert 0.4 < reports / int(pace.event) < 0.8
    assert int(pace.turns.sum()) == int(pace.event) + 4
