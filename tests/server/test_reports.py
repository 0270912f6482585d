"""Messages and their sums: EF21's rate, the noise that is drawn, and what one client can change."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Event, Layout, Plan, Timeline
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.shares import listed
from fedjax_sim.problems import Quadratic
from fedjax_sim.server import RoundState, Wire
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.server.privacy import parse_privacy
from fedjax_sim.server.report_settings import count_downlink
from fedjax_sim.systems import fedavg
from tests.conftest import Regression, slow_but


def event_of(tick: Any, clients: Any, *, weight: float) -> Event:
    """Make a tick in which all clients do one step and have the same weight."""
    clients = jnp.asarray(clients, "int32")
    zero, one = jnp.zeros_like(clients), jnp.ones_like(clients)
    weights = jnp.where(clients >= 0, weight, 0.0)
    row = jnp.int32(0)
    return Event(tick, clients, one * (clients >= 0), zero, weights, zero + tick, zero, row)


# EF21


PULLS = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
"""Three quadratics <a_i, x>^2 + ||x||^2 / 4 on which the plain largest entry of gradients diverges.

Beznosikov et al. 2020, arXiv 2002.12410, Example 1.
"""
HESSIANS = 2 * PULLS[:, :, None] * PULLS[:, None, :] + np.eye(3) / 2
ALPHA = 1 / 3
THETA = 1 - np.sqrt(1 - ALPHA)
BETA = (1 - ALPHA) / THETA
MU, SMOOTH = np.linalg.eigvalsh(HESSIANS.mean(axis=0))[[0, -1]]
SMOOTH_EACH = np.sqrt(np.mean(np.linalg.eigvalsh(HESSIANS)[:, -1] ** 2))
STEP = min(1 / (SMOOTH + SMOOTH_EACH * np.sqrt(2 * BETA / THETA)), THETA / (2 * MU))
ROUNDS = 3000


class Path(NamedTuple):
    """Models before each round, and estimates after it, as gradients: `f[T, 3]`, `f[T, 3, 3]`."""

    models: np.ndarray
    gradients: np.ndarray


@pytest.fixture(scope="module")
def paths() -> dict[str, Path]:
    """Run FedAvg with one local step and full batches, with and without error feedback."""
    rows = np.concatenate(
        [np.sqrt(8) * PULLS[:, None], np.sqrt(2) * np.tile(np.eye(3), (3, 1, 1))], 1
    )
    variants = {
        "plain": ("top_k", False),
        "largest": ("top_k", True),
        "sign": ("sign", True),
        "random": ("rand_k", True),
    }

    def run(problem: Regression, compression: str, feedback: bool) -> Any:
        hyper = fedavg.paper(
            num_clients=3,
            num_selected=3,
            local_steps=1,
            batch_size=4,
            sampling="without_replacement",
            lr=STEP,
            compression=parse_compressor(compression),
            error_feedback=feedback,
        )
        algorithm = fedavg.system.algorithm(problem, hyper, Plan(rows=2))
        state = algorithm.init(jax.random.key(0))._replace(server=jnp.ones(3))

        def step(state: Any, tick: jax.Array) -> Any:
            after, _ = algorithm.step(
                jax.random.key(1), state, event_of(tick, [0, 1, 2], weight=1 / 3)
            )
            estimates = after.memo.estimates if feedback else jnp.zeros((3, 3))
            return after, (state.server, estimates)

        return jax.lax.scan(step, state, jnp.arange(ROUNDS))[1]

    with jax.enable_x64(True):
        problem = Regression(
            jnp.asarray(rows), jnp.zeros((3, 4)), jnp.full(3, 4, "int32"), jnp.zeros(())
        )
        found = jax.jit(lambda problem: {k: run(problem, *v) for k, v in variants.items()})(problem)
    return {
        name: Path(np.asarray(models), np.asarray(estimates) / -STEP)
        for name, (models, estimates) in found.items()
    }


def loss(models: np.ndarray) -> np.ndarray:
    """Compute the mean loss; its minimum is 0, at 0. models: `f[T, 3]`."""
    return np.einsum("ti,ij,tj->t", models, HESSIANS.mean(axis=0), models) / 2


@pytest.mark.slow
def test_the_largest_entry_alone_diverges(paths: dict[str, Path]) -> None:
    """From (t, t, t) the model grows by the factor 1 + 11 gamma / 6 in each round."""
    growth = paths["plain"].models[1:] / paths["plain"].models[:-1]
    np.testing.assert_allclose(growth, 1 + STEP * 5.5 / 3, rtol=1e-9)
    assert paths["plain"].models[-1, 0] > 1e9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["largest", "sign"])
def test_error_feedback_converges_at_the_rate_of_ef21(paths: dict[str, Path], name: str) -> None:
    """Theorem 2: Psi = f - f* + gamma / theta G falls by 1 - gamma mu in every round.

    G is the mean squared distance of the estimates to the gradients. Both compressors have
    alpha = 1 / 3, and gamma is the largest step that the theorem allows.
    """
    models, gradients = paths[name]
    exact = np.einsum("nij,tj->tni", HESSIANS, models)
    distance = np.mean(np.sum((gradients - exact) ** 2, axis=2), axis=1)
    psi = loss(models) + STEP / THETA * distance
    is_large = psi[:-1] > 1e-25
    assert (psi[1:] <= (1 - STEP * MU) * psi[:-1])[is_large].all()
    assert psi[-1] <= (1 - STEP * MU) ** (ROUNDS - 1) * psi[0] < 1e-5 * psi[0]


def test_unbiased_messages_are_scaled_down_for_error_feedback(paths: dict[str, Path]) -> None:
    """A random entry times 3 has omega = 2; divided by 3 it is contractive and converges."""
    assert loss(paths["random"].models[-1:])[0] < 1e-5 * loss(paths["random"].models[:1])[0]


def test_an_algorithm_has_the_parts_of_its_wire_unless_others_are_given() -> None:
    """A new algorithm on a wire obeys the wire's settings; its model is the server's."""
    hyper = fedavg.paper(num_clients=3, num_selected=3, downlink=parse_compressor("top_k"))
    wire = Wire(Quadratic.of(np.zeros((3, 2))), hyper, Plan())
    state = RoundState(jnp.ones(2), memo=wire.first(jnp.zeros(2)))
    made = wire.algorithm(lambda key: state, lambda key, state, event: (state, ()))
    np.testing.assert_array_equal(made.model(state), [1, 1])
    assert made.received is not None and made.metrics(state) == {}
    np.testing.assert_array_equal(made.received(state), [0, 0])  # nothing was sent down yet
    assert "messages.downlink" in made.supports and "privacy" in made.supports
    other = wire.algorithm(made.init, made.step, model=lambda state: 2 * state.server)
    np.testing.assert_array_equal(other.model(state), [2, 2])
    assert other.supports == made.supports


def test_two_messages_of_one_client_in_a_tick() -> None:
    """The second message counts on the first. Slots without a client or a step send nothing."""
    hyper = fedavg.paper(
        num_clients=3, num_selected=3, compression=parse_compressor("top_k"), error_feedback=True
    )
    wire = Wire(Quadratic.of(np.zeros((3, 2))), hyper, Plan(), can_repeat=True)
    event = event_of(jnp.int32(0), [1, 1, -1, 2], weight=0.25)
    event = event._replace(steps=jnp.array([1, 1, 0, 0], "int32"))
    local = jnp.array([[3.0, 1.0], [2.0, 5.0], [9.0, 9.0], [1.0, 1.0]])
    starts = jnp.ones((4, 2))
    memo = wire.first(jnp.zeros(2))
    memo = memo._replace(estimates=memo.estimates.at[2].set(jnp.array([7.0, 5.0])))
    reports, memo = jax.jit(wire.receive)(jax.random.key(0), event, memo, starts, local)
    # (2, 0): the largest entry of (2, 0). Then (2, 4): the largest of (1, 4) - (2, 0) added.
    np.testing.assert_allclose(reports[:2], 1 + np.array([[2.0, 0], [2, 4]]))
    np.testing.assert_allclose(memo.estimates, [[0, 0], [2, 4], [7, 5]])
    # The estimate of a client that sends nothing is not taken for progress.
    np.testing.assert_array_equal(reports[3], starts[3])


def test_nothing_switched_on_changes_no_bit(regression: Callable) -> None:
    """Error feedback without a compressor, and clipping that clips nothing, keep the models.

    The first are equal bit for bit, the second up to rounding, because the sum is of progress.
    """
    problem = regression()
    settings = [
        {},
        {"error_feedback": True},
        {"privacy": parse_privacy("fixed:clip=1e6"), "sampling": "reshuffled"},
        {"sampling": "reshuffled"},
    ]

    @jax.jit
    def run() -> list[jax.Array]:
        found = []
        for changes in settings:
            hyper = fedavg.paper(
                num_clients=7, num_selected=4, local_steps=1, batch_size=2, lr=0.1, **changes
            )
            algorithm = fedavg.system.algorithm(problem, hyper, Plan(rows=2))
            state = algorithm.init(jax.random.key(0))
            event = event_of(jnp.int32(0), [0, 3, 5, 6], weight=0.25)
            found.append(algorithm.step(jax.random.key(1), state, event)[0].server)
        return found

    plain, fed_back, clipped, reshuffled = run()
    np.testing.assert_array_equal(plain, fed_back)
    np.testing.assert_allclose(clipped, reshuffled, rtol=1e-6)


# Privacy

DRAWS, DIM, COHORT = 4000, 5, 4
KINDS = {
    "fixed": "fixed:clip=0.5:noise=0.7",
    "adaptive": "adaptive:clip=0.5:noise=0.7:count_noise=0.3",
}


@pytest.fixture(scope="module")
def noisy() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two rounds for many keys in which no client moves: models and bounds after each round."""
    problem = Quadratic.of(np.zeros((6, DIM), "float32"))

    def run(kind: str, key: jax.Array) -> Any:
        hyper = fedavg.paper(
            num_clients=6,
            num_selected=COHORT,
            local_steps=1,
            batch_size=1,
            sampling="with_replacement",
            privacy=parse_privacy(kind),
        )
        algorithm = fedavg.system.algorithm(problem, hyper, Plan(rows=2))

        def step(state: Any, tick: jax.Array) -> Any:
            # The steps do nothing at the first model, and are left out after it has noise.
            event = event_of(tick, [0, 2, 3, 5], weight=1 / COHORT)
            event = event._replace(steps=jnp.zeros_like(event.steps))
            state, _ = algorithm.step(key, state, event)
            return state, (state.server, algorithm.metrics(state).get("clip_norm", jnp.zeros(())))

        return jax.lax.scan(step, algorithm.init(key), jnp.arange(2))[1]

    keys = jax.random.split(jax.random.key(3), DRAWS)
    found = jax.jit(
        lambda keys: {k: jax.vmap(lambda key, v=v: run(v, key))(keys) for k, v in KINDS.items()}
    )(keys)
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), found)


