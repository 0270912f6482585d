"""TiFL against a loop in NumPy, written from the paper, with accuracies that are known."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout, Ticks, datasets, models, partition, problems
from fedjax_sim.core.types import EMPTY
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import fedavg, tifl
from fedjax_sim.timelines import ClientTable
from tests.systems.live_traces import choice_key, trace

CLIENTS, STEPS, TICKS, RATE = 12, 4, 40, 0.2
CENTERS = np.random.default_rng(0).normal(size=(CLIENTS, 3)).astype("float32")
# A step takes 1/4, 1/2, ..., 3 units of time, in no order.
STEP_TIMES = np.random.default_rng(1).permutation(np.arange(1, CLIENTS + 1) / 4)
SPEEDS = (1 / STEP_TIMES).astype("float32")
CONSTANT: dict[str, Any] = {"runtime_law": "runtime_constant", "client_table": ClientTable(SPEEDS)}


@struct.dataclass
class WithTests(Quadratic):
    """Clients with test examples: the accuracy of a model falls with its distance."""

    has_tests_of_clients: ClassVar[bool] = True

    def evaluate_clients(self, model_of: Callable) -> Mapping[str, jax.Array]:
        def of_client(client: jax.Array) -> jax.Array:
            distance = jnp.square(model_of(client) - self.centers[client]).sum()
            return jnp.exp(-distance)

        return {"accuracy": jax.vmap(of_client)(jnp.arange(self.centers.shape[0]))}


@struct.dataclass
class Counted(WithTests):
    """Clients that note when they are evaluated."""

    look: ClassVar[Callable]

    def evaluate_clients(self, model_of: Callable) -> Mapping[str, jax.Array]:
        jax.debug.callback(type(self).look, model_of(jnp.int32(0)))
        return super().evaluate_clients(model_of)


def with_tests(kind: type[WithTests] = WithTests) -> WithTests:
    """Make the problem."""
    given = Quadratic.of(CENTERS, start=1.0)
    return kind(given.centers, given.curvature, given.noise, given.start)


def settings(**changes: Any) -> tifl.Hyper:
    """Return settings of clients whose steps take constant times."""
    given = {"num_clients": CLIENTS, "num_selected": 2, "local_steps": STEPS, "lr": RATE}
    given |= {"batch_size": 1, "server_interact": 0.5, "num_tiers": 4, "profile_rounds": 3}
    adaptive = {} if changes.get("policy") == "static" else {"interval": 3, "credits": 4.0}
    return tifl.Hyper(**(given | adaptive | CONSTANT | changes))


CASES: dict[str, dict[str, Any]] = {
    "adaptive": {},
    "a client that never responds": {"time_limit": 11.5, "credits": (9.0, 3.0, 2.0, 1.0)},
    "static": {"policy": "static", "probability": (4.0, 2.0, 1.0, 0.0), "num_asked": 3},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_a_loop_of_the_paper_gives_the_same_rounds(case: str) -> None:
    hyper = settings(**CASES[case])
    choice, num, seed = hyper.choice, hyper.choice.num_tiers, 5
    found = trace(tifl.system, with_tests(), hyper, ticks=TICKS, seed=seed)
    # Profiling (Sec. 4.2).
    takes = STEPS * STEP_TIMES
    limit = choice.time_limit or np.inf
    now = choice.profile_rounds * min(takes.max(), limit)
    alive = [i for i in np.argsort(takes) if takes[i] < limit]
    tiers = [[i for n, i in enumerate(alive) if n * num // len(alive) == t] for t in range(num)]
    assert len(alive) == CLIENTS - (case == "a client that never responds")
    for i in range(CLIENTS):
        own = [t for t in range(num) if i in tiers[t]]
        assert found.memory.tier[0][i] == (own[0] if own else EMPTY)

    def given(value: Any) -> list[float]:
        return list(value) if isinstance(value, tuple) else [value] * num

    is_adaptive = choice.policy == "adaptive"
    x, current, changes, renewals = np.ones(3), 0, 0, 0
    probs = [1 / num] * num if is_adaptive else given(choice.probability)
    credits, before = given(choice.credits), [0.0] * num
    for r in range(TICKS):
        evaluated = 0
        if is_adaptive and r % choice.interval == 0:
            right = np.exp(-((x - CENTERS) ** 2).sum(axis=1))
            accuracy = [right[tier].mean() for tier in tiers]
            evaluated = CLIENTS
            if r >= choice.interval:
                assert abs(accuracy[current] - before[current]) > 1e-6
                if accuracy[current] <= before[current]:
                    changes += 1
                    order = sorted(range(num), key=lambda t: accuracy[t])
                    for k, t in enumerate(order):
                        probs[t] = (num - k) / (num * (num + 1) / 2)
            before = accuracy
        # Of the two keys the first draws tiers; the largest of p plus Gumbel noise is a draw.
        tier_key, client_key = jax.random.split(choice_key(seed, r))
        noise = np.asarray(jax.random.gumbel(tier_key, (num,)))
        if is_adaptive and max(credits) == 0:
            credits, renewals = given(choice.credits), renewals + 1
        may = [t for t in range(num) if probs[t] > 0 and (credits[t] > 0 or not is_adaptive)]
        current = max(may, key=lambda t: np.log(probs[t]) + noise[t])
        if is_adaptive:
            credits[current] -= 1
        lots = np.asarray(jax.random.uniform(client_key, (CLIENTS,)))
        asked = sorted(tiers[current], key=lambda i: -lots[i])[: hyper.num_asked]
        used = sorted(asked, key=lambda i: takes[i])[:2]
        now += takes[used].max() + 0.5
        x = np.mean([CENTERS[i] + (1 - RATE) ** STEPS * (x - CENTERS[i]) for i in used], axis=0)
        assert found.time[r] == pytest.approx(now, rel=1e-12)
        filled = found.clients[r][found.clients[r] != EMPTY]
        assert sorted(filled) == sorted(used)
        assert (found.steps[r][found.clients[r] != EMPTY] == STEPS).all()
        assert found.memory.current[r] == current
        np.testing.assert_allclose(found.model[r], x, rtol=1e-4, atol=1e-5)
        share = np.array(probs) / sum(probs)
        ours = found.memory.probability[r]
        np.testing.assert_allclose(ours / ours.sum(), share, rtol=1e-5)
        if is_adaptive:
            np.testing.assert_array_equal(found.memory.credits[r], credits)
            np.testing.assert_allclose(found.memory.accuracy[r], before, rtol=1e-4)
        assert found.needed[r] == STEPS * len(used) + evaluated
    assert found.clients.shape == (TICKS, 2)
    if is_adaptive:
        assert changes >= 2 and renewals >= 1
    else:
        assert set(found.memory.current.tolist()) == {0, 1, 2}


@pytest.mark.slow
def test_one_tier_of_everyone_is_fedavg_after_profiling() -> None:
    hyper = settings(num_tiers=1, num_selected=CLIENTS)
    options: dict[str, Any] = {"budget": Ticks(15), "num_evals": 5}
    ours = fedjax_sim.simulate(tifl.system, with_tests(), hyper, **options)
    given = {"num_clients": CLIENTS, "num_selected": CLIENTS, "local_steps": STEPS, "lr": RATE}
    given |= {"batch_size": 1, "server_interact": 0.5} | CONSTANT
    planned = fedjax_sim.simulate(fedavg.system, with_tests(), fedavg.Hyper(**given), **options)
    profiling = 3 * STEPS * STEP_TIMES.max()
    times = planned.curves.time.values
    np.testing.assert_allclose(ours.curves.time[1:], times[1:] + profiling, rtol=1e-6)
    np.testing.assert_allclose(ours.curves.loss, planned.curves.loss, rtol=1e-5)


@pytest.mark.slow
def test_accuracies_are_those_of_the_clients_test_examples() -> None:
    """On images the tiers' accuracies are means of what problems report for each client."""
    digits = datasets.load("digits")
    split = partition.make("classes", digits.train_labels, num_clients=CLIENTS, seed=0)
    problem = problems.make_classification(models.MLP((), 10), digits, split)
    found = trace(tifl.system, problem, settings(batch_size=8, interval=2), ticks=4)
    model = jax.tree.map(lambda leaf: leaf[1], found.model)
    right = np.asarray(problem.evaluate_clients(lambda client: model)["accuracy"])
    tier = found.memory.tier[0]
    expected = [right[tier == t].mean() for t in range(4)]
    np.testing.assert_allclose(found.memory.accuracy[2], expected, rtol=1e-5)
    np.testing.assert_array_equal(found.memory.accuracy[3], found.memory.accuracy[2])


