"""Leaves that are averaged but not trained: statistics against PyTorch's formula, and systems.

Dimension letters: `B` examples, `C` channels.
"""

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fedjax_sim
from fedjax_sim import ConfigError, Layout, models, problems
from fedjax_sim.clients import ClientTraining, LocalTraining, local_training
from fedjax_sim.clients.seen_losses import losses_of
from fedjax_sim.core.schedules import InverseTime
from fedjax_sim.core.trees import join
from fedjax_sim.core.types import Batch, Event, Extras, Plan, full_precision_bits
from fedjax_sim.models.networks import BatchNorm
from fedjax_sim.server.rules import FLTrust
from fedjax_sim.systems import favano, fedavg, fedbn, fedbuff, fedper, scaffold

KEY = jax.random.key(5)
RANDOM = np.random.default_rng(3)
X = (2 + 3 * RANDOM.normal(size=(60, 4))).astype("float32")
Y = np.tanh(X).sum(axis=1).astype("float32")


class Network(nn.Module):
    """A batch normalisation of the inputs, and a dense layer with one more."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = BatchNorm()(x, train=train)
        return nn.Dense(1)(BatchNorm()(nn.tanh(nn.Dense(5)(x)), train=train))


@cache
def problem_of(num_clients: int = 4, **options: Any) -> Any:
    return problems.supervised(
        Network(),
        problems.squared_error,
        (X, Y),
        clients=np.arange(60) % num_clients,
        test=(X, Y),
        **options,
    )


def torch_statistics(batches: list[np.ndarray], momentum: float = 0.1) -> tuple[Any, Any]:
    """Follow PyTorch's documented formula for `BatchNorm` from running mean 0 and variance 1.

    x_new = (1 - momentum) x + momentum x_t, where x_t is a batch's mean or unbiased variance.
    """
    mean, var = np.zeros(batches[0].shape[-1]), np.ones(batches[0].shape[-1])
    for batch in batches:
        flat = batch.reshape(-1, batch.shape[-1]).astype(float)
        mean = (1 - momentum) * mean + momentum * flat.mean(axis=0)
        var = (1 - momentum) * var + momentum * flat.var(axis=0, ddof=1)
    return mean, var


def test_running_statistics_are_those_of_torch() -> None:
    """Images too; outputs use the biased variance in training and the running one afterwards."""
    module = BatchNorm()
    batches = [RANDOM.normal(1, 2, size=(5, 3, 3, 2)).astype("float32") for _ in range(4)]
    variables = module.init(KEY, batches[0])
    for batch in batches:
        found, state = module.apply(variables, batch, train=True, mutable=["batch_stats"])
        variables |= state
        flat = batch.reshape(-1, 2)
        expected = (batch - flat.mean(axis=0)) / np.sqrt(flat.var(axis=0) + 1e-5)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    mean, var = torch_statistics(batches)
    np.testing.assert_allclose(variables["batch_stats"]["mean"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variables["batch_stats"]["var"], var, rtol=1e-5)
    found = module.apply(variables, batches[0])
    expected = (batches[0] - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    variables["batch_stats"]["var"] = jnp.array([-1.0, 1.0])
    assert np.isfinite(module.apply(variables, batches[0])).all()


def test_statistics_of_local_steps_are_those_of_the_same_batches() -> None:
    """Of a slot's five steps, the last two of which are masked in the other; none of weight decay.

    The inputs' statistics do not depend on what is learnt.
    """
    problem, steps = problem_of(), jnp.array([5, 3], "int32")
    clients, zero = jnp.array([1, 3], "int32"), jnp.zeros(2, "int32")
    event = Event(
        jnp.int32(0), clients, steps, zero, zero.astype("float32"), zero, zero, jnp.int32(0)
    )
    decay = ClientTraining(optimizer=lambda lr: optax.adamw(lr, weight_decay=0.5))
    start = problem.init(KEY)
    batches: dict[int, list] = {0: [], 1: []}

    def direction(g: Any, model: Any, q: Any, start: Any, *, batch: Any) -> Any:
        jax.debug.callback(lambda q, examples: seen.append((int(q), examples)), q, batch.examples)
        return g

    for hyper in (LocalTraining(batch_size=6), LocalTraining(batch_size=6, training=decay)):
        for slot in range(2):
            seen: list[Any] = []
            alone = event.within(
                **{k: getattr(event, k)[slot : slot + 1] for k in ("clients", "steps", "offset")}
            )
            train = local_training(problem, hyper, Plan(), direction=direction)
            jax.jit(lambda: train(KEY, alone, start=start))()[0]  # noqa: B023
            jax.effects_barrier()
            rows = [np.asarray(problem.held.at(clients[slot], each)) for _, each in seen]
            batches[slot] = [X[each] for each in rows]
            assert len(rows) == steps[slot]
        train = local_training(problem, hyper, Plan(slots_at_once=2))
        ends, _ = jax.jit(lambda: train(KEY, event, start=start))()  # noqa: B023
        for slot in range(2):
            mean, var = torch_statistics(batches[slot])
            found = jax.tree.map(lambda leaf: leaf[slot], ends)["batch_stats"]["BatchNorm_0"]  # noqa: B023
            np.testing.assert_allclose(found["mean"], mean, rtol=1e-4)
            np.testing.assert_allclose(found["var"], var, rtol=1e-4)


def simulate(
    system: Any, problem: Any, layout: Layout = Layout(), start: Any = None, **settings: Any
) -> Any:
    made = {"num_clients": 4, "batch_size": 8, "lr": 0.1, "local_steps": 3} | settings
    return fedjax_sim.simulate(
        system,
        problem,
        system.Hyper(**made),
        budget=fedjax_sim.Ticks(12),
        num_evals=3,
        layout=layout,
        start=start,
    )


SYSTEMS = {
    "fedavg": (fedavg.system, {"num_selected": 3}),
    "fedbuff": (fedbuff.system, {"buffer_size": 2, "concurrency": 3}),
    "favano": (favano.system, {"num_selected": 3}),
    "scaffold": (scaffold.system, {"num_selected": 3}),
    "scaffold exact": (scaffold.system, {"num_selected": 3, "control": "exact"}),
    "fedadam": (fedjax_sim.SYSTEMS["fedadam"], {"num_selected": 3, "server_lr": 0.05}),
    "fedbn": (fedbn.system, {"num_selected": 3}),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SYSTEMS)
def test_batch_normalisation_trains(name: str) -> None:
    """Losses fall, statistics come near those of the data, and messages count their bits."""
    (system, settings), problem = SYSTEMS[name], problem_of()
    run = simulate(system, problem, **settings)
    assert float(run.curves.loss[-1]) < 0.7 * float(run.curves.loss[0])
    found = run.models["batch_stats"]["BatchNorm_0"]
    assert np.all(np.abs(found["mean"] - X.mean(axis=0)) < np.abs(X.mean(axis=0)))
    if name != "favano":  # It extrapolates progress.
        assert np.all((found["var"] > 1) & (found["var"] < 1.5 * X.var(axis=0)))
    shapes = jax.eval_shape(problem.init, KEY)
    whole = full_precision_bits(shapes)
    sent = whole - full_precision_bits([shapes["batch_stats"], shapes["params"]["BatchNorm_0"]])
    per_message = {"fedbn": sent - full_precision_bits(shapes["params"]["BatchNorm_1"])}
    per_message |= {"scaffold": 2 * whole, "scaffold exact": 2 * whole}
    num = (run.timelines[0].clients >= 0).sum()
    assert run.curves.uplink_bits[-1] == num * per_message.get(name, whole)


def test_evaluations_use_running_statistics() -> None:
    problem = problem_of()
    model = simulate(fedavg.system, problem, num_selected=3).models
    expected = Network().apply(model, X)
    np.testing.assert_allclose(problem.outputs(model), expected, rtol=1e-5, atol=1e-6)
    loss = np.square(np.asarray(expected)[:, 0] - Y).mean()
    np.testing.assert_allclose(problem.evaluate(model)["loss"], loss, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedbuff"])
def test_a_lane_alone_equals_it_in_a_batch_and_in_chunks(name: str) -> None:
    system, settings = SYSTEMS[name]
    made = {"num_clients": 4, "batch_size": 8, "lr": 0.1, "local_steps": 3} | settings
    given = {"budget": fedjax_sim.Ticks(6), "num_evals": 3, "layout": Layout(lanes_at_once=True)}
    sweep = fedjax_sim.sweep(system, problem_of(), system.Hyper(**made), seeds=3, **given)
    for layout in (Layout(lanes_at_once=False, evals_per_chunk=1), Layout(client_devices=2)):
        given |= {"layout": layout}
        alone = fedjax_sim.simulate(system, problem_of(), system.Hyper(**made), seed=1, **given)
        jax.tree.map(
            lambda many, one: np.testing.assert_allclose(many[1], one, rtol=1e-4, atol=1e-5),
            sweep.models,
            alone.models,
        )


@pytest.mark.slow
def test_an_optimizer_of_the_server_does_not_move_statistics() -> None:
    """FedAdam's steps would be of one size; statistics take the clients' mean."""
    problem, settings = problem_of(), {"num_selected": 4, "local_steps": 2}
    budget = {"budget": fedjax_sim.Ticks(1), "num_evals": 1}
    found = []
    for system in (fedavg.system, fedjax_sim.SYSTEMS["fedadam"]):
        hyper = system.Hyper(num_clients=4, batch_size=8, lr=0.1, **settings)
        found.append(fedjax_sim.simulate(system, problem, hyper, **budget).models["batch_stats"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *found)


def averaged_statistics(
    timeline: Any, *, cache: bool = False, has_server: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Loop over ticks: batches of all examples, and plain sums of clients' progress.

    Their weights sum to 1 at most. With `has_server`, the server's own counts as one of equal
    models, as in FAVANO.
    """
    models = [(np.zeros(4), np.ones(4))]
    kept = np.zeros((4, 2, 4))
    for tick, clients in enumerate(timeline.clients):
        moved, before = np.zeros((2, 4)), kept.copy()
        for slot, client in enumerate(clients):
            start = np.array(models[timeline.version[tick, slot]])
            flat, (mean, var) = X[client::4].astype(float), start
            for _ in range(timeline.steps[tick, slot]):
                mean = 0.9 * mean + 0.1 * flat.mean(axis=0)
                var = 0.9 * var + 0.1 * flat.var(axis=0, ddof=1)
            progress = np.array([mean, var]) - start
            if has_server:
                moved += (np.array([mean, var]) - models[-1]) / (len(clients) + 1)
                continue
            weight = timeline.weight[tick] / max(1, timeline.weight[tick].sum())
            moved += weight[slot] * (progress - cache * before[client])
            kept[client] = progress
        mean, var = np.array(models[-1]) + moved + cache * before.mean(axis=0)
        models.append((mean, var))
    return models[-1]


