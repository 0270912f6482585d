"""Several local steps behind local servers: special cases, and quadratics in closed form.

Dimension letters: `N` clients, `P` parameters, `T` ticks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.problems import Quadratic
from fedjax_sim.server import Memo, edge_training
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.systems import async_hierarchical, fedavg, hierarchical
from tests.conftest import coordinates

WHOLE = Layout(8, False, 1)
TRAINED = {"num_clients": 8, "batch_size": 2, "lr": 0.05, "sampling": "reshuffled"}
"""Local training that all systems share."""
CLOCK = {"aggregation": "average", "mean": 1.0, "exchanges": "group"}


@struct.dataclass
class Located(Quadratic):
    """Quadratics that report every coordinate of the model as a metric."""

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        return coordinates(params)


def paths(
    system: fedjax_sim.System, problem: Any, hyper: Any, *, num_ticks: int = 6, **options: Any
) -> tuple[np.ndarray, fedjax_sim.Run]:
    """Return the global models of a sweep's lanes at every tick, `f64[..., T + 1, 3]`."""
    with jax.enable_x64(True):
        run = fedjax_sim.sweep(
            system,
            problem,
            hyper,
            budget=fedjax_sim.Ticks(num_ticks),
            num_evals=num_ticks,
            layout=WHOLE,
            **options,
        )
    names = [name for name in ("w0", "w1", "w2") if name in run.curves]
    return np.stack([run.curves[name].values for name in names], axis=-1), run


@pytest.fixture(scope="module")
def problem(regression: Callable) -> Any:
    """Least squares with noise and clients of different sizes: weights of 1/8 are exact."""
    with jax.enable_x64(True):
        return regression(8, dtype="float64", noise=0.2)


@pytest.fixture(scope="module")
def one_group(problem: Any) -> tuple[np.ndarray, fedjax_sim.Run]:
    """One group that averages, by least number of iterations, proximal term and sync time."""
    hyper = hierarchical.paper(num_groups=1, client_steps=3, **CLOCK, **TRAINED)
    swept = {"min_iterations": [1, 3], "proximal": [0.0, 0.5], "sync_time": [0.0, 4.0]}
    found, run = paths(hierarchical.system, problem, hyper, settings=swept)
    return found[:, :, :, 0], run


@pytest.mark.slow
def test_one_group_is_fedavg(problem: Any, one_group: tuple[np.ndarray, fedjax_sim.Run]) -> None:
    """An iteration is FedAvg's round, and a round of three iterations is three of its rounds.

    Batches and noise are the same. With a proximal term of strength 0 that was not known when the
    program was compiled; one of 1/2 makes a difference.
    """
    models, _ = one_group
    hyper = fedavg.paper(num_selected=8, local_steps=3, **TRAINED)
    flat, _ = paths(fedavg.system, problem, hyper, num_ticks=18)
    np.testing.assert_allclose(models[0, 0, 0], flat[0, :7], rtol=0, atol=1e-13)
    np.testing.assert_allclose(models[1, 0, 0], flat[0, ::3], rtol=0, atol=1e-13)
    assert np.abs(np.diff(flat[0], axis=0)).max(axis=1).min() > 1e-3
    assert np.abs(models[0, 1, 0] - models[0, 0, 0])[1:].max(axis=1).min() > 1e-3


@pytest.mark.slow
def test_one_asynchronous_group_is_the_synchronous_system(
    problem: Any, one_group: tuple[np.ndarray, fedjax_sim.Run]
) -> None:
    """With a buffer of one nothing is stale. The schedules are equal bit for bit."""
    models, run = one_group
    hyper = async_hierarchical.paper(
        num_groups=1,
        client_steps=3,
        aggregation="average",
        mean=1.0,
        proximal=0.5,
        sync_time=4.0,
        **TRAINED,
    )
    found, alone = paths(async_hierarchical.system, problem, hyper)
    np.testing.assert_allclose(found[0], models[0, 1, 1], rtol=0, atol=1e-13)
    jax.tree.map(np.testing.assert_array_equal, alone.timelines[0], run.timelines[3])
    assert len(set(alone.timelines[0].steps.ravel().tolist())) > 1


