"""Live clocks as they are written for an accelerator make the schedules that they make on a CPU.

Programs are compiled for the CPU here, from what is traced for a GPU. With 64 bits rounding changes
no choice.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core import targets
from fedjax_sim.core.types import System
from fedjax_sim.engine.program import opened
from fedjax_sim.server.compression import BlockQuantization
from fedjax_sim.timelines.delays.client_table import ClientTable
from tests.conftest import slow_but
from tests.timelines.live.conftest import LIVE

TICKS = 30
LAW = {"runtime_law": "runtime_exp", "rate_spread": 0.75}
TASKS = {"restart": "replaced", "concurrency": 5, "buffer_size": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {"num_asked": 6, "drop_rate": 0.25, "deadline": 80.0}),
    "fedbuff": ("fedbuff", TASKS),
    "fedbuff with losses": ("fedbuff", TASKS | {"drop_rate": 0.25}),
    "fedbuff with breaks": ("fedbuff", TASKS | {"off_time": 50.0, "on_time": 70.0}),
    **{name: (name, {}) for name in ("oort", "tifl", "fedcs", "adacomm", "powerofchoice")},
    **{name: (name, {}) for name in ("pisces", "fedat", "safa", "asyncfeded_adaptive")},
    "fedcs by the loss": ("fedcs", {"follows": "loss", "loss_window": 3}),
    "oort with compressed models": ("oort", {"downlink": BlockQuantization()}),
    "fedavg with compressed models": ("fedavg", {"downlink": BlockQuantization()}),
}


@pytest.fixture
def traced_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A function after whose call all programs are traced for a GPU."""

    def change() -> None:
        jax.clear_caches()
        monkeypatch.setattr(opened, "tracing_for", lambda _: targets.tracing_for("gpu"))

    yield change
    jax.clear_caches()


def run(system: System, problem: Any, hyper: Any) -> Any:
    with jax.enable_x64(True):
        bound = fedjax_sim.bind(system, problem, hyper, seed=3, budget=fedjax_sim.Ticks(TICKS))
        state, infos = bound.run(bound.init())
        return np.asarray(state.now.to_float64()), infos, bound.model(state)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(["fedbuff", "oort with compressed models"], CASES))
def test_live_clocks_of_accelerators(
    case: str, regression: Callable, small: Callable, traced_for_a_gpu: Callable
) -> None:
    name, changes = CASES[case]
    planned, problem = fedjax_sim.SYSTEMS[name], regression()
    system, hyper = LIVE.get(name, planned), small(planned, **(LAW | changes))
    expected = run(system, problem, hyper)
    traced_for_a_gpu()
    time, infos, model = run(system, problem, hyper)
    np.testing.assert_allclose(time, expected[0], rtol=1e-12)
    of_cpu, event = expected[1].event, infos.event
    np.testing.assert_array_equal(event.clients, of_cpu.clients)
    np.testing.assert_array_equal(event.steps, of_cpu.steps)
    is_there = np.asarray(event.clients) >= 0
    np.testing.assert_array_equal(event.version[is_there], of_cpu.version[is_there])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), model, expected[2])
    assert is_there.any(axis=1).mean() > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["fedavg"], ["fedavg", "fedbuff", "oort"]))
def test_lanes_that_have_ended_do_not_go_on(
    name: str, regression: Callable, small: Callable, traced_for_a_gpu: Callable
) -> None:
    """What is drawn ahead for a later tick, such as a cohort of less energy, decides nothing."""
    planned, problem = fedjax_sim.SYSTEMS[name], regression()
    table = ClientTable(energy_step=np.arange(1.0, 8.0), energy_byte=np.arange(7.0)[::-1] / 100)
    changes = {"restart": "replaced"} if name == "fedbuff" else {}
    system = LIVE.get(name, planned)
    hyper = small(planned, runtime_law="runtime_exp", client_table=table, **changes)
    inputs: Any = {"seeds": range(6), "budget": fedjax_sim.Energy(900.0, most_ticks=40)}

    def sweep() -> Any:
        with jax.enable_x64(True):
            return fedjax_sim.sweep(system, problem, hyper, num_evals=2, **inputs)

    expected = sweep()
    traced_for_a_gpu()
    run = sweep()
    assert set(run.curves.ended.values.tolist()) == {"budget"}
    for timeline, of_cpu in zip(run.timelines, expected.timelines, strict=True):
        assert 0 < len(timeline.time) < 40
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), timeline, of_cpu)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_what_is_drawn_ahead_does_not_depend_on_how_many_ticks_there_are(
    implementation: str, regression: Callable, small: Callable, traced_for_a_gpu: Callable
) -> None:
    system, hyper = LIVE["fedavg"], small(fedjax_sim.SYSTEMS["fedavg"], **LAW)
    traced_for_a_gpu()
    with jax.default_prng_impl(implementation):
        runs = [
            fedjax_sim.sweep(
                system,
                regression(),
                hyper,
                seeds=[0],
                budget=fedjax_sim.Ticks(8),
                num_evals=number,
                layout=fedjax_sim.Layout(lanes_at_once=False, lane_devices=1, client_devices=1),
            )
            for number in (1, 4)
        ]
    jax.tree.map(np.testing.assert_array_equal, runs[0].timelines[0], runs[1].timelines[0])


def test_the_other_form_is_traced(traced_for_a_gpu: Callable) -> None:
    # Otherwise the tests above compare a program with itself.
    with opened.Machine("cpu").tracing():
        assert targets.is_for_cpu()
    traced_for_a_gpu()
    with opened.Machine("cpu").tracing():
        assert not targets.is_for_cpu()
