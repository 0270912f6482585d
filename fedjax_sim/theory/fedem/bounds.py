"""FedEM's step sizes, convergence bounds, regimes and cost (arXiv 2111.02083), in float64.

Symbols of the paper and their names here:

    L                      `Constants.smoothness`
    L_W                    `Constants.lyapunov_smoothness`
    v_min, v_max           `Constants.least`, `Constants.most`
    W(S_0) - min W         `gap`
    n, omega, p, alpha     `num_clients`, `omega`, `participation`, `alpha` of `FedEMSetup`
    gamma, b, k_max        `gamma`, `batch_size`, `k_max`, as in `fedjax_sim.systems.fedem`
    sigma^2                `sigma2`, mean over clients of the variance of a mini-batch statistic
    h, h_i                 mean field, and that of client i; H is the field that the server uses
    G_k                    `memory_error`, mean over clients of ||V_i - h_i(S_k)||^2
    gamma_max, omega_p     `largest_step_size`, `total_omega`
    epsilon                `epsilon`, the mean E||h||^2 that is required

Bounds are on the mean of E||h(S_k)||^2 over the rounds k = 0, ..., k_max - 1 of a run. "Derived"
marks what the paper does not state. VR-FedEM's bounds are in
`fedjax_sim.theory.fedem.variance_reduction`.

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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.checking import Above0, AtLeast0, Count, Probability, Whole, checked

Numbers = npt.NDArray[np.float64]


@checked
class Constants(NamedTuple):
    """The constants of assumptions A4, A5 and A8.

    Attributes:
        smoothness: L, positive. Quadratic mean of the Lipschitz constants of the clients' mean
            fields h_i (A5). For VR-FedEM it is the quadratic mean over all examples (A8).
        lyapunov_smoothness: L_W, positive. Lipschitz constant of the gradient of W.
        least: v_min, positive. Lower bound on the eigenvalues of B(s), where grad W = -B h.
        most: v_max, at least v_min. Upper bound on the eigenvalues of B(s).
    """

    smoothness: Above0
    lyapunov_smoothness: float
    least: float
    most: float


@checked
class FedEMSetup(NamedTuple):
    """The problem's constants and the settings of a FedEM run that the bounds depend on.

    Attributes:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        omega: Variance constant of the compressor alone, at least 0; 0 is no compression.
        participation: p, in (0, 1]. Probability with which a client takes part in a round.
        alpha: Step size of the memories, positive. None is 1 / (1 + omega), as in the theorems.
    """

    constants: Constants
    num_clients: Count
    omega: AtLeast0
    participation: Probability = 1.0
    alpha: float | None = None

    @property
    def memory_step(self) -> float:
        """Step size of the memories, alpha, with the default filled in."""
        return memory_step(self.omega) if self.alpha is None else self.alpha

    @property
    def total_omega(self) -> float:
        """Variance constant omega_p of compression and partial participation together."""
        return total_omega(self.omega, self.participation)


class BoundTerms(NamedTuple):
    """The terms of a bound on the mean E||h||^2.

    The factor that multiplies E||h||^2 in the theorem is already divided out.

    Attributes:
        initial: Term of W(S_0) - min W.
        noise: Term of sigma^2.
        memory: Term of G_0, the mean squared distance of the first memories to h_i(S_0).
    """

    initial: float
    noise: float
    memory: float

    @property
    def total(self) -> float:
        """The bound, the sum of its terms."""
        return sum(self)


@checked
def memory_step(omega: AtLeast0) -> float:
    """Compute the theorems' step size of the memories, alpha = 1 / (1 + omega).

    Args:
        omega: Variance constant of the compressor alone, at least 0. Partial participation does
            not change alpha.

    Returns:
        alpha, in (0, 1].
    """
    return 1 / (1 + omega)


@checked
def total_omega(omega: AtLeast0, participation: Probability = 1.0) -> float:
    """Compute omega_p = (1 - p) (1 + omega) / p + omega (Sec. 2).

    It is the variance constant of a compressor that also drops the whole message with probability
    1 - p.

    Args:
        omega: Variance constant of the compressor alone, at least 0.
        participation: p, in (0, 1].

    Returns:
        omega_p, at least omega; equal to it for p = 1.
    """
    return (1 + omega) / participation - 1


# Theorems 1 and 3: FedEM --------------------------------------------------------------------------


@checked
def largest_step_size(setup: FedEMSetup) -> float:
    """Compute the largest step size gamma_max of Theorem 3, which is (7) of Theorem 1 for p = 1.

    Without compression and partial participation only the first of its two terms remains, a
    quarter of what (29) allows.

    Args:
        setup: The run.

    Returns:
        gamma_max, positive.

    Raises:
        ValueError: If alpha exceeds 1 / (1 + omega).
    """
    limit = memory_step(setup.omega)
    if setup.memory_step > limit * (1 + 1e-12):
        raise ValueError(
            f"alpha is {setup.memory_step:g}, but must be at most 1 / (1 + omega) = {limit:g}."
        )
    constants = setup.constants
    descent = constants.least / (2 * constants.lyapunov_smoothness)
    if setup.total_omega == 0:
        return descent
    scale = setup.memory_step * setup.participation * math.sqrt(setup.num_clients)
    return min(
        descent, scale / (2 * math.sqrt(2) * constants.smoothness * math.sqrt(setup.total_omega))
    )


@checked
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


@checked
def bound(
    setup: FedEMSetup,
    *,
    gamma: AtLeast0,
    k_max: Whole,
    gap: AtLeast0,
    sigma2: AtLeast0,
    memory_error: AtLeast0 = 0.0,
) -> BoundTerms:
    """Bound the mean E||h(S_k)||^2 by Theorem 3, which is (8) of Theorem 1 for p = 1.

    Args:
        setup: The run.
        gamma: Step size, positive and at most `largest_step_size`; the limit is not checked.
        k_max: Number of rounds, at least 1.
        gap: W(S_0) - min W.
        sigma2: sigma^2 of the clients' mini-batch statistics.
        memory_error: G_0; 0 if the memories start at h_i(S_0). Its term is that of (28) and (D.4).

    Returns:
        The terms of the bound; `total` is the bound.
    """
    constants, omega = setup.constants, setup.total_omega
    left = constants.least - gamma * constants.lyapunov_smoothness
    per_client = gamma * constants.lyapunov_smoothness / setup.num_clients
    of_memory = (
        2 * per_client * omega / (setup.memory_step * setup.participation) * memory_error / k_max
    )
    return BoundTerms(
        gap / (gamma * k_max) / left, per_client * (1 + 5 * omega) * sigma2 / left, of_memory / left
    )


@checked
def uncompressed_bound(
    constants: Constants,
    *,
    num_clients: Count,
    gamma: AtLeast0,
    k_max: Whole,
    gap: AtLeast0,
    sigma2: AtLeast0,
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


@checked
def balanced_step_size(
    setup: FedEMSetup, *, k_max: Whole, gap: AtLeast0, sigma2: AtLeast0
) -> float:
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


@checked
def balanced_bound(setup: FedEMSetup, *, k_max: Whole, gap: AtLeast0, sigma2: AtLeast0) -> float:
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


@checked
def rounds_needed(
    setup: FedEMSetup, *, epsilon: Above0, gap: AtLeast0, sigma2: AtLeast0
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


@checked
def evaluations_needed(
    setup: FedEMSetup, *, batch_size: Count, epsilon: Above0, gap: AtLeast0, sigma2: AtLeast0
) -> float:
    """Count how many expected statistics of single examples are needed for epsilon.

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


