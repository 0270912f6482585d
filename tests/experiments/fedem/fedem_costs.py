"""Formulas of FedEM (arXiv 2111.02083) that only tests need, most of them misprinted.

Symbols and equation numbers are those of `experiments.fedem.formulas.bounds`; epsilon is the mean
E||h||^2 that is required.

Corrections of the paper:
- (9) lacks the factor v_min on its left side and doubles the noise; it is false. See
  `uncompressed_bound`.
- The recursion of the memories with partial participation (D.3) lacks a 1 in its last term. See
  `memory_step_bound`.
- Noise dominates the cost (the "high noise" regime) where
  gamma_max (1 + omega_p) sigma^2 / (n epsilon) is at least 1. The paper prints n / epsilon in place
  of n epsilon. See `is_noisy`.
"""

import math

from fedjax_sim.theory.fedem import Constants, FedEMSetup, largest_step_size


def uncompressed_bound(
    constants: Constants,
    *,
    num_clients: int,
    gamma: float,
    k_max: int,
    gap: float,
    sigma2: float,
    printed: bool = False,
) -> float:
    """Bound the mean E||h(S_k)||^2 by (29), for omega = 0, p = 1 and any memories.

    The bound is an equality if W is quadratic, B is a multiple of the identity and
    W(S_{k_max}) = min W.

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        gamma: Step size, positive and less than 2 v_min / L_W; the limit is not checked.
        k_max: Number of rounds, at least 1.
        gap: W(S_0) - min W.
        sigma2: sigma^2 of the clients' mini-batch statistics.
        printed: Whether to return (9) as the paper prints it, which is false.

    Returns:
        The bound.
    """
    per_step = gap / (gamma * k_max)
    noise = gamma * constants.lyapunov_smoothness * sigma2 / num_clients
    if printed:
        return (per_step + noise) / (
            1 - gamma * constants.lyapunov_smoothness / (2 * constants.least)
        )
    # Deviation: (9) divides by a quantity that lacks v_min. It fails for one step of size 1 / a on
    # the noisy mean with ridge > 0.
    return (per_step + noise / 2) / (constants.least - gamma * constants.lyapunov_smoothness / 2)


def is_noisy(setup: FedEMSetup, *, epsilon: float, sigma2: float) -> bool:
    """Tell whether noise dominates K_opt up to constants, the paper's "high noise" regime.

    For p < 1 omega_p takes the place of omega.

    Args:
        setup: The run.
        epsilon: Required mean E||h||^2, positive.
        sigma2: sigma^2 of the clients' mini-batch statistics.

    Returns:
        True in the high-noise regime.

    Raises:
        ValueError: If alpha exceeds 1 / (1 + omega).
    """
    # Deviation: the paper prints n / epsilon in place of n epsilon. This is the ratio of the two
    # terms of K_opt.
    return (
        largest_step_size(setup) * (1 + setup.total_omega) * sigma2 / (setup.num_clients * epsilon)
        >= 1
    )


def memory_step_bound(
    setup: FedEMSetup,
    *,
    gamma: float,
    memory_error: float,
    mean_field: float,
    sigma2: float,
    printed: bool = False,
) -> float:
    """Bound E G_{k+1} given G_k and ||h(S_k)||^2 (Prop. C.3.4 and D.3).

    Args:
        setup: The run; alpha must be at most 1 / (1 + omega), which is not checked.
        gamma: Step size, at least 0.
        memory_error: G_k.
        mean_field: ||h(S_k)||^2.
        sigma2: sigma^2 of the clients' mini-batch statistics.
        printed: Whether to use the last term as D.3 prints it, which is false.

    Returns:
        The bound.
    """
    memory_rate, omega = setup.memory_step * setup.participation, setup.total_omega
    scale = 2 * (gamma * setup.constants.smoothness) ** 2 / memory_rate
    kept = (1 - memory_rate / 2 + scale * omega / setup.num_clients) * memory_error
    # Deviation: D.3 prints omega_p in place of 1 + omega_p, which is false without compression.
    # (33) has it right.
    of_noise = scale * (omega if printed else 1 + omega) / setup.num_clients
    return kept + scale * mean_field + (2 * memory_rate + of_noise) * sigma2


def inverse_step_size(
    constants: Constants,
    *,
    num_clients: int,
    omega: float,
    alpha: float,
    inner_steps: float,
    batch_size: float,
) -> float:
    """Compute Lambda_* of Prop. E.4, for any alpha up to 1 / (1 + omega) and any b.

    The step size (10) is 1 / (2 Lambda_*).

    Args:
        alpha: Step size of the memories, positive; the limit is not checked.
        batch_size: b, at least 1.

    Returns:
        Lambda_*, positive.
    """
    spread = omega + inner_steps * alpha**2 / (8 * batch_size) * (1 + 10 * omega)
    ratio = (
        constants.most / constants.least * constants.smoothness / (math.sqrt(num_clients) * alpha)
    )
    return constants.lyapunov_smoothness / (2 * constants.least) + 2 * math.sqrt(
        2
    ) * ratio * math.sqrt(spread)


def clients_for_free_compression(constants: Constants, omega: float) -> float:
    """Compute the number of clients from which compression no longer reduces Theorem 1's gamma_max.

    Derived. With all constants 1 and omega = 2.5 it is 61.25. The paper says 16, which is meant as
    an order of magnitude.

    Args:
        constants: Constants of the problem.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        The smallest such n, as a real number.
    """
    return (
        2
        * (constants.smoothness * constants.least / constants.lyapunov_smoothness * (1 + omega))
        ** 2
        * omega
    )


def frozen_memory_factor(omega: float, alpha: float) -> float:
    """Bound by which factor E||V_i - h_i||^2 changes in a round at a fixed S. Derived.

    Statistics are exact and all clients take part. The factor is attained if the compressor has
    the variance omega ||x||^2 for every vector x. It is 1 - alpha at alpha = 1 / (1 + omega), and 1
    at twice that alpha.

    Args:
        omega: Variance constant of the compressor, at least 0.
        alpha: Step size of the memories.

    Returns:
        The factor; above 1 the memories may diverge.
    """
    return (1 - alpha) ** 2 + alpha**2 * omega
