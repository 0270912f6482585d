"""The methods of synchronous rounds against slow loops with the same random draws, in float64.

Clients have 2 to 6 examples, and a round lasts two passes over them in batches of 2, so that their
steps differ; they are weighted by examples. Each method runs at two values of a setting in one
program, of which one makes it FedAvg where that is possible: that is compared with FedAvg's own
code. Weights of slots and settings are float64, as 64-bit types are enabled.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jax.flatten_util import ravel_pytree

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.streams import stream
from fedjax_sim.server.compression import parse_compressor
from tests.conftest import Regression, SplitRegression, slow_but
from tests.reference import cohort_loops as loops
from tests.reference.draws import BATCH, LR, SEED, Gradient, N

TICKS = 12
UNEVEN = {"lr": LR, "batch_size": BATCH, "local_epochs": 2.0, "weighting": "examples"}
SYSTEMS = fedjax_sim.SYSTEMS


@pytest.fixture(scope="module")
def learn(problem: Any) -> Callable[..., fedjax_sim.Run]:
    """Return a function that runs a method at each value of one setting."""

    def run(name: str, settings: dict[str, list[Any]], **changes: Any) -> fedjax_sim.Run:
        with jax.enable_x64(True):
            return fedjax_sim.sweep(
                SYSTEMS[name],
                changes.pop("problem", problem),
                SYSTEMS[name].paper(num_clients=N, num_selected=4, **(UNEVEN | changes)),
                seeds=[SEED],
                settings=settings,
                budget=fedjax_sim.Ticks(TICKS),
                num_evals=TICKS,
                layout=Layout(4, False, 1),
            )

    return run


@pytest.fixture(scope="module")
def plain(learn: Callable) -> fedjax_sim.Run:
    """FedAvg at two learning rates."""
    return learn("fedavg", {"lr": [LR, 0.1]})


@pytest.fixture(scope="module")
def rounds(
    plain: fedjax_sim.Run, problem: Any, gradient: Gradient, start: np.ndarray
) -> loops.Rounds:
    """The rounds of the runs. Steps and weights are computed here from the cohorts alone."""
    counts = np.asarray(problem.counts)
    cohorts = plain.timelines[0].clients.tolist()
    steps = [[-(-2 * int(counts[i]) // BATCH) for i in cohort] for cohort in cohorts]
    weights = [(counts[cohort] / counts[cohort].sum()).tolist() for cohort in cohorts]
    assert len(set(np.ravel(steps).tolist())) > 2
    return loops.Rounds(start, cohorts, steps, weights, counts / counts.sum(), LR, gradient)


def models_of(run: fedjax_sim.Run) -> np.ndarray:
    """Return the server's models after every tick: `f64[lanes, T, 3]`."""
    return np.stack([run.curves[f"w{i}"].values[..., 1:].reshape(-1, TICKS) for i in range(3)], -1)


def assert_same(found: np.ndarray, expected: Any) -> None:
    """Compare models of one lane, `f64[T, P]`, with those that a loop yields."""
    expected = np.stack(list(expected))
    assert found.dtype == np.float64
    assert np.abs(np.diff(expected, axis=0)).max() > 1e-2
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_fedavg_with_epochs_and_weights(plain: fedjax_sim.Run, rounds: loops.Rounds) -> None:
    for lane, lr in enumerate([LR, 0.1]):
        assert_same(models_of(plain)[lane], loops.fedavg(rounds._replace(lr=lr)))
    np.testing.assert_array_equal(plain.timelines[0].steps, rounds.steps)


@pytest.mark.parametrize("kept", slow_but(["kept"], ["fresh", "kept"]))
def test_local_optimizers_that_remember(learn: Callable, rounds: loops.Rounds, kept: str) -> None:
    run = learn("fedprox", {"proximal": [0.0]}, optimizer=optax.adam, optimizer_state=kept)
    assert_same(models_of(run)[0], loops.fedavg_with_adam(rounds, is_kept=kept == "kept"))


