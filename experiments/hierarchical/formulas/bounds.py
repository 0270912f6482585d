"""Bounds of delay-sensitive hierarchical federated learning, as inequalities to be tested.

The paper is Ali and Arafa, arXiv 2302.04851. Equation numbers are the paper's. "Derived" marks what
the paper does not state; "Deviation:" marks where this module corrects it. Results are float64.

Dimension letters: `M` groups, `U` global rounds.

Expectations are over gradient noise, given the whole path of delays and with it all iteration
counts t_i^u. Every client's loss is L-smooth; its stochastic gradient is unbiased, with second
moment at most G^2 and variance at most sigma^2. Neither convexity nor equally distributed data is
needed. Symbols and names:

    alpha -> `lr`            t_i^u -> `iterations`        L, sigma^2, G^2 -> `Constants`
    |N_i| -> `group_size`    N -> the sum of `group_size`

In arguments, `iterations` is `i64[U, M]`, `group_size` is `i64[M]`, the number of clients of each
group, `group` is i, the index of a group, `gradient_square` is G^2, and `descent` is
E f(x^1) - E f(x^(U+1)).

Corrected or sharpened here:

- The fourth term of Theorem 2 lacks G^2; see `global_bound`.
- The second and fourth terms of Theorem 2 come from a detour of the proof; see
  `global_bound_direct`.
- The bound on one group says nothing from two rounds on; see `is_group_bound_vacuous`.
- As a function of the sync time, the bound of Theorem 2 is smallest at 0, so it does not explain
  why local iterations help.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import Above0, AtLeast0, Whole, checked
from fedjax_sim.theory import hierarchical
from fedjax_sim.theory.hierarchical import Delays, Numbers


@checked
class Constants(NamedTuple):
    """The constants L, G^2 and sigma^2 of assumptions (14)-(17)."""

    smoothness: Above0
    gradient_square: float
    gradient_variance: AtLeast0


class GlobalBound(NamedTuple):
    """The right side of (20), term by term: B_1 to B_5, in units of a squared gradient.

    They come from the decrease of the loss, the moves of all groups in the previous round,
    gradient noise, each group's iterations in the previous round, and those within the round.
    """

    descent: float
    others: float
    noise: float
    previous: float
    drift: float

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return sum(self)


class GroupBound(NamedTuple):
    """The right side of (19), term by term, in units of a squared gradient.

    They come from the decrease of the group's loss, gradient noise, restarting at the global
    model, and squared iteration counts.
    """

    descent: float
    noise: float
    restarts: float
    iterations: float

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return sum(self)


@checked
def imbalance(group_size: npt.ArrayLike) -> float:
    """Compute kappa = M sum_i |N_i|^2 / N^2, between 1, for equal groups, and M."""
    size = np.asarray(group_size, np.float64)
    return float(len(size) * np.sum(size**2) / np.sum(size) ** 2)


@checked
def deviation_bound(
    iterations: npt.ArrayLike, *, lr: AtLeast0, gradient_square: float, group_size: npt.ArrayLike
) -> Numbers:
    """Bound E||x^(u+1) - x_i^(u, t_i)||^2 by 2 alpha^2 (t_i^2 + kappa) G^2, Lemma 1, eq. (18)."""
    t = np.asarray(iterations, np.float64)
    return 2 * lr**2 * (t**2 + imbalance(group_size)) * gradient_square


@checked
def deviation_bound_sharp(
    iterations: npt.ArrayLike, *, lr: AtLeast0, gradient_square: float, group_weight: npt.ArrayLike
) -> Numbers:
    """Bound the same as `deviation_bound` by (alpha G (t_i + 1 - 2 w_i))^2. Derived.

    w_i is the group's share of all clients, and t_i and w_i are `f64[..., M]`. It is attained
    if the gradient is v in group i and -v in all other groups.
    """
    t, w = np.asarray(iterations, np.float64), np.asarray(group_weight, np.float64)
    return lr**2 * gradient_square * (t + 1 - 2 * w) ** 2


@checked
def group_bound(
    iterations: npt.ArrayLike,
    *,
    lr: AtLeast0,
    constants: Constants,
    group_size: npt.ArrayLike,
    group: Whole,
    descent: float,
) -> GroupBound:
    """Bound the mean squared gradient of f_i over all local iterations of group i, Theorem 1.

    `descent` is E f_i(x^1) minus E f_i at the group's model at the end of the last round.
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


