"""The loss of every client, of problems whose clients have no test examples."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.partition import Partition
from fedjax_sim.problems import GaussianClients, Quadratic, from_logdensity, latent

CENTERS = np.array([[0.0, 1.0], [2.0, -1.0], [3.0, 0.5]])
AT = jnp.array([0.5, 1.0])


@pytest.mark.slow
def test_quadratics(small: Callable) -> None:
    """Each f_i by hand; a sweep labels them, and its summary has the worst of them."""
    problem = Quadratic.of(CENTERS, curvature=[1.0, 2.0, 4.0], per_client=True)
    found = problem.evaluate(AT)
    by_hand = np.array([1, 2, 4]) / 2 * np.square(np.asarray(AT) - CENTERS).sum(axis=1)
    np.testing.assert_allclose(found["client_loss[client]"], by_hand, rtol=1e-6)
    np.testing.assert_allclose(found["loss"], by_hand.mean(), rtol=1e-6)
    assert {*Quadratic.of(CENTERS).evaluate(AT)} == {"loss"}
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper = small(system).replace(num_clients=3, num_selected=2)
    run = fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(2), num_evals=1)
    assert run.curves.client_loss.dims == ("eval", "client")
    final = fedjax_sim.results.summary({"fedavg": run.curves})["systems"]["fedavg"]["final"]
    of_clients = run.curves.client_loss.values[-1]
    assert final["client_loss"]["worst_decile"] == of_clients.max()
    np.testing.assert_allclose(final["client_loss"]["mean"], final["loss"]["mean"], rtol=1e-6)


def test_gaussian_clients() -> None:
    """f^c / n, whose mean by weights is the loss of all."""
    counts = np.array([1, 3, 2])
    problem = GaussianClients.of([1.0, 2.0, 4.0], CENTERS, counts=counts, per_client=True)
    found = problem.evaluate(AT)
    by_hand = np.array([1, 2, 4]) / 2 * np.square(np.asarray(AT) - CENTERS).sum(axis=1) / 6
    np.testing.assert_allclose(found["client_loss[client]"], by_hand, rtol=1e-6)
    np.testing.assert_allclose(found["loss"], counts @ by_hand / 6, rtol=1e-6)


@pytest.mark.parametrize("make", [Quadratic.of, partial(GaussianClients.of, 0.5)])
def test_centers_of_whole_numbers_are_like_real_ones(make: Callable) -> None:
    """Their type is not that of the other numbers, which it would cut."""
    given = {"curvature": 0.5} if make == Quadratic.of else {}
    ours, floats = (
        make(np.array([[0, 1], [2, 4]], kind), start=0.5, **given) for kind in (int, "float32")
    )
    jax.tree.map(np.testing.assert_array_equal, ours, floats)
    assert {leaf.dtype for leaf in jax.tree.leaves(ours)} <= {
        np.dtype("float32"),
        np.dtype("int32"),
    }
    np.testing.assert_array_equal(ours.start, [0.5, 0.5])


def test_examples_of_all_clients_fit_32_bits() -> None:
    """Their sum is a divisor, and would be negative."""
    with pytest.raises(ConfigError, match="sum of counts is 3000000000, but must be at most"):
        GaussianClients.of(1.0, CENTERS, counts=10**9)


@pytest.mark.slow
def test_log_densities() -> None:
    """Minus the mean log-likelihood of a client's examples, and the prior's part of one example."""
    data = np.array([1.0, 2.0, 4.0, 8.0], "float32")
    problem = from_logdensity(
        lambda w, x: -jnp.square(w - x) / 2,
        lambda w: -3 * jnp.square(w) / 2,
        data,
        np.array([0, 1, 0, 0]),
        jnp.float32(0.0),
        per_client=True,
    )
    losses = problem.evaluate(jnp.float32(1.0))["client_loss[client]"]
    np.testing.assert_allclose(losses, [(0 + 9 + 49) / 6 + 3 / 8, 0.5 + 3 / 8], rtol=1e-6)


@pytest.mark.slow
def test_mixtures() -> None:
    """The mean of -log p over a client's examples, whatever its share; the objective has all."""
    data = np.array([[-2.0], [-1.5], [1.0], [2.0], [2.5]])
    parts = Partition(np.array([0, 1, 2, 3, 4]), np.array([3, 2]))
    with jax.enable_x64(True):
        problem = latent.make_estimation(latent.GaussianMixture(2), data, parts, per_client=True)
        statistics = problem.init(jax.random.key(1))
        found = problem.evaluate(statistics)
        params = problem.maximise(statistics)
        each = np.asarray(problem.model.loss(params, jnp.asarray(data)))
        penalty = float(problem.model.penalty(params))
    losses = found["client_loss[client]"]
    np.testing.assert_allclose(losses, [each[:3].mean(), each[3:].mean()], rtol=1e-9)
    np.testing.assert_allclose(found["objective"], each.mean() + penalty, rtol=1e-9)
