"""Theorem 6.1: the settings of an FA-LD run on which its privacy depends, and the guarantee."""

import warnings
from typing import Annotated, NamedTuple

import numpy as np
from scipy import stats

from fedjax_sim.core import settings
from fedjax_sim.core.settings import ConfigError

SCHEMES = ("full", "with_replacement", "without_replacement")
"""Who is averaged: everyone; scheme I, draws with replacement; scheme II, distinct clients."""
ADVERSARIES = ("outsider", "server")
"""Who attacks: an outsider does not know who took part in a round, the server does."""


@settings.checked
class PrivacySetup(NamedTuple):
    """The settings of an FA-LD run and the assumptions on its loss.

    Attributes:
        num_clients: N, at least 1.
        num_selected: S, at least 1, and at most N without replacement. Ignored by "full".
        scheme: Which clients are averaged, one of `SCHEMES`.
        local_steps: K, at least 1.
        num_rounds: E, at least 1.
        step_size: eta, positive and at most `largest_step_size`.
        temperature: tau, positive.
        rho: Mixing weight of the shared noise, in [0, 1).
        batch_fraction: q, share of a client's data in a mini-batch, in (0, 1].
        sensitivity: Delta_l, largest distance between the gradients of two examples' losses,
            positive; for softmax regression see `softmax_sensitivity`.
        least_weight: Smallest p_c, positive and at most 1 / N.
        delta_step: delta_0, in (0, 1).
        delta_round: delta_1, in [0, 1).
        delta_total: delta_2, in [0, 1).
        adversary: One of `ADVERSARIES`: "server" knows who took part, "outsider" does not.
        draw_probability: Probability of the most likely client in a draw of scheme I, from 1 / N
            to 1. None is 1 / N.
    """

    num_clients: settings.Count
    num_selected: settings.Whole
    scheme: Annotated[str, settings.OneOf(SCHEMES)]
    local_steps: settings.Count
    num_rounds: settings.Count
    step_size: settings.Above0
    temperature: settings.Above0
    rho: settings.Share
    batch_fraction: settings.Portion
    sensitivity: settings.Above0
    least_weight: settings.Portion
    delta_step: settings.Fraction
    delta_round: settings.Share
    delta_total: settings.Share
    adversary: Annotated[str, settings.OneOf(ADVERSARIES)] = "server"
    draw_probability: settings.Probability | None = None

    @property
    def private_noise(self) -> float:
        """The product tau (1 - rho^2) min_c p_c."""
        return self.temperature * (1 - self.rho**2) * self.least_weight

    @property
    def largest_step_size(self) -> float:
        """eta_max of condition (59), up to which epsilon_0 of a local step is at most 1."""
        least_noise = self.sensitivity**2 * np.log(1.25 / self.delta_step)
        return self.private_noise * self.batch_fraction**2 / least_noise

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of a step's private noise over the step's sensitivity. Derived."""
        noise = np.sqrt(2 * self.private_noise / self.step_size)
        return noise * self.batch_fraction / self.sensitivity

    @property
    def inclusion(self) -> float:
        """Probability, from the adversary's view, that a client is among the selected."""
        if self.scheme == "full" or self.adversary == "server":
            return 1.0
        if self.scheme == "without_replacement":
            return self.num_selected / self.num_clients
        return stats.binom.sf(0, self.num_selected, self.draw)

    @property
    def draw(self) -> float:
        """Probability of the most likely client in a draw of scheme I."""
        return 1 / self.num_clients if self.draw_probability is None else self.draw_probability


class OutsiderWarning(UserWarning):
    """A guarantee against outsiders was asked for, which does not hold for all clients."""


