"""FedEM on a stream of fresh examples, against a slow loop that draws the same examples."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.core.streams import stream
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.systems import em, fedem, vr_fedem
from tests.conftest import WatchedMean
from tests.reference import fedem_loop

SEED, N, M, D, BATCH, TICKS, KAPPA = 3, 4, 6, 3, 2, 15, 0.4
CENTERS = np.random.default_rng(0).normal(size=(N, D)) + np.array([1.5, -0.1, 0.0])
SETTINGS = {"num_clients": N, "batch_size": BATCH, "gamma": 0.3, "participation": 0.6}
SETTINGS |= {"alpha": 0.3}


def draw(key: jax.Array, client: jax.Array) -> Seen:
    return Seen(jnp.asarray(CENTERS)[client] + jax.random.normal(key, (D,)), jnp.asarray(KAPPA))


def online(**penalty: float) -> latent.Stream:
    """The stream, with a small held-out sample."""
    y = np.random.default_rng(1).normal(size=(N, M, D)) + CENTERS[:, None]
    partition = Partition(np.arange(N * M), np.full(N, M))
    seen = Seen(y.reshape(-1, D), np.full(N * M, KAPPA))
    model = WatchedMean(ridge=0.25, **penalty)
    held = latent.make_estimation(model, seen, partition, start=np.ones(D))
    return latent.Stream.of(held, draw, seed=7)


class Drawn(NamedTuple):
    """A client's stream: its examples are drawn by their numbers.

    Attributes:
      client: The client's number.
      held: `f[M, D]`, its held-out sample.
    """

    client: int
    held: np.ndarray

    def __getitem__(self, places: Any) -> np.ndarray:
        own = jax.random.fold_in(jax.random.key(jnp.uint32(7)), self.client)
        keys = [jax.random.fold_in(own, int(place)) for place in places]
        return CENTERS[self.client] + np.array([jax.random.normal(key, (D,)) for key in keys])

    def __len__(self) -> int:
        return len(self.held)


def e_step(theta: Any, examples: Any) -> np.ndarray:
    """Expected statistics of fresh examples, or of a client's sample."""
    y = examples.held if isinstance(examples, Drawn) else examples
    return (1 - KAPPA) * theta + KAPPA * y


def simulate(system: Any, problem: Any, hyper: Any, ticks: int = TICKS) -> fedjax_sim.Run:
    return fedjax_sim.simulate(
        system,
        problem,
        hyper,
        seed=SEED,
        budget=fedjax_sim.Ticks(ticks),
        num_evals=ticks if ticks == TICKS else 1,
        layout=Layout(N, False, 1),
    )


def test_fedem_on_a_stream() -> None:
    with jax.enable_x64(True):
        problem = online(lasso=0.1)
        run = simulate(fedem.system, problem, fedem.paper(**SETTINGS))
        batches = stream(stream(jax.random.key(SEED), "learning"), "batches")
        places, count = [], int(problem.counts[0])

        def batch(client: int, number: int) -> np.ndarray:
            key = jax.random.fold_in(jax.random.fold_in(batches, client), number)
            found = np.asarray(jax.random.bits(key, (BATCH,), "uint32") % count)
            places.extend((client, each) for each in found)
            return found

        y = np.asarray(problem.sample.data.y).reshape(N, M, D)
        active = np.asarray(run.timelines[0].weight) > 0
        rounds = fedem_loop.fedem(
            np.ones(D),
            [Drawn(i, y[i]) for i in range(N)],  # type: ignore[arg-type]
            rounds=TICKS,
            e_step=e_step,
            m_step=lambda s: np.sign(s) * np.maximum(np.abs(s) - 0.1, 0) / 1.25,
            batch=batch,
            active=lambda tick, client: bool(active[tick, client]),
            quantize=lambda tick, client, x: x,
            gamma=lambda tick: 0.3,
            alpha=0.3,
            p=0.6,
        )
    ours = np.stack([run.curves[f"w{i}"].values[1:] for i in range(D)], axis=-1)
    np.testing.assert_allclose(ours, [each.server for each in rounds], rtol=0, atol=1e-10)
    assert len(set(places)) == len(places), "an example came twice"


@pytest.mark.slow
def test_the_limit_is_that_of_the_law_and_not_of_the_sample() -> None:
    with jax.enable_x64(True):
        problem = online()
        hyper = fedem.paper(num_clients=N, batch_size=50, gamma=0.02)
        run = simulate(fedem.system, problem, hyper, ticks=1500)
        slope = (0.25 + KAPPA) / 1.25
        of_law = KAPPA * CENTERS.mean(axis=0) / slope
        of_sample = KAPPA * np.asarray(problem.sample.data.y).mean(axis=0) / slope
    assert np.abs(of_law - of_sample).max() > 0.05
    np.testing.assert_allclose(run.models, of_law, rtol=0, atol=0.015)


def test_whole_passes_and_other_examples_are_refused() -> None:
    with jax.enable_x64(True):
        problem = online()
    for system, settings in ((em, {}), (vr_fedem, {}), (fedem, {"batches": "full"})):
        words = pytest.raises(
            ConfigError, match="problem is 'Stream', but must be one with all data"
        )
        with jax.enable_x64(True), words:
            simulate(system.system, problem, system.paper(num_clients=N, **settings))
    with pytest.raises(ConfigError, match=r"draw is 'a function to .* but must be one to"):
        latent.Stream.of(problem.sample, lambda key, client: Seen(jnp.ones(2), jnp.ones(())))


def test_lasso_by_direct_minimisation() -> None:
    """EM with the l1 penalty minimises the penalised loss, and some coordinates are exactly 0."""
    with jax.enable_x64(True):
        held = online(lasso=0.08).sample
        run = simulate(em.system, held, em.paper(num_clients=N), ticks=400)
        theta = np.asarray(held.maximise(jnp.asarray(run.models)))
        y = np.asarray(held.data.y)

        def objective(theta: np.ndarray) -> float:
            fit = KAPPA / 2 * ((y - theta) ** 2).sum(axis=1).mean()
            return float(fit + 0.125 * (theta**2).sum() + 0.08 * np.abs(theta).sum())

        assert float(held.objective(jnp.asarray(theta))) == pytest.approx(objective(theta))
    best = [
        optimize.minimize_scalar(
            lambda x, j=j: KAPPA / 2 * np.mean((y[:, j] - x) ** 2) + 0.125 * x**2 + 0.08 * abs(x)
        ).x
        for j in range(D)
    ]
    np.testing.assert_allclose(theta, best, rtol=0, atol=1e-5)
    assert 0 < (theta == 0).sum() < D
