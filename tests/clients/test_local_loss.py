"""Losses of local steps that see the start, own rows and an aux, and measures of local steps.

Dimension letters: `S` slots, `N` clients, `M` examples of a client, `P` parameters.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import ConfigError, Event, Layout, Plan
from fedjax_sim.clients import (
    ClientTraining,
    LocalTraining,
    drift,
    gradient_norm,
    local_training,
    with_measures,
)
from fedjax_sim.core.events import PackedRows
from fedjax_sim.core.types import Batch, Extras, Facts
from fedjax_sim.systems import (
    ditto,
    fedavg,
    fedbuff,
    fedprox,
    hierarchical,
    langevin,
    scaffold,
)
from fedjax_sim.timelines.delays.client_table import ClientTable

KEY = jax.random.key(7)
MU, NU, DECAY = 0.3, 0.2, 0.5


@struct.dataclass
class Teaching:
    """Least squares with a pull to the start, one to a teacher that follows, and own slopes.

    The teacher is the aux: the mean of itself and of the model at each step.
    """

    inputs: jax.Array  # [N, M, P]
    targets: jax.Array  # [N, M]

    @property
    def counts(self) -> jax.Array:
        return jnp.full(len(self.inputs), self.inputs.shape[1])

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.ones(self.inputs.shape[2])

    def loss(self, params: Any, client: Any, examples: Any, key: Any) -> jax.Array:
        away = self.inputs[client, examples] @ params - self.targets[client, examples]
        return jnp.square(away).mean() / 2

    def first_aux(self, params: jax.Array) -> jax.Array:
        return 2 * params

    def local_loss(
        self, params: jax.Array, aux: jax.Array, batch: Batch, extras: Extras
    ) -> tuple[jax.Array, jax.Array]:
        loss = self.loss(params, extras.client, *batch)
        loss += MU / 2 * jnp.square(params - extras.start).sum()
        loss += NU / 2 * jnp.square(params - aux).sum()
        if jax.tree.leaves(extras.own):
            loss += extras.own @ params
        return loss, DECAY * aux + (1 - DECAY) * params

    def evaluate(self, params: jax.Array) -> dict[str, jax.Array]:
        losses = jnp.square(self.inputs @ params - self.targets).mean()
        return {"loss": losses, **{f"w{i}": each for i, each in enumerate(params)}}


def teaching(num_clients: int = 5) -> Teaching:
    random = np.random.default_rng(0)
    made = random.normal(size=(num_clients, 4, 3)), random.normal(size=(num_clients, 4))
    return Teaching(*(jnp.asarray(each, "float32") for each in made))


def taught(
    problem: Teaching, client: int, start: Any, steps: int, own: Any, lr: float
) -> tuple[np.ndarray, np.ndarray, list[float], list[float]]:
    """Train in NumPy on whole batches; return model, teacher, and norms of slopes and drift."""
    x, y = (np.asarray(each[client], float) for each in (problem.inputs, problem.targets))
    start = np.asarray(start, float)
    w, teacher, norms, drifts = start, 2 * start, [], []
    for _ in range(steps):
        slope = x.T @ (x @ w - y) / len(y) + MU * (w - start) + NU * (w - teacher) + own
        norms, drifts = [*norms, np.linalg.norm(slope)], [*drifts, np.linalg.norm(w - start)]
        teacher = DECAY * teacher + (1 - DECAY) * w
        w = w - lr * slope
    return w, teacher, norms, drifts


def event_of(clients: Any, steps: Any) -> Event:
    """Make a tick with these slots."""
    clients, steps = (jnp.asarray(x, "int32") for x in (clients, steps))
    zero = jnp.zeros_like(clients)
    tick = jnp.int32(0)
    return Event(tick, clients, steps, zero, zero.astype("float32"), zero, zero, tick)


CLIENTS, STEPS = [3, -1, 0, 4], [5, 0, 1, 3]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("plan", "facts"),
    [
        (Plan(), Facts()),
        (Plan(slots_at_once=2), Facts()),
        (Plan(slots_at_once=4, static_trips=True), Facts(most_steps=5)),
        (Plan(static_trips=True), Facts(most_steps=5)),
        (Plan(), Facts(most_steps=5, packed=PackedRows(2, 2, 4, 4))),
    ],
    ids=["in turn", "two at once", "masked", "masked in turn", "in rows"],
)
def test_an_aux_is_carried_and_extras_are_read(plan: Plan, facts: Facts) -> None:
    """Models, aux and measures of every slot equal those of an own loop in every layout."""
    problem, hyper = teaching(), LocalTraining(lr=0.1, batch_size=4)
    measured = plan._replace(measures=(("slope", gradient_norm), ("drift", drift)))
    own = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)), "float32")
    start = jnp.array([1.0, -1.0, 0.5])

    @partial(jax.jit, static_argnums=0)
    def train(plan: Plan, own: Any) -> Any:
        event = event_of(CLIENTS, STEPS).within(facts=facts)
        return local_training(problem, hyper, plan)(KEY, event, start=start, own=own)

    models, work = train(measured, own)
    for s, (client, steps) in enumerate(zip(CLIENTS, STEPS, strict=True)):
        given = problem, max(client, 0), start, steps, np.asarray(own[s], float), 0.1
        model, teacher, norms, drifts = taught(*given)
        np.testing.assert_allclose(models[s], model, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(work.aux[s], teacher, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(work.measured["slope"][s], sum(norms), rtol=1e-5)
        np.testing.assert_allclose(work.measured["drift"][s], sum(drifts), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(train(plan, own)[0], models)  # without measures


def simulate(system: Any, problem: Any, layout: Layout | None = None, **settings: Any) -> Any:
    """Run a system for six ticks with three evaluations."""
    made = {"num_clients": 5, "batch_size": 4, "lr": 0.1, "local_steps": 3} | settings
    given = {} if layout is None else {"layout": layout}
    if "keep" in made:
        given["keep"] = made.pop("keep")
    return fedjax_sim.simulate(
        system, problem, system.Hyper(**made), budget=fedjax_sim.Ticks(6), num_evals=3, **given
    )


@pytest.mark.slow
def test_aux_on_devices_and_rows() -> None:
    """Slots over two devices, lanes at once and packed rows learn what slots in turn do."""
    settings = {"buffer_size": 3, "concurrency": 4}
    alone = simulate(fedbuff.system, teaching(), Layout(1, False, 1, 1), **settings)
    for layout in (Layout(None, True, 1, 2), Layout(None, True, 1, 1, packed=True)):
        found = simulate(fedbuff.system, teaching(), layout, **settings)
        np.testing.assert_allclose(found.models, alone.models, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("system", [fedavg.system, fedbuff.system], ids=lambda each: each.name)
def test_energy_is_that_of_steps_and_models_with_an_aux(system: Any) -> None:
    """The aux stays with its client and takes none; a budget ends the run at the right tick."""
    step, byte = np.arange(1.0, 6.0), np.arange(5.0)[::-1] / 100
    table = ClientTable(energy_step=step, energy_byte=byte)
    made: dict[str, Any] = {"num_clients": 5, "batch_size": 4, "lr": 0.1, "local_steps": 3}
    made |= {"num_selected": 3} if system is fedavg.system else {"buffer_size": 3}
    plain, hyper = system.Hyper(**made), system.Hyper(**made, client_table=table)

    def run(hyper: Any, budget: Any) -> Any:
        return fedjax_sim.simulate(system, teaching(), hyper, budget=budget, num_evals=6)

    whole = run(hyper, fedjax_sim.Ticks(6))
    used = [0.0]
    for clients in whole.timelines[0].clients:
        of_messages = 2 * 3 * 4 * byte[clients]  # a model of three numbers each way
        used.append(used[-1] + (3 * step[clients] + of_messages).sum())
    np.testing.assert_allclose(whole.curves.energy.values.ravel(), used, rtol=1e-6)
    np.testing.assert_array_equal(whole.models, run(plain, fedjax_sim.Ticks(6)).models)
    # The energy of the first four ticks and nearly that of the fifth.
    spent = fedjax_sim.Energy(used[5] * (1 - 1e-5))
    short = run(hyper, spent)
    assert len(short.timelines[0].time) == 4
    np.testing.assert_array_equal(short.models, run(plain, fedjax_sim.Ticks(4)).models)


def test_rates_are_swept_with_an_aux() -> None:
    """A family of rates in one program learns what each rate alone does."""
    hyper = fedavg.Hyper(num_clients=5, num_selected=3, batch_size=4, local_steps=3)
    run = fedjax_sim.sweep(
        fedavg.system, teaching(), hyper, settings={"lr": [0.05, 0.2]}, budget=fedjax_sim.Ticks(6)
    )
    for i, lr in enumerate((0.05, 0.2)):
        alone = simulate(fedavg.system, teaching(), num_selected=3, lr=lr)
        np.testing.assert_allclose(run.models.reshape(2, 3)[i], alone.models, rtol=1e-5, atol=1e-6)


@struct.dataclass
class Pulled(Teaching):
    """The same without a teacher: a regulariser that sees the start."""

    def first_aux(self, params: jax.Array) -> tuple[()]:
        return ()

    def local_loss(
        self, params: jax.Array, aux: tuple[()], batch: Batch, extras: Extras
    ) -> tuple[jax.Array, tuple[()]]:
        loss = self.loss(params, extras.client, *batch)
        return loss + MU / 2 * jnp.square(params - extras.start).sum(), aux


@struct.dataclass
class Plain(Teaching):
    """Least squares alone."""

    local_loss: Any = struct.field(pytree_node=False, default=None)


def test_a_regulariser_of_the_start_is_the_proximal_term() -> None:
    own = Pulled(*vars(teaching()).values())
    plain = Plain(*vars(teaching()).values())
    found = simulate(fedavg.system, own, num_selected=3)
    expected = simulate(fedprox.system, plain, num_selected=3, proximal=MU)
    without = simulate(fedavg.system, plain, num_selected=3)
    np.testing.assert_allclose(found.models, expected.models, rtol=1e-6)
    assert np.abs(found.models - without.models).max() > 1e-3


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_a_loss_reads_what_the_system_keeps_for_the_client(name: str) -> None:
    """SCAFFOLD's control variates and FedDyn's gradients are its own rows, as in an own loop."""
    problem, rate, num_steps, alpha = teaching(), 0.1, 3, 0.1
    run = simulate(fedjax_sim.SYSTEMS[name], problem, num_selected=3)
    x, kept = np.ones(3), np.zeros((5, 3))  # c_i, or g_i
    memory = np.zeros(3)  # c, or h
    for cohort in run.timelines[0].clients:
        ends = {}
        for i in cohort:
            # The loss adds the row to the gradient, and the system its own correction.
            pull = memory - kept[i] if name == "scaffold" else -kept[i]
            own = kept[i] + pull
            ends[i] = _pulled(
                problem, i, x, num_steps, own, rate, 0 if name == "scaffold" else alpha
            )
        moved = np.array([ends[i] - x for i in cohort])
        if name == "scaffold":
            new = {i: kept[i] - memory - (ends[i] - x) / (num_steps * rate) for i in cohort}
            memory = memory + sum(new[i] - kept[i] for i in cohort) / 5
            x = x + moved.mean(axis=0)
        else:
            new = {i: kept[i] - alpha * (ends[i] - x) for i in cohort}
            memory = memory - alpha * moved.sum(axis=0) / 5
            x = x + moved.mean(axis=0) - memory / alpha
        for i in cohort:
            kept[i] = new[i]
    np.testing.assert_allclose(np.ravel(run.models), x, rtol=1e-4, atol=1e-5)


def test_a_loss_reads_a_personal_model_that_it_trains() -> None:
    """Ditto's v_k is the client's row where v_k itself is trained, too."""
    problem, hyper = teaching(), ditto.Hyper(num_clients=5, num_selected=5, batch_size=4, lr=0.1)
    bound = fedjax_sim.bind(ditto.system, problem, hyper, budget=fedjax_sim.Ticks(1))
    state, _ = bound.step(bound.init(), bound.event(0))
    start, given = np.ones(3), (hyper.local_steps, np.ones(3), hyper.lr, hyper.attachment)
    expected = [_pulled(problem, i, start, *given) for i in range(5)]
    np.testing.assert_allclose(state.clients, expected, rtol=1e-4, atol=1e-5)


def _pulled(
    problem: Teaching, client: int, start: Any, steps: int, own: Any, lr: float, alpha: float
) -> np.ndarray:
    """Train as `taught`, with a pull of strength alpha to the start more."""
    x, y = (np.asarray(each[client], float) for each in (problem.inputs, problem.targets))
    w, teacher = start, 2 * start
    for _ in range(steps):
        slope = x.T @ (x @ w - y) / len(y) + (MU + alpha) * (w - start) + NU * (w - teacher) + own
        teacher = DECAY * teacher + (1 - DECAY) * w
        w = w - lr * slope
    return w


@pytest.mark.few(2)
@pytest.mark.parametrize("system", [fedavg, fedbuff, ditto, scaffold], ids=lambda s: s.system.name)
def test_measures_are_curves_and_change_no_bits(system: Any) -> None:
    """They are means over the steps since the last evaluation, of all clients and of each."""
    of_cohort = {} if system is fedbuff else {"num_selected": 3}
    of_cohort = {"buffer_size": 3, "concurrency": 4} if system is fedbuff else of_cohort
    problem = Plain(*vars(teaching()).values())
    plain = simulate(system.system, problem, **of_cohort)
    measures = {"drift": drift, "slope": gradient_norm, "own": lambda g, w, w0, aux: w[0] - w0[0]}
    run = simulate(with_measures(system.system, measures), problem, **of_cohort)
    np.testing.assert_array_equal(run.models, plain.models)
    np.testing.assert_array_equal(run.curves.loss, plain.curves.loss)
    for name in measures:
        each, all_steps = run.curves[f"client_{name}"].values, run.curves[name].values
        assert each.shape == (4, 5) and np.isnan(each[0]).all() and np.isnan(all_steps[0])
        timeline = run.timelines[0]
        for v in range(3):
            clients, steps = (x[2 * v : 2 * v + 2] for x in (timeline.clients, timeline.steps))
            counts = [steps[clients == i].sum() for i in range(5)]
            np.testing.assert_array_equal(np.isnan(each[v + 1]), np.equal(counts, 0))
            mean = np.nansum(each[v + 1] * counts) / np.sum(counts)
            np.testing.assert_allclose(all_steps[v + 1], mean, rtol=1e-5)


def test_sweeps_keep_measures_by_name_or_function(compiled: list[str]) -> None:
    """With the curves of the measured system, and one program for equal calls."""
    problem, of_cohort = teaching(), {"num_selected": 3}
    own = {"drift": drift, "gradient_norm": gradient_norm}
    expected = simulate(with_measures(fedavg.system, own), problem, **of_cohort).curves
    compiled.clear()
    for measures in (own, [*own], (*own,)):
        keep = fedjax_sim.Keep(measures=measures)
        found = simulate(fedavg.system, problem, keep=keep, **of_cohort).curves
        for name in (*own, *(f"client_{name}" for name in own)):
            np.testing.assert_array_equal(found[name], expected[name])
    assert "jit(_advance)" not in compiled
    with pytest.raises(ConfigError, match=r"measure is 'drif', but must be one of .*mean 'drift'"):
        simulate(fedavg.system, problem, keep=fedjax_sim.Keep(measures=["drif"]), **of_cohort)


def test_measures_of_a_known_run() -> None:
    """One round of two clients, by an own loop."""
    problem = teaching()
    system = with_measures(fedavg.system, {"drift": drift, "slope": gradient_norm})
    hyper = fedavg.Hyper(num_clients=5, num_selected=2, local_steps=3, lr=0.1, batch_size=4)
    run = fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(1), num_evals=1)
    norms, drifts = [], []
    for client in run.timelines[0].clients[0].tolist():
        *_, slopes, ways = taught(problem, client, np.ones(3), 3, 0.0, 0.1)
        norms, drifts = [*norms, *slopes], [*drifts, *ways]
        of_client = run.curves.client_slope[1, client]
        np.testing.assert_allclose(of_client, np.mean(slopes), rtol=1e-5)
    np.testing.assert_allclose(run.curves.slope[1], np.mean(norms), rtol=1e-5)
    np.testing.assert_allclose(run.curves.drift[1], np.mean(drifts), rtol=1e-5)


def test_a_lane_that_ends_early_repeats_its_last_measures() -> None:
    """As it does all metrics; its final means would be nan, and those over seeds not known."""
    hyper = fedbuff.Hyper(num_clients=5, buffer_size=2, restart="after_interaction", batch_size=4)
    run = fedjax_sim.sweep(
        fedbuff.system,
        teaching(),
        hyper.replace(server_interact=1.0),
        settings={"server_interact": [1.0, 30.0]},
        budget=fedjax_sim.Time(200.0),
        num_evals=4,
        keep=fedjax_sim.Keep(measures=["drift"]),
    )
    (_, ticks), (_, means) = run.curves.ticks.values[:, 0], run.curves.drift.values[:, 0]
    assert ticks[1] == ticks[-1] and np.isfinite(run.curves.drift[..., 1:]).all()
    assert means[1] == means[-1] > 0


@pytest.mark.slow
def test_measures_over_chunks_and_lanes() -> None:
    """Stretches of ticks add up, in one lane and in lanes that are batched."""
    system = with_measures(fedavg.system, {"drift": drift})
    settings = {"num_selected": 3}
    whole = simulate(system, teaching(), **settings).curves.client_drift
    chunked = simulate(system, teaching(), Layout(evals_per_chunk=1), **settings)
    np.testing.assert_array_equal(chunked.curves.client_drift, whole)
    hyper = fedavg.Hyper(num_clients=5, num_selected=3, batch_size=4, lr=0.1, local_steps=3)
    run = fedjax_sim.sweep(
        system, teaching(), hyper, seeds=2, budget=fedjax_sim.Ticks(6), num_evals=3
    )
    np.testing.assert_allclose(run.curves.client_drift[0], whole, rtol=1e-5)


def test_a_direction_may_see_the_batch() -> None:
    """Here it is the gradient times the number of the first example."""
    problem, hyper = Plain(*vars(teaching()).values()), LocalTraining(lr=0.1, batch_size=2)
    event, start = event_of([0, 1], [2, 3]), jnp.ones(3)
    batches = []

    def direction(g: Any, model: Any, q: Any, start: Any, *, batch: Batch) -> Any:
        jax.debug.callback(lambda found: batches.append(found.tolist()), batch.examples)
        return g * batch.examples[0]

    train = local_training(problem, hyper, Plan(), direction=direction)
    models, _ = jax.jit(lambda: train(KEY, event, start=start))()
    jax.effects_barrier()
    assert len(batches) == 5 and {len(each) for each in batches} == {2}
    for slot, seen in enumerate((batches[:2], batches[2:])):
        w = np.ones(3)
        for rows in seen:
            x, y = problem.inputs[slot, np.array(rows)], problem.targets[slot, np.array(rows)]
            w = w - 0.1 * rows[0] * np.asarray(x.T @ (x @ w - y)) / 2
        np.testing.assert_allclose(models[slot], w, rtol=1e-5, atol=1e-6)


def test_gradients_accumulate_to_those_of_a_larger_batch() -> None:
    """Four steps of two examples, in pairs, are two steps of four: epochs go on in one order."""

    def in_pairs(rate: Any) -> optax.GradientTransformation:
        return optax.MultiSteps(optax.sgd(rate), 2).gradient_transformation()

    problem = Plain(*vars(teaching()).values())
    small = {"local_steps": 4, "batch_size": 2, "training": ClientTraining(optimizer=in_pairs)}
    found = simulate(fedavg.system, problem, num_selected=3, **small)
    expected = simulate(fedavg.system, problem, num_selected=3, local_steps=2, batch_size=4)
    np.testing.assert_allclose(found.models, expected.models, rtol=1e-5)


def test_what_cannot_carry_an_aux_is_refused() -> None:
    """Clipped examples would leak through an aux, and some systems' steps carry none."""
    clipped = ClientTraining(example_clip=1.0)
    with pytest.raises(ConfigError, match=r"training.example_clip is 1.0, but must be 0 where a l"):
        simulate(fedavg.system, teaching(), num_selected=3, training=clipped)
    words = "problem is 'Teaching', but must be one without local_loss and model state"
    with pytest.raises(ConfigError, match=words):
        simulate(hierarchical.system, teaching(), num_groups=2, local_steps=1)
    hyper = langevin.Hyper(num_clients=5, step_size=1e-3, gradient="minibatch", batch_size=4)
    with pytest.raises(ConfigError, match=words):
        fedjax_sim.simulate(langevin.system, teaching(), hyper, budget=fedjax_sim.Ticks(1))


def test_measures_that_would_be_of_nothing_are_refused() -> None:
    measures = {"drift": drift}
    words = "system with measures is '.*', but must be a system whose slots are clients"
    problem = Plain(*vars(teaching()).values())
    with pytest.raises(ConfigError, match=words):
        simulate(with_measures(hierarchical.system, measures), problem, num_groups=2, local_steps=1)
    with pytest.raises(ConfigError, match="name of a metric is 'loss', but must be another one"):
        simulate(with_measures(fedavg.system, {"loss": drift}), problem, num_selected=3)
