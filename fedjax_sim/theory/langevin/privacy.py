"""Differential privacy of FA-LD (Deng, Zhang, Ma, Song, Lin, arXiv 2112.05120, Theorems 6.1 and G.3), in float64.

Two data sets are neighbours if they differ in one data point of one client (substitution: sizes are equal). What is protected is the
training data, from whoever sees the aggregates. The shared noise counts as known, so it protects nothing: privacy needs rho < 1.

The guarantee is built in five steps, each with its (epsilon, delta): the Gaussian mechanism of one local step; a mini-batch drawn without
replacement; K local steps; the draw of clients; all rounds. Symbols: eta `step_size`, tau `temperature`, q (the paper's gamma)
`batch_fraction`, Delta_l `sensitivity`, K `local_steps`, E = T / K `num_rounds`, S `num_selected`, delta_0, delta_1, delta_2
`delta_step`, `delta_round`, `delta_total`. Equation numbers are the paper's; "derived" marks what it does not state.

Readings. That clients are drawn at random protects only from those who do not know who took part. The server does: `adversary` "server"
leaves that step out, "outsider" (the paper's) keeps it. It needs, which the paper does not say, that aggregates tell a client's absence no
better than a changed data point: where clients' models lie apart they show who took part, and the draw makes delta smaller by the
probability of taking part but leaves epsilon as it is. "server" is an upper bound there too. All local steps count as released, though
only the last is: an upper bound. Scheme I (with replacement) is stated with draws of probability 1 / N, though clients are drawn with
their weights; give the largest as `draw_probability` for a guarantee to everyone. Its delta is that of groups of s for a client drawn s
times, whose noise grows as its data points' share does: an upper bound. Scheme II (without) needs equal weights, as in the system.
"""

import warnings
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedjax_sim.theory.langevin.exact_laws import SCHEMES

ADVERSARIES = ("outsider", "server")


class PrivacySetup(NamedTuple):
    """A run of FA-LD and what is assumed of its loss."""

    num_clients: int  # N
    num_selected: int  # S
    scheme: str  # of SCHEMES
    local_steps: int  # K
    num_rounds: int  # E
    step_size: float  # eta
    temperature: float  # tau
    rho: float
    batch_fraction: float  # q, of a client's data
    sensitivity: float  # Delta_l, see `softmax_sensitivity`
    least_weight: float  # smallest p_c
    delta_step: float  # delta_0, in (0, 1)
    delta_round: float  # delta_1, in [0, 1)
    delta_total: float  # delta_2, in [0, 1)
    adversary: str = "outsider"
    draw_probability: float | None = (
        None  # of the likeliest client in a draw of scheme I; None for 1 / N
    )

    @property
    def private_noise(self) -> float:
        """tau (1 - rho^2) times the smallest weight."""
        return self.temperature * (1 - self.rho**2) * self.least_weight

    @property
    def largest_step_size(self) -> float:
        """eta_max, condition (59): up to it the Gaussian mechanism's epsilon is at most 1."""
        return (
            self.private_noise
            * self.batch_fraction**2
            / (self.sensitivity**2 * np.log(1.25 / self.delta_step))
        )

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of a step's private noise over the sensitivity of the step. Derived."""
        return (
            np.sqrt(2 * self.private_noise / self.step_size)
            * self.batch_fraction
            / self.sensitivity
        )

    @property
    def inclusion(self) -> float:
        """The probability with which a client is among the selected, as far as the adversary does not know it."""
        if self.scheme == "full" or self.adversary == "server":
            return 1.0
        if self.scheme == "without_replacement":
            return self.num_selected / self.num_clients
        return stats.binom.sf(0, self.num_selected, self._draw)

    @property
    def _draw(self) -> float:
        return 1 / self.num_clients if self.draw_probability is None else self.draw_probability


class Guarantee(NamedTuple):
    """The epsilons and deltas of the five steps."""

    epsilon_step: float  # epsilon_0: of a local step, given its mini-batch
    epsilon_batch: float  # epsilon_1: of a local step
    epsilon_round: float  # epsilon_K: of the local steps of a round
    delta_round: float
    epsilon_sampled: float  # with the draw of clients
    delta_sampled: float
    epsilon: float  # epsilon^(3): of the whole run
    delta: float


