"""A clock that a user wrote wrongly gets one sentence, before anything learns."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Algorithm, Event, Plan, System, Timeline
from fedjax_sim.core.settings import Above0, ConfigError, Count, setting, struct
from fedjax_sim.core.types import Messages, Work
from fedjax_sim.engine.program import prepare
from fedjax_sim.problems import Quadratic
from fedjax_sim.timelines import checks
from fedjax_sim.timelines.checks import check_values

PROBLEM = Quadratic.of(np.ones((7, 2), "float32"), start=0.0)


@struct
class Hyper:
    """Settings of visits."""

    num_clients: Count = setting(7, "Number of clients.")
    lr: Above0 = setting(0.1, "Learning rate.")


def visits(key: jax.Array, hyper: Hyper, num_ticks: int) -> Timeline:
    """Visit the clients in the order of their numbers, one per unit of time."""
    tick = jnp.arange(num_ticks)
    slots = tick[:, None].astype("int32")
    one = jnp.ones_like(slots)
    return Timeline(tick + 1.0, slots % 7, one, slots, one.astype(float), slots + 1)


def algorithm(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm[jax.Array, Work]:
    def step(key: jax.Array, model: jax.Array, event: Event) -> tuple[jax.Array, Work]:
        return model + hyper.lr, Work(jnp.int32(1), jnp.int32(1))

    return Algorithm(problem.init, step, model=lambda model: model)


VISITS = System("visits", Hyper, visits, algorithm)


def run(timeline: Callable[..., Any], **fields: Any) -> fedjax_sim.Run:
    system = VISITS._replace(timeline=timeline, **fields)
    return fedjax_sim.simulate(system, PROBLEM, budget=fedjax_sim.Ticks(9))


def changed(**fields: Callable[[Timeline], Any]) -> Callable[..., Timeline]:
    """Change fields of the timeline."""

    def timeline(key: jax.Array, hyper: Hyper, num_ticks: int) -> Timeline:
        right = visits(key, hyper, num_ticks)
        return right._replace(**{name: change(right) for name, change in fields.items()})

    return timeline


def parts_of_steps(timeline: Timeline, tick: int) -> Timeline:
    """Let one tick have half a step more."""
    return timeline._replace(steps=timeline.steps + (timeline.time == tick + 1)[:, None] / 2)


def silent(timeline: Timeline) -> Timeline:
    """Empty the slot of the tick at time 3, and put nonsense there."""
    there = (timeline.time == 3)[:, None]
    fields = {
        name: jnp.where(there, -9.5, getattr(timeline, name)) for name in ("steps", "version")
    }
    return timeline._replace(clients=jnp.where(there, -1, timeline.clients), **fields)


def test_a_known_timeline_may_have_more_ticks_than_are_asked_for() -> None:
    found = run(lambda key, hyper, num_ticks: visits(key, hyper, 20))
    np.testing.assert_array_equal(found.models, run(visits).models)
    found = run(lambda key, hyper, num_ticks: parts_of_steps(visits(key, hyper, 20), 15))
    np.testing.assert_array_equal(found.models, run(visits).models)


def test_empty_slots_and_ticks_that_never_happen_may_hold_anything() -> None:
    right = run(visits)
    found = run(lambda *given: silent(visits(*given)))
    np.testing.assert_array_equal(found.models, right.models)
    leaves = visits(jax.random.key(0), Hyper(), 6)
    timeline = Timeline(*(np.asarray(leaf)[None].copy() for leaf in silent(leaves)))
    timeline.time[0, 3:] = np.inf, np.inf, np.nan
    timeline.clients[0, 4] = 99
    check_values(VISITS, timeline, 6, 7)
    timeline.clients[0, 2] = 99
    with pytest.raises(ConfigError, match="clients of tick 2 in slot 0 of the timeline is 99"):
        check_values(VISITS, timeline, 6, 7)


def visited_twice(key: jax.Array, hyper: Hyper, num_ticks: int) -> Timeline:
    """Visit a client and its successor, but in the fifth tick one of them twice."""
    timeline = visits(key, hyper, num_ticks)
    two = jax.tree.map(lambda leaf: jnp.tile(leaf, 2) if leaf.ndim == 2 else leaf, timeline)
    second = jnp.where(jnp.arange(num_ticks) == 4, two.clients[:, 0], (two.clients[:, 0] + 1) % 7)
    return two._replace(clients=two.clients.at[:, 1].set(second))


def test_a_client_has_one_slot_of_a_tick_unless_a_system_takes_more() -> None:
    """What is kept for each client would be written in no fixed order."""
    with pytest.raises(ConfigError, match="client 4 of tick 4 of the timeline is 'in several sl"):
        run(visited_twice)
    run(visited_twice, can_repeat=True)
    # Empty slots, and ticks that never happen, are nobody's.
    run(lambda *given: visited_twice(*given)._replace(clients=jnp.full((given[2], 2), -1)))
    timeline = Timeline(*map(np.array, visited_twice(jax.random.key(0), Hyper(), 9)))
    with pytest.raises(ConfigError, match="client 4 of tick 4"):
        fedjax_sim.bind(VISITS, PROBLEM, Hyper(), budget=timeline)
    timeline.time[4:] = np.inf
    fedjax_sim.bind(VISITS, PROBLEM, Hyper(), budget=timeline)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "a mapping": (
        lambda *given: visits(*given)._asdict(),
        "result of timeline is 'dict', but must be a fedjax_sim.Timeline",
    ),
    "no time for each tick": (
        changed(time=lambda t: t.time[:-1]),
        r"time of the timeline is 'float64\[1\]', but must be f\[T\] for T ticks of S slots, here",
    ),
    "no slots": (
        changed(clients=lambda t: t.clients[:, 0]),
        r"time of the timeline is 'float64\[2\]', but must be f\[T\] for T ticks of S slots\.",
    ),
    "other slots": (
        changed(weight=lambda t: jnp.ones((2, 3))),
        r"weight .* is 'float64\[2, 3\]', but must be f\[T, S\] .*, here T = 2 and S = 1 by cl",
    ),
    "a weight that is true": (
        changed(weight=lambda t: t.weight > 0),
        r"weight of the timeline is 'bool\[2, 1\]', but must be f\[T, S\]",
    ),
    "too few ticks": (
        lambda key, hyper, num_ticks: visits(key, hyper, 5),
        "number of ticks of the timeline is 5, but must be at least 9, as asked",
    ),
    "back in time": (
        changed(time=lambda t: jnp.where(t.time == 5, 1.5, t.time)),
        "time of tick 4 of the timeline is 1.5, but must be at least 4.0",
    ),
    "a client too many": (
        changed(clients=lambda t: t.clients + 1),
        "clients of tick 6 in slot 0 of the timeline is 7, but must be from -1 to 6",
    ),
    "no client": (
        changed(clients=lambda t: t.clients - 2),
        "clients of tick 0 in slot 0 of the timeline is -2, but must be from -1 to 6",
    ),
    "steps back": (
        changed(steps=lambda t: -t.steps),
        "steps of tick 0 in slot 0 of the timeline is -1, but must be from 0",
    ),
    "half a step": (
        lambda *given: parts_of_steps(visits(*given), 4),
        "steps of tick 4 in slot 0 of the timeline is 1.5, but must be a whole number of 32 bits",
    ),
    "a client of many bits": (
        changed(clients=lambda t: t.clients + 2.0**32),
        r"clients of tick 0 in slot 0 of .* is 4294967296\.0, but must be a whole number of 32 b",
    ),
    "a version to come": (
        changed(version=lambda t: jnp.where(t.version == 4, 5, t.version)),
        "version of tick 4 in slot 0 of the timeline is 5, but must be from 0 to 4",
    ),
    "a version that is held too soon": (
        changed(holds=lambda t: t.holds + 1),
        "holds of tick 0 in slot 0 of the timeline is 2, but must be from 0 to 1",
    ),
    "a weight that is no number": (
        changed(weight=lambda t: t.weight * jnp.nan),
        "weight of tick 0 in slot 0 of the timeline is nan, but must be finite and at least 0",
    ),
}


@pytest.mark.parametrize("piece", [1, 2, 2**22])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_timeline_gets_one_sentence(
    name: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of ticks are right however many are looked at together."""
    monkeypatch.setattr(checks, "PIECE", piece)
    timeline, sentence = WRONG[name]
    with pytest.raises(ConfigError, match=sentence) as caught:
        run(timeline)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("together", [1, 25, 2**20])
