"""Differential privacy of FA-LD (arXiv 2112.05120, Theorems 6.1 and G.3), in float64.

Two data sets are neighbours if they differ in one data point of one client (substitution, so their
sizes are equal). The training data is protected from whoever sees the aggregates. The shared noise
is treated as known, so it protects nothing: privacy needs rho < 1.

The guarantee is built in five steps, each with its (epsilon, delta): the Gaussian mechanism of one
local step; the mini-batch drawn without replacement; K local steps; the draw of clients; and all
rounds.

Symbols of the paper and their names in `PrivacySetup`:

    N, S                        `num_clients`, `num_selected`
    K, E                        `local_steps`, `num_rounds` (T / K, with T steps in all)
    eta, tau                    `step_size`, `temperature`
    q (the paper's gamma)       `batch_fraction`
    Delta_l                     `sensitivity`
    delta_0, delta_1, delta_2   `delta_step`, `delta_round`, `delta_total`

Equation numbers are the paper's; "derived" marks what it does not state.

`of` computes this bound for a run, and next to it the epsilon of the package dp-accounting, which
composes the local steps tightly instead of one stage after the other.

How the paper is read:
- The random draw of clients protects only against an adversary who does not know who took part.
  The server knows. With the adversary "server", the default, this step is left out; with
  "outsider", the paper's, it is included, and a warning says what it needs.
- That step needs an assumption that the paper does not state: that the aggregates show whether a
  client took part no better than they show a changed data point. If clients' models lie far apart,
  the aggregates show who took part. The draw then multiplies delta by the probability of taking
  part, but does not reduce epsilon. The guarantee against "server" is an upper bound in that case
  too.
- All local steps count as released, although only the last one is. This is an upper bound.
- Scheme I (with replacement) is stated for draws of probability 1 / N, although clients are drawn
  with probabilities equal to their weights. For a guarantee to every client, pass the largest
  weight as `draw_probability`.
- Under scheme I, delta treats the data point of a client drawn s times as a group of s data points,
  although the client's noise is multiplied by s as well. This is an upper bound.
- Scheme II (without replacement) needs equal weights, as in the simulated system.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import optax
from scipy import stats

from fedjax_sim.privacy.accounting import NoisySteps, epsilon_after
from fedjax_sim.settings import ConfigError
from fedjax_sim.theory.langevin.exact_laws import SCHEMES

ADVERSARIES = ("outsider", "server")


class OutsiderWarning(UserWarning):
    """A guarantee against outsiders was asked for, which does not hold for all clients."""


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

    num_clients: int
    num_selected: int
    scheme: str
    local_steps: int
    num_rounds: int
    step_size: float
    temperature: float
    rho: float
    batch_fraction: float
    sensitivity: float
    least_weight: float
    delta_step: float
    delta_round: float
    delta_total: float
    adversary: str = "server"
    draw_probability: float | None = None

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
        return stats.binom.sf(0, self.num_selected, self._draw)

    @property
    def _draw(self) -> float:
        """Probability of the most likely client in a draw of scheme I."""
        return 1 / self.num_clients if self.draw_probability is None else self.draw_probability


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


def guarantee(setup: PrivacySetup, *, num_examples: int | None = None) -> Guarantee:
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
        ValueError: If a setting is outside its range, in particular if the step size exceeds
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


class Accounts(NamedTuple):
    """Epsilons of one run, for the client with the least privacy.

    Attributes:
        delta: delta, which all epsilons have.
        paper: epsilon^(3) of Theorem 6.1; infinity if the step size exceeds condition (59).
        rdp: epsilon by Renyi divergences.
        pld: epsilon by privacy loss distributions, which cover no mini-batches: NaN with these.
        noise_multiplier: Standard deviation of a step's private noise over the step's sensitivity.
        num_steps: Local steps that are accounted for.
        setup: The run as Theorem 6.1 sees it.
    """

    delta: float
    paper: float
    rdp: float
    pld: float
    noise_multiplier: float
    num_steps: int
    setup: PrivacySetup


def of(
    run: Any,
    problem: Any,
    rounds: int | None = None,
    *,
    sensitivity: float | None = None,
    delta: float = 1e-5,
    adversary: str = "server",
) -> Accounts:
    """Compute the privacy of an FA-LD run from its settings and its problem.

    Every local step of a client is a Gaussian mechanism. A mini-batch of B of n_c examples gives
    the step eta / (q p_c) times the sum of its gradients, q = B / n_c, so that replacing one
    example moves it by at most eta Delta_l / (q p_c), while its private noise has the standard
    deviation sqrt(2 eta tau (1 - rho^2) / p_c). Steps compose; what the server computes from them,
    compressed messages included, reveals no more. Derived, except for Theorem 6.1.

    Args:
        run: What `sweep` or `simulate` returned, whose schedules say how often each client took
            part, or the settings of such a run (`fedjax_sim.systems.langevin.Hyper`), under which a
            client is taken to take part in every round.
        problem: The problem, for the clients' numbers of examples.
        rounds: Number of rounds; None for those of `run`.
        sensitivity: Delta_l, largest distance between the gradients of two examples' losses. None
            takes twice the setting `example_clip`, which bounds it for any model.
        delta: delta of the whole run, in (0, 1). For Theorem 6.1 it is divided equally among steps,
            rounds and run.
        adversary: As in `PrivacySetup`; only Theorem 6.1 knows "outsider".

    Returns:
        The epsilons.

    Raises:
        ConfigError: If settings differ between the lanes of a run, a setting is not accounted for,
            or a number is outside its range.
    """
    hyper, timelines = _settings_of(run)
    if rounds is None and not timelines:
        allowed = "a whole number of at least 1, or a run in place of its settings"
        raise ConfigError("rounds", None, allowed)
    num_rounds = max(len(each.time) for each in timelines) if rounds is None else int(rounds)
    bound = 2 * hyper.example_clip if sensitivity is None else sensitivity
    _check_accounted(hyper, bound, delta, num_rounds)
    counts = np.asarray(problem.counts)
    weights = counts if hyper.client_weights is None else np.asarray(hyper.client_weights, float)
    share = np.broadcast_to(weights, counts.shape) / np.broadcast_to(weights, counts.shape).sum()
    times = np.full(counts.shape, num_rounds)
    if timelines:  # of the lane in which the client took part most often
        times = np.max([_times_taken(each, len(counts), num_rounds) for each in timelines], axis=0)
    batch = counts if hyper.gradient == "exact" else np.full(counts.shape, hyper.batch_size)
    # A batch that is larger than the client's examples has some of them more than once.
    fraction = np.where(batch < counts, batch / counts, batch / counts / np.ceil(batch / counts))
    setup = PrivacySetup(
        num_clients=len(counts),
        num_selected=hyper.num_selected,
        scheme=hyper.participation,
        local_steps=int(hyper.local_steps),
        num_rounds=num_rounds if adversary == "outsider" else max(int(times.max()), 1),
        step_size=float(hyper.step_size),
        temperature=float(hyper.temperature * hyper.friction),
        rho=float(hyper.rho),
        batch_fraction=float(fraction.min()),
        sensitivity=float(bound),
        least_weight=float(share.min()),
        delta_step=delta / 3,
        delta_round=delta / 3,
        delta_total=delta / 3,
        adversary=adversary,
        draw_probability=float(share.max()),
    )
    steps = setup.local_steps * times
    kinds = [
        NoisySteps(int(n), int(min(b, n)), "rdp", delta) for n, b in zip(counts, batch, strict=True)
    ]
    noise = [
        float(setup._replace(least_weight=p, batch_fraction=q).noise_multiplier)
        for p, q in zip(share, fraction, strict=True)
    ]
    rdp = [float(epsilon_after(*each)) for each in zip(steps, kinds, noise, strict=True)]
    worst = int(np.argmax(rdp))
    by_pld, pld = kinds[worst]._replace(accountant="pld"), np.nan
    if by_pld.batch == by_pld.num_examples:
        pld = float(epsilon_after(steps[worst], by_pld, noise[worst]))
    return Accounts(
        delta, _paper(setup, delta), rdp[worst], pld, noise[worst], int(steps[worst]), setup
    )


def _paper(setup: PrivacySetup, delta: float) -> float:
    """Compute epsilon^(3), with deltas of the stages such that delta^(3) is at most `delta`."""
    rounds = setup.num_rounds * setup.inclusion
    split = setup._replace(
        delta_step=delta / 3 / setup.local_steps / rounds, delta_round=delta / 3 / rounds
    )
    if split.step_size > split.largest_step_size:
        return np.inf
    found = guarantee(split)
    if found.delta > delta * (1 + 1e-9):
        allowed = f"server with draws with replacement, as delta would be {found.delta:.2g}"
        raise ConfigError("adversary", setup.adversary, allowed)
    return found.epsilon


def _settings_of(run: Any) -> tuple[Any, Sequence[Any]]:
    """Return the settings of a run's lanes, which must be equal, and its schedules."""
    lanes = getattr(run, "hypers", [run])
    for name in _ACCOUNTED:
        values = {_plain(getattr(each, name, None)) for each in lanes}
        if None in values:
            allowed = "one of FA-LD, or a run of it"
            raise ConfigError("run", type(lanes[0]).__module__, allowed)
        if len(values) > 1:
            allowed = "one value; give the settings of one lane, run.hypers[i], and the rounds"
            raise ConfigError(name, ", ".join(map(str, sorted(values))), allowed)
    return lanes[0], getattr(run, "timelines", ())


