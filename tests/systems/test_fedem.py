"""FedEM, VR-FedEM and EM: reductions, memories, unbiasedness, floors. On noisy means, whose theory is closed form; all in 64 bits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim import ConfigError, Event, Layout, Plan
from fedjax_sim.clients.e_steps import local_statistics
from fedjax_sim.compression import BlockQuantization, RandSparsification
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.server.approximation import STEP_FACTORS, chosen
from fedjax_sim.server.memories import Memory, traffic
from fedjax_sim.settings import check, parse
from fedjax_sim.streams import stream

FEDEM, VR, EM = (fedjax_sim.SYSTEMS[name] for name in ("fedem", "vr_fedem", "em"))
N, M, D, RIDGE, KAPPA = 10, 20, 4, 0.25, 0.5
SLOPE = (RIDGE + KAPPA) / (1 + RIDGE)
GAMMA_MAX = 1 / (2 * SLOPE)  # v_min / (2 L_W), the smaller branch here
BLOCKS = BlockQuantization(block=4)  # omega = 1
FULL = {"num_clients": N, "sampling": "full", "batch_size": M}


@pytest.fixture(scope="module", autouse=True)
def in_64_bits() -> Any:
    with jax.enable_x64(True):
        yield


def noisy_mean(
    kappa: Any, *, spread: float = 2.0, examples: int = M, seed: int = 0, clients: int = N
) -> latent.Estimation:
    """Clients whose means differ by `spread`: toy A with one kappa, toy B with kappas of the examples' own."""
    random = np.random.default_rng(seed)
    y = (
        random.normal(size=(clients, examples, D))
        + spread * random.normal(size=(clients, 1, D))
        + np.array([1.0, -0.5, 0.3, 2.0])
    )
    if spread == 0:
        y -= y.mean(axis=1, keepdims=True) - y.mean(axis=(0, 1))
    data = Seen(y.reshape(-1, D), np.broadcast_to(kappa, clients * examples).astype(float))
    partition = Partition(
        np.arange(clients * examples).reshape(clients, examples), np.full(clients, examples)
    )
    return latent.make_estimation(
        latent.NoisyMean(ridge=RIDGE), data, partition, start=np.full(D, 3.0)
    )


@pytest.fixture(scope="module")
def toy() -> latent.Estimation:
    return noisy_mean(KAPPA)


TICKS, LANES = 400, 20


class Path(NamedTuple):
    """States after every tick, with the initial one, leaves `[lanes, T + 1, ...]`; ||h(S)||^2 of them; the events."""

    states: Any
    field: np.ndarray
    events: Event

    def of(self, lane: int) -> "Path":
        """One lane."""
        return jax.tree.map(lambda leaf: leaf[lane], self)


def events_of(system: Any, hyper: Any, key: jax.Array, ticks: int) -> Event:
    """A schedule as the engine hands it over."""
    timeline = system.timeline(stream(key, "timeline"), hyper, ticks)
    steps, clients = timeline.steps.astype("int32"), timeline.clients.astype("int32")
    offset, zeros = jnp.cumsum(steps, axis=0, dtype="int32") - steps, jnp.zeros_like(steps)
    tick = jnp.arange(ticks, dtype="int32")
    return Event(
        tick, clients, steps, zeros, timeline.weight.astype("float32"), offset, zeros, tick
    )


