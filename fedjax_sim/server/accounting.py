"""Epsilon by accountants and by schedules, and a lower bound of it by audits. All on the host.

**By accountants.** Epsilon after a number of rounds or steps, and the noise for a wanted epsilon,
follow from dp-accounting. The package is an extra: `pip install "fedjax-sim[privacy]"`.

The noise multiplier z is the standard deviation of the noise on the sum over the bound C of one
update's norm. If a client is added or removed, as under Poisson sampling, the sum changes by at
most C. If one client's data is replaced, as in cohorts of fixed size, it changes by up to 2 C.
Under `REPLACE_ONE` dp-accounting's RDP accountant takes the multiplier as relative to that change,
so that it is given z / 2; its PLD accountant doubles the change itself and is given z.

**By schedules.**
A guarantee for one client over a whole run depends on the number of its participations, and for
noise that is correlated over rounds also on how many ticks lie between two of them. A schedule is
drawn before any learning and depends on no example, so that both can be counted from it, also for
asynchronous servers. What clients' numbers of examples decide, such as the length of epochs, is
part of the schedule: these numbers are taken to be public.

A participation is a filled slot: a report of the client that the server receives in a tick. Two
slots of one tick are two participations, 0 ticks apart. A slot without local steps is one too,
because the client does report.

Noise on sums is accounted for by the schedule alone, and may be correlated over ticks (DP-FTRL).

In tick t the server moves by the sum of clipped updates with the weights of the schedule, x_t, plus
noise y_t. The y_t are made of independent Gaussian z_t so that B y = z for a lower triangular
Toeplitz matrix B with the coefficients b_0 = 1, b_1, ...: y_t = z_t - sum_{j > 0} b_j y_{t-j}. The
noises of neighbouring ticks then partly cancel in the model, which is their sum. With one band,
B = 1 and the noises are independent.

- Coefficients are those of (1 - x)^(-1/2) (Fichtenberger, Henzinger and Upadhyay 2023, arXiv
  2202.11205), cut off after some bands (Kalinin and Lampert 2024, arXiv 2405.13763, banded
  square root factorization).
- The whole course of x + y = B^-1 (B x + z) is post-processing of one Gaussian mechanism on B x,
  also if updates depend on earlier models, because B is lower triangular (Denisov et al. 2022,
  arXiv 2202.08312, Theorem 2.1).
- Neighbours: all updates of one client are 0, whenever it takes part ("zero-out", Kairouz et al.
  2021, arXiv 2103.00039). The schedule with its weights is public and the same.
- Sensitivity: then x_t changes by at most C a_t, where a_t is the weight of the client in tick t.
  As no coefficient is negative, B x changes by at most C ||B a||, which is attained (Choquette-Choo
  et al. 2023, arXiv 2306.08153; they maximise over all patterns of participation with a
  least separation). Here a is known, so that the norm is computed for every client.

No sampling is used, so that the schedule may be of any kind, asynchronous as well. A client may
remember its earlier rounds: once its random draws are fixed, its update is a function of its data
and of earlier models, and its norm is bounded.

**By audits** (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846), from one run with canaries.
Some clients are canaries: whether each takes part in the training or sends nothing is decided by a
fair coin. Somebody who sees the models guesses the coins of some canaries. If the training is
private, few guesses can be right, so that many right ones prove a lower bound of epsilon. The bound
is for neighbours that differ in one client's updates, which are there or are 0, and so for every
relation that includes these. It can be far below the true epsilon: of one run with few canaries
nothing large can be said. `fedjax_sim.server.attacks.Canary` has the canaries, and their scores.

Dimension letters: `N` clients, `T` ticks, `S` slots of a tick, `V` evaluations.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core import settings
from fedjax_sim.core.settings import Above0, AtLeast0, ConfigError, Count, Fraction, Limit, checked
from fedjax_sim.core.types import EMPTY, Timeline

Numbers = Annotated[npt.ArrayLike, Limit(least=0, is_whole=True)]
"""Whole numbers, such as those of first ticks before each evaluation, `[V]`."""
Chance = Annotated[float, Limit(least=0, below=1)]
"""A probability below 1."""
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
"""Numbers on the host."""
SELECTIONS = ("uniform", "poisson")
"""Samplings of clients that accountants cover: cohorts of fixed size, and Poisson sampling."""
ACCOUNTANTS = ("rdp", "pld")
"""Accountants of dp-accounting: of Renyi divergences, and of privacy loss distributions."""


@checked
class NoisySteps(NamedTuple):
    """Steps along noisy gradients of mini-batches; neighbours differ in one of the examples.

    The noise multiplier is the noise of a step over the largest change of the step if one example
    of its mini-batch is replaced.

        steps = NoisySteps(num_examples=1000, batch=1000, accountant="rdp", delta=1e-5)
        none, ten, twenty = epsilon_after([0, 10, 20], steps, noise=4.0)
        assert none == 0 and ten < twenty

    Attributes:
      num_examples: Number of examples.
      batch: Examples of a mini-batch, drawn without replacement for each step.
      accountant: "rdp" or "pld".
      delta: delta.
    """

    num_examples: Count
    batch: Count
    accountant: str
    delta: Fraction

    def check(self) -> None:
        """Check that the accountant covers mini-batches, and that dp-accounting is there.

        Raises:
          ConfigError: If it does not, or is not.
        """
        if self.accountant == "pld" and self.batch < self.num_examples:
            allowed = (
                "rdp with mini-batches, because privacy loss distributions do not cover draws "
                "without replacement"
            )
            raise ConfigError("accountant", self.accountant, allowed)
        _check_accountant(self.accountant)

    def event(self, noise: float) -> Any:
        """Describe one step with noise multiplier z to dp-accounting.

        Args:
          noise: z, relative to the clipping norm.

        Returns:
          An event of dp-accounting.
        """
        return self._as_rounds.event(2 * noise)

    def fresh_accountant(self) -> Any:
        """Make an accountant that has seen nothing."""
        return self._as_rounds.fresh_accountant()

    @property
    def _as_rounds(self) -> "Mechanism":
        """The same with examples for clients, and with z relative to half of the change."""
        return Mechanism("uniform", self.num_examples, self.batch, self.accountant, self.delta)


class Mechanism(NamedTuple):
    """The mechanism of a round, as accountants see it.

    Attributes:
      selection: One of `SELECTIONS`.
      num_clients: Number of clients, N.
      cohort: Clients of a round, m: the number itself, or its mean N q under Poisson sampling.
      accountant: "rdp" or "pld".
      delta: delta.
    """

    selection: str
    num_clients: int
    cohort: int
    accountant: str
    delta: float

    def check(self) -> None:
        """Check that the accountant covers the sampling, and that dp-accounting is there.

        Raises:
          ConfigError: If it does not, or is not.
        """
        if self.selection not in SELECTIONS:
            allowed = "one of " + ", ".join(SELECTIONS) + " with privacy: no accountant covers it"
            raise ConfigError("cohort.selection", self.selection, allowed)
        is_subset = self.cohort < self.num_clients
        if self.accountant == "pld" and self.selection == "uniform" and is_subset:
            allowed = (
                "rdp, because privacy loss distributions do not cover cohorts of fixed size; "
                'selection = "poisson" is covered by both'
            )
            raise ConfigError("accountant", self.accountant, allowed)
        _check_accountant(self.accountant)

    def event(self, noise: float) -> Any:
        """Describe one round with noise multiplier z to dp-accounting."""
        import dp_accounting

        is_poisson, drawn, number = self.selection == "poisson", self.cohort, self.num_clients
        multiplier = noise if is_poisson or self.accountant == "pld" else noise / 2
        gaussian = dp_accounting.GaussianDpEvent(multiplier)
        if drawn == number:
            return gaussian
        if is_poisson:
            return dp_accounting.PoissonSampledDpEvent(drawn / number, gaussian)
        return dp_accounting.SampledWithoutReplacementDpEvent(number, drawn, gaussian)

    def fresh_accountant(self) -> Any:
        """Make an accountant that has seen nothing."""
        from dp_accounting import NeighboringRelation, pld, rdp

        relation = "ADD_OR_REMOVE_ONE" if self.selection == "poisson" else "REPLACE_ONE"
        kind = {"rdp": rdp.RdpAccountant, "pld": pld.PLDAccountant}[self.accountant]
        return kind(neighboring_relation=NeighboringRelation[relation])


Accounted = NoisySteps | Mechanism
"""A mechanism that is repeated, in a form that an accountant covers."""


def _check_accountant(name: str) -> None:
    """Check that an accountant exists, and that dp-accounting is there."""
    if name not in ACCOUNTANTS:
        raise ConfigError("accountant", name, "one of " + ", ".join(ACCOUNTANTS))
    check_package(name)


def check_package(name: str) -> None:
    """Check that dp-accounting is there.

    Args:
      name: Whose epsilon it shall compute, for the message.

    Raises:
      ConfigError: If it is not.
    """
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        allowed = (
            'none, because the package dp-accounting is missing (pip install "fedjax-sim[privacy]")'
        )
        raise ConfigError("privacy with noise", name, allowed) from None


@checked
def epsilon_after(rounds: Numbers, mechanism: Accounted, noise: AtLeast0) -> Floats:
    """Compute epsilon after numbers of rounds, or of steps for `NoisySteps`.

        steps = NoisySteps(num_examples=1000, batch=1000, accountant="rdp", delta=1e-5)
        assert epsilon_after([0, 10], steps, noise=0.0).tolist() == [0, np.inf]

    Args:
      rounds: Numbers of rounds, integers `[...]`.
      mechanism: What is done in a round.
      noise: Noise multiplier z.

    Returns:
      `f64[...]`: 0 after no round, infinity without noise.
    """
    mechanism.check()
    return once_each(_spending(mechanism, float(noise)), np.asarray(rounds, int))


def once_each(function: Callable[..., float], numbers: np.ndarray) -> Floats:
    """Compute a function that takes long, once for each number; it is 0 at 0.

    Args:
      function: From a number above 0 to a number.
      numbers: `[...]`, at least 0.

    Returns:
      `f64[...]`.
    """
    values, places = np.unique(numbers, return_inverse=True)
    found = np.array([function(each) if each else 0.0 for each in values.tolist()], float)
    return found[places].reshape(numbers.shape)


@checked
@functools.cache
def find_noise(epsilon: Above0, rounds: Count, mechanism: Accounted) -> float:
    """Find the least noise multiplier z with which `rounds` rounds have at most this epsilon.

        steps = NoisySteps(num_examples=1000, batch=1000, accountant="rdp", delta=1e-5)
        noise = find_noise(2.0, 10, steps)
        assert epsilon_after(10, steps, noise) <= 2.0 < epsilon_after(10, steps, 0.99 * noise)

    Args:
      epsilon: Target, above 0.
      rounds: Number of rounds, at least 1.
      mechanism: What is done in a round.

    Returns:
      z, at most `NOISE_PRECISION` larger than needed.
    """
    import dp_accounting
    from dp_accounting.mechanism_calibration import LowerEndpointAndGuess

    mechanism.check()

    def whole(noise: float) -> Any:
        return dp_accounting.SelfComposedDpEvent(mechanism.event(noise), rounds)

    least = 1.0
    while _spending(mechanism, least)(rounds) <= epsilon:
        least /= 2
    asked = mechanism.fresh_accountant, whole, epsilon, mechanism.delta
    around = LowerEndpointAndGuess(least, 2 * least)
    with _quietly():
        return float(dp_accounting.calibrate_dp_mechanism(*asked, around, tol=NOISE_PRECISION))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence warnings of dp-accounting about orders with a diverging series.

    It leaves these orders out, which can make epsilon larger but not smaller.
    """
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@functools.cache
def _spending(mechanism: Accounted, noise: float) -> Callable[[int], float]:
    """Return a function from a number of rounds, at least 1, to epsilon."""
    if noise == 0:
        return lambda rounds: np.inf
    delta = mechanism.delta
    if mechanism.accountant == "rdp":
        from dp_accounting.rdp import compute_epsilon

        # Renyi divergences of rounds add up and depend on no delta.
        of_one = _one_round(mechanism._replace(delta=0.0), noise)
        return lambda rounds: float(compute_epsilon(of_one.orders, rounds * of_one.rdp, delta)[0])
    event, fresh = mechanism.event(noise), mechanism.fresh_accountant
    return functools.cache(lambda rounds: float(fresh().compose(event, rounds).get_epsilon(delta)))


