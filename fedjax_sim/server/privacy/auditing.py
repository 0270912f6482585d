"""A lower bound of epsilon from one run with canaries (Steinke, Nasr and Jagielski 2023).

Some clients are canaries: whether each takes part in the training or sends nothing is decided by a
fair coin. Somebody who sees the models guesses the coins of some canaries. If the training is
private, few guesses can be right, so that many right ones prove a lower bound of epsilon. The bound
is for neighbours that differ in one client's updates, which are there or are 0, and so for every
relation that includes these. It can be far below the true epsilon: of one run with few canaries
nothing large can be said. `fedjax_sim.server.attacks.Canary` has the canaries, and their scores.

The paper is arXiv 2305.08846.
"""

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import ConfigError, Count, Limit, checked

PRECISION = 1e-6
"""Epsilon is found up to this."""


class Audit(NamedTuple):
    """The result of an audit by guesses.

    Attributes:
      epsilon: The lower bound; 0 if they show nothing.
      num_guesses: Number of canaries whose coin was guessed, r.
      num_correct: Number of guesses that were right, v.
    """

    epsilon: float
    num_guesses: int
    num_correct: int


@checked
def audit_canaries(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    *,
    num_guesses: Count,
    delta: Annotated[float, Limit(least=0, below=1)],
    confidence: Annotated[float, Limit(above=0, below=1)] = 0.95,
) -> Audit:
    """Guess coins by scores, and compute the lower bound that the guesses show.

    The canaries with the largest scores are guessed to take part, as many with the smallest ones
    not to. Their number must be chosen before the scores are looked at.

        scores, included = [3.0, 2.0, -1.0, -2.0], [True, True, False, False]
        audit = audit_canaries(scores, included, num_guesses=4, delta=0.0)
        assert audit.num_correct == 4

    Args:
      scores: How much the models look as if each canary took part, `f[m]`.
      included: Which canaries did, by fair coins, `bool[m]`.
      num_guesses: Number of guesses r, even and at most m.
      delta: delta of the guarantee that is audited.
      confidence: Probability with which the bound is below the true epsilon.

    Returns:
      The lower bound, and the guesses.

    Raises:
      ConfigError: If the number of guesses is odd or above m, or there is not one score each.
    """
    values, coins = np.asarray(scores, float), np.asarray(included, bool)
    if values.ndim != 1 or values.shape != coins.shape:
        raise ConfigError("shape of scores", values.shape, f"{coins.shape}, one for each canary")
    if not np.isfinite(values).all():
        raise ConfigError("scores", "some that are not finite", "finite numbers")
    if num_guesses % 2 or num_guesses > values.size:
        allowed = f"even and at most {values.size}, the canaries"
        raise ConfigError("num_guesses", num_guesses, allowed)
    order, half = np.argsort(values, kind="stable"), num_guesses // 2
    correct = int(coins[order[values.size - half :]].sum() + (~coins[order[:half]]).sum())
    found = {"num_guesses": num_guesses, "num_correct": correct}
    bound = one_run_bound(values.size, **found, delta=delta, confidence=confidence)
    return Audit(bound, num_guesses, correct)


@checked
def one_run_bound(
    num_canaries: Count,
    *,
    num_guesses: Count,
    num_correct: Annotated[int, Limit(least=0, is_whole=True)],
    delta: Annotated[float, Limit(least=0, below=1)],
    confidence: Annotated[float, Limit(above=0, below=1)] = 0.95,
) -> float:
    """Compute the lower bound that right guesses show, as in Appendix D.

    If the training is (epsilon, delta)-private, v of r guesses are right with a probability of at
    most f(v) + 2 m delta max_{0 < i <= v} (f(v - i) - f(v)) / i, where f(v) is the probability that
    a binomial variable with r draws of probability e^epsilon / (1 + e^epsilon) is at least v. The
    bound is the epsilon with which that is 1 - confidence.

        bound = one_run_bound(20, num_guesses=10, num_correct=10, delta=0.0, confidence=0.95)
        share = 1 / (1 + np.exp(-bound))  # of right guesses
        assert np.isclose(share**10, 1 - 0.95, rtol=1e-4)

    Args:
      num_canaries: Number of canaries m, each with its own fair coin.
      num_guesses: Number of guesses r, at most m.
      num_correct: Number of right ones v, at most r.
      delta: delta of the guarantee.
      confidence: Probability with which the bound is below the true epsilon.

    Returns:
      The bound, 0 if nothing is shown.

    Raises:
      ConfigError: If there are more guesses than canaries, or more right ones than guesses.
    """
    if num_guesses > num_canaries:
        raise ConfigError("num_guesses", num_guesses, f"at most {num_canaries}, the canaries")
    if num_correct > num_guesses:
        raise ConfigError("num_correct", num_correct, f"at most {num_guesses}, the guesses")
    from scipy import stats  # Slow to import.

    fewer = np.arange(1, num_correct + 1)

    def chance(epsilon: float) -> float:
        right = 1 / (1 + np.exp(-epsilon))
        tail = stats.binom.sf(num_correct - 1, num_guesses, right)
        steps = stats.binom.sf(num_correct - fewer - 1, num_guesses, right) - tail
        slope = np.max(steps / fewer, initial=0.0)
        return float(min(tail + 2 * num_canaries * delta * slope, 1.0))

    least, most = 0.0, 1.0
    if chance(least) > 1 - confidence:
        return 0.0
    while chance(most) <= 1 - confidence:
        least, most = most, 2 * most
    while most - least > PRECISION:
        middle = (least + most) / 2
        least, most = (middle, most) if chance(middle) <= 1 - confidence else (least, middle)
    return least
