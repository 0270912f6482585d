"""FedEM's short statements: the corollary, evaluations by omega, bits by omega, dithering's omega.

Judges claims 26 to 29 of arXiv 2111.02083.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import harness
from experiments.fedem.claims import CLAIMS, Found
from experiments.fedem.setup import exact_variance, toy_a
from experiments.harness import Arguments, Outcome, Sizes, Study
from fedjax_sim.server.compression import BlockQuantization, Dithering
from fedjax_sim.theory import fedem as theory

STUDY = Study(full=Sizes(draws=20_000, k_max=10_000), smoke=Sizes(draws=200, k_max=100))


def measure_corollary(sizes: Sizes) -> Found:
    """Compare exact means of ||h||^2 with the corollary's bound (claim 26)."""
    toy = toy_a()
    known, shares = toy.known, []
    for omega in (0.1, 1.0, 9.0, 30.0):
        setup = theory.FedEMSetup(known.constants, 10, omega)
        most, scale = theory.largest_step_size(setup), known.constants.lyapunov_smoothness
        for sigma2 in float(known.noise.mean()) * np.geomspace(1e-3, 1e2, 6):
            for k_max in (1, 10, 100, 1000, sizes.k_max):
                noisy = scale * (1 + 5 * omega) * sigma2
                gamma = min(np.sqrt(toy.gap * 10 / (k_max * noisy)), most)
                law = toy.moments(setup, gamma=gamma, k_max=k_max, sigma2=sigma2)
                field = law.mean_field[:k_max]
                bound = max(np.sqrt(toy.gap * noisy / (10 * k_max)), toy.gap / (most * k_max))
                shares.append(field.mean() * known.constants.least / (4 * bound))
    return {"largest share": float(max(shares)), "cases": len(shares)}


def measure_evaluations() -> Found:
    """Fit the powers of omega and of n in the formula of App. E.2 (claim 27)."""
    unit, m = theory.Constants(1.0, 1.0, 1.0, 1.0), 100

    def cost(n: float, omega: float, least: float = 0.0) -> float:
        inner = (1 + omega) * (m / 2) ** 0.5
        gamma = theory.vr_step_size(unit, num_clients=n, omega=omega)
        return float(n / gamma * (m / inner + 2 * max(inner / (1 + omega) ** 2, least)))

    def power(numbers: np.ndarray, costs: list[float]) -> float:
        return float(np.polyfit(np.log(numbers), np.log(costs), 1)[0])

    omegas, clients = np.geomspace(1e3, 1e5, 9), np.geomspace(10, 1000, 9)
    return {
        "powers": {
            "omega": power(omegas, [cost(10, w) for w in omegas]),
            "n": power(clients, [cost(n, 1e4) for n in clients]),
        },
        "with whole batches": power(omegas, [cost(10, w, 1.0) for w in omegas]),
    }


SIZES = (10, 32, 100, 316, 1000, 3162, 10_000)


def measure_bits() -> Found:
    """Compute by how much messages shrink, over omega (claim 28)."""

    def ratio(compressor: Any, dim: int) -> float:
        return float(32 * dim / compressor.bits(dim) / compressor.omega(dim))

    cases = {
        "blocks of 4": (BlockQuantization(norm=2.0, block=4), 100),
        "dithering": (Dithering(levels=4), 100),
    }
    return {
        "cases": {name: ratio(*case) for name, case in cases.items()},
        "one block": {str(q): ratio(BlockQuantization(norm=2.0, block=q), q) for q in SIZES},
    }


def measure_dithering(sizes: Sizes) -> Found:
    """Compare dithering's exact variance with the stated order, and draws with it (claim 29)."""
    random, worst, far = np.random.default_rng(29), 0.0, 0.0
    for q in (2, 16, 256, 4096):
        steep = 0.5 ** np.minimum(np.arange(q), 60)
        spike = np.r_[q**0.5, np.ones(q - 1)]
        vectors = [np.ones(q), np.eye(1, q)[0], steep, spike, *random.normal(size=(4, q))]
        for norm in (1.0, 2.0, 4.0, np.inf):
            for levels in (1, 2, 4, 16, 64):
                each = Dithering(levels=levels, norm=norm)
                limit = (q ** (1 / norm) + q**0.5) / levels
                variance = jax.vmap(lambda x, each=each: exact_variance(each, x))(
                    jnp.asarray(np.stack(vectors), "float32")
                )
                relative = np.asarray(variance) / np.sum(np.square(vectors), axis=1)
                worst = max(worst, float(relative.max()) / limit)
    for norm in (1.0, 2.0, np.inf):
        each = Dithering(levels=3, norm=norm)
        x = jnp.asarray(random.normal(size=16), "float32")
        keys = jax.random.split(jax.random.key(29), sizes.draws)
        sent = np.asarray(jax.vmap(lambda key, each=each, x=x: each.apply(key, x))(keys), float)
        mean = harness.estimate(sent)
        square = harness.estimate(np.sum((sent - np.asarray(x)) ** 2, axis=1))
        moved = mean.error > 0
        far = max(
            far,
            float(np.max(np.abs(mean.mean - np.asarray(x))[moved] / mean.error[moved])),
            abs(float(square.mean) - float(exact_variance(each, x))) / float(square.error),
        )
    return {"largest share": worst, "standard errors off": far, "draws": sizes.draws}


JUDGES = CLAIMS.declared(26, 27, 28, 29)


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments)
    verdicts = harness.judge_all(
        JUDGES,
        {
            26: measure_corollary(sizes),
            27: measure_evaluations(),
            28: measure_bits(),
            29: measure_dithering(sizes),
        },
    )
    return Outcome({}, {}, verdicts, sizes.config())
