"""FedEM and EM on noisy means: memories, floors and reductions, all in 64 bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim import ConfigError, Event, Plan
from fedjax_sim.core.schedules import Table
from fedjax_sim.core.settings import check
from fedjax_sim.problems import latent
from fedjax_sim.server.memories import keep_random
from fedjax_sim.theory.fedem import Constants, FedEMSetup, largest_step_size
from tests.systems.noisy_means import (
    BLOCKS,
    EM,
    FEDEM,
    FULL,
    GAMMA_MAX,
    KAPPA,
    LANES,
    RIDGE,
    SLOPE,
    TICKS,
    D,
    M,
    N,
    Path,
    client_fields,
    noisy_mean,
    replay,
    root,
)

pytestmark = pytest.mark.usefixtures("in_64_bits")


@pytest.fixture(scope="module")
def toy() -> latent.Estimation:
    return noisy_mean(KAPPA)


@pytest.fixture(scope="module")
def compressed(toy: latent.Estimation) -> dict[str, Path]:
    """FedEM with compression and full batches, for some alphas and participation 1 and 1/2."""
    base = FEDEM.paper(**FULL, gamma=GAMMA_MAX, compression=BLOCKS)
    alphas = [
        base,
        *(base.replace(alpha=alpha) for alpha in (0.01, 0.1, 0.7, 1.5)),
        base.replace(participation=0.5, gamma=0.269),
    ]
    path = replay(FEDEM, toy, *alphas)
    return {
        name: path.of(i) for i, name in enumerate(("theory", "0.01", "0.1", "0.7", "1.5", "half"))
    }


def test_memories_remove_the_compression_error(compressed: dict[str, Path]) -> None:
    """To machine precision, with all and with half of the clients, unless alpha is too large."""
    assert compressed["theory"].field[0] > 1
    assert compressed["theory"].field[50] < 1e-12
    for name in ("theory", "0.1", "0.7"):
        assert compressed[name].field[-1] < 1e-26, name
    assert compressed["half"].field[-1] < 1e-20
    assert compressed["0.01"].field[-1] < 1e-2 * compressed["0.01"].field[20]


def test_bound_with_probabilities_of_clients(toy: latent.Estimation) -> None:
    """Theorem 3 with the least p_i and the spread; equal p_i are p, and some are refused."""
    chances = np.linspace(0.2, 1.0, N)
    constants = Constants(SLOPE, SLOPE / (1 + RIDGE), 1 / (1 + RIDGE), 1 / (1 + RIDGE))
    setup = FedEMSetup(constants, N, 1.0, chances.min(), spread=chances.max() / chances.min())
    gamma = largest_step_size(setup)
    base = FEDEM.paper(num_clients=N, batch_size=5, gamma=gamma, compression=BLOCKS)

    def of(*factors: float, **changes: float) -> Any:
        return base.replace(participation_schedule=Table(by="client", factors=factors), **changes)

    path = replay(FEDEM, toy, of(*chances))
    y = np.asarray(toy.data.y).reshape(N, M, D)
    sigma2 = KAPPA**2 / 5 * ((y - y.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean()
    gap = constants.lyapunov_smoothness / 2 * path.field[0, 0] / SLOPE**2
    left = constants.least - gamma * constants.lyapunov_smoothness
    noise = gamma * constants.lyapunov_smoothness * setup.noise_factor * sigma2 / N
    assert setup.noise_factor == 1 + (2 / 0.2 - 1) * (1 + 4 * 5)
    for k_max in (50, 200, TICKS):
        bound = (gap / (gamma * k_max) + noise) / left
        assert 0.005 * bound < path.field[:, :k_max].mean() < bound
    same = replay(FEDEM, toy, of(*[0.5] * N))
    equal = replay(FEDEM, toy, base.replace(participation=0.5))
    np.testing.assert_allclose(same.states.server, equal.states.server, rtol=0, atol=1e-10)
    with pytest.raises(ConfigError, match=r"probabilities above 0 and at most 1, not from 0.5 to"):
        check(of(0.5, 1.5))


def test_memories_converge_to_the_clients_fields(
    compressed: dict[str, Path], toy: latent.Estimation
) -> None:
    """The fields at the limit differ between clients, and are not 0."""
    for name in ("theory", "half"):
        memory = np.asarray(compressed[name].states.memory.clients)[-1]
        fields = client_fields(toy, compressed[name].states.server[-1])
        assert np.linalg.norm(fields) > 1
        np.testing.assert_allclose(memory, fields, atol=1e-8)


def test_memory_steps_far_beyond_two_over_one_plus_omega_diverge(
    compressed: dict[str, Path],
) -> None:
    """The border is 1 here: alpha = 1.5 diverges, and 0.7 does not."""
    assert not compressed["1.5"].field[-1] < 1e6
    assert compressed["0.7"].field[-1] < 1e-20


@pytest.mark.parametrize("name", ["theory", "0.01", "half"])
def test_the_servers_memory_is_the_mean_of_the_clients_at_every_tick(
    compressed: dict[str, Path], name: str
) -> None:
    """To rounding. With half of the clients, only the memories of participants move."""
    memory = compressed[name].states.memory
    clients, server = np.asarray(memory.clients), np.asarray(memory.server)
    assert len(server) == TICKS + 1
    np.testing.assert_allclose(
        server, clients.mean(axis=1), rtol=0, atol=1e-13 * np.abs(clients).max()
    )
    if name == "half":
        moved = (np.diff(clients, axis=0) != 0).any(axis=2)[:50]
        active = compressed[name].events.weight[:50] > 0
        assert not moved[~active].any()
        assert moved[active].mean() > 0.8  # A message may be 0.


@pytest.mark.slow
def test_without_memories_there_is_a_floor(toy: latent.Estimation) -> None:
    """With naive compression E||h||^2 is about a gamma / (2 - a gamma) v / n^2.

    Here v is the sum of the compressor's variances for the clients' fields at the fixed point.
    """
    hyper = FEDEM.paper(**FULL, gamma=GAMMA_MAX, compression=BLOCKS, field_rule="naive")
    path = replay(FEDEM, toy, hyper)
    fields = client_fields(toy, jnp.asarray(root(toy)))
    variance = (
        np.abs(fields).sum(axis=1) * np.linalg.norm(fields, axis=1) - (fields**2).sum(axis=1)
    ).sum() / N**2
    # Away from the fixed point the clients' fields are a little larger.
    assert path.field[:, 100:].mean() == pytest.approx(
        SLOPE * GAMMA_MAX / (2 - SLOPE * GAMMA_MAX) * variance, rel=0.15
    )
    assert not path.states.memory.clients.any()
    # If all clients have the same mean, their fields vanish, and so does the floor.
    assert replay(FEDEM, noisy_mean(KAPPA, spread=0.0), hyper).field[:, -1].max() < 1e-25


@pytest.mark.slow
def test_partial_participation_without_memories_has_a_floor(toy: latent.Estimation) -> None:
    """Its height E||h||^2 is about a gamma / (2 - a gamma) (1 - p) / (p n^2) sum ||h_i||^2.

    Nothing is compressed, so dEM and local memories are the same algorithm. FedEM's memories
    remove the floor.
    """
    gamma, half = 0.3, FEDEM.paper(**FULL, gamma=0.3, participation=0.5)
    naive = replay(FEDEM, toy, half.replace(field_rule="naive"))
    local = replay(FEDEM, toy, half.replace(field_rule="local_memory"))
    np.testing.assert_allclose(naive.states.server, local.states.server, rtol=0, atol=1e-12)
    assert local.states.memory.clients.any()
    squares = (client_fields(toy, jnp.asarray(root(toy))) ** 2).sum() / N**2
    assert naive.field[:, 100:].mean() == pytest.approx(
        SLOPE * gamma / (2 - SLOPE * gamma) * squares, rel=0.15
    )


def test_without_compression_fedem_of_everybody_is_em_and_of_half_goes_to_the_same_point(
    toy: latent.Estimation,
) -> None:
    """With full batches and gamma = 1 it is EM to rounding, which on toy A has a closed form."""
    path = replay(
        FEDEM,
        toy,
        FEDEM.paper(**FULL, gamma=1.0),
        FEDEM.paper(**FULL, gamma=0.3, participation=0.5),
    )
    em = replay(EM, toy, EM.paper(num_clients=N, batch_size=7)).states.server[0]
    best, start = root(toy), np.full(D, 3.0)
    exact = best + (1 - SLOPE) ** np.arange(TICKS + 1)[:, None] * (start - best)
    np.testing.assert_allclose(em, exact, rtol=0, atol=1e-13)
    np.testing.assert_allclose(path.states.server[0], em, rtol=0, atol=1e-13)
    assert np.abs(path.states.server[1][:20] - em[:20]).max() > 0.1
    assert path.field[1::2, -1].max() < 1e-26


@pytest.mark.slow
def test_mini_batches_of_everything_without_replacement_are_em(toy: latent.Estimation) -> None:
    """With b = m, gamma = 1 and no compression, every example is drawn once."""
    path = replay(
        FEDEM,
        toy,
        FEDEM.paper(num_clients=N, batches="without_replacement", batch_size=M, gamma=1.0),
    )
    best, start = root(toy), np.full(D, 3.0)
    exact = best + (1 - SLOPE) ** np.arange(TICKS + 1)[:, None] * (start - best)
    np.testing.assert_allclose(
        path.states.server, np.broadcast_to(exact, path.states.server.shape), rtol=0, atol=1e-13
    )


@pytest.mark.slow
def test_memories_change_nothing_without_compression_and_mini_batches_leave_a_floor(
    toy: latent.Estimation,
) -> None:
    """From the same batches, trajectories are the same for every alpha and V_0.

    Then E||h||^2 is a gamma / (2 - a gamma) sigma^2 / n, where sigma^2 / n is the variance of the
    mean of mini-batches. This is exact for toy A.
    """
    base = FEDEM.paper(num_clients=N, batch_size=5, gamma=0.4, memory_start="zero")
    path = replay(FEDEM, toy, base.replace(alpha=0.3), base)
    naive = replay(FEDEM, toy, base.replace(field_rule="naive"))
    for other in (path.states.server[1], naive.states.server[0]):
        np.testing.assert_allclose(path.states.server[0], other, rtol=0, atol=1e-12)
    assert np.abs(path.states.server[0] - naive.states.server[1]).max() > 1e-2  # Seeds differ.
    y = np.asarray(toy.data.y).reshape(N, M, D)
    sigma = KAPPA**2 / 5 * ((y - y.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean()
    lanes = naive.field[:, 50:].mean(axis=1)
    expected = SLOPE * 0.4 / (2 - SLOPE * 0.4) * sigma / N
    assert abs(lanes.mean() - expected) < 5 * lanes.std(ddof=1) / np.sqrt(LANES)


def test_the_random_iterate_is_uniform_on_those_before(
    compressed: dict[str, Path], toy: latent.Estimation
) -> None:
    """S_K with K uniform on 0 .. T - 1 is one of these iterates, over many keys each equally often.

    An empty tick keeps it.
    """
    ticks, present = 6, jnp.zeros(1, "int32")

    def last(key: jax.Array) -> jax.Array:
        def step(kept: jax.Array, tick: jax.Array) -> tuple[jax.Array, None]:
            event = Event(tick, present, present, present, present, present, present, tick)
            return keep_random(key, event, kept, tick.astype(float)), None

        return jax.lax.scan(step, jnp.float64(-1), jnp.arange(ticks, dtype="int32"))[0]

    counts = np.bincount(
        np.asarray(jax.jit(jax.vmap(last))(jax.random.split(jax.random.key(1), 6000))).astype(int),
        minlength=ticks,
    )
    assert stats.chisquare(counts).pvalue > 1e-3
    states = compressed["theory"].states
    for tick in (1, 5, 40):
        assert any(np.array_equal(states.random[tick], server) for server in states.server[:tick])
    model = FEDEM.algorithm(toy, FEDEM.paper(**FULL, output="random"), Plan()).model
    np.testing.assert_array_equal(
        model(jax.tree.map(lambda leaf: leaf[40], states)), states.random[40]
    )
    empty = Event(jnp.int32(0), present - 1, *(present,) * 5, jnp.int32(0))
    assert keep_random(jax.random.key(0), empty, jnp.float64(1), jnp.float64(2)) == 1
