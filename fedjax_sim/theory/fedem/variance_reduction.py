"""The theory of VR-FedEM (arXiv 2111.02083, Theorem 2 and App. E): step size, bounds, regimes, cost, one step; float64.

Symbols as in `fedem.py`; k_in and k_out by their names in `systems/vr_fedem.py`, and m examples of each client. L is the quadratic mean of
the examples' Lipschitz constants (A8). No sigma^2: the oracles' noise vanishes with the server's steps. All is for p = 1. "Derived" marks
what the paper does not state.
"""

import math

from fedjax_sim.theory.fedem.bounds import Constants

# Theorem 2 ------------------------------------------------------------------------------------------------------------------------------


def step_size(constants: Constants, *, num_clients: int, omega: float) -> float:
    """Compute the step size (10), for alpha = 1 / (1 + omega) and mini-batches of `batch_size`; the number of examples is not in it."""
    whole = constants.least / constants.lyapunov_smoothness
    return whole / (1 + shrinkage(constants, num_clients=num_clients, omega=omega))


def shrinkage(constants: Constants, *, num_clients: int, omega: float) -> float:
    """Compute c: (10) is v_min / L_W over 1 + c. The regimes of Sec. 3 are c far below and far above 1."""
    spread = (
        constants.smoothness
        / math.sqrt(num_clients)
        * (1 + omega)
        * math.sqrt(omega + (1 + 10 * omega) / 8)
    )
    return 4 * math.sqrt(2) * constants.most / constants.lyapunov_smoothness * spread


def batch_size(inner_steps: int, omega: float) -> int:
    """Compute b = ceil(k_in / (1 + omega)^2)."""
    return math.ceil(inner_steps / (1 + omega) ** 2 * (1 - 1e-12))  # not one more by rounding


def inverse_step_size(
    constants: Constants,
    *,
    num_clients: int,
    omega: float,
    alpha: float,
    inner_steps: int,
    batch_size: int,
) -> float:
    """Compute Lambda_* of Prop. E.4, for any alpha up to 1 / (1 + omega) and any b; (10) is the inverse of its double."""
    spread = omega + inner_steps * alpha**2 / (8 * batch_size) * (1 + 10 * omega)
    ratio = (
        constants.most / constants.least * constants.smoothness / (math.sqrt(num_clients) * alpha)
    )
    return constants.lyapunov_smoothness / (2 * constants.least) + 2 * math.sqrt(
        2
    ) * ratio * math.sqrt(spread)


def field_bound(
    constants: Constants, *, gamma: float, inverse_step_size: float, num_steps: float, gap: float
) -> float:
    """Bound the mean E||H||^2 over the num_steps = k_in k_out steps of a run by Prop. E.4; with gamma of (10) that is (11).

    inverse_step_size: Lambda_*, whose product with gamma must be below 1.
    """
    return gap / (gamma * num_steps) / (constants.least * (1 - gamma * inverse_step_size))


def mean_field_bound(
    constants: Constants,
    *,
    num_clients: int,
    gamma: float,
    inner_steps: float,
    batch_size: float,
    field: float,
) -> float:
    """Bound the mean E||h||^2 by that of E||H||^2 (E.6); (12) if k_in / b is (1 + omega)^2."""
    return (
        2
        * (1 + gamma**2 * constants.smoothness**2 / num_clients * inner_steps / batch_size)
        * field
    )


def memory_bound(
    constants: Constants,
    *,
    omega: float,
    gamma: float,
    num_steps: int,
    gap: float,
    memory_error: float = 0.0,
) -> float:
    """Bound the mean E G over the steps k = 0, ..., k_in - 1 of all outer loops (Prop. E.7), with alpha, b and gamma of (10).

    memory_error: G_{1,0}.
    """
    of_gap = 16 * gamma * (1 + omega) ** 2 * constants.smoothness**2 / constants.least * gap
    return (2 * (1 + omega) * memory_error + of_gap) / num_steps


# Rounds and cost ------------------------------------------------------------------------------------------------------------------------


def rounds_needed(
    constants: Constants, *, num_clients: int, omega: float, epsilon: float, gap: float
) -> float:
    """Rounds, k_in k_out inner steps, after which (10) to (12) promise a mean E||h||^2 of epsilon: K_opt with its constants.

    Derived; the paper has O(1 / (gamma epsilon)). It is 4 to 5 times gap / (v_min gamma epsilon), as gamma L (1 + omega) / sqrt(n) is at
    most v_min / (2 v_max). k_in / b is taken for (1 + omega)^2, which rounding b up makes smaller.
    """
    gamma = step_size(constants, num_clients=num_clients, omega=omega)
    field = field_bound(
        constants, gamma=gamma, inverse_step_size=1 / (2 * gamma), num_steps=1, gap=gap
    )
    squares = mean_field_bound(
        constants,
        num_clients=num_clients,
        gamma=gamma,
        inner_steps=(1 + omega) ** 2,
        batch_size=1,
        field=field,
    )
    return squares / epsilon


