"""FedEM's cost and regimes, and steps of its proofs (arXiv 2111.02083), which only tests need.

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

import numpy as np
import numpy.typing as npt

from fedjax_sim.theory.fedem import Constants, FedEMSetup, largest_step_size


def step_size_for_descent(setup: FedEMSetup) -> float:
    """Compute the largest gamma that meets both conditions of remark (30).

    Up to this gamma, the expected decrease per round of W plus the proof's multiple of G keeps at
    least gamma v_min ||h||^2 / 2. The gamma is O(1 / omega), but it does not suffice for the
    bounds: the recursion of the memories' error (`memory_step_bound`) still needs
    `largest_step_size`, which is O(omega^-1.5). For p < 1 the formula is derived: omega_p and
    alpha p take the places of omega and alpha.

    Args:
        setup: The run.

    Returns:
        gamma, positive.
    """
    constants, n, omega = setup.constants, setup.num_clients, setup.total_omega
    descent = constants.least / (2 * constants.lyapunov_smoothness)
    if omega == 0:
        return descent
    memory_rate = setup.memory_step * setup.participation
    cube = (
        memory_rate**2
        * n
        * constants.least
        / (16 * constants.lyapunov_smoothness * omega * constants.smoothness**2)
    )
    return min(descent, cube ** (1 / 3))


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


def balanced_step_size(setup: FedEMSetup, *, k_max: int, gap: float, sigma2: float) -> float:
    """Compute the step size of Theorem 1's corollary, with Theorem 3's omega_p in place of omega.

    Args:
        setup: The run.
        k_max: Number of rounds, at least 1.
        gap: W(S_0) - min W.
        sigma2: sigma^2 of the clients' mini-batch statistics.

    Returns:
        gamma, at most `largest_step_size`, and equal to it without noise.

    Raises:
        ValueError: If alpha exceeds 1 / (1 + omega).
    """
    largest = largest_step_size(setup)
    noise = k_max * setup.constants.lyapunov_smoothness * (1 + 5 * setup.total_omega) * sigma2
    return largest if noise == 0 else min(largest, math.sqrt(gap * setup.num_clients / noise))


def balanced_bound(setup: FedEMSetup, *, k_max: int, gap: float, sigma2: float) -> float:
    """Bound the mean E||h(S_k)||^2 at `balanced_step_size`, by the corollary of Theorem 1.

    Args:
        setup: The run.
        k_max: Number of rounds, at least 1.
        gap: W(S_0) - min W.
        sigma2: sigma^2 of the clients' mini-batch statistics.

    Returns:
        The bound.

    Raises:
        ValueError: If alpha exceeds 1 / (1 + omega).
    """
    constants = setup.constants
    noise = (
        gap
        * constants.lyapunov_smoothness
        * (1 + 5 * setup.total_omega)
        * sigma2
        / (setup.num_clients * k_max)
    )
    return 4 / constants.least * max(math.sqrt(noise), gap / (largest_step_size(setup) * k_max))


def rounds_needed(
    setup: FedEMSetup, *, epsilon: float, gap: float, sigma2: float
) -> tuple[float, float]:
    """Compute K_opt with its constants: after how many rounds the corollary guarantees epsilon.

    Derived. The paper gives the orders O((1 + omega) sigma^2 / (n epsilon^2)) and
    O(1 / (gamma_max epsilon)) for p = 1; for p < 1 omega_p takes the place of omega.

    Args:
        setup: The run.
        epsilon: Required mean E||h||^2, positive.
        gap: W(S_0) - min W.
        sigma2: sigma^2 of the clients' mini-batch statistics.

    Returns:
        The rounds that the noise requires and those that the step size requires; K_opt is the
        larger of the two.

    Raises:
        ValueError: If alpha exceeds 1 / (1 + omega).
    """
    constants = setup.constants
    noise = (
        gap
        * constants.lyapunov_smoothness
        * (1 + 5 * setup.total_omega)
        * sigma2
        / setup.num_clients
    )
    scale = 4 / (constants.least * epsilon)
    return scale**2 * noise, scale * gap / largest_step_size(setup)


def evaluations_needed(
    setup: FedEMSetup, *, batch_size: int, epsilon: float, gap: float, sigma2: float
) -> float:
    """int how many expected statistics of single examples are needed for epsilon.

    Derived: K_CE = n b K_opt with K_opt of `rounds_needed`. Clients that do not take part in a
    round are counted, as they compute in Algorithm 4. The pass that initialises the memories is
    not counted.

    Args:
        setup: The run.
        batch_size: b, examples of a mini-batch.
        epsilon: Required mean E||h||^2, positive.
        gap: W(S_0) - min W.
        sigma2: sigma^2 of statistics of mini-batches of this size.

    Returns:
        K_CE, summed over all clients.

    Raises:
        ValueError: If alpha exceeds 1 / (1 + omega).
    """
    return (
        setup.num_clients
        * batch_size
        * max(rounds_needed(setup, epsilon=epsilon, gap=gap, sigma2=sigma2))
    )


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


def increase_of_rounds(omega: float, num_clients: int, *, noisy: bool, free: bool) -> float:
    """Look up by which factor compression multiplies K_opt, as an order of magnitude (Sec. 2).

    Args:
        omega: Variance constant of the compressor, at least 0.
        num_clients: n, at least 1.
        noisy: Whether the run is in the high-noise regime, see `is_noisy`.
        free: Whether there are at least `clients_for_free_compression` clients. Ignored if noisy.

    Returns:
        The factor, at least 1, and 1 for omega = 0. It is 1 + omega where the table of Sec. 2 has
        omega, and (1 + omega) sqrt(omega / n) where the table has omega^1.5 / sqrt(n).
    """
    return (
        (1 + omega)
        if noisy
        else 1.0
        if free
        else max(1.0, (1 + omega) * math.sqrt(omega / num_clients))
    )


def field_variance(
    message_variance: npt.ArrayLike,
    message_square: npt.ArrayLike,
    sigma2: npt.ArrayLike,
    participation: float,
) -> float:
    """Compute E||H - h||^2 at a given state exactly. Derived.

    Args:
        message_variance: `f64[N]`, E||Quant(Delta_i) - Delta_i||^2 of each of the N clients.
        message_square: `f64[N]`, E||Quant(Delta_i)||^2 of each client.
        sigma2: `f64[N]`, true variance of each client's mini-batch statistic.
        participation: p, in (0, 1].

    Returns:
        The variance of H.
    """
    per_client = (
        np.asarray(sigma2)
        + np.asarray(message_variance)
        + (1 - participation) / participation * np.asarray(message_square)
    )
    return float(np.sum(per_client) / per_client.size**2)


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
