"""Schedules are drawn once for all lanes that share them, and stored without repetition."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

import fedjax_sim
from fedjax_sim import Plan
from fedjax_sim.clients import local_training
from fedjax_sim.core.batching import look_ahead
from fedjax_sim.core.settings import full_name, value_of
from fedjax_sim.core.types import Event, Facts
from fedjax_sim.engine.machine import user_code
from fedjax_sim.engine.machine.processes import hash_programs
from fedjax_sim.engine.planning import drawing
from fedjax_sim.engine.planning.drawing import Schedules, draw_timelines, read_timeline
from fedjax_sim.engine.planning.schedule import lay_out, without_repetition
from fedjax_sim.engine.shares import listed
from fedjax_sim.server.attacks import SignFlip
from fedjax_sim.server.rules import Mean, Median
from tests.engine.laid_out import events_of

SYSTEMS = fedjax_sim.SYSTEMS


@pytest.mark.parametrize(
    ("name", "is_read", "is_not_read"),
    [
        ("fedavg", ("rate_slow", "server_interact"), ("lr",)),
        ("fedbuff", ("rate_fast", "exponent"), ("lr", "server_lr")),
        ("langevin", ("rate_slow", "local_steps"), ("step_size", "temperature", "rho")),
    ],
)
def test_settings_that_a_timeline_reads(name: str, is_read: tuple, is_not_read: tuple) -> None:
    system = SYSTEMS[name]
    hyper = system.paper()
    reads = jax.tree.unflatten(jax.tree.structure(hyper), read_timeline(system, hyper).reads)
    found = {
        name: value_of(reads, full_name(system.Hyper, name)) for name in (*is_read, *is_not_read)
    }
    assert found == dict.fromkeys(is_read, True) | dict.fromkeys(is_not_read, False)


def test_lanes_that_share_a_schedule_draw_it_once(
    regression: Callable, small: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three learning rates, two waiting times and two seeds: twelve lanes, four schedules."""
    drawn: list[int] = []

    request = Schedules.request

    def listen(schedules: Schedules) -> Any:
        drawn.append(len(schedules.seeds))
        return request(schedules)

    monkeypatch.setattr(Schedules, "request", listen)
    system = SYSTEMS["fedbuff"]
    settings = {"lr": [0.02, 0.05, 0.1], "server_interact": [1.0, 12.0]}
    hyper = small(system, restart="after_interaction")
    run = fedjax_sim.sweep(
        system, regression(), hyper, seeds=[5, 2], settings=settings, budget=fedjax_sim.Ticks(4)
    )
    assert drawn == [4]
    times = np.stack([timeline.time for timeline in run.timelines]).reshape(3, 2, 2, 4)
    np.testing.assert_array_equal(times, np.broadcast_to(times[:1], times.shape))
    assert len(np.unique(times[0].reshape(4, -1), axis=0)) == 4