def test_fedprox(learn: Callable, plain: fedjax_sim.Run, rounds: loops.Rounds) -> None:
    found = models_of(learn("fedprox", {"proximal": [0.0, 0.7]}))
    np.testing.assert_allclose(found[0], models_of(plain)[0], rtol=0, atol=1e-12)
    assert_same(found[1], loops.fedprox(rounds, mu=0.7))


@pytest.mark.parametrize(
    ("control", "option"), [("steps", 2), pytest.param("minibatch", 1, marks=pytest.mark.slow)]
)
def test_scaffold(
    learn: Callable, plain: fedjax_sim.Run, rounds: loops.Rounds, control: str, option: int
) -> None:
    """In the first round all control variates are 0 and it is FedAvg."""
    found = models_of(learn("scaffold", {"server_lr": [1.0, 0.6]}, control=control))
    np.testing.assert_allclose(found[0, 0], models_of(plain)[0, 0], rtol=0, atol=1e-12)
    for lane, server_lr in enumerate([1.0, 0.6]):
        expected = loops.scaffold(rounds, server_lr=server_lr, option=option)
        assert_same(found[lane], expected)


def test_fedpa(learn: Callable, plain: fedjax_sim.Run, rounds: loops.Rounds) -> None:
    """Four samples after three of 8 to 22 steps; one sample without burn-in rounds is FedAvg."""
    more = {"burn_in": 3, "num_samples": 4, "server_lr": 0.4, "burn_in_rounds": 2}
    run = learn("fedpa", {"shrinkage": [0.0, 5.0]}, **more | {"local_epochs": 6.0})
    steps = run.timelines[0].steps.tolist()
    assert {*np.ravel(steps)} > {9, 12, 15}
    for lane, rho in enumerate([0.0, 5.0]):
        how = {"burn_in": 3, "number": 4, "server_lr": 0.4, "early": 2}
        assert_same(models_of(run)[lane], loops.fedpa(rounds._replace(steps=steps), rho=rho, **how))
    fedavg = learn("fedavg", {"lr": [LR]}, local_epochs=0.0, local_steps=11)
    one = {"burn_in": 10, "num_samples": 1, "local_epochs": 0.0, "local_steps": 11}
    np.testing.assert_allclose(
        models_of(learn("fedpa", {"lr": [LR]}, **one)), models_of(fedavg), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("setting", ["momentum", "proximal"])
def test_fednova(learn: Callable, rounds: loops.Rounds, setting: str) -> None:
    found = models_of(learn("fednova", {setting: [0.0, 0.6]}))
    for lane, value in enumerate([0.0, 0.6]):
        a = {"momentum": 0.0, "mu": 0.0, "mu" if setting == "proximal" else setting: value}
        assert_same(found[lane], loops.fednova(rounds, **a))


@pytest.mark.slow
def test_fednova_with_equal_steps_is_fedavg(learn: Callable) -> None:
    equal = {"local_epochs": 0.0, "local_steps": 3}
    fednova = learn("fednova", {"lr": [LR]}, **equal)
    np.testing.assert_allclose(
        models_of(fednova), models_of(learn("fedavg", {"lr": [LR]}, **equal)), rtol=0, atol=1e-12
    )


def test_fedavgm(learn: Callable, plain: fedjax_sim.Run, rounds: loops.Rounds) -> None:
    found = models_of(learn("fedavgm", {"server_momentum": [0.0, 0.8]}))
    np.testing.assert_allclose(found[0], models_of(plain)[0], rtol=0, atol=1e-12)
    assert_same(found[1], loops.fedopt(rounds, loops.heavy_ball(beta=0.8)))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive_servers(learn: Callable, rounds: loops.Rounds, name: str) -> None:
    found = models_of(learn(name, {"server_lr": [0.1], "adaptivity": [0.01]}))
    b1 = 0.0 if name == "fedadagrad" else 0.9
    follow = loops.second_moments(name, eta=0.1, b1=b1, b2=0.99, tau=0.01)
    assert_same(found[0], loops.fedopt(rounds, follow))


def test_fedopt_is_optax_on_the_mean_progress(learn: Callable, rounds: loops.Rounds) -> None:
    with jax.enable_x64(True):
        optimizer = optax.adam(0.05)
        state = optimizer.init(rounds.start)

        def follow(delta: np.ndarray) -> np.ndarray:
            nonlocal state
            update, state = optimizer.update(-delta, state)
            return np.asarray(update)

        found = models_of(learn("fedopt", {"server_lr": [0.05]}))
        assert_same(found[0], loops.fedopt(rounds, follow))


def test_feddyn(learn: Callable, rounds: loops.Rounds) -> None:
    found = models_of(learn("feddyn", {"regularization": [0.2, 1.5]}))
    for lane, alpha in enumerate([0.2, 1.5]):
        assert_same(found[lane], loops.feddyn(rounds, alpha=alpha))


def test_mimelite(learn: Callable, plain: fedjax_sim.Run, rounds: loops.Rounds) -> None:
    found = models_of(learn("mimelite", {"momentum": [0.0, 0.8]}, gradient="minibatch"))
    np.testing.assert_allclose(found[0], models_of(plain)[0], rtol=0, atol=1e-12)
    assert_same(found[1], loops.mimelite(rounds, beta=0.8))


@struct.dataclass
class Whole(Regression):
    """Least squares with the loss of all of a client's examples, without noise."""

    def client_loss(self, params: jax.Array, client: jax.Array, key: jax.Array) -> jax.Array:
        is_there = jnp.arange(self.targets.shape[1]) < self.counts[client]
        residual = self.inputs[client] @ params - self.targets[client]
        return jnp.where(is_there, residual, 0) @ residual / 2 / self.counts[client]


def whole_losses(problem: Any) -> Callable[[int, int, np.ndarray], float]:
    """The loss of all of a client's examples, by client, steps done before, and model."""
    inputs, targets, counts = map(np.asarray, (problem.inputs, problem.targets, problem.counts))

    def loss(client: int, before: int, model: np.ndarray) -> float:
        x, y = (data[client, : counts[client]] for data in (inputs, targets))
        return float(np.mean((x @ model - y) ** 2) / 2)

    return loss


@pytest.mark.parametrize("name", ["scaffold", "mimelite"])
def test_gradients_of_all_examples(
    learn: Callable, rounds: loops.Rounds, problem: Any, name: str
) -> None:
    """SCAFFOLD's option I and MimeLite as published: an additional pass at the server's model."""
    inputs, targets, counts = (
        np.asarray(x) for x in (problem.inputs, problem.targets, problem.counts)
    )

    def whole(client: int, model: np.ndarray) -> np.ndarray:
        x, y = (data[client, : counts[client]] for data in (inputs, targets))
        return x.T @ (x @ model - y) / counts[client]

    rounds, whole_problem = rounds._replace(whole=whole), Whole(**vars(problem))
    if name == "scaffold":
        run = learn(name, {"server_lr": [0.6]}, control="exact", problem=whole_problem)
        assert_same(models_of(run)[0], loops.scaffold(rounds, server_lr=0.6, option=1))
    else:
        run = learn(name, {"momentum": [0.8]}, problem=whole_problem)
        assert_same(models_of(run)[0], loops.mimelite(rounds, beta=0.8))


@pytest.mark.slow
def test_mimelite_with_adam(learn: Callable, rounds: loops.Rounds) -> None:
    """The departures of its base: bias is corrected, and a step's own gradient counts in both."""
    run = learn("mimelite", {"lr": [LR]}, gradient="minibatch", optimizer=optax.adam)
    assert_same(models_of(run)[0], loops.mimelite_with_adam(rounds))


@pytest.mark.parametrize(
    "name",
    slow_but(["scaffold"], ["scaffold", "feddyn", "mimelite"]),
)
def test_compressed_messages(
    learn: Callable, rounds: loops.Rounds, stochastic: Callable, name: str
) -> None:
    """Two thirds of the entries up, with error feedback, and signs down. FedAvg: test_reports.py.

    Messages have a model, or a model and another vector.
    """
    x, zero = rounds.start, np.zeros(3)
    both = loops.Compressed(np.concatenate([x, zero]), N, kept=4)
    one = loops.Compressed(x, N, kept=2)
    numbers = 6 if name in ("scaffold", "mimelite") else 3
    lossy = {
        "compression": parse_compressor(f"top_k:kept={2 * numbers // 3}"),
        "error_feedback": True,
        "downlink": parse_compressor("sign"),
    }
    settings, loop = {
        "scaffold": (
            {"server_lr": 0.7},
            lambda: loops.scaffold(rounds, server_lr=0.7, option=2, wire=both),
        ),
        "feddyn": ({"regularization": 1.5}, lambda: loops.feddyn(rounds, alpha=1.5, wire=one)),
        "mimelite": (
            {"momentum": 0.8, "gradient": "minibatch"},
            lambda: loops.mimelite(rounds, beta=0.8, wire=both),
        ),
    }[name]
    run = learn(name, {"lr": [LR]}, **settings, **lossy)
    assert_same(models_of(run)[0], loop())
    up, down = (np.diff(run.curves[f"{way}link_bits"].values.ravel()) for way in ("up", "down"))
    sent = 2 * numbers // 3 * (64 + (3 if numbers == 6 else 2))  # floats and places
    assert up.tolist() == [4 * sent] * TICKS
    assert down[0] == 4 * 64 * numbers
    assert 4 * (64 + numbers) <= down.min() < down[0]


def watched(problem: Any, kind: type) -> Any:
    """Report every coordinate of every client's own model, as "personal_client_coordinate"."""

    @struct.dataclass
    class Watched(kind):
        def evaluate_clients(self, model_of: Callable) -> dict[str, jax.Array]:
            models = jax.vmap(lambda i: ravel_pytree(model_of(i))[0])(jnp.arange(N))
            # The system reports the mean over clients.
            here = N * jnp.eye(N)
            return {f"{i}_{j}": here[i] * models[:, j] for i in range(N) for j in range(3)}

    return Watched(**vars(problem))


def own_models(run: fedjax_sim.Run) -> np.ndarray:
    """Return the clients' own models after every tick: `f64[lanes, T, N, 3]`."""
    names = [[f"personal_{i}_{j}" for j in range(3)] for i in range(N)]
    each = [[run.curves[name].values[..., 1:].reshape(-1, TICKS) for name in row] for row in names]
    return np.moveaxis(np.array(each), (0, 1), (-2, -1))


def test_ditto(learn: Callable, plain: Any, rounds: loops.Rounds, problem: Any) -> None:
    """The global model is FedAvg's, whatever the personal ones are."""
    run = learn("ditto", {"attachment": [0.0, 0.9]}, problem=watched(problem, Regression))
    for lane, pull in enumerate([0.0, 0.9]):
        np.testing.assert_allclose(models_of(run)[lane], models_of(plain)[0], rtol=0, atol=1e-12)
        own = [models.ravel() for _, models in loops.ditto(rounds, pull=pull)]
        assert_same(own_models(run)[lane].reshape(TICKS, -1), own)


@pytest.mark.few(1)
@pytest.mark.parametrize(("head_steps", "proximal"), [(0, 0.0), (2, 0.0), (2, 0.9)])
def test_fedper(
    learn: Callable, rounds: loops.Rounds, problem: Any, head_steps: int, proximal: float
) -> None:
    """With `head_steps`, FedRep. The head is the last of three coordinates."""
    watching = watched(problem, SplitRegression)
    settings = {"personal": "^head", "head_steps": head_steps, "proximal": proximal}
    run = learn("fedper", {"lr": [LR]}, problem=watching, **settings)
    split = {"num_shared": 2, "head_steps": head_steps, "proximal": proximal}
    bodies, heads = zip(*loops.fedper(rounds, **split), strict=True)
    assert_same(models_of(run)[0, :, :2], bodies)
    assert_same(own_models(run)[0, ..., 2], np.array(heads)[..., 0])
    np.testing.assert_allclose(models_of(run)[0, :, 2], np.mean(heads, axis=1)[:, 0], atol=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize("is_adaptive", [False, True])
def test_apfl(
    learn: Callable, plain: Any, rounds: loops.Rounds, problem: Any, is_adaptive: bool
) -> None:
    """The global model is FedAvg's; with alpha = 0 so are all personal ones."""
    alphas = [0.7, 0.25] if is_adaptive else [0.0, 0.6]
    watching = watched(problem, Regression)
    run = learn("apfl", {"personal_share": alphas}, adaptive=is_adaptive, problem=watching)
    for lane, alpha in enumerate(alphas):
        np.testing.assert_allclose(models_of(run)[lane], models_of(plain)[0], rtol=0, atol=1e-12)
        pairs = loops.apfl(rounds, alpha=alpha, is_adaptive=is_adaptive)
        assert_same(own_models(run)[lane].reshape(TICKS, -1), [own.ravel() for _, own in pairs])
    if not is_adaptive:
        same = np.repeat(models_of(run)[0][:, None], N, axis=1)
        np.testing.assert_allclose(own_models(run)[0], same, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def slope(problem: Any) -> Callable[[int, np.ndarray], np.ndarray]:
    """The gradient of all of a client's examples."""
    inputs, targets, counts = map(np.asarray, (problem.inputs, problem.targets, problem.counts))

    def of_all(client: int, model: np.ndarray) -> np.ndarray:
        x, y = (data[client, : counts[client]] for data in (inputs, targets))
        return x.T @ (x @ model - y) / counts[client]

    return of_all


def test_perfedavg(learn: Callable, rounds: loops.Rounds, problem: Any, slope: Callable) -> None:
    """Clients' own models are a step away from the server's."""
    run = learn("perfedavg", {"adapting_lr": [0.1, 0.02]}, problem=watched(problem, Whole))
    for lane, alpha in enumerate([0.1, 0.02]):
        expected = list(loops.perfedavg(rounds, alpha=alpha))
        assert_same(models_of(run)[lane], expected)
        own = np.array([[w - alpha * slope(i, w) for i in range(N)] for w in expected])
        np.testing.assert_allclose(own_models(run)[lane], own, rtol=0, atol=1e-10)


def test_perfedavg_without_an_inner_step_is_fedavg_on_every_second_batch(
    learn: Callable, rounds: loops.Rounds, gradient: Gradient
) -> None:
    second = rounds._replace(gradient=lambda i, k, w: gradient(i, 2 * k + 1, w))
    run = learn("perfedavg", {"adapting_lr": [0.0]})
    assert_same(models_of(run)[0], loops.fedavg(second))


def test_pfedme(learn: Callable, rounds: loops.Rounds, problem: Any, slope: Callable) -> None:
    """Clients' own models are near the server's, by the same inner steps."""
    inner = {"personal_steps": 3, "personal_lr": 0.05}
    several = {"pull": [2.0, 5.0], "server_lr": [1.0, 0.6]}
    run = learn("pfedme", several, problem=watched(problem, Whole), **inner)
    for lane, (pull, beta) in enumerate([(2.0, 1.0), (2.0, 0.6), (5.0, 1.0), (5.0, 0.6)]):
        expected = list(loops.pfedme(rounds, pull=pull, beta=beta, inner=(3, 0.05)))
        assert_same(models_of(run)[lane], expected)
        near = lambda w, i, pull=pull: loops.proximal_point(  # noqa: E731
            w, lambda theta: slope(i, theta), pull=pull, inner=(3, 0.05)
        )
        own = np.array([[near(w, i) for i in range(N)] for w in expected])
        np.testing.assert_allclose(own_models(run)[lane], own, rtol=0, atol=1e-10)


def test_pfedme_with_one_inner_step_is_fedavg(learn: Callable, rounds: loops.Rounds) -> None:
    """With inner rate r, theta = w - r g, so that a local step has the rate lr lambda r."""
    run = learn("pfedme", {"pull": [4.0]}, personal_steps=1, personal_lr=0.1)
    assert_same(models_of(run)[0], loops.fedavg(rounds._replace(lr=LR * 4.0 * 0.1)))


def test_qfedavg(
    learn: Callable, plain: Any, rounds: loops.Rounds, problem: Any, stochastic: Callable
) -> None:
    """With q = 0 it is FedAvg. A loss is sent in full precision."""
    whole = Whole(**vars(problem))
    run = learn("qfedavg", {"fairness": [0.0, 1.0, 0.5]}, problem=whole)
    np.testing.assert_allclose(models_of(run)[0], models_of(plain)[0], rtol=0, atol=1e-12)
    for lane, q in enumerate([0.0, 1.0, 0.5]):
        assert_same(models_of(run)[lane], loops.qfedavg(rounds, whole_losses(problem), q=q))
    assert np.diff(run.curves.uplink_bits.values[0].ravel()).tolist() == [4 * 64 * 4] * TICKS
    assert np.diff(run.curves.downlink_bits.values[0].ravel()).tolist() == [4 * 64 * 3] * TICKS


def test_ifca(
    learn: Callable, plain: Any, rounds: loops.Rounds, problem: Any, start: np.ndarray
) -> None:
    """With one model it is FedAvg. A client receives k models, and sends one and its number."""
    one = learn("ifca", {"lr": [LR]}, num_models=1, problem=Whole(**vars(problem)))
    np.testing.assert_allclose(models_of(one)[0], models_of(plain)[0], rtol=0, atol=1e-12)
    run = learn("ifca", {"lr": [LR]}, num_models=3, problem=watched(problem, Whole))
    with jax.enable_x64(True):
        key = stream(stream(jax.random.key(SEED), "learning"), "init")
        others = [problem.init(jax.random.fold_in(key, j)) for j in (1, 2)]
    starts = np.stack([start, *map(np.asarray, others)])
    pairs = list(loops.ifca(rounds, whole_losses(problem), starts))
    assert len(set(pairs[-1][1])) > 1
    assert_same(models_of(run)[0], [models.mean(axis=0) for models, _ in pairs])
    own = [models[found].ravel() for models, found in pairs]
    assert_same(own_models(run)[0].reshape(TICKS, -1), own)
    assert np.diff(run.curves.uplink_bits.values.ravel()).tolist() == [4 * (64 * 3 + 2)] * TICKS
    assert np.diff(run.curves.downlink_bits.values.ravel()).tolist() == [4 * 64 * 9] * TICKS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qfedavg", "ifca"])
def test_losses_of_mini_batches(
    learn: Callable, rounds: loops.Rounds, stochastic: Callable, start: np.ndarray, name: str
) -> None:
    """Those of a client's first local step in the round."""
    loss = stochastic().loss
    if name == "qfedavg":
        expected = list(loops.qfedavg(rounds, loss, q=0.3))
        run = learn(name, {"fairness": [0.3]}, client_losses="minibatch")
    else:
        expected = [m.mean(axis=0) for m, _ in loops.ifca(rounds, loss, start[None])]
        run = learn(name, {"lr": [LR]}, client_losses="minibatch", num_models=1)
    assert_same(models_of(run)[0], expected)


def test_diloco_is_fedopt_with_nesterov_and_adamw(learn: Callable, rounds: loops.Rounds) -> None:
    """Douillard et al. 2023 (arXiv 2311.08105), Algorithm 1: AdamW inside, Nesterov outside."""
    inner = partial(optax.adamw, b1=0.9, b2=0.999, weight_decay=0.1)
    outer = partial(optax.sgd, momentum=0.9, nesterov=True)
    settings = {"optimizer": inner, "server_optimizer": outer}
    run = learn("fedopt", {"server_lr": [0.7]}, **settings)
    assert_same(models_of(run)[0], loops.diloco(rounds, outer_lr=0.7, momentum=0.9, decay=0.1))