@checked
def is_noisy(setup: FedEMSetup, *, epsilon: Above0, sigma2: AtLeast0) -> bool:
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


@checked
def clients_for_free_compression(constants: Constants, omega: AtLeast0) -> float:
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


@checked
def increase_of_rounds(omega: AtLeast0, num_clients: Count, *, noisy: bool, free: bool) -> float:
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


# One step -----------------------------------------------------------------------------------------


@checked
def field_variance_bound(setup: FedEMSetup, *, delta2: AtLeast0, sigma2: AtLeast0) -> float:
    """Bound E||H - h||^2 at a given state (Prop. C.3.2 and D.3).

    The bound is an equality if the compressor has the variance omega ||x||^2 for every vector x.

    Args:
        setup: The run.
        delta2: Mean over clients of E||Delta_i||^2, where Delta_i is what client i compresses.
        sigma2: sigma^2 of the clients' mini-batch statistics.

    Returns:
        The bound.
    """
    return (setup.total_omega * delta2 + sigma2) / setup.num_clients


@checked
def field_variance(
    message_variance: npt.ArrayLike,
    message_square: npt.ArrayLike,
    sigma2: npt.ArrayLike,
    participation: Probability,
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


@checked
def memory_step_bound(
    setup: FedEMSetup,
    *,
    gamma: AtLeast0,
    memory_error: AtLeast0,
    mean_field: AtLeast0,
    sigma2: AtLeast0,
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


@checked
def frozen_memory_factor(omega: AtLeast0, alpha: float) -> float:
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
