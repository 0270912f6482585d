"""The program of a run in a user's hands has the bits of `simulate`, for every system."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Bound, Event, Layout, System, bind
from fedjax_sim.core.types import LatentProblem
from tests.systems.conftest import Kind

ALONE = Layout(lanes_at_once=False, lane_devices=1, client_devices=1)
NUM_TICKS = 6
NUM_EVALS = 3


@pytest.fixture(scope="module")
def bound(system: System, kind: Kind, chosen: Callable) -> Bound:
    """The program of a short run."""
    return bind(system, kind.make(), chosen(), seed=3, budget=fedjax_sim.Ticks(NUM_TICKS))


@pytest.fixture(scope="module")
def run(system: System, kind: Kind, chosen: Callable) -> fedjax_sim.Run:
    """The same run by `simulate`."""
    options: dict[str, Any] = {
        "budget": fedjax_sim.Ticks(NUM_TICKS),
        "num_evals": NUM_EVALS,
        "layout": ALONE,
    }
    return fedjax_sim.simulate(
        system, kind.make(), chosen(), seed=3, keep=fedjax_sim.Keep(models=True), **options
    )


def totals(infos: Any) -> dict[str, int]:
    """Sum the numbers that steps report."""
    named = infos._asdict()
    return {name: np.sum(each) for name, each in named.items() if not isinstance(each, tuple)}


def assert_like(run: fedjax_sim.Run, bound: Bound, state: Any, infos: Any) -> None:
    """Compare a state at the end of a run, and what was reported, with the run, bit for bit.

    XLA fuses sums of expectation maximisation, and of VR-DIANA's gradients, in a loop in another
    way than in a program that has no loop, so that last bits may differ there.
    """
    assert_equal = equal_in(bound)
    jax.tree.map(assert_equal, bound.model(state), run.models)
    for name, total in totals(infos).items():
        np.testing.assert_array_equal(run.curves[name], total, err_msg=name)
    metrics = bound.evaluate(state)
    for name, value in metrics.items():
        assert_equal(value, run.curves[name.partition("[")[0]].isel(eval=-1), err_msg=name)


def equal_in(bound: Bound) -> Callable[..., None]:
    """Return how arrays of a system are compared."""
    is_rounded = bound.system.fit.learns is LatentProblem or bound.system.name == "vr_diana"
    return functools.partial(np.testing.assert_allclose, rtol=1e-6 if is_rounded else 0)


@pytest.mark.few(3)
@pytest.mark.of_each_kind(3, but=("langevin", "personal", "adapted"))
def test_a_loop_of_steps_is_the_run(bound: Bound, run: fedjax_sim.Run) -> None:
    """Each step is compiled; the events come one by one."""
    state, infos = bound.init(), []
    samples = [bound.model(state)]
    for t in range(bound.num_ticks):
        state, info = bound.step(state, bound.event(t))
        infos.append(info)
        if (t + 1) % (NUM_TICKS // NUM_EVALS) == 0:
            samples.append(bound.model(state))
    assert_like(run, bound, state, jax.tree.map(lambda *each: jnp.stack(each), *infos))
    kept = jax.tree.map(lambda *each: jnp.stack(each), *samples)
    jax.tree.map(equal_in(bound), kept, run.samples)


@pytest.mark.few(2)
@pytest.mark.of_each_kind(3, but=("langevin", "personal", "adapted", "periodic", "buffered"))
def test_a_scan_is_the_run(bound: Bound, run: fedjax_sim.Run) -> None:
    """Over all events in one call, and in a scan of one's own that is compiled as a whole."""
    assert_like(run, bound, *bound.run(bound.init()))

    @jax.jit
    def whole(bound: Bound, events: Event) -> tuple[Any, Any]:
        return jax.lax.scan(bound.step, bound.init(), events)

    assert_like(run, bound, *whole(bound, bound.events))


@pytest.mark.of_each_kind(3, but=("langevin", "personal", "adapted"))
def test_times_are_those_of_the_schedule(bound: Bound, run: fedjax_sim.Run) -> None:
    """Virtual time is on the host, in 64 bits."""
    assert isinstance(bound.time, np.ndarray)
    assert bound.time.dtype == "float64"
    if bound.system.live is not None:
        assert np.isnan(bound.time).all()
        state, infos = bound.run(bound.init())
        assert state.now.to_float64() == run.timelines[0].time[-1]
        np.testing.assert_array_equal(infos.event.clients, run.timelines[0].clients)
        return
    np.testing.assert_array_equal(bound.time, run.timelines[0].time)
    np.testing.assert_array_equal(bound.events.clients, run.timelines[0].clients)
