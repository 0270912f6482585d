"""FA-LD: its law on Gaussian clients, where the noise goes, and the systems that it contains."""

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
from fedjax_sim.clients.gradient_steps import fresh_examples
from fedjax_sim.problems import GaussianClients
from fedjax_sim.streams import shuffle_bits, stream
from fedjax_sim.systems import fedavg, langevin

CHAINS = 10_000
WIDE = Layout(slots_at_once=8, lanes_at_once=True, lane_devices=1)
RHO = [0.0, 0.5, 1.0]
RHO_SHARED = [0.0, 0.7, 1.0]

# Stationary mean, and variances at a synchronisation of everyone and of one client, for rho = 0, 0.5, 1 and by K. H = (1, 4), b = (-1, 1),
# p = (1/2, 1/2), eta = 0.05, tau = 1.
UNEQUAL_HESSIANS = {
    1: (0.600000, (0.426667, 0.426667, 0.426667), (0.902295, 0.793005, 0.465137)),
    5: (0.496474, (0.473308, 0.469947, 0.459865), (1.196558, 1.069132, 0.686852)),
    20: (0.212859, (0.606548, 0.584436, 0.518099), (1.899117, 1.742603, 1.273060)),
    100: (0.002969, (0.651697, 0.622319, 0.534184), (2.297494, 2.134568, 1.645791)),
}
TICKS = {1: 40, 5: 16, 20: 5, 100: 2}
"""Enough, from the stationary mean, for the variance to be stationary to a tenth of its standard error."""
# H = 2, b = (-1, -1/2, 0, 1/2, 1), eta = 0.05, K = 4: mean, and variances for rho = 0, 0.7, 1; by participation, S and counts.
EQUAL, RISING = (1, 1, 1, 1, 1), (2, 3, 4, 5, 6)
SHARED_HESSIAN = {
    ("full", 5, EQUAL): (0.0, (0.526316, 0.526316, 0.526316)),
    ("full", 5, RISING): (0.25, (0.526316, 0.526316, 0.526316)),
    ("with_replacement", 2, EQUAL): (0.0, (1.630862, 1.115072, 0.578230)),
    ("with_replacement", 2, RISING): (0.25, (1.624372, 1.108583, 0.571741)),
    ("without_replacement", 2, EQUAL): (0.0, (1.354725, 0.967883, 0.565251)),
    ("without_replacement", 4, EQUAL): (0.0, (0.664384, 0.599910, 0.532805)),
}


def chains(
    problem: GaussianClients, rho: list[float], *, ticks: int, **settings: Any
) -> np.ndarray:
    """The models of independent chains after some rounds, in float64: `[rho, CHAINS]`. Programs differ in nothing but slots and scheme."""
    with jax.enable_x64(True):
        hyper = langevin.Hyper(
            num_clients=len(problem.centers), step_size=0.05, gradient="exact", **settings
        )
        how = {
            "num_ticks": ticks,
            "num_evals": ticks,
            "evals_per_chunk": 1,
            "layout": WIDE,
            "reports": False,
        }
        run = fedjax_sim.sweep(
            langevin.system, problem, hyper, seeds=CHAINS, settings={"rho": rho}, **how
        )
    assert run.models.dtype == np.float64
    return run.models.reshape(len(rho), CHAINS)


def assert_moments(samples: np.ndarray, mean: float, variances: tuple[float, ...]) -> None:
    """Within five standard errors, these from the samples' own fourth moments: under partial participation the law is a mixture."""
    centred = samples - samples.mean(axis=1, keepdims=True)
    found = np.square(centred).mean(axis=1)
    np.testing.assert_array_less(np.abs(samples.mean(axis=1) - mean), 5 * np.sqrt(found / CHAINS))
    error = np.sqrt((centred**4).mean(axis=1) - found**2) / np.sqrt(CHAINS)
    np.testing.assert_array_less(np.abs(found - variances), 5 * error)
    assert (error < 0.05 * found).all()


@pytest.mark.parametrize("local_steps", UNEQUAL_HESSIANS)
@pytest.mark.parametrize("participation", ["full", "with_replacement", "without_replacement"])
def test_unequal_hessians(participation: str, local_steps: int) -> None:
    """With one of two clients both schemes are the same law."""
    mean, of_all, of_one = UNEQUAL_HESSIANS[local_steps]
    with jax.enable_x64(True):
        problem = GaussianClients.of(np.array([1.0, 4.0]), np.array([[-1.0], [1.0]]), start=mean)
    settings = {"participation": participation, "num_selected": 1, "local_steps": local_steps}
    assert_moments(
        chains(problem, RHO, ticks=TICKS[local_steps], **settings),
        mean,
        of_all if participation == "full" else of_one,
    )


