"""FA-LD: its special cases FedAvg and SGLD, its noise, and settings that it refuses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Event, Layout, Plan
from fedjax_sim.clients.mini_batches import batches_of
from fedjax_sim.core.streams import stream
from fedjax_sim.engine.shares import listed
from fedjax_sim.problems import GaussianClients
from fedjax_sim.systems import fedavg, langevin


def model_path(
    system: fedjax_sim.System,
    problem: Any,
    hyper: Any,
    *,
    ticks: int = 8,
    seed: int = 3,
    **options: Any,
) -> np.ndarray:
    """Return the server's model after every tick, and the initial one: `f64[ticks + 1, P]`."""
    with jax.enable_x64(True):
        how = {
            "budget": fedjax_sim.Ticks(ticks),
            "num_evals": ticks,
            "keep": fedjax_sim.Keep(models=True),
            "layout": Layout(7, False, 1),
        }
        run = fedjax_sim.simulate(system, problem, hyper, seed=seed, **(how | options))
    assert run.samples.dtype == np.float64
    np.testing.assert_array_equal(run.samples[-1], run.models)
    return run.samples


@pytest.mark.slow
def test_at_temperature_zero_it_is_fedavg(regression: Callable) -> None:
    """To rounding, with everyone, the same mini-batches and gradient noise, and lr = n eta."""
    with jax.enable_x64(True):
        problem = regression(dtype="float64").replace(counts=jnp.full(7, 2, "int32"))
    shared = {"num_clients": 7, "local_steps": 4, "batch_size": 1}
    expected = model_path(
        fedavg.system,
        problem,
        fedavg.paper(num_selected=7, lr=0.05, sampling="without_replacement", **shared),
    )
    hyper = langevin.paper(step_size=0.05 / 14, temperature=0.0, **shared)
    np.testing.assert_allclose(
        model_path(langevin.system, problem, hyper), expected, rtol=1e-14, atol=2e-15
    )
    assert (
        np.abs(
            model_path(langevin.system, problem, hyper.replace(temperature=1e-6)) - expected
        ).max()
        > 1e-6
    )


@pytest.mark.slow
def test_at_temperature_zero_a_uniform_subset_is_fedavgs_cohort(regression: Callable) -> None:
    """Batches are full, because mini-batches are counted differently.

    FA-LD's depend on k, FedAvg's on how often the client was selected.
    """
    with jax.enable_x64(True):
        problem = regression(dtype="float64", noise=0.0).replace(counts=jnp.full(7, 2, "int32"))
    shared = {"num_clients": 7, "num_selected": 4, "local_steps": 4, "batch_size": 2}
    expected = model_path(fedavg.system, problem, fedavg.paper(lr=0.05, **shared))
    hyper = langevin.paper(
        step_size=0.05 / 14, temperature=0.0, participants="without_replacement", **shared
    )
    np.testing.assert_allclose(
        model_path(langevin.system, problem, hyper), expected, rtol=1e-14, atol=2e-15
    )


HESSIANS = np.array(
    [[[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.3], [-0.3, 3.0]], [[4.0, 0.0], [0.0, 0.5]]]
)
CENTERS = np.array([[1.0, -1.0], [0.0, 2.0], [-2.0, 0.5]])


