"""Bounds of delay-sensitive hierarchical federated learning (Ali, Arafa, arXiv 2302.04851), as inequalities to be tested; float64.

Dimension letters: `M` groups, `U` global rounds. Equation numbers are the paper's; "derived" marks what it does not state. Expectations
are over gradient noise, given the whole path of delays and so all iteration counts t_i^u. Constants: every client's loss is L-smooth, its
stochastic gradient unbiased with second moment at most G^2 and variance at most sigma^2. Neither convexity nor equal data is needed.

    alpha -> `lr`    t_i^u -> `iterations`    |N_i| -> `group_size`    N -> their sum    L, sigma, G -> `Constants`

Corrected or sharpened here:
- The fourth term of Theorem 2 lacks G^2; see `global_bound`.
- Its second and fourth terms come from a detour; see `global_bound_direct`.
- The bound on one group says nothing after two rounds; see `is_group_bound_vacuous`.
- As a function of the sync time Theorem 2 is least at 0 (`expected_global_bound`), so it does not explain local iterations.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.theory.hierarchical.timing import (
    Delays,
    Numbers,
    expected_rounds,
    iteration_law,
    max_iterations,
)


class Constants(NamedTuple):
    """What the assumptions (14)-(17) bound."""

    smoothness: float  # L
    gradient_square: float  # G^2
    gradient_variance: float  # sigma^2


class GlobalBound(NamedTuple):
    """The right side of (20), term by term; units of a squared gradient."""

    descent: float  # B_1
    others: float  # B_2
    noise: float  # B_3
    previous: float  # B_4
    drift: float  # B_5

    @property
    def total(self) -> float:
        return sum(self)


class GroupBound(NamedTuple):
    """The right side of (19), term by term."""

    descent: float
    noise: float
    restarts: float
    iterations: float

    @property
    def total(self) -> float:
        return sum(self)


def imbalance(group_size: npt.ArrayLike) -> float:
    """Compute kappa = M sum_i |N_i|^2 / N^2: 1 for equal groups, at most M."""
    size = np.asarray(group_size, np.float64)
    return float(len(size) * np.sum(size**2) / np.sum(size) ** 2)


def is_step_small(constants: Constants, *, lr: float) -> bool:
    """Whether alpha <= 1 / L, as all theorems ask."""
    return lr * constants.smoothness <= 1


def deviation_bound(
    iterations: npt.ArrayLike, *, lr: float, gradient_square: float, group_size: npt.ArrayLike
) -> Numbers:
    """Bound E||x^(u+1) - x_i^(u, t_i)||^2, Lemma 1, eq. (18): 2 alpha^2 (t_i^2 + kappa) G^2. iterations, result: `f64[...]`."""
    t = np.asarray(iterations, np.float64)
    return 2 * lr**2 * (t**2 + imbalance(group_size)) * gradient_square


def deviation_bound_sharp(
    iterations: npt.ArrayLike, *, lr: float, gradient_square: float, group_weight: npt.ArrayLike
) -> Numbers:
    """Bound the same by (alpha G (t_i + 1 - 2 w_i))^2, w_i the group's share of the clients. Derived.

    iterations, group_weight, result: `f64[..., M]`. Attained by a gradient v in group i and -v in all others; 0 for one group with t = 1.
    """
    t, w = np.asarray(iterations, np.float64), np.asarray(group_weight, np.float64)
    return lr**2 * gradient_square * (t + 1 - 2 * w) ** 2


def group_lr(most_iterations: npt.ArrayLike, *, gradient_square: float, num_groups: int) -> Numbers:
    """Compute the group's own learning rate for which Lemma 1 gives at most 1 (Remark 3). most_iterations: t_i^max, `f64[M]`."""
    # Deviation: Remark 3 takes t_i itself, which is not known before the round has been played; its bound serves as well.
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

    loss, gradient_square: f_i and ||grad f_i||^2 before it, `f64[...]`; the latter is the true gradient's at this very point.
    """
    noise = (
        lr**2
        * constants.smoothness
        * constants.gradient_variance
        / (2 * np.asarray(group_size, np.float64))
    )
    return np.asarray(loss) - lr / 2 * np.asarray(gradient_square) + noise


def group_bound(
    iterations: npt.ArrayLike,
    *,
    lr: float,
    constants: Constants,
    group_size: npt.ArrayLike,
    group: int,
    descent: float,
) -> GroupBound:
    """Compute the right side of Theorem 1, eq. (19): on the mean squared gradient of f_i over all local iterations of group i.

    iterations: `i64[U, M]`. descent: E f_i(x^1) - E f_i at the group's model at the end of the last round.
    """
    t = np.asarray(iterations, np.float64)[:, group]
    total, rounds = float(np.sum(t)), len(t)
    smooth, square, variance = constants
    return GroupBound(
        descent=2 * descent / (lr * total),
        noise=lr * smooth * variance / float(np.asarray(group_size)[group]),
        restarts=(1 / lr + 2 * (smooth + 1) * imbalance(group_size) * lr)
        / total
        * (rounds - 1)
        * square,
        iterations=2 * (smooth + 1) * lr / total * float(np.sum(t[:-1] ** 2)) * square,
    )


def is_group_bound_vacuous(iterations: npt.ArrayLike, *, group: int) -> bool:
    """Whether (19) exceeds G^2, and with it any squared gradient, for every alpha, unless f_i has increased. Derived.

    The two terms of G^2 sum to at least 2 sqrt(2) (1 - t^U / sum_u t^u) G^2: so it is for all runs of two rounds and more, unless the last
    one holds more than 64 % of all iterations.
    """
    t = np.asarray(iterations, np.float64)[:, group]
    return bool(2 * math.sqrt(2) * (1 - t[-1] / np.sum(t)) >= 1)


def global_bound(
    iterations: npt.ArrayLike,
    *,
    lr: float,
    constants: Constants,
    group_size: npt.ArrayLike,
    descent: float,
    as_printed: bool = False,
) -> GlobalBound:
    """Compute the right side of Theorem 2, eq. (20): on the mean over rounds of E||grad f(x^u)||^2.

    iterations: `i64[U, M]`, whose row before the first counts as 0. descent: E f(x^1) - E f(x^(U+1)). as_printed: without the correction.
    """
    t = np.asarray(iterations, np.float64)
    previous = np.vstack([np.zeros_like(t[:1]), t[:-1]])
    return _global_bound(
        np.mean(previous**2, axis=0),
        _drift(t),
        len(t),
        lr,
        constants,
        group_size,
        descent,
        as_printed,
    )


def _drift(iterations: Numbers) -> Numbers:
    """The mean over rounds of (t - 1) (2t - 1) / 6, the mean of l^2 over l < t: `f64[M]`."""
    return np.mean((iterations - 1) * (2 * iterations - 1) / 6, axis=0)


def _global_bound(
    previous_square: Numbers,
    drift: Numbers,
    rounds: float,
    lr: float,
    constants: Constants,
    group_size: npt.ArrayLike,
    descent: float,
    as_printed: bool,
) -> GlobalBound:
    smooth, square, variance = constants
    size = np.asarray(group_size, np.float64)
    kappa, share = imbalance(size), len(size) * size**2 / np.sum(size) ** 2
    scale = 4 * lr**2 * smooth**2
    # Deviation: (20), (39), (40) and (41) print the fourth term without G^2, which the use of Lemma 1 there brings in.
    return GlobalBound(
        descent=2 * descent / (lr * rounds),
        others=3 * scale * square * kappa**2,
        noise=lr * smooth * kappa * variance,
        previous=3 * scale * (1.0 if as_printed else square) * float(share @ previous_square),
        drift=scale * square * float(share @ drift),
    )


def global_bound_direct(
    iterations: npt.ArrayLike,
    *,
    lr: float,
    constants: Constants,
    group_size: npt.ArrayLike,
    descent: float,
) -> GlobalBound:
    """Compute the bound that the same proof gives without its detour through the previous round's group models. Derived.

    Its drift is a quarter of (20)'s, and the second and fourth terms are 0. At S = 0 only descent and noise are left.
    """
    whole = global_bound(
        iterations, lr=lr, constants=constants, group_size=group_size, descent=descent
    )
    return whole._replace(others=0.0, previous=0.0, drift=whole.drift / 4)


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
    """Compute (20) before a run, from the law of its delays: f(x^1) - inf f for the descent, E[U] rounds, expected iterations. Derived.

    Descent and drift grow with the sync time, and nothing falls but by the first round's share of the fourth term: the least is at S = 0.
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
    return _global_bound(
        square * (1 - 1 / rounds),
        drift,
        rounds,
        lr,
        constants,
        group_size,
        initial_gap,
        as_printed=False,
    )


def corollary_lr(rounds: int, *, smoothness: float) -> float:
    """Compute alpha = min(1 / sqrt(U), 1 / L) of Corollary 1."""
    return min(1 / math.sqrt(rounds), 1 / smoothness)


def corollary_bound(
    rounds: int,
    *,
    sync_time: float,
    delays: Delays,
    constants: Constants,
    group_size: npt.ArrayLike,
    descent: float,
) -> float:
    """Bound the mean squared gradient over U rounds at `corollary_lr`, from (41) with G^2 restored; for U >= L^2. O(1 / sqrt(U))."""
    smooth, square, variance = constants
    if rounds < smooth**2:
        raise ValueError(f"rounds is {rounds}, but must be at least L^2 = {smooth**2:g}")
    size = np.asarray(group_size, np.float64)
    most = np.array([max_iterations(sync_time, float(c)) for c in delays.shift])
    kappa, kappa_t = (
        imbalance(size),
        float(len(size) * np.sum((size * most) ** 2) / np.sum(size) ** 2),
    )
    slow = 2 * descent + smooth * kappa * variance
    return (
        slow / math.sqrt(rounds)
        + smooth**2 * square * (12 * kappa**2 + 12 * kappa_t + 4 / 3 * kappa_t) / rounds
    )