@checked
def is_group_bound_vacuous(iterations: npt.ArrayLike, *, group: Whole) -> bool:
    """Tell whether (19) exceeds G^2 for every alpha, provided f_i has not increased. Derived.

    The two terms in G^2 sum to at least 2 sqrt(2) (1 - t^U / sum_u t^u) G^2. So (19) is vacuous
    for every run of two rounds or more, unless f_i has increased or the last round holds more
    than 64 % of all iterations.
    """
    t = np.asarray(iterations, np.float64)[:, group]
    return bool(2 * math.sqrt(2) * (1 - t[-1] / np.sum(t)) >= 1)


@checked
def global_bound(
    iterations: npt.ArrayLike,
    *,
    lr: AtLeast0,
    constants: Constants,
    group_size: npt.ArrayLike,
    descent: float,
) -> GlobalBound:
    """Bound the mean over rounds of E||grad f(x^u)||^2, Theorem 2, eq. (20).

    The counts before the first round are taken as 0.
    """
    t = np.asarray(iterations, np.float64)
    previous_square = np.mean(np.vstack([np.zeros_like(t[:1]), t[:-1]]) ** 2, axis=0)
    # The mean of l^2 over l < t, over rounds.
    drift = np.mean((t - 1) * (2 * t - 1) / 6, axis=0)
    smooth, square, variance = constants
    size = np.asarray(group_size, np.float64)
    kappa, share = imbalance(size), len(size) * size**2 / np.sum(size) ** 2
    scale = 4 * lr**2 * smooth**2
    # Deviation: (20), (39), (40) and (41) print the fourth term without G^2, a factor that comes
    # with the use of Lemma 1 there.
    return GlobalBound(
        descent=2 * descent / (lr * len(t)),
        others=3 * scale * square * kappa**2,
        noise=lr * smooth * kappa * variance,
        previous=3 * scale * square * float(share @ previous_square),
        drift=scale * square * float(share @ drift),
    )


@checked
def global_bound_direct(
    iterations: npt.ArrayLike,
    *,
    lr: AtLeast0,
    constants: Constants,
    group_size: npt.ArrayLike,
    descent: float,
) -> GlobalBound:
    """Bound the same as `global_bound`, without a detour of the proof. Derived.

    The paper's proof goes through the group models of the previous round. Without this detour
    the drift term is a quarter of that in (20), and the second and fourth terms are 0.
    """
    whole = global_bound(
        iterations, lr=lr, constants=constants, group_size=group_size, descent=descent
    )
    return whole._replace(others=0.0, previous=0.0, drift=whole.drift / 4)


@checked
def corollary_lr(rounds: Whole, *, smoothness: Above0) -> float:
    """Compute alpha = min(1 / sqrt(U), 1 / L) of Corollary 1."""
    return min(1 / math.sqrt(rounds), 1 / smoothness)


@checked
def corollary_bound(
    rounds: Whole,
    *,
    sync_time: AtLeast0,
    delays: Delays,
    constants: Constants,
    group_size: npt.ArrayLike,
    descent: float,
) -> float:
    """Bound the mean squared gradient over U rounds at `corollary_lr`, Corollary 1.

    From (41) with the factor G^2 restored. U below L^2 is refused with a ValueError.
    """
    smooth, square, variance = constants
    if rounds < smooth**2:
        raise ValueError(f"rounds is {rounds}, but must be at least L^2 = {smooth**2:g}")
    size = np.asarray(group_size, np.float64)
    most = np.array([hierarchical.max_iterations(sync_time, float(c)) for c in delays.shift])
    kappa, kappa_t = (
        imbalance(size),
        float(len(size) * np.sum((size * most) ** 2) / np.sum(size) ** 2),
    )
    slow = 2 * descent + smooth * kappa * variance
    return (
        slow / math.sqrt(rounds)
        + smooth**2 * square * (12 * kappa**2 + 12 * kappa_t + 4 / 3 * kappa_t) / rounds
    )