RATE = {"server_lr": 0.3}
BALL = {"server_optimizer": partial(optax.sgd, momentum=0.9)} | RATE
ROUNDS, BUFFER = {"num_selected": 4}, {"buffer_size": 2, "concurrency": 3}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", BALL | ROUNDS),
        ("fedavgm", {"server_momentum": 0.9} | RATE | ROUNDS),
        ("fedyogi", RATE | ROUNDS),
        ("fednova", BALL | ROUNDS),
        ("qfedavg", {"fairness": 3.0} | ROUNDS),
        ("favano", {"num_selected": 3}),
        ("scaffold", RATE | ROUNDS),
        ("feddyn", {"regularization": 0.5} | ROUNDS),
        ("fedbuff", {"server_momentum": 0.9} | RATE | BUFFER),
        ("ca2fl", {"server_lr_schedule": InverseTime()} | RATE | BUFFER),
        ("asyncfeded", {"numerator": 3.0}),
        ("gen_async", {"num_tasks": 3, "routing_exponent": 1.0, "slow_fraction": 0.5}),
        ("fedavg", {"num_selected": 1, "selection": "poisson"}),
    ],
)
def test_no_rate_and_no_momentum_of_the_server_acts_on_statistics(
    name: str, settings: dict[str, Any]
) -> None:
    """They are averaged: against a loop in NumPy that knows neither, and no factor on progress."""
    run = simulate(fedjax_sim.SYSTEMS[name], problem_of(), batch_size=15, **settings)
    if name == "gen_async" or "selection" in settings:
        assert run.timelines[0].weight.sum(axis=1).max() > 1.5
    has = {"cache": name == "ca2fl", "has_server": name == "favano"}
    mean, var = averaged_statistics(run.timelines[0], **has)
    found = run.models["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["var"], var, rtol=1e-4, atol=1e-5)


def test_progress_per_local_step_does_not_scale_statistics() -> None:
    """FedNova, whose clients do one to four local steps here, averages their statistics."""
    hyper = fedavg.FedNova(num_clients=4, num_selected=4, batch_size=15, local_steps=4)
    bound = fedjax_sim.bind(fedavg.fednova, problem_of(), hyper, budget=fedjax_sim.Ticks(2))
    state, steps = bound.init(), jnp.array([[1, 4, 2, 3], [4, 1, 1, 2]], "int32")
    events = [bound.event(tick)._replace(steps=each) for tick, each in enumerate(steps)]
    for event in events:
        state, _ = bound.step(state, event)
    named = ("clients", "steps", "version", "weight")
    rows = {name: np.stack([getattr(event, name) for event in events]) for name in named}
    mean, var = averaged_statistics(SimpleNamespace(**rows))
    found = bound.model(state)["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["var"], var, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aggregation", "kind"),
    [
        ("average", {}),
        ("divide_by_steps", {"ticks_per_round": 2}),
        ("fednova", {}),
        ("divide_by_steps", {"num_reports": 2, "server_lr": 0.3}),
        ("fednova", {"num_reports": 2}),
    ],
)
def test_iterations_of_groups_do_not_scale_statistics(
    aggregation: str, kind: dict[str, float]
) -> None:
    """The global server averages them, against a loop over iterations of groups of two clients."""
    name = "async_hierarchical" if "num_reports" in kind else "hierarchical"
    run = simulate(
        fedjax_sim.SYSTEMS[name],
        problem_of(),
        batch_size=15,
        client_steps=2,
        aggregation=aggregation,
        sampling="reshuffled",
        num_groups=2,
        shift=(0.3, 2.0),
        local_steps=1,
        **kind,
    )
    timeline, begin = run.timelines[0], np.array([np.zeros(4), np.ones(4)])
    assert len(np.unique(timeline.steps)) > 1
    models, groups = [begin], np.stack([begin, begin])
    for tick, present in enumerate(timeline.clients):
        moved = np.zeros((2, 4))
        for slot, group in enumerate(present):
            version = timeline.version[tick, slot]
            is_asynchronous, is_start = "num_reports" in kind, version == tick
            if is_start or is_asynchronous:
                groups[group] = models[version]
            for _ in range(timeline.steps[tick, slot]):
                reached = []
                for client in (2 * group, 2 * group + 1):
                    flat, (mean, var) = X[client::4].astype(float), groups[group]
                    for _ in range(2):
                        mean = 0.9 * mean + 0.1 * flat.mean(axis=0)
                        var = 0.9 * var + 0.1 * flat.var(axis=0, ddof=1)
                    reached.append([mean, var])
                groups[group] = np.mean(reached, axis=0)
            if timeline.weight[tick, slot] > 0:
                moved += (groups[group] - models[version]) / 2
        models.append(models[-1] + moved)
    found = run.models["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(found["mean"], models[-1][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["var"], models[-1][1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asyncfeded", "asyncfeded_adaptive"])
