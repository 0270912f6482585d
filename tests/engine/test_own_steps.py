"""What a user's step, direction or clock may rely on, as docs/guides/parts.md states it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Algorithm, Layout, Plan, System, compression, problems
from fedjax_sim.clients import local_training
from fedjax_sim.core.events import Facts
from fedjax_sim.core.settings import fixed, struct
from fedjax_sim.core.streams import lane_stream, stream, tick_key
from fedjax_sim.server import attacks, mean_of, rules
from fedjax_sim.systems import fedavg, fedbuff
from fedjax_sim.timelines import cohort_system
from fedjax_sim.timelines.live import (
    Asked,
    Live,
    Selector,
    Sizes,
    live_rounds,
    live_tasks,
    with_clock,
)
from tests.clients.test_gradient_steps import event_of

PROBLEM = problems.Quadratic.of(np.random.default_rng(0).normal(3, 1, (8, 3)).astype("float32"))
HYPER = fedavg.Hyper(num_clients=8, num_selected=3, local_steps=2, lr=0.1, batch_size=1)
LAYOUTS = {
    "default": Layout(),
    "together": Layout(lanes_at_once=True, lane_devices=1),
    "in turn": Layout(lanes_at_once=False, lane_devices=1),
    "stretches": Layout(evals_per_chunk=2),
}


def rounds(step_of: Callable[..., Callable], **fields: Any) -> System:
    """Put a step into FedAvg's rounds. step_of: From the bound training to the step."""

    def algorithm(problem: Any, hyper: Any, plan: Plan) -> Algorithm:
        step = step_of(local_training(problem, hyper, plan))
        return Algorithm(problem.init, step, fields.get("model", lambda server: server))

    return cohort_system("own", fedavg.Hyper, algorithm, "a system of this test")


def plain_sum(train: Callable) -> Callable:
    """Sum models with the tick's weights, so that an empty tick gives 0, and count ticks."""

    def step(key: jax.Array, server: jax.Array, event: fedjax_sim.Event) -> Any:
        models, work = train(key, event, start=server)
        return event.weight @ models, work._replace(executed=work.executed + 1)

    return step


def own_loop(system: System, hyper: Any, seed: int, num_ticks: int) -> Any:
    """Take the ticks of a lane one by one by `bind`, without padding; return the model."""
    budget = fedjax_sim.Ticks(num_ticks)
    bound = fedjax_sim.bind(system, PROBLEM, hyper, seed=seed, budget=budget)
    state = bound.init()
    step = jax.jit(lambda bound, state, event: bound.step(state, event)[0])
    for t in range(num_ticks):
        state = step(bound, state, bound.event(t))
    return bound.model(state)


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("budget", [fedjax_sim.Ticks(11), fedjax_sim.Time(40)], ids=["11", "time"])
def test_ticks_that_pad_a_lane_change_nothing(budget: Any, layout: str) -> None:
    """Lanes of other lengths, and a number of ticks that evaluations do not divide."""
    run = fedjax_sim.sweep(
        rounds(plain_sum),
        PROBLEM,
        HYPER,
        seeds=3,
        budget=budget,
        num_evals=4,
        layout=LAYOUTS[layout],
        settings={"lr": [0.1, 0.2]},
    )
    for seed in range(3):
        lane = run.lane(lr=0.2, seed=seed)
        ticks = int(lane.curves.ticks[-1])
        expected = own_loop(rounds(plain_sum), HYPER.replace(lr=0.2), seed, ticks)
        np.testing.assert_allclose(jax.tree.leaves(lane.models)[0], expected, rtol=1e-6)
        assert abs(expected).min() > 0.1
        assert lane.curves.executed >= lane.curves.needed + ticks
        assert lane.curves.executed < lane.curves.needed + ticks + 5  # none of padding


def test_lanes_end_at_different_ticks() -> None:
    """So that the test above has lanes that wait for others."""
    run = fedjax_sim.sweep(fedavg.system, PROBLEM, HYPER, seeds=3, budget=fedjax_sim.Time(40))
    assert len(set(run.curves.ticks[:, -1].values.tolist())) > 1