def clients_for_free_compression(constants: Constants, omega: float) -> float:
    """Compute n from which on the step size (10) is at least half of v_min / L_W, c being at most 1. Derived.

    The step grows with n beyond it too, unlike that of Theorem 1; it is never the one without compression.
    """
    return (
        4
        * (constants.most * constants.smoothness / constants.lyapunov_smoothness * (1 + omega)) ** 2
        * (1 + 18 * omega)
    )


def increase_of_rounds(omega: float, num_clients: int, *, free: bool) -> float:
    """Look up by what compression multiplies K_opt, in orders of magnitude (Sec. 3's regimes): omega^1.5 / sqrt(n), or nothing.

    free: whether `clients_for_free_compression` are reached. Relative to rounds at the step v_min / L_W, which only many clients come near
    to without compression; 1 stands for omega = 0.
    """
    return 1.0 if free else max(1.0, (1 + omega) * math.sqrt(omega / num_clients))


def evaluations(
    *, num_clients: int, num_examples: int, batch_size: int, inner_steps: int, outer_steps: int
) -> int:
    """Count expected statistics of single examples, K_CE: n m for each full pass and 2 b n for each step. num_examples: m."""
    return num_clients * (num_examples + 2 * batch_size * inner_steps) * outer_steps


def best_inner_steps(num_examples: int, omega: float) -> float:
    """Compute k_in at which evaluations per step are fewest for b = k_in / (1 + omega)^2: 2 sqrt(2 m) / (1 + omega) per client.

    Where b would be below 1, m < 2 (1 + omega)^2, it is the k_in of b = 1. Derived: as long as b is 1, more inner steps cost less each.
    """
    return (1 + omega) * max(math.sqrt(num_examples / 2), 1 + omega)


def evaluations_per_step(num_examples: int, inner_steps: float, omega: float) -> float:
    """Count evaluations per client and step, m / k_in + 2 k_in / (1 + omega)^2, b not rounded."""
    return num_examples / inner_steps + 2 * inner_steps / (1 + omega) ** 2


def evaluations_needed(
    constants: Constants,
    *,
    num_clients: int,
    num_examples: int,
    omega: float,
    epsilon: float,
    gap: float,
) -> float:
    """Evaluations after which (10) to (12) promise epsilon at the best k_in, K_CE = n K_opt 2 sqrt(2 m) / (1 + omega), b not rounded.

    For m below 2 (1 + omega)^2 the last factor is m / (1 + omega)^2 + 2, of b = 1. Derived from (E.2); the paper has
    O(sqrt(m) n / (epsilon gamma (1 + omega))). One client without compression is SPIDER-EM, with O(sqrt(m) / epsilon).
    """
    rounds = rounds_needed(
        constants, num_clients=num_clients, omega=omega, epsilon=epsilon, gap=gap
    )
    return (
        num_clients
        * rounds
        * evaluations_per_step(num_examples, best_inner_steps(num_examples, omega), omega)
    )


# One step -------------------------------------------------------------------------------------------------------------------------------
# Within an outer loop that begins with exact oracles. `moved` is the sum of gamma^2 E||H_{t,l}||^2 over l = 1, ..., k, how far the server
# has gone in k steps, in squares; 0 for the first.


def oracle_error_bound(smoothness: float, *, batch_size: int, moved: float) -> float:
    """Bound E||S_{t,k+1,i} - s_i(T(S_{t,k}))||^2 of a client; with `moved` of step k alone, the variance given the past.

    smoothness: the client's own L_i, or L for the clients' mean.
    """
    return smoothness**2 / batch_size * moved


def delta_bound(
    constants: Constants, *, batch_size: int, moved: float, memory_error: float
) -> float:
    """Bound the clients' mean E||Delta_{t,k+1,i}||^2. memory_error: E G_{t,k}."""
    return (
        2 * oracle_error_bound(constants.smoothness, batch_size=batch_size, moved=moved)
        + 2 * memory_error
    )


def field_error_bound(
    constants: Constants,
    *,
    num_clients: int,
    omega: float,
    batch_size: int,
    moved: float,
    delta2: float,
) -> float:
    """Bound E||H_{t,k+1} - h(S_{t,k})||^2. delta2: mean of E||Delta_{t,k+1,i}||^2, which is G_{t,0} for k = 0."""
    return (
        omega * delta2
        + oracle_error_bound(constants.smoothness, batch_size=batch_size, moved=moved)
    ) / num_clients


def memory_step_bound(
    constants: Constants,
    *,
    alpha: float,
    gamma: float,
    batch_size: int,
    moved: float,
    field: float,
    memory_error: float,
) -> float:
    """Bound E G_{t,k+1}, for alpha up to 1 / (1 + omega). field: E||H_{t,k+1}||^2; memory_error: E G_{t,k}."""
    of_step = 2 / alpha * (gamma * constants.smoothness) ** 2 * field
    of_oracles = (
        2 * alpha * oracle_error_bound(constants.smoothness, batch_size=batch_size, moved=moved)
    )
    return (1 - alpha / 2) * memory_error + of_step + of_oracles
