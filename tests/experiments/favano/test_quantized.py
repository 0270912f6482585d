"""Theorem 1 of FAVANO with gradients at quantized weights.

r_d is compared with a quantizer of the package, and the bound with runs of the engine.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from experiments.favano.formulas import bounds as formulas
from fedjax_sim import Layout
from fedjax_sim.kernels.low_bit import straight_through, uniform
from fedjax_sim.problems import Quadratic
from fedjax_sim.theory import favano as theory
from tests.experiments.favano import lemma_bounds as lemmas

SYSTEM = fedjax_sim.SYSTEMS["favano"]
LIMIT, BITS = 4.0, (3, 4, 5)
quantizer = partial(uniform, scale=LIMIT, signed=True, levels="strict")


def test_bound_with_and_without_quantization() -> None:
    """Quantization adds 12 L^2 r_d, here 12 * 4 * 0.5."""
    setup = theory.FavanoSetup(9, 2, 10, 2.0, 1.0, 0.5, 1.0, 3.0, 1.0, 1.0)
    plain = formulas.bound(setup, step_size=0.01, num_ticks=70)
    bound = partial(lemmas.quantized_bound, setup, step_size=0.01, num_ticks=70)
    assert bound(squared_error=0.0) == plain
    np.testing.assert_allclose(bound(squared_error=0.5), plain + 24, rtol=1e-14)


@pytest.mark.parametrize("bits", BITS)
def test_rounding_error_of_the_quantizer(bits: int) -> None:
    """Within the range the error is at most r_d, which is reached half way between two levels."""
    weights = np.linspace(-LIMIT, LIMIT, 10_001, dtype="float32")
    errors = (np.asarray(quantizer(jnp.asarray(weights), bits=bits)) - weights) ** 2
    allowed = lemmas.uniform_quantizer_error(1, limit=LIMIT, bits=bits, rounding="nearest")
    np.testing.assert_allclose(allowed, (LIMIT / (2**bits - 1)) ** 2, rtol=1e-14)
    # Tolerance: float32, and the distance between the points tried.
    assert 0.99 * allowed < errors.max() <= allowed * (1 + 1e-5)


@struct.dataclass
class Rounded(Quadratic):
    """Quadratics whose gradients are taken at quantized weights; evaluation returns the model.

    Attributes:
        bits: `i32[]`, bits per weight, one of BITS.
    """

    bits: jax.Array

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        def rounded(x: jax.Array) -> jax.Array:
            return jnp.stack([quantizer(x, bits=bits) for bits in BITS])[self.bits - BITS[0]]

        return super().loss(straight_through(rounded, params), client, examples, key)

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        return {"model[axis]": params}


class Course(NamedTuple):
    """What was measured in a run with each number of bits of BITS.

    Attributes:
        squares: `f64[bits, T]`, squared gradient at the mean of all models before each tick.
        largest: Largest magnitude of any coordinate of any server model.
        setup: Constants of the problem and of the run.
        step_size: eta.
    """

    squares: np.ndarray
    largest: float
    setup: theory.FavanoSetup
    step_size: float


@pytest.fixture(scope="module")
def course() -> Callable[[float, float, float], Course]:
    """Make a function that runs three clients, two at a time, once with each number of bits.

    Losses are quadratics of curvature 1, given by the spread of the optima, the standard deviation
    of gradient noise and the distance of the start from the optimum in each coordinate.
    """

    def run(spread: float, noise: float, distance: float) -> Course:
        n, s, K, dim, ticks = 3, 2, 3, 40, 2500
        random = np.random.default_rng(5)
        # The coordinates of the optimum are spread evenly, so they lie anywhere between levels.
        optimum = random.permutation(np.linspace(-2, 2, dim))
        centers = optimum + spread * random.normal(size=(n, dim))
        optimum, start = centers.mean(0), centers.mean(0) + distance
        law = theory.step_law(
            [0.5] * n, contact_probability=s / n, round_time=7, max_steps=K, law="runtime_geom"
        )
        noises, drift = theory.reweighting_constants(
            theory.step_moments(law), max_steps=K, reweighting="deterministic"
        )
        dissimilarity = float(np.mean(np.sum((centers - optimum) ** 2, axis=1)))
        gap = float(np.sum((start - optimum) ** 2) / 2)
        setup = theory.FavanoSetup(
            n, s, K, 1.0, noise**2, dissimilarity, 1.0, gap, float(noises.mean()), drift
        )
        lr = 0.999 * theory.largest_step_size(setup)
        hyper = SYSTEM.paper(
            num_clients=n,
            num_selected=s,
            local_steps=K,
            slow_fraction=0.0,
            lr=lr,
            batch_size=1,
            reweight="deterministic",
        )
        plain = Quadratic.of(centers.astype("float32"), noise=noise, start=start)
        problems = [
            Rounded(
                *(getattr(plain, name) for name in ("centers", "curvature", "noise", "start")),
                jnp.int32(b),
            )
            for b in BITS
        ]
        layout = Layout(slots_at_once=s, lanes_at_once=True, lane_devices=1)
        swept = fedjax_sim.sweep(
            SYSTEM,
            problems.__getitem__,
            hyper,
            seeds=len(BITS),
            budget=fedjax_sim.Ticks(ticks),
            num_evals=ticks,
            layout=layout,
        )
        server = swept.curves["model"].values
        squares = np.empty((len(BITS), ticks))
        for lane, timeline in enumerate(swept.timelines):
            held = np.zeros(n, int)
            for t in range(ticks):
                mean = (server[lane, t] + server[lane, held].sum(0)) / (n + 1)
                squares[lane, t] = np.sum((mean - optimum) ** 2)
                held[timeline.clients[t]] = timeline.holds[t]
        return Course(squares, float(np.abs(server).max()), setup, lr)

    return run


def bounds(course: Course) -> np.ndarray:
    """Compute the quantized bound for each number of bits, `f64[bits]`."""
    dim, ticks = 40, course.squares.shape[1]
    errors = [
        lemmas.uniform_quantizer_error(dim, limit=LIMIT, bits=bits, rounding="nearest")
        for bits in BITS
    ]
    return np.array(
        [
            lemmas.quantized_bound(
                course.setup, step_size=course.step_size, num_ticks=ticks, squared_error=error
            )
            for error in errors
        ]
    )


@pytest.mark.slow
def test_quantized_bound_of_runs_that_only_rounding_keeps_from_the_optimum(
    course: Callable,
) -> None:
    """At 3 bits the bound of Theorem 1 alone is exceeded, and the floor falls fourfold per bit.

    The objectives are equal and without noise.
    """
    seen = course(0.0, 0.0, 0.3)
    assert seen.largest < LIMIT, "rounding would clip"
    assert all(
        condition.holds for condition in theory.conditions(seen.setup, step_size=seen.step_size)
    )
    allowed = bounds(seen)
    assert (seen.squares.mean(1) <= allowed).all()
    plain = formulas.bound(seen.setup, step_size=seen.step_size, num_ticks=seen.squares.shape[1])
    assert seen.squares[0].mean() > plain, "the term for rounding was not needed"
    floors = seen.squares[:, -300:].mean(1)
    np.testing.assert_allclose(floors[:-1] / floors[1:], 4, rtol=0.3)
    errors = [
        lemmas.uniform_quantizer_error(40, limit=LIMIT, bits=bits, rounding="nearest")
        for bits in BITS
    ]
    assert (floors <= [lemmas.quantization_floor(1.0, error) for error in errors]).all()


@pytest.mark.slow
def test_quantized_bound_of_dissimilar_clients_with_noise(course: Callable) -> None:
    seen = course(0.3, 0.5, 0.5)
    assert seen.largest < LIMIT
    assert all(
        condition.holds for condition in theory.conditions(seen.setup, step_size=seen.step_size)
    )
    assert (seen.squares.mean(1) <= bounds(seen)).all()