def test_identical_clients_stay_together_under_shared_noise_alone() -> None:
    """Their models coincide before every synchronisation; with any private noise they do not.

    One step of the algorithm in which a client has all the weight returns that client's model.
    """
    steps, ticks, clients, none = 6, 10, jnp.arange(3), jnp.zeros(3, "int32")

    def spreads(problem: Any, hyper: Any) -> jax.Array:
        """Return sum_c p_c ||beta^c - mean||^2 at the end of each of ten rounds: `f[10]`."""
        algorithm = langevin.system.algorithm(problem, hyper, Plan(slots_at_once=3))
        key = jax.random.key(0)

        def one_round(state: Any, tick: jax.Array) -> tuple[Any, jax.Array]:
            def averaged(weight: jax.Array) -> Any:
                event = Event(tick, clients, none + steps, none, weight, none, none, jnp.int32(0))
                return algorithm.step(key, state, event)[0]

            local, after = jax.vmap(averaged)(jnp.eye(3)), averaged(jnp.full(3, 1 / 3))
            return after, jnp.sum(jnp.square(local.server - after.server[None])) / 3

        return jax.lax.scan(one_round, algorithm.init(key), jnp.arange(ticks, dtype="int32"))[1]

    with jax.enable_x64(True):
        problem = GaussianClients.of(HESSIANS[0], np.tile(CENTERS[:1], (3, 1)), start=1.0)
        hyper = langevin.paper(num_clients=3, step_size=0.05, local_steps=steps, gradient="exact")
        shared, mixed = (
            np.asarray(jax.jit(spreads)(problem, hyper.replace(rho=rho))) for rho in (1.0, 0.99)
        )
    assert shared.max() < 1e-28
    assert mixed.min() > 1e-4


@pytest.mark.few(1)
@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_with_one_step_it_is_sgld(rho: float) -> None:
    """theta moves by -eta grad f + sqrt(2 eta tau) xi with a standard normal vector xi.

    Private and shared noise add up to xi.
    """
    counts, eta, tau, seed, ticks = np.array([1, 2, 3]), 0.05, 1.3, 3, 12
    with jax.enable_x64(True):
        problem = GaussianClients.of(HESSIANS, CENTERS, counts=counts, start=0.5)
        hyper = langevin.paper(
            num_clients=3, local_steps=1, step_size=eta, temperature=tau, rho=rho, gradient="exact"
        )
    found = model_path(
        langevin.system, problem, hyper, ticks=ticks, seed=seed, layout=Layout(3, False, 1)
    )
    share = counts / counts.sum()
    private, shared = noises(seed, num_clients=3, num_steps=ticks, dim=2)
    theta = np.array([0.5, 0.5])
    for k in range(ticks):
        slope = sum(share[c] * HESSIANS[c] @ (theta - CENTERS[c]) for c in range(3))
        xi = rho * shared[k] + np.sqrt(1 - rho**2) * np.sqrt(share) @ private[:, k]
        theta = theta - eta * slope + np.sqrt(2 * eta * tau) * xi
        np.testing.assert_allclose(found[k + 1], theta, rtol=1e-10)