@pytest.mark.parametrize("case", SHARED_HESSIAN)
def test_shared_hessian(case: tuple[str, int, tuple[int, ...]]) -> None:
    participation, selected, counts = case
    mean, variances = SHARED_HESSIAN[case]
    with jax.enable_x64(True):
        problem = GaussianClients.of(
            2.0, np.linspace(-1, 1, 5)[:, None], counts=np.array(counts), start=mean
        )
    samples = chains(
        problem,
        RHO_SHARED,
        ticks=15,
        participation=participation,
        num_selected=selected,
        local_steps=4,
    )
    assert_moments(samples, mean, variances)


def test_one_long_round_averages_the_local_posteriors() -> None:
    """Client c alone samples from N(b_c, tau / (p_c H_c)), but for the discretisation: variance / (1 - eta H_c / 2); from any start."""
    hessians, share = np.array([1.0, 4.0]), 0.5
    with jax.enable_x64(True):
        problem = GaussianClients.of(hessians, np.array([[-1.0], [1.0]]), start=0.6)
    samples = chains(problem, [0.0, 0.5], ticks=1, local_steps=300)[:1]
    assert_moments(
        samples, 0.0, (share**2 * np.sum(1 / (share * hessians * (1 - 0.05 * hessians / 2))),)
    )


COUNTS = (2, 3, 4, 5, 6)
STEPS, ETA, TAU = 3, 0.05, 1.3


def free(counts: tuple[int, ...] = COUNTS) -> GaussianClients:
    """Clients without a gradient: models move by noise alone."""
    return GaussianClients.of(0.0, np.zeros((len(counts), 1)), counts=np.array(counts))


@partial(jax.jit, static_argnums=0)
def _increments(
    tick: int, steps: jax.Array, keys: jax.Array, problem: GaussianClients, hyper: Any
) -> jax.Array:
    num = problem.counts.shape[0]
    algorithm = langevin.system.algorithm(problem, hyper, Plan(slots_at_once=num))
    zero = jnp.zeros(num, "int32")

    def one(key: jax.Array, weight: jax.Array) -> jax.Array:
        event = Event(
            jnp.int32(tick), jnp.arange(num), zero + steps, zero, weight, zero, zero, jnp.int32(0)
        )
        return algorithm.step(key, algorithm.init(key), event)[0].server[0]

    return jax.vmap(lambda key: jax.vmap(partial(one, key))(jnp.eye(num)))(keys)


def increments(
    rho: float,
    *,
    tick: int = 0,
    steps: int = STEPS,
    seeds: int = CHAINS,
    counts: Any = COUNTS,
    **settings: Any,
) -> np.ndarray:
    """How far each client gets in a round, all from the same start and of one draw of the noise: `[seeds, N]`.

    What a client gets is the average in which it has all the weight.
    """
    with jax.enable_x64(True):
        hyper = langevin.Hyper(
            num_clients=5,
            step_size=ETA,
            temperature=TAU,
            gradient="exact",
            local_steps=steps,
            rho=rho,
            **settings,
        )
        keys = jax.vmap(lambda seed: stream(jax.random.key(seed), "learning"))(
            jnp.arange(seeds, dtype="int32")
        )
        hyper = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
        return np.asarray(_increments(tick, np.int32(steps), keys, free(counts), hyper))


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("counts", [COUNTS, (1, 1, 1, 1, 1)])
def test_where_the_noise_goes(rho: float, counts: tuple[int, ...]) -> None:
    """Variance of a client 2 eta tau (rho^2 + (1 - rho^2) / p_c) a step, covariance 2 eta tau rho^2; of the average 2 eta tau: 5 errors."""
    found = increments(rho, counts=counts)
    share, scale = np.array(counts) / sum(counts), 2 * ETA * TAU * STEPS
    expected = scale * (rho**2 + (1 - rho**2) * np.diag(1 / share))
    variance = np.diag(expected)
    error = np.sqrt((np.outer(variance, variance) + expected**2) / CHAINS)
    np.testing.assert_array_less(np.abs(found.T @ found / CHAINS - expected), 5 * error)
    np.testing.assert_array_less(np.abs(found.mean(axis=0)), 5 * np.sqrt(variance / CHAINS))
    assert abs(np.mean((found @ share) ** 2) - scale) < 5 * scale * np.sqrt(2 / CHAINS)


def test_streams_do_not_depend_on_rho_or_on_the_length_of_rounds() -> None:
    """A part is shared, a part private, whatever their weights; and step k of a client has the same noise in any round."""
    private, shared, both = (increments(rho, seeds=4) for rho in (0.0, 1.0, 0.6))
    np.testing.assert_allclose(both, 0.8 * private + 0.6 * shared, rtol=1e-12)
    np.testing.assert_allclose(shared, np.broadcast_to(shared[:, :1], shared.shape), rtol=1e-12)
    assert len(np.unique(private)) == private.size
    long = increments(0.6, seeds=4, steps=2 * STEPS)
    np.testing.assert_allclose(both + increments(0.6, seeds=4, tick=1), long, rtol=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.7])