@functools.cache
def _one_round(mechanism: Accounted, noise: float) -> Any:
    """Return an accountant of Renyi divergences that has seen one round."""
    with _quietly():
        return mechanism.fresh_accountant().compose(mechanism.event(noise))


class Participations(NamedTuple):
    """Participations of every client in a schedule.

        found = participations_of(run.timelines[0], num_clients=100)
        print(found.most, found.separation.min())

    Attributes:
      counts: `i64[N]`, numbers of participations.
      separation: `i64[N]`, the fewest ticks from one participation of the client to its next one;
        T, which is more than any two ticks are apart, for clients with fewer than two.
    """

    counts: np.ndarray
    separation: np.ndarray

    @property
    def most(self) -> int:
        """The largest number of participations of a client."""
        return int(self.counts.max(initial=0))


@checked
def participations_of(timeline: Timeline, num_clients: Count) -> Participations:
    """Count participations, and find the smallest separations, in O(T S log(T S)).

        # Clients 0 and 1 report in the first tick, and client 0 in the second.
        assert participations_of(timeline, 3).counts.tolist() == [2, 1, 0]

    Args:
      timeline: One lane's schedule, leaves `[T, ...]`.
      num_clients: Number of clients, N.

    Returns:
      Participations of every client, also of those that never take part.

    Raises:
      ConfigError: If a slot names a client that does not exist.
    """
    ticks, _, clients = reports_of(timeline, num_clients)
    counts = np.bincount(clients, minlength=num_clients)
    separation = np.full(num_clients, len(np.asarray(timeline.clients)), np.int64)
    # Ticks are in order already, so that a stable sort lists every client's in order.
    order = np.argsort(clients, kind="stable")
    clients, ticks = clients[order], ticks[order]
    is_next = clients[1:] == clients[:-1]
    np.minimum.at(separation, clients[1:][is_next], np.diff(ticks)[is_next])
    return Participations(counts, separation)


