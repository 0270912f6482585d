"""SAFA against an event loop in NumPy, and where it is FedAvg."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Ticks
from fedjax_sim.core.streams import stream
from fedjax_sim.server.attacks import FreeRider, NotFinite
from fedjax_sim.server.compression import count_message_bits, parse_compressor
from fedjax_sim.systems import fedavg, safa
from fedjax_sim.timelines import ClientTable
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

NUM, SIGN = 10, parse_compressor("sign")


def settings(**changes: Any) -> safa.Hyper:
    """Make settings of ten clients, of which three are picked in a round."""
    known = {
        "num_clients": NUM,
        "num_selected": 3,
        "lag_tolerance": 3,
        "local_steps": 2,
        "batch_size": 1,
        "lr": 0.1,
        "weighting": "examples",
    }
    return safa.Hyper(**{**known, **delays_of(NUM), **changes})


def loop(
    problem: Any, hyper: Any, num_ticks: int
) -> tuple[list[Tick], dict[str, int], list[list[int]]]:
    """Follow SAFA arrival by arrival.

    Returns:
      The ticks, how often what happened to clients, and who received the model of each tick.
    """
    key, takes = stream(clock_key(), "losses"), times_of(hyper)
    everyone, sizes = range(hyper.num_clients), np.asarray(problem.counts)
    own = sizes if hyper.weighting == "examples" else np.ones(hyper.num_clients)
    share, tau = (own / own.sum()).astype("float32"), hyper.lag_tolerance
    models = [np.asarray(problem.start)]
    cache = dict.fromkeys(everyone, models[0])
    turns = dict.fromkeys(everyone, 0)
    # What each client does: "waits" for the new model, "works" until a time, or has "crashed".
    doing, ends = dict.fromkeys(everyone, "waits"), dict.fromkeys(everyone, 0.0)
    base, picked, now, ticks = dict.fromkeys(everyone, 0), set[int](), 0.0, []
    receive = []
    seen = dict.fromkeys(("undrafted", "deprecated", "tolerable", "crashed", "late", "filled"), 0)
    while len(ticks) < num_ticks:
        t = len(ticks)
        for k in everyone:
            if doing[k] != "waits" and t - base[k] < tau:
                seen["tolerable"] += 1
                if doing[k] == "works":
                    continue
            elif doing[k] != "waits":
                seen["deprecated"] += 1
                cache[k], base[k] = models[-1], t
            else:
                base[k] = t
            doing[k], ends[k] = "works", now + float(takes[k])
            turns[k] += 1
        receive.append([k for k in everyone if base[k] == t])
        new, others, acts = [], [], now
        until = now + float(np.float32(hyper.deadline)) if hyper.deadline else np.inf
        for k in sorted((k for k in everyone if doing[k] == "works"), key=lambda k: ends[k]):
            if len(new) == hyper.num_selected:
                break
            if ends[k] > until:
                acts = until
                seen["late"] += 1
                break
            acts = ends[k]
            own_key = jax.random.fold_in(jax.random.fold_in(key, k), turns[k] - 1)
            if float(jax.random.uniform(own_key)) < np.float32(hyper.delays.drop_rate):
                doing[k] = "crashed"
                seen["crashed"] += 1
                continue
            doing[k] = "waits"
            (others if k in picked else new).append(k)
        missing = hyper.num_selected - len(new)
        picked = {*new, *others[:missing]}
        seen["filled"] += len(others[:missing])
        seen["undrafted"] += len(others[missing:])
        arrived = sorted(new + others, key=lambda k: ends[k])
        work = {k: local_work(problem, models[base[k]], k, hyper) for k in arrived}
        cache |= {k: work[k] for k in picked}
        models.append(sum(share[k] * cache[k] for k in everyone) if arrived else models[-1])
        cache |= {k: work[k] for k in arrived if k not in picked}
        reports = [(k, base[k], share[k] if k in picked else 0.0) for k in arrived]
        ticks.append(Tick(acts, reports, models[-1]))
        now = acts
    return ticks, seen, receive


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("changes", "happens"),
    [
        ({}, {"undrafted", "tolerable", "deprecated"}),
        (
            {"drop_rate": 0.3, "deadline": 4.0, "num_selected": 6},
            {"undrafted", "tolerable", "deprecated", "crashed", "late", "filled"},
        ),
        ({"drop_rate": 0.6, "deadline": 1.4, "lag_tolerance": 2}, {"crashed", "deprecated"}),
    ],
    ids=["plain", "crashes", "empty_rounds"],
)
def test_it_is_the_event_loop_of_the_paper(changes: dict[str, Any], happens: set[str]) -> None:
    """Who reports from which version, who is picked and when, the models, and where time ends."""
    problem, hyper = problem_of(NUM), settings().replace(**changes)
    ticks, seen, _ = loop(problem, hyper, 36)
    run = ran(safa.system, problem, hyper, within_the_last(ticks))
    assert_same(run, ticks)
    assert run.curves.ended.item() == "budget"
    assert all(seen[what] > 2 for what in happens), seen
    assert any(not tick.reports for tick in ticks) == (
        "crashed" in happens and "late" not in happens
    )
    staleness = [t - version for t, tick in enumerate(ticks) for _, version, _ in tick.reports]
    assert max(staleness) == hyper.lag_tolerance - 1


def test_all_models_are_counted_that_the_server_hands_out() -> None:
    """To clients that do not report too, and with the energy of those who receive them."""
    changes: dict[str, Any] = {"drop_rate": 0.4, "deadline": 1.4, "lag_tolerance": 2}
    problem, known = problem_of(NUM), settings(**changes)
    of_step, of_byte = np.arange(1.0, NUM + 1), np.arange(NUM)[::-1] / 100
    table = ClientTable(known.delays.client_table.rate, energy_step=of_step, energy_byte=of_byte)
    hyper = known.replace(client_table=table)
    ticks, seen, receive = loop(problem, hyper, NUM_TICKS)
    curves = ran(safa.system, problem, hyper).curves
    reporting = [[k for k, *_ in tick.reports] for tick in ticks]
    assert seen["deprecated"] > 2 and [] in reporting
    for bits, who in ((curves.downlink_bits, receive), (curves.uplink_bits, reporting)):
        np.testing.assert_array_equal(bits[1:], np.cumsum([96 * len(each) for each in who]))
    used = [
        sum(2 * of_step[k] + 12 * of_byte[k] for k in up) + 12 * of_byte[down].sum()
        for up, down in zip(reporting, receive, strict=True)
    ]
    np.testing.assert_allclose(curves.energy[1:], np.cumsum(used))
    # Compressed, a client receives each change that it has missed, or all if that is shorter.
    curves = ran(safa.system, problem, hyper.replace(downlink=SIGN)).curves
    has, change = dict.fromkeys(range(NUM), -9), count_message_bits(SIGN, jnp.zeros(3))
    assert 2 * change < 96
    number = 0  # of changes: a round without a report makes none
    for t, who in enumerate(receive):
        bits = sum(min((number - has[k]) * change, 96) for k in who)
        assert curves.downlink_bits[t + 1] - curves.downlink_bits[t] == bits
        has |= dict.fromkeys(who, number)
        number += bool(reporting[t])


@pytest.mark.slow
def test_what_is_not_finite_does_not_enter_the_cache() -> None:
    """The entry of a client that sends nan stays, in the first round the initial model."""
    problem, models = problem_of(NUM), []
    for changes in ({}, {"attack": NotFinite()}, {"attack": FreeRider()}):
        chosen: dict[str, Any] = changes and {**changes, "attackers": (2, 5)}
        run = ran(safa.system, problem, settings(num_selected=NUM, lag_tolerance=9, **chosen))
        models.append(np.asarray(run.samples))
    honest, spoilt, idle = models
    assert np.isfinite(spoilt).all()
    np.testing.assert_allclose(spoilt[1], idle[1], rtol=1e-6)
    assert np.abs(spoilt[1:] - honest[1:]).max(axis=-1).min() > 1e-3


def test_who_takes_exactly_until_the_deadline_is_in_time() -> None:
    """Nine times 0.1 is more than 0.9 in floats of 32 bits."""
    changes = {"num_clients": 4, "num_selected": 4, "local_steps": 9, "deadline": 0.9}
    law = {"runtime_law": "runtime_constant", "rate_fast": 10.0, "rate_spread": 0.0}
    hyper = safa.Hyper(batch_size=1, **changes, **law)
    problem = fedjax_sim.problems.Quadratic.of(np.arange(4.0)[:, None])
    run = fedjax_sim.simulate(safa.system, problem, hyper, budget=Ticks(3), num_evals=1)
    assert (run.timelines[0].clients >= 0).all()


@pytest.mark.slow
def test_with_everyone_picked_it_is_fedavg() -> None:
    """C = 1 without crashes: rounds, times and models of FedAvg."""
    shared = {"num_clients": 5, "num_selected": 5, "local_steps": 3, "batch_size": 1, "lr": 0.1}
    shared |= {"weighting": "examples", **delays_of(5)}
    problem = problem_of(5)
    found = ran(safa.system, problem, safa.Hyper(**shared))
    known = ran(fedavg.system, problem, fedavg.Hyper().replace(**shared))
    mine, theirs = found.timelines[0], known.timelines[0]
    np.testing.assert_array_equal(np.sort(mine.clients), np.sort(theirs.clients))
    np.testing.assert_array_equal(mine.version, theirs.version)
    np.testing.assert_allclose(mine.time, theirs.time, rtol=1e-6)
    np.testing.assert_allclose(found.samples, known.samples, rtol=1e-5)


@pytest.mark.slow
def test_what_the_clock_and_the_algorithm_know_of_the_clients_agrees() -> None:
    """Both follow which version each client has: after breaks, crashes and empty rounds too."""
    hyper = settings(drop_rate=0.5, deadline=2.0, on_time=20.0, off_time=10.0)
    bound = fedjax_sim.bind(safa.system, problem_of(NUM), hyper, budget=Ticks(NUM_TICKS))
    lived, infos = bound.run(bound.init())
    assert not (np.asarray(infos.event.clients) >= 0).any(axis=1).all()
    rounds, state = lived.clock, lived.state
    lag = np.asarray(rounds.tick) - np.asarray(rounds.work.version)
    is_new = np.asarray(rounds.has_reported) | (lag >= hyper.lag_tolerance)
    base = np.asarray(state.clients[1])
    base = base + (int(rounds.tick) - base) // hyper.lag_tolerance * hyper.lag_tolerance
    np.testing.assert_array_equal(np.where(is_new, rounds.tick, rounds.work.version), base)