def test_messages_are_checked_tick_by_tick(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tick of every schedule once, none of no tick; a refusal names the lane."""
    monkeypatch.setattr(prepare, "CHECKED_TOGETHER", together)
    seen: list[int] = []

    def shifted(key: jax.Array, hyper: Hyper, num_ticks: int) -> Timeline:
        timeline = visits(key, hyper, num_ticks)
        return timeline._replace(clients=(timeline.clients + jax.random.randint(key, (), 0, 7)) % 7)

    class Refusing(Messages):
        def check(self, hyper: Any, timeline: Timeline) -> None:
            assert timeline.clients.shape[1:] == (1,) and timeline.clients.size > 0
            seen.append(len(timeline.time))
            if hyper.lr > 1:
                first = timeline.clients[0, 0]
                raise ConfigError("lr", hyper.lr, f"at most 1 with {first} first, {len(seen)}")

    system = VISITS._replace(timeline=shifted, messages=Refusing())
    swept = partial(fedjax_sim.sweep, system, PROBLEM, seeds=5, budget=fedjax_sim.Ticks(10))
    run = swept(Hyper())
    assert len({int(each.clients[0, 0]) for each in run.timelines}) > 1
    assert sum(seen) == 50
    with pytest.raises(ConfigError, match=r"in a lane with seed 0, one of 5 seeds"):
        swept(Hyper(lr=2.0))