@checked
def most_participations(timeline: Timeline, num_clients: Count, ticks: Numbers) -> Counts:
    """Count the participations of the client that has most of them, within first ticks.

        # Clients 0 and 1 report in the first tick, and client 0 in the second.
        assert most_participations(timeline, 3, [0, 1, 2]).tolist() == [0, 1, 2]

    Args:
      timeline: As in `participations_of`.
      num_clients: Number of clients, N.
      ticks: Numbers of first ticks, such as those before each evaluation, integers `[V]`.

    Returns:
      `i64[V]`: the largest number of participations of one client in the first `ticks` ticks.
    """
    when, _, clients = reports_of(timeline, num_clients)
    return largest_sums(when, clients, np.ones(len(when), np.int64), np.asarray(ticks), num_clients)


def largest_sums(
    when: np.ndarray, clients: np.ndarray, amounts: np.ndarray, ends: np.ndarray, num_clients: int
) -> np.ndarray:
    """Find the largest sum of a client's amounts before given ends.

    Args:
      when: Their places in time, ascending, `i64[R]`.
      clients: Whose they are, `i64[R]`.
      amounts: `[R]`, at least 0.
      ends: Places that are too late, `i64[V]`.
      num_clients: Number of clients, N.

    Returns:
      Sums, `[V]`.
    """
    sums, seen = np.zeros(num_clients, amounts.dtype), 0
    found = np.zeros(len(ends), amounts.dtype)
    for place in np.argsort(ends, kind="stable"):
        until = int(np.searchsorted(when, ends[place]))
        np.add.at(sums, clients[seen:until], amounts[seen:until])
        seen, found[place] = until, sums.max()
    return found


