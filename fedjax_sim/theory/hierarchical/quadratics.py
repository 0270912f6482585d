"""Hierarchical federated learning (Ali, Arafa, arXiv 2302.04851) on quadratics, in closed form: fixed points, rates, the best sync time.

Dimension letters: `M` groups, `P` coordinates. Group i moves from x by t_i gradient steps of size alpha on h / 2 (x - y_i)^2, so by
(1 - q^t_i) (y_i - x) with q = 1 - alpha h; the global server takes the sum of these times a factor. Nothing here is in the paper, whose
bound (`theory.hierarchical`) says nothing of when local iterations pay. Float64.

    alpha -> `lr`    w_i -> `group_weight`    "divide_by_steps", the division by t_i of eq. (12), or "average" -> `rule`
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from fedjax_sim.theory.hierarchical.timing import (
    Delays,
    Numbers,
    RoundTime,
    iteration_law,
    round_time,
)

MOST_ROUNDS = 1e7


class Quadratics(NamedTuple):
    """Sum over coordinates of h_j / 2 x_j^2, the same for all clients, and the run on it."""

    curvature: Numbers  # f64[P]  h
    noise_variance: float  # of a client's gradient, each coordinate
    start_square: Numbers  # f64[P]  squared distance of the initial model to the optimum
    lr: float  # alpha
    group_size: npt.NDArray[np.int64]  # i64[M]  clients of each group
    rule: str = "divide_by_steps"  # or "average"


class Round(NamedTuple):
    """What a round does to the mean square of each coordinate: new = contraction * old + noise."""

    contraction: Numbers  # f64[P]
    noise: Numbers  # f64[P]

    def after(self, start_square: npt.ArrayLike, rounds: npt.ArrayLike) -> Numbers:
        """Mean squares after some rounds, which need not be whole: `f64[..., P]`. rounds: `f64[...]`."""
        u = np.asarray(rounds, np.float64)[..., None]
        power = self.contraction**u
        return power * np.asarray(start_square) + self.noise * np.where(
            self.contraction == 1, u, (1 - power) / _apart(1 - self.contraction)
        )

    @property
    def floor(self) -> Numbers:
        """Mean squares in the long run: `f64[P]`, infinite where they do not settle."""
        return np.where(self.contraction < 1, self.noise / _apart(1 - self.contraction), np.inf)


def group_moments(
    iterations: npt.ArrayLike, *, lr: float, curvature: npt.ArrayLike
) -> tuple[Numbers, Numbers]:
    """Compute 1 - q^t, and the variance of a group's noise in units of alpha^2 times that of one step. Arguments broadcast."""
    q = 1 - lr * np.asarray(curvature, np.float64)
    t = np.asarray(iterations, np.float64)
    return 1 - q**t, np.where(q**2 == 1, t, (1 - q ** (2 * t)) / _apart(1 - q**2))


def _apart(x: Numbers) -> Numbers:
    """x, with 1 in place of 0, for a quotient that is not taken."""
    return np.where(x == 0, 1.0, x)


def contraction_and_floor(iterations: int, *, lr: float, curvature: float) -> tuple[float, float]:
    """Compute rho and v of rounds with equally many iterations in equal groups, "divide_by_steps".

    rho: factor of the mean. v: stationary variance, in units of alpha^2 times a client's noise variance over all clients.
    """
    moved, noise = group_moments(iterations, lr=lr, curvature=curvature)
    rho = 1 - float(moved) / iterations
    return rho, float(noise) / iterations**2 / (1 - rho**2)


def fixed_point(
    optima: npt.ArrayLike,
    *,
    iterations: npt.ArrayLike,
    lr: float,
    curvature: npt.ArrayLike = 1.0,
    group_weight: npt.ArrayLike,
    rule: str,
) -> float:
    """Compute the model at which noise-free groups with fixed iterations balance: a mean of their optima.

    optima, curvature, group_weight: `f64[M]`. iterations: `i64[M]`. rule: "divide_by_steps" (whose fixed point "fednova" has too) or
    "average". With equal iterations and curvatures both are the optimum of the weighted sum; as alpha goes to 0 "divide_by_steps" always
    is, and "average" weights group i by w_i t_i.
    """
    moved, _ = group_moments(iterations, lr=lr, curvature=curvature)
    pull = np.asarray(group_weight) * moved / _divisor(rule, np.asarray(iterations, np.float64))
    return float(pull @ np.asarray(optima, np.float64) / np.sum(pull))


