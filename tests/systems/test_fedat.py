"""FedAT against an event loop in NumPy, and where it is FedAvg."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Ticks
from fedjax_sim.core.streams import stream
from fedjax_sim.systems import fedat, fedavg
from fedjax_sim.timelines.delays.client_table import ClientTable
from fedjax_sim.timelines.delays.devices import draw_devices
from tests.systems.live_loops import (
    NUM_TICKS,
    Tick,
    assert_same,
    clock_key,
    delays_of,
    local_work,
    problem_of,
    ran,
    times_of,
    within_the_last,
)

NUM = 11


def settings(**changes: Any) -> fedat.Hyper:
    """Make settings of eleven clients in three tiers, two of which are in a round."""
    known = {
        "num_clients": NUM,
        "num_tiers": 3,
        "num_selected": 2,
        "local_steps": 2,
        "batch_size": 1,
        "lr": 0.1,
        "weighting": "examples",
        "proximal": 0.3,
    }
    return fedat.Hyper(**{**known, **delays_of(NUM), **changes})


def tiers_by_speed(times: np.ndarray, num_tiers: int) -> list[list[int]]:
    """Sort clients into tiers of equal size, up to one client, the fastest first."""
    order = np.argsort(times, kind="stable")
    bounds = [-(-m * len(times) // num_tiers) for m in range(num_tiers + 1)]
    return [order[a:b].tolist() for a, b in itertools.pairwise(bounds)]


def loop(problem: Any, hyper: Any, num_ticks: int) -> tuple[list[Tick], list[int]]:
    """Follow FedAT round by round: the ticks, and how often each tier has reported."""
    key, takes = stream(clock_key(), "tier clients"), times_of(hyper)
    members = tiers_by_speed(takes, hyper.num_tiers)
    sizes = np.asarray(problem.counts)
    begun = [0] * hyper.num_tiers

    def begin(tier: int, now: float, version: int) -> tuple[float, int, list[int]]:
        tier_key = jax.random.fold_in(jax.random.fold_in(key, tier), begun[tier])
        lots = np.asarray(jax.random.uniform(tier_key, (hyper.num_clients,)))
        begun[tier] += 1
        chosen = sorted(members[tier], key=lambda c: -lots[c])[: hyper.num_selected]
        return max(now + float(takes[c]) for c in chosen), version, chosen

    first = np.asarray(problem.start)
    models, tier_models = [first], [first] * hyper.num_tiers
    updates, ticks = [0] * hyper.num_tiers, []
    running = [begin(tier, 0.0, 0) for tier in range(hyper.num_tiers)]
    for t in range(num_ticks):
        tier = min(range(hyper.num_tiers), key=lambda m: running[m][0])
        now, version, clients = running[tier]
        own = sizes[clients] if hyper.weighting == "examples" else np.ones(len(clients))
        weights = (own / own.sum()).astype("float32")
        work = [local_work(problem, models[version], c, hyper) for c in clients]
        tier_models[tier] = sum(w * y for w, y in zip(weights, work, strict=True))
        updates[tier] += 1
        shares = np.float32(updates[::-1]) / np.float32(t + 1)
        models.append(sum(a * w for a, w in zip(shares, tier_models, strict=True)))
        reports = [(c, version, w) for c, w in zip(clients, weights, strict=True)]
        ticks.append(Tick(now, reports, models[-1]))
        running[tier] = begin(tier, now, t + 1)
    return ticks, updates


def test_it_is_the_event_loop_of_the_paper() -> None:
    """Who reports from which version with which weight and when, the models, where time ends."""
    problem, hyper = problem_of(NUM), settings()
    ticks, updates = loop(problem, hyper, 36)
    run = ran(fedat.system, problem, hyper, within_the_last(ticks))
    assert_same(run, ticks)
    assert run.curves.ended.item() == "budget"
    # All tiers report, fast ones more often, and slow ones from old versions.
    assert updates[0] > updates[1] > updates[2] > 2
    assert max(t - tick.reports[0][1] for t, tick in enumerate(ticks)) > 3


def test_drawn_speeds_make_the_tiers_of_the_clock() -> None:
    """The same as with a table of these speeds."""
    problem, drawn = problem_of(NUM), settings(client_table=None, rate_fast=2.0, rate_spread=0.7)
    rates = draw_devices(clock_key(), drawn).speeds.rate
    ticks, _ = loop(problem, settings(client_table=ClientTable(rate=rates)), 20)
    assert_same(ran(fedat.system, problem, drawn, Ticks(20)), ticks)


@pytest.mark.slow
def test_with_one_tier_it_is_fedavg() -> None:
    """Everyone takes part: rounds, times and models of FedAvg."""
    shared = {"num_clients": 5, "num_selected": 5, "local_steps": 3, "batch_size": 1, "lr": 0.1}
    shared |= delays_of(5)
    problem = problem_of(5)
    found = ran(fedat.system, problem, fedat.Hyper(**shared, num_tiers=1, proximal=0.0))
    known = ran(fedavg.system, problem, fedavg.Hyper(**shared))
    mine, theirs = found.timelines[0], known.timelines[0]
    np.testing.assert_array_equal(np.sort(mine.clients), np.sort(theirs.clients))
    np.testing.assert_array_equal(mine.version, theirs.version)
    np.testing.assert_allclose(mine.time, theirs.time, rtol=1e-6)
    np.testing.assert_allclose(found.samples, known.samples, rtol=1e-5)


def test_the_tier_of_fewest_updates_weighs_most() -> None:
    """By hand: two tiers of one client, of which one is three times as fast as the other.

    After reports of the fast, fast, slow and fast tier the shares are those of the box.
    """
    table = ClientTable(rate=[1.0, 0.3])
    hyper = settings(num_clients=2, num_tiers=2, num_selected=1, client_table=table)
    problem = problem_of(2)
    bound = fedjax_sim.bind(fedat.system, problem, hyper, budget=Ticks(5))
    lived, infos = bound.run(bound.init())
    np.testing.assert_array_equal(infos.event.clients[:, 0], [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(infos.event.version[:, 0], [0, 1, 2, 0, 3])
    state = lived.state
    tiers, updates = state.memory
    np.testing.assert_array_equal(updates, [4, 1])
    fast, slow = np.asarray(tiers)
    np.testing.assert_allclose(slow, local_work(problem, np.full(3, 0.5), 1, hyper), rtol=1e-6)
    np.testing.assert_allclose(state.server, 0.2 * fast + 0.8 * slow, rtol=1e-6)


@pytest.mark.slow
def test_a_round_that_is_lost_changes_nothing_but_the_clock() -> None:
    hyper = settings(drop_rate=0.7, on_time=20.0, off_time=10.0)
    bound = fedjax_sim.bind(fedat.system, problem_of(NUM), hyper, budget=Ticks(NUM_TICKS))
    lived, infos = bound.run(bound.init())
    heard = (np.asarray(infos.event.clients) >= 0).sum(axis=1)
    assert {*heard.tolist()} == {0, 1, 2}
    state, rounds = lived.state, np.asarray(lived.clock.rounds)
    assert int(state.updates.sum()) == (heard > 0).sum() < NUM_TICKS
    assert rounds.sum() == NUM_TICKS + 3
    weights = np.asarray(infos.event.weight).sum(axis=1)
    np.testing.assert_allclose(weights, heard > 0, rtol=1e-6)