class Guarantee(NamedTuple):
    """The epsilons and deltas of the five steps.

    Attributes:
        epsilon_step: epsilon_0, of a local step given its mini-batch; its delta is delta_0.
        epsilon_batch: epsilon_1, of a local step; its delta is q delta_0.
        epsilon_round: epsilon_K, of the local steps of a round.
        delta_round: delta of the local steps of a round, K q delta_0 + delta_1.
        epsilon_sampled: epsilon of a round with the draw of clients.
        delta_sampled: delta of a round with the draw of clients.
        epsilon: epsilon^(3), of the whole run.
        delta: delta^(3), of the whole run.
    """

    epsilon_step: float
    epsilon_batch: float
    epsilon_round: float
    delta_round: float
    epsilon_sampled: float
    delta_sampled: float
    epsilon: float
    delta: float


def guarantee(setup: PrivacySetup, *, num_examples: settings.Count | None = None) -> Guarantee:
    """Compute the privacy of a run (Theorem 6.1).

    Against an outsider, if only some clients take part, this issues an `OutsiderWarning`. If
    `num_examples` is given, it warns if delta exceeds 1 / num_examples, which protects nobody.
    Under scheme I that is hard to avoid, because delta_0 enters with the power 1 / s^2 for a client
    drawn s times.

    Args:
        setup: The run.
        num_examples: Number of data points of all clients together.

    Returns:
        The guarantees of the five steps.

    Raises:
        ConfigError: If a setting is outside its range, in particular if the step size exceeds
            condition (59), if rho is 1, or if weights are unequal under scheme II.
    """
    _check(setup)
    if setup.inclusion < 1:
        warnings.warn(
            "adversary is 'outsider', but the draw of clients does not reduce epsilon where "
            "clients' models lie apart, as the aggregates then show who took part.",
            OutsiderWarning,
            stacklevel=2,
        )
    root = np.sqrt(setup.step_size * np.log(1.25 / setup.delta_step) / setup.private_noise)
    epsilon_step = root * setup.sensitivity / setup.batch_fraction
    epsilon_batch = 2 * root * setup.sensitivity
    epsilon_round = composed(epsilon_batch, setup.local_steps, setup.delta_round)
    delta_round = setup.local_steps * setup.batch_fraction * setup.delta_step + setup.delta_round
    epsilon_sampled = amplified(epsilon_round, setup.inclusion)
    if setup.scheme == "with_replacement" and setup.adversary == "outsider":
        delta_sampled = _delta_of_draws(setup, epsilon_round)
    else:
        delta_sampled = setup.inclusion * delta_round
    epsilon = composed(epsilon_sampled, setup.num_rounds, setup.delta_total)
    delta = setup.num_rounds * delta_sampled + setup.delta_total
    if num_examples is not None and delta > 1 / num_examples:
        warnings.warn(
            f"delta is {delta:.3g}, but must be at most 1 / {num_examples}, one over the number of "
            "data points; otherwise there is no protection.",
            stacklevel=2,
        )
    of_round = (epsilon_step, epsilon_batch, epsilon_round, delta_round)
    return Guarantee(*map(float, (*of_round, epsilon_sampled, delta_sampled, epsilon, delta)))


def composed(epsilon: settings.Above0, num: settings.Count, slack: settings.AtLeast0) -> float:
    """Compute the epsilon of several mechanisms by the better of plain and strong composition.

    Args:
        epsilon: epsilon of each mechanism, at least 0.
        num: Number of mechanisms, at least 1.
        slack: What strong composition adds to delta, in [0, 1). 0 is plain composition.

    Returns:
        epsilon of all mechanisms together.
    """
    if slack == 0:
        return num * epsilon
    with np.errstate(over="ignore"):
        strong = np.sqrt(2 * num * np.log(1 / slack)) + num * np.expm1(epsilon)
        return float(epsilon * min(strong, num))


