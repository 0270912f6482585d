"""Bounds of hierarchical FL (arXiv 2302.04851) that only tests compare with runs.

Symbols and equation numbers are those of `experiments.hierarchical.formulas.bounds`.
"""

import numpy as np
import numpy.typing as npt

from experiments.hierarchical.formulas.bounds import (
    Constants,
    GlobalBound,
    bound_of_means,
)
from fedjax_sim.theory.hierarchical import Delays, Numbers, expected_rounds, iteration_law


def is_step_small(constants: Constants, *, lr: float) -> bool:
    """Tell whether alpha <= 1 / L, which all theorems require.

    Args:
        constants: Constants of the assumptions.
        lr: alpha.

    Returns:
        Whether it is.
    """
    return lr * constants.smoothness <= 1


def group_lr(most_iterations: npt.ArrayLike, *, gradient_square: float, num_groups: int) -> Numbers:
    """Compute the learning rate of each group with which Lemma 1 gives at most 1 (Remark 3).

    Args:
        most_iterations: `f64[M]`, t_i^max.
        gradient_square: G^2.
        num_groups: M.

    Returns:
        `f64[M]`, alpha_i.
    """
    # Deviation: Remark 3 takes t_i itself, which is not known before the round has been played. The
    # bound t_i^max on it serves as well.
    return 1 / np.sqrt(
        2 * (np.asarray(most_iterations, np.float64) ** 2 + num_groups) * gradient_square
    )


def descent_bound(
    loss: npt.ArrayLike,
    gradient_square: npt.ArrayLike,
    *,
    lr: float,
    constants: Constants,
    group_size: npt.ArrayLike,
) -> Numbers:
    """Bound the expected loss of a group after one local iteration, eq. (28).

    Args:
        loss: `f64[...]`, f_i before the iteration.
        gradient_square: `f64[...]`, ||grad f_i||^2 before the iteration: the true gradient at this
            very point, not its bound G^2.
        lr: alpha.
        constants: Constants of the assumptions.
        group_size: `i64[...]`, number of clients of the group.

    Returns:
        `f64[...]`, the bound.
    """
    noise = (
        lr**2
        * constants.smoothness
        * constants.gradient_variance
        / (2 * np.asarray(group_size, np.float64))
    )
    return np.asarray(loss) - lr / 2 * np.asarray(gradient_square) + noise


def expected_global_bound(
    sync_time: float,
    delays: Delays,
    *,
    system_time: float,
    lr: float,
    constants: Constants,
    group_size: npt.ArrayLike,
    initial_gap: float,
) -> GlobalBound:
    """Compute (20) before a run, from the law of its delays. Derived.

    Takes f(x^1) - inf f for the descent, E[U] for the number of rounds, and expectations for the
    iteration counts. As the sync time grows, descent and drift grow. Nothing falls, apart from the
    first round's share of the fourth term. So the bound is smallest at S = 0.

    Args:
        sync_time: S, in units of time.
        delays: Laws of the delays.
        system_time: T, in units of time.
        lr: alpha.
        constants: Constants of the assumptions.
        group_size: `i64[M]`, number of clients of each group.
        initial_gap: f(x^1) - inf f.

    Returns:
        The terms.
    """
    laws = [
        iteration_law(sync_time, shift=float(c), mean_exp=float(m))
        for c, m in zip(delays.shift, delays.mean_exp, strict=True)
    ]
    steps = [np.arange(1, len(law) + 1) for law in laws]
    square = np.array([law @ t**2 for law, t in zip(laws, steps, strict=True)])
    drift = np.array(
        [law @ ((t - 1) * (2 * t - 1) / 6) for law, t in zip(laws, steps, strict=True)]
    )
    rounds = expected_rounds(sync_time, delays, system_time=system_time)
    return bound_of_means(
        square * (1 - 1 / rounds),
        drift,
        rounds,
        lr,
        constants,
        group_size,
        initial_gap,
    )
