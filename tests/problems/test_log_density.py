"""A posterior from a user's functions: its conventions, and the samples of blackjax."""

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.sgmcmc.gradients import grad_estimator, logdensity_estimator

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.core.streams import stream
from fedjax_sim.datasets.arrays import Dataset
from fedjax_sim.models import MLP
from fedjax_sim.partition import Partition
from fedjax_sim.problems import (
    LogDensity,
    from_logdensity,
    log_density_of,
    make_classification,
    make_logistic,
)
from fedjax_sim.systems import langevin

NUM, CLIENTS = 30, np.array([0] * 4 + [1] * 9 + [2] * 17)
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(NUM, 2)), RANDOM.integers(2, size=NUM).astype(float)
START = {"bias": np.zeros(()), "slope": np.array([0.3, -0.2])}
SEED, ETA, TICKS = 2, 0.02, 5


def log_likelihood(params: Any, example: Any) -> Any:
    x, y = example
    logit = x @ params["slope"] + params["bias"]
    return y * logit - jax.nn.softplus(logit)


def log_prior(params: Any) -> Any:
    return -2 * (jnp.sum(params["slope"] ** 2) + params["bias"] ** 2)  # of precision 4


def make(**changes: Any) -> LogDensity:
    given = {"data": (X, Y), "split": CLIENTS, "start": START} | changes
    return from_logdensity(log_likelihood, log_prior, **given)


def test_sums_means_and_the_priors_share() -> None:
    """The energy is that of blackjax, and of the clients' losses times their examples.

    A client with 4 of 30 examples has 4 / 30 of the prior.
    """
    with jax.enable_x64(True):
        problem, key = make(), jax.random.key(0)
        params = jax.tree.map(lambda leaf: leaf + 0.5, problem.init(key))
        whole = jax.jit(logdensity_estimator(log_prior, log_likelihood, NUM))(params, (X, Y))
        loss = jax.jit(problem.client_loss)
        losses = [float(loss(params, jnp.int32(c), key)) for c in range(3)]
        np.testing.assert_allclose(np.dot([4, 9, 17], losses), -whole, rtol=1e-12)
        np.testing.assert_allclose(jax.jit(problem.log_density)(params), whole, rtol=1e-12)
        measured = jax.jit(problem.evaluate)(params)
        np.testing.assert_allclose(measured["log_density"], whole, rtol=1e-12)
        own = jax.jit(problem.log_likelihoods)(params, (X[:4], Y[:4]))
        expected = -(own.sum() + 4 / 30 * log_prior(params)) / 4
        np.testing.assert_allclose(losses[0], expected, rtol=1e-12)
        # A mini-batch of a client of all examples is blackjax's estimate.
        alone = make(split=np.zeros(NUM, int))
        rows = jnp.array([3, 7, 8])
        slope = jax.jit(jax.grad(alone.loss))(params, jnp.int32(0), rows, key)
        of_rows = jax.jit(grad_estimator(log_prior, log_likelihood, NUM))
        estimate = of_rows(params, (X[rows], Y[rows]))
        for ours, theirs in zip(jax.tree.leaves(slope), jax.tree.leaves(estimate), strict=True):
            np.testing.assert_allclose(-NUM * ours, theirs, rtol=1e-12)


@pytest.mark.slow
def test_fald_of_one_step_is_blackjaxs_sgld() -> None:
    """The same trajectory from the same noise: one client, K = 1, all examples."""
    with jax.enable_x64(True):
        problem = make(split=np.zeros(NUM, int))
        hyper = langevin.paper(num_clients=1, local_steps=1, step_size=ETA, gradient="exact")
        how = {
            "budget": fedjax_sim.Ticks(TICKS),
            "num_evals": TICKS,
            "keep": fedjax_sim.Keep(models=True),
        }
        run = fedjax_sim.simulate(
            langevin.system, problem, hyper, seed=SEED, layout=Layout(1, False, 1), **how
        )
        local = stream(stream(jax.random.key(SEED), "learning"), "local")
        key = stream(jax.random.fold_in(local, 0), "private noise")
        sgld = jax.jit(blackjax.sgld(grad_estimator(log_prior, log_likelihood, NUM)).step)
        position = START
        for k in range(TICKS):
            position = sgld(jax.random.fold_in(key, k), position, (X, Y), ETA)
            for name, leaf in position.items():
                np.testing.assert_allclose(run.samples[name][k + 1], leaf, rtol=1e-10)


