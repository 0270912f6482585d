"""VR-FedEM's cost and regimes, and steps of its proofs (arXiv 2111.02083), which only tests need.

Symbols and equation numbers are those of `experiments.fedem.formulas.variance_reduction`. Bounds of
one step are for one outer loop t, which begins with exact oracles. `moved` is the sum of
gamma^2 E||H_{t,l}||^2 over l = 1, ..., k: the sum of the squared lengths of the server's first k
steps. It is 0 before the first step.
"""

import math

from experiments.fedem.formulas.variance_reduction import (
    best_inner_steps,
    field_bound,
    mean_field_bound,
)
from fedjax_sim.theory.fedem import Constants, vr_step_size


def shrinkage(constants: Constants, *, num_clients: float, omega: float) -> float:
    """Compute c, where the step size (10) is v_min / L_W divided by 1 + c.

    The regimes of Sec. 3 are c far below 1 and c far above 1.

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        c, positive.
    """
    whole = constants.least / constants.lyapunov_smoothness
    return whole / vr_step_size(constants, num_clients=num_clients, omega=omega) - 1


def rounds_needed(
    constants: Constants, *, num_clients: float, omega: float, epsilon: float, gap: float
) -> float:
    """Compute K_opt with its constants: after how many rounds (10) to (12) guarantee epsilon.

    Derived; the paper gives the order O(1 / (gamma epsilon)). The number is 4 to 5 times
    gap / (v_min gamma epsilon), because gamma L (1 + omega) / sqrt(n) is at most v_min / (2 v_max).
    k_in / b is taken as (1 + omega)^2; rounding b up only makes it smaller.

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        omega: Variance constant of the compressor, at least 0.
        epsilon: Required mean E||h||^2, positive.
        gap: W(S_0) - min W.

    Returns:
        Rounds, that is, inner steps k_in k_out.
    """
    gamma = vr_step_size(constants, num_clients=num_clients, omega=omega)
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
    """Compute the number of clients from which the step size (10) is at least half of v_min / L_W.

    Derived: there c of `shrinkage` is at most 1. Unlike the step size of Theorem 1, this one keeps
    growing with n beyond that number, and always stays below the step size without compression.

    Args:
        constants: Constants of the problem.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        The smallest such n, as a real number.
    """
    return (
        4
        * (constants.most * constants.smoothness / constants.lyapunov_smoothness * (1 + omega)) ** 2
        * (1 + 18 * omega)
    )


def increase_of_rounds(omega: float, num_clients: float, *, free: bool) -> float:
    """Look up by which factor compression multiplies K_opt, as an order of magnitude (Sec. 3).

    The factor is relative to the rounds at the step size v_min / L_W, which even an uncompressed
    run comes close to only with many clients.

    Args:
        omega: Variance constant of the compressor, at least 0.
        num_clients: n, at least 1.
        free: Whether there are at least `clients_for_free_compression` clients.

    Returns:
        1 if free. Otherwise (1 + omega) sqrt(omega / n), where the paper has omega^1.5 / sqrt(n),
        but at least 1.
    """
    return 1.0 if free else max(1.0, (1 + omega) * math.sqrt(omega / num_clients))


def evaluations(
    *,
    num_clients: float,
    num_examples: float,
    batch_size: float,
    inner_steps: float,
    outer_steps: float,
) -> float:
    """int the expected statistics of single examples in a run, K_CE.

    A full pass takes n m of them and an inner step 2 b n.

    Args:
        num_clients: n.
        num_examples: m, examples of each client.
        batch_size: b.
        inner_steps: k_in.
        outer_steps: k_out.

    Returns:
        K_CE, summed over all clients.
    """
    return num_clients * (num_examples + 2 * batch_size * inner_steps) * outer_steps


def evaluations_per_step(num_examples: float, inner_steps: float, omega: float) -> float:
    """int the evaluations per client and step, m / k_in + 2 k_in / (1 + omega)^2.

    The mini-batch size b = k_in / (1 + omega)^2 is not rounded.

    Args:
        num_examples: m, examples of each client.
        inner_steps: k_in, positive.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        Expected statistics of single examples.
    """
    return num_examples / inner_steps + 2 * inner_steps / (1 + omega) ** 2