def live_rounds_of(step_of: Callable[..., Callable], select: Callable, **others: Any) -> System:
    """Put a step and a choice of clients on a live clock of rounds."""

    def clock(problem: Any, hyper: Any) -> Any:
        return live_rounds(hyper, Selector(select, **others), num_used=3)

    sizes = Sizes(3, HYPER.local_steps, 0, is_full=not others.pop("has_gaps", False))
    return with_clock(rounds(step_of), Live(lambda hyper: sizes, clock))


def in_turn(key: jax.Array, now: Any) -> Asked:
    """Ask three clients in turn."""
    return Asked((3 * now.round.number + jnp.arange(3)) % 8)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["together", "in turn"])
@pytest.mark.parametrize("is_full", [True, False])
def test_a_live_lane_that_has_ended_changes_nothing(layout: str, is_full: bool) -> None:
    """Whether or not the clock says that all slots are filled."""
    system = live_rounds_of(plain_sum, in_turn, has_gaps=not is_full)
    budget = fedjax_sim.Time(40, most_ticks=30)
    asked = {"budget": budget, "num_evals": 4, "layout": LAYOUTS[layout]}
    run = fedjax_sim.sweep(system, PROBLEM, HYPER, seeds=3, **asked)
    ticks = [int(n) for n in run.curves.ticks[:, -1]]
    assert len(set(ticks)) > 1
    for seed, num in enumerate(ticks):
        model = jax.tree.leaves(run.lane(seed=seed).models)[0]
        expected = own_loop(system, HYPER, seed, num)
        np.testing.assert_allclose(model, expected, rtol=1e-6)


def fewer_steps(train: Callable) -> Callable:
    """Let the clients of every tick do one step."""

    def step(key: jax.Array, server: jax.Array, event: fedjax_sim.Event) -> Any:
        event = event._replace(steps=1)
        models, work = train(key, event, start=server)
        return mean_of(event, server, models), work

    return step


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", ["together", "in turn"])
def test_a_live_lane_counts_the_steps_that_were_done(layout: str) -> None:
    """They are the changed event's, where the clock says that all slots are filled, too."""
    system = live_rounds_of(fewer_steps, in_turn)
    asked = {"budget": fedjax_sim.Ticks(5), "layout": LAYOUTS[layout]}
    run = fedjax_sim.sweep(system, PROBLEM, HYPER, seeds=1, **asked)
    assert run.curves.local_steps[0, -1] == 5 * 3
    assert run.timelines[0].steps.tolist() == [[1, 1, 1]] * 5


def test_a_planned_system_may_tell_a_clock_what_it_has_seen() -> None:
    """Nothing is counted of it, so that one algorithm serves planned and live clocks."""

    def seeing(train: Callable) -> Callable:
        def step(key: jax.Array, server: jax.Array, event: fedjax_sim.Event) -> Any:
            models, work = train(key, event, start=server)
            return mean_of(event, server, models), work._replace(seen=models.sum(axis=1))

        return step

    run = fedjax_sim.simulate(rounds(seeing), PROBLEM, HYPER, budget=fedjax_sim.Ticks(4))
    assert "seen" not in run.curves and run.curves.needed == 4 * 3 * HYPER.local_steps


def test_nobody_reports() -> None:
    """The mean of no models is the model that clients started from."""
    event = event_of([-1, -1], [0, 0], [0, 0]).within(weight=jnp.zeros(2), facts=Facts())
    start, models = jnp.arange(3.0), jnp.ones((2, 3))
    assert (mean_of(event, start, models) == start).all()


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_direction_gets_matrices_as_the_model_has_them(platform: str) -> None:
    """Also where matrices of few columns, or all, are kept transposed during local steps."""
    shapes: dict[str, Any] = {"kernel": (5, 3), "bias": (3,)}
    model = {name: jnp.arange(np.prod(s), dtype=float).reshape(s) for name, s in shapes.items()}
    seen: list[Any] = []

    class Sum(NamedTuple):
        counts: jax.Array = jnp.ones(8, "int32")

        def loss(self, params: Any, client: Any, examples: Any, key: Any) -> Any:
            return sum((leaf**2).sum() / 2 for leaf in jax.tree.leaves(params))

    def by_column(g: Any, model: Any, q: Any, start: Any, mask: Any) -> Any:
        seen.append(jax.tree.map(jnp.shape, (g, model, start)))
        scaled = jax.tree.map(
            lambda leaf: leaf / (1 + jnp.linalg.norm(leaf, axis=0, keepdims=True)), g
        )
        return {**scaled, "kernel": mask @ scaled["kernel"]}

    plan = Plan(narrow=32 if platform == "cpu" else 2**31)
    train = local_training(Sum(), HYPER.replace(lr=0.5), plan, direction=by_column)
    mask = jnp.tril(jnp.ones((5, 5)))  # an extra that is no model
    extras = (jnp.broadcast_to(mask, (2, 5, 5)),)
    event = event_of([0, 3], [2, 1], [0, 0])
    ends, _ = train(jax.random.key(0), event, start=model, extras=extras)
    assert seen and all(each == (shapes,) * 3 for each in seen)
    expected = {name: np.array(leaf) for name, leaf in model.items()}
    for _ in range(2):
        scaled = {k: v / (1 + np.linalg.norm(v, axis=0)) for k, v in expected.items()}
        scaled["kernel"] = np.array(mask) @ scaled["kernel"]
        expected = {name: expected[name] - 0.5 * scaled[name] for name in expected}
    for name, leaf in expected.items():
        np.testing.assert_allclose(ends[name][0], leaf, rtol=2e-6)