def _plain(value: Any) -> Any:
    """Turn a number of any kind into a float."""
    return value if value is None or isinstance(value, str) else float(value)


_ACCOUNTED = (
    *("step_size", "temperature", "rho", "friction", "local_steps", "batch_size"),
    *("gradient", "example_clip", "participation", "num_selected"),
)
"""Settings on which the privacy of a run depends."""


def _times_taken(timeline: Any, num_clients: int, num_rounds: int) -> Any:
    """Count the rounds in which each client took part: `i64[N]`."""
    clients = np.asarray(timeline.clients)[:num_rounds]
    return np.bincount(clients[clients >= 0], minlength=num_clients)


def _check_accounted(hyper: Any, sensitivity: float, delta: float, rounds: int) -> None:
    """Refuse runs that are not accounted for."""
    for name, value, is_allowed, allowed in (
        (
            "sensitivity",
            sensitivity,
            0 < sensitivity < np.inf,
            "above 0 and finite, or else the setting example_clip, which bounds it",
        ),
        ("delta", delta, 0 < delta < 1, "above 0 and below 1"),
        ("rounds", rounds, rounds >= 1, "at least 1"),
        ("temperature", float(hyper.temperature), hyper.temperature > 0, "above 0, for noise"),
        ("rho", float(hyper.rho), hyper.rho < 1, "below 1: shared noise protects nothing"),
        ("step_decay", float(hyper.step_decay), hyper.step_decay == 0, "0 to be accounted for"),
        (
            "noise_correction",
            hyper.noise_correction,
            not hyper.noise_correction,
            "false to be accounted for",
        ),
        (
            "control",
            hyper.control,
            hyper.control == "none",
            "none to be accounted for, as whole gradients are sent without noise",
        ),
        (
            "preconditioner",
            hyper.preconditioner,
            hyper.preconditioner == "none",
            "none to be accounted for, as gradients are sent without noise",
        ),
        (
            "transform",
            getattr(hyper.transform, "__name__", str(hyper.transform)),
            hyper.transform is optax.identity,
            "optax.identity to be accounted for, as another one may change the sensitivity",
        ),
    ):
        if not is_allowed:
            raise ConfigError(name, value, allowed)


