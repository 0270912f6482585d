"""Iterations, round times and number of rounds of delay-sensitive hierarchical federated learning.

The paper is Ali and Arafa, arXiv 2302.04851. Equation numbers are the paper's. All results are
float64, exact, and derived here; only `expected_rounds`, of the count in eq. (13), approximates.

Dimension letters: `M` groups.

A local iteration of group i takes a time c_i + Exp(mean m_i). A group iterates until the sync time
S has passed: t_i = min{n >= 1: W_n >= S}, where W_n is the time of n iterations and W_0 = 0. It
then has iterated for Sigma_i = W_(t_i). A round lasts D = max_i Sigma_i + tau_g, where the time
tau_g of the global server has a law of the same form. Symbols and names:

    c_i -> `shift`               m_i = 1 / lambda_i -> `mean_exp`
    c_g -> `global_shift`        1 / lambda_g -> `global_mean_exp`
    S -> `sync_time`             T -> `system_time`
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, gammaln, ndtr

from fedjax_sim.core.settings import ConfigError, checked, checked_all
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Limit, shape

Numbers = npt.NDArray[np.float64]

_TIE = 1e-9
"""Share of an iteration by which rounding may lift a sync time above a whole number of shifts.

For example, 0.09 * 10 + 0.1 is below 1.
"""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_TAIL = 45.0
"""Number of means of an exponential law beyond which its tail is negligible in float64."""


@checked
class Delays(NamedTuple):
    """The laws of the delays, in units of time.

    Attributes:
        shift: `f64[M]`, c_i, non-negative.
        mean_exp: `f64[M]`, m_i, non-negative; each group has `shift` or `mean_exp` above 0.
        global_shift: c_g, non-negative.
        global_mean_exp: 1 / lambda_g, non-negative.
    """

    shift: Annotated[Numbers, Limit(least=0), shape("M")]
    mean_exp: Annotated[Numbers, Limit(least=0), shape("M")]
    global_shift: AtLeast0 = 0.0
    global_mean_exp: AtLeast0 = 0.0


class RoundTime(NamedTuple):
    """Moments of the duration of a round, in units of time.

    Attributes:
        longest: E[max_i Sigma_i].
        mean: E[D].
        std: Standard deviation of D.
    """

    longest: float
    mean: float
    std: float


def max_iterations(sync_time: AtLeast0, shift: AtLeast0) -> float:
    """Bound t_i almost surely, eq. (22).

    Args:
        sync_time: S.
        shift: c_i.

    Returns:
        The bound, a whole number; infinite if there is no shift and S is above 0.
    """
    # Deviation: (22) prints S / c rounded up. That is 0 at S = 0, where one iteration is done.
    if shift <= 0:
        return 1.0 if sync_time <= 0 else math.inf
    return float(max(1, math.ceil(sync_time / shift - _TIE)))


def iteration_law(sync_time: AtLeast0, *, shift: AtLeast0, mean_exp: AtLeast0) -> Numbers:
    """Compute the probabilities of t_i = 1, 2, ....

    Args:
        sync_time: S.
        shift: c_i.
        mean_exp: m_i.

    Returns:
        `f64[t]`, sum 1. It is so long that the probability of more iterations is zero in float64.
    """
    return -np.diff(_tails(sync_time, shift, mean_exp), append=0.0)


def expected_iterations(sync_time: AtLeast0, *, shift: AtLeast0, mean_exp: AtLeast0) -> float:
    """Compute E[t_i].

    Args:
        sync_time: S.
        shift: c_i.
        mean_exp: m_i.

    Returns:
        The expectation; 1 at S = 0.
    """
    return float(np.sum(_tails(sync_time, shift, mean_exp)))


def _tails(sync_time: float, shift: float, mean_exp: float) -> Numbers:
    """Compute P(t > n) for n = 0, 1, ...: the probability that W_n, a shifted gamma, is below S."""
    most = max_iterations(sync_time, shift)
    if mean_exp == shift == 0:
        raise ConfigError("shift", float(shift), "above 0 where mean_exp is 0")
    if mean_exp == 0:
        return np.ones(int(most))
    # Without a shift, iterations are a Poisson process: this is the expected number before S.
    poisson_mean = sync_time / mean_exp
    n = np.arange(int(min(most, 2 + poisson_mean + 10 * math.sqrt(poisson_mean) + _TAIL)))
    left = np.maximum(sync_time - n[1:] * shift, 0) / mean_exp
    return np.concatenate([[1.0], gammainc(n[1:], left)])


def expected_group_time(sync_time: AtLeast0, *, shift: AtLeast0, mean_exp: AtLeast0) -> float:
    """Compute E[Sigma_i] by Wald's identity, E[t_i] times the mean time of an iteration.

    Args:
        sync_time: S.
        shift: c_i.
        mean_exp: m_i.

    Returns:
        The expectation, in units of time.
    """
    return expected_iterations(sync_time, shift=shift, mean_exp=mean_exp) * (shift + mean_exp)


def group_time_tail(
    time: npt.ArrayLike, sync_time: AtLeast0, *, shift: AtLeast0, mean_exp: AtLeast0
) -> Numbers:
    """Compute P(Sigma_i > time), for the time Sigma_i that group i iterates in a round.

    This sums over n the probability that n - 1 iterations end before S and the n-th ends after
    `time`. Because the last iteration has an exponential part, each summand has a closed form.

    Args:
        time: `f64[...]`, times since the start of the round.
        sync_time: S.
        shift: c_i.
        mean_exp: m_i.

    Returns:
        `f64[...]`, the probabilities; 1 below max(S, shift). At S = 0 this is the tail of the time
        of one iteration.
    """
    x = np.asarray(time, np.float64)
    if mean_exp == 0:
        return (x < shift * len(_tails(sync_time, shift, 0.0))).astype(np.float64)
    tail = np.where(x < shift, 1.0, np.exp(-np.maximum(x - shift, 0) / mean_exp))  # n = 1
    for n in range(2, len(_tails(sync_time, shift, mean_exp)) + 1):
        # In units of mean_exp and without its shifts, W_(n-1) must be below `before_sync` to be
        # below S; above `before_time` the n-th iteration ends after x for sure.
        before_sync = (sync_time - (n - 1) * shift) / mean_exp
        before_time = (x - n * shift) / mean_exp
        if before_sync <= 0:
            break
        reach = np.clip(before_time, 0, before_sync)
        # If W_(n-1) is below `reach`, the exponential part of the n-th iteration must last past x.
        log_density = (n - 1) * np.log(np.maximum(reach, 1e-300)) - gammaln(n)
        lasting = np.exp(log_density - np.maximum(before_time, 0))
        tail = tail + gammainc(n - 1, before_sync) - gammainc(n - 1, reach) + lasting
    return np.where(x < max(sync_time, shift), 1.0, np.minimum(tail, 1.0))


def round_time(sync_time: AtLeast0, delays: Delays) -> RoundTime:
    """Compute E[max_i Sigma_i], E[D] and the standard deviation of D.

    This integrates the law of the slowest group numerically. Groups are independent of each other
    and of the global server.

    Args:
        sync_time: S.
        delays: Laws of the delays.

    Returns:
        The moments. For equal groups at S = 0, E[max_i Sigma_i] is
        shift + mean_exp (1 + 1/2 + ... + 1/M).
    """
    shift, mean_exp = (np.asarray(field, np.float64) for field in delays[:2])
    # Equal groups share one tail.
    kinds, members = np.unique(np.stack([shift, mean_exp], axis=1), axis=0, return_counts=True)

    def tail_of_longest(x: Numbers) -> Numbers:
        below = [1 - group_time_tail(x, sync_time, shift=c, mean_exp=m) for c, m in kinds]
        return 1 - np.prod([each**num for each, num in zip(below, members, strict=True)], axis=0)

    least, longest_tail = max(sync_time, float(shift.max())), _TAIL + math.log(len(shift))
    cuts = {least, least + float(shift.max()) + longest_tail * float(mean_exp.max())}
    for c, m in kinds:
        # The tail has a kink, or without an exponential part a jump, at the first whole number of
        # shifts from S on. It has another kink at S plus one shift.
        if c > 0:
            most = int(max_iterations(sync_time, c))
            cuts |= {sync_time + c, *(c * n for n in range(most - 1, most + 2))}
        cuts |= {least + m * k for k in (0.5, 1, 2, 4, 8, 16, 32)}
    edges = np.array(sorted(cut for cut in cuts if cut >= least))
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    x = middle[:, None] + half[:, None] * _NODES
    weight = half[:, None] * _WEIGHTS * tail_of_longest(x)
    # Moments of the time past `least`, of which the variance loses no digits.
    beyond = float(np.sum(weight))
    square = float(np.sum(2 * (x - least) * weight))
    variance = max(square - beyond**2, 0.0) + delays.global_mean_exp**2
    longest = least + beyond
    mean = longest + delays.global_shift + delays.global_mean_exp
    return RoundTime(longest, mean, math.sqrt(variance))


def expected_idle(sync_time: AtLeast0, delays: Delays) -> Numbers:
    """Compute E[max_j Sigma_j - Sigma_i], the time that each group waits for the slowest one.

    Args:
        sync_time: S.
        delays: Laws of the delays.

    Returns:
        `f64[M]`, in units of time.
    """
    laws = zip(delays.shift, delays.mean_exp, strict=True)
    group_times = [expected_group_time(sync_time, shift=c, mean_exp=m) for c, m in laws]
    return round_time(sync_time, delays).longest - np.array(group_times)


def expected_rounds(sync_time: AtLeast0, delays: Delays, *, system_time: Above0) -> float:
    """Approximate E[U], the number of rounds until the system time T has passed, eq. (13).

    The round that crosses T is completed and counted, so one round fewer is over by T. U is 1 plus
    the number of n >= 1 for which the first n rounds end before T; the time of n rounds is taken as
    normal. The usual T / E[D] + E[D^2] / (2 E[D]^2) is off by up to 0.3 where rounds hardly vary,
    because it then ignores that U is a whole number.

    Args:
        sync_time: S.
        delays: Laws of the delays.
        system_time: T.

    Returns:
        The expected number of rounds, at least 1.
    """
    _, mean, std = round_time(sync_time, delays)
    n = np.arange(1, int(2 * system_time / mean + 20 * (1 + std / mean) ** 2) + 2)
    left = system_time - n * mean
    ended = ndtr(left / (std * np.sqrt(n))) if std > _TIE * mean else left > _TIE * mean
    return 1 + float(np.sum(ended))


checked_all(__name__)
