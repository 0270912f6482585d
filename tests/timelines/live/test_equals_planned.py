"""Live clocks against planned ones with the same draws, and planned schedules taken live.

A live clock draws in the precision that is enabled. With 64 bits its draws are those of the planned
clock, which are always of 64; then schedules are equal, and models have equal bits.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.types import System
from fedjax_sim.systems import fedasync, fedavg, fedbuff, gen_async
from fedjax_sim.timelines import Trace
from fedjax_sim.timelines.live import Live, Sizes, replayed, with_clock
from tests.conftest import slow_but
from tests.timelines.live.conftest import planned_as_live

TICKS = 40
# Client i has 1 + i % 4 rows, of different lengths.
ROWS = [(i, 20.0 * j, 20.0 * j + 3 * i + 5 * j + 1) for i in range(7) for j in range(1 + i % 4)]
RECORDED = Trace(*np.transpose(ROWS))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rounds": ("fedavg", {"rate_spread": 0.75}),
    "rounds with losses, reserves and a deadline": (
        "fedavg",
        {"num_asked": 6, "drop_rate": 0.25, "deadline": 80.0},
    ),
    "rounds of clients with breaks": (
        "fedavg",
        {"off_time": 50.0, "on_time": 70.0, "runtime_law": "runtime_exp"},
    ),
    "rounds of a trace": ("fedavg", {"trace": RECORDED, "server_interact": 0.0}),
    "tasks": ("fedbuff", {"rate_spread": 0.75, "rule": "polynomial"}),
    "tasks that arrive together": ("fedbuff", {"runtime_law": "runtime_constant"}),
    "tasks with losses": ("fedbuff", {"drop_rate": 0.25}),
    "tasks of clients with breaks": ("fedbuff", {"off_time": 50.0, "on_time": 70.0}),
    "as many tasks as clients": ("fedbuff", {"concurrency": 7}),
}
SYSTEMS = {"fedavg": fedavg.system, "fedbuff": fedbuff.system}


def settings_of(case: str, small: Callable) -> Any:
    """Return the settings of a case."""
    name, changes = CASES[case]
    own = {"restart": "replaced", "concurrency": 5, "buffer_size": 3} if name == "fedbuff" else {}
    law = {} if "trace" in changes else {"runtime_law": "runtime_exp"}
    return small(SYSTEMS[name], **(own | law | changes))


@pytest.mark.few(1)
@pytest.mark.parametrize("case", slow_but([list(CASES)[i] for i in (1, 3, 4)], CASES))
def test_schedules_and_models_are_equal(
    case: str, live: dict[str, System], regression: Callable, small: Callable
) -> None:
    name, problem = CASES[case][0], regression()
    hyper = settings_of(case, small)
    drawn = planned_as_live(SYSTEMS[name], hyper, seed=3, num_ticks=TICKS)
    with jax.enable_x64(True):
        bound = fedjax_sim.bind(live[name], problem, hyper, seed=3, budget=fedjax_sim.Ticks(TICKS))
        state, infos = bound.run(bound.init())
        other = fedjax_sim.bind(SYSTEMS[name], problem, hyper, seed=3, budget=drawn)
        expected, of_planned = other.run(other.init())
        np.testing.assert_allclose(state.now.to_float64(), drawn.time[-1], rtol=1e-12)
        jax.tree.map(np.testing.assert_array_equal, bound.model(state), other.model(expected))
    is_there = drawn.clients >= 0
    event = infos.event
    np.testing.assert_array_equal(event.clients, drawn.clients)
    np.testing.assert_array_equal(event.steps, np.where(is_there, drawn.steps, 0))
    np.testing.assert_array_equal(event.version[is_there], drawn.version[is_there])
    np.testing.assert_allclose(event.weight, np.where(is_there, drawn.weight, 0), rtol=1e-6)
    planned = other.events
    np.testing.assert_array_equal(event.offset[is_there], planned.offset[is_there])
    np.testing.assert_array_equal(infos.needed, of_planned.needed)
    if "tasks" in case and "together" not in case:
        assert (drawn.version != np.arange(TICKS)[:, None]).mean() > 0.3
    if case == "rounds with losses, reserves and a deadline":
        assert not is_there.all()


@pytest.mark.parametrize(
    "name", slow_but(["fedbuff"], ["fedavg", "fedbuff", "fedasync", "gen_async"])
)
def test_a_schedule_taken_live_has_the_same_bits(
    name: str, regression: Callable, small: Callable
) -> None:
    """Times, what is counted and the timeline as well, without 64 bits."""
    system: System = {
        "fedavg": fedavg.system,
        "fedbuff": fedbuff.system,
        "fedasync": fedasync.system,
        "gen_async": gen_async.system,
    }[name]
    problem, hyper = regression(), small(system)
    options: dict[str, Any] = {
        "budget": fedjax_sim.Ticks(TICKS),
        "num_evals": 4,
        "layout": fedjax_sim.Layout(4, False, 1),
    }
    run = fedjax_sim.simulate(system, problem, hyper, seed=1, **options)
    other = fedjax_sim.simulate(
        replayed(system, run.timelines[0]), problem, hyper, seed=1, **options
    )
    for field in ("time", "clients", "steps", "version"):
        leaves = (getattr(each.timelines[0], field) for each in (other, run))
        exact = 1e-14 if field == "time" else 0  # 48 bits of planned 53
        np.testing.assert_allclose(*leaves, rtol=exact, err_msg=field)
    jax.tree.map(np.testing.assert_array_equal, run.models, other.models)
    assert {*other.curves.coords} - {*run.curves.coords} == {"ended"}
    for values in (*run.curves.coords, *run.curves.data_vars):
        exact = 1e-14 if values == "time" else 0
        np.testing.assert_allclose(
            other.curves[values], run.curves[values], rtol=exact, err_msg=values
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fedbuff", "async_hierarchical"])
def test_the_schedule_of_a_live_run_taken_as_planned_has_the_same_bits(
    name: str, live: dict[str, System], regression: Callable, small: Callable
) -> None:
    """Also where those who report are groups, of which there are fewer than slots."""
    problem, system = regression(), fedjax_sim.SYSTEMS[name]
    options: dict[str, Any] = {"seed": 1, "budget": fedjax_sim.Ticks(20)}
    if name == "fedbuff":
        hyper, taken = small(system, restart="replaced"), live[name]
    else:
        hyper = small(system, num_groups=2, num_reports=3)
        drawn = fedjax_sim.simulate(system, problem, hyper, **options)
        taken = replayed(system, drawn.timelines[0])
    run = fedjax_sim.simulate(taken, problem, hyper, **options, num_evals=4)
    (happened,) = run.timelines
    planned = fedjax_sim.bind(system, problem, hyper, seed=1, budget=happened)
    state, info = planned.run(planned.init())
    jax.tree.map(np.testing.assert_array_equal, planned.model(state), run.models)
    assert int(info.needed.sum()) == run.curves.needed
    if name == "async_hierarchical":
        assert happened.clients.shape == (20, 3)
        assert set(happened.clients.ravel().tolist()) == {0, 1}


def test_more_slots_than_senders_are_refused(regression: Callable, small: Callable) -> None:
    system = fedjax_sim.SYSTEMS["hierarchical"]
    hyper = small(system, num_groups=2)
    three = Live(lambda hyper: Sizes(3, 1), lambda problem, hyper: None)
    with pytest.raises(fedjax_sim.ConfigError, match="at most the number of senders, 2, as"):
        fedjax_sim.simulate(
            with_clock(system, three), regression(), hyper, budget=fedjax_sim.Ticks(2)
        )


def test_a_schedule_that_ends_leaves_nothing_to_wait_for(
    regression: Callable, small: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, hyper = regression(), small(fedbuff.system)
    run = fedjax_sim.simulate(fedbuff.system, problem, hyper, budget=fedjax_sim.Ticks(6))
    live = replayed(fedbuff.system, run.timelines[0])
    longer = fedjax_sim.simulate(live, problem, hyper, budget=fedjax_sim.Ticks(9), num_evals=3)
    assert longer.curves.ended == "idle"
    assert longer.curves.ticks[-1] == 6
    assert "nobody ever reports" in capsys.readouterr().err


def test_a_schedule_that_no_system_could_draw_is_refused() -> None:
    """1.9 steps would be one step, and a nan time would end the lane."""
    one = np.ones((1, 1), "int32")
    known = fedjax_sim.Timeline(np.ones(1), one, one, one * 0, np.ones((1, 1)), one)
    replayed(fedbuff.system, known)
    for change, words in (
        ({"steps": one * 1.9}, "steps of tick 0 in slot 0 of the timeline is 1.9"),
        ({"time": np.array([np.nan])}, "time of tick 0 of the timeline is nan"),
        ({"weight": -np.ones((1, 1))}, "weight of tick 0 in slot 0 of the timeline is -1.0"),
    ):
        with pytest.raises(fedjax_sim.ConfigError, match=words):
            replayed(fedbuff.system, known._replace(**change))


@pytest.mark.slow
def test_mean_staleness_is_that_of_tasks_in_flight(live: dict[str, System]) -> None:
    """(M - 1) / Z, whatever the speeds are, in a live clock's own 32 bits."""
    from fedjax_sim.problems import Quadratic

    hyper = fedbuff.Hyper(
        num_clients=60, concurrency=21, buffer_size=4, local_steps=1, rate_spread=1.0, batch_size=1
    )
    problem = Quadratic.of(np.zeros((60, 1)))
    run = fedjax_sim.sweep(
        live["fedbuff"], problem, hyper, seeds=3, budget=fedjax_sim.Ticks(3000), num_evals=1
    )
    np.testing.assert_allclose(run.curves.staleness_mean, 20 / 4, rtol=5e-3)
