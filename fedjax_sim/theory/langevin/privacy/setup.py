"""The settings of an FA-LD run on which its privacy depends, and the checks of their ranges."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from fedjax_sim.checking import AtLeast0, Count, Probability, Whole, checked
from fedjax_sim.theory.langevin.exact_laws import SCHEMES

ADVERSARIES = ("outsider", "server")
"""Who attacks: an outsider does not know who took part in a round, the server does."""


@checked
class PrivacySetup(NamedTuple):
    """The settings of an FA-LD run and the assumptions on its loss.

    Attributes:
        num_clients: N, at least 1.
        num_selected: S, at least 1, and at most N without replacement. Ignored by "full".
        scheme: Which clients are averaged, one of `fedjax_sim.theory.langevin.exact_laws.SCHEMES`.
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
    scheme: str
    local_steps: Count
    num_rounds: Whole
    step_size: AtLeast0
    temperature: AtLeast0
    rho: float
    batch_fraction: Probability
    sensitivity: AtLeast0
    least_weight: Probability
    delta_step: Probability
    delta_round: Probability
    delta_total: Probability
    adversary: str = "server"
    draw_probability: Probability | None = None

    @property
    def private_noise(self) -> float:
        """The product tau (1 - rho^2) min_c p_c."""
        return self.temperature * (1 - self.rho**2) * self.least_weight

    @property
    def largest_step_size(self) -> float:
        """eta_max of condition (59), up to which epsilon_0 of a local step is at most 1."""
        return (
            self.private_noise
            * self.batch_fraction**2
            / (self.sensitivity**2 * np.log(1.25 / self.delta_step))
        )

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of a step's private noise over the step's sensitivity. Derived."""
        return (
            np.sqrt(2 * self.private_noise / self.step_size)
            * self.batch_fraction
            / self.sensitivity
        )

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
    check_run(setup)
    check_step_size(setup.step_size, setup.largest_step_size, "condition (59)")


def check_step_size(step_size: float, limit: float, words: str) -> None:
    """Refuse step sizes that are not positive or beyond the limit, which `words` describe."""
    if not 0 < step_size <= limit * (1 + 1e-12):
        raise ValueError(
            f"step_size is {step_size:g}, but must be above 0 and at most {limit:g}, {words}."
        )


def check_run(setup: PrivacySetup) -> None:
    """Refuse settings outside their range, except for the step size."""
    for name, choice, options in (
        ("scheme", setup.scheme, SCHEMES),
        ("adversary", setup.adversary, ADVERSARIES),
    ):
        if choice not in options:
            raise ValueError(f"{name} is {choice!r}, but must be one of {', '.join(options)}.")
    draw = 1.0 if setup.draw_probability is None else setup.draw_probability
    equal = 1 / max(setup.num_clients, 1)
    is_without = setup.scheme == "without_replacement"
    for name, value, is_allowed, words in (
        ("num_clients", setup.num_clients, setup.num_clients >= 1, "at least 1"),
        (
            "num_selected",
            setup.num_selected,
            setup.scheme == "full" or setup.num_selected >= 1,
            "at least 1",
        ),
        (
            "num_selected",
            setup.num_selected,
            not is_without or setup.num_selected <= setup.num_clients,
            f"at most num_clients = {setup.num_clients}, without replacement",
        ),
        ("local_steps", setup.local_steps, setup.local_steps >= 1, "at least 1"),
        ("num_rounds", setup.num_rounds, setup.num_rounds >= 1, "at least 1"),
        ("temperature", setup.temperature, setup.temperature > 0, "above 0"),
        (
            "rho",
            setup.rho,
            0 <= setup.rho < 1,
            "from 0 to less than 1: shared noise protects nothing",
        ),
        (
            "batch_fraction",
            setup.batch_fraction,
            0 < setup.batch_fraction <= 1,
            "above 0 and at most 1",
        ),
        ("sensitivity", setup.sensitivity, setup.sensitivity > 0, "above 0"),
        (
            "least_weight",
            setup.least_weight,
            0 < setup.least_weight <= equal * (1 + 1e-12),
            f"above 0 and at most 1 / N = {equal:g}",
        ),
        (
            "least_weight",
            setup.least_weight,
            not is_without or setup.least_weight >= equal * (1 - 1e-6),
            f"1 / N = {equal:g} without replacement, which is biased unless all weights are equal",
        ),
        ("delta_step", setup.delta_step, 0 < setup.delta_step < 1, "above 0 and less than 1"),
        (
            "delta_round",
            setup.delta_round,
            0 <= setup.delta_round < 1,
            "at least 0 and less than 1",
        ),
        (
            "delta_total",
            setup.delta_total,
            0 <= setup.delta_total < 1,
            "at least 0 and less than 1",
        ),
        (
            "draw_probability",
            draw,
            equal * (1 - 1e-12) <= draw <= 1,
            f"None, or from 1 / N = {equal:g} to 1",
        ),
    ):
        if not is_allowed:
            raise ValueError(f"{name} is {value:g}, but must be {words}.")
