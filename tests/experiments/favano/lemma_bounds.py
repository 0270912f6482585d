"""Bounds of FAVANO (arXiv 2305.16099) that the paper misprints, for tests alone.

Symbols and equation numbers are those of `experiments.favano.formulas.bounds`.
"""

import numpy as np

from experiments.favano.formulas.bounds import Numbers, error_terms
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