def test_it_is_the_logistic_problem() -> None:
    """Losses, mini-batches and the prior's share are those of `make_logistic`."""
    with jax.enable_x64(True):
        data = Dataset(X, Y.astype(int), X, Y.astype(int), num_classes=2, name="made")
        split = Partition(np.argsort(CLIENTS, kind="stable"), np.bincount(CLIENTS))
        usual = make_logistic(data, split, prior_precision=4.0, dtype="float64")
        ours, key = make(split=split), jax.random.key(0)
        w = jnp.array([0.4, -1.0, 0.2])
        params = {"slope": w[:2], "bias": w[2]}
        np.testing.assert_array_equal(make().held.index, ours.held.index)
        same = log_density_of(usual)
        found, expected = jax.jit(same.log_density)(w), jax.jit(ours.log_density)(params)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        rows = jnp.array([1, 3])

        @jax.jit
        def losses_of(client: jax.Array) -> Any:
            return (
                (ours.client_loss(params, client, key), usual.client_loss(w, client, key)),
                (ours.loss(params, client, rows, key), usual.loss(w, client, rows, key)),
            )

        for c in range(3):
            for found, expected in losses_of(jnp.int32(c)):
                np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_classifications_are_log_densities() -> None:
    """With a prior, the energy is that of the problem's losses, and predictions are its own."""
    images = RANDOM.integers(256, size=(NUM, 2, 2, 1)).astype("uint8")
    data = Dataset(images, Y.astype(int), images[:7], Y[:7].astype(int), num_classes=2, name="made")
    index = np.arange(NUM).reshape(3, 10)
    usual = make_classification(
        MLP((3,), 2), data, Partition(index.ravel(), np.full(3, 10)), std=0.5, prior_precision=4.0
    )
    ours, key = log_density_of(usual), jax.random.key(1)
    params = jax.jit(usual.init)(key)
    energy = 10 * sum(jax.jit(usual.client_loss)(params, jnp.int32(c), key) for c in range(3))
    np.testing.assert_allclose(jax.jit(ours.log_density)(params), -energy, rtol=1e-5)
    found = jax.jit(jax.vmap(ours.probabilities, (None, 0)))(params, images[:7])
    np.testing.assert_allclose(found, jax.jit(usual.predict)(params), rtol=1e-5)
    with pytest.raises(ConfigError, match="problem is 'LogDensity', but must be"):
        log_density_of(ours)


def test_parameters_of_few_bits_have_priors_and_likelihoods_of_32() -> None:
    """In bfloat16, sums of their squares would lose their ends."""
    data = Dataset(X, Y.astype(int), X, Y.astype(int), num_classes=2, name="made")
    split = Partition(np.arange(NUM), np.array([NUM]))
    usual = make_logistic(data, split, prior_precision=4.0, dtype="bfloat16")
    w = jnp.array([1.7, -3.1, 0.33], "bfloat16")
    squares = np.square(np.asarray(w, float)).sum()
    np.testing.assert_allclose(log_density_of(usual).log_prior(w), -2 * squares, rtol=1e-6)
    logits = np.asarray(usual.data[0] @ w, float)
    losses = np.logaddexp(0, logits) - Y * logits
    energy = losses.sum() + 2 * squares
    np.testing.assert_allclose(usual.energy(w), energy, rtol=1e-5)
    np.testing.assert_allclose(log_density_of(usual).log_density(w), -energy, rtol=1e-5)


def test_examples_that_no_client_holds_do_not_count() -> None:
    """An example that two clients hold counts twice, as in the mean of their losses."""

    def squared(w: Any, x: Any) -> Any:
        return -jnp.square(w - x) / 2

    data, w = np.arange(10, dtype="float32"), jnp.float32(0)
    for index, total in (([0, 1, 2, 3], 7.0), ([0, 1, 1, 3], 5.5)):
        split = Partition(np.array(index), np.array([2, 2]))
        problem = from_logdensity(squared, lambda w: 3 * w, data, split, w, per_client=True)
        found = problem.evaluate(w)
        assert found["loss"] == found["client_loss[client]"].mean() == total / 4
        assert problem.log_density(w) == found["log_density"] == -total
        assert problem.log_likelihoods(w).shape == (10,)


def test_chains_may_start_apart() -> None:
    problem = make(
        start=lambda key: jax.tree.map(lambda leaf: leaf + jax.random.normal(key), START)
    )
    starts = [problem.init(jax.random.key(seed))["bias"] for seed in (0, 1)]
    assert starts[0] != starts[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": (X, Y[:-1])}, "examples in the arrays of data is .*, but must be equally many"),
        ({"data": (X, np.full(NUM, 2**40))}, "largest number in data/1 is .*, but must be at most"),
        ({"data": (X * np.inf, Y)}, "data/0 is 'an array with nan or inf', but must be finite"),
        ({"split": CLIENTS[:-1]}, "length of split is 29, but must be 30"),
        ({"split": [None] * NUM}, "client of example 0 is None, but must be given"),
        ({"data": (X[:, None], Y)}, "log_likelihood is .*, but must be a function to one number"),
    ],
)
def test_what_is_refused(change: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**change)