@checked
def most_sent(timeline: Timeline, num_clients: Count, ticks: Numbers) -> Counts:
    """Count the messages that one client may have sent at most, those on their way among them.

    For asynchronous servers whose clients do one update after the other. Before a message is
    received, its client has begun the update from an earlier model, and may have sent it. So one
    message more than the participations counts for a client whose next one began before the last of
    the first ticks. Where the schedule does not have the next one, it counts too: an upper bound.

        # Client 0 reports in both ticks, and may have begun its third update.
        assert most_sent(timeline, 3, [0, 2]).tolist() == [0, 3]

    Args:
      timeline: As in `participations_of`.
      num_clients: Number of clients, N.
      ticks: As in `most_participations`.

    Returns:
      `i64[V]`: the largest number for one client when the last of the first `ticks` ticks acts; 0
      before any tick.
    """
    when, slots, clients = reports_of(timeline, num_clients)
    began = np.asarray(timeline.version)[when, slots]
    order = np.lexsort((began, when, clients))
    when, clients, began = when[order], clients[order], began[order]
    # Reports by client, then by tick, as one ascending number.
    length = len(timeline.time) + 1
    places, everyone = clients * length + when, np.arange(num_clients)
    first, ends = (np.searchsorted(clients, everyone, side) for side in ("left", "right"))
    found = np.zeros(np.shape(ticks), np.int64)
    for i, end in enumerate(np.minimum(np.asarray(ticks, np.int64), length - 1)):
        following = np.searchsorted(places, everyone * length + end)
        is_known = following < ends
        next_began = np.append(began, 0)[following]
        if end:
            found[i] = (following - first + (~is_known | (next_began < end))).max()
    return found


