"""Iterations, round times and rounds of delay-sensitive hierarchical federated learning (Ali, Arafa, arXiv 2302.04851); float64.

Dimension letters: `M` groups. A local iteration of group i takes c_i + Exp(mean m_i) units of time, and iterations go on until the sync
time S has passed: t_i = min{n >= 1: W_n >= S}, with W_n the time of n iterations, W_0 = 0, and Sigma_i = W_(t_i). A round lasts
D = max_i Sigma_i + tau_g; tau_g has a law of the same form. All below is exact and derived here but for `expected_rounds`.

    c_i -> `shift`    m_i = 1 / lambda_i -> `mean_exp`    c_g, 1 / lambda_g -> `global_shift`, `global_mean_exp`
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, gammaln, ndtr

Numbers = npt.NDArray[np.float64]

_TIE = 1e-9
"""Share of an iteration by which a sync time may exceed a whole number of shifts through rounding (0.09 * 10 + 0.1 is below 1)."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_TAIL = 45.0
"""Exponential means beyond which a tail is zero in float64."""


class Delays(NamedTuple):
    """Laws of the delays, units of time."""

    shift: Numbers  # f64[M], non-negative
    mean_exp: Numbers  # f64[M], non-negative; one of the two above 0
    global_shift: float = 0.0
    global_mean_exp: float = 0.0


class RoundTime(NamedTuple):
    """Moments of a round's duration, units of time."""

    longest: float  # E[max_i Sigma_i]
    mean: float  # E[D]
    std: float  # of D


def linear_delays(sizes: npt.ArrayLike, coefficients: Sequence[float]) -> Delays:
    """Compute the delays of groups of given sizes under the paper's linear model (Sec. V).

    sizes: `i64[M]`, clients of each group. coefficients: d, b, e, f, d_g, b_g, e_g, f_g in the paper's order: c_i = d size + b,
    1 / lambda_i = e size + f, and the same with the number of groups for the global server.
    """
    d, b, e, f, d_g, b_g, e_g, f_g = coefficients
    clients = np.asarray(sizes, np.float64)
    return Delays(
        d * clients + b, e * clients + f, d_g * len(clients) + b_g, e_g * len(clients) + f_g
    )


def max_iterations(sync_time: float, shift: float) -> float:
    """Bound t_i almost surely, eq. (22), infinite without a shift."""
    # Deviation: (22) prints S / c rounded up, which is 0 at S = 0, where one iteration is done.
    if shift <= 0:
        return 1.0 if sync_time <= 0 else math.inf
    return float(max(1, math.ceil(sync_time / shift - _TIE)))


def iteration_law(sync_time: float, *, shift: float, mean_exp: float) -> Numbers:
    """Compute the probabilities of t_i = 1, 2, ...: `f64[t]`, sum 1; so many that the rest is zero in float64."""
    return -np.diff(_tails(sync_time, shift, mean_exp), append=0.0)


def expected_iterations(sync_time: float, *, shift: float, mean_exp: float) -> float:
    """Compute E[t_i]; 1 at S = 0."""
    return float(np.sum(_tails(sync_time, shift, mean_exp)))


def _tails(sync_time: float, shift: float, mean_exp: float) -> Numbers:
    """P(t > n) for n = 0, 1, ...: that W_n, a shifted gamma variable, falls short of S."""
    most = max_iterations(sync_time, shift)
    if mean_exp == 0:
        return np.ones(int(most))
    at_once = sync_time / mean_exp  # iterations without a shift are a Poisson process
    n = np.arange(int(min(most, 2 + at_once + 10 * math.sqrt(at_once) + _TAIL)))
    left = np.maximum(sync_time - n[1:] * shift, 0) / mean_exp
    return np.concatenate([[1.0], gammainc(n[1:], left)])


def expected_group_time(sync_time: float, *, shift: float, mean_exp: float) -> float:
    """Compute E[Sigma_i] by Wald's identity, E[t_i] times the mean of an iteration; units of time."""
    return expected_iterations(sync_time, shift=shift, mean_exp=mean_exp) * (shift + mean_exp)