def test_without_test_examples_it_is_the_loss_and_time_ends_lanes() -> None:
    problem = Quadratic.of(CENTERS, start=1.0)
    found = trace(tifl.system, problem, settings(), ticks=40, until=150.0)
    x, tier = found.model[2], found.memory.tier[0]
    loss = np.square(x - CENTERS).sum(axis=1) / 2
    expected = [-loss[tier == t].mean() for t in range(4)]
    np.testing.assert_allclose(found.memory.accuracy[3], expected, rtol=1e-5)
    last = found.ended.index("budget") - 1
    assert found.time[last - 1] < 150 <= found.time[last] == found.time[-1]
    assert set(found.ended[: last + 1]) == {""} and set(found.ended[last + 1 :]) == {"budget"}


@pytest.mark.slow
def test_lanes_that_are_batched_evaluate_tiers_only_when_these_are_read() -> None:
    problem, looked, found = with_tests(Counted), [], {}
    Counted.look = looked.append
    for at_once in (False, True):
        looked.clear()
        options: dict[str, Any] = {"seeds": 2, "budget": Ticks(6), "num_evals": 1}
        layout = Layout(lanes_at_once=at_once, lane_devices=1)
        found[at_once] = fedjax_sim.sweep(
            tifl.system, problem, settings(), **options, layout=layout
        ).curves
        jax.effects_barrier()
        # Rounds 0 and 3 of two lanes.
        assert len(looked) == 4
    assert (found[True].executed == 6 * 2 * STEPS + 2 * CLIENTS).all()
    for name in ("loss", "time", "executed", "needed"):
        np.testing.assert_array_equal(found[True][name], found[False][name])