def test_the_noise_drawn_is_the_noise_accounted_for(
    noisy: dict[str, tuple[np.ndarray, np.ndarray]],
) -> None:
    """Each number has the standard deviation z C / m, independently of others and of other rounds.

    Variances and covariances are within 5 standard errors.
    """
    models = noisy["fixed"][0]
    draws = np.concatenate([models[:, 0], models[:, 1] - models[:, 0]], axis=1)
    deviation = 0.7 * 0.5 / COHORT
    covariance = draws.T @ draws / DRAWS
    error = deviation**2 * np.sqrt((1 + np.eye(2 * DIM)) / DRAWS)
    assert (np.abs(covariance - deviation**2 * np.eye(2 * DIM)) < 5 * error).all()
    assert (np.abs(draws.mean(axis=0)) < 5 * deviation / np.sqrt(DRAWS)).all()


def test_adaptive_clipping_spends_a_part_on_the_count(
    noisy: dict[str, tuple[np.ndarray, np.ndarray]],
) -> None:
    """The sums of updates and of indicators have the noise of Andrew et al., Theorem 1.

    All updates are short, so that the count is m: C falls by exp(-0.2 (1 - 0.5)) and noise.
    """
    models, bounds = noisy["adaptive"]
    sigma_count = 0.3 * COHORT
    multiplier = (0.7**-2 - (2 * sigma_count) ** -2) ** -0.5
    deviation = multiplier * 0.5 / COHORT
    squares = np.sum(models[:, 0] ** 2, axis=1) / deviation**2
    assert abs(squares.mean() - DIM) < 5 * np.sqrt(2 * DIM / DRAWS)
    # The noise of the second round has the deviation of the bound that the first one left.
    moved = (
        np.sum((models[:, 1] - models[:, 0]) ** 2, axis=1)
        / (multiplier * bounds[:, 0] / COHORT) ** 2
    )
    assert abs(moved.mean() - DIM) < 5 * np.sqrt(2 * DIM / DRAWS)
    count = 1 + -(np.log(bounds[:, 0] / 0.5) / 0.2 + 0.5)
    error = sigma_count / COHORT
    assert abs(count.mean() - 1) < 5 * error / np.sqrt(DRAWS)
    assert abs(count.var() - error**2) < 5 * error**2 * np.sqrt(2 / DRAWS)


