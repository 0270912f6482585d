"""Compressed messages of gradient systems.

They are unbiased, have the variance that the compressor states, and take the bits that it counts.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import Event, Plan
from fedjax_sim.cli import comparison
from fedjax_sim.cli.defaults import defaults_of
from fedjax_sim.core.settings import ConfigError, check, full_name, value_of
from fedjax_sim.core.types import full_precision_bits
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.compression import (
    Identity,
    compress,
    count_message_bits,
    decode_messages,
    parse_compressor,
)
from fedjax_sim.systems import fedavg, quafl
from tests.compression.variances import variance

DRAWS = 4000
DIM = 6
SLOTS = 3
CLIENTS = [[0, 3, 1], [1, 4, 3]]
STEPS = [[2, 1, 3], [2, 2, 1]]
COMPRESSOR = parse_compressor("block:norm=2:block=4")


class After(NamedTuple):
    """The models after each of two ticks of a system, with compression and without.

    Attributes:
      servers: `f[DRAWS, 2, P]`, server models with compression, for each key.
      clients: `f[DRAWS, 2, N, P]`, client models with compression.
      known: `f[DRAWS, 2, N, P]`, QuAFL's references that both sides know.
      plain_servers: `f[2, P]`, server models without compression.
      plain_clients: `f[2, N, P]`, client models without compression.
    """

    servers: np.ndarray
    clients: np.ndarray
    known: np.ndarray
    plain_servers: np.ndarray
    plain_clients: np.ndarray


def events(weight: float) -> Event:
    clients, steps = jnp.asarray(CLIENTS, "int32"), jnp.asarray(STEPS, "int32")
    zero = jnp.zeros_like(clients)
    row = jnp.array([1, 2], "int32")
    return Event(
        jnp.arange(2), clients, steps, zero, jnp.full(clients.shape, weight), zero, zero, row
    )


PROBLEM = Quadratic.of(np.random.default_rng(1).normal(size=(5, DIM)).astype("float32"), start=2.0)


@pytest.fixture(scope="module", params=[fedavg, quafl], ids=["fedavg", "quafl"])
def after(request: pytest.FixtureRequest) -> After:
    """Run two ticks for many keys. Gradients have no noise, so only the compressor draws."""
    system = request.param
    hyper = system.paper(num_clients=5, num_selected=SLOTS, local_steps=3, batch_size=1, lr=0.2)

    def run(hyper: Any, key: jax.Array) -> Any:
        algorithm = system.algorithm(PROBLEM, hyper, Plan(rows=3))

        def step(state: Any, event: Event) -> Any:
            state, _ = algorithm.step(key, state, event)
            return state, (state.server, getattr(state, "clients", ()), getattr(state, "known", ()))

        return jax.lax.scan(step, algorithm.init(key), events(1 / SLOTS))[1]

    keys = jax.random.split(jax.random.key(5), DRAWS)
    servers, clients, known = jax.jit(
        jax.vmap(partial(run, hyper.replace(compression=COMPRESSOR)))
    )(keys)
    plain_servers, plain_clients, nothing = jax.jit(partial(run, hyper))(keys[0])
    assert nothing == ()
    return After(
        *(
            np.asarray(leaf, float)
            for leaf in (servers, clients, known, plain_servers, plain_clients)
        )
    )


def far(drawn: np.ndarray, expected: np.ndarray) -> float:
    """Compute the largest distance of means over keys from expected values, in standard errors.

    Entries that are not random must be equal.
    """
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    distance = np.abs(drawn.mean(axis=0) - expected)
    assert (distance[error < 1e-7] < 1e-5).all()
    return float(np.max(distance[error >= 1e-7] / error[error >= 1e-7]))


@pytest.mark.few(1)
def test_compression_does_not_shift_the_models(after: After) -> None:
    """Gradients are linear, so means over keys equal the models without compression."""
    assert far(after.servers, after.plain_servers) < 5
    assert after.servers.std(axis=0).min() > 1e-3, "nothing was compressed"
    if after.clients.size:
        assert far(after.clients, after.plain_clients) < 5


@pytest.mark.few(1)
def test_variance_of_the_first_server_step(after: After) -> None:
    """The first server step has the messages' variances times their squared weights.

    The clients' draws are independent, and the weights are 1 / s, or 1 / (s + 1) in QuAFL.
    """
    is_quafl = bool(after.clients.size)
    start, centers = np.full(DIM, 2.0), np.asarray(PROBLEM.centers)
    moves = [(centers[i] - start) * (1 - 0.8**k) for i, k in zip(CLIENTS[0], STEPS[0], strict=True)]
    # QuAFL's server sends nothing new at first: all clients have the initial model.
    expected = (
        sum(float(variance(COMPRESSOR, jnp.asarray(move))) for move in moves)
        / (SLOTS + is_quafl) ** 2
    )
    squares = np.sum((after.servers[:, 0] - after.plain_servers[0]) ** 2, axis=1)
    assert abs(squares.mean() - expected) < 5 * squares.std() / np.sqrt(DRAWS)


def test_what_both_sides_of_quafl_know(after: After) -> None:
    """The reference r of contacted clients moves towards the server's model that is sent.

    From w_0 it moves 1 / (1 + omega) of the way on average.
    """
    if not after.known.size:
        pytest.skip("a system without memory")
    start, half = np.full(DIM, 2.0), 1 / (1 + COMPRESSOR.omega(DIM))
    np.testing.assert_allclose(
        after.known[:, 0], np.broadcast_to(start, after.known[:, 0].shape), rtol=1e-6
    )
    contacted = np.isin(np.arange(5), CLIENTS[1])
    towards = start + half * (after.plain_servers[0] - start)
    assert far(after.known[:, 1], np.where(contacted[:, None], towards, start)) < 5
    # r follows the decoded model, which is random; the client mixes in the same decoded model.
    moved = (after.known[:, 1] - start)[:, contacted]
    assert moved.std() > 1e-2


def test_clients_mix_in_what_they_decode(after: After) -> None:
    """Client 4, contacted at the second tick for the first time, mixes in what it decodes.

    Its model is y + (v - y) / (s + 1), with v = r + (1 + omega) (r_after - r).
    """
    if not after.known.size:
        pytest.skip("a system without memory")
    start, center = np.full(DIM, 2.0), np.asarray(PROBLEM.centers)[4]
    local = center + (start - center) * 0.8 ** STEPS[1][1]
    decoded = start + (1 + COMPRESSOR.omega(DIM)) * (after.known[:, 1, 4] - start)
    np.testing.assert_allclose(
        after.clients[:, 1, 4], local + (decoded - local) / (SLOTS + 1), atol=1e-5
    )


def tree() -> dict[str, jax.Array]:
    return {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.array([3.0, -1.0, 2.0])}


def test_a_pytree_is_one_vector() -> None:
    """Leaves are joined one after another, so blocks extend from one leaf into the next."""
    key, vector = jax.random.key(0), jnp.concatenate([tree()["a"].ravel(), tree()["b"]])
    sent = compress(COMPRESSOR, key, tree())
    np.testing.assert_array_equal(
        jnp.concatenate([sent["a"].ravel(), sent["b"]]), COMPRESSOR.apply(key, vector)
    )


def test_without_compression_nothing_is_touched() -> None:
    models = {"a": jnp.ones((2, 3))}
    assert decode_messages(Identity(), jax.random.key(0), events(1.0), models, models) is models
    assert compress(Identity(), jax.random.key(0), models) is models


def test_directions_clients_and_ticks_have_draws_of_their_own() -> None:
    first = jax.tree.map(lambda leaf: leaf[0], events(1.0))
    reference, models = (
        jnp.zeros((SLOTS, 16)),
        jnp.broadcast_to(jnp.linspace(1, 2, 16), (SLOTS, 16)),
    )

    def sent(event: Event, way: str = "up") -> np.ndarray:
        return np.asarray(
            decode_messages(COMPRESSOR, jax.random.key(0), event, reference, models, way=way)
        )

    at_once = sent(first)
    others = [sent(first, "down"), sent(first.within(tick=jnp.int32(7)))]
    rows = [at_once[0], at_once[1], at_once[2], *(row for other in others for row in other)]
    assert len({row.tobytes() for row in rows}) == len(rows)
    moved = sent(first._replace(clients=first.clients[jnp.array([1, 2, 0])]))
    np.testing.assert_array_equal(moved, at_once[[1, 2, 0]])


def test_bits_of_messages() -> None:
    """Nine numbers make three blocks, in 32 bits and in 64.

    FedAvg's server sends its model uncompressed, QuAFL's server does not.
    """
    assert count_message_bits(COMPRESSOR, tree()) == 3 * 32 + 9 * 2
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: leaf.astype("float64"), tree())
        assert count_message_bits(COMPRESSOR, wide) == 3 * 64 + 9 * 2
    mixed = {"a": jnp.ones(4, "bfloat16"), "b": jnp.ones(2)}
    assert count_message_bits(Identity(), mixed) == full_precision_bits(mixed) == 128
    for system, bits in ((fedavg.system, (114, 288)), (quafl.system, (114, 114))):
        assert system.messages.bits(tree(), system.paper(compression=COMPRESSOR)) == bits
        assert system.messages.bits(tree(), system.paper()) == (288, 288)


def test_on_the_command_line() -> None:
    """Several compressors on the command line make a sweep, labelled by their text."""
    texts = {"compression": ["identity", "block:norm=inf:block=9", "rounding:width=4"]}
    for contender in comparison.resolve_contenders(
        ["fedavg", "quafl"], texts, defaults_of("digits")
    ):
        points = contender.points()
        labels = [label for label, _ in points]
        name = full_name(contender.system.Hyper, "compression")
        found = [value_of(hyper, name) for _, hyper in points]
        assert found == list(map(parse_compressor, texts["compression"]))
        assert all(text in label for text, label in zip(texts["compression"], labels, strict=True))
    with pytest.raises(
        ConfigError, match=r"norm is 0.2, but must be a number of at least 1, or inf"
    ):
        comparison.resolve_contenders(
            ["fedavg"], {"compression": ["block:norm=0.2"]}, defaults_of("digits")
        )
    with pytest.raises(ConfigError, match="compression is 'block'"):
        check(fedavg.paper(compression="block"))
    with pytest.raises(ConfigError, match=r"messages\.compression\.keep is 2"):
        check(fedavg.paper(compression=parse_compressor("sparsification").replace(keep=2.0)))


def test_models_and_references_must_have_an_entry_per_slot() -> None:
    """One row for all slots would broadcast."""
    event = jax.tree.map(lambda leaf: leaf[0], events(1.0))
    rows, row = jnp.ones((SLOTS, DIM)), jnp.ones((1, DIM))
    for reference, models in ((row, rows), (row, row)):
        with pytest.raises(AssertionError):
            decode_messages(COMPRESSOR, jax.random.key(0), event, reference, models)