@pytest.mark.parametrize("until", [1.0, 35.9, 36.1])
def test_no_round_begins_after_the_time_of_profiling(until: float) -> None:
    """Profiling takes three rounds of 12 units, the time of the slowest client."""
    given = {"budget": fedjax_sim.Time(until, most_ticks=9), "num_evals": 3}
    run = fedjax_sim.simulate(tifl.system, with_tests(), settings(), **given)
    assert run.curves.ended == "budget"
    assert run.curves.ticks[-1] == (until > 36)


@pytest.mark.slow
def test_clients_that_are_away_are_not_asked() -> None:
    """Every second one is away from time 100 to 200."""
    hours = [[(0.0, 100.0)] if i % 2 else [(0.0, 200.0)] for i in range(CLIENTS)]
    table = ClientTable(SPEEDS, available=hours, period=np.full(CLIENTS, 200.0))
    changes = {"client_table": table, "num_tiers": 2, "num_selected": 1, "local_steps": 1}
    found = trace(tifl.system, with_tests(), settings(**changes), ticks=60)
    begins, who = found.time[:-1], found.clients[1:, 0]
    assert (begins >= 100).sum() > 10 and begins[-1] < 200
    assert (who[begins >= 100] % 2 == 0).all() and (who[begins < 100] % 2 == 1).any()