def test_schedules_drawn_in_several_calls_are_the_same(
    small: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven schedules in calls of at most two."""
    system = SYSTEMS["favano"]
    hyper = small(system)
    whole = draw_timelines(system, range(7), [hyper] * 7, 5)
    of_two = 2 * 5 * hyper.num_selected * drawing.BYTES_OF_A_SLOT
    monkeypatch.setattr(drawing, "DRAWN_TOGETHER", of_two)
    for ours, theirs in zip(draw_timelines(system, range(7), [hyper] * 7, 5), whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_full_participation_stores_nothing_per_tick_and_slot() -> None:
    """FA-LD with all of 50 clients: 30 schedules of 100 ticks take one row of slots."""
    system = SYSTEMS["langevin"]
    hyper = system.paper(num_clients=50)
    timelines, ticks = Schedules(system, range(30), [hyper] * 30, fedjax_sim.Ticks(100)).request()
    assert timelines.clients.strides[1] == 0
    schedule = lay_out(timelines, ticks, num_clients=50, num_evals=10)
    stored = schedule.stored
    assert stored.offset is None
    for leaf in (stored.clients, stored.steps, stored.staleness, stored.weight, stored.read):
        assert leaf.size == 50
    assert events_of(schedule).clients.shape == (30, 10, 10, 50)
    expected = hyper.local_steps * np.arange(100).reshape(10, 10, 1)
    np.testing.assert_array_equal(
        events_of(schedule).offset, np.broadcast_to(expected, (30, 10, 10, 50))
    )


@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "favano", "langevin", "hierarchical"])
@pytest.mark.parametrize(
    "budget", [{"budget": fedjax_sim.Ticks(12)}, {"budget": fedjax_sim.Time(40.0)}]
)
def test_the_device_finds_the_event_of_every_tick(
    name: str, budget: dict[str, Any], small: Callable
) -> None:
    """With and without ticks that pad short lanes."""
    system = SYSTEMS[name]
    hyper = system.fit.complete(small(system), None)
    timelines, ticks = Schedules(system, [0, 1, 2], [hyper] * 3, **budget).request()
    schedule = lay_out(timelines, ticks, num_clients=7, num_evals=4)
    num, num_evals, per_eval = schedule.shape
    found = jax.jit(
        jax.vmap(
            jax.vmap(
                jax.vmap(
                    lambda row, c, e: schedule.stored.event(row, c * per_eval + e, (c, e)),
                    (None, None, 0),
                ),
                (None, 0, None),
            ),
            (0, None, None),
        )
    )(jnp.arange(num), jnp.arange(num_evals), jnp.arange(per_eval))
    for field, ours, theirs in zip(Event._fields, found, events_of(schedule), strict=True):
        np.testing.assert_array_equal(ours, theirs.astype(ours.dtype), err_msg=field)


def test_axes_along_which_nothing_changes_are_kept_once() -> None:
    steps = np.arange(5)
    assert without_repetition(np.broadcast_to(steps, (2, 3, 5))).shape == (1, 1, 5)
    by_tick = np.broadcast_to(np.arange(3)[:, None], (2, 3, 5))
    assert without_repetition(by_tick).shape == (1, 3, 5)
    by_lane = np.broadcast_to(np.arange(2)[:, None, None], (2, 3, 5))
    assert without_repetition(by_lane).shape == (2, 1, 5)


@pytest.mark.parametrize("most_steps", [None, 1, 4])
def test_what_is_drawn_ahead_is_what_each_step_draws(most_steps: int | None) -> None:
    """Keys too. Too large a table is not kept."""

    def draw(q: jax.Array) -> tuple[jax.Array, jax.Array]:
        return 10 * q + jnp.arange(3), jax.random.fold_in(jax.random.key(3), q)

    ahead = look_ahead(draw, most_steps)
    assert (ahead is draw) == (most_steps is None)
    for q in range(most_steps or 3):
        numbers, key = ahead(jnp.int32(q))
        expected, expected_key = draw(jnp.int32(q))
        np.testing.assert_array_equal(numbers, expected)
        np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(expected_key))
    assert look_ahead(draw, 2**20) is draw


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"static_trips": True},
        {"static_trips": True, "slots_at_once": 1},
        pytest.param({"static_trips": True, "slots_at_once": 2}, marks=pytest.mark.slow),
        {"narrow": 8},
        pytest.param({"slots_at_once": 1}, marks=pytest.mark.slow),
        {"static_trips": True, "slots_at_once": 4, "facts": Facts(all_filled=True, most_steps=5)},
    ],
)
def test_what_is_known_before_compiling_changes_no_result(
    changes: dict[str, Any], regression: Callable
) -> None:
    """Ragged steps, one of them 0; two examples of each client at every step."""
    problem = regression()
    hyper = SYSTEMS["fedavg"].paper(num_clients=7, num_selected=4, batch_size=2, lr=0.05)
    steps = jnp.array([3, 0, 5, 1])
    event = Event(
        0, jnp.array([4, 0, 6, 2]), steps, 0 * steps, 0.0 * steps, 2 * steps, 0 * steps, 0
    )
    start = jnp.array([0.5, -1.0, 2.0])

    def ends(facts: Facts = Facts(), **plan: Any) -> Any:
        train = local_training(problem, hyper, Plan(slots_at_once=4)._replace(**plan))
        tick = event.within(facts=facts)
        return jax.jit(lambda: train(jax.random.key(1), tick, start=start))()

    plain, work = ends()
    models, counted = ends(**{"facts": Facts(most_steps=5), **changes})
    np.testing.assert_allclose(models, plain, rtol=1e-6)
    np.testing.assert_array_equal(models[1], start)
    assert int(counted.needed) == int(work.needed) == 9
    runs_its_own_steps = changes == {"slots_at_once": 1}
    assert int(counted.executed) == (9 if runs_its_own_steps else 20)


class Merged(SimpleNamespace):
    """A program as JAX 0.11 and later have them: with constants, and its own body."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    jaxpr = property(lambda self: self)


def merged(value: Any) -> Any:
    """Convert a program, and those inside it."""
    if isinstance(value, tuple):
        return tuple(map(merged, value))
    if not isinstance(value, Jaxpr | ClosedJaxpr):
        return value
    body = getattr(value, "jaxpr", value)
    equations = [
        SimpleNamespace(
            primitive=each.primitive,
            invars=each.invars,
            outvars=each.outvars,
            params={name: merged(param) for name, param in each.params.items()},
        )
        for each in body.eqns
    ]
    consts = getattr(value, "consts", ())
    variables = {name: getattr(body, name) for name in ("constvars", "invars", "outvars")}
    return Merged(eqns=equations, consts=consts, **variables)


@pytest.mark.parametrize("is_merged", [False, True], ids=["of this JAX", "one class"])
def test_programs_are_told_apart_by_their_constants(
    is_merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by those of a program inside; names, and the order of equal traces, do not matter.

    JAX before 0.11 has a class for programs without constants and one for those with them.
    """
    if is_merged:
        monkeypatch.setattr(user_code, "Jaxpr", Merged)
        monkeypatch.setattr(user_code, "ClosedJaxpr", Merged)

    def told(table: np.ndarray, factor: float = 2.0) -> tuple[str, int]:
        def step(carry: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return carry + jnp.asarray(table).sum(), carry * factor

        traced = jax.jit(lambda x: jax.lax.scan(step, x, None, 3)).trace(1.0)
        program = merged(traced.jaxpr) if is_merged else traced.jaxpr
        return hash_programs(traced.lower()), user_code.number_of_program(program)

    table = np.arange(2000.0, dtype="float32")
    changed = table.copy()
    changed[1000] += 1
    assert told(table) == told(table.copy())
    for found in zip(told(table), told(changed), told(table, 3.0), strict=True):
        assert len({*found}) == 3


def test_schedules_are_checked_with_the_program_that_the_sweep_draws_with(
    regression: Callable, small: Callable, compiled: list[str], tmp_path: Path
) -> None:
    system = SYSTEMS["favano"]
    grid: dict[str, Any] = {
        "seeds": 3,
        "settings": {"lr": [0.1, 0.2]},
        "budget": fedjax_sim.Ticks(41),
    }
    given = system, regression(), small(system)
    for checkpoint in (None, fedjax_sim.Checkpoints(tmp_path)):
        listed(*given, **grid).check_schedules()
        assert compiled.count("jit(_draw)") == 1
        fedjax_sim.sweep(*given, **grid, checkpoints=checkpoint)
        assert compiled.count("jit(_draw)") == 1


def test_settings_that_only_learning_reads_share_the_program_that_draws(
    small: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other trees of settings, of other numbers of numbers; a timeline's own are other programs."""
    monkeypatch.setattr(drawing, "_programs", deque())
    drawing._facts_of.cache_clear()  # All are traced between two clearings of JAX's caches.
    fedbuff = SYSTEMS["fedbuff"]

    def drawn(**changes: Any) -> Any:
        return drawing.draw_timelines(fedbuff, [3], [small(fedbuff, **changes)], 5)

    plain = drawn()
    for changes in ({"aggregator": Median()}, {"attack": SignFlip()}, {"lr": 0.2}):
        jax.tree.map(np.testing.assert_array_equal, drawn(**changes), plain)
    assert len(drawing._programs) == 1
    drawn(restart="fresh")
    assert len(drawing._programs) == 2


def test_programs_with_callbacks_are_not_shared(small: Callable) -> None:
    """Their texts do not say which function is called, which may depend on a setting."""
    fedavg, called = SYSTEMS["fedavg"], []

    def timeline(key: Any, hyper: Any, num_ticks: int) -> Any:
        name = hyper.aggregator.name
        jax.debug.callback(lambda: called.append(name))
        return fedavg.timeline(key, hyper, num_ticks)

    changed = fedavg._replace(timeline=timeline)
    for rule in (Mean(), Median()):
        drawing.draw_timelines(changed, [3], [small(fedavg, aggregator=rule)], 5)
        jax.effects_barrier()
    assert set(called) == {"mean", "median"}