def replay(system: Any, problem: Any, *hypers: Any) -> Path:
    """Run settings in turn with seeds 0, 1, ...: always as many lanes and ticks, so that settings of one kind are one program."""
    chosen = [hypers[lane % len(hypers)] for lane in range(LANES)]
    hyper = jax.tree.map(lambda *leaves: jnp.asarray(leaves, float), *chosen)
    keys = jnp.stack([jax.random.key(lane // len(hypers)) for lane in range(LANES)])
    return Path(*jax.tree.map(np.asarray, _replayed(system, problem, hyper, keys)))


def _lanes(system: Any, problem: Any, hypers: Any, keys: jax.Array) -> Any:
    def lane(inputs: Any) -> Any:
        hyper, key = inputs
        algorithm = system.algorithm(problem, hyper, Plan(slots_at_once=64))
        events = events_of(system, hyper, key, TICKS)

        def step(state: Any, event: Event) -> Any:
            after, _ = algorithm.step(key, state, event)
            return after, after

        first = algorithm.init(key)
        _, states = jax.lax.scan(step, first, events)
        states = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, states)
        return (
            states,
            jnp.sum(jnp.square(jax.vmap(problem.mean_field)(states.server)), axis=1),
            events,
        )

    return jax.lax.map(lane, (hypers, keys))


_replayed = jax.jit(_lanes, static_argnums=0)


def client_fields(problem: Any, server: Any) -> np.ndarray:
    """h_i(S), `f[N, q]`."""
    return np.asarray(
        problem.client_statistics(problem.natural(problem.maximise(server))) - server[None]
    )


def root(problem: Any) -> np.ndarray:
    """s_*, where h vanishes: h is linear."""
    zero = jnp.zeros(D)
    slope = -np.asarray(jax.jacobian(problem.mean_field)(zero))
    return np.linalg.solve(slope, np.asarray(problem.mean_field(zero)))


@pytest.fixture(scope="module")
def compressed(toy: latent.Estimation) -> dict[str, Path]:
    """FedEM with compression, full batches: by alpha and participation."""
    base = FEDEM.Hyper(**FULL, gamma=GAMMA_MAX, compression=BLOCKS)
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
    """To machine precision, with everybody and with half of the clients, and for every alpha that is not too large."""
    assert compressed["theory"].field[0] > 1
    assert compressed["theory"].field[50] < 1e-12
    for name in ("theory", "0.1", "0.7"):
        assert compressed[name].field[-1] < 1e-26, name
    assert compressed["half"].field[-1] < 1e-20
    assert compressed["0.01"].field[-1] < 1e-2 * compressed["0.01"].field[20]


def test_memories_converge_to_the_clients_fields(
    compressed: dict[str, Path], toy: latent.Estimation
) -> None:
    for name in ("theory", "half"):
        memory = np.asarray(compressed[name].states.memory.clients)[-1]
        fields = client_fields(toy, compressed[name].states.server[-1])
        assert np.linalg.norm(fields) > 1
        np.testing.assert_allclose(memory, fields, atol=1e-8)


def test_memory_steps_far_beyond_two_over_one_plus_omega_diverge(
    compressed: dict[str, Path],
) -> None:
    """1.5, the border being 1 here; below it, 0.7 does not."""
    assert not compressed["1.5"].field[-1] < 1e6
    assert compressed["0.7"].field[-1] < 1e-20


@pytest.mark.parametrize("name", ["theory", "0.01", "half"])
def test_the_servers_memory_is_the_mean_of_the_clients_at_every_tick(
    compressed: dict[str, Path], name: str
) -> None:
    memory = compressed[name].states.memory
    clients, own = np.asarray(memory.clients), np.asarray(memory.server)
    assert len(own) == TICKS + 1
    np.testing.assert_allclose(
        own, clients.mean(axis=1), rtol=0, atol=1e-13 * np.abs(clients).max()
    )
    if name == "half":
        moved = (np.diff(clients, axis=0) != 0).any(axis=2)[:50]
        active = compressed[name].events.weight[:50] > 0
        assert not moved[~active].any()
        assert moved[active].mean() > 0.8  # a message may be 0


def test_without_memories_there_is_a_floor(toy: latent.Estimation) -> None:
    """Naive compression: E||h||^2 about a gamma / (2 - a gamma) times the compressor's variance at the fixed point over n^2."""
    hyper = FEDEM.Hyper(**FULL, gamma=GAMMA_MAX, compression=BLOCKS, aggregation="naive")
    path = replay(FEDEM, toy, hyper)
    fields = client_fields(toy, jnp.asarray(root(toy)))
    variance = (
        np.abs(fields).sum(axis=1) * np.linalg.norm(fields, axis=1) - (fields**2).sum(axis=1)
    ).sum() / N**2
    # The clients' fields away from the fixed point add a little to it.
    assert path.field[:, 100:].mean() == pytest.approx(
        SLOPE * GAMMA_MAX / (2 - SLOPE * GAMMA_MAX) * variance, rel=0.15
    )
    assert not path.states.memory.clients.any()
    # Clients of one mean have none.
    assert replay(FEDEM, noisy_mean(KAPPA, spread=0.0), hyper).field[:, -1].max() < 1e-25


def test_partial_participation_without_memories_has_a_floor(toy: latent.Estimation) -> None:
    """dEM and local memories are one without compression: E||h||^2 about a gamma / (2 - a gamma) (1 - p) / (p n^2) sum ||h_i||^2.

    FedEM's memories take it away.
    """
    gamma, half = 0.3, FEDEM.Hyper(**FULL, gamma=0.3, participation=0.5)
    naive = replay(FEDEM, toy, half.replace(aggregation="naive"))
    local = replay(FEDEM, toy, half.replace(aggregation="local_memory"))
    np.testing.assert_allclose(naive.states.server, local.states.server, rtol=0, atol=1e-12)
    assert local.states.memory.clients.any()
    squares = (client_fields(toy, jnp.asarray(root(toy))) ** 2).sum() / N**2
    assert naive.field[:, 100:].mean() == pytest.approx(
        SLOPE * gamma / (2 - SLOPE * gamma) * squares, rel=0.15
    )


def test_without_compression_fedem_of_everybody_is_em_and_of_half_goes_to_the_same_point(
    toy: latent.Estimation,
) -> None:
    """Full batches and gamma = 1: EM to rounding, and the closed form of EM on toy A."""
    path = replay(
        FEDEM,
        toy,
        FEDEM.Hyper(**FULL, gamma=1.0),
        FEDEM.Hyper(**FULL, gamma=0.3, participation=0.5),
    )
    em = replay(EM, toy, EM.Hyper(num_clients=N, batch_size=7)).states.server[0]
    best, start = root(toy), np.full(D, 3.0)
    exact = best + (1 - SLOPE) ** np.arange(TICKS + 1)[:, None] * (start - best)
    np.testing.assert_allclose(em, exact, rtol=0, atol=1e-13)
    np.testing.assert_allclose(path.states.server[0], em, rtol=0, atol=1e-13)
    assert np.abs(path.states.server[1][:20] - em[:20]).max() > 0.1
    assert path.field[1::2, -1].max() < 1e-26


def test_mini_batches_of_everything_without_replacement_are_em(toy: latent.Estimation) -> None:
    """b = m and gamma = 1, without compression: every example is drawn once."""
    path = replay(
        FEDEM,
        toy,
        FEDEM.Hyper(num_clients=N, sampling="without_replacement", batch_size=M, gamma=1.0),
    )
    best, start = root(toy), np.full(D, 3.0)
    exact = best + (1 - SLOPE) ** np.arange(TICKS + 1)[:, None] * (start - best)
    np.testing.assert_allclose(
        path.states.server, np.broadcast_to(exact, path.states.server.shape), rtol=0, atol=1e-13
    )


def test_mini_batches_without_replacement_that_are_too_large_are_refused(
    toy: latent.Estimation,
) -> None:
    for system in (FEDEM, VR):
        hyper = system.Hyper(num_clients=N, sampling="without_replacement", batch_size=M + 1)
        with pytest.raises(
            ConfigError,
            match=f"batch_size is {M + 1}, but must be at most {M}, the fewest examples",
        ):
            fedjax_sim.simulate(system, toy, hyper, num_ticks=1)


def test_bits_of_parameters() -> None:
    """Down go S and theta, of which clients know a known covariance, and need a fitted one once; of EM as of FedEM. By hand."""
    y = np.random.default_rng(0).normal(size=(24, 3))
    partition = Partition(np.arange(24).reshape(4, 6), np.full(4, 6))
    schedule = jax.tree.map(
        np.asarray, FEDEM.timeline(jax.random.key(0), FEDEM.Hyper(num_clients=4), 5)
    )
    for covariance, entries in ((None, 6), (jnp.eye(3), 0)):
        problem = latent.make_estimation(latent.GaussianMixture(2, covariance), y, partition)
        for system in (FEDEM, VR, EM):
            up, down = system.traffic(problem, system.Hyper(num_clients=4), schedule)
            np.testing.assert_array_equal(down, np.full(5, 4 * (8 + 8 + entries) * 64))
            np.testing.assert_array_equal(up[1:], np.full(4, 4 * 8 * 64))


def test_memories_change_nothing_without_compression_and_mini_batches_leave_a_floor(
    toy: latent.Estimation,
) -> None:
    """Identical trajectories whatever alpha and V_0, from the same batches.

    Then E||h||^2 is a gamma / (2 - a gamma) sigma^2 / n, sigma^2 / n the variance of the mean of mini-batches: exact for toy A.
    """
    base = FEDEM.Hyper(num_clients=N, batch_size=5, gamma=0.4, memory_start="zero")
    path = replay(FEDEM, toy, base.replace(alpha=0.3), base)
    naive = replay(FEDEM, toy, base.replace(aggregation="naive"))
    for other in (path.states.server[1], naive.states.server[0]):
        np.testing.assert_allclose(path.states.server[0], other, rtol=0, atol=1e-12)
    assert np.abs(path.states.server[0] - naive.states.server[1]).max() > 1e-2  # another seed
    y = np.asarray(toy.data.y).reshape(N, M, D)
    sigma = KAPPA**2 / 5 * ((y - y.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean()
    lanes = naive.field[:, 50:].mean(axis=1)
    expected = SLOPE * 0.4 / (2 - SLOPE * 0.4) * sigma / N
    assert abs(lanes.mean() - expected) < 5 * lanes.std(ddof=1) / np.sqrt(LANES)


TOY_B = np.random.default_rng(9).uniform(0.1, 0.9, N * 100)


@pytest.fixture(scope="module")
def variance_reduced() -> dict[str, Path]:
    """VR-FedEM and FedEM on toy B with the constant step of Theorem 2, compressed."""
    problem = noisy_mean(TOY_B, examples=100)
    base = VR.Hyper(num_clients=N, gamma=0.245, batch_size=5, inner_steps=20.0, compression=BLOCKS)
    half = base.replace(participation=0.5, alpha=0.3)
    vr = replay(VR, problem, base, half)
    frozen = replay(VR, problem, half.replace(offline="freeze"))
    noisy = replay(
        FEDEM, problem, FEDEM.Hyper(num_clients=N, gamma=0.245, batch_size=20, compression=BLOCKS)
    )
    return {"all": vr.of(0), "half": vr.of(1), "frozen": frozen.of(0), "fedem": noisy.of(0)}


def test_variance_reduction_has_no_noise_floor(variance_reduced: dict[str, Path]) -> None:
    """With everybody and with half of the clients, whether these compute or freeze; FedEM at the same step has one."""
    assert variance_reduced["all"].field[-1] < 1e-25
    for name in ("half", "frozen"):
        assert variance_reduced[name].field[-1] < 1e-16, name
    assert variance_reduced["fedem"].field[100:].mean() > 1e-4


def test_oracles_and_memories_of_variance_reduction(variance_reduced: dict[str, Path]) -> None:
    """At an outer step the oracle is exact; between, it is not; the server's memory is the mean of the clients' throughout."""
    problem = noisy_mean(TOY_B, examples=100)
    for name in ("all", "half", "frozen"):
        states = variance_reduced[name].states
        np.testing.assert_allclose(
            states.memory.server, np.asarray(states.memory.clients).mean(axis=1), rtol=0, atol=1e-12
        )
        for tick, is_exact in (
            (0, True),
            (1, True),
            (7, False),
            (20, False),
            (21, True),
            (41, True),
        ):
            # States after so many ticks hold the oracle of the statistics one tick before.
            exact = problem.client_statistics(
                problem.natural(problem.maximise(states.server[max(tick - 1, 0)]))
            )
            error = np.abs(np.asarray(states.oracle[tick] - exact)).max()
            assert (error < 1e-12) == is_exact, (name, tick, error)


NUM = 20_000


def one_step(problem: Any, hyper: Any, coins: jax.Array) -> tuple[Any, Any]:
    """One round from one state with many keys and coins `[NUM, N]`: that state, and those after."""
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
    """E[H] = h(S), and E||H - h||^2 as the compressor, mini-batches and coins have it; at most the paper's bound."""
    compressor, p = BlockQuantization(block=3), 0.6
    hyper = FEDEM.Hyper(
        num_clients=N, batch_size=5, gamma=0.2, participation=p, compression=compressor
    )
    coins = (jax.random.uniform(jax.random.key(6), (NUM, N)) < p).astype(float)
    state, after = one_step(toy, hyper, coins)
    field, exact = np.asarray(after.field), np.asarray(toy.mean_field(state.server))
    error = np.abs(field.mean(axis=0) - exact) / (field.std(axis=0) / np.sqrt(NUM))
    assert error.max() < 5
    # The compressor's exact variance depends on Delta_i: its mean over mini-batches, over draws of our own.
    y = np.asarray(toy.data.y).reshape(N, M, D)
    noise = KAPPA**2 / 5 * ((y - y.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean(axis=1)
    mean = client_fields(toy, state.server) - np.asarray(state.memory.clients)
    square = (mean**2).sum(axis=1) + noise
    picks = np.random.default_rng(1).integers(0, M, (4000, N, 5))
    drawn = KAPPA * (y[np.arange(N)[:, None], picks].mean(axis=2) - y.mean(axis=1))
    lost = np.asarray(
        jax.jit(jax.vmap(jax.vmap(compressor.variance)))(jnp.asarray(mean + drawn))
    ).mean(axis=0)
    expected = (noise + lost + (1 - p) / p * (square + lost)).sum() / N**2
    squares = ((field - exact) ** 2).sum(axis=1)
    assert abs(squares.mean() - expected) < 5 * squares.std() / np.sqrt(NUM) + 0.002 * expected
    omega = float(compressor.omega(D))
    assert expected <= ((1 + omega) / p - 1) / N * square.mean() + noise.mean() / N


def test_memories_of_a_frozen_server_contract_by_the_exact_factor(toy: latent.Estimation) -> None:
    """E||V+ - h_i||^2 = ((1 - alpha)^2 + alpha^2 omega) ||V - h_i||^2 with full batches, for rand-sparsification."""
    compressor, alpha = RandSparsification(keep=0.4), 0.3
    state, after = one_step(
        toy, FEDEM.Hyper(**FULL, gamma=0.2, alpha=alpha, compression=compressor), jnp.ones((NUM, N))
    )
    fields = client_fields(toy, state.server)
    before = ((np.asarray(state.memory.clients) - fields) ** 2).sum(axis=1)
    errors = ((np.asarray(after.memory.clients) - fields) ** 2).sum(axis=2)
    expected = ((1 - alpha) ** 2 + alpha**2 * float(compressor.omega(D))) * before
    assert (np.abs(errors.mean(axis=0) - expected) < 5 * errors.std(axis=0) / np.sqrt(NUM)).all()


def test_the_random_iterate_is_uniform_on_those_before(
    compressed: dict[str, Path], toy: latent.Estimation
) -> None:
    """S_K with K uniform on 0 .. T - 1: it is one of those, and for many keys each as often; an empty tick keeps it."""
    ticks, present = 6, jnp.zeros(1, "int32")

    def last(key: jax.Array) -> jax.Array:
        def step(kept: jax.Array, tick: jax.Array) -> tuple[jax.Array, None]:
            event = Event(tick, present, present, present, present, present, present, tick)
            return chosen(key, event, kept, tick.astype(float)), None

        return jax.lax.scan(step, jnp.float64(-1), jnp.arange(ticks, dtype="int32"))[0]

    counts = np.bincount(
        np.asarray(jax.jit(jax.vmap(last))(jax.random.split(jax.random.key(1), 6000))).astype(int),
        minlength=ticks,
    )
    assert stats.chisquare(counts).pvalue > 1e-3
    states = compressed["theory"].states
    for tick in (1, 5, 40):
        assert any(np.array_equal(states.random[tick], server) for server in states.server[:tick])
    model = FEDEM.algorithm(toy, FEDEM.Hyper(**FULL, output="random"), Plan()).model
    np.testing.assert_array_equal(
        model(jax.tree.map(lambda leaf: leaf[40], states)), states.random[40]
    )
    empty = Event(jnp.int32(0), present - 1, *(present,) * 5, jnp.int32(0))
    assert chosen(jax.random.key(0), empty, jnp.float64(1), jnp.float64(2)) == 1


def test_step_sizes_follow_their_sequence() -> None:
    """By name or by any function of the tick, and 0 for an empty tick. (That they are used is tested against the slow loops.)"""
    slots = jnp.zeros(2, "int32")
    event = Event(jnp.int32(3), slots, slots, slots, slots, slots, slots, jnp.int32(0))
    for factor, expected in (
        (STEP_FACTORS["inverse"], 1 / 4),
        (STEP_FACTORS["inverse_sqrt"], 1 / 2),
        (STEP_FACTORS["constant"], 1.0),
    ):
        assert float(FEDEM.Hyper(gamma=0.7, gamma_factor=factor).step_size(event)) == pytest.approx(
            0.7 * expected, rel=1e-12
        )
    halved = FEDEM.Hyper(gamma=0.7, gamma_factor=lambda tick: 0.5**tick)
    assert float(halved.step_size(event)) == pytest.approx(0.7 / 8, rel=1e-12)
    assert float(halved.step_size(event._replace(clients=slots - 1))) == 0
    assert parse(FEDEM.Hyper, "gamma_factor", "inverse") is STEP_FACTORS["inverse"]


def test_work_bits_and_epochs(toy: latent.Estimation) -> None:
    """By hand: 64-bit numbers, q = d = 4; a block of 4 is a number and 4 entries of 2 bits; memories start with 4 numbers a client."""
    hyper = FEDEM.Hyper(
        num_clients=N, batch_size=5, participation=0.5, compression=BLOCKS, counted="active"
    )
    run = fedjax_sim.simulate(
        FEDEM, toy, hyper, num_ticks=6, num_evals=6, layout=Layout(1, False, 1)
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
    # Nothing is sent but what is compressed if memories start at 0, and no pass is made for them.
    zero = hyper.replace(memory_start="zero")
    up, _ = traffic(toy, zero, run.timelines[0])
    np.testing.assert_array_equal(np.cumsum(up), active[1:] * (64 + 4 * 2))
    first = FEDEM.algorithm(toy, zero, Plan()).init(jax.random.key(0))
    assert int(first.passes) == 0
    assert not first.memory.clients.any()


def test_a_full_pass_goes_over_every_example_once(toy: latent.Estimation) -> None:
    """In batches of 7, of which the last of 20 examples is not full; those who do not work do none."""
    clients, slots = jnp.arange(4, dtype="int32"), jnp.zeros(4, "int32")
    event = Event(jnp.int32(0), clients, slots, slots, slots, slots, slots, jnp.int32(0))
    works, natural = jnp.array([True, True, False, True]), jnp.ones(D)
    run = jax.jit(
        lambda problem: local_statistics(
            problem, EM.Hyper(batch_size=7), Plan(), None, event, natural, is_full=True, works=works
        )
    )
    means, work = run(toy)
    expected = np.asarray(toy.client_statistics(natural))[:4] * np.asarray(works)[:, None]
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-13)
    assert (int(work.needed), int(work.executed)) == (3 * M, 3 * 21)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VR.Hyper(inner_steps=2.5), "inner_steps"),
        (lambda: VR.Hyper(sampling="full"), "sampling"),
        (lambda: FEDEM.Hyper(participation=0.0), "participation"),
        (lambda: FEDEM.Hyper(gamma=-1.0), "gamma"),
        (lambda: FEDEM.Hyper(aggregation="dem"), "aggregation"),
    ],
)
def test_what_is_not_allowed_is_said(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(make())


def test_a_system_refuses_the_other_kind_of_problem(
    toy: latent.Estimation, regression: Callable
) -> None:
    with pytest.raises(
        ConfigError, match=r"problem is 'Estimation', but must be a Problem .* for fedavg"
    ):
        fedjax_sim.simulate(fedjax_sim.SYSTEMS["fedavg"], toy, num_ticks=1)
    with pytest.raises(
        ConfigError, match=r"problem is 'Regression', but must be a LatentProblem .* for fedem"
    ):
        fedjax_sim.simulate(FEDEM, regression(), num_ticks=1)