def guarantee(setting: PrivacySetup, *, num_examples: int | None = None) -> Guarantee:
    """Compute the privacy of a run (Theorem 6.1).

    num_examples: data points of all clients; if given, a warning is issued where delta exceeds one over it, which protects nobody.
    Scheme I hardly avoids that, as its delta_0 enters by the power 1 / s^2. Raises ValueError for a step size beyond condition (59), for
    rho = 1, for unequal weights under scheme II, and for numbers that no run has.
    """
    _check(setting)
    s = setting
    root = np.sqrt(s.step_size * np.log(1.25 / s.delta_step) / s.private_noise)
    epsilon_step = root * s.sensitivity / s.batch_fraction
    epsilon_batch = 2 * root * s.sensitivity
    epsilon_round = composed(epsilon_batch, s.local_steps, s.delta_round)
    delta_round = s.local_steps * s.batch_fraction * s.delta_step + s.delta_round
    epsilon_sampled = amplified(epsilon_round, s.inclusion)
    if s.scheme == "with_replacement" and s.adversary == "outsider":
        delta_sampled = _delta_of_draws(s, epsilon_round)
    else:
        delta_sampled = s.inclusion * delta_round
    epsilon = composed(epsilon_sampled, s.num_rounds, s.delta_total)
    delta = s.num_rounds * delta_sampled + s.delta_total
    if num_examples is not None and delta > 1 / num_examples:
        warnings.warn(
            f"delta is {delta:.3g}, above one over {num_examples} data points: no protection",
            stacklevel=2,
        )
    return Guarantee(
        *map(
            float,
            (
                epsilon_step,
                epsilon_batch,
                epsilon_round,
                delta_round,
                epsilon_sampled,
                delta_sampled,
                epsilon,
                delta,
            ),
        )
    )


def composed(epsilon: float, num: int, slack: float) -> float:
    """Compute the epsilon of `num` mechanisms, by the better of plain and strong composition; slack: the latter's addition to delta."""
    if slack == 0:
        return num * epsilon
    with np.errstate(over="ignore"):
        return float(
            epsilon * min(np.sqrt(2 * num * np.log(1 / slack)) + num * np.expm1(epsilon), num)
        )


def amplified(epsilon: float, inclusion: float) -> float:
    """Compute the epsilon of a mechanism that sees a data point only with probability `inclusion`."""
    if epsilon > 30:
        return float(epsilon + np.log(inclusion + (1 - inclusion) * np.exp(-epsilon)))
    return float(np.log1p(inclusion * np.expm1(epsilon)))


def corollary_step_size(setting: PrivacySetup) -> float:
    """Compute the step size up to which `corollary_epsilon` holds: (71) and (59); the setting's own does not matter.

    Scheme II against outsiders, delta_1 and delta_2 above 0; ValueError otherwise.
    """
    s = _of_corollary(setting)
    share, num_steps = s.num_selected / s.num_clients, s.local_steps * s.num_rounds
    of_round = np.log1p(np.sqrt(2 * np.log(1 / s.delta_round) / s.local_steps)) ** 2
    of_run = (
        np.log1p(np.sqrt(2 * s.local_steps * np.log(1 / s.delta_total) / num_steps) / share) ** 2
    )
    least = min(of_round, of_run / (8 * s.local_steps * np.log(1 / s.delta_round)))
    return float(
        min(
            s.largest_step_size,
            s.private_noise / (4 * s.sensitivity**2 * np.log(1.25 / s.delta_step)) * least,
        )
    )


def corollary_epsilon(setting: PrivacySetup) -> float:
    """Compute the simpler bound (75) on epsilon^(3). Raises ValueError beyond `corollary_step_size`, and where that does."""
    _check_step_size(setting.step_size, corollary_step_size(setting), "conditions (59) and (71)")
    s = setting
    share = s.num_selected / s.num_clients
    factor = np.sqrt(2 * np.log(1.25 / s.delta_step))
    of_round = (
        4
        * factor
        * s.sensitivity
        * np.sqrt(s.step_size * s.local_steps * np.log(1 / s.delta_round) / s.private_noise)
    )
    return float(
        2
        * np.sqrt(2 * s.num_rounds * np.log(1 / s.delta_total))
        * np.log1p(share * np.expm1(of_round))
    )


def leading_epsilon(setting: PrivacySetup) -> float:
    """Compute the leading order of (75) for small step sizes, (76)-(77). The constant 16 is derived. Conditions as for (71)."""
    s = _of_corollary(setting)
    logs = np.log(1.25 / s.delta_step) * np.log(1 / s.delta_round) * np.log(1 / s.delta_total)
    num_steps = s.local_steps * s.num_rounds
    return float(
        16
        * s.num_selected
        * s.sensitivity
        / s.num_clients
        * np.sqrt(s.step_size * num_steps * logs / s.private_noise)
    )