def test_what_one_client_can_change() -> None:
    """Adding a client changes the private sum by at most C / m, other data by at most 2 C / m.

    Both bounds are attained by updates far longer than C. The noise is the same.
    """
    hyper = fedavg.paper(
        num_clients=6,
        num_selected=COHORT,
        selection="poisson",
        sampling="with_replacement",
        privacy=parse_privacy("fixed:clip=0.5:noise=0.7"),
    )
    wire = Wire(Quadratic.of(np.zeros((6, DIM))), hyper, Plan())
    event = event_of(jnp.int32(0), [0, 2, 3, 5, -1], weight=1 / COHORT)
    fewer = event_of(jnp.int32(0), [0, 2, 3, -1, -1], weight=1 / COHORT)
    updates = 100 * jax.random.normal(jax.random.key(0), (5, DIM))

    @jax.jit
    def total(event: Event, updates: jax.Array) -> jax.Array:
        state = wire.first_round(jnp.zeros(DIM))
        return wire.advance(jax.random.key(1), event, state, updates).server

    sums = total(event, updates), total(fewer, updates), total(event, updates.at[3].multiply(-1))
    # What has no norm counts as 0, and changes no more than its absence.
    spoilt = total(event, updates.at[3, 0].set(jnp.nan))
    for other, most in ((sums[1], 1), (sums[2], 2), (spoilt, 1)):
        change = float(jnp.linalg.norm(sums[0] - other))
        assert change == pytest.approx(most * 0.5 / COHORT, rel=1e-5)