@pytest.mark.parametrize(
    ("participation", "inflation"),
    [("with_replacement", 1 + 4 / 2), ("without_replacement", 1 + 3 / 2)],
)
def test_the_correction_takes_the_inflation_off_the_private_noise(
    rho: float, participation: str, inflation: float
) -> None:
    settings = {"participation": participation, "num_selected": 2, "seeds": 4, "counts": (1,) * 5}
    plain, corrected, shared = (
        increments(rho, **settings),
        increments(rho, noise_correction=True, **settings),
        rho * increments(1.0, **settings),
    )
    np.testing.assert_allclose(
        corrected - shared, (plain - shared) / np.sqrt(inflation), rtol=1e-10
    )


def test_a_client_drawn_twice_works_once_and_counts_twice() -> None:
    """The average of a round is that of its multiset, of the same models that full participation would average."""
    seeds = 24
    with jax.enable_x64(True):
        hyper = langevin.Hyper(
            num_clients=5,
            num_selected=4,
            participation="with_replacement",
            local_steps=STEPS,
            batch_size=2,
            step_size=ETA,
            temperature=TAU,
            rho=0.6,
        )
        run = fedjax_sim.sweep(
            langevin.system, free(), hyper, seeds=seeds, num_ticks=1, num_evals=1, layout=WIDE
        )
    alone = increments(0.6, seeds=seeds)
    most = 0.0
    for seed in range(seeds):
        clients, weight = run.timelines[seed].clients[0], run.timelines[seed].weight[0]
        drawn = clients[clients >= 0]
        assert len(set(drawn.tolist())) == len(drawn)
        np.testing.assert_allclose(weight.sum(), 1, rtol=1e-12)
        assert set((4 * weight).tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0}
        np.testing.assert_allclose(
            run.models[seed, 0], weight[clients >= 0] @ alone[seed, drawn], rtol=1e-12
        )
        most = max(most, weight.max())
        # Only those who took part are counted: a message of 64 bits, and K steps.
        assert run.curves.uplink_bits[seed, -1] == 64 * len(drawn)
        assert run.curves.local_steps[seed, -1] == STEPS * len(drawn)
    assert most >= 0.5


def test_the_average_of_everyone_has_the_targets_noise() -> None:
    """Through the whole of the engine: 2 eta tau a step, however it is mixed and whatever the weights."""
    with jax.enable_x64(True):
        problem = free(COUNTS)
    samples = chains(problem, RHO_SHARED, ticks=2, num_selected=5, local_steps=4)
    assert_moments(samples, 0.0, (2 * 0.05 * 8,) * 3)


def model_path(
    system: fedjax_sim.System,
    problem: Any,
    hyper: Any,
    *,
    ticks: int = 8,
    seed: int = 3,
    **options: Any,
) -> np.ndarray:
    """The server's model after every tick, the initial one included, in float64: `[ticks + 1, P]`."""
    with jax.enable_x64(True):
        how = {
            "num_ticks": ticks,
            "num_evals": ticks,
            "keep_models": True,
            "layout": Layout(7, False, 1),
        }
        run = fedjax_sim.simulate(system, problem, hyper, seed=seed, **(how | options))
    assert run.samples.dtype == np.float64
    np.testing.assert_array_equal(run.samples[-1], run.models)
    return run.samples


def test_at_temperature_zero_it_is_fedavg(regression: Callable) -> None:
    """With everyone on the same mini-batches and gradient noise; lr = n eta. To rounding."""
    with jax.enable_x64(True):
        problem = regression(dtype="float64").replace(counts=jnp.full(7, 2, "int32"))
    shared = {"num_clients": 7, "local_steps": 4, "batch_size": 1}
    expected = model_path(
        fedavg.system,
        problem,
        fedavg.Hyper(num_selected=7, lr=0.05, sampling="without_replacement", **shared),
    )
    hyper = langevin.Hyper(step_size=0.05 / 14, temperature=0.0, **shared)
    np.testing.assert_allclose(
        model_path(langevin.system, problem, hyper), expected, rtol=1e-14, atol=2e-15
    )
    assert (
        np.abs(
            model_path(langevin.system, problem, hyper.replace(temperature=1e-6)) - expected
        ).max()
        > 1e-6
    )


def test_at_temperature_zero_a_uniform_subset_is_fedavgs_cohort(regression: Callable) -> None:
    """Full batches, as the streams of mini-batches follow k here, and there how often a client was selected."""
    with jax.enable_x64(True):
        problem = regression(dtype="float64", noise=0.0).replace(counts=jnp.full(7, 2, "int32"))
    shared = {"num_clients": 7, "num_selected": 4, "local_steps": 4, "batch_size": 2}
    expected = model_path(fedavg.system, problem, fedavg.Hyper(lr=0.05, **shared))
    hyper = langevin.Hyper(
        step_size=0.05 / 14, temperature=0.0, participation="without_replacement", **shared
    )
    np.testing.assert_allclose(
        model_path(langevin.system, problem, hyper), expected, rtol=1e-14, atol=2e-15
    )


