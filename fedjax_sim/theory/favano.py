"""FAVANO (Leconte, Nguyen and Moulines, arXiv 2305.16099): step sizes, and times of server steps.

- `largest_step_size` is the largest step size for which the paper's Theorem 1 is proved, and
  `conditions` lists what it requires.
- `fedavg_round_time` and `fedbuff_step_time` are the mean times of a server step of the baselines,
  if clients have the clock of the paper.

Equation numbers are the paper's. "Derived" marks what the paper does not state; "Deviation:" marks
where this module corrects it. Results are float64.

Dimension letters: `N` clients (the paper's n), `K` the largest number of local steps that a client
does between two contacts.

X, in 0, ..., K, is the number of local steps that a client reports at a contact: the smaller of the
paper's E and K. The server contacts s clients per step; eta is the step size of local steps.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy import stats

from fedjax_sim.core.settings import AtLeast1, ConfigError, Limit, checked, checked_all
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, OneOf, Probability
from fedjax_sim.systems.favano import StepCounts
from fedjax_sim.timelines import STEP_COUNT_LAWS

Numbers = npt.NDArray[np.float64]
Portions = Annotated[npt.ArrayLike, Limit(above=0, most=1)]
Reweighting = Annotated[str, OneOf(("stochastic", "deterministic"))]


@checked
class StepMoments(NamedTuple):
    """Moments of X, the number of reported local steps, for each client.

    Attributes:
        prob_any: `f64[N]`, P(X > 0).
        mean: `f64[N]`, E[X].
        mean_square: `f64[N]`, E[X^2].
        mean_inverse: `f64[N]`, E[1(X > 0) / X].
    """

    prob_any: Numbers
    mean: Numbers
    mean_square: Numbers
    mean_inverse: Numbers


@checked
class FavanoSetup(NamedTuple):
    """The constants of assumptions A1 to A4 and of the run that a bound is about.

    Attributes:
        num_clients: n, the number of clients.
        num_contacted: s, the number of clients contacted per server step.
        max_steps: K, the most local steps between two contacts.
        smoothness: L, the Lipschitz constant of every client's gradient.
        gradient_variance: sigma^2, bound on the variance of a stochastic gradient.
        dissimilarity: G^2, where the mean over clients of the squared gradient is at most
            G^2 + B^2 times the squared gradient of f.
        dissimilarity_factor: B^2, at least 1.
        initial_gap: F = f(mu_0) - f_*, the initial loss above its lower bound.
        noise_constant: Mean over clients of a^i, from `reweighting_constants`.
        drift_constant: b, from `reweighting_constants`.
    """

    num_clients: Count
    num_contacted: Count
    max_steps: Count
    smoothness: Above0
    gradient_variance: AtLeast0
    dissimilarity: AtLeast0
    dissimilarity_factor: AtLeast1
    initial_gap: AtLeast0
    noise_constant: AtLeast0
    drift_constant: Above0


class Condition(NamedTuple):
    """One requirement of the proof of Theorem 1: `value` may be at most `limit`.

    Attributes:
        name: What the requirement is about.
        value: The quantity that is limited.
        limit: The largest value allowed.
    """

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the value is within the limit."""
        return self.value <= self.limit


def step_law(
    rate: npt.ArrayLike,
    *,
    contact_probability: Probability,
    round_time: AtLeast0,
    max_steps: Count,
    law: Annotated[str, OneOf(STEP_COUNT_LAWS)],
) -> Numbers:
    """Compute the probabilities of X = 0, ..., K for each client, over stationary windows.

    Args:
        rate: `f64[N]`, local steps per unit of time.
        contact_probability: Probability of being contacted at a server step, s / n.
        round_time: Time between two server steps.
        max_steps: K, the most local steps between two contacts.
        law: Name of a law of the step count, from `fedjax_sim.systems.favano`.

    Returns:
        `f64[N, K + 1]`, each row non-negative with sum 1.

    Raises:
        ConfigError: If `round_time` is not whole under "runtime_geom", whose time is whole.
    """
    if law == "runtime_geom" and round_time % 1:
        raise ConfigError("round_time", round_time, "whole under runtime_geom")
    with jax.enable_x64(True):
        rates = jnp.asarray(rate, float)
        counts = StepCounts(rates, contact_probability, round_time, law)
        tails = np.asarray(counts.at_least(max_steps))
    return -np.diff(tails, axis=-1, prepend=1.0, append=0.0)


def step_moments(law: Numbers) -> StepMoments:
    """Compute the moments of X from its law.

    Args:
        law: `f64[N, K + 1]`, probabilities of X = 0, ..., K.

    Returns:
        The moments, each `f64[N]`.
    """
    steps = np.arange(law.shape[-1])
    return StepMoments(1 - law[:, 0], law @ steps, law @ steps**2, law[:, 1:] @ (1 / steps[1:]))


def reweighting_constants(
    moments: StepMoments, *, max_steps: Count, reweighting: Reweighting
) -> tuple[Numbers, float]:
    """Compute the constants a^i and b of Theorem 1.

    Args:
        moments: Moments of X.
        max_steps: K, the most local steps between two contacts.
        reweighting: "stochastic" or "deterministic".

    Returns:
        a^i, `f64[N]`, and b.
    """
    prob_any, mean, square, inverse = moments
    if reweighting == "stochastic":
        return (prob_any / max_steps**2 + inverse) / prob_any**2, float(np.max(1 / prob_any))
    # Deviation: from (149) on, the paper divides E[X^2] by E[X], where (148) divides by its square.
    # As printed, (138) is false for a client that rarely has a step to report: if X is 1 with
    # probability 0.05 and otherwise 0, the second moment is 20 but the bound only 8.
    scale = mean**2
    return 1 / mean + square / (max_steps**2 * scale), float(np.max(square / scale))