def amplified(epsilon: settings.Above0, inclusion: settings.Probability) -> float:
    """Compute the epsilon of a mechanism that sees a data point only with some probability.

    Args:
        epsilon: epsilon of the mechanism if it always sees the data point, at least 0.
        inclusion: settings.Probability that it sees the data point, in (0, 1].

    Returns:
        log(1 + inclusion (e^epsilon - 1)).
    """
    if epsilon > 30:
        return float(epsilon + np.log(inclusion + (1 - inclusion) * np.exp(-epsilon)))
    return float(np.log1p(inclusion * np.expm1(epsilon)))


def softmax_sensitivity(largest_norm: settings.AtLeast0) -> float:
    """Bound Delta_l of softmax (multinomial logistic) regression. Derived.

    Args:
        largest_norm: Largest norm of an input, its constant 1 for the bias included.

    Returns:
        2 sqrt(2) times that norm.
    """
    return 2 * np.sqrt(2) * largest_norm


def _check(setup: PrivacySetup) -> None:
    """Refuse settings outside their range, and step sizes beyond condition (59)."""
    PrivacySetup(*setup)  # Checks each field, which `_replace` does not.
    equal = 1 / setup.num_clients
    is_without = setup.scheme == "without_replacement"
    most = setup.num_clients if is_without else np.inf
    if setup.scheme != "full" and not 1 <= setup.num_selected <= most:
        raise ConfigError("num_selected", setup.num_selected, f"from 1 to {most}")
    if setup.least_weight > equal * (1 + 1e-12):
        raise ConfigError("least_weight", setup.least_weight, f"at most 1 / N = {equal:g}")
    if is_without and setup.least_weight < equal * (1 - 1e-6):
        allowed = f"1 / N = {equal:g} without replacement, which is biased unless weights are equal"
        raise ConfigError("least_weight", setup.least_weight, allowed)
    if setup.draw < equal * (1 - 1e-12):
        raise ConfigError("draw_probability", setup.draw, f"None, or from 1 / N = {equal:g} to 1")
    limit = setup.largest_step_size
    if setup.step_size > limit * (1 + 1e-12):
        raise ConfigError("step_size", setup.step_size, f"at most {limit:g}, condition (59)")


def _delta_of_draws(setup: PrivacySetup, epsilon_round: float) -> float:
    """Compute delta of a round under scheme I.

    A client drawn s times moves the average s times as far, so its privacy is that of a group of s.
    """
    times_drawn = np.arange(1, setup.num_selected + 1)
    with np.errstate(over="ignore"):
        of_step = (setup.delta_step / 1.25) ** (1 / times_drawn**2)
        single = 1.25 * setup.local_steps * setup.batch_fraction * of_step + setup.delta_round
        one_draw = np.expm1(-epsilon_round / times_drawn)
        grown = np.exp(epsilon_round * (1 - 1 / times_drawn)) * np.expm1(-epsilon_round) / one_draw
    probability = stats.binom.pmf(times_drawn, setup.num_selected, setup.draw)
    return float(np.sum(probability * grown * single))


def largest_rho(
    setup: PrivacySetup, *, epsilon: settings.Above0, delta: settings.Probability = 1.0
) -> float:
    """Find the largest rho at which the guarantee is still within epsilon and delta.

    This is the tuning of Sec. 6: a larger rho is more accurate and less private.

    Args:
        setup: The run. Its rho is ignored.
        epsilon: Largest acceptable epsilon^(3).
        delta: Largest acceptable delta^(3).

    Returns:
        rho, in [0, 1).

    Raises:
        ConfigError: If even rho = 0 does not meet both, or a setting is outside its range.
    """

    def is_within(rho: float) -> bool:
        at = setup._replace(rho=rho)
        if rho >= 1 or setup.step_size > at.largest_step_size:
            return False
        reached = guarantee(at)
        return reached.epsilon <= epsilon and reached.delta <= delta

    if not is_within(0.0):
        allowed = f"larger, or delta = {delta:g} larger: the run misses them even at rho = 0"
        raise ConfigError("epsilon", epsilon, allowed)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


settings.checked_all(__name__)