def test_one_local_step_of_every_client_is_a_step_of_the_group(problem: Any) -> None:
    """A model per client, of which all entries are sent, against one large batch.

    To rounding: the mean of the clients' models is the step with the mean of their gradients.
    """
    settings = TRAINED | {"sampling": "with_replacement"}
    hyper = hierarchical.paper(group_sizes=(5, 3), proximal=0.5, **settings)
    separate = hyper.replace(compression=parse_compressor("top_k:kept=3"))
    assert hyper.has_one_batch and not separate.has_one_batch
    with jax.enable_x64(True):
        pair = jnp.arange(2, dtype="int32")
        steps, offset = jnp.array([4, 2], "int32"), jnp.array([3, 0], "int32")
        event = fedjax_sim.Event(pair[0], pair, steps, pair, pair / 2, offset, pair, pair[0])
        key, plan = jax.random.key(3), fedjax_sim.Plan(slots_at_once=2)
        start = problem.init(key)

        def both(key: jax.Array) -> list[Any]:
            trains = [edge_training(problem, each, plan) for each in (hyper, separate)]
            starts = jnp.broadcast_to(start, (2, 3))
            return [train(key, event, Memo(), starts=starts, draws=pair)[0] for train in trains]

        batch, found = jax.jit(both)(key)
    np.testing.assert_allclose(found, batch, rtol=0, atol=1e-14)
    assert np.abs(np.asarray(batch) - np.asarray(start)).min() > 1e-3


def test_one_local_step_needs_no_model_per_client() -> None:
    """With two steps a tick computes arrays of five clients' models, with one step it does not.

    Losses are numbers of the clients times a function of the model, so that no other array is as
    large. The tick is traced and not run.
    """

    class Scaled(Quadratic):
        def loss(
            self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
        ) -> jax.Array:
            return self.curvature[client] * jnp.sum(jnp.square(params))

    problem, pair = Scaled.of(np.zeros((8, 3))), jnp.arange(2, dtype="int32")
    event = fedjax_sim.Event(pair[0], pair, pair, pair, pair / 2, pair, pair, pair[0])
    key = jax.random.key(0)
    for num_steps in (1, 2):
        hyper = hierarchical.paper(num_clients=8, group_sizes=(5, 3), client_steps=num_steps)
        algorithm = hierarchical.system.algorithm(problem, hyper, fedjax_sim.Plan(slots_at_once=2))
        text = str(jax.make_jaxpr(algorithm.step)(key, algorithm.init(key), event))
        assert ("[2,5,3]" in text) == (num_steps > 1)


def test_the_fixed_point_of_hierfavg() -> None:
    """On quadratics of different curvature a global round is an affine map, known exactly.

    With gradients a (w - m) + mu (w - x), E local steps from x reach b + q x, where
    q = (mu + a r^E) / (a + mu), b = (1 - q) m and r = 1 - lr (a + mu). An iteration averages these,
    kappa_2 iterations repeat the average, and the global server averages the groups. The fixed
    point is not the optimum, more iterations move it farther off, and the proximal term back.
    """
    curvature, lr, num_steps = np.array([3.0, 1.0, 0.5, 2.0]), 0.2, 3
    centers = np.array([[-1.0], [2.0], [0.5], [3.0]])
    with jax.enable_x64(True):
        problem = Located.of(centers, curvature=curvature, start=4.0)
    hyper = hierarchical.paper(
        num_clients=4,
        group_sizes=(1, 3),
        client_steps=num_steps,
        lr=lr,
        batch_size=1,
        aggregation="average",
        sync_time=0.0,
        weighting="examples",
        group_weights="examples",
    )
    swept = {"min_iterations": [1, 4], "proximal": [0.0, 2.0]}
    found, run = paths(hierarchical.system, problem, hyper, num_ticks=40, settings=swept)
    errors = np.zeros((2, 2))
    for i, kappa in enumerate(swept["min_iterations"]):
        np.testing.assert_array_equal(run.timelines[2 * i].steps, np.full((40, 2), kappa))
        for j, mu in enumerate(swept["proximal"]):
            r = 1 - lr * (curvature + mu)
            q = (mu + curvature * r**num_steps) / (curvature + mu)
            slope, shift = 0.0, 0.0
            for group in ([0], [1, 2, 3]):
                edge_slope = np.mean(q[group])
                edge_shift = np.mean((1 - q[group]) * centers[group, 0])
                repeated = edge_slope**kappa
                slope += len(group) / 4 * repeated
                shift += len(group) / 4 * edge_shift * (1 - repeated) / (1 - edge_slope)
            fixed = shift / (1 - slope)
            expected = fixed + slope ** np.arange(41) * (4.0 - fixed)
            np.testing.assert_allclose(found[i, j, 0, :, 0], expected, rtol=1e-12)
            assert abs(slope**40 * (4.0 - fixed)) < 1e-6
            errors[i, j] = abs(fixed - curvature @ centers[:, 0] / curvature.sum())
    assert (errors > 1e-2).all()
    assert (errors[1] > errors[0]).all()
    assert (errors[:, 1] < errors[:, 0]).all()