def group_time_tail(
    time: npt.ArrayLike, sync_time: float, *, shift: float, mean_exp: float
) -> Numbers:
    """Compute P(Sigma_i > time). time, result: `f64[...]`.

    Sums over n the probability that n - 1 iterations end before S and the n-th after `time`; an exponential last iteration makes each a
    closed form. 1 below max(S, shift); at S = 0 the tail of one iteration.
    """
    x = np.asarray(time, np.float64)
    if mean_exp == 0:
        return (x < shift * max_iterations(sync_time, shift)).astype(np.float64)
    tail = np.where(x < shift, 1.0, np.exp(-np.maximum(x - shift, 0) / mean_exp))  # n = 1
    for n in range(2, len(_tails(sync_time, shift, mean_exp)) + 1):
        late = (sync_time - (n - 1) * shift) / mean_exp  # b: W_(n-1) < S
        short = (
            (x - n * shift) / mean_exp
        )  # a: by how much W_(n-1) falls short of what makes the n-th end after x for sure
        if late <= 0:
            break
        reach = np.clip(short, 0, late)
        jump = np.exp(
            (n - 1) * np.log(np.maximum(reach, 1e-300)) - gammaln(n) - np.maximum(short, 0)
        )
        tail = tail + gammainc(n - 1, late) - gammainc(n - 1, reach) + jump
    return np.where(x < max(sync_time, shift), 1.0, np.minimum(tail, 1.0))


def round_time(sync_time: float, delays: Delays) -> RoundTime:
    """Integrate the law of the slowest group: E[max_i Sigma_i], E[D] and the standard deviation of D.

    Groups are independent of each other and of the global server. With equal groups, S = 0: shift + mean_exp (1 + 1/2 + ... + 1/M).
    """
    shift, mean_exp = (np.asarray(leaf, np.float64) for leaf in delays[:2])
    # Equal groups share one tail.
    kinds, members = np.unique(np.stack([shift, mean_exp], axis=1), axis=0, return_counts=True)

    def tail_of_longest(x: Numbers) -> Numbers:
        below = [1 - group_time_tail(x, sync_time, shift=c, mean_exp=m) for c, m in kinds]
        return 1 - np.prod([each**num for each, num in zip(below, members, strict=True)], axis=0)

    least = max(sync_time, float(shift.max()))
    cuts = {
        least,
        least + float(shift.max()) + (_TAIL + math.log(len(shift))) * float(mean_exp.max()),
    }
    for c, m in kinds:
        # The tail has a kink, or without an exponential part a jump, at each whole number of shifts up to one past S.
        cuts |= (
            {c * n for n in range(1, int(min(max_iterations(sync_time, c), 10_000)) + 2)}
            if c > 0
            else set()
        )
        cuts |= {least + m * k for k in (0.5, 1, 2, 4, 8, 16, 32)}
    edges = np.array(sorted(cut for cut in cuts if cut >= least))
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    x = middle[:, None] + half[:, None] * _NODES
    weight = half[:, None] * _WEIGHTS * tail_of_longest(x)
    longest = least + float(np.sum(weight))
    square = least**2 + float(np.sum(2 * x * weight))
    variance = max(square - longest**2, 0.0) + delays.global_mean_exp**2
    return RoundTime(
        longest, longest + delays.global_shift + delays.global_mean_exp, math.sqrt(variance)
    )


def expected_idle(sync_time: float, delays: Delays) -> Numbers:
    """Compute E[max_j Sigma_j - Sigma_i], what each group waits for the slowest: `f64[M]`, units of time."""
    own = [
        expected_group_time(sync_time, shift=c, mean_exp=m)
        for c, m in zip(delays.shift, delays.mean_exp, strict=True)
    ]
    return round_time(sync_time, delays).longest - np.array(own)


def expected_rounds(sync_time: float, delays: Delays, *, system_time: float) -> float:
    """Approximate E[U], the rounds of a run until the system time T has passed, the last one whole, eq. (13).

    One, and one more for each n whose first n rounds end before T; their time is taken as normal. One round less is over by T. The usual
    T / E[D] + E[D^2] / (2 E[D]^2) is off by up to 0.3 where rounds hardly vary, as it then knows nothing of whole numbers.
    """
    _, mean, std = round_time(sync_time, delays)
    n = np.arange(1, int(2 * system_time / mean + 20 * (1 + std / mean) ** 2) + 2)
    left = system_time - n * mean
    ended = ndtr(left / (std * np.sqrt(n))) if std > _TIE * mean else left > _TIE * mean
    return 1 + float(np.sum(ended))
