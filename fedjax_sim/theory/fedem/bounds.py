"""The theory of FedEM (Dieuleveut, Fort, Moulines, Robin, arXiv 2111.02083): step sizes, bounds, regimes, cost; float64.

    L -> `smoothness`      L_W, v_min, v_max -> `lyapunov_smoothness`, `least`, `most`      W(S_0) - min W -> `gap`
    omega, p, alpha, gamma, sigma^2, b, k_max by their names in `systems/fedem.py`

Bounds are on the mean of E||h(S_k)||^2 over the rounds of a run, k = 0, ..., k_max - 1. "Derived" marks what the paper does not state.
VR-FedEM's are in `vr_fedem.py`. Corrected here:
- (9) lacks the factor v_min on its left and doubles the noise; it is false, see `uncompressed_bound`.
- The memories' recursion with partial participation (D.3) lacks a 1 in its last term; see `memory_step_bound`.
- Noise dominates where gamma_max (1 + omega_p) sigma^2 / (n epsilon) is at least 1; the paper prints n / epsilon; see `is_noisy`.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


class Constants(NamedTuple):
    """Assumptions A4, A5 and A8 in numbers."""

    smoothness: float  # L, quadratic mean of the Lipschitz constants of the clients' h_i (of the examples' in Theorem 2)
    lyapunov_smoothness: float  # L_W, Lipschitz constant of the gradient of W
    least: float  # v_min, least eigenvalue of B(s)
    most: float  # v_max, largest


class FedEMSetup(NamedTuple):
    """A run of FedEM."""

    constants: Constants
    num_clients: int  # n
    omega: float
    participation: float = 1.0  # p
    alpha: float | None = None  # None: 1 / (1 + omega)

    @property
    def memory_step(self) -> float:
        """alpha."""
        return memory_step(self.omega) if self.alpha is None else self.alpha

    @property
    def total_omega(self) -> float:
        """omega_p."""
        return total_omega(self.omega, self.participation)


class BoundTerms(NamedTuple):
    """The right side of a bound, divided by what multiplies E||h||^2 on its left: all terms are bounds on that."""

    initial: float  # of W(S_0) - min W
    noise: float  # of sigma^2
    memory: float  # of G_0, the mean squared distance of the memories to h_i(S_0)

    @property
    def total(self) -> float:
        return sum(self)


def memory_step(omega: float) -> float:
    """Compute alpha = 1 / (1 + omega), with partial participation too; omega that of the compressor alone."""
    return 1 / (1 + omega)


def total_omega(omega: float, participation: float = 1.0) -> float:
    """Compute omega_p = (1 - p) (1 + omega) / p + omega, the constant of a compressor that also drops the whole message (Sec. 2)."""
    return (1 + omega) / participation - 1


# Theorems 1 and 3: FedEM ----------------------------------------------------------------------------------------------------------------


def largest_step_size(setting: FedEMSetup) -> float:
    """Compute gamma_max of Theorem 3, and for p = 1 of Theorem 1 (7); without compression the first term, half of what (29) allows."""
    if setting.memory_step > memory_step(setting.omega) * (1 + 1e-12):
        raise ValueError("the bounds need alpha of at most 1 / (1 + omega)")
    constants = setting.constants
    descent = constants.least / (2 * constants.lyapunov_smoothness)
    if setting.total_omega == 0:
        return descent
    scale = setting.memory_step * setting.participation * math.sqrt(setting.num_clients)
    return min(
        descent, scale / (2 * math.sqrt(2) * constants.smoothness * math.sqrt(setting.total_omega))
    )


def step_size_for_descent(setting: FedEMSetup) -> float:
    """Compute the largest gamma, O(1 / omega), that meets both conditions of remark (30): ||h||^2 keeps v_min / 2 in W's descent.

    Not enough for the bounds: the recursion of the memories' error (`memory_step_bound`) still needs `largest_step_size`, which is
    O(omega^-1.5). With p < 1 derived: omega_p and alpha p take the places of omega and alpha.
    """
    constants, n, omega = setting.constants, setting.num_clients, setting.total_omega
    descent = constants.least / (2 * constants.lyapunov_smoothness)
    if omega == 0:
        return descent
    pace = setting.memory_step * setting.participation
    cube = (
        pace**2
        * n
        * constants.least
        / (16 * constants.lyapunov_smoothness * omega * constants.smoothness**2)
    )
    return min(descent, cube ** (1 / 3))


def bound(
    setting: FedEMSetup,
    *,
    gamma: float,
    k_max: int,
    gap: float,
    sigma2: float,
    memory_error: float = 0.0,
) -> BoundTerms:
    """Bound the mean E||h(S_k)||^2 by Theorem 3, and for p = 1 by Theorem 1 (8); for gamma up to `largest_step_size`.

    memory_error: G_0, 0 if memories start at h_i(S_0); its term is (28) and (D.4).
    """
    constants, omega = setting.constants, setting.total_omega
    left = constants.least - gamma * constants.lyapunov_smoothness
    per_client = gamma * constants.lyapunov_smoothness / setting.num_clients
    of_memory = (
        2
        * per_client
        * omega
        / (setting.memory_step * setting.participation)
        * memory_error
        / k_max
    )
    return BoundTerms(
        gap / (gamma * k_max) / left, per_client * (1 + 5 * omega) * sigma2 / left, of_memory / left
    )


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
    """Bound the mean E||h(S_k)||^2 with omega = 0 and p = 1 by (29), for gamma below 2 v_min / L_W and any memories.

    An equality where W is quadratic, B a multiple of the identity and W(S_{k_max}) = min W. printed: (9) as the paper has it.
    """
    per_step, noise = (
        gap / (gamma * k_max),
        gamma * constants.lyapunov_smoothness * sigma2 / num_clients,
    )
    if printed:
        return (per_step + noise) / (
            1 - gamma * constants.lyapunov_smoothness / (2 * constants.least)
        )
    # Deviation: (9) divides by a quantity without v_min, and fails for one step of size 1 / a of the noisy mean with ridge > 0.
    return (per_step + noise / 2) / (constants.least - gamma * constants.lyapunov_smoothness / 2)


def balanced_step_size(setting: FedEMSetup, *, k_max: int, gap: float, sigma2: float) -> float:
    """Compute the step size of the corollary of Theorem 1, with omega_p for omega of Theorem 3; gamma_max without noise."""
    largest = largest_step_size(setting)
    noise = k_max * setting.constants.lyapunov_smoothness * (1 + 5 * setting.total_omega) * sigma2
    return largest if noise == 0 else min(largest, math.sqrt(gap * setting.num_clients / noise))


def balanced_bound(setting: FedEMSetup, *, k_max: int, gap: float, sigma2: float) -> float:
    """Bound the mean E||h(S_k)||^2 at `balanced_step_size`, the corollary."""
    constants = setting.constants
    noise = (
        gap
        * constants.lyapunov_smoothness
        * (1 + 5 * setting.total_omega)
        * sigma2
        / (setting.num_clients * k_max)
    )
    return 4 / constants.least * max(math.sqrt(noise), gap / (largest_step_size(setting) * k_max))


def rounds_needed(
    setting: FedEMSetup, *, epsilon: float, gap: float, sigma2: float
) -> tuple[float, float]:
    """Rounds after which the corollary promises epsilon, K_opt with its constants: the larger of a term of noise and one of the step size.

    Derived; the paper has O((1 + omega) sigma^2 / (n epsilon^2)) and O(1 / (gamma_max epsilon)) for p = 1, else with omega_p.
    """
    constants = setting.constants
    noise = (
        gap
        * constants.lyapunov_smoothness
        * (1 + 5 * setting.total_omega)
        * sigma2
        / setting.num_clients
    )
    scale = 4 / (constants.least * epsilon)
    return scale**2 * noise, scale * gap / largest_step_size(setting)


def evaluations_needed(
    setting: FedEMSetup, *, batch_size: int, epsilon: float, gap: float, sigma2: float
) -> float:
    """Expected statistics of single examples for epsilon, K_CE = n b K_opt, with `rounds_needed`. Derived.

    sigma2: of mini-batches of batch_size = b. Clients who do not take part are counted, as in Algorithm 4, and memories' start is not.
    """
    return (
        setting.num_clients
        * batch_size
        * max(rounds_needed(setting, epsilon=epsilon, gap=gap, sigma2=sigma2))
    )


def is_noisy(setting: FedEMSetup, *, epsilon: float, sigma2: float) -> bool:
    """Tell the "high noise" regime, where the term of noise dominates K_opt, up to constants: omega_p takes omega's place."""
    # Deviation: printed with n / epsilon for n epsilon; this is the ratio of the two terms.
    return (
        largest_step_size(setting)
        * (1 + setting.total_omega)
        * sigma2
        / (setting.num_clients * epsilon)
        >= 1
    )