def noisy(train: Callable) -> Callable:
    """Return the noise that JAX's usual code draws, as the model."""

    def step(key: jax.Array, server: jax.Array, event: fedjax_sim.Event) -> Any:
        _, own = jax.random.split(key)
        return jax.random.normal(own, server.shape), train(key, event, start=server)[1]

    return step


def test_noise_is_new_at_every_tick() -> None:
    """In `simulate` and `bind`, for keys of both kinds, and it differs between seeds."""
    keep = fedjax_sim.Keep(models=True)
    asked = {"budget": fedjax_sim.Ticks(12), "num_evals": 12, "keep": keep}
    run = fedjax_sim.sweep(rounds(noisy), PROBLEM, HYPER, seeds=2, **asked)
    drawn = np.asarray(run.samples)[:, 1:].reshape(-1, 3)
    assert len(np.unique(drawn.round(5))) == drawn.size == 2 * 12 * 3
    assert 0.7 < drawn.std() < 1.3
    bound = fedjax_sim.bind(rounds(noisy), PROBLEM, HYPER, budget=fedjax_sim.Ticks(2))
    old = bound.replace(key=jax.random.key_data(bound.key))  # as before typed keys
    for each in (bound, old):
        state, _ = each.step(each.init(), each.event(1))
        np.testing.assert_allclose(state, drawn[1], rtol=1e-6)


NOISY = problems.Quadratic.of(PROBLEM.centers, noise=1.0)


def test_training_draws_the_noise_of_the_lane() -> None:
    """A step with the tick's key trains as FedAvg does, bit for bit, at later ticks too."""

    def averaging(train: Callable) -> Callable:
        def step(key: jax.Array, server: jax.Array, event: fedjax_sim.Event) -> Any:
            models, work = train(key, event, start=server)
            return mean_of(event, server, models), work

        return step

    asked = {"budget": fedjax_sim.Ticks(7), "seeds": 2}
    own = fedjax_sim.sweep(rounds(averaging), NOISY, HYPER, **asked)
    known = fedjax_sim.sweep(fedavg.system, NOISY, HYPER, **asked)
    assert (np.asarray(own.models) == np.asarray(known.models)).all()


def test_keys_of_ticks() -> None:
    """Derived keys train on other draws, which are the same at every tick; their own are not."""
    lane, event = jax.random.key(3), event_of([0, 3], [2, 1], [0, 0])
    train = local_training(NOISY, HYPER, Plan())
    start = jnp.zeros(3)
    ends = {}
    for tick in (4, 5):
        key = tick_key(lane, jnp.int32(tick))
        for name, each in {"given": key, "split": jax.random.split(key)[1]}.items():
            ends[name, tick] = train(each, event, start=start)[0], jax.random.normal(each)
    whole = train(lane, event, start=start)[0]
    assert (ends["given", 4][0] == whole).all()
    for name in ("given", "split"):
        assert (ends[name, 4][0] == ends[name, 5][0]).all()
        assert ends[name, 4][1] != ends[name, 5][1]
    assert (ends["split", 4][0] != ends["given", 4][0]).all()
    again = lane_stream(tick_key(tick_key(lane, jnp.int32(1)), jnp.int32(2)), "batches")
    assert again == lane_stream(lane, "batches") == stream(lane, "batches")