def noises(
    seed: int, *, num_clients: int, num_steps: int, dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the standard normal vectors of a run: private `[N, T, P]`, shared `[T, P]`."""
    with jax.enable_x64(True):
        key = stream(jax.random.key(seed), "learning")

        def draw(key: jax.Array) -> jax.Array:
            return jax.vmap(lambda k: jax.random.normal(jax.random.fold_in(key, k), (dim,)))(
                jnp.arange(num_steps)
            )

        local = stream(key, "local")
        private = jax.vmap(lambda c: draw(stream(jax.random.fold_in(local, c), "private noise")))(
            jnp.arange(num_clients)
        )
        return np.asarray(private), np.asarray(draw(stream(key, "shared noise")))


def test_gradients_are_transformed_before_the_noise_is_added() -> None:
    """If gradients are clipped to 0, only the noise is left."""
    with jax.enable_x64(True):
        problem = GaussianClients.of(HESSIANS, CENTERS, start=0.5)
        hyper = langevin.paper(
            num_clients=3,
            local_steps=2,
            step_size=0.05,
            gradient="exact",
            transform=partial(optax.clip, 0.0),
        )
    found = model_path(langevin.system, problem, hyper, ticks=5, layout=Layout(3, False, 1))
    private, _ = noises(3, num_clients=3, num_steps=10, dim=2)
    walk = np.cumsum(np.sqrt(0.1 * 3) * private.mean(axis=0), axis=0)
    np.testing.assert_allclose(found[1:] - 0.5, walk[1::2], rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"participants": "without_replacement"},
            "participants is 'without_replacement with weights from 1 to 3', but must be full",
        ),
        (
            {"participants": "without_replacement", "num_selected": 4, "client_weights": 1.0},
            "num_selected is 4, but must be at most",
        ),
        (
            {"client_weights": [1.0, 2.0]},
            "client_weights is 'of 2 numbers', but must be one number, or 3: one per client",
        ),
        (
            {"client_weights": [1.0, 2.0, 0.0]},
            "client_weights is .*, but must be None, one finite number above 0, or one for each",
        ),
        (
            {"transform": optax.sgd},
            "dynamics.transform is .*, but must be a function that makes an optax gradient",
        ),
        ({"round_time": "sum"}, "clock.round_time is 'sum', but must be one_draw or mean"),
    ],
)
def test_bad_settings_are_refused(
    settings: dict[str, Any], words: str, compiled: list[str]
) -> None:
    """Before anything is compiled, with a message that names the setting."""
    problem = GaussianClients.of(HESSIANS, CENTERS, counts=np.array([1, 2, 3]))
    sizes = {"num_clients": 3} | ({"num_selected": 2} if "participants" in settings else {})
    compiled.clear()
    with pytest.raises(ConfigError, match=words):
        fedjax_sim.simulate(
            langevin.system,
            problem,
            langevin.paper(**(sizes | settings)),
            budget=fedjax_sim.Ticks(2),
        )
    assert compiled == []


def test_mini_batches_larger_than_a_client_are_unbiased() -> None:
    """In a batch of 5 of 3 examples, two count twice: each equally often, within 5 errors."""
    keys = jax.vmap(jax.random.key)(jnp.arange(3000))
    problem = GaussianClients.of(HESSIANS, CENTERS, counts=np.array([3, 2, 1]))
    hyper = langevin.paper(num_clients=3, batch_size=5)
    zero = jnp.int32(0)
    drawn = jax.vmap(lambda key: batches_of(problem, hyper, key, zero, zero)(zero)[0])(keys)
    times = np.stack([(np.asarray(drawn) == example).sum(axis=1) for example in range(3)])
    assert times.min() == 1 and times.max() == 2
    np.testing.assert_array_less(np.abs(times.mean(axis=1) - 5 / 3), 5 * np.sqrt(2 / 9 / 3000))


def test_exact_gradients_need_a_clients_whole_loss(regression: Callable) -> None:
    """A problem without `client_loss` is refused."""
    with pytest.raises(
        ConfigError,
        match="gradient is 'exact', but must be minibatch, because Regression has no client_loss",
    ):
        fedjax_sim.simulate(
            langevin.system,
            regression(),
            langevin.paper(num_clients=7, gradient="exact"),
            budget=fedjax_sim.Ticks(2),
        )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("changed", "draws"),
    [
        ({"temperature": 0.0}, 0),
        ({"temperature": 1.0, "rho": 0.0}, 1),
        ({"temperature": 1.0, "rho": 1.0}, 1),
        ({"temperature": 1.0, "rho": 0.5}, 2),
    ],
)
def test_noise_that_all_lanes_do_without_is_not_drawn(
    changed: dict[str, float], draws: int
) -> None:
    """The program of a sweep has one draw for shared and one for private noise, if any lane has it.

    A sweep in which some lanes have no shared noise draws both.
    """
    problem = GaussianClients.of(np.eye(2)[None].repeat(3, 0), np.ones((3, 2)), counts=5)
    hyper = langevin.paper(num_clients=3, local_steps=1, gradient="exact", **changed)

    def drawn(settings: dict[str, list[float]]) -> int:
        (program,) = listed(
            langevin.system,
            problem,
            hyper,
            seeds=1,
            devices=jax.local_devices()[:1],
            settings=settings,
            budget=fedjax_sim.Ticks(2),
        ).lower()
        return program.as_text().count("chlo.erf_inv")

    assert drawn({}) == draws
    if draws:
        assert drawn({"rho": [changed["rho"], 0.3]}) == 2