def composed(epsilon: float, num: int, slack: float) -> float:
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
        return float(
            epsilon * min(np.sqrt(2 * num * np.log(1 / slack)) + num * np.expm1(epsilon), num)
        )


def amplified(epsilon: float, inclusion: float) -> float:
    """Compute the epsilon of a mechanism that sees a data point only with some probability.

    Args:
        epsilon: epsilon of the mechanism if it always sees the data point, at least 0.
        inclusion: Probability that it sees the data point, in (0, 1].

    Returns:
        log(1 + inclusion (e^epsilon - 1)).
    """
    if epsilon > 30:
        return float(epsilon + np.log(inclusion + (1 - inclusion) * np.exp(-epsilon)))
    return float(np.log1p(inclusion * np.expm1(epsilon)))


def corollary_step_size(setup: PrivacySetup) -> float:
    """Compute the step size up to which `corollary_epsilon` holds, by (71) and (59).

    Args:
        setup: The run, with scheme II, the adversary "outsider", and delta_1 and delta_2 above 0.
            Its step size is ignored.

    Returns:
        The largest eta.

    Raises:
        ValueError: If the corollary does not hold for the run, or a setting is outside its range.
    """
    _check_corollary(setup)
    share = setup.num_selected / setup.num_clients
    num_steps = setup.local_steps * setup.num_rounds
    of_round = np.log1p(np.sqrt(2 * np.log(1 / setup.delta_round) / setup.local_steps)) ** 2
    of_run = (
        np.log1p(np.sqrt(2 * setup.local_steps * np.log(1 / setup.delta_total) / num_steps) / share)
        ** 2
    )
    least = min(of_round, of_run / (8 * setup.local_steps * np.log(1 / setup.delta_round)))
    return float(
        min(
            setup.largest_step_size,
            setup.private_noise
            / (4 * setup.sensitivity**2 * np.log(1.25 / setup.delta_step))
            * least,
        )
    )


def corollary_epsilon(setup: PrivacySetup) -> float:
    """Compute the simpler bound (75) on epsilon^(3).

    Args:
        setup: The run, as in `corollary_step_size`, whose value its step size must not exceed.

    Returns:
        The bound.

    Raises:
        ValueError: If the step size is not positive or too large, the corollary does not hold for
            the run, or a setting is outside its range.
    """
    _check_step_size(setup.step_size, corollary_step_size(setup), "conditions (59) and (71)")
    share = setup.num_selected / setup.num_clients
    factor = np.sqrt(2 * np.log(1.25 / setup.delta_step))
    of_round = (
        4
        * factor
        * setup.sensitivity
        * np.sqrt(
            setup.step_size
            * setup.local_steps
            * np.log(1 / setup.delta_round)
            / setup.private_noise
        )
    )
    return float(
        2
        * np.sqrt(2 * setup.num_rounds * np.log(1 / setup.delta_total))
        * np.log1p(share * np.expm1(of_round))
    )