def reports_of(timeline: Timeline, num_clients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List ticks, slots and clients of all reports, in order of ticks.

    Ticks at time `inf` never happen.
    """
    clients = np.asarray(timeline.clients)
    happens = np.isfinite(np.asarray(timeline.time))[:, None]
    if np.any((clients >= num_clients) & happens):
        raise ConfigError("num_clients", num_clients, f"at least {clients.max() + 1}, the clients")
    ticks, slots = np.nonzero((clients != EMPTY) & happens)
    return ticks, slots, clients[ticks, slots].astype(np.int64)


@checked
def square_root_bands(bands: Count) -> Floats:
    """Compute the first coefficients of (1 - x)^(-1/2): b_j = b_{j-1} (2 j - 1) / (2 j), b_0 = 1.

        assert square_root_bands(3).tolist() == [1, 1 / 2, (1 * 3) / (2 * 4)]

    Args:
      bands: Their number, b.

    Returns:
      `f64[b]`, positive and decreasing.
    """
    place = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * place - 1) / (2 * place))])


@checked
def sensitivities(
    timeline: Timeline, num_clients: Count, coefficients: Floats, ticks: Numbers
) -> Floats:
    """Compute the largest ||B a|| of a client within first ticks.

    Ticks in which nobody reports have no noise and do not count for B.

        # Client 0 reports with weight 1/2, then with weight 1.
        found = sensitivities(timeline, 3, square_root_bands(1), [0, 1, 2])
        assert np.allclose(found, [0, 1 / 2, np.hypot(1 / 2, 1)])

    Args:
      timeline: One lane's schedule, whose weights are those of the sum.
      num_clients: Number of clients, N.
      coefficients: b_0, b_1, ..., at least 0, `f64[b]`.
      ticks: Numbers of first ticks, integers `[V]`.

    Returns:
      `f64[V]`. With one band and weight 1 / m it is sqrt(k) / m for k participations.
    """
    when, slot, of = reports_of(timeline, num_clients)
    is_tick = np.isin(np.arange(len(timeline.time)), when)
    share, place = np.asarray(timeline.weight, float)[when, slot], np.cumsum(is_tick)[when] - 1
    # Entries of B a of every client: rows from its participation on.
    total = int(is_tick.sum())
    bands = min(len(coefficients), max(total, 1))
    rows = place[:, None] + np.arange(bands)
    entries = np.abs(share)[:, None] * np.asarray(coefficients, float)[:bands]
    inside = rows < total
    # One number for each row and client, sorted by rows.
    names, where = np.unique((rows * num_clients + of[:, None])[inside], return_inverse=True)
    squares = np.bincount(where.ravel(), entries[inside], len(names)) ** 2
    ends = np.concatenate([[0], np.cumsum(is_tick)])[np.asarray(ticks, np.int64)]
    row, client = np.divmod(names, num_clients)
    return np.sqrt(largest_sums(row, client, squares, ends, num_clients))


@checked
def gaussian_epsilon(
    sensitivity: Annotated[npt.ArrayLike, Limit(least=0)], deviation: AtLeast0, delta: Fraction
) -> Floats:
    """Compute epsilon of one Gaussian mechanism, exactly, by dp-accounting.

    Balle and Wang 2018, arXiv 1805.06530, Theorem 8.

        assert gaussian_epsilon([0.0, 1.0], 0.0, 1e-6).tolist() == [0, np.inf]  # without noise
        weak, strong = gaussian_epsilon([1.0, 0.5], 4.0, 1e-6)
        assert strong < weak

    Args:
      sensitivity: Largest L2 change, `f[...]`.
      deviation: Standard deviation of the noise in each number.
      delta: delta.

    Returns:
      `f64[...]`: 0 where nothing can change, infinity elsewhere without noise.
    """
    check_package("gaussian")
    from dp_accounting import get_epsilon_gaussian

    changes = np.asarray(sensitivity, float)
    if deviation == 0:
        return np.where(changes > 0, np.inf, 0.0)
    return once_each(lambda x: get_epsilon_gaussian(float(deviation) / x, float(delta)), changes)


@checked
def separated_sensitivity(
    coefficients: Floats, num_ticks: Count, *, separation: Count, most: Count
) -> float:
    """Compute the largest ||B a|| over all schedules with a separation, for planning.

    The columns at 0, s, 2 s, ... of B, as many as there are participations (Kalinin and Lampert
    2024, Theorem 2, for coefficients that decrease).

        independent = square_root_bands(1)
        assert separated_sensitivity(independent, 100, separation=10, most=4) == 4**0.5

    Args:
      coefficients: b_0, b_1, ..., at least 0 and not increasing, `f64[b]`.
      num_ticks: Number of ticks, T.
      separation: Fewest ticks from one participation of a client to its next one, s.
      most: Largest number of participations of a client, each with weight 1.

    Returns:
      The norm.
    """
    of_client = np.zeros(num_ticks)
    of_client[: separation * most : separation] = 1
    return float(np.linalg.norm(np.convolve(of_client, coefficients)[:num_ticks]))


PRECISION = 1e-6
"""Epsilon is found up to this."""
NOISE_PRECISION = 1e-5
"""Noise multipliers are found up to this."""


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
    delta: Chance,
    confidence: Fraction = 0.95,
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
    num_correct: settings.Whole,
    delta: Chance,
    confidence: Fraction = 0.95,
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
