"""Fixed points of the methods of synchronous rounds on quadratics, which are known exactly.

Client i has the loss (h_i / 2) ||w - c_i||^2. K steps of size eta move it by the share
A_i = 1 - (1 - eta h_i)^K of the way to c_i, so FedAvg ends at sum_i p_i A_i c_i / sum_i p_i A_i,
which is not the optimum sum_i p_i h_i c_i / sum_i p_i h_i. All runs are in float64.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.problems import Quadratic
from tests.conftest import slow_but

SYSTEMS = fedjax_sim.SYSTEMS
N, K, LR = 5, 4, 0.3
CURVATURE = np.linspace(0.3, 2.0, N)
CENTERS = np.random.default_rng(0).normal(size=(N, 2))
SIZES = np.array([1, 2, 3, 5, 8])
"""Examples of the clients, and their local steps of an epoch."""


@struct.dataclass
class Sized(Quadratic):
    """Quadratics of clients that claim to have different numbers of examples."""

    @property
    def counts(self) -> jax.Array:
        return jnp.asarray(SIZES, "int32")


def last_models(
    name: str, settings: dict[str, list[Any]], *, ticks: int = 600, keep: bool = False, **fixed: Any
) -> np.ndarray:
    """Return the last models, `f64[values, 2]`, or all of them, `f64[values, T + 1, 2]`."""
    everyone = {"num_selected": N, "lr": LR, "batch_size": 1, "num_clients": N}
    if "local_epochs" not in fixed:
        everyone["local_steps"] = K
    with jax.enable_x64(True):
        problem = Sized.of(CENTERS, curvature=CURVATURE, start=np.array([2.0, -1.0]))
        run = fedjax_sim.sweep(
            SYSTEMS[name],
            problem,
            SYSTEMS[name].paper(**(everyone | fixed)),
            settings=settings,
            budget=fedjax_sim.Ticks(ticks),
            num_evals=ticks if keep else 1,
            keep=fedjax_sim.Keep(models=keep),
            layout=Layout(fixed.get("num_selected", N), False, 1),
        )
    return run.samples if keep else run.models


def mean(weight: np.ndarray) -> np.ndarray:
    """Return the mean of the centers with weights: `f64[2]`."""
    return weight @ CENTERS / weight.sum()


def share(rate: float, steps: Any = K, curvature: np.ndarray = CURVATURE) -> np.ndarray:
    """Return A_i of all clients."""
    return 1 - (1 - rate * curvature) ** steps


OPTIMUM = mean(CURVATURE)


@pytest.mark.slow
def test_fedprox_goes_from_fedavg_to_gradient_descent() -> None:
    """Client i moves by m_i = h_i / (h_i + mu) (1 - (1 - eta (h_i + mu))^K) of its way.

    So the whole path is known. With mu = 0 it is FedAvg's, with its biased end. As mu grows, m_i
    becomes h_i / mu, and the path that of gradient descent on the mean loss with steps of 1 / mu,
    which ends at the optimum.
    """
    pulls, rate, steps, ticks = [0.0, 1.0, 150.0], 0.006, 200, 600
    start = np.array([2.0, -1.0])
    run = last_models("fedprox", {"proximal": pulls}, lr=rate, local_steps=steps, keep=True)
    ends = []
    for mu, path in zip(pulls, run, strict=True):
        moved = CURVATURE / (CURVATURE + mu) * share(rate, steps, CURVATURE + mu)
        fade = (1 - moved.mean()) ** np.arange(ticks + 1)[:, None]
        expected = mean(moved) + fade * (start - mean(moved))
        np.testing.assert_allclose(path, expected, rtol=0, atol=1e-9)
        ends.append(np.abs(mean(moved) - OPTIMUM).max())
    assert ends[0] > 1.1 * ends[1] > 5 * ends[2]
    fade = (1 - CURVATURE.mean() / pulls[2]) ** np.arange(ticks + 1)[:, None]
    descent = OPTIMUM + fade * (start - OPTIMUM)
    # h / mu is at most 1.4 %.
    assert np.abs(run[2] - descent).max() < 0.014 * np.abs(start - OPTIMUM).max()
    assert np.abs(run[2, -1] - start).max() > 0.9 * np.abs(start - OPTIMUM).max()


@pytest.mark.slow
def test_fedavg_is_biased_and_scaffold_and_feddyn_are_not() -> None:
    """Also if three of the five clients take part in a round."""
    fedavg = last_models("fedavg", {"lr": [LR]})[0]
    np.testing.assert_allclose(fedavg, mean(share(LR)), rtol=0, atol=1e-12)
    assert np.abs(fedavg - OPTIMUM).max() > 0.05
    for name, setting in (
        ("scaffold", {"server_lr": [1.0, 0.5]}),
        ("feddyn", {"regularization": [0.5]}),
    ):
        # FedDyn's clients solve their problems to within 1e-9.
        steps = 80 if name == "feddyn" else K
        found = last_models(name, setting, num_selected=3, local_steps=steps)
        np.testing.assert_allclose(found, np.stack([OPTIMUM] * len(found)), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", slow_but(["examples"], ["equal", "examples"]))
def test_fednova_has_the_right_objective_and_fedavg_another(weighting: str) -> None:
    """Wang et al., Theorem 1: under uneven steps tau_i FedAvg's objective has weights p_i tau_i.

    Its fixed point is that of A_i with each client's steps; FedNova's that of A_i / tau_i, which is
    proportional to h_i for small steps. Both are exact, and their limits for small steps are near.
    """
    p = np.ones(N) if weighting == "equal" else SIZES
    rates = [0.003, 0.2]
    uneven = {"local_epochs": 1.0, "weighting": weighting, "ticks": 3000}
    for name, objective in (("fedavg", p * SIZES), ("fednova", p)):
        found = last_models(name, {"lr": rates}, **uneven)
        for rate, model in zip(rates, found, strict=True):
            moved = objective / SIZES * share(rate, SIZES)
            np.testing.assert_allclose(model, mean(moved), rtol=0, atol=1e-9)
        np.testing.assert_allclose(found[0], mean(objective * CURVATURE), rtol=0, atol=0.02)
    assert np.abs(mean(p * SIZES * CURVATURE) - mean(p * CURVATURE)).max() > 0.1


def test_sizes_of_fednova_are_sums_of_the_weights_of_gradients() -> None:
    """Also where settings are traced, as those of lanes that have a momentum or a pull."""
    hyper = SYSTEMS["fednova"].Hyper(lr=0.1)

    @jax.jit
    def size(momentum: Any, pull: Any) -> Any:
        return hyper.replace(momentum=momentum, proximal=pull).size(jnp.array([1, K]))

    left = np.arange(K)
    for momentum, pull, weights in (
        (0.0, 0.0, np.ones(K)),
        (0.0, 2.0, (1 - 0.1 * 2.0) ** left),
        (0.5, 0.0, (1 - 0.5 ** (left + 1)) / (1 - 0.5)),
    ):
        expected = [weights[0], weights.sum()]
        np.testing.assert_allclose(size(momentum, pull), expected, rtol=1e-5)


@pytest.mark.slow
def test_scaffold_of_one_client_is_fedavg() -> None:
    """Server and client then have the same control variate: K steps on the client's loss a round.

    Both are compared with c + (1 - eta h)^(K t) (w - c).
    """
    start, found = np.array([2.0, -1.0]), []
    for name in ("fedavg", "scaffold"):
        with jax.enable_x64(True):
            problem = Quadratic.of(CENTERS[:1], curvature=0.7, start=start)
            hyper = SYSTEMS[name].paper(
                num_clients=1, num_selected=1, local_steps=K, lr=LR, batch_size=1
            )
            found.append(
                fedjax_sim.simulate(
                    SYSTEMS[name], problem, hyper, budget=fedjax_sim.Ticks(3)
                ).models
            )
    expected = CENTERS[0] + (1 - LR * 0.7) ** (3 * K) * (start - CENTERS[0])
    np.testing.assert_allclose(found, [expected] * 2, rtol=1e-12)
