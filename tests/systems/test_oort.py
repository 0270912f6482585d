"""Oort against an own loop in NumPy, with the same random draws, and what its choice does."""

import math
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.streams import clock_key, stream
from fedjax_sim.engine.program.opened import learning_key
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import fedavg, oort
from fedjax_sim.timelines import ClientTable, Trace

N, K, LR, TICKS, ASKED = 12, 3, 0.02, 60, 4
CURVATURE = np.linspace(0.3, 2.0, N)
CENTERS = np.random.default_rng(2).normal(size=(N, 2))
RATES = np.array([1, 2, 4, 8, 0.5, 0.25, 1, 2, 4, 0.125, 3, 1.5])
START = np.array([2.0, -1.0])
CHOICE = {"exploring": 0.75, "exploring_decay": 0.9, "exploring_least": 0.25, "time_penalty": 2.0}
CHOICE |= {"cutoff": 0.5, "preferred": 0.25, "pacer_step": 0.25, "pacer_window": 5}


def hyper_of(**changes: Any) -> oort.Hyper:
    """Return settings of clients with their own constant speeds."""
    own = {"num_selected": ASKED, "local_steps": K, "lr": LR, "batch_size": 1}
    clock = {"client_table": ClientTable(RATES), "runtime_law": "runtime_constant"}
    return oort.Hyper(num_clients=N).replace(**(own | clock | CHOICE | changes))


class Loop:
    """Algorithm 1, with lists of clients. Draws are those of the clock's key."""

    def __init__(self) -> None:
        self.utility: dict[int, float] = {}
        self.last: dict[int, int] = {}
        self.taken: dict[int, float] = {}
        self.preferred, self.per_round = CHOICE["preferred"], list[float]()

    def expected(self, client: int, number: int) -> float:
        """Return the utility of a client that was asked before, in round `number` from 0."""
        clipped = min(self.utility[client], np.quantile(list(self.utility.values()), 0.95))
        found = clipped + math.sqrt(0.1 * math.log(number + 1) / self.last[client])
        wanted = np.quantile(list(self.taken.values()), self.preferred)
        if self.taken[client] > wanted:
            found *= (wanted / self.taken[client]) ** CHOICE["time_penalty"]
        return found

    def select(self, number: int) -> list[int]:
        """Choose the cohort of a round."""
        key = jax.random.fold_in(stream(clock_key(learning_key(0)), "choice"), number)
        noise = np.asarray(jax.random.gumbel(key, (2, N), float))
        known, new = sorted(self.utility), [i for i in range(N) if i not in self.utility]
        share = max(CHOICE["exploring"] * CHOICE["exploring_decay"] ** number, 0.25)
        explored = min(round(share * ASKED), len(new))
        explored = max(explored, min(ASKED - len(known), len(new)))
        needed = min(ASKED - explored, len(known))
        worth = {i: self.expected(i, number) for i in known}
        chosen: list[int] = []
        if needed:
            least = CHOICE["cutoff"] * sorted(worth.values())[::-1][needed - 1]
            drawn = [i for i in known if worth[i] >= least]
            chosen = sorted(drawn, key=lambda i: -(math.log(worth[i]) + noise[0, i]))[:needed]
        return chosen + sorted(new, key=lambda i: -(math.log(RATES[i]) + noise[1, i]))[:explored]

    def learn(self, number: int, cohort: list[int], losses: np.ndarray) -> None:
        """Note what a round has shown."""
        for i in cohort:
            self.utility[i], self.last[i], self.taken[i] = losses[i], number + 1, K / RATES[i]
        self.per_round.append(sum(losses[i] for i in cohort))
        window = int(CHOICE["pacer_window"])
        if (number + 1) % window == 0 and number + 1 >= 2 * window:
            before, after = self.per_round[-2 * window : -window], self.per_round[-window:]
            if sum(before) > sum(after):
                self.preferred = min(self.preferred + CHOICE["pacer_step"], 1.0)


def test_own_loop() -> None:
    """Cohorts, times and models of sixty rounds, in which the pacer moves."""
    with jax.enable_x64(True):
        problem = Quadratic.of(CENTERS, curvature=CURVATURE, start=START)
        run = fedjax_sim.simulate(
            oort.system,
            problem,
            hyper_of(),
            budget=fedjax_sim.Ticks(TICKS),
            num_evals=TICKS,
            keep=fedjax_sim.Keep(models=True),
        )
        loop, model, now, paces = Loop(), START, 0.0, set()
        for t in range(TICKS):
            cohort = loop.select(t)
            assert run.timelines[0].clients[t].tolist() == cohort, t
            now += (K / RATES[cohort]).max()
            np.testing.assert_allclose(run.timelines[0].time[t], now, rtol=1e-12)
            losses = CURVATURE / 2 * np.square(model - CENTERS).sum(axis=1)
            loop.learn(t, cohort, losses)
            paces.add(loop.preferred)
            share = 1 - (1 - LR * CURVATURE[cohort]) ** K
            model = (model + share[:, None] * (CENTERS[cohort] - model)).mean(axis=0)
            np.testing.assert_allclose(run.samples[t + 1], model, rtol=0, atol=1e-12)
    assert len(loop.utility) == N and len(paces) > 2
    # One loss for each report, beside the local steps.
    assert run.curves.needed == TICKS * ASKED * (K + 1)