def test_choices_of_clients_have_a_key_of_their_round() -> None:
    """`select`, `draw` and `learn` of a round draw independently, and anew in each round."""

    def draw(key: jax.Array, number: jax.Array) -> jax.Array:
        return jax.random.normal(key)

    def learn(key: jax.Array, shown: Any) -> jax.Array:
        return shown.round.memory.at[2, shown.event.tick].set(jax.random.normal(key))

    def select(key: jax.Array, now: Any) -> Asked:
        found = jnp.stack([jax.random.normal(key), now.drawn])
        memory = now.round.memory.at[:2, now.round.number].set(found)
        return Asked(jnp.arange(3), memory=memory)

    def first(hyper: Any, drawn: Any) -> jax.Array:
        return jnp.zeros((3, 9))

    system = live_rounds_of(plain_sum, select, draw=draw, learn=learn, first=first)
    bound = fedjax_sim.bind(system, PROBLEM, HYPER, budget=fedjax_sim.Ticks(9))
    state, _ = bound.run(bound.init(), bound.events)
    drawn = np.asarray(state.clock.memory)
    assert len(np.unique(drawn.round(5))) == 3 * 9


def test_replacements_have_keys_of_their_own() -> None:
    """Two clients that are replaced at one tick are not replaced by one draw."""
    kept: list[Any] = []

    def choose(key: jax.Array, replacing: Any) -> jax.Array:
        jax.debug.callback(lambda lot: kept.append(float(lot)), jax.random.uniform(key))
        return replacing.own

    def clock(problem: Any, hyper: Any) -> Any:
        return live_tasks(hyper, num_tasks=4, num_used=2, choose=choose)

    hyper = fedbuff.Hyper(num_clients=8, buffer_size=2, local_steps=2, batch_size=1)
    sizes = Sizes(2, hyper.local_steps, 4)
    system = with_clock(fedbuff.system, Live(lambda hyper: sizes, clock))
    bound = fedjax_sim.bind(system, PROBLEM, hyper, budget=fedjax_sim.Ticks(6))
    jax.block_until_ready(bound.run(bound.init(), bound.events))
    assert len(kept) == len(set(kept)) == 6 * 2


def test_parts_of_messages_have_keys_of_their_tick() -> None:
    """Rules, attacks, their memory and compressors draw anew at every tick, each for itself."""
    kept: dict[str, list[float]] = {}

    def note(name: str, key: jax.Array) -> jax.Array:
        lot = jax.random.uniform(key)
        jax.debug.callback(lambda lot: kept.setdefault(name, []).append(float(lot)), lot)
        return lot

    @struct
    class Lots(rules.Rule):
        name: str = fixed("lots")

        def centre(self, key: Any, messages: Any, weight: Any, is_present: Any) -> Any:
            return messages.mean(axis=0) + 0 * note("rule", key)

    @struct
    class Draws(attacks.Attack):
        name: str = fixed("draws")

        def forge(self, key: Any, messages: Any, cohort: Any) -> Any:
            return messages + 0 * note("forge", key)

        def first_memory(self, message: Any) -> Any:
            return jnp.zeros(())

        def remember(self, key: Any, messages: Any, cohort: Any, memory: Any) -> Any:
            return note("remember", key)

    @struct
    class Sent(compression.Compressor):
        name: str = fixed("sent")

        def apply(self, key: Any, vector: Any) -> Any:
            return vector + 0 * note("compressor", key)

        def bits(self, dim: int, *, word: int = 32) -> int:
            return word * dim

        def omega(self, dim: int) -> float:
            return 0.0

    own = fedavg.Hyper(
        num_clients=8,
        num_selected=3,
        batch_size=1,
        aggregator=Lots(),
        attack=Draws(),
        malicious=0.5,
        compression=Sent(),
    )
    jax.block_until_ready(
        fedjax_sim.simulate(fedavg.system, PROBLEM, own, budget=fedjax_sim.Ticks(4)).models
    )
    number = {"rule": 4, "forge": 4, "remember": 4, "compressor": 4 * 3}
    assert {name: len(lots) for name, lots in kept.items()} == number
    assert len({lot for lots in kept.values() for lot in lots}) == sum(number.values())
