"""Epsilon after a number of rounds or steps, and the noise for a wanted epsilon, by dp-accounting.

The package is an extra: `pip install "fedjax-sim[privacy]"`.

The noise multiplier z is the standard deviation of the noise on the sum over the bound C of one
update's norm. If a client is added or removed, as under Poisson sampling, the sum changes by at
most C. If one client's data is replaced, as in cohorts of fixed size, it changes by up to 2 C.
Under `REPLACE_ONE` dp-accounting's RDP accountant takes the multiplier as relative to that change,
so that it is given z / 2; its PLD accountant doubles the change itself and is given z.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core import settings
from fedjax_sim.core.settings import Above0, AtLeast0, ConfigError, Count, Fraction, Limit

SELECTIONS = ("uniform", "poisson")
"""Samplings of clients that accountants cover: cohorts of fixed size, and Poisson sampling."""
ACCOUNTANTS = ("rdp", "pld")
"""Accountants of dp-accounting: of Renyi divergences, and of privacy loss distributions."""


@settings.checked
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


@settings.checked
def epsilon_after(
    rounds: Annotated[npt.ArrayLike, Limit(least=0, is_whole=True)],
    mechanism: Accounted,
    noise: AtLeast0,
) -> npt.NDArray[np.float64]:
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


def once_each(function: Callable[..., float], numbers: np.ndarray) -> npt.NDArray[np.float64]:
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


@settings.checked
def find_noise(
    epsilon: Above0, rounds: Count, mechanism: Accounted, *, tolerance: Above0 = 1e-5
) -> float:
    """Find the least noise multiplier z with which `rounds` rounds have at most this epsilon.

        steps = NoisySteps(num_examples=1000, batch=1000, accountant="rdp", delta=1e-5)
        noise = find_noise(2.0, 10, steps)
        assert epsilon_after(10, steps, noise) <= 2.0 < epsilon_after(10, steps, 0.99 * noise)

    Args:
      epsilon: Target, above 0.
      rounds: Number of rounds, at least 1.
      mechanism: What is done in a round.
      tolerance: The result is at most this much larger than needed.

    Returns:
      z.
    """
    mechanism.check()
    return _found_noise(float(epsilon), int(rounds), mechanism, tolerance)


@functools.cache
def _found_noise(epsilon: float, rounds: int, mechanism: Accounted, tolerance: float) -> float:
    import dp_accounting
    from dp_accounting.mechanism_calibration import LowerEndpointAndGuess

    def whole(noise: float) -> Any:
        return dp_accounting.SelfComposedDpEvent(mechanism.event(noise), rounds)

    least = 1.0
    while _spending(mechanism, least)(rounds) <= epsilon:
        least /= 2
    with _quietly():
        return float(
            dp_accounting.calibrate_dp_mechanism(
                mechanism.fresh_accountant,
                whole,
                epsilon,
                mechanism.delta,
                LowerEndpointAndGuess(least, 2 * least),
                tol=tolerance,
            )
        )


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
    event = mechanism.event(noise)
    return functools.cache(
        lambda rounds: float(mechanism.fresh_accountant().compose(event, rounds).get_epsilon(delta))
    )


@functools.cache
def _one_round(mechanism: Accounted, noise: float) -> Any:
    """Return an accountant of Renyi divergences that has seen one round."""
    with _quietly():
        return mechanism.fresh_accountant().compose(mechanism.event(noise))
