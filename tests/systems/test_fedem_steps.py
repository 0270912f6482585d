"""Single rounds of FedEM, VR-FedEM and EM: moments, step sizes, work, messages, bad settings."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Event, Layout, Plan
from fedjax_sim.clients.e_steps import local_expectation
from fedjax_sim.core.schedules import Function
from fedjax_sim.core.settings import parse
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.server.compression import BlockQuantization, RandSparsification
from fedjax_sim.server.memories import Memory, memory_messages
from tests.compression.variances import variance
from tests.systems.noisy_means import (
    BLOCKS,
    EM,
    FEDEM,
    FULL,
    KAPPA,
    VR,
    D,
    M,
    N,
    client_fields,
    noisy_mean,
)

pytestmark = pytest.mark.usefixtures("in_64_bits")


@pytest.fixture(scope="module")
def toy() -> latent.Estimation:
    return noisy_mean(KAPPA)


NUM = 20_000


def one_step(problem: Any, hyper: Any, coins: jax.Array) -> tuple[Any, Any]:
    """Run one round of FedEM from one state, with many keys.

    Args:
      problem: The problem.
      hyper: The settings.
      coins: `f[NUM, N]`, 1 for clients that take part.

    Returns:
      The state before, and the states after, leaves `[NUM, ...]`.
    """
    random = np.random.default_rng(3)
    clients = random.normal(size=(N, D))
    state = FEDEM.algorithm(problem, hyper, Plan()).init(jax.random.key(0))
    state = state._replace(
        server=jnp.asarray(random.normal(size=D)),
        memory=Memory(jnp.asarray(clients), jnp.asarray(clients.mean(axis=0))),
    )
    slots = jnp.zeros(N, "int32")
    event = Event(
        jnp.int32(3),
        jnp.arange(N, dtype="int32"),
        slots,
        slots,
        coins[0],
        slots + 3,
        slots,
        jnp.int32(0),
    )

    @jax.jit
    def run(problem: Any, hyper: Any, state: Any, keys: jax.Array, coins: jax.Array) -> Any:
        step = FEDEM.algorithm(problem, hyper, Plan(slots_at_once=64)).step
        return jax.vmap(lambda key, coin: step(key, state, event._replace(weight=coin))[0])(
            keys, coins
        )

    hyper = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), hyper)
    return state, run(problem, hyper, state, jax.random.split(jax.random.key(5), NUM), coins)


def test_the_random_field_is_unbiased_with_its_exact_variance(toy: latent.Estimation) -> None:
    """E[H] = h(S); E||H - h||^2 is that of compressor, mini-batches and coins, below the bound."""
    compressor, p = BlockQuantization(block=3), 0.6
    hyper = FEDEM.paper(
        num_clients=N, batch_size=5, gamma=0.2, participation=p, compression=compressor
    )
    coins = (jax.random.uniform(jax.random.key(6), (NUM, N)) < p).astype(float)
    state, after = one_step(toy, hyper, coins)
    field, exact = np.asarray(after.field), np.asarray(toy.mean_field(state.server))
    error = np.abs(field.mean(axis=0) - exact) / (field.std(axis=0) / np.sqrt(NUM))
    assert error.max() < 5
    # The compressor's variance depends on Delta_i; this averages it over mini-batches drawn here.
    y = np.asarray(toy.data.y).reshape(N, M, D)
    noise = KAPPA**2 / 5 * ((y - y.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean(axis=1)
    mean = client_fields(toy, state.server) - np.asarray(state.memory.clients)
    square = (mean**2).sum(axis=1) + noise
    picks = np.random.default_rng(1).integers(0, M, (4000, N, 5))
    drawn = KAPPA * (y[np.arange(N)[:, None], picks].mean(axis=2) - y.mean(axis=1))
    lost = np.asarray(
        jax.jit(jax.vmap(jax.vmap(partial(variance, compressor))))(jnp.asarray(mean + drawn))
    ).mean(axis=0)
    expected = (noise + lost + (1 - p) / p * (square + lost)).sum() / N**2
    squares = ((field - exact) ** 2).sum(axis=1)
    assert abs(squares.mean() - expected) < 5 * squares.std() / np.sqrt(NUM) + 0.002 * expected
    omega = float(compressor.omega(D))
    assert expected <= ((1 + omega) / p - 1) / N * square.mean() + noise.mean() / N


def test_memories_of_a_frozen_server_contract_by_the_exact_factor(toy: latent.Estimation) -> None:
    """E||V+ - h_i||^2 = ((1 - alpha)^2 + alpha^2 omega) ||V - h_i||^2.

    With full batches and rand-sparsification.
    """
    compressor, alpha = RandSparsification(keep=0.4), 0.3
    state, after = one_step(
        toy,
        FEDEM.paper(**FULL, gamma=0.2, alpha=alpha, compression=compressor),
        jnp.ones((NUM, N)),
    )
    fields = client_fields(toy, state.server)
    before = ((np.asarray(state.memory.clients) - fields) ** 2).sum(axis=1)
    errors = ((np.asarray(after.memory.clients) - fields) ** 2).sum(axis=2)
    expected = ((1 - alpha) ** 2 + alpha**2 * float(compressor.omega(D))) * before
    assert (np.abs(errors.mean(axis=0) - expected) < 5 * errors.std(axis=0) / np.sqrt(NUM)).all()


def test_step_sizes_follow_their_sequence() -> None:
    """They are given by name or by any function of the tick, and are 0 for an empty tick.

    That systems use them is tested against the reference loops.
    """
    slots = jnp.zeros(2, "int32")
    event = Event(jnp.int32(3), slots, slots, slots, slots, slots, slots, jnp.int32(0))
    for name, expected in (("inverse_time", 1 / 4), ("inverse_sqrt", 1 / 2), ("constant", 1.0)):
        hyper = FEDEM.paper(gamma=0.7, gamma_schedule=parse(FEDEM.Hyper, "gamma_schedule", name))
        assert float(hyper.step_size(event)) == pytest.approx(0.7 * expected, rel=1e-6)
    halved = FEDEM.paper(gamma=0.7, gamma_schedule=Function(function=lambda tick: 0.5**tick))
    assert float(halved.step_size(event)) == pytest.approx(0.7 / 8, rel=1e-12)
    assert float(halved.step_size(event._replace(clients=slots - 1))) == 0


def test_work_bits_and_epochs(toy: latent.Estimation) -> None:
    """Counted by hand, with 64-bit numbers and q = d = 4.

    A block of 4 is sent as a number and 4 entries of 2 bits; for memories every client sends 4
    numbers at the start.
    """
    hyper = FEDEM.paper(
        num_clients=N, batch_size=5, participation=0.5, compression=BLOCKS, counted="active"
    )
    run = fedjax_sim.simulate(
        FEDEM, toy, hyper, budget=fedjax_sim.Ticks(6), num_evals=6, layout=Layout(1, False, 1)
    )
    active = np.concatenate([[0], np.asarray(run.timelines[0].weight).sum(axis=1).cumsum()])
    ticks = np.arange(7)
    assert 0 < active[-1] < 6 * N
    np.testing.assert_array_equal(
        run.curves.uplink_bits, active * (64 + 4 * 2) + (ticks > 0) * N * 4 * 64
    )
    np.testing.assert_array_equal(run.curves.downlink_bits, ticks * N * 8 * 64)
    np.testing.assert_allclose(run.curves.epochs, 1 + active * 5 / (N * M), rtol=1e-6)
    np.testing.assert_array_equal(run.curves.local_steps, active)
    assert int(run.curves.needed) == int(run.curves.executed) == 5 * active[-1]
    assert float(run.curves.memory_error[0]) < 1e-25
    # If memories start at 0, only compressed messages are sent, and no full pass is made.
    zero = hyper.replace(memory_start="zero")
    up, _ = memory_messages.per_tick(toy, zero, run.timelines[0])
    np.testing.assert_array_equal(np.cumsum(up), active[1:] * (64 + 4 * 2))
    first = FEDEM.algorithm(toy, zero, Plan()).init(jax.random.key(0))
    assert int(first.passes) == 0
    assert not first.memory.clients.any()


def test_a_full_pass_goes_over_every_example_once(toy: latent.Estimation) -> None:
    """Batches have 7 examples, and the last 6 of 20. Slots that do not work evaluate none."""
    clients, slots = jnp.arange(4, dtype="int32"), jnp.zeros(4, "int32")
    event = Event(jnp.int32(0), clients, slots, slots, slots, slots, slots, jnp.int32(0))
    works, natural = jnp.array([True, True, False, True]), jnp.ones(D)
    run = jax.jit(
        lambda problem: local_expectation(problem, EM.paper(batch_size=7), Plan())(
            jax.random.key(0), event, natural, is_full=True, works=works
        )
    )
    means, work = run(toy)
    expected = np.asarray(toy.client_statistics(natural))[:4] * np.asarray(works)[:, None]
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-13)
    assert (int(work.needed), int(work.executed)) == (3 * M, 3 * 21)


def test_a_system_refuses_the_other_kind_of_problem(
    toy: latent.Estimation, regression: Callable
) -> None:
    with pytest.raises(
        ConfigError, match=r"problem is 'Estimation', but must be a Problem .* for fedavg"
    ):
        fedjax_sim.simulate(fedjax_sim.SYSTEMS["fedavg"], toy, budget=fedjax_sim.Ticks(1))
    with pytest.raises(
        ConfigError, match=r"problem is 'Regression', but must be a LatentProblem .* for fedem"
    ):
        fedjax_sim.simulate(FEDEM, regression(), budget=fedjax_sim.Ticks(1))


def test_mini_batches_without_replacement_that_are_too_large_are_refused(
    toy: latent.Estimation,
) -> None:
    for system in (FEDEM, VR):
        hyper = system.paper(num_clients=N, batches="without_replacement", batch_size=M + 1)
        with pytest.raises(
            ConfigError,
            match=f"batch_size is {M + 1}, but must be at most {M}, the fewest examples",
        ):
            fedjax_sim.simulate(system, toy, hyper, budget=fedjax_sim.Ticks(1))


def test_bits_of_parameters() -> None:
    """S and theta go down, counted by hand, for EM, FedEM and VR-FedEM.

    A fitted covariance is sent; clients know a fixed one.
    """
    y = np.random.default_rng(0).normal(size=(24, 3))
    partition = Partition(np.arange(24), np.full(4, 6))
    schedule = jax.tree.map(
        np.asarray, FEDEM.timeline(jax.random.key(0), FEDEM.paper(num_clients=4), 5)
    )
    for covariance, entries in ((None, 6), (jnp.eye(3), 0)):
        problem = latent.make_estimation(latent.GaussianMixture(2, covariance), y, partition)
        for system in (FEDEM, VR, EM):
            up, down = system.messages.per_tick(problem, system.paper(num_clients=4), schedule)
            np.testing.assert_array_equal(down, np.full(5, 4 * (8 + 8 + entries) * 64))
            np.testing.assert_array_equal(up[1:], np.full(4, 4 * 8 * 64))
