"""VR-FedEM's bounds and sizes of its loops (arXiv 2111.02083, Theorem 2 and App. E), float64.

Symbols are those of `experiments.fedem.formulas.bounds`. In addition:

    k_in, k_out     `inner_steps`, `outer_steps`, as in `fedjax_sim.systems.vr_fedem`
    m               `num_examples` of each client
    L               `Constants.smoothness`, quadratic mean of all examples' Lipschitz constants (A8)
    H               the field that the server uses; the argument `field` is the mean E||H||^2
    omega           `omega`, variance constant of the compressor, at least 0
    n               `num_clients`, at least 1
    gamma           `gamma`, step size
    k_in k_out      `num_steps`, the number of steps
    W(S_0) - min W  `gap`

`constants` are those of the problem. What is named a bound returns the bound.

There is no sigma^2, because the noise of the oracles (the variance-reduced statistics) vanishes
with the server's steps. Everything is for full participation, p = 1. "Derived" marks what the paper
does not state.
"""

import math

from fedjax_sim.core.settings import Above0, AtLeast0, checked
from fedjax_sim.theory.fedem import Constants

# Theorem 2 ----------------------------------------------------------------------------------------


@checked
def batch_size(inner_steps: Above0, omega: AtLeast0) -> int:
    """Compute the mini-batch size of Theorem 2, b = ceil(k_in / (1 + omega)^2)."""
    # The factor keeps rounding errors from raising an exact quotient to the next integer.
    return math.ceil(inner_steps / (1 + omega) ** 2 * (1 - 1e-12))


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

    `inverse_step_size` is Lambda_*; that gamma Lambda_* is below 1 is not checked.
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
    """Bound the mean E||h||^2 given the mean E||H||^2 (E.6); (12) if k_in / b = (1 + omega)^2."""
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

    alpha, b and gamma are those of Theorem 2. `memory_error` is G_{1,0}.
    """
    of_gap = 16 * gamma * (1 + omega) ** 2 * constants.smoothness**2 / constants.least * gap
    return (2 * (1 + omega) * memory_error + of_gap) / num_steps


# Rounds and cost ----------------------------------------------------------------------------------


@checked
def best_inner_steps(num_examples: Above0, omega: AtLeast0) -> float:
    """Compute the k_in that minimises the evaluations per step for b = k_in / (1 + omega)^2.

    It is (1 + omega) sqrt(m / 2), at which each client makes 2 sqrt(2 m) / (1 + omega)
    evaluations per step, and not rounded. If b would be below 1 there, that is for m < 2 (1 +
    omega)^2, it is the k_in at which b = 1. Derived: as long as b = 1, more inner steps make
    each of them cheaper.
    """
    return (1 + omega) * max(math.sqrt(num_examples / 2), 1 + omega)