def evaluations_needed(
    constants: Constants,
    *,
    num_clients: float,
    num_examples: float,
    omega: float,
    epsilon: float,
    gap: float,
) -> float:
    """int the evaluations after which (10) to (12) guarantee epsilon, at the best k_in.

    K_CE = n K_opt 2 sqrt(2 m) / (1 + omega), with b not rounded. For m below 2 (1 + omega)^2 the
    last factor is m / (1 + omega)^2 + 2, from b = 1. Derived from (E.2); the paper gives the order
    O(sqrt(m) n / (epsilon gamma (1 + omega))). One client without compression is SPIDER-EM, with
    O(sqrt(m) / epsilon).

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        num_examples: m, examples of each client.
        omega: Variance constant of the compressor, at least 0.
        epsilon: Required mean E||h||^2, positive.
        gap: W(S_0) - min W.

    Returns:
        K_CE, expected statistics of single examples, summed over all clients.
    """
    rounds = rounds_needed(
        constants, num_clients=num_clients, omega=omega, epsilon=epsilon, gap=gap
    )
    return (
        num_clients
        * rounds
        * evaluations_per_step(num_examples, best_inner_steps(num_examples, omega), omega)
    )


def oracle_error_bound(smoothness: float, *, batch_size: float, moved: float) -> float:
    """Bound E||S_{t,k+1,i} - s_i(T(S_{t,k}))||^2, the squared error of a client's oracle.

    With `moved` of step k alone, this bounds the oracle's variance given the past.

    Args:
        smoothness: L_i of the client, or L to bound the mean over clients.
        batch_size: b.
        moved: Sum of the squared lengths of the server's steps in this outer loop.

    Returns:
        The bound.
    """
    return smoothness**2 / batch_size * moved


def delta_bound(
    constants: Constants, *, batch_size: float, moved: float, memory_error: float
) -> float:
    """Bound the mean over clients of E||Delta_{t,k+1,i}||^2, of what they compress.

    Args:
        constants: Constants of the problem.
        batch_size: b.
        moved: Sum of the squared lengths of the server's steps in this outer loop.
        memory_error: E G_{t,k}.

    Returns:
        The bound.
    """
    return (
        2 * oracle_error_bound(constants.smoothness, batch_size=batch_size, moved=moved)
        + 2 * memory_error
    )


def field_error_bound(
    constants: Constants,
    *,
    num_clients: float,
    omega: float,
    batch_size: float,
    moved: float,
    delta2: float,
) -> float:
    """Bound E||H_{t,k+1} - h(S_{t,k})||^2.

    Args:
        constants: Constants of the problem.
        num_clients: n.
        omega: Variance constant of the compressor, at least 0.
        batch_size: b.
        moved: Sum of the squared lengths of the server's steps in this outer loop.
        delta2: Mean over clients of E||Delta_{t,k+1,i}||^2; for k = 0 it is G_{t,0}.

    Returns:
        The bound.
    """
    return (
        omega * delta2
        + oracle_error_bound(constants.smoothness, batch_size=batch_size, moved=moved)
    ) / num_clients


def memory_step_bound(
    constants: Constants,
    *,
    alpha: float,
    gamma: float,
    batch_size: float,
    moved: float,
    field: float,
    memory_error: float,
) -> float:
    """Bound E G_{t,k+1} given E G_{t,k}.

    Args:
        constants: Constants of the problem.
        alpha: Step size of the memories, at most 1 / (1 + omega); the limit is not checked.
        gamma: Step size.
        batch_size: b.
        moved: Sum of the squared lengths of the server's steps in this outer loop.
        field: E||H_{t,k+1}||^2.
        memory_error: E G_{t,k}.

    Returns:
        The bound.
    """
    of_step = 2 / alpha * (gamma * constants.smoothness) ** 2 * field
    of_oracles = (
        2 * alpha * oracle_error_bound(constants.smoothness, batch_size=batch_size, moved=moved)
    )
    return (1 - alpha / 2) * memory_error + of_step + of_oracles
