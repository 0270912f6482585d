"""Live rounds and tasks end a lane with a sentence instead of going on with wrong times."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Ticks
from fedjax_sim.core.types import EMPTY, Key, System
from fedjax_sim.systems import fedavg, fedbuff
from fedjax_sim.timelines.live import (
    Asked,
    Choosing,
    Clock,
    Live,
    Replacing,
    Selector,
    Sizes,
    live_rounds,
    live_tasks,
    with_clock,
)


@pytest.fixture
def simulate(regression: Callable, small: Callable) -> Callable[..., fedjax_sim.Run]:
    """Return a function that runs a live system for a few ticks."""

    def run(system: System, budget: Any = Ticks(6), **changes: Any) -> fedjax_sim.Run:
        like = fedbuff.system if system.can_repeat else fedavg.system
        law = {"runtime_law": "runtime_constant", "rate_fast": 1.0, "slow_fraction": 0.0}
        given = law | {"rate_spread": 0.0, "server_interact": 0.0} | changes
        hyper = small(like, **given)
        return fedjax_sim.simulate(system, regression(), hyper, budget=budget, num_evals=1)

    return run


def rounds_of(*, sizes: Sizes = Sizes(4, 9), most_steps: int | None = None, **asked: Any) -> System:
    """Make rounds of the first four clients. asked: other fields of `Asked`."""

    def clock(problem: Any, hyper: Any) -> Clock:
        def select(key: Key, now: Choosing) -> Asked:
            return Asked(jnp.arange(hyper.num_selected))._replace(**asked)

        sizes = {"num_used": hyper.num_selected, "most_steps": most_steps}
        return live_rounds(hyper, Selector(select), **sizes)

    return with_clock(fedavg.system, Live(lambda hyper: sizes, clock), name="own_rounds")


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (jnp.arange(0), r"clients that select asks is 'int32\(0,\)', but must be whole numbers"),
        (jnp.ones(4), r"clients that select asks is 'float32\(4,\)', but must be whole numbers"),
        (jnp.ones((2, 2), int), "whole numbers of shape"),
    ],
)
def test_clients_that_are_none(clients: Any, words: str, simulate: Callable) -> None:
    with pytest.raises(fedjax_sim.ConfigError, match=words):
        simulate(rounds_of(clients=clients))


def test_a_choice_that_is_no_choice(simulate: Callable) -> None:
    def clock(problem: Any, hyper: Any) -> Clock:
        return live_rounds(hyper, Selector(lambda key, now: jnp.arange(4)), num_used=4)  # type: ignore

    system = with_clock(fedavg.system, Live(lambda hyper: Sizes(4, 9), clock), name="no_choice")
    with pytest.raises(
        fedjax_sim.ConfigError, match=r"what select returns is .*, but must be an Asked"
    ):
        simulate(system)


@pytest.mark.few(1)
@pytest.mark.parametrize("time_of", ["step", "update"])
def test_more_steps_than_were_announced(
    time_of: str, simulate: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five local steps are what a clock announces if it says nothing; times of more are unknown."""
    steps = jnp.array([9, 5, 5, 5])
    run = simulate(rounds_of(steps=steps), time_of=time_of)
    assert run.curves.ended == "steps" and run.curves.ticks[-1] == 0
    assert "more steps than its sizes or its `most_steps` say" in capsys.readouterr().err
    right = simulate(rounds_of(steps=steps, most_steps=9), time_of=time_of)
    assert right.curves.ended == "ticks"
    assert time_of == "update" or right.curves.time[-1] == pytest.approx(6 * 9, rel=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("deadline", [np.nan, -5.0, 0.0])
@pytest.mark.parametrize("server_interact", [0.0, 9.0])
def test_deadlines_with_which_nothing_happens(
    deadline: float, server_interact: float, simulate: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a deadline of 0 time may pass all the same, and with work that takes none all report."""
    rounds = rounds_of(deadline=jnp.float32(deadline))
    run = simulate(rounds, server_interact=server_interact)
    if deadline == 0 and server_interact:
        assert run.curves.ended == "ticks" and run.curves.time[-1] == 6 * 9.0
        return
    assert run.curves.ended == "time" and run.curves.ticks[-1] == 0
    assert "a time or deadline that is nan" in capsys.readouterr().err


@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [EMPTY] * 4])
def test_deadlines_of_0_with_which_something_happens(
    clients: list[int], simulate: Callable
) -> None:
    """Work of no steps is in at once; a server that asks nobody may take its time for that."""
    takes, deadline = jnp.float32(clients[0] == EMPTY), jnp.float32(0)
    steps = jnp.zeros(4, "int32")
    run = simulate(
        rounds_of(clients=jnp.array(clients), steps=steps, deadline=deadline, takes=takes)
    )
    assert run.curves.ended == "ticks" and run.curves.time[-1] == 6 * float(takes)


@pytest.mark.few(2)
@pytest.mark.parametrize(("rate", "steps"), [(10.0, 3), (10.0, 7), (3.0, 7), (1 / 0.7, 1)])
def test_times_that_are_exactly_those_of_deadlines_and_budgets(
    rate: float, steps: int, simulate: Callable
) -> None:
    """Whatever the last bit of a float of 32: reports are in, and no eleventh round begins."""
    length = steps / rate
    own = {"rate_fast": rate, "local_steps": steps, "deadline": length}
    budget = fedjax_sim.Time(10 * length, most_ticks=20)
    run = simulate(rounds_of(sizes=Sizes(4, steps)), budget, **own)
    assert run.curves.ended == "budget"
    assert run.timelines[0].clients.tolist() == [[0, 1, 2, 3]] * 10
    np.testing.assert_allclose(run.curves.time[-1], 10 * length, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("drop_rate", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
@pytest.mark.parametrize("chosen", ["own", "idle", "busy", "nobody"])
def test_a_client_has_one_task_at_a_time(
    chosen: str, drop_rate: float, simulate: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    def choose(key: Key, now: Replacing) -> jax.Array:
        at_work = now.tasks.flights.client
        found = {
            "own": now.own,
            "idle": now.idle().argmax(),
            "busy": jnp.where(at_work == now.own, EMPTY, at_work).max(),
            "nobody": jnp.int32(-1),
        }
        return jnp.where(now.tasks.event < 4, now.own, found[chosen])

    def clock(problem: Any, hyper: Any) -> Clock:
        return live_tasks(hyper, num_tasks=3, num_used=2, choose=choose)

    own = with_clock(
        fedbuff.system, Live(lambda hyper: Sizes(2, hyper.local_steps, 3), clock), name="own_tasks"
    )
    run = simulate(own, drop_rate=drop_rate)
    if chosen in ("own", "idle"):
        assert run.curves.ended == "ticks" and run.curves.ticks[-1] == 6
        return
    assert run.curves.ended == "clients" and 0 < run.curves.ticks[-1] <= 2
    assert "does not exist, or that is busy" in capsys.readouterr().err
