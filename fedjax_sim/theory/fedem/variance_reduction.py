"""VR-FedEM's step size, bounds, regimes and cost (arXiv 2111.02083, Theorem 2 and App. E), float64.

Symbols are those of `fedjax_sim.theory.fedem.bounds`. In addition:

    k_in, k_out     `inner_steps`, `outer_steps`, as in `fedjax_sim.systems.vr_fedem`
    m               `num_examples` of each client
    L               `Constants.smoothness`, quadratic mean of all examples' Lipschitz constants (A8)
    H               the field that the server uses; the argument `field` is the mean E||H||^2

There is no sigma^2, because the noise of the oracles (the variance-reduced statistics) vanishes
with the server's steps. Everything is for full participation, p = 1. "Derived" marks what the paper
does not state.
"""

import math

from fedjax_sim.checking import Above0, AtLeast0, checked
from fedjax_sim.theory.fedem.bounds import Constants

# Theorem 2 ----------------------------------------------------------------------------------------


@checked
def step_size(constants: Constants, *, num_clients: Above0, omega: AtLeast0) -> float:
    """Compute the step size (10), which does not depend on the number of examples.

    It is for alpha = 1 / (1 + omega) and mini-batches of `batch_size`.

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        gamma, positive and at most v_min / L_W.
    """
    whole = constants.least / constants.lyapunov_smoothness
    return whole / (1 + shrinkage(constants, num_clients=num_clients, omega=omega))


@checked
def shrinkage(constants: Constants, *, num_clients: Above0, omega: AtLeast0) -> float:
    """Compute c, where the step size (10) is v_min / L_W divided by 1 + c.

    The regimes of Sec. 3 are c far below 1 and c far above 1.

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        c, positive.
    """
    spread = (
        constants.smoothness
        / math.sqrt(num_clients)
        * (1 + omega)
        * math.sqrt(omega + (1 + 10 * omega) / 8)
    )
    return 4 * math.sqrt(2) * constants.most / constants.lyapunov_smoothness * spread


@checked
def batch_size(inner_steps: Above0, omega: AtLeast0) -> int:
    """Compute the mini-batch size of Theorem 2, b = ceil(k_in / (1 + omega)^2).

    Args:
        inner_steps: k_in, at least 1.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        b, at least 1.
    """
    # The factor keeps rounding errors from raising an exact quotient to the next integer.
    return math.ceil(inner_steps / (1 + omega) ** 2 * (1 - 1e-12))


@checked
def inverse_step_size(
    constants: Constants,
    *,
    num_clients: Above0,
    omega: AtLeast0,
    alpha: float,
    inner_steps: Above0,
    batch_size: Above0,
) -> float:
    """Compute Lambda_* of Prop. E.4, for any alpha up to 1 / (1 + omega) and any b.

    The step size (10) is 1 / (2 Lambda_*).

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        omega: Variance constant of the compressor, at least 0.
        alpha: Step size of the memories, positive; the limit is not checked.
        inner_steps: k_in, at least 1.
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


@checked
def field_bound(
    constants: Constants,
    *,
    gamma: AtLeast0,
    inverse_step_size: float,
    num_steps: float,
    gap: AtLeast0,
) -> float:
    """Bound the mean E||H||^2 over all steps of a run by Prop. E.4; with gamma of (10) it is (11).

    Args:
        constants: Constants of the problem.
        gamma: Step size.
        inverse_step_size: Lambda_*; gamma Lambda_* must be below 1, which is not checked.
        num_steps: k_in k_out, the number of steps.
        gap: W(S_0) - min W.

    Returns:
        The bound.
    """
    return gap / (gamma * num_steps) / (constants.least * (1 - gamma * inverse_step_size))


@checked
def mean_field_bound(
    constants: Constants,
    *,
    num_clients: Above0,
    gamma: AtLeast0,
    inner_steps: float,
    batch_size: float,
    field: AtLeast0,
) -> float:
    """Bound the mean E||h||^2 given the mean E||H||^2 (E.6).

    With k_in / b = (1 + omega)^2 it is (12).

    Args:
        constants: Constants of the problem.
        num_clients: n, at least 1.
        gamma: Step size.
        inner_steps: k_in.
        batch_size: b.
        field: Mean E||H||^2, or a bound on it.

    Returns:
        The bound.
    """
    return (
        2
        * (1 + gamma**2 * constants.smoothness**2 / num_clients * inner_steps / batch_size)
        * field
    )


@checked
def memory_bound(
    constants: Constants,
    *,
    omega: AtLeast0,
    gamma: AtLeast0,
    num_steps: AtLeast0,
    gap: AtLeast0,
    memory_error: AtLeast0 = 0.0,
) -> float:
    """Bound the mean E G over the steps k = 0, ..., k_in - 1 of all outer loops (Prop. E.7).

    alpha, b and gamma are those of Theorem 2.

    Args:
        constants: Constants of the problem.
        omega: Variance constant of the compressor, at least 0.
        gamma: Step size (10).
        num_steps: k_in k_out, the number of steps.
        gap: W(S_0) - min W.
        memory_error: G_{1,0}; 0 if the memories start at h_i(S_0).

    Returns:
        The bound.
    """
    of_gap = 16 * gamma * (1 + omega) ** 2 * constants.smoothness**2 / constants.least * gap
    return (2 * (1 + omega) * memory_error + of_gap) / num_steps


# Rounds and cost ----------------------------------------------------------------------------------


@checked
def rounds_needed(
    constants: Constants, *, num_clients: Above0, omega: AtLeast0, epsilon: Above0, gap: AtLeast0
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


@checked
def clients_for_free_compression(constants: Constants, omega: AtLeast0) -> float:
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


@checked
def increase_of_rounds(omega: AtLeast0, num_clients: Above0, *, free: bool) -> float:
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


@checked
def evaluations(
    *,
    num_clients: Above0,
    num_examples: Above0,
    batch_size: Above0,
    inner_steps: Above0,
    outer_steps: AtLeast0,
) -> float:
    """Count the expected statistics of single examples in a run, K_CE.

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


