"""Runs that last as long as the clients' energy: those of planned schedules, and of live clocks."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Energy, Ticks
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.compression import RandSparsification
from fedjax_sim.timelines.delays.client_table import ClientTable
from tests.conftest import slow_but

STEP, BYTE = np.arange(1.0, 8.0), np.arange(7.0)[::-1] / 100
TABLE = ClientTable(energy_step=STEP, energy_byte=BYTE)
MANY, MOST = 30, 60
SWEEP = {"seeds": [0, 5], "num_evals": 60}


def used_by(timeline: Any) -> np.ndarray:
    """Energy after each tick, by hand: two messages of 96 bits for each report."""
    found = []
    for clients, steps in zip(timeline.clients, timeline.steps, strict=True):
        slots = zip(clients, steps, strict=True)
        found.append(sum(n * STEP[c] + 24 * BYTE[c] for c, n in slots if c >= 0))
    return np.cumsum(found)


def given(name: str, regression: Callable, small: Callable, **changes: Any) -> tuple[Any, ...]:
    system = fedjax_sim.SYSTEMS[name]
    law = {"client_table": TABLE, "runtime_law": "runtime_exp"} | changes
    return system, regression(), small(system, **law)


def most_of(name: str) -> dict[str, int]:
    return {"most_ticks": MOST} if fedjax_sim.SYSTEMS[name].live else {}


@pytest.mark.parametrize(
    "name", slow_but(["oort"], ["fedavg", "favano", "fedbuff", "oort", "pisces"])
)
def test_runs_end_before_the_tick_that_takes_too_much(
    name: str, regression: Callable, small: Callable
) -> None:
    inputs = given(name, regression, small)
    many = fedjax_sim.sweep(*inputs, **SWEEP, budget=Ticks(MANY))
    used = [used_by(timeline) for timeline in many.timelines]
    # The very energy of the first lane's ninth tick, and one that is too little for it.
    for budget, first in ((used[0][8], 9), (used[0][8] * (1 - 1e-5), 8)):
        run = fedjax_sim.sweep(*inputs, **SWEEP, budget=Energy(budget, **most_of(name)))
        ticks = [len(timeline.time) for timeline in run.timelines]
        assert ticks == [int((each <= budget * (1 + 1e-9)).sum()) for each in used]
        assert ticks[0] == first and ticks[1] < MANY
        assert float(run.curves.energy.max()) <= budget * (1 + 1e-9)
        np.testing.assert_allclose(run.curves.energy[0, -1], used[0][first - 1])
        # The model is that of as many ticks.
        alone = fedjax_sim.simulate(*inputs, seed=5, budget=Ticks(ticks[1]))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a[1], b, rtol=1e-5),
            run.models,
            alone.models,
        )


@pytest.mark.parametrize("anchor", ["client", "global"])
def test_anchors_take_energy_of_clients_that_do_not_report(anchor: str) -> None:
    """Every second round an anchor goes to them, and with "global" gradients both ways."""
    changes: Any = {"client_table": TABLE, "drop_rate": 0.4, "anchor": anchor, "control_rounds": 2}
    changes |= {"num_clients": 7, "participants": "with_replacement", "num_selected": 2}
    system = fedjax_sim.SYSTEMS["langevin"]
    problem, hyper = Quadratic.of(np.ones((7, 3), "float32")), system.Hyper(batch_size=1, **changes)
    run = fedjax_sim.simulate(system, problem, hyper, budget=Ticks(9), num_evals=9)
    timeline, used, period = run.timelines[0], [0.0], -1
    bits = [0]
    for tick, (clients, steps) in enumerate(zip(timeline.clients, timeline.steps, strict=True)):
        bytes_of = np.zeros(7)
        bytes_of[clients[clients >= 0]] = 24
        if tick // 2 > period and (clients >= 0).any():
            period = tick // 2
            bytes_of += 24 * (anchor == "global") + 12 * (bytes_of == 0)
        of_steps = sum(n * STEP[c] for c, n in zip(clients, steps, strict=True) if c >= 0)
        used.append(used[-1] + of_steps + bytes_of @ BYTE)
        bits.append(bits[-1] + 8 * bytes_of.sum())
    assert period == 4
    np.testing.assert_allclose(run.curves.energy.values.ravel(), used)
    both_ways = run.curves.uplink_bits + run.curves.downlink_bits
    np.testing.assert_array_equal(both_ways.values.ravel(), bits)


@pytest.mark.parametrize("tables", [(TABLE, None), (None, TABLE)])
def test_lanes_of_tables_without_energy_have_none(
    tables: tuple[Any, ...], regression: Callable, small: Callable
) -> None:
    """They are another program than those whose energy counts, whichever comes first."""
    inputs = given("fedavg", regression, small)
    run = fedjax_sim.sweep(*inputs, settings={"client_table": tables}, budget=Ticks(3), num_evals=3)
    counted = run.curves.energy.values[:, 0]
    for table, found, timeline in zip(tables, counted, run.timelines, strict=True):
        expected = np.full(4, np.nan) if table is None else [0, *used_by(timeline)]
        np.testing.assert_allclose(found, expected)


def test_what_is_refused(regression: Callable, small: Callable) -> None:
    def refuses(match: str, name: str, budget: Energy, **changes: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            fedjax_sim.simulate(*given(name, regression, small, **changes), budget=budget)

    refuses("whose client_table says", "fedavg", Energy(9.0), client_table=None)
    refuses("most_ticks is 5, but must be None", "fedavg", Energy(90.0, most_ticks=5))
    refuses("most_ticks is None, but must be given", "oort", Energy(90.0))
    refuses("powerofchoice, whose messages", "powerofchoice", Energy(90.0, most_ticks=5))
    refuses("safa, whose messages", "safa", Energy(90.0, most_ticks=5))
    refuses("which the first tick takes", "fedavg", Energy(0.1))
    with pytest.raises(ConfigError, match="energy_budget"):
        Energy(-1.0)


@pytest.mark.parametrize("name", ["fedavg", "oort"])
def test_lanes_of_one_schedule_have_messages_of_equal_bits(
    name: str, regression: Callable, small: Callable
) -> None:
    system, problem, hyper = given(name, regression, small)
    keeps = [RandSparsification(keep=1.0), RandSparsification(keep=0.25)]
    budget = Energy(90.0, **({"most_ticks": 5} if system.live else {}))
    with pytest.raises(ConfigError, match="messages have equal bits"):
        fedjax_sim.sweep(system, problem, hyper, settings={"compression": keeps}, budget=budget)
    apart = [hyper.replace(compression=keep) for keep in keeps]
    runs = [fedjax_sim.simulate(system, problem, each, budget=budget) for each in apart]
    assert all(float(run.curves.energy.max()) <= 90.1 for run in runs)


@pytest.mark.parametrize("name", ["hierarchical", "async_hierarchical"])
def test_groups_have_no_energy(name: str, regression: Callable) -> None:
    system, law = fedjax_sim.SYSTEMS[name], {"client_table": TABLE, "delays_of": "client"}
    inputs = system, regression(), system.paper(num_clients=7, num_groups=2, batch_size=2, **law)
    run = fedjax_sim.simulate(*inputs, budget=Ticks(3))
    assert "energy" not in run.curves.coords or run.curves.energy.isnull().all()
    with pytest.raises(ConfigError, match="whose slots are no clients"):
        fedjax_sim.simulate(*inputs, budget=Energy(90.0))


@pytest.mark.slow
def test_odd_energies_end_with_the_tick_they_are_of(regression: Callable, small: Callable) -> None:
    """Energies that floats do not hold, and budgets that are exactly those of a tick."""
    random = np.random.default_rng(1)
    table = ClientTable(energy_step=random.uniform(size=7), energy_byte=random.uniform(size=7))
    inputs = given("oort", regression, small, client_table=table)
    energy = fedjax_sim.simulate(*inputs, budget=Ticks(40), num_evals=40).curves.energy.values
    for ticks in range(3, 38, 4):
        run = fedjax_sim.simulate(*inputs, budget=Energy(float(energy[ticks]), most_ticks=40))
        assert len(run.timelines[0].time) == ticks


def test_energy_that_lasts_too_long_is_refused_soon(regression: Callable, small: Callable) -> None:
    for step, match in ((np.zeros(7), "says what steps"), (np.full(7, 1e-9), "short enough")):
        inputs = given("fedavg", regression, small, client_table=ClientTable(energy_step=step))
        with pytest.raises(ConfigError, match=match):
            fedjax_sim.simulate(*inputs, budget=Energy(1.0))


def test_lanes_that_need_more_ticks_are_named(
    regression: Callable, small: Callable, capsys: pytest.CaptureFixture
) -> None:
    inputs = given("oort", regression, small)
    run = fedjax_sim.simulate(*inputs, budget=Energy(1e6, most_ticks=7))
    assert run.curves.ended == "ticks"
    assert "most_ticks = 7 ticks before its energy budget" in capsys.readouterr().err


@pytest.mark.slow
def test_programs_of_ones_own_end_with_the_energy(regression: Callable, small: Callable) -> None:
    inputs = given("oort", regression, small)
    run = fedjax_sim.simulate(*inputs, seed=3, budget=Ticks(12))
    used = used_by(run.timelines[0])
    bound = fedjax_sim.bind(*inputs, seed=3, budget=Energy(used[6], most_ticks=12))
    state, _ = bound.run(bound.init())
    assert int(state.tick) == 7
    np.testing.assert_allclose(state.used.to_float64(), used[6], rtol=1e-6)
    # Settings that change what the program relies on need another one.
    for changes in ({"drop_rate": 0.5}, {"deadline": 0.5}, {"off_time": 3.0}):
        with pytest.raises(ConfigError, match="every slot stays filled"):
            bound.with_settings(**changes)
    with pytest.raises(ConfigError, match="every slot stays filled"):
        jax.vmap(lambda rate: bound.with_settings(drop_rate=rate).init())(jnp.array([0.0, 0.3]))
    assert jax.vmap(lambda lr: bound.with_settings(lr=lr).init().tick)(jnp.ones(2)).shape == (2,)
    kept = given("oort", regression, small, compression=RandSparsification(keep=1.0))
    bound = fedjax_sim.bind(*kept, budget=Energy(90.0, most_ticks=12))
    fewer = dataclasses.replace(
        bound.hyper,
        messages=bound.hyper.messages.replace(compression=RandSparsification(keep=0.25)),
    )
    with pytest.raises(ConfigError, match="messages keep their bits"):
        bound.replace(hyper=fewer)
