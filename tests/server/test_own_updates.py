"""The server's own update: its data, its start, what it counts, and who refuses it.

Dimension letters: `N` clients, `M` root examples.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout, Ticks
from fedjax_sim.clients import local_training
from fedjax_sim.core.schedules import Table
from fedjax_sim.core.settings import ConfigError, check
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.attacks import SignFlip
from fedjax_sim.server.compression import TopK
from fedjax_sim.server.privacy import LocalGaussian
from fedjax_sim.server.reports import RootData, Wire, draw_root
from fedjax_sim.server.rules import Bucketing, FLTrust, Mean, Median, rules_of_one_program
from tests.conftest import Regression, SplitRegression, slow_but

NUM, DIM, STEPS = 6, 3, 2
CENTRES = np.random.default_rng(0).normal(size=(NUM, DIM)).astype("float32")
COUNTS = np.array([1, 5, 2, 8, 3, 1], "int32")


def regression() -> Regression:
    """Make a problem whose clients have `COUNTS` examples."""
    random = np.random.default_rng(1)
    inputs = random.normal(size=(NUM, COUNTS.max(), DIM)).astype("float32")
    targets = random.normal(size=(NUM, COUNTS.max())).astype("float32")
    arrays = map(jnp.asarray, (inputs, targets, COUNTS))
    return Regression(*arrays, jnp.zeros((), "float32"))


def settings_of(name: str, **changes: Any) -> Any:
    """Make small settings of a system."""
    of_slots = {"buffer_size": 3} if name == "fedbuff" else {"num_selected": 3}
    small = {"num_clients": NUM, "local_steps": STEPS, "batch_size": 1, "lr": 0.1}
    return fedjax_sim.SYSTEMS[name].Hyper(**(small | of_slots | changes))


def run(name: str, hyper: Any, problem: Any = None, **options: Any) -> fedjax_sim.Run:
    """Run five ticks."""
    problem = Quadratic.of(CENTRES) if problem is None else problem
    told = {"budget": Ticks(5), "num_evals": 1} | options
    return fedjax_sim.sweep(fedjax_sim.SYSTEMS[name], problem, hyper, **told)


def drawn(rule: FLTrust, seed: int) -> RootData:
    """Draw root data of the regression, on the host."""
    return jax.tree.map(np.asarray, draw_root(regression(), jax.random.key(seed), rule))


def test_root_data_are_examples_without_repetition() -> None:
    for rule in (FLTrust(examples=7), FLTrust(examples=9, owners=(4, 1, 3))):
        roots = [drawn(rule, seed) for seed in range(5)]
        for root in roots:
            pairs = list(zip(root.clients.tolist(), root.examples.tolist(), strict=True))
            assert len(set(pairs)) == rule.examples == root.counts[0]
            assert all(0 <= example < COUNTS[client] for client, example in pairs)
            assert set(root.clients.tolist()) <= set(rule.owners or range(NUM))
        assert len({(*root.clients, *root.examples) for root in roots}) == len(roots)
    few = drawn(FLTrust(examples=50, owners=(2, 4)), 0)
    assert few.counts[0] == COUNTS[2] + COUNTS[4]
    pairs = set(zip(few.clients[: few.counts[0]], few.examples[: few.counts[0]], strict=True))
    assert len(pairs) == few.counts[0]


def test_every_example_is_equally_likely() -> None:
    """Each of 20 is among 5 in a quarter of 2,000 draws, within five standard errors."""
    keys = jax.random.split(jax.random.key(3), 2000)
    problem, rule = regression(), FLTrust(examples=5)
    roots = jax.jit(jax.vmap(lambda key: draw_root(problem, key, rule)[1:3]))(keys)
    first = np.cumsum(COUNTS) - COUNTS
    place = first[np.asarray(roots[0])] + np.asarray(roots[1])
    share = np.bincount(place.ravel(), minlength=COUNTS.sum()) / len(keys)
    assert np.abs(share - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / len(keys))


def test_the_loss_is_the_mean_of_the_examples() -> None:
    problem, root = regression(), draw_root(regression(), jax.random.key(0), FLTrust(examples=4))
    model, key = jnp.arange(3.0), jax.random.key(1)
    single = [problem.loss(model, root.clients[i], root.examples[i][None], key) for i in (2, 0, 2)]
    found = root.loss(model, jnp.int32(0), jnp.array([2, 0, 2]), key)
    np.testing.assert_allclose(found, np.mean(single), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["fedbuff"], ["fedavg", "fedbuff"]))
def test_its_work_is_that_of_one_more_slot(name: str) -> None:
    """Also as one of several rules, where lanes run one after another; batched lanes all do it."""
    rules = rules_of_one_program([Mean(), FLTrust(), Bucketing(inner=FLTrust())])
    in_turn = Layout(slots_at_once=1, lanes_at_once=False)
    for layout, executed in ((in_turn, [3, 4, 4]), (Layout(1, True, 1), [4, 4, 4])):
        found = run(name, settings_of(name), settings={"aggregator": rules}, layout=layout)
        each = 5 * STEPS * np.array([3, 4, 4])
        np.testing.assert_array_equal(found.curves.needed.values.ravel(), each)
        np.testing.assert_array_equal(
            found.curves.executed.values.ravel(), 5 * STEPS * np.array(executed)
        )
        assert (found.curves.local_steps.values[..., -1] == 5 * STEPS * 3).all()


class Used(NamedTuple):
    """A problem whose gradient tells which examples were used: parameter j belongs to example j."""

    counts: jax.Array

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return params[(jnp.cumsum(self.counts) - self.counts)[client] + examples].mean()


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_root_data_are_shuffled_in_each_tick(steps: int) -> None:
    """Two of four examples in each of two steps: in every tick each is used once."""
    hyper = settings_of("fedavg", batch_size=2, local_steps=steps, lr=2.0)
    system, rule = fedjax_sim.SYSTEMS["fedavg"], FLTrust(examples=4)
    bound = fedjax_sim.bind(system, Quadratic.of(CENTRES), hyper, budget=Ticks(6))
    problem, start = Used(jnp.asarray(COUNTS)), jnp.zeros(COUNTS.sum())
    root = draw_root(problem, bound.key, rule)
    places = (np.cumsum(COUNTS) - COUNTS)[root.clients] + np.asarray(root.examples)
    ruled = bound.hyper.replace(aggregator=rule)
    wire = Wire(problem, ruled, bound.plan, train=local_training)

    def used(t: int) -> np.ndarray:
        progress, work = wire.own_update(bound.key, bound.event(t), start)
        assert int(work.needed) == int(work.executed) == steps
        return -np.asarray(progress)[places]

    each = np.array([used(t) for t in range(6)])
    np.testing.assert_allclose(each.sum(axis=1), 2 * steps, rtol=1e-6)
    assert each.max() < 1.01
    assert len(np.unique(each, axis=0)) > 2 or steps == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", slow_but(["packed", "differentiable"], ["slots", "packed", "differentiable", "others"])
)
def test_unequal_steps_mean_the_same_in_all_layouts(way: str) -> None:
    """What the server does in a tick does not depend on what is known of the whole schedule."""
    hyper = settings_of("fedavg", aggregator=FLTrust(examples=4)).replace(
        local_epochs=1.0, local_steps=10
    )
    system, problem = fedjax_sim.SYSTEMS["fedavg"], regression()
    budget = Ticks(8)
    expected = fedjax_sim.simulate(system, problem, hyper, seed=4, budget=budget)
    assert len(np.unique(expected.timelines[0].steps.max(axis=1))) > 1
    if way == "differentiable":
        bound = fedjax_sim.bind(system, problem, hyper, seed=4, budget=budget, differentiable=True)
        found = bound.model(bound.run(bound.init())[0])
    elif way == "others":
        packed = Layout(packed=True)
        together = fedjax_sim.sweep(
            system, problem, hyper, seeds=[0, 4], budget=Ticks(8), layout=packed
        )
        found = together.models[1]
    else:
        layout = Layout(packed=True) if way == "packed" else Layout(slots_at_once=1)
        found = fedjax_sim.simulate(
            system, problem, hyper, seed=4, budget=budget, layout=layout
        ).models
    np.testing.assert_allclose(found, expected.models, rtol=1e-4, atol=1e-6)


def test_it_starts_from_what_clients_receive() -> None:
    """With a lossy downlink, the model that clients hold; all of them have the server's data."""
    same = Quadratic.of(np.tile(CENTRES[:1], (NUM, 1)))
    lossy = settings_of("fedavg", downlink=TopK(kept=1))
    plain = run("fedavg", lossy, same)
    trusting = run("fedavg", lossy.replace(aggregator=FLTrust()), same)
    np.testing.assert_allclose(trusting.models, plain.models, rtol=1e-5)
    assert np.abs(np.asarray(plain.models)).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["fedbuff"], ["fedavg", "fedbuff"]))
