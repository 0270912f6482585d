"""The lattice quantizer: what is decoded, its error, and its bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.settings import ConfigError, check
from fedjax_sim.core.types import Event
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.compression import (
    Lattice,
    count_message_bits,
    decode_messages,
    parse_compressor,
)
from fedjax_sim.systems import fedem, quafl
from tests.reference import lattice

DIM, PADDED, SETTINGS = 5, 8, {"colors": 9, "distance": 0.7}
RANDOM = np.random.default_rng(0)
REFERENCES = 30 * RANDOM.normal(size=(40, DIM))
VECTORS = (
    REFERENCES + RANDOM.normal(size=(40, DIM)) * np.r_[[0.2] * 20, np.linspace(0.2, 1, 20)][:, None]
)


@pytest.fixture(scope="module")
def decoded() -> np.ndarray:
    """What is decoded of every vector, in float64."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(3), len(VECTORS))
        decode = jax.jit(jax.vmap(Lattice(**SETTINGS).decode))
        return np.asarray(decode(keys, jnp.asarray(VECTORS), jnp.asarray(REFERENCES)))


def test_decoded_points_are_those_of_a_search(decoded: np.ndarray) -> None:
    """Where a receiver would decode another point than the one sent, the message is NaN."""
    keys, wrong = jax.random.split(jax.random.key(3), len(VECTORS)), []
    for key, x, reference, point in zip(keys, VECTORS, REFERENCES, decoded, strict=True):
        draws = lattice.draws(key, PADDED)
        found, sent = (lattice.decode(x, near, *draws, **SETTINGS) for near in (reference, x))
        wrong.append(np.abs(found - sent).max() > 1e-10)
        expected = np.full(DIM, np.nan) if wrong[-1] else sent
        np.testing.assert_allclose(point, expected, rtol=0, atol=1e-10)
    assert not any(wrong[:20]) and 5 < sum(wrong[20:]) < 15


def test_error_depends_on_the_distance_alone(decoded: np.ndarray) -> None:
    """Near vectors of any size are rounded to the side of the lattice."""
    error = np.linalg.norm(decoded - VECTORS, axis=1)
    assert error[:20].max() <= 0.7 / 8 * np.sqrt(PADDED)


def test_a_run_with_a_message_from_too_far_diverges() -> None:
    problem = Quadratic.of([[0.0], [4.0], [8.0]])
    for distance, is_wrong in ((100.0, False), (0.01, True)):
        code = Lattice(colors=4, distance=distance)
        hyper = quafl.paper(num_clients=3, num_selected=2, batch_size=1, compression=code)
        run = fedjax_sim.simulate(quafl.system, problem, hyper, budget=fedjax_sim.Ticks(20))
        assert bool(run.curves.failed) == is_wrong


@pytest.mark.parametrize("second, is_right", [(-1, True), (1, False)])
def test_an_empty_slot_is_no_message_from_far_away(second: int, is_right: bool) -> None:
    models, zero = jnp.array([[0.1], [9.0]]), jnp.zeros(2, "int32")
    clients, tick = jnp.array([0, second], "int32"), jnp.int32(0)
    event = Event(tick, clients, zero, zero, zero.astype(float), zero, zero, tick)
    near = jnp.zeros_like(models)
    sent = decode_messages(Lattice(), jax.random.key(0), event, near, models)
    assert bool(jnp.isfinite(sent).all()) == is_right


def test_near_vectors_have_no_bias_and_the_variance_of_a_uniform_error() -> None:
    compressor, num = Lattice(colors=9, distance=2.0), 20_000
    x = jnp.asarray(np.linspace(-0.5, 0.6, PADDED).astype("float32"))
    keys = jax.random.split(jax.random.key(0), num)
    error = np.asarray(jax.jit(jax.vmap(lambda key: compressor.apply(key, x) - x))(keys))
    side = 2 * 2.0 / 8
    assert np.abs(error.mean(axis=0)).max() < 5 * side / np.sqrt(12 * num)
    assert (error**2).sum(axis=1).mean() == pytest.approx(PADDED * side**2 / 12, rel=0.02)


def test_bits_counted_by_hand() -> None:
    """Four bits of each entry of the padded vector; no floats."""
    assert parse_compressor("lattice").bits(1024) == 4 * 1024
    assert parse_compressor("lattice").bits(1025, word=64) == 4 * 2048
    assert parse_compressor("lattice:colors=3").bits(4) == 7  # 81 messages
    model = {"a": jnp.ones((2, 3)), "b": jnp.ones(3)}
    assert count_message_bits(Lattice(colors=256), model) == 8 * 16
    assert quafl.system.messages.bits(model, quafl.paper(compression=Lattice())) == (64, 64)


def test_systems_without_references_refuse_it() -> None:
    check(quafl.paper(compression=Lattice()))
    with pytest.raises(ConfigError, match="compression is 'lattice', but must be an unbiased"):
        check(fedem.paper(compression=Lattice()))
    with pytest.raises(ConfigError, match=r"colors is 1, but must be"):
        check(quafl.paper(compression=Lattice(colors=1)))
