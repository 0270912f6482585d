"""Differential privacy of FA-LD (arXiv 2112.05120, Theorems 6.1 and G.3), in float64.

Two data sets are neighbours if they differ in one data point of one client (substitution, so their
sizes are equal). The training data is protected from whoever sees the aggregates. The shared noise
is treated as known, so it protects nothing: privacy needs rho < 1.

The guarantee is built in five steps, each with its (epsilon, delta): the Gaussian mechanism of one
local step; the mini-batch drawn without replacement; K local steps; the draw of clients; and all
rounds.

`PrivacySetup` has the settings on which privacy depends, `guarantee` is the guarantee, stage by
stage, and `largest_rho` the largest rho within a budget. `privacy_of` computes this bound for a
run, and next to it the epsilon of the package dp-accounting, which composes the local steps tightly
instead of one stage after the other.

Symbols of the paper and their names in `PrivacySetup`:

    N, S                        `num_clients`, `num_selected`
    K, E                        `local_steps`, `num_rounds` (T / K, with T steps in all)
    eta, tau                    `step_size`, `temperature`
    q (the paper's gamma)       `batch_fraction`
    Delta_l                     `sensitivity`
    delta_0, delta_1, delta_2   `delta_step`, `delta_round`, `delta_total`

Equation numbers are the paper's; "derived" marks what it does not state.

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
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import optax
from scipy import stats

from fedjax_sim.core import schedules, settings
from fedjax_sim.core.settings import ConfigError, fields, value_of
from fedjax_sim.core.types import Settings
from fedjax_sim.server.accounting import NoisySteps, epsilon_after

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
    epsilon_round = _composed(epsilon_batch, setup.local_steps, setup.delta_round)
    delta_round = setup.local_steps * setup.batch_fraction * setup.delta_step + setup.delta_round
    epsilon_sampled = _amplified(epsilon_round, setup.inclusion)
    if setup.scheme == "with_replacement" and setup.adversary == "outsider":
        delta_sampled = _delta_of_draws(setup, epsilon_round)
    else:
        delta_sampled = setup.inclusion * delta_round
    epsilon = _composed(epsilon_sampled, setup.num_rounds, setup.delta_total)
    delta = setup.num_rounds * delta_sampled + setup.delta_total
    if num_examples is not None and delta > 1 / num_examples:
        warnings.warn(
            f"delta is {delta:.3g}, but must be at most 1 / {num_examples}, one over the number of "
            "data points; otherwise there is no protection.",
            stacklevel=2,
        )
    of_round = (epsilon_step, epsilon_batch, epsilon_round, delta_round)
    return Guarantee(*map(float, (*of_round, epsilon_sampled, delta_sampled, epsilon, delta)))


def _composed(epsilon: float, num: int, slack: float) -> float:
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


def _amplified(epsilon: float, inclusion: float) -> float:
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

    if not _is_within(setup._replace(rho=0.0), epsilon, delta):
        allowed = f"larger, or delta = {delta:g} larger: the run misses them even at rho = 0"
        raise ConfigError("epsilon", epsilon, allowed)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        is_within = _is_within(setup._replace(rho=middle), epsilon, delta)
        low, high = (middle, high) if is_within else (low, middle)
    return low


def _is_within(setup: PrivacySetup, epsilon: float, delta: float) -> bool:
    """Whether a run meets condition (59) and guarantees epsilon and delta."""
    if setup.rho >= 1 or setup.step_size > setup.largest_step_size:
        return False
    reached = guarantee(setup)
    return reached.epsilon <= epsilon and reached.delta <= delta


class Choice(NamedTuple):
    """A mixing weight and a step size.

    Attributes:
        rho: Mixing weight of the shared noise.
        step_size: eta.
        error: The error there.
    """

    rho: float
    step_size: float
    error: float


def best_choice(
    setup: PrivacySetup,
    error: Callable[[np.ndarray, np.ndarray], np.ndarray],
    *,
    epsilon: settings.Above0,
    delta: settings.Probability = 1.0,
) -> Choice:
    """Find the rho and the step size with the least error among those within epsilon and delta.

    Both enter Theorem 6.1 and condition (59) as eta / (1 - rho^2) alone, so that the budget allows
    eta up to c (1 - rho^2), with c the largest step size at rho = 0. Derived: the paper tunes rho
    at a given step size only, see `largest_rho`.

    Args:
        setup: The run. Its rho and step size are ignored.
        error: From step sizes and rhos, `f64[A, A]` each, to errors, such as bounds of W2.
        epsilon: Largest acceptable epsilon^(3).
        delta: Largest acceptable delta^(3).

    Returns:
        The choice, within 1e-6 of the best one if the error has no second valley.

    Raises:
        ConfigError: If no step size meets both, or a setting is outside its range.
    """

    def is_within(size: float) -> bool:
        return _is_within(setup._replace(rho=0.0, step_size=size), epsilon, delta)

    high = setup._replace(rho=0.0).largest_step_size
    low = 1e-12 * high
    if not is_within(low):
        allowed = f"larger, or delta = {delta:g} larger: no step size meets them"
        raise ConfigError("epsilon", epsilon, allowed)
    for _ in range(80):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if is_within(middle) else (low, middle)
    # Of log(1 - rho^2) and log(eta / (c (1 - rho^2))), both at most 0.
    centre, width = np.array([-10.0, -10.0]), 10.0
    for _ in range(12):
        grid = np.linspace(-width, width, 81)
        left, used = np.meshgrid(*(np.minimum(each + grid, 0) for each in centre), indexing="ij")
        values = error(low * np.exp(left + used), np.sqrt(-np.expm1(left)))
        if np.isnan(values).any():
            raise ConfigError("error", "NaN", "a number for every step size and rho that fit")
        place = np.unravel_index(np.argmin(values), values.shape)
        centre, width = np.array([left[place], used[place]]), width / 5
    rho, size = np.sqrt(-np.expm1(centre[0])), low * np.exp(centre.sum())
    return Choice(float(rho), float(size), float(values[place]))


class Accounts(NamedTuple):
    """Epsilons of one run, for the client with the least privacy.

    Attributes:
        delta: delta, which all epsilons have.
        paper: epsilon^(3) of Theorem 6.1; infinity if the step size exceeds condition (59), NaN
            with control variates, which it does not cover.
        rdp: epsilon by Renyi divergences.
        pld: epsilon by privacy loss distributions, which cover no mini-batches: NaN with these.
        noise_multiplier: Standard deviation of a step's private noise over the step's sensitivity.
        num_steps: Local steps that are accounted for.
        setup: The run as Theorem 6.1 sees it, with those deltas of its stages that `paper` has.
    """

    delta: float
    paper: float
    rdp: float
    pld: float
    noise_multiplier: float
    num_steps: int
    setup: PrivacySetup


def privacy_of(
    run: Any,
    problem: Any,
    rounds: settings.Count | None = None,
    *,
    sensitivity: settings.AtLeast0 | None = None,
    delta: settings.Fraction = 1e-5,
    adversary: str = "server",
) -> Accounts:
    """Compute the privacy of an FA-LD run from its settings and its problem.

    Every local step of a client is a Gaussian mechanism. A mini-batch of B of n_c examples gives
    the step eta / (q p_c) times the sum of its gradients, q = B / n_c, so that replacing one
    example moves it by at most eta Delta_l / (q p_c), while its private noise has the standard
    deviation sqrt(2 eta tau (1 - rho^2) / p_c). Steps compose; what the server computes from them,
    compressed messages included, reveals no more. Derived, except for Theorem 6.1.

    With the control variates "client" the step has eta / p_c times a whole gradient too, and eta /
    (q p_c) times the gradients of the batch twice. Replacing one example moves it by at most
    eta Delta_l (2 + q) / (q p_c), in every step, so that drawing mini-batches amplifies nothing.

    Args:
        run: What `sweep` or `simulate` returned, whose schedules say how often each client took
            part, or the settings of such a run (`fedjax_sim.systems.langevin.Hyper`), under which a
            client is taken to take part in every round.
        problem: The problem, for the clients' numbers of examples.
        rounds: Number of rounds, at most those of a run; None for all of `run`.
        sensitivity: Delta_l, largest distance between the gradients of two examples' losses. None
            takes twice the setting `example_clip`, which bounds it for any model, but not the whole
            gradients of control variates.
        delta: delta of the whole run, in (0, 1). For Theorem 6.1 it is divided equally among steps,
            rounds and run.
        adversary: As in `PrivacySetup`; only Theorem 6.1 knows "outsider".

    Returns:
        The epsilons.

    Raises:
        ConfigError: If settings differ between the lanes of a run, a setting is not accounted for,
            a number is outside its range, or `rounds` is more than a run has.
    """
    lanes, timelines = getattr(run, "hypers", [run]), getattr(run, "timelines", ())
    _check_equal(lanes)
    hyper, most = lanes[0], max((len(each.time) for each in timelines), default=0)
    if rounds is None and not timelines:
        allowed = "a whole number of at least 1, or a run in place of its settings"
        raise ConfigError("rounds", None, allowed)
    num_rounds = int(most if rounds is None else rounds)
    if timelines and num_rounds > most:
        allowed = f"at most {most}, those of the run, or given with the settings of the run instead"
        raise ConfigError("rounds", num_rounds, allowed)
    has_control = hyper.control_variates.anchor != "none"
    clip = 0.0 if has_control else 2 * hyper.training.example_clip
    bound = clip if sensitivity is None else sensitivity
    for each in lanes:
        _check_accounted(each, bound)
    counts = np.asarray(problem.counts)
    share = _equal_shares(lanes, counts)
    times = np.full(counts.shape, num_rounds)
    if timelines:  # of the lane in which the client took part most often
        sent = [np.asarray(each.clients)[:num_rounds] for each in timelines]
        times = np.max([np.bincount(x[x >= 0], minlength=len(counts)) for x in sent], axis=0)
    batch = counts if hyper.gradient == "exact" else np.full(counts.shape, hyper.batch_size)
    # A batch that is larger than the client's examples has some of them more than once.
    fraction = np.where(batch < counts, batch / counts, batch / counts / np.ceil(batch / counts))
    setup = PrivacySetup(
        num_clients=len(counts),
        num_selected=hyper.num_selected,
        scheme=hyper.participants,
        local_steps=int(hyper.local_steps),
        num_rounds=num_rounds if adversary == "outsider" else max(int(times.max()), 1),
        step_size=float(hyper.step_size),
        temperature=float(hyper.temperature * hyper.dynamics.friction),
        rho=float(hyper.rho),
        batch_fraction=float(fraction.min()),
        sensitivity=float(bound),
        least_weight=float(share.min()),
        delta_step=delta / 3,  # Divided among steps and rounds below, when these are known.
        delta_round=delta / 3,
        delta_total=delta / 3,
        adversary=adversary,
        draw_probability=float(share.max()),
    )
    rounds_taken = setup.num_rounds * setup.inclusion
    delta_step = delta / 3 / setup.local_steps / rounds_taken
    setup = setup._replace(delta_step=delta_step, delta_round=delta / 3 / rounds_taken)
    steps = setup.local_steps * times
    seen = counts if has_control else np.minimum(batch, counts)
    kinds = [NoisySteps(int(n), int(b), "rdp", delta) for n, b in zip(counts, seen, strict=True)]
    noise = []
    for p, q in zip(share, fraction, strict=True):
        of_client = setup._replace(least_weight=p, batch_fraction=q)
        noise.append(float(of_client.noise_multiplier / (2 + q if has_control else 1)))
    rdp = [float(epsilon_after(*each)) for each in zip(steps, kinds, noise, strict=True)]
    worst = int(np.argmax(rdp))
    by_pld, pld = kinds[worst]._replace(accountant="pld"), np.nan
    if by_pld.batch == by_pld.num_examples:
        pld = float(epsilon_after(steps[worst], by_pld, noise[worst]))
    paper = np.nan if has_control else _paper(setup, delta)
    return Accounts(delta, paper, rdp[worst], pld, noise[worst], int(steps[worst]), setup)


def _paper(setup: PrivacySetup, delta: float) -> float:
    """Compute epsilon^(3) of Theorem 6.1, for a delta^(3) of at most `delta`."""
    if setup.step_size > setup.largest_step_size:
        return np.inf
    found = guarantee(setup)
    if found.delta > delta * (1 + 1e-9):
        allowed = f"server with draws with replacement, as delta would be {found.delta:.2g}"
        raise ConfigError("adversary", setup.adversary, allowed)
    return found.epsilon


def _check_equal(lanes: Sequence[Settings]) -> None:
    """Check that lanes are of FA-LD, and that the settings that matter are equal."""
    for name in _ACCOUNTED:
        if not all(is_dataclass(each) and name in fields(type(each)) for each in lanes):
            allowed = "one of FA-LD, or a run of it"
            raise ConfigError("run", type(lanes[0]).__module__, allowed)
        given = [value_of(each, name) for each in lanes]
        values: set[Any] = {x if x is None or isinstance(x, str) else float(x) for x in given}
        if len(values) > 1:
            raise ConfigError(name, ", ".join(map(str, sorted(values))), _ONE_VALUE)


def _equal_shares(lanes: Sequence[Settings], counts: np.ndarray) -> np.ndarray:
    """Compute the clients' weights, `f[N]` of sum 1, which must be the same in all lanes."""
    shares = []
    for each in lanes:
        given = counts if each.client_weights is None else np.asarray(each.client_weights, float)
        weights = np.broadcast_to(given, counts.shape)
        shares.append(weights / weights.sum())
    if np.ptp(shares, axis=0).max() > 1e-9:
        raise ConfigError("client_weights", "different between lanes", _ONE_VALUE)
    return shares[0]