def leading_epsilon(setup: PrivacySetup) -> float:
    """Compute the leading order of (75) for small step sizes, (76)-(77).

    The paper gives the order; the constant 16 is derived.

    Args:
        setup: The run, as in `corollary_step_size`. Its step size is not checked.

    Returns:
        The leading order of epsilon^(3).

    Raises:
        ValueError: If the corollary does not hold for the run, or a setting is outside its range.
    """
    _check_corollary(setup)
    logs = (
        np.log(1.25 / setup.delta_step)
        * np.log(1 / setup.delta_round)
        * np.log(1 / setup.delta_total)
    )
    num_steps = setup.local_steps * setup.num_rounds
    return float(
        16
        * setup.num_selected
        * setup.sensitivity
        / setup.num_clients
        * np.sqrt(setup.step_size * num_steps * logs / setup.private_noise)
    )


def largest_rho(setup: PrivacySetup, *, epsilon: float, delta: float = 1.0) -> float:
    """Find the largest rho at which the guarantee is still within epsilon and delta.

    This is the tuning of Sec. 6: a larger rho is more accurate and less private.

    Args:
        setup: The run. Its rho is ignored.
        epsilon: Largest acceptable epsilon^(3).
        delta: Largest acceptable delta^(3).

    Returns:
        rho, in [0, 1).

    Raises:
        ValueError: If even rho = 0 does not meet both, or a setting is outside its range.
    """

    def is_within(rho: float) -> bool:
        at = setup._replace(rho=rho)
        if rho >= 1 or setup.step_size > at.largest_step_size:
            return False
        reached = guarantee(at)
        return reached.epsilon <= epsilon and reached.delta <= delta

    if not is_within(0.0):
        raise ValueError(
            f"epsilon is {epsilon:g} and delta is {delta:g}, but must be larger: the run does not "
            "reach them even at rho = 0."
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def softmax_sensitivity(largest_norm: float) -> float:
    """Bound Delta_l of softmax (multinomial logistic) regression. Derived.

    Args:
        largest_norm: Largest norm of an input, its constant 1 for the bias included.

    Returns:
        2 sqrt(2) times that norm.
    """
    return 2 * np.sqrt(2) * largest_norm


def _delta_of_draws(setup: PrivacySetup, epsilon_round: float) -> float:
    """Compute delta of a round under scheme I.

    A client drawn s times moves the average s times as far, so its privacy is that of a group of s.
    """
    times_drawn = np.arange(1, setup.num_selected + 1)
    with np.errstate(over="ignore"):
        single = (
            1.25
            * setup.local_steps
            * setup.batch_fraction
            * (setup.delta_step / 1.25) ** (1 / times_drawn**2)
            + setup.delta_round
        )
        grown = (
            np.exp(epsilon_round * (1 - 1 / times_drawn))
            * np.expm1(-epsilon_round)
            / np.expm1(-epsilon_round / times_drawn)
        )
    probability = stats.binom.pmf(times_drawn, setup.num_selected, setup._draw)
    return float(np.sum(probability * grown * single))


def _check_corollary(setup: PrivacySetup) -> None:
    """Refuse runs for which the corollaries do not hold."""
    _check_run(setup)
    for name, value, needed in (
        ("scheme", setup.scheme, "without_replacement"),
        ("adversary", setup.adversary, "outsider"),
    ):
        if value != needed:
            raise ValueError(f"{name} is {value!r}, but must be {needed!r} in the corollaries.")
    for name, slack in (("delta_round", setup.delta_round), ("delta_total", setup.delta_total)):
        if slack == 0:
            raise ValueError(f"{name} is 0, but must be above 0 in the corollaries.")


def _check(setup: PrivacySetup) -> None:
    """Refuse settings outside their range, and step sizes beyond condition (59)."""
    _check_run(setup)
    _check_step_size(setup.step_size, setup.largest_step_size, "condition (59)")


def _check_step_size(step_size: float, limit: float, words: str) -> None:
    """Refuse step sizes that are not positive or beyond the limit, which `words` describe."""
    if not 0 < step_size <= limit * (1 + 1e-12):
        raise ValueError(
            f"step_size is {step_size:g}, but must be above 0 and at most {limit:g}, {words}."
        )


def _check_run(setup: PrivacySetup) -> None:
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