def _divisor(rule: str, iterations: Numbers) -> Numbers:
    if rule not in ("divide_by_steps", "average"):
        raise ValueError(f"rule is {rule!r}, but must be divide_by_steps or average")
    return iterations if rule == "divide_by_steps" else np.ones_like(iterations)


def one_round(problem: Quadratics, *, sync_time: float, delays: Delays) -> Round:
    """Average a round over the law of the groups' iterations, which are independent of each other."""
    weight = problem.group_size / np.sum(problem.group_size)
    pull = np.zeros_like(problem.curvature)
    variance, noise = pull.copy(), pull.copy()
    for w, size, c, m in zip(
        weight, problem.group_size, delays.shift, delays.mean_exp, strict=True
    ):
        law = iteration_law(sync_time, shift=float(c), mean_exp=float(m))
        t = np.arange(1, len(law) + 1)
        moved, spread = group_moments(t[:, None], lr=problem.lr, curvature=problem.curvature)
        factor = (w / _divisor(problem.rule, t.astype(np.float64)))[:, None]
        own = law @ (factor * moved)
        pull += own
        variance += law @ (factor * moved) ** 2 - own**2
        noise += law @ (factor**2 * spread) * problem.lr**2 * problem.noise_variance / size
    return Round((1 - pull) ** 2 + variance, noise)


def loss_at(
    time: npt.ArrayLike, problem: Quadratics, *, sync_time: float, delays: Delays
) -> Numbers:
    """Approximate the mean loss of the last global model finished by a time. time, result: `f64[...]`.

    Exact but that the number of rounds, and its dependence on their iterations, is replaced by its expectation.
    """
    each = round_time(sync_time, delays)
    rounds = np.maximum((np.asarray(time, np.float64) + _ahead(each)) / each.mean - 1, 0)
    return one_round(problem, sync_time=sync_time, delays=delays).after(
        problem.start_square, rounds
    ) @ (problem.curvature / 2)


def time_to(target: float, problem: Quadratics, *, sync_time: float, delays: Delays) -> float:
    """Approximate the time at which the mean loss first reaches a target, as `loss_at`; infinite if it never does."""
    each = one_round(problem, sync_time=sync_time, delays=delays)

    def gap(rounds: float) -> float:
        return float(each.after(problem.start_square, rounds) @ (problem.curvature / 2)) - target

    grid = np.concatenate([[0.0], np.geomspace(0.5, MOST_ROUNDS, 400)])
    with np.errstate(over="ignore", invalid="ignore"):
        losses = each.after(problem.start_square, grid) @ (problem.curvature / 2)
    reached = np.flatnonzero(losses <= target)
    if reached.size == 0:
        return np.inf
    k = int(reached[0])
    rounds = 0.0 if k == 0 else float(brentq(gap, grid[k - 1], grid[k]))
    law = round_time(sync_time, delays)
    return max(law.mean * (rounds + 1) - _ahead(law), 0.0)


def _ahead(law: RoundTime) -> float:
    """How much longer than T the round that crosses T lasts on average, by renewal theory."""
    return (law.std**2 + law.mean**2) / (2 * law.mean)


def optimal_sync_time(
    target: float, problem: Quadratics, *, delays: Delays, candidates: Sequence[float]
) -> tuple[float, Numbers]:
    """Find which sync time reaches a target loss first, and each candidate's time `f64[candidates]`.

    Under "divide_by_steps" that is 0 without noise, or for a target far above the noise floors: local iterations cost time, and a round
    moves by one step's length whatever their number. They pay by a lower floor: below the floor of S = 0 the best is above 0.
    """
    times = np.array(
        [time_to(target, problem, sync_time=sync_time, delays=delays) for sync_time in candidates]
    )
    return float(candidates[int(np.argmin(times))]), times