def test_distances_of_models_do_not_count_statistics(name: str) -> None:
    """Trained leaves are the same whatever statistics a run starts from: steps do not read them."""
    model = problem_of().init(KEY)
    far = {**model, "batch_stats": jax.tree.map(lambda leaf: leaf + 1000, model["batch_stats"])}
    near, other = (
        simulate(fedjax_sim.SYSTEMS[name], problem_of(), start=start).models["params"]
        for start in (model, far)
    )
    jax.tree.map(np.testing.assert_array_equal, near, other)
    assert any(
        (a != b).any() for a, b in zip(*map(jax.tree.leaves, (near, model["params"])), strict=True)
    )


def test_fedbn_is_fedper_with_normalisation_layers() -> None:
    """Bit for bit; clients keep scales, biases and statistics."""
    problem = problem_of()
    same = {"num_selected": 3, "personal": fedbn.Hyper().personal}
    a, b = simulate(fedbn.system, problem, num_selected=3), simulate(fedper.system, problem, **same)
    jax.tree.map(np.testing.assert_array_equal, a.models, b.models)
    shared, own = fedbn.Hyper().split(a.models)
    assert {*own["batch_stats"]} == {"BatchNorm_0", "BatchNorm_1"}
    assert len(jax.tree.leaves(own)) == 8 and len(jax.tree.leaves(shared)) == 4
    jax.tree.map(np.testing.assert_array_equal, join(shared, own), a.models)


