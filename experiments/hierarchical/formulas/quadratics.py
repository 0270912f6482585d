"""Hierarchical federated learning on quadratics: fixed points, rates and the best sync time.

The algorithm is that of Ali and Arafa, arXiv 2302.04851. Nothing here is in the paper, whose bounds
(`experiments.hierarchical.formulas.bounds`) do not say when local iterations pay. Closed forms, in
float64; `loss_at`, `time_to` and `optimal_sync_time` approximate.

Dimension letters: `M` groups, `P` coordinates.

On h / 2 (x - y_i)^2, group i moves from x by t_i gradient steps of size alpha, so it moves by
(1 - q^t_i) (y_i - x) with q = 1 - alpha h. The global server adds up these moves, each times a
factor: w_i / t_i under rule "divide_by_steps", the paper's eq. (12), and w_i under rule "average".
Symbols and names:

    alpha -> `lr`    w_i -> `group_weight`    S -> `sync_time`    T -> the time of a run

`problem` has the loss and the run on it, `delays` the laws of the delays, and `target` is the loss
to be reached. Sync times are in units of time. A rule that is neither "divide_by_steps" nor
"average" raises a ValueError.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from fedjax_sim.core.settings import Above0, AtLeast0, Whole, checked
from fedjax_sim.theory import hierarchical
from fedjax_sim.theory.hierarchical import Delays, Numbers, RoundTime

MOST_ROUNDS = 1e7
"""Number of rounds after which `time_to` takes a target that is not yet reached as out of reach."""


@checked
class Quadratics(NamedTuple):
    """The sum over coordinates of h_j / 2 x_j^2, the same loss for all clients, and a run on it.

    `noise_variance` is that of each coordinate of a client's gradient, `start_square` the
    squared distance of the initial model to the optimum, and `rule` how the global server
    combines groups.
    """

    curvature: Numbers
    noise_variance: AtLeast0
    start_square: Numbers
    lr: AtLeast0
    group_size: npt.NDArray[np.int64]
    rule: str = "divide_by_steps"


class Round(NamedTuple):
    """What a round does to the mean squares `f64[P]`: new = contraction * old + noise."""

    contraction: Numbers
    noise: Numbers

    def after(self, start_square: npt.ArrayLike, rounds: npt.ArrayLike) -> Numbers:
        """Compute the mean squares after rounds, which need not be whole: `f64[..., P]`."""
        u = np.asarray(rounds, np.float64)[..., None]
        power = self.contraction**u
        return power * np.asarray(start_square) + self.noise * np.where(
            self.contraction == 1, u, (1 - power) / _one_for_zero(1 - self.contraction)
        )

    @property
    def floor(self) -> Numbers:
        """The mean squares in the long run: `f64[P]`, infinite where they do not settle."""
        return np.where(
            self.contraction < 1, self.noise / _one_for_zero(1 - self.contraction), np.inf
        )


@checked
def group_moments(
    iterations: npt.ArrayLike, *, lr: AtLeast0, curvature: npt.ArrayLike
) -> tuple[Numbers, Numbers]:
    """Compute how far a group moves towards its optimum in t iterations, and its noise.

    They are the share 1 - q^t of the way, and the variance of the group's noise, in units of
    alpha^2 times the variance of the noise of one step. `iterations` broadcasts against
    `curvature`, h.
    """
    q = 1 - lr * np.asarray(curvature, np.float64)
    t = np.asarray(iterations, np.float64)
    return 1 - q**t, np.where(q**2 == 1, t, (1 - q ** (2 * t)) / _one_for_zero(1 - q**2))


def _one_for_zero(x: Numbers) -> Numbers:
    """Replace 0 by 1 in the denominator of a quotient that is not used where it is 0."""
    return np.where(x == 0, 1.0, x)


@checked
def contraction_and_floor(
    iterations: Whole, *, lr: AtLeast0, curvature: Above0
) -> tuple[float, float]:
    """Compute rate and noise floor of rounds of t iterations in all groups, which are equal.

    Under "divide_by_steps" they are rho, the factor of the mean in each round, and the
    stationary variance, in units of alpha^2 times a client's noise variance over the number of
    all clients.
    """
    moved, noise = group_moments(iterations, lr=lr, curvature=curvature)
    rho = 1 - float(moved) / iterations
    return rho, float(noise) / iterations**2 / (1 - rho**2)


@checked
def fixed_point(
    optima: npt.ArrayLike,
    *,
    iterations: npt.ArrayLike,
    lr: AtLeast0,
    curvature: npt.ArrayLike = 1.0,
    group_weight: npt.ArrayLike,
    rule: str,
) -> float:
    """Compute the model at which the moves of noise-free groups with fixed iterations balance.

    It is a weighted mean of the groups' optima y_i. With equal iterations and curvatures it is
    the optimum of the weighted sum of the groups' losses, under both rules. As alpha goes to 0,
    "divide_by_steps" always leads to this optimum, while "average" weights group i by w_i t_i.
    `curvature` is h of all groups or of each. Rule "fednova" has the same fixed point as
    "divide_by_steps".
    """
    moved, _ = group_moments(iterations, lr=lr, curvature=curvature)
    pull = np.asarray(group_weight) * moved / _divisor(rule, np.asarray(iterations, np.float64))
    return float(pull @ np.asarray(optima, np.float64) / np.sum(pull))


def _divisor(rule: str, iterations: Numbers) -> Numbers:
    """Return what the global server divides a group's move by: the iterations, or 1."""
    if rule not in ("divide_by_steps", "average"):
        raise ValueError(f"rule is {rule!r}, but must be divide_by_steps or average")
    return iterations if rule == "divide_by_steps" else np.ones_like(iterations)