@pytest.mark.parametrize("privacy", ["fixed:noise=1", "correlated:noise=1"])
def test_scaled_messages_have_no_privacy(privacy: str) -> None:
    """A scale was left out without a word."""
    hyper = fedavg.paper(sampling="with_replacement", privacy=parse_privacy(privacy))
    wire = Wire(Quadratic.of(np.zeros((6, DIM))), hyper, Plan())
    event = event_of(jnp.int32(0), [0, 2], weight=0.5)
    state = RoundState(jnp.zeros(DIM), memo=wire.first(jnp.zeros(DIM)))
    call = (jax.random.key(0), event, state, jnp.ones((2, DIM)))
    wire.advance(*call)
    with pytest.raises(ConfigError, match="none where the server scales messages"):
        wire.advance(*call, scale=jnp.ones(2))


# Bits and memory


def slow_count(timeline: Timeline, change: int, whole: int) -> list[int]:
    """Count downlink bits slot by slot."""
    known: dict[int, int] = {}
    totals = []
    happened = (timeline.clients >= 0).any(axis=1)
    for clients, versions in zip(timeline.clients, timeline.version, strict=True):
        total = 0
        for client, version in zip(clients.tolist(), versions.tolist(), strict=True):
            if client >= 0:
                missed = happened[known[client] : version].sum() if client in known else whole
                total += min(missed * change, whole)
                known[client] = version
        totals.append(total)
    return totals


