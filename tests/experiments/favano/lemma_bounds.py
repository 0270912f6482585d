"""Bounds of FAVANO (arXiv 2305.16099) that only tests compare with runs, and misprinted ones.

Symbols and equation numbers are those of `experiments.favano.formulas.bounds`.
"""

import numpy as np

from experiments.favano.formulas.bounds import (
    Numbers,
    bound,
    error_terms,
    noise_and_dissimilarity,
)
from fedjax_sim.theory.favano import FavanoSetup, StepMoments


def constants_as_printed(moments: StepMoments, max_steps: int) -> tuple[Numbers, float]:
    """Compute a^i, `f64[N]`, and b of the deterministic reweighting as the paper prints them.

    From (149) on, the paper divides E[X^2] by E[X], where (148) divides by its square.
    """
    relative = moments.mean_square / moments.mean
    return 1 / moments.mean + relative / max_steps**2, float(np.max(relative))


def second_moment_bound(setup: FavanoSetup, *, potential: float, gradient_square: float) -> float:
    """Bound the sum over clients of the second moments of reweighted progress, (135)-(138).

    Holds for eta < 1 / (4 L K^2).

    Args:
        setup: Constants of the problem and of the run.
        potential: Phi_t.
        gradient_square: Squared norm of the gradient of f at mu_t.

    Returns:
        The bound.
    """
    n, b = setup.num_clients, setup.drift_constant
    noise = setup.gradient_variance * n * setup.noise_constant
    spread = 16 * setup.smoothness**2 * b * potential
    return (
        noise
        + spread
        + 8 * n * b * (setup.dissimilarity_factor * gradient_square + setup.dissimilarity)
    )


def potential_step_bound(
    setup: FavanoSetup,
    *,
    step_size: float,
    potential: float | Numbers,
    gradient_square: float | Numbers,
) -> float | Numbers:
    """Bound the expected potential after one server step, (157)-(167).

    Holds if the conditions "local gradients" and "contraction" of `conditions` do; the paper states
    eta <= 1 / (20 s L b).

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        potential: `f64[...]`, Phi_t before the step.
        gradient_square: `f64[...]`, squared norm of the gradient of f at mu_t before the step.

    Returns:
        `f64[...]`, the bound on E[Phi_(t+1)].
    """
    # Deviation: (164) lacks the factor b of G^2, and (157) and (160) lack the factor sigma^2. Both
    # factors are in the bound that these equations start from.
    scale = (setup.num_contacted * step_size) ** 2
    drift = 24 * setup.dissimilarity_factor * setup.drift_constant * gradient_square
    return (1 - 1 / (5 * setup.num_clients)) * potential + scale * (
        3 * noise_and_dissimilarity(setup) + drift
    )


def potential_sum_bound(
    setup: FavanoSetup, *, step_size: float, num_ticks: int, gradient_square_sum: float
) -> float:
    """Bound the sum of expected potentials over t = 0, ..., T, (168)-(171).

    The run starts with all models equal. Holds under the conditions of `potential_step_bound`.

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        num_ticks: T, the number of server steps.
        gradient_square_sum: Sum over t < T of the squared norm of the gradient of f at mu_t.

    Returns:
        The bound.
    """
    scale = setup.num_clients * (setup.num_contacted * step_size) ** 2
    drift = 120 * setup.dissimilarity_factor * setup.drift_constant * gradient_square_sum
    return scale * (drift + 15 * num_ticks * noise_and_dissimilarity(setup))


def bound_of_main_text(setup: FavanoSetup, *, step_size: float, num_ticks: int) -> float:
    """Compute the right side of eq. (8) as printed, which leaves out two terms of the proof.

    `bound` has all terms.

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        num_ticks: T, the number of server steps.

    Returns:
        The right side of (8), in units of a squared gradient.
    """
    noise = setup.noise_constant * setup.gradient_variance
    drift = setup.drift_constant * setup.dissimilarity
    quadratic = (setup.smoothness * setup.num_contacted) ** 2 * (720 * noise + 5600 * drift)
    terms = error_terms(setup)
    return (
        terms.initial / (step_size * num_ticks)
        + terms.linear * step_size
        + quadratic * step_size**2
    )


def quantization_floor(smoothness: float, squared_error: float) -> float:
    """Compute what quantized weights add to the bound of Theorem 1, 12 L^2 r_d.

    Args:
        smoothness: L.
        squared_error: r_d, the largest squared error of the quantizer at the iterates.

    Returns:
        The addition, in units of a squared gradient; it does not depend on the number of steps.
    """
    return 12 * smoothness**2 * squared_error


def quantized_bound(
    setup: FavanoSetup, *, step_size: float, num_ticks: int, squared_error: float
) -> float:
    """Bound the same mean as `bound` if gradients are taken at quantized weights Q(w).

    The paper states this below Theorem 1 without proof.

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        num_ticks: T, the number of server steps.
        squared_error: r_d, the largest ||Q(w) - w||^2 at the iterates w.

    Returns:
        The bound, in units of a squared gradient. With `squared_error` 0 this is `bound`.
    """
    return bound(setup, step_size=step_size, num_ticks=num_ticks) + quantization_floor(
        setup.smoothness, squared_error
    )


def uniform_quantizer_error(dim: int, *, limit: float, bits: int, rounding: str) -> float:
    """Compute r_d, the largest squared error of a uniform quantizer on [-limit, limit]^dim.

    Derived. Weights outside this range are not covered.

    Args:
        dim: Number of weights.
        limit: Largest magnitude of a weight.
        bits: Bits per weight.
        rounding: "nearest", or "stochastic" for the worst draw, whose error is four times as large.
            The expected squared error of stochastic rounding is at most that of "nearest".

    Returns:
        r_d.

    Raises:
        KeyError: If `rounding` is neither.
    """
    step = 2 * limit / (2**bits - 1)
    return dim * step**2 / {"nearest": 4, "stochastic": 1}[rounding]
