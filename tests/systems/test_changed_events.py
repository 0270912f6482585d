"""A step may change who takes part, with how many steps and which weight: all of it is obeyed.

Dimension letters: `T` ticks, `S` slots.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Event, Layout, Plan, System, Timeline
from fedjax_sim.clients import local_training
from fedjax_sim.core.events import DRAWN, PackedRows
from fedjax_sim.core.settings import known_values
from fedjax_sim.core.types import Algorithm, Facts, LatentProblem
from fedjax_sim.engine.planning.drawing import draw_timelines
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.server.privacy import parse_privacy
from fedjax_sim.timelines.live import replayed as replayed_live
from tests.conftest import slow_but
from tests.systems.conftest import COMPRESSED, Kind
from tests.systems.hand_made import CLIENTS, ONE_BY_ONE, events_of, some_events, without_scratch

KEY = jax.random.key(1)
STEPS = 3
"""Local steps of every slot in the schedule."""
KNOWN = DRAWN._replace(all_filled=True, most_steps=STEPS, same_steps=True)
NEW_CLIENTS = [[0, -1, 2, 3], [-1, -1, -1, -1], [3, 2, 6, 1]]
NEW_STEPS = [[5, 3, 1, 0], [3, 3, 3, 3], [4, 3, 2, 3]]
NEW_WEIGHTS = [[0.3, 0.0, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.2, 0.1]]
NEEDED = 5 + 1 + 4 + 3 + 2 + 3

PLANS = {
    "an accelerator": (Plan(rows=3, slots_at_once=4, static_trips=True), KNOWN),
    "in turn": (Plan(rows=3, slots_at_once=1), KNOWN),
    "in blocks": (Plan(rows=3, slots_at_once=3), KNOWN._replace(most_steps=None, same_steps=False)),
    "packed": (
        Plan(rows=3, slots_at_once=4, static_trips=True),
        KNOWN._replace(packed=PackedRows(4, 4, 4, 4)),
    ),
}


@pytest.fixture(scope="module")
def replayed(system: System, kind: Kind, chosen: Callable) -> Callable[..., Any]:
    """Return a function that replays three ticks, and may change each of them in the step."""
    problem = kind.make()
    grouped = {"num_groups": 7} if "hierarchical" in system.name else {}
    hyper = chosen(**grouped)
    shape = (-1, 1) if system.name in ONE_BY_ONE else (3, 4)

    def run(plan: Plan, facts: Facts, *, is_changed: bool) -> tuple[Any, Any]:
        drawn = events_of(system, CLIENTS, np.full((3, 4), STEPS)).within(facts=facts)
        new = {
            "clients": jnp.asarray(NEW_CLIENTS, "int32").reshape(shape),
            "steps": jnp.asarray(NEW_STEPS, "int32").reshape(shape),
            "weight": jnp.asarray(NEW_WEIGHTS, "float32").reshape(shape),
        }
        if system.fit.learns is LatentProblem:
            del new["steps"]
        if not is_changed:
            drawn, new = drawn.within(facts=facts, **new).tidied(), {}
        algorithm = system.algorithm(problem, known(hyper), plan)

        def step(state: Any, tick: tuple[Event, Any]) -> Any:
            event, changes = tick
            return algorithm.step(KEY, state, event._replace(**changes) if changes else event)

        return jax.jit(lambda: jax.lax.scan(step, algorithm.init(KEY), (drawn, new)))()

    return run


def known(hyper: Any) -> Any:
    """Return settings as the engine traces them."""
    traced = jax.tree.map(jnp.float32, hyper)
    return traced.replace(**dict(known_values(hyper)))


@pytest.fixture(scope="module")
def scheduled(system: System, replayed: Callable) -> tuple[Any, Any]:
    """The replay of a schedule that has the new values, of which nothing else is known.

    FA-LD numbers its draws by tick and step where a step changes the number of steps, and by step
    alone in a schedule, so here it is told that steps were changed.
    """
    facts = DRAWN.without(["steps"] if system.name == "langevin" else [])
    return replayed(Plan(rows=3, slots_at_once=4), facts, is_changed=False)


@pytest.mark.few(2)
@pytest.mark.of_each_kind(6, but=("personal", "adapted"))
@pytest.mark.parametrize("name", PLANS)
def test_an_event_changed_in_the_step_is_the_same_event_in_the_schedule(
    system: System, kind: Kind, replayed: Callable, scheduled: tuple[Any, Any], name: str
) -> None:
    """More steps and fewer, a slot and then all slots emptied, other clients, other weights."""
    is_one_enough = not os.environ.get("FEDJAX_SIM_SLOW_TESTS")
    if name in ("in blocks", "packed") and system.name != "fedavgm" and is_one_enough:
        pytest.skip("slow; one system is enough: slots are mapped in one place")
    state, info = replayed(*PLANS[name], is_changed=True)
    expected, drawn = scheduled
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
        *map(without_scratch, (state, expected)),
    )
    np.testing.assert_array_equal(info.needed, drawn.needed)
    assert (np.asarray(info.executed) >= np.asarray(info.needed)).all()
    clients, is_em = np.asarray(NEW_CLIENTS), system.fit.learns is LatentProblem
    np.testing.assert_array_equal(info.event.clients.ravel(), clients.ravel())
    steps = np.where(clients >= 0, STEPS if is_em else NEW_STEPS, 0)
    np.testing.assert_array_equal(info.event.steps.ravel(), steps.ravel())
    assert int(info.needed[1 if info.needed.shape == (3,) else 4]) == 0
    # DIANA has no local steps.
    if not is_em and kind.evaluations == (1, 0) and system.name not in COMPRESSED:
        assert int(info.needed.sum()) == NEEDED


# The following run through the engine.

CHANGED = Layout(slots_at_once=4, lanes_at_once=True, lane_devices=1)
LAYOUTS = {
    "together": CHANGED,
    "in blocks": CHANGED._replace(slots_at_once=3),
    "in turn": Layout(1, lanes_at_once=False, lane_devices=1),
    "packed": Layout(lane_devices=1, packed=True),
    "over two devices": Layout(4, lanes_at_once=True, lane_devices=1, client_devices=2),
}
TICKS: dict[str, Any] = {"budget": fedjax_sim.Ticks(6), "num_evals": 3}
RUN: dict[str, Any] = {**TICKS, "seeds": 2}


def changed_by(system: System, change: Callable[[Event], dict[str, Any]]) -> System:
    """Return the system, whose step first changes its event."""

    def algorithm(problem: Any, hyper: Any, plan: Plan) -> Algorithm:
        bound = system.algorithm(problem, hyper, plan)
        return bound._replace(
            step=lambda key, state, event: bound.step(key, state, event._replace(**change(event)))
        )

    return system._replace(algorithm=algorithm)


def assert_equal_runs(found: Any, expected: Any) -> None:
    """Compare models, all that is counted, and schedules except for their times."""
    np.testing.assert_allclose(found.models, expected.models, rtol=1e-5, atol=1e-6)
    for name in ("needed", "local_steps", "uplink_bits", "downlink_bits", "staleness_mean"):
        np.testing.assert_array_equal(found.curves[name], expected.curves[name], err_msg=name)
    np.testing.assert_allclose(found.curves.loss, expected.curves.loss, rtol=1e-5)
    for mine, theirs in zip(found.timelines, expected.timelines, strict=True):
        for name in ("clients", "steps", "version", "weight"):
            leaves = getattr(mine, name), getattr(theirs, name)
            np.testing.assert_allclose(*leaves, rtol=1e-6, err_msg=name)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", slow_but(["together", "packed", "over two devices"], LAYOUTS))
@pytest.mark.parametrize("k", [0, 9])
def test_other_numbers_of_steps_are_done_and_counted(
    k: int, name: str, regression: Callable, small: Callable
) -> None:
    """Five steps in the schedule, none or nine in the step, on the same mini-batches."""
    if k == 0 and name != "together":
        pytest.skip("one layout is enough")
    fedavg, problem = fedjax_sim.SYSTEMS["fedavg"], regression()

    def change(event: Event) -> dict[str, Any]:
        return {"steps": jnp.full_like(event.steps, k), "offset": event.offset // 5 * k}

    run = partial(fedjax_sim.sweep, layout=LAYOUTS[name], **RUN)
    found = run(changed_by(fedavg, change), problem, small(fedavg, sampling="with_replacement"))
    assert (found.curves.needed == 6 * 4 * k).all()
    np.testing.assert_array_equal(found.curves.local_steps[0], [0, 8 * k, 16 * k, 24 * k])
    if k == 0:
        first = found.curves.loss.isel(eval=[0]).values
        np.testing.assert_array_equal(found.curves.loss, np.repeat(first, 4, axis=1))
        return
    hyper = small(fedavg, sampling="with_replacement", local_steps=k)
    expected = run(fedavg, problem, hyper)
    assert_equal_runs(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["fedbuff"], ["fedbuff", "favano", "fedavg", "quafl"]))
def test_other_clients_are_received_and_counted(
    name: str, regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """At the last tick one slot is empty, and another has client 6 with two steps.

    The schedule that has this from the beginning gives the same. So does a run in stretches of
    ticks with checkpoints, and what it returns when it is resumed after its end.
    """
    system, problem, hyper = fedjax_sim.SYSTEMS[name], regression(), small(fedjax_sim.SYSTEMS[name])

    def new(clients: Any, steps: Any, is_last: Any) -> tuple[Any, Any]:
        slots = jnp.broadcast_to(jnp.arange(clients.shape[-1]), clients.shape)
        others = jnp.where(slots == 1, -1, jnp.where(slots == 2, 6, clients))
        clients = jnp.where(is_last, others, clients)
        steps = jnp.where(is_last & (slots == 2), 2, steps)
        return clients, jnp.where(clients >= 0, steps, 0)

    def change(event: Event) -> dict[str, Any]:
        clients, steps = new(event.clients, event.steps, event.tick == 5)
        offset = jnp.broadcast_to(10 * event.tick, clients.shape)
        # The weight of the slot that is emptied goes to the others.
        weight = event.weight * jnp.where(event.tick == 5, 4 / 3, 1)
        return {"clients": clients, "steps": steps, "offset": offset, "weight": weight}

    def timeline(key: Any, hyper: Any, num_ticks: int) -> Timeline:
        drawn = system.timeline(key, hyper, num_ticks)
        is_last = (jnp.arange(num_ticks) == 5)[:, None]
        clients, steps = new(drawn.clients, drawn.steps, is_last)
        weight = jnp.where(clients >= 0, drawn.weight * jnp.where(is_last, 4 / 3, 1), 0)
        return drawn._replace(clients=clients, steps=steps, weight=weight)

    run = partial(fedjax_sim.sweep, layout=CHANGED, **RUN)
    found = run(changed_by(system, change), problem, hyper)
    same_batches = changed_by(
        system, lambda event: {"offset": jnp.broadcast_to(10 * event.tick, event.clients.shape)}
    )
    assert found.timelines[0].clients[5, 1] == -1
    assert (found.timelines[0].clients[5, 2], found.timelines[0].steps[5, 2]) == (6, 2)
    assert_equal_runs(found, run(same_batches._replace(timeline=timeline), problem, hyper))
    for resume in (False, True):
        saved = fedjax_sim.Checkpoints(tmp_path, every=0.0, resume=resume)
        again = run(changed_by(system, change), problem, hyper, checkpoints=saved)
        assert_equal_runs(again, found)


def test_nobody_takes_part_and_nothing_is_counted(regression: Callable, small: Callable) -> None:
    """Also where the schedule fills all slots. Ticks that pad a lane cannot be filled."""
    fedavg, problem = fedjax_sim.SYSTEMS["fedavg"], regression()
    nobody = changed_by(fedavg, lambda event: {"clients": jnp.full_like(event.clients, -1)})
    run = fedjax_sim.sweep(nobody, problem, small(fedavg), layout=CHANGED, **RUN)
    for name in ("needed", "executed", "local_steps", "uplink_bits", "downlink_bits"):
        assert not run.curves[name].any(), name
    assert np.isnan(run.curves.staleness_mean).all()
    first = run.curves.loss.isel(eval=[0]).values
    np.testing.assert_array_equal(run.curves.loss, np.repeat(first, 4, axis=1))

    everybody = changed_by(fedavg, lambda event: {"clients": jnp.arange(4), "steps": 1})
    run = fedjax_sim.sweep(
        everybody,
        problem,
        small(fedavg),
        settings={"rate_slow": [1 / 16, 1 / 2]},
        layout=CHANGED,
        budget=fedjax_sim.Time(150.0),
    )
    ticks = run.curves.ticks.isel(eval=-1)
    assert len(np.unique(ticks)) == 2
    np.testing.assert_array_equal(run.curves.needed, 4 * ticks)


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", slow_but([True], [False, True]))
@pytest.mark.parametrize("name", slow_but(["oort"], ["fedavg", "oort"]))
def test_members_of_a_family_may_change_their_events(
    name: str, is_packed: bool, regression: Callable, small: Callable
) -> None:
    """Rates are batched. Who takes part depends on the model, so it differs between the rates."""
    system, problem = fedjax_sim.SYSTEMS[name], regression()

    def algorithm(problem: Any, hyper: Any, plan: Plan) -> Algorithm:
        bound = system.algorithm(problem, hyper, plan)

        def step(key: Any, state: Any, event: Event) -> Any:
            is_away = (jnp.arange(4) == 1) & (state.server.sum() > hyper.lr)
            clients = jnp.where(is_away, -1, event.clients)
            return bound.step(key, state, event._replace(clients=clients))

        return bound._replace(step=step)

    changed, rates = system._replace(algorithm=algorithm), [0.02, 0.05, 0.1]
    layout = Layout(packed=True, lane_devices=1) if is_packed else Layout(lane_devices=1)
    run = partial(
        fedjax_sim.sweep, changed, problem, small(system), layout=layout, budget=fedjax_sim.Ticks(4)
    )
    together = run(settings={"lr": rates})
    for i, rate in enumerate(rates):
        alone = run(settings={"lr": [rate]}, lanes=[0])
        np.testing.assert_allclose(together.models[i], alone.models[0], rtol=1e-5)
        assert int(together.curves.needed[i, 0]) == int(alone.curves.needed[0])
    assert (together.curves.executed >= together.curves.needed).all()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name",
    slow_but(
        ["fedavg", "mimelite", "feddyn", "langevin"],
        ["fedavg", "fedprox", "mimelite", "feddyn", "langevin", "fedopt"],
    ),
)
def test_missing_weight_moves_no_model(name: str, small: Callable) -> None:
    """Of clients that are at the optimum already, one is left out and another's weight halved.

    So it is on the schedule that this makes, planned or live.
    """
    system, problem = fedjax_sim.SYSTEMS[name], Quadratic.of(np.full((7, 2), 10.0), start=10.0)
    quiet = {"temperature": 0.0} if name == "langevin" else {}

    def change(event: Event) -> dict[str, Any]:
        slots = jnp.arange(event.clients.shape[0])
        weight = jnp.where(slots == 2, event.weight / 2, event.weight)
        return {"clients": jnp.where(slots == 1, -1, event.clients), "weight": weight}

    hyper = small(system, **quiet)
    run = fedjax_sim.simulate(changed_by(system, change), problem, hyper, **TICKS)
    np.testing.assert_allclose(run.models, [10.0, 10.0], rtol=1e-5)
    [schedule] = run.timelines
    assert (schedule.weight.sum(axis=1) < 0.9).all()
    for again in (system, replayed_live(system, schedule)):
        budget = TICKS["budget"] if again.live else schedule
        bound = fedjax_sim.bind(again, problem, hyper, budget=budget)
        state, _ = bound.run(bound.init())
        np.testing.assert_allclose(bound.model(state), [10.0, 10.0], rtol=1e-5)


def test_weights_and_clients_that_differ_are_told(regression: Callable, small: Callable) -> None:
    """All negative numbers stand for nobody, older versions are sent whole, weights are kept."""
    system, problem = fedjax_sim.SYSTEMS["fedbuff"], regression()
    hyper = small(system, downlink=parse_compressor("top_k:kept=1"))

    def change(event: Event) -> dict[str, Any]:
        return {"clients": jnp.where(jnp.arange(4) == 1, -7, 0), "weight": event.weight / 3}

    run = fedjax_sim.simulate(changed_by(system, change), problem, hyper, **TICKS)
    (timeline,) = run.timelines
    np.testing.assert_array_equal(timeline.clients, np.tile([0, -1, 0, 0], (6, 1)))
    drawn = draw_timelines(system, [0], [hyper], 6).weight[0]
    np.testing.assert_allclose(timeline.weight, [1 / 3, 0, 1 / 3, 1 / 3] * drawn, rtol=1e-6)
    assert (np.diff(run.curves.downlink_bits) > 0).all()


def test_a_lane_that_is_stopped_tells_only_what_happened(
    regression: Callable, small: Callable
) -> None:
    system = fedjax_sim.SYSTEMS["fedbuff"]
    nobody = changed_by(system, lambda event: {"clients": -1})
    run = fedjax_sim.sweep(
        nobody,
        regression(),
        small(system),
        watch=fedjax_sim.Watch(on_evaluation=lambda progress: progress.evaluation == 2),
        **TICKS,
    )
    assert np.isnan(run.curves.staleness_mean).all() and not run.curves.staleness_max.any()


def test_a_stopped_lane_has_no_clients_afterwards(regression: Callable, small: Callable) -> None:
    """Client 0 would seem to be in several slots, which FedAvg refuses."""
    system = fedjax_sim.SYSTEMS["fedavg"]
    run = fedjax_sim.sweep(
        changed_by(system, lambda event: {"weight": event.weight / 2}),
        regression(),
        small(system),
        watch=fedjax_sim.Watch(on_evaluation=lambda progress: progress.evaluation == 1),
        **TICKS,
    )
    assert len(run.timelines[0].time) == 2 and run.curves.stopped_at == 1


@pytest.mark.slow
def test_what_an_event_cannot_be_is_refused(
    regression: Callable, noisy_mean: Callable, small: Callable
) -> None:
    """Before anything is compiled, in one sentence."""
    fedavg, problem = fedjax_sim.SYSTEMS["fedavg"], regression()

    def refuses(system: System, sentence: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=sentence):
            fedjax_sim.simulate(
                system, problem, small(fedavg), budget=fedjax_sim.Ticks(3), **options
            )

    for change, sentence in {
        "version": "field of the event is 'version'",
        "read": "field of the event is 'read'",
        "steps": r"shape of event.steps is \[3\], but must be whole numbers of shape \[4\]",
    }.items():
        value = jnp.zeros(3, "int32")
        refuses(changed_by(fedavg, lambda event, c=change, v=value: {c: v}), sentence)
    refuses(changed_by(fedavg, lambda event: {"steps": 1.5}), "event.steps is 'float32'")
    measured = fedjax_sim.Keep(client_variance=True)
    refuses(changed_by(fedavg, lambda event: {"clients": 0}), "client_variance", keep=measured)

    with pytest.raises(ConfigError, match="clients of tick 0 in slot 0 of the timeline is 7, but"):
        fedjax_sim.simulate(
            changed_by(fedavg, lambda event: {"clients": 7}),
            problem,
            small(fedavg),
            budget=fedjax_sim.Ticks(1),
        )
    with pytest.raises(ConfigError, match="client 3 of tick 0 of the timeline is 'in several"):
        fedjax_sim.simulate(
            changed_by(fedjax_sim.SYSTEMS["scaffold"], lambda event: {"clients": 3}),
            problem,
            small(fedjax_sim.SYSTEMS["scaffold"]),
            budget=fedjax_sim.Ticks(1),
        )
    private = {"privacy": parse_privacy("fixed:clip=1:noise=1"), "sampling": "reshuffled"}
    for change in ("weight", "clients"):
        with pytest.raises(ConfigError, match=r"privacy is .*epsilon is the schedule's"):
            fedjax_sim.simulate(
                changed_by(fedavg, lambda event, name=change: {name: 1}),
                problem,
                small(fedavg, **private),
                budget=fedjax_sim.Ticks(3),
            )
    fedem = fedjax_sim.SYSTEMS["fedem"]
    with pytest.raises(ConfigError, match="steps of the event is 'replaced'"):
        fedjax_sim.simulate(
            changed_by(fedem, lambda event: {"steps": 2}),
            noisy_mean(),
            small(fedem),
            budget=fedjax_sim.Ticks(3),
        )

    class Loss(NamedTuple):
        needed: jax.Array

    def algorithm(problem: Any, hyper: Any, plan: Plan) -> Algorithm:
        bound = changed_by(fedavg, lambda event: {"steps": 2}).algorithm(problem, hyper, plan)

        @jax.jit
        def step(key: Any, state: Any, event: Event) -> Any:
            state, work = bound.step(key, state, event)
            return state, Loss(work.needed)

        return bound._replace(step=step)

    for _ in range(2):  # JAX takes nothing from its cache.
        refuses(fedavg._replace(algorithm=algorithm), "the step replaced steps of its event")


def test_work_within_a_tick_changes_nothing_that_is_counted(
    regression: Callable, small: Callable
) -> None:
    """Here everybody trains once more, and the result is thrown away."""
    fedavg = fedjax_sim.SYSTEMS["fedavg"]

    def algorithm(problem: Any, hyper: Any, plan: Plan) -> Algorithm:
        bound, train = fedavg.algorithm(problem, hyper, plan), local_training(problem, hyper, plan)

        def step(key: Any, state: Any, event: Event) -> Any:
            everyone = jnp.arange(7)
            ones = jnp.ones_like(everyone)
            inner = event.within(clients=everyone, steps=ones, offset=0 * ones)
            _, more = train(key, inner, start=state.server)
            state, work = bound.step(key, state, event)
            return state, work.and_more(more)

        return bound._replace(step=step)

    run = fedjax_sim.sweep(
        fedavg._replace(algorithm=algorithm), regression(), small(fedavg), layout=CHANGED, **RUN
    )
    assert (run.curves.needed == 6 * (4 * 5 + 7)).all()
    np.testing.assert_array_equal(run.curves.local_steps[0], [0, 40, 80, 120])


def test_draws_of_a_round_with_more_steps_do_not_return_in_the_next() -> None:
    """FA-LD numbers its noise by k = tick * K + step, which eight steps in place of K = 5 pass."""
    langevin = fedjax_sim.SYSTEMS["langevin"]
    hyper = langevin.paper(num_clients=1, num_selected=1, local_steps=5, step_size=0.5, rho=1.0)
    flat = Flat(jnp.ones(1, "int32"))
    algorithm = langevin.algorithm(flat, known(hyper), Plan())
    events = some_events([[0]] * 2, [[5]] * 2, weight=1.0)

    def step(state: Any, event: Event) -> Any:
        moved, _ = algorithm.step(KEY, state, event._replace(steps=8))
        return state, moved.server

    _, moved = jax.lax.scan(step, algorithm.init(KEY), events)
    noise = np.asarray(moved)  # of eight steps each
    assert abs(np.corrcoef(noise)[0, 1]) < 5 / np.sqrt(noise.shape[1])
    assert abs(noise.var() / 8 - 1) < 0.1


class Flat(NamedTuple):
    """A problem without a slope in 4,000 coordinates."""

    counts: jax.Array

    def init(self, key: Any) -> jax.Array:
        return jnp.zeros(4000)

    def loss(self, params: Any, client: Any, examples: Any, key: Any) -> jax.Array:
        return 0 * params.sum()
