"""The settings of an FA-LD run on which its privacy depends, and the checks of their ranges."""

from typing import Annotated, NamedTuple

import numpy as np
from scipy import stats

from fedjax_sim.core import checking
from fedjax_sim.core.checking import (
    Above0,
    Count,
    Fraction,
    OneOf,
    Portion,
    Probability,
    Share,
    Whole,
)
from fedjax_sim.core.settings import ConfigError

SCHEMES = ("full", "with_replacement", "without_replacement")
"""Who is averaged: everyone; scheme I, draws with replacement; scheme II, distinct clients."""
ADVERSARIES = ("outsider", "server")
"""Who attacks: an outsider does not know who took part in a round, the server does."""


@checking.checked
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

    num_clients: Count
    num_selected: Whole
    scheme: Annotated[str, OneOf(SCHEMES)]
    local_steps: Count
    num_rounds: Count
    step_size: Above0
    temperature: Above0
    rho: Share
    batch_fraction: Portion
    sensitivity: Above0
    least_weight: Portion
    delta_step: Fraction
    delta_round: Share
    delta_total: Share
    adversary: Annotated[str, OneOf(ADVERSARIES)] = "server"
    draw_probability: Probability | None = None

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


def check(setup: PrivacySetup) -> None:
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
