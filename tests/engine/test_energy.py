"""Runs that last as long as the clients' energy: those of planned schedules, and of live clocks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Checkpoints, ConfigError, Energy, Ticks
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
    "name", slow_but(["fedbuff", "oort"], ["fedavg", "favano", "fedbuff", "oort", "pisces", "safa"])
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


@pytest.mark.parametrize("name", slow_but(["oort"], ["fedavg", "oort"]))
def test_a_run_goes_on_with_more_energy(
    name: str, regression: Callable, small: Callable, tmp_path: Path
) -> None:
    inputs, most = given(name, regression, small), most_of(name)

    def sweep(energy: float, folder: Path, **resumed: Any) -> Any:
        kept = Checkpoints(folder, **resumed)
        options: Any = SWEEP | {"num_evals": 10, "checkpoints": kept}
        return fedjax_sim.sweep(*inputs, **options, budget=Energy(energy, **most))

    used = used_by(fedjax_sim.sweep(*inputs, **SWEEP, budget=Ticks(MANY)).timelines[0])
    first = sweep(used[8], tmp_path / "a")
    longer = sweep(used[17], tmp_path / "a", resume=True)
    whole = sweep(used[17], tmp_path / "b")
    assert [len(run.timelines[0].time) for run in (first, longer, whole)] == [9, 18, 18]
    jax.tree.map(np.testing.assert_array_equal, longer.models, whole.models)
    with pytest.raises(ConfigError, match="energy_budget"):
        sweep(used[4], tmp_path / "a", resume=True)


def test_what_is_refused(regression: Callable, small: Callable) -> None:
    def refuses(match: str, name: str, budget: Energy, **changes: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            fedjax_sim.simulate(*given(name, regression, small, **changes), budget=budget)

    refuses("whose client_table says", "fedavg", Energy(9.0), client_table=None)
    refuses("most_ticks is 5, but must be None", "fedavg", Energy(90.0, most_ticks=5))
    refuses("most_ticks is None, but must be given", "oort", Energy(90.0))
    refuses("powerofchoice, whose messages", "powerofchoice", Energy(90.0, most_ticks=5))
    refuses("which the first tick takes", "fedavg", Energy(0.1))
    with pytest.raises(ConfigError, match="energy_budget"):
        Energy(-1.0)


def test_live_lanes_have_messages_of_equal_bits(regression: Callable, small: Callable) -> None:
    system, problem, hyper = given("oort", regression, small)
    odd = system.messages._replace(bits=lambda model, hyper: (int(1000 * hyper.lr), 8))
    with pytest.raises(ConfigError, match="messages have equal bits"):
        fedjax_sim.sweep(
            system._replace(messages=odd),
            problem,
            hyper,
            settings={"lr": [0.1, 0.2]},
            budget=Energy(90.0, most_ticks=5),
        )


def test_lanes_that_need_more_ticks_are_named(
    regression: Callable, small: Callable, capsys: pytest.CaptureFixture
) -> None:
    inputs = given("oort", regression, small)
    run = fedjax_sim.simulate(*inputs, budget=Energy(1e6, most_ticks=7))
    assert run.curves.ended == "ticks"
    assert "most_ticks = 7 ticks before its energy budget" in capsys.readouterr().err


def test_programs_of_ones_own_end_with_the_energy(regression: Callable, small: Callable) -> None:
    inputs = given("oort", regression, small)
    run = fedjax_sim.simulate(*inputs, seed=3, budget=Ticks(12))
    used = used_by(run.timelines[0])
    bound = fedjax_sim.bind(*inputs, seed=3, budget=Energy(used[6], most_ticks=12))
    state, _ = bound.run(bound.init())
    assert int(state.tick) == 7
    np.testing.assert_allclose(state.used.to_float64(), used[6], rtol=1e-6)