def clients_for_free_compression(constants: Constants, omega: float) -> float:
    """Compute n from which on compression leaves gamma_max of Theorem 1 as it is. Derived.

    With constants of 1 and omega = 2.5 that is 61.25, where the paper says 16, in orders of magnitude.
    """
    return (
        2
        * (constants.smoothness * constants.least / constants.lyapunov_smoothness * (1 + omega))
        ** 2
        * omega
    )


def increase_of_rounds(omega: float, num_clients: int, *, noisy: bool, free: bool) -> float:
    """Look up by what compression multiplies K_opt, in orders of magnitude (Sec. 2's table).

    free: whether `clients_for_free_compression` are reached. 1 stands for omega = 0.
    """
    return (
        (1 + omega)
        if noisy
        else 1.0
        if free
        else max(1.0, (1 + omega) * math.sqrt(omega / num_clients))
    )


# One step -------------------------------------------------------------------------------------------------------------------------------


def field_variance_bound(setting: FedEMSetup, *, delta2: float, sigma2: float) -> float:
    """Bound E||H - h||^2 at a given state (C.3.2, D.3); delta2: mean of E||Delta_i||^2. Equality if omega is exact for every vector."""
    return (setting.total_omega * delta2 + sigma2) / setting.num_clients


def field_variance(
    message_variance: npt.ArrayLike,
    message_square: npt.ArrayLike,
    sigma2: npt.ArrayLike,
    participation: float,
) -> float:
    """Compute E||H - h||^2 at a given state exactly. Derived.

    Per client, `f64[N]` each: E||Quant(Delta) - Delta||^2, E||Quant(Delta)||^2, and the true variance of its oracle.
    """
    per_client = (
        np.asarray(sigma2)
        + np.asarray(message_variance)
        + (1 - participation) / participation * np.asarray(message_square)
    )
    return float(np.sum(per_client) / per_client.size**2)


def memory_step_bound(
    setting: FedEMSetup,
    *,
    gamma: float,
    memory_error: float,
    mean_field: float,
    sigma2: float,
    printed: bool = False,
) -> float:
    """Bound E G_{k+1} from G_k and ||h(S_k)||^2 (C.3.4, D.3). printed: with the paper's last term."""
    pace, omega = setting.memory_step * setting.participation, setting.total_omega
    scale = 2 * (gamma * setting.constants.smoothness) ** 2 / pace
    kept = (1 - pace / 2 + scale * omega / setting.num_clients) * memory_error
    # Deviation: D.3 prints omega_p for 1 + omega_p, which is false without compression; (33) has it right.
    of_noise = scale * (omega if printed else 1 + omega) / setting.num_clients
    return kept + scale * mean_field + (2 * pace + of_noise) * sigma2


def frozen_memory_factor(omega: float, alpha: float) -> float:
    """Compute by what E||V_i - h_i||^2 shrinks in a round at a fixed S and with exact statistics, at most. Derived.

    With equality if omega is exact for every vector. It is 1 - alpha at alpha = 1 / (1 + omega), and 1 at twice that.
    """
    return (1 - alpha) ** 2 + alpha**2 * omega