@checked
def best_inner_steps(num_examples: Above0, omega: AtLeast0) -> float:
    """Compute the k_in that minimises the evaluations per step for b = k_in / (1 + omega)^2.

    It is (1 + omega) sqrt(m / 2), at which each client makes 2 sqrt(2 m) / (1 + omega) evaluations
    per step. If b would be below 1 there, that is for m < 2 (1 + omega)^2, it is the k_in at which
    b = 1. Derived: as long as b = 1, more inner steps make each of them cheaper.

    Args:
        num_examples: m, examples of each client.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        k_in, not rounded.
    """
    return (1 + omega) * max(math.sqrt(num_examples / 2), 1 + omega)


@checked
def evaluations_per_step(num_examples: Above0, inner_steps: float, omega: AtLeast0) -> float:
    """Count the evaluations per client and step, m / k_in + 2 k_in / (1 + omega)^2.

    The mini-batch size b = k_in / (1 + omega)^2 is not rounded.

    Args:
        num_examples: m, examples of each client.
        inner_steps: k_in, positive.
        omega: Variance constant of the compressor, at least 0.

    Returns:
        Expected statistics of single examples.
    """
    return num_examples / inner_steps + 2 * inner_steps / (1 + omega) ** 2


@checked
def evaluations_needed(
    constants: Constants,
    *,
    num_clients: Above0,
    num_examples: Above0,
    omega: AtLeast0,
    epsilon: Above0,
    gap: AtLeast0,
) -> float:
    """Count the evaluations after which (10) to (12) guarantee epsilon, at the best k_in.

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


# One step -----------------------------------------------------------------------------------------
# These bounds are for one outer loop t, which begins with exact oracles. `moved` is the sum of
# gamma^2 E||H_{t,l}||^2 over l = 1, ..., k: the sum of the squared lengths of the server's first k
# steps. It is 0 before the first step.


@checked
def oracle_error_bound(smoothness: Above0, *, batch_size: Above0, moved: AtLeast0) -> float:
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


@checked
def delta_bound(
    constants: Constants, *, batch_size: Above0, moved: AtLeast0, memory_error: AtLeast0
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


@checked
def field_error_bound(
    constants: Constants,
    *,
    num_clients: Above0,
    omega: AtLeast0,
    batch_size: Above0,
    moved: AtLeast0,
    delta2: AtLeast0,
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


@checked
def memory_step_bound(
    constants: Constants,
    *,
    alpha: float,
    gamma: AtLeast0,
    batch_size: Above0,
    moved: AtLeast0,
    field: AtLeast0,
    memory_error: AtLeast0,
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