def test_most_clients_may_be_malicious(name: str) -> None:
    """Where all learn the same, four of six that send the reverse keep FLTrust from nothing."""
    same = Quadratic.of(np.tile(CENTRES[:1], (NUM, 1)))
    hyper = settings_of(name, attack=SignFlip(), attackers=(0, 1, 2, 3))
    rules = rules_of_one_program([FLTrust(), Mean(), Median()])
    found = run(name, hyper, same, settings={"aggregator": rules}, budget=Ticks(40))
    loss = found.curves.loss.values[..., -1].ravel()
    assert loss[0] < 0.1 < min(loss[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tifl", "fedcs", "fedat", "pisces"])
def test_live_clocks_trust_too(name: str) -> None:
    """Of clients that all learn the same, also where only one of six is honest."""
    same = Quadratic.of(np.tile(CENTRES[:1], (NUM, 1)))
    system = fedjax_sim.SYSTEMS[name]
    few = {"num_clients": NUM, "batch_size": 1, "local_steps": STEPS, "num_selected": 2}
    if name == "pisces":
        few["concurrency"] = few.pop("num_selected")
    if name in ("tifl", "fedat"):
        few["num_tiers"] = 2
    hyper = system.Hyper(**few, attack=SignFlip(), attackers=(0, 1, 2, 3, 4))
    rules = rules_of_one_program([FLTrust(), Mean()])
    found = run(name, hyper, same, settings={"aggregator": rules}, budget=Ticks(60))
    loss = found.curves.loss.values[..., -1].ravel()
    assert loss[0] < loss[1]
    assert loss[0] < 0.7 * found.curves.loss.values[0, 0, 0]
    assert found.curves.needed.values[0, 0] > found.curves.needed.values[1, 0]


@pytest.mark.slow
def test_resumed_lanes_have_the_same_root_data(tmp_path: Path) -> None:
    hyper = settings_of("fedbuff", aggregator=FLTrust(examples=2))
    whole = run("fedbuff", hyper, budget=Ticks(6), num_evals=3)
    other = run("fedbuff", hyper.replace(aggregator=FLTrust(examples=3)), budget=Ticks(6))
    assert not np.array_equal(other.models, whole.models)
    for ticks in (4, 6):
        saved = fedjax_sim.Checkpoints(tmp_path, resume=True)
        found = run("fedbuff", hyper, budget=Ticks(ticks), num_evals=2, checkpoints=saved)
    np.testing.assert_array_equal(found.models, whole.models)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name",
    [
        *("fedasync", "scaffold", "mimelite", "feddyn", "fedper", "favano", "quafl"),
        *("hierarchical", "fedpa", "async_hierarchical"),
    ],
)
def test_servers_that_hear_something_else_refuse_it(name: str) -> None:
    system = fedjax_sim.SYSTEMS[name]
    changes: dict[str, Any] = {"num_selected": 3}
    if "hierarchical" in name:
        changes = {"num_groups": 2}
    if name == "fedasync":
        changes = {}
    problem = None
    if name in ("fedper", "fedbn"):
        changes["personal"] = "head"
        problem = SplitRegression(**vars(regression()))
    for rule in (FLTrust(), Bucketing(inner=FLTrust())):
        hyper = system.Hyper(num_clients=NUM, aggregator=rule, batch_size=1, **changes)
        with pytest.raises(ConfigError, match="without an update of the server's own here"):
            run(name, hyper, problem)


def test_what_cannot_be_trained_on_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"owners is .*, but must be of clients from 0 to 5"):
        run("fedavg", settings_of("fedavg", aggregator=FLTrust(owners=(2, 6))))
    several = rules_of_one_program([FLTrust(examples=3), FLTrust(examples=4), Mean()])
    with pytest.raises(ConfigError, match="that all have the same root data"):
        run("fedavg", settings_of("fedavg"), settings={"aggregator": several})
    private = settings_of("fedavg", local_privacy=LocalGaussian(noise=2.0), aggregator=FLTrust())
    with pytest.raises(ConfigError, match="without root data with local_privacy: they are exam"):
        check(private)


@pytest.mark.parametrize("setting", ["lr_schedule", "proximal_schedule"])
def test_rates_by_client_are_refused(setting: str) -> None:
    """The server trains too, and its rate would be that of client 0."""
    rates = Table(factors=(1.0,) * NUM, by="client")
    hyper = settings_of("fedavg", aggregator=FLTrust(), proximal=0.1, **{setting: rates})
    allowed = f"^training.{setting}.by is 'client', but must be another one with fltrust"
    with pytest.raises(ConfigError, match=allowed):
        run("fedavg", hyper)