@checked
def one_round(problem: Quadratics, *, sync_time: AtLeast0, delays: Delays) -> Round:
    """Average the affine map of a round over the independent laws of the groups' iterations."""
    weight = problem.group_size / np.sum(problem.group_size)
    pull = np.zeros_like(problem.curvature)
    variance, noise = pull.copy(), pull.copy()
    for w, size, c, m in zip(
        weight, problem.group_size, delays.shift, delays.mean_exp, strict=True
    ):
        law = hierarchical.iteration_law(sync_time, shift=float(c), mean_exp=float(m))
        t = np.arange(1, len(law) + 1)
        moved, spread = group_moments(t[:, None], lr=problem.lr, curvature=problem.curvature)
        factor = (w / _divisor(problem.rule, t.astype(np.float64)))[:, None]
        group_pull = law @ (factor * moved)
        pull += group_pull
        variance += law @ (factor * moved) ** 2 - group_pull**2
        noise += law @ (factor**2 * spread) * problem.lr**2 * problem.noise_variance / size
    return Round((1 - pull) ** 2 + variance, noise)


@checked
def loss_at(
    time: npt.ArrayLike, problem: Quadratics, *, sync_time: AtLeast0, delays: Delays
) -> Numbers:
    """Approximate the mean loss of the last global model that is finished by a time.

    The only approximation is that the number of rounds by then is replaced by its expectation,
    which ignores that this number depends on the iterations of the rounds.
    """
    law = hierarchical.round_time(sync_time, delays)
    rounds = np.maximum((np.asarray(time, np.float64) + _overshoot(law)) / law.mean - 1, 0)
    return one_round(problem, sync_time=sync_time, delays=delays).after(
        problem.start_square, rounds
    ) @ (problem.curvature / 2)


@checked
def time_to(target: float, problem: Quadratics, *, sync_time: AtLeast0, delays: Delays) -> float:
    """Approximate the time at which the mean loss first reaches a target, as `loss_at` does.

    It is infinite if the target is not reached within `MOST_ROUNDS` rounds.
    """
    effect = one_round(problem, sync_time=sync_time, delays=delays)

    def gap(rounds: float) -> float:
        return float(effect.after(problem.start_square, rounds) @ (problem.curvature / 2)) - target

    grid = np.concatenate([[0.0], np.geomspace(0.5, MOST_ROUNDS, 400)])
    with np.errstate(over="ignore", invalid="ignore"):
        losses = effect.after(problem.start_square, grid) @ (problem.curvature / 2)
    reached = np.flatnonzero(losses <= target)
    if reached.size == 0:
        return np.inf
    k = int(reached[0])
    rounds = 0.0 if k == 0 else float(brentq(gap, grid[k - 1], grid[k]))
    law = hierarchical.round_time(sync_time, delays)
    return max(law.mean * (rounds + 1) - _overshoot(law), 0.0)


def _overshoot(law: RoundTime) -> float:
    """Compute by how much the round that crosses T lasts past T on average, by renewal theory."""
    return (law.std**2 + law.mean**2) / (2 * law.mean)


@checked
def optimal_sync_time(
    target: float, problem: Quadratics, *, delays: Delays, candidates: Sequence[float]
) -> tuple[float, Numbers]:
    """Find the candidate S that reaches a target loss first, and the time of each candidate.

    Under "divide_by_steps" this is 0 if there is no noise or the target is far above the noise
    floors: local iterations take time, while a round moves the model by about the length of one
    step however many there are. What local iterations gain is a lower noise floor. For targets
    below the floor of S = 0, the best sync time is above 0. The first of equally good ones
    counts.
    """
    times = np.array(
        [time_to(target, problem, sync_time=sync_time, delays=delays) for sync_time in candidates]
    )
    return float(candidates[int(np.argmin(times))]), times
