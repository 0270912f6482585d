"""What holds of every rule in every system: layouts, lanes, jit, empty slots, names, resumption.

All rules that a system's schedule allows are alternatives of one program, so that a system needs a
few programs. Messages are of one problem without noise, in which every client has one example.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Bound, Event, Layout, Ticks
from fedjax_sim.core.events import DRAWN, EMPTY
from fedjax_sim.core.types import System
from fedjax_sim.server.attacks import SignFlip
from fedjax_sim.server.rules import FLTrust, Krum, Median, Rule, rules_of_one_program
from fedjax_sim.timelines.live import Clock, Live, Received, Sizes, with_clock
from tests.server.test_robustness import (
    DIM,
    GROUPS,
    ONE_REPORT,
    SYSTEMS,
    every_system_but,
    models_of,
    quadratic,
    rules_for,
    run,
    settings_of,
)

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
"""Sums in another order differ by rounding, a hundred times as much after six ticks."""
LAYOUTS = {
    "lanes batched, a slot at a time": Layout(1, True, 1),
    "blocks that do not divide the slots, two devices": Layout(3, False, 2),
    "slots over two devices": Layout(2, True, 1, 2),
    "packed rows": Layout(None, True, 1, packed=True),
}
BY_SLOT = ("bucketing", "secure_sum")
"""Rules that draw for each slot."""


FEW = [Median(), Krum(assumed=1), FLTrust(examples=3)]
"""Rules that look at messages one number, all numbers, and all messages and the server's at once.
"""


def attacked(name: str, **changes: Any) -> Any:
    """Make settings with malicious clients, who are drawn for each seed."""
    return settings_of(name, attack=SignFlip(), **changes)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        pytest.param("fedbuff", FEW, marks=pytest.mark.slow),
        *(pytest.param(name, rules_for(name), marks=pytest.mark.slow) for name in SYSTEMS),
    ],
    ids=lambda value: value if isinstance(value, str) else "few" if value is FEW else "all",
)
def test_layouts_agree(name: str, rules: list[Rule]) -> None:
    """Lanes alone, batched, in blocks, split over devices and packed: rules see all messages."""
    options: dict[str, Any] = {
        "hyper": attacked(name),
        "settings": {"aggregator": rules_of_one_program(rules), "malicious": [0.0, 0.3]},
    }
    whole = run(name, **options, layout=Layout(7, False, 1))
    assert np.isfinite(models_of(whole)).all()
    # Rules differ from each other, but those that are the mean of one message.
    if name not in ONE_REPORT:
        assert len(np.unique(models_of(whole).round(4), axis=0)) > len(models_of(whole)) // 2
    for words, layout in LAYOUTS.items():
        other = run(name, **options, layout=layout)
        np.testing.assert_allclose(models_of(other), models_of(whole), **CLOSE, err_msg=words)
        np.testing.assert_array_equal(other.curves.needed, whole.curves.needed, err_msg=words)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_resumed_runs_are_whole(name: str, tmp_path: Path) -> None:
    """Bit for bit, for lanes of all rules."""
    swept = {"aggregator": rules_of_one_program(rules_for(name))}
    options: dict[str, Any] = {"hyper": attacked(name, malicious=0.3), "settings": swept}
    whole = run(name, **options, num_evals=3)
    for ticks in (4, 6):
        saved = fedjax_sim.Checkpoints(tmp_path, resume=True)
        found = run(name, **options, budget=Ticks(ticks), num_evals=2, checkpoints=saved)
    np.testing.assert_array_equal(models_of(found), models_of(whole))


def stepped(bound: Bound, rule: Rule, events: list[Event]) -> np.ndarray:
    """Take ticks under a rule: the model, `f[P]`."""
    chosen = bound.with_settings(aggregator=rule)
    state = chosen.init()
    for event in events:
        state, _ = chosen.step(state, event)
    return np.asarray(chosen.model(state)).ravel()


def of_slots(event: Event, change: Callable[[str, Any], Any]) -> Event:
    """Change the slots of a tick: fields with a slot axis, by their names and values."""
    fields = {name: leaf for name, leaf in event._asdict().items() if np.ndim(leaf)}
    changed = {name: change(name, leaf) for name, leaf in fields.items()}
    return event.within(facts=DRAWN, **changed)


@every_system_but("fedbuff")
@pytest.mark.slow
def test_slots_and_names_do_not_matter(name: str) -> None:
    """Slots in another order, an empty one among them, and clients with other numbers."""
    if SYSTEMS[name].live is not None:
        pytest.skip("a live clock makes the events: see the next test")
    system, hyper, problem = SYSTEMS[name], attacked(name, attackers=(1, 4)), quadratic(name)
    rules = rules_of_one_program([rule for rule in rules_for(name) if rule.name not in BY_SLOT])
    first = hyper.replace(aggregator=rules[0])
    bound = fedjax_sim.bind(system, problem, first, budget=Ticks(2), layout=Layout(8))
    events = [bound.event(t) for t in range(2)]
    slots = events[0].clients.size
    plain = np.array([stepped(bound, rule, events) for rule in rules])
    assert np.isfinite(plain).all() and np.abs(plain).max() > 1e-3

    def same(changed: list[Event], words: str) -> None:
        found = np.array([stepped(bound, rule, changed) for rule in rules])
        np.testing.assert_allclose(found, plain, **CLOSE, err_msg=words)

    order = np.random.default_rng(1).permutation(slots)
    same([of_slots(event, lambda _, leaf: leaf[order]) for event in events], "another order")

    def with_hole(field: str, leaf: Any) -> Any:
        return jnp.insert(leaf, 1, EMPTY if field == "clients" else 0)

    if name not in ONE_REPORT:
        same([of_slots(event, with_hole) for event in events], "an empty slot")
    if name in GROUPS:
        return  # Clients are in the group that their number says.
    new_name = np.random.default_rng(2).permutation(problem.counts.shape[0])
    old_name = np.argsort(new_name)
    renamed = dataclasses.replace(problem, centers=problem.centers[old_name])
    attackers = tuple(int(new_name[each]) for each in hyper.adversary.attackers)
    there = fedjax_sim.bind(
        system,
        renamed,
        first.replace(attackers=attackers),
        budget=Ticks(2),
        layout=Layout(8),
    )
    clients = [jnp.asarray(new_name, "int32")[event.clients] for event in events]
    moved = [
        event.within(facts=event.facts, clients=each)
        for event, each in zip(events, clients, strict=True)
    ]
    found = np.array([stepped(there, rule, moved) for rule in rules])
    drawn = [rule.chosen.needs_own() for rule in rules]  # Root data are other examples then.
    np.testing.assert_allclose(
        found[np.logical_not(drawn)], plain[np.logical_not(drawn)], **CLOSE, err_msg="names"
    )


def disordered(system: System, plain: Any, new_name: np.ndarray) -> System:
    """Give a live system's slots another order, with an empty one, and its clients other numbers.

    The clock knows the clients of the problem `plain`.
    """
    assert system.live is not None
    sizes_of, clock_of = system.live

    def sizes(hyper: Any) -> Sizes:
        plain = sizes_of(hyper)
        return plain._replace(slots=plain.slots + 1, is_full=False)

    def clock(problem: Any, hyper: Any) -> Clock:
        known, slots = clock_of(plain, hyper), sizes_of(hyper).slots
        source = np.random.default_rng(3).permutation(slots + 1)  # The last one is the empty slot.
        back = np.argsort(source)[:slots]
        new = jnp.append(jnp.asarray(new_name, "int32"), EMPTY)
        old = jnp.append(jnp.asarray(np.argsort(new_name), "int32"), EMPTY)

        def next_tick(key: Any, time: Any, state: Any) -> tuple[Any, Received]:
            time, found = known.next(key, time, state)
            clients, steps, version, weight = (
                jnp.append(leaf, jnp.asarray(empty, leaf.dtype))[source]
                for leaf, empty in zip(found[1:5], (EMPTY, 0, 0, 0), strict=True)
            )
            return time, found._replace(
                clients=new[clients], steps=steps, version=version, weight=weight
            )

        def after(key: Any, time: Any, event: Event, state: Any, seen: Any) -> Any:
            event = of_slots(event, lambda name, leaf: leaf[back])
            event = event.within(facts=event.facts, clients=old[event.clients])
            seen = jax.tree.map(lambda leaf: leaf[back], seen)
            return known.after(key, time, event, state, seen)

        return known._replace(next=next_tick, after=after)

    return with_clock(system, Live(sizes, clock))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SYSTEMS if SYSTEMS[name].live is not None])
def test_slots_and_names_of_a_live_system_do_not_matter(name: str) -> None:
    problem = quadratic(name)
    rules = [rule for rule in rules_for(name) if rule.name not in BY_SLOT and not rule.needs_own()]
    hyper = attacked(name, attackers=(1, 4))
    swept: dict[str, Any] = {"settings": {"aggregator": rules_of_one_program(rules)}}
    plain = run(name, hyper=hyper, **swept)
    new_name = np.random.default_rng(2).permutation(problem.counts.shape[0])
    attackers = tuple(int(new_name[each]) for each in hyper.adversary.attackers)
    other = fedjax_sim.sweep(
        disordered(SYSTEMS[name], problem, new_name),
        dataclasses.replace(problem, centers=problem.centers[np.argsort(new_name)]),
        hyper.replace(attackers=attackers),
        budget=Ticks(6),
        num_evals=2,
        **swept,
    )
    assert np.isfinite(models_of(plain)).all() and np.abs(models_of(plain)).max() > 1e-3
    np.testing.assert_array_equal(other.curves.time, plain.curves.time)
    np.testing.assert_allclose(models_of(other), models_of(plain), **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_jit_equals_no_jit(name: str) -> None:
    hyper = attacked(name, attackers=(1, 4), sampling="with_replacement")
    rules = rules_of_one_program(rules_for(name))
    first = hyper.replace(aggregator=rules[0])
    if name not in GROUPS:
        first = first.replace(local_steps=1)
    bound = fedjax_sim.bind(SYSTEMS[name], quadratic(name), first, budget=Ticks(1))
    event = bound.event(0)
    compiled = [stepped(bound, rule, [event]) for rule in rules]
    with jax.disable_jit():
        plain = [stepped(bound, rule, [event]) for rule in rules]
    np.testing.assert_allclose(plain, compiled, **CLOSE)
    assert np.shape(plain)[1] == DIM