HESSIANS = np.array(
    [[[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.3], [-0.3, 3.0]], [[4.0, 0.0], [0.0, 0.5]]]
)
CENTERS = np.array([[1.0, -1.0], [0.0, 2.0], [-2.0, 0.5]])


def test_identical_clients_stay_together_under_shared_noise_alone() -> None:
    """All their models coincide before every synchronisation; with any private noise they do not."""
    with jax.enable_x64(True):
        problem = GaussianClients.of(HESSIANS[0], np.tile(CENTERS[:1], (3, 1)), start=1.0)
        hyper = langevin.Hyper(num_clients=3, step_size=0.05, local_steps=6, gradient="exact")
        how = {"num_ticks": 10, "num_evals": 10, "layout": Layout(3, True, 1)}
        run = fedjax_sim.sweep(
            langevin.system, problem, hyper, settings={"rho": [1.0, 0.99]}, **how
        )
    spread = run.curves.client_variance.isel(seed=0).values[:, 1:]
    assert spread[0].max() < 1e-28
    assert spread[1].min() > 1e-4


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_with_one_step_it_is_sgld(rho: float) -> None:
    """theta - eta grad f + sqrt(2 eta tau) xi with one normal vector xi, which the clients' and the shared noise make up together."""
    counts, eta, tau, seed, ticks = np.array([1, 2, 3]), 0.05, 1.3, 3, 12
    with jax.enable_x64(True):
        problem = GaussianClients.of(HESSIANS, CENTERS, counts=counts, start=0.5)
        hyper = langevin.Hyper(
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
    """The standard normal vectors behind a run: private `[N, T, P]`, shared `[T, P]`."""
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
    """Clipped to nothing, what is left is the noise; `optax.identity` changes nothing."""
    with jax.enable_x64(True):
        problem = GaussianClients.of(HESSIANS, CENTERS, start=0.5)
        hyper = langevin.Hyper(
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
            {"participation": "without_replacement"},
            "participation is 'without_replacement with weights from 1 to 3', but must be full",
        ),
        (
            {"participation": "some"},
            "participation is 'some', but must be one of full, with_replacement, without_replacement",
        ),
        (
            {"participation": "without_replacement", "num_selected": 4, "client_weights": 1.0},
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
        ({"rho": 1.1}, "rho is 1.1, but must be a finite number at least 0 and at most 1"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"step_size": 0.0}, "step_size is 0.0, but must be a finite number above 0"),
        ({"local_steps": 0}, "local_steps is 0, but must be a whole number of at least 1"),
        ({"local_steps": 2.5}, "local_steps is 2.5, but must be a whole number"),
        (
            {"transform": optax.sgd},
            "transform is .*, but must be a function that makes an optax gradient transformation",
        ),
        ({"round_time": "sum"}, "round_time is 'sum', but must be one of one_draw, mean"),
    ],
)
def test_what_is_not_allowed(settings: dict[str, Any], words: str, compiled: list[str]) -> None:
    problem = GaussianClients.of(HESSIANS, CENTERS, counts=np.array([1, 2, 3]))
    compiled.clear()
    with pytest.raises(ConfigError, match=words):
        fedjax_sim.simulate(
            langevin.system,
            problem,
            langevin.Hyper(**({"num_clients": 3, "num_selected": 2} | settings)),
            num_ticks=2,
        )
    assert compiled == []


def test_mini_batches_larger_than_a_client_are_unbiased() -> None:
    """3 examples in batches of 5: one or two count twice, each as often as the others within five standard errors."""
    keys = jax.vmap(jax.random.key)(jnp.arange(3000))
    drawn = jax.vmap(lambda key: fresh_examples(shuffle_bits(key), jnp.int32(0), jnp.int32(3), 5))(
        keys
    )
    times = np.stack([(np.asarray(drawn) == example).sum(axis=1) for example in range(3)])
    assert times.min() == 1 and times.max() == 2
    np.testing.assert_array_less(np.abs(times.mean(axis=1) - 5 / 3), 5 * np.sqrt(2 / 9 / 3000))


def test_exact_gradients_need_a_clients_whole_loss(regression: Callable) -> None:
    with pytest.raises(
        ConfigError,
        match="gradient is 'exact', but must be minibatch, as Regression has no client_loss",
    ):
        fedjax_sim.simulate(
            langevin.system,
            regression(),
            langevin.Hyper(num_clients=7, gradient="exact"),
            num_ticks=2,
        )