def kappa_sharp(num_clients: Count, num_contacted: Count) -> float:
    """Compute the larger rate that the paper's own proof gives at (78)-(79). Derived.

    Args:
        num_clients: n.
        num_contacted: s.

    Returns:
        A rate that may replace the paper's kappa, eq. (6), and does not vanish at s = n.
    """
    return num_contacted / (2 * num_clients * (num_contacted + 1))


def conditions(
    setup: FavanoSetup,
    *,
    step_size: AtLeast0,
    contraction: Callable[[int, int], float] = kappa_sharp,
) -> tuple[Condition, ...]:
    """List all that the proof of Theorem 1 requires of the step size.

    The first condition is eq. (7), the only one that the paper states; the others are derived. The
    first does not imply the others when K or s is small.

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        contraction: Rate of contraction as a function of n and s, such as the paper's kappa.

    Returns:
        The conditions "theorem", "local gradients", "local drift", "descent" and "contraction".
    """
    n, s, L, K = setup.num_clients, setup.num_contacted, setup.smoothness, setup.max_steps
    factor, b = setup.dissimilarity_factor, setup.drift_constant
    quadratic, linear = _descent_terms(setup)
    contracted = 48 * s**2 / n * L**2 * b * step_size**2 + 1 / (5 * n)
    return (
        Condition("theorem", step_size, 1 / (20 * factor * b * K * L * s)),
        Condition("local gradients", step_size, 1 / (4 * L * K**2)),
        Condition("local drift", step_size, 1 / (2 * L * K)),
        Condition("descent", quadratic * step_size**2 + linear * step_size, 1 / 4),
        Condition("contraction", contracted, contraction(n, s)),
    )


def largest_step_size(
    setup: FavanoSetup, *, contraction: Callable[[int, int], float] = kappa_sharp
) -> float:
    """Compute the largest step size that meets all `conditions`. Derived.

    Args:
        setup: Constants of the problem and of the run.
        contraction: Rate of contraction as a function of n and s, such as the paper's kappa.

    Returns:
        The step size; 0 if no step size meets the conditions.
    """
    n, s, L, b = (setup.num_clients, setup.num_contacted, setup.smoothness, setup.drift_constant)
    limits = [condition.limit for condition in conditions(setup, step_size=0.0)[:3]]
    quadratic, linear = _descent_terms(setup)
    descent = 0.5 / (linear + np.sqrt(linear**2 + quadratic))
    room = max(contraction(n, s) - 1 / (5 * n), 0.0)
    return float(min(*limits, descent, np.sqrt(room * n / (48 * b)) / (s * L)))


def _descent_terms(setup: FavanoSetup) -> tuple[float, float]:
    """Compute the coefficients of eta^2 and eta in the sum that descent needs to be at most 1/4."""
    n, s, L, K = setup.num_clients, setup.num_contacted, setup.smoothness, setup.max_steps
    factor, b = setup.dissimilarity_factor, setup.drift_constant
    return L**2 * factor * (16 * K**2 + 2880 * s**2 * b), 4 * L * s * b * factor / (n + 1)


def fedavg_round_time(
    rate: Portions, *, num_contacted: Count, local_steps: Count, interact_time: AtLeast0
) -> float:
    """Compute the mean length of a FedAvg round if local steps take geometric times. Derived.

    The server waits for the slowest of s clients drawn without replacement. The K steps of client i
    take a time tau_i with a negative binomial law, so
    E[max] = sum_{t >= 0} (1 - mean over subsets S of prod_{i in S} P(tau_i <= t)).

    Args:
        rate: `f64[N]`, probability of completing the current local step in one unit of time.
        num_contacted: s, the number of clients drawn, at most N.
        local_steps: K, the local steps that each drawn client does.
        interact_time: sit, the time of the server's interaction with the clients.

    Returns:
        The mean length, in units of time.
    """
    rates = np.asarray(rate, np.float64)
    if num_contacted > len(rates):
        raise ConfigError("num_contacted", num_contacted, f"at most {len(rates)}, the clients")
    horizon = local_steps + stats.nbinom.isf(1e-15, local_steps, rates.min())
    times = np.arange(horizon)[:, None] - local_steps
    finished = np.asarray(stats.nbinom.cdf(times, local_steps, rates))
    # After client i, all_finished[:, j] is the probability that j clients have all finished, as a
    # mean over the subsets of size j of the clients up to i.
    all_finished = np.zeros((len(finished), num_contacted + 1))
    all_finished[:, 0] = 1
    for i in range(len(rates)):
        share = np.minimum(np.arange(1, num_contacted + 1) / (i + 1), 1)
        joined = share * finished[:, i : i + 1] * all_finished[:, :-1]
        all_finished[:, 1:] = (1 - share) * all_finished[:, 1:] + joined
    return float(interact_time + np.sum(1 - all_finished[:, -1]))


def fedbuff_step_time(
    rate: npt.ArrayLike, *, buffer_size: Count, local_steps: Count, interact_time: AtLeast0
) -> float:
    """Approximate the mean time of a FedBuff server step if clients never wait. Derived.

    It is the time in which Z updates arrive, but at least `interact_time`. If clients do wait for
    the server, steps take longer.

    Args:
        rate: `f64[N]`, local steps per unit of time.
        buffer_size: Z, the number of updates per server step.
        local_steps: K, the local steps of each update.
        interact_time: sit, the time of the server's interaction with the clients.

    Returns:
        The mean time, in units of time.
    """
    finished_per_time = np.sum(np.asarray(rate, np.float64) / local_steps)
    return float(max(interact_time, buffer_size / finished_per_time))


checked_all(__name__)