def test_new_clients_of_a_trace_are_explored_by_its_times() -> None:
    """And not by drawn rates, which have no effect with a trace."""
    taken = np.geomspace(1, 1000, 2 * N).reshape(N, 2)[::-1]  # two rows of each
    start = np.tile([0.0, 2000.0], N)
    rows = Trace(np.repeat(np.arange(N), 2), start, start + taken.ravel())
    hyper = oort.Hyper(num_clients=N, num_selected=ASKED, batch_size=1, trace=rows)
    problem = Quadratic.of(CENTERS, curvature=CURVATURE, start=START)
    budget = fedjax_sim.Ticks(1)
    for seed in range(3):
        run = fedjax_sim.simulate(oort.system, problem, hyper, budget=budget, seed=seed)
        key = jax.random.fold_in(stream(clock_key(learning_key(seed)), "choice"), 0)
        noise = np.asarray(jax.random.gumbel(key, (2, N)))[1]
        wanted = np.argsort(np.log(taken.mean(axis=1)) - noise)[:ASKED]
        assert run.timelines[0].clients[0].tolist() == wanted.tolist()


@pytest.mark.slow
def test_everyone_who_is_there_takes_part() -> None:
    """With as many as there are it is FedAvg with full participation, whatever the losses are."""
    problem = Quadratic.of(CENTERS, curvature=CURVATURE, start=START)
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(8), "num_evals": 8}
    run = fedjax_sim.simulate(oort.system, problem, hyper_of(num_selected=N), **options)
    same = {"num_selected": N, "local_steps": K, "lr": LR, "batch_size": 1, "num_clients": N}
    clock = {"client_table": ClientTable(RATES), "runtime_law": "runtime_constant"}
    plain = fedjax_sim.simulate(
        fedavg.system, problem, fedavg.Hyper(num_clients=N).replace(**(same | clock)), **options
    )
    np.testing.assert_allclose(run.models, plain.models, rtol=1e-5)
    np.testing.assert_allclose(run.curves.time, plain.curves.time, rtol=1e-6)


def test_a_night_is_no_round() -> None:
    """Nobody is asked then: nothing decays, and the pacer sees no utility of 0."""
    table = ClientTable(RATES, available=[[(0.0, 40.0)]] * N, period=80.0)
    hyper = hyper_of(client_table=table, pacer_window=TICKS, server_interact=25.0)
    with jax.enable_x64(True):
        problem = Quadratic.of(CENTERS, curvature=CURVATURE, start=START)
        budget = fedjax_sim.Ticks(TICKS)
        bound = fedjax_sim.bind(oort.system, problem, hyper, budget=budget)
        state, infos = bound.run(bound.init())
    is_day = (np.asarray(infos.event.clients) >= 0).any(axis=1)
    memory, rounds = jax.tree.map(np.asarray, state.clock.memory), is_day.sum()
    assert 5 < rounds < TICKS - 5 and memory.rounds == rounds
    assert (memory.recent[:rounds] > 0).all() and (memory.recent[rounds : 2 * TICKS] == 0).all()
    assert memory.last.max() == rounds


def test_a_table_serves_a_planned_run_and_then_a_live_one() -> None:
    """Its arrays have 64 bits where schedules are drawn, and those of other floats in a clock."""
    table = ClientTable(RATES, up=8 * RATES, available=[[(0.0, 40.0)]] * N, period=80.0)
    clock = {"client_table": table, "server_interact": 1.0, "num_selected": ASKED}
    problem = Quadratic.of(CENTERS.astype("float32"), curvature=CURVATURE)
    for system in (fedavg.system, oort.system):
        hyper = system.Hyper(num_clients=N, local_steps=1, **clock)
        run = fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(2), num_evals=1)
        assert np.isfinite(run.curves.loss).all()


@pytest.mark.slow
def test_rounds_get_shorter_and_reserves_are_left_out() -> None:
    """Against a uniform choice from the same clients; and with 6 asked of whom 4 are used."""
    problem = Quadratic.of(CENTERS, curvature=CURVATURE, start=START)
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(TICKS), "num_evals": 1, "seeds": 3}
    run = fedjax_sim.sweep(oort.system, problem, hyper_of(), **options)
    own = {"num_selected": ASKED, "local_steps": K, "lr": LR, "batch_size": 1, "num_clients": N}
    clock = {"client_table": ClientTable(RATES), "runtime_law": "runtime_constant"}
    uniform = fedavg.Hyper(num_clients=N).replace(**(own | clock))
    plain = fedjax_sim.sweep(fedavg.system, problem, uniform, **options)
    assert (run.curves.time[..., -1].values < plain.curves.time[..., -1].values).all()
    spare = fedjax_sim.sweep(oort.system, problem, hyper_of(num_asked=6), **options)
    assert (spare.curves.time[..., -1].values < run.curves.time[..., -1].values).all()
    assert (spare.timelines[0].clients >= 0).all()