_ACCOUNTED = (
    *("step_size", "temperature", "rho", "dynamics.friction", "local_steps", "batch_size"),
    *("gradient", "training.example_clip", "participants", "num_selected"),
    "control_variates.anchor",
)
"""Settings on which the privacy of a run depends, and which may have several values."""

_ONE_VALUE = "one value; give the settings of one lane, run.hypers[i], and the rounds"


def _check_accounted(hyper: Settings, sensitivity: float) -> None:
    """Refuse runs that are not accounted for."""
    if not 0 < sensitivity < np.inf:
        clip = "or else the setting example_clip, which bounds it without control variates"
        raise ConfigError("sensitivity", sensitivity, f"above 0 and finite, {clip}")
    if hyper.rho >= 1:
        raise ConfigError("rho", float(hyper.rho), "below 1: shared noise protects nothing")
    if hyper.control_variates.anchor == "global":
        allowed = "none or client to be accounted for, as global ones are sent without noise"
        raise ConfigError("control_variates.anchor", hyper.control_variates.anchor, allowed)
    identity = "optax.identity, as another may change the sensitivity"
    for name, needed, allowed in (
        ("step_size_schedule", schedules.Constant(), "constant to be accounted for"),
        ("averaging", "periodic", "periodic, as the theorem has K local steps in each round"),
        ("dynamics.noise_correction", False, "false to be accounted for"),
        ("preconditioning.preconditioner", "none", "none, as gradients are sent without noise"),
        ("dynamics.transform", optax.identity, identity),
    ):
        if (value := value_of(hyper, name)) != needed:
            raise ConfigError(name, getattr(value, "__name__", value), allowed)


settings.checked_all(__name__)