def largest_rho(setting: PrivacySetup, *, epsilon: float, delta: float = 1.0) -> float:
    """Find the largest rho, for accuracy, at which the guarantee is still within epsilon and delta (the tuning of Sec. 6).

    Raises ValueError if not even rho = 0 is.
    """

    def is_within(rho: float) -> bool:
        at = setting._replace(rho=rho)
        if rho >= 1 or setting.step_size > at.largest_step_size:
            return False
        reached = guarantee(at)
        return reached.epsilon <= epsilon and reached.delta <= delta

    if not is_within(0.0):
        raise ValueError(
            f"epsilon is {epsilon:g} and delta {delta:g}, but must be larger: the run does not reach them at rho = 0."
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def softmax_sensitivity(largest_norm: float) -> float:
    """Bound Delta_l of multinomial logistic regression; largest_norm: of an input with its constant 1. Derived."""
    return 2 * np.sqrt(2) * largest_norm


def _delta_of_draws(setting: PrivacySetup, epsilon_round: float) -> float:
    """Delta of a round under scheme I: a client drawn s times moves the average s times as far, which is privacy of groups of s."""
    s, total = np.arange(1, setting.num_selected + 1), setting.num_selected
    with np.errstate(over="ignore"):
        single = (
            1.25
            * setting.local_steps
            * setting.batch_fraction
            * (setting.delta_step / 1.25) ** (1 / s**2)
            + setting.delta_round
        )
        grown = (
            np.exp(epsilon_round * (1 - 1 / s))
            * np.expm1(-epsilon_round)
            / np.expm1(-epsilon_round / s)
        )
    return float(np.sum(stats.binom.pmf(s, total, setting._draw) * grown * single))


def _of_corollary(setting: PrivacySetup) -> PrivacySetup:
    """Refuse what the corollaries do not hold for."""
    s = setting
    _check_run(s)
    for name, value, needed in (
        ("scheme", s.scheme, "without_replacement"),
        ("adversary", s.adversary, "outsider"),
    ):
        if value != needed:
            raise ValueError(f"{name} is {value!r}, but must be {needed!r} in the corollaries.")
    for name, slack in (("delta_round", s.delta_round), ("delta_total", s.delta_total)):
        if slack == 0:
            raise ValueError(f"{name} is 0, but must be above 0 in the corollaries.")
    return s


def _check(setting: PrivacySetup) -> None:
    _check_run(setting)
    _check_step_size(setting.step_size, setting.largest_step_size, "condition (59)")


def _check_step_size(step_size: float, limit: float, words: str) -> None:
    if not 0 < step_size <= limit * (1 + 1e-12):
        raise ValueError(
            f"step_size is {step_size:g}, but must be above 0 and at most {limit:g}, {words}."
        )


def _check_run(setting: PrivacySetup) -> None:
    """Refuse numbers that no run has; the step size aside."""
    s = setting
    for name, choice, options in (
        ("scheme", s.scheme, SCHEMES),
        ("adversary", s.adversary, ADVERSARIES),
    ):
        if choice not in options:
            raise ValueError(f"{name} is {choice!r}, but must be one of {', '.join(options)}.")
    draw = 1.0 if s.draw_probability is None else s.draw_probability
    equal = 1 / max(s.num_clients, 1)
    for name, value, is_allowed, words in (
        ("num_clients", s.num_clients, s.num_clients >= 1, "at least 1"),
        ("num_selected", s.num_selected, s.scheme == "full" or s.num_selected >= 1, "at least 1"),
        (
            "num_selected",
            s.num_selected,
            s.scheme != "without_replacement" or s.num_selected <= s.num_clients,
            f"at most num_clients = {s.num_clients}, without replacement",
        ),
        ("local_steps", s.local_steps, s.local_steps >= 1, "at least 1"),
        ("num_rounds", s.num_rounds, s.num_rounds >= 1, "at least 1"),
        ("temperature", s.temperature, s.temperature > 0, "above 0"),
        ("rho", s.rho, 0 <= s.rho < 1, "from 0 to less than 1: shared noise protects nothing"),
        ("batch_fraction", s.batch_fraction, 0 < s.batch_fraction <= 1, "above 0 and at most 1"),
        ("sensitivity", s.sensitivity, s.sensitivity > 0, "above 0"),
        (
            "least_weight",
            s.least_weight,
            0 < s.least_weight <= equal * (1 + 1e-12),
            f"above 0 and at most 1 / N = {equal:g}",
        ),
        (
            "least_weight",
            s.least_weight,
            s.scheme != "without_replacement" or s.least_weight >= equal * (1 - 1e-6),
            f"1 / N = {equal:g} without replacement, which is biased unless all weights are equal",
        ),
        ("delta_step", s.delta_step, 0 < s.delta_step < 1, "above 0 and less than 1"),
        ("delta_round", s.delta_round, 0 <= s.delta_round < 1, "at least 0 and less than 1"),
        ("delta_total", s.delta_total, 0 <= s.delta_total < 1, "at least 0 and less than 1"),
        (
            "draw_probability",
            draw,
            equal * (1 - 1e-12) <= draw <= 1,
            f"None, or from 1 / N = {equal:g} to 1",
        ),
    ):
        if not is_allowed:
            raise ValueError(f"{name} is {value:g}, but must be {words}.")