def test_clients_get_the_changes_that_they_missed() -> None:
    """Or the whole model, if that is shorter or they have none. Some slots and ticks are empty."""
    random = np.random.default_rng(0)
    clients = random.integers(-1, 9, (40, 3)).astype("int32")
    clients[random.integers(0, 40, 8)] = -1
    versions = np.zeros_like(clients)
    for client in range(9):
        visits = np.nonzero(clients == client)
        # The versions of a client's starts never fall, and may repeat within a tick.
        versions[visits] = np.sort(random.integers(0, 40, len(visits[0])))
    timeline = Timeline(clients, clients, clients, versions, clients, clients)
    hyper = fedavg.paper(downlink=parse_compressor("top_k:kept=1"))
    counted = count_downlink(hyper, timeline, jnp.zeros(5))
    assert counted.tolist() == slow_count(timeline, 32 + 3, 32 * 5)
    assert 0 < counted[counted > 0].min() < 160


@struct.dataclass
class Unmeasured(Quadratic):
    """A quadratic whose evaluation does not go through all clients."""

    def evaluate(self, params: jax.Array) -> dict[str, jax.Array]:
        return {"norm": jnp.linalg.norm(params)}


@pytest.mark.slow
def test_estimates_stay_in_place() -> None:
    """A tick takes no memory in proportion to all clients' rows: 8 MB here."""
    num_clients, dim = 2000, 1000
    problem = Unmeasured.of(np.zeros((num_clients, dim), "float32"))
    (program,) = listed(
        fedavg.system,
        problem,
        fedavg.paper(
            num_clients=num_clients,
            num_selected=4,
            local_steps=1,
            batch_size=1,
            compression=parse_compressor("sign"),
            error_feedback=True,
        ),
        seeds=1,
        devices=jax.devices("cpu")[:1],
        budget=fedjax_sim.Ticks(4),
        num_evals=2,
    ).lower()
    memory = program.compile().memory_analysis()
    assert memory.temp_size_in_bytes < num_clients * dim
    assert memory.alias_size_in_bytes >= 4 * num_clients * dim


# Sums that training makes itself


def momentum(lr: Any) -> optax.GradientTransformation:
    return optax.sgd(lr, momentum=0.5)


KEPT: dict[str, Any] = {"optimizer": momentum, "optimizer_state": "kept"}
SUMMED: dict[str, tuple[str, dict[str, Any], int]] = {
    "models, one after another": ("fedavg", KEPT, 1),
    "models in blocks": ("fedavg", KEPT, 2),
    "models together": ("fedprox", KEPT, 3),
    "models, where clients also have their own": ("ditto", {}, 1),
    "progress where weights do not sum to 1": ("fedavg", {"selection": "poisson"}, 1),
    "progress from another model than the server's": (
        "fedavg",
        {"downlink": parse_compressor("sign"), "drop_rate": 0.2},
        1,
    ),
    "progress for an optimizer": ("fedadam", {}, 1),
    "progress by its length": ("fednova", {}, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    slow_but(
        set(SUMMED) - {"models in blocks", "progress for an optimizer", "models together"}, SUMMED
    ),
)
def test_sums_that_training_makes_are_those_of_all_models(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run with the models of a round stacked, with empty slots and rounds."""
    name, options, slots = SUMMED[case]
    system = fedjax_sim.SYSTEMS[name]
    centers = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    problem = Quadratic.of(centers, noise=0.1)
    given = {"num_clients": 5, "num_selected": 3, "local_steps": 3, "batch_size": 1, "lr": 0.1}
    hyper = system.paper(**(given | {"drop_rate": 0.6} | options))

    def run() -> fedjax_sim.Run:
        layout = Layout(slots_at_once=slots, lanes_at_once=False)
        return fedjax_sim.simulate(
            system, problem, hyper, budget=fedjax_sim.Ticks(30), num_evals=3, layout=layout
        )

    asked = []
    with monkeypatch.context() as patch:
        total = Wire.total
        patch.setattr(
            Wire, "total", lambda *given, **more: asked.append(total(*given, **more)) or asked[-1]
        )
        summed = run()
    assert asked and all(each.of_progress == ("progress" in case) for each in asked)
    monkeypatch.setattr(Wire, "total", lambda *_, **__: None)
    jax.clear_caches()
    stacked = run()
    assert summed.curves.needed.max() > 0 and float(np.ptp(summed.models)) > 0.1
    np.testing.assert_allclose(summed.models, stacked.models, rtol=1e-5, atol=1e-6)