def test_priors_and_gradients_leave_statistics_out() -> None:
    problem = problem_of(prior_precision=3.0)
    model = problem.init(KEY)
    far = {**model, "batch_stats": jax.tree.map(lambda leaf: leaf + 9, model["batch_stats"])}
    given = (), Batch(jnp.arange(8), KEY), Extras(model, (), jnp.int32(0))
    near, other = (problem.local_loss(params, *given)[0] for params in (model, far))
    np.testing.assert_allclose(near, other, rtol=1e-5)


def test_losses_that_clients_tell_are_those_of_running_statistics() -> None:
    """FLTrust, whose server takes losses of single examples, refuses networks that have them."""
    problem, everyone = problem_of(), jnp.arange(4)
    model = simulate(fedavg.system, problem, num_selected=4).models
    given = problem, LocalTraining(batch_size=15), Plan(), KEY, everyone, 0 * everyone
    seen, _ = losses_of(*given, model=model)
    expected = [problem.client_loss(model, client, KEY) for client in everyone]
    np.testing.assert_allclose(seen.mean, expected, rtol=1e-4)
    with pytest.raises(ConfigError, match="must be one without local_loss and model state"):
        simulate(fedavg.system, problem, num_selected=3, aggregator=FLTrust(examples=9))


@pytest.mark.slow
def test_a_step_loss_of_a_network_with_state() -> None:
    """It is given and returns the collections by name; the mean of the loss is a case of it."""
    network = Network()

    def step_loss(params: Any, aux: Any, batch: Any, extras: Any) -> tuple[jax.Array, Any]:
        variables = {**params, **aux}
        outputs, state = network.apply(variables, batch.inputs, train=True, mutable=["batch_stats"])
        return problems.squared_error(outputs, batch.targets).mean(), state

    own = simulate(fedavg.system, problem_of(step_loss=step_loss), num_selected=3)
    plain = simulate(fedavg.system, problem_of(), num_selected=3)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        own.models,
        plain.models,
    )


def test_a_residual_network_has_either_normalisation() -> None:
    images = jnp.zeros((1, 8, 8, 3))
    group, batch = (
        jax.eval_shape(models.ResNet(10, (8,), 1, norm=norm).init, KEY, images)
        for norm in ("group", "batch")
    )
    assert "batch_stats" in batch and "batch_stats" not in group
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(each["params"])) for each in (group, batch)]
    assert sizes[0] == sizes[1]  # a scale and a bias for each channel
    with pytest.raises(ConfigError, match="norm"):
        models.ResNet(10, (8,), 1, norm="layer")


def test_clipped_examples_with_statistics_are_refused() -> None:
    clipped = ClientTraining(example_clip=1.0)
    with pytest.raises(ConfigError, match=r"training.example_clip is 1.0, but must be 0 where a l"):
        simulate(fedavg.system, problem_of(), num_selected=3, training=clipped)
