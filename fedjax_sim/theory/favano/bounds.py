"""FAVANO's identities, constants and convergence bound, in float64.

The paper is Leconte, Nguyen and Moulines, arXiv 2305.16099. Equation numbers are the paper's.
"Derived" marks what the paper does not state; "Deviation:" marks where this module corrects it.

Dimension letters: `N` clients (the paper's n), `P` parameters, `K` the largest number of local
steps that a client does between two contacts, `T` server steps.

X, in 0, ..., K, is the number of local steps that a client reports at a contact: the smaller of the
paper's E and K. `law` holds the probabilities of its values. The server contacts s clients per
step; eta is the step size of local steps; mu_t is the mean of the server's model and all clients'
base models (the models that clients started from) at server step t; Phi_t, the potential, is the
sum of squared distances of these n + 1 models to mu_t.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.checking import Above0, AtLeast0, Count, Probability, Whole, checked
from fedjax_sim.systems.favano import step_counts

Numbers = npt.NDArray[np.float64]


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
    dissimilarity_factor: AtLeast0
    initial_gap: AtLeast0
    noise_constant: AtLeast0
    drift_constant: float


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


@checked
class ErrorTerms(NamedTuple):
    """The bound r_0 / (eta T) + b eta + e eta^2, valid for step sizes eta up to 1 / d.

    The letters are those of the tuning lemma (App. B.1); its b is not the drift constant.

    Attributes:
        initial: r_0, coefficient of 1 / (eta T).
        linear: b, coefficient of eta.
        quadratic: e, coefficient of eta^2.
        cap: d, the inverse of the largest step size.
    """

    initial: AtLeast0
    linear: AtLeast0
    quadratic: AtLeast0
    cap: AtLeast0


@checked
def step_law(
    rate: npt.ArrayLike,
    *,
    contact_probability: Probability,
    round_time: AtLeast0,
    max_steps: Count,
    law: str,
) -> Numbers:
    """Compute the probabilities of X = 0, ..., K for each client, over stationary windows.

    Args:
        rate: `f64[N]`, local steps per unit of time.
        contact_probability: Probability of being contacted at a server step, s / n.
        round_time: Time between two server steps.
        max_steps: K, the most local steps between two contacts.
        law: Name of a law of the step count, from `fedjax_sim.systems.favano.step_counts`.

    Returns:
        `f64[N, K + 1]`, each row non-negative with sum 1.
    """
    with jax.enable_x64(True):
        window = {"contact_probability": contact_probability, "round_time": round_time}
        tails = np.asarray(
            step_counts.tail_probabilities(
                jnp.asarray(rate, float), max_steps=max_steps, law=law, **window
            )
        )
    return -np.diff(tails, axis=-1, prepend=1.0, append=0.0)


@checked
def step_moments(law: Numbers) -> StepMoments:
    """Compute the moments of X from its law.

    Args:
        law: `f64[N, K + 1]`, probabilities of X = 0, ..., K.

    Returns:
        The moments, each `f64[N]`.
    """
    steps = np.arange(law.shape[-1])
    return StepMoments(1 - law[:, 0], law @ steps, law @ steps**2, law[:, 1:] @ (1 / steps[1:]))


@checked
def reweighted_variance(
    moments: StepMoments, *, mean: float, variance: AtLeast0, reweighting: str
) -> Numbers:
    """Compute the variance of the reweighted sum of X independent gradients.

    The lemma on Var(M_1) and Var(M_2), just before the tuning lemma of App. B.1. The expectation of
    the reweighted sum is `mean`.

    Args:
        moments: Moments of X.
        mean: Expectation of one scalar gradient.
        variance: Variance of one scalar gradient.
        reweighting: "stochastic" (M_1) or "deterministic" (M_2).

    Returns:
        `f64[N]`, the variance for each client.
    """
    if reweighting == "stochastic":
        no_step = mean**2 * moments.prob_any * (1 - moments.prob_any)
        return (no_step + variance * moments.mean_inverse) / moments.prob_any**2
    return mean**2 * (moments.mean_square / moments.mean**2 - 1) + variance / moments.mean


@checked
def reweighting_constants(
    moments: StepMoments, *, max_steps: Count, reweighting: str
) -> tuple[Numbers, float]:
    """Compute the constants a^i and b of Theorem 1.

    Args:
        moments: Moments of X.
        max_steps: K, the most local steps between two contacts.
        reweighting: "stochastic", "deterministic", or "deterministic_printed" for the constants of
            the deterministic reweighting exactly as the paper prints them.

    Returns:
        a^i, `f64[N]`, and b.

    Raises:
        KeyError: If `reweighting` is none of these.
    """
    prob_any, mean, square, inverse = moments
    if reweighting == "stochastic":
        return (prob_any / max_steps**2 + inverse) / prob_any**2, float(np.max(1 / prob_any))
    # Deviation: from (149) on, the paper divides E[X^2] by E[X], where (148) divides by its square.
    # As printed, (138) is false for a client that rarely has a step to report: if X is 1 with
    # probability 0.05 and otherwise 0, the second moment is 20 but the bound only 8.
    scale = {"deterministic": mean**2, "deterministic_printed": mean}[reweighting]
    return 1 / mean + square / (max_steps**2 * scale), float(np.max(square / scale))


@checked
def kappa(num_clients: Count, num_contacted: Count) -> float:
    """Compute the rate at which the potential contracts, eq. (6).

    Args:
        num_clients: n.
        num_contacted: s.

    Returns:
        kappa: without progress, the expected potential falls at least by this share per step. It
        is 0 if all clients are contacted.
    """
    n, s = num_clients, num_contacted
    return s * (n - s) / (2 * n * (n + 1) * (s + 1))


@checked
def kappa_sharp(num_clients: Count, num_contacted: Count) -> float:
    """Compute the larger rate that the paper's own proof gives at (78)-(79). Derived.

    Args:
        num_clients: n.
        num_contacted: s.

    Returns:
        A rate that may replace `kappa`, and does not vanish at s = n.
    """
    return num_contacted / (2 * num_clients * (num_contacted + 1))


@checked
def kappa_star(num_clients: Count, num_contacted: Count) -> float:
    """Compute the best possible rate without progress. Derived.

    Args:
        num_clients: n.
        num_contacted: s.

    Returns:
        The rate. It is attained when the server's model is the mean of all models.
    """
    n, s = num_clients, num_contacted
    return s * (s * n - 1) / (n * max(n - 1, 1) * (s + 1))


@checked
def expected_potential(server: Numbers, bases: Numbers, *, num_contacted: Count) -> float:
    """Compute exactly the expected potential after one server step without progress. Derived.

    The potential is the sum of squared distances of the server's model and the clients' base models
    to the mean mu of all of them.

    Args:
        server: `f64[P]`, the server's model before the step.
        bases: `f64[N, P]`, the models that clients started from.
        num_contacted: s, the number of clients contacted.

    Returns:
        The expectation over the draw of clients.
    """
    n, s = len(bases), num_contacted
    if n == 1:
        return 0.0  # Server and client both end at the mean of the two.
    everyone = np.vstack([server, bases])
    potential = np.sum((everyone - everyone.mean(0)) ** 2)
    variance = np.sum((bases - server) ** 2)
    pull = (n - s) * variance + (s - 1) * (n + 1) * potential
    return float(potential - s / (n * (s + 1)) * pull / (n - 1))


@checked
def expected_pull(law: Numbers, *, step_curvature: float, reweighting: str) -> Numbers:
    """Compute how far reweighted progress takes a client towards its optimum on a quadratic.

    Derived. With curvature a, step size eta and optimum c_i, the expected reweighted progress from
    w is omega_i a (w - c_i), and the result is eta a omega_i, the mean share of the way to c_i that
    is covered. Gradients shrink along a trajectory, so omega_i falls as X grows: reweighting
    over-corrects in favour of clients that do few steps.

    Args:
        law: `f64[N, K + 1]`, probabilities of X = 0, ..., K.
        step_curvature: eta a.
        reweighting: "stochastic", "deterministic" or "none".

    Returns:
        `f64[N]`, the share eta a omega_i for each client.

    Raises:
        KeyError: If `reweighting` is none of these.
    """
    steps = np.arange(law.shape[-1])
    covered = 1 - (1 - step_curvature) ** steps
    moments = step_moments(law)
    if reweighting == "stochastic":
        return law[:, 1:] @ (covered[1:] / steps[1:]) / moments.prob_any
    return (
        law
        @ covered
        / {"deterministic": moments.mean, "none": np.ones_like(moments.mean)}[reweighting]
    )


@checked
def long_run_means(
    optima: Numbers, pull: Numbers, *, num_contacted: Count
) -> tuple[Numbers, Numbers]:
    """Compute the stationary means of all models, on quadratics of equal curvature. Derived.

    A client reports u_i = m_i + pull_i (c_i - m_i) on average, where m_i is the mean of its base
    model, which is what the server holds after contacting it. These means solve
    (s + 1) m_i = m + u_i + (s - 1) / (n - 1) sum_{j != i} u_j, where m is the mean of all u_i.

    Args:
        optima: `f64[N]` or `f64[N, P]`, the clients' optima c_i.
        pull: `f64[N]`, from `expected_pull`.
        num_contacted: s, the number of clients contacted per server step.

    Returns:
        The mean m of the server's model, `f64[]` or `f64[P]`, and the means m_i of the base models,
        `f64[N]` or `f64[N, P]`.
    """
    n, s = len(optima), num_contacted
    # Probability that another given client is contacted too when client i is.
    contacted_too = (s - 1) / max(n - 1, 1)
    mix = (1 - contacted_too) * np.eye(n) + (contacted_too + 1 / n)
    bases = np.linalg.solve(
        (s + 1) * np.eye(n) - mix * (1 - pull), np.einsum("ij,j,j...->i...", mix, pull, optima)
    )
    return np.mean(bases + np.einsum("i,i...->i...", pull, optima - bases), axis=0), bases


@checked
def second_moment_bound(
    setup: FavanoSetup, *, potential: AtLeast0, gradient_square: float
) -> float:
    """Bound the sum over clients of the second moments of reweighted progress, (135)-(138).

    Holds for eta < 1 / (4 L K^2).

    Args:
        setup: Constants of the problem and of the run.
        potential: Phi_t.
        gradient_square: Squared norm of the gradient of f at mu_t.

    Returns:
        The bound.
    """
    n, b = setup.num_clients, setup.drift_constant
    noise = setup.gradient_variance * n * setup.noise_constant
    spread = 16 * setup.smoothness**2 * b * potential
    return (
        noise
        + spread
        + 8 * n * b * (setup.dissimilarity_factor * gradient_square + setup.dissimilarity)
    )


@checked
def potential_step_bound(
    setup: FavanoSetup,
    *,
    step_size: AtLeast0,
    potential: float | Numbers,
    gradient_square: float | Numbers,
) -> float | Numbers:
    """Bound the expected potential after one server step, (157)-(167).

    Holds if the conditions "local gradients" and "contraction" of `conditions` do; the paper states
    eta <= 1 / (20 s L b).

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        potential: `f64[...]`, Phi_t before the step.
        gradient_square: `f64[...]`, squared norm of the gradient of f at mu_t before the step.

    Returns:
        `f64[...]`, the bound on E[Phi_(t+1)].
    """
    # Deviation: (164) lacks the factor b of G^2, and (157) and (160) lack the factor sigma^2. Both
    # factors are in the bound that these equations start from.
    scale = (setup.num_contacted * step_size) ** 2
    drift = 24 * setup.dissimilarity_factor * setup.drift_constant * gradient_square
    return (1 - 1 / (5 * setup.num_clients)) * potential + scale * (
        3 * _noise_and_dissimilarity(setup) + drift
    )


@checked
def potential_sum_bound(
    setup: FavanoSetup, *, step_size: AtLeast0, num_ticks: Count, gradient_square_sum: float
) -> float:
    """Bound the sum of expected potentials over t = 0, ..., T, (168)-(171).

    The run starts with all models equal. Holds under the conditions of `potential_step_bound`.

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        num_ticks: T, the number of server steps.
        gradient_square_sum: Sum over t < T of the squared norm of the gradient of f at mu_t.

    Returns:
        The bound.
    """
    scale = setup.num_clients * (setup.num_contacted * step_size) ** 2
    drift = 120 * setup.dissimilarity_factor * setup.drift_constant * gradient_square_sum
    return scale * (drift + 15 * num_ticks * _noise_and_dissimilarity(setup))


@checked
def bound_of_main_text(setup: FavanoSetup, *, step_size: AtLeast0, num_ticks: Count) -> float:
    """Compute the right side of eq. (8) as printed, which leaves out two terms of the proof.

    `bound` has all terms.

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        num_ticks: T, the number of server steps.

    Returns:
        The right side of (8), in units of a squared gradient.
    """
    noise = setup.noise_constant * setup.gradient_variance
    drift = setup.drift_constant * setup.dissimilarity
    quadratic = (setup.smoothness * setup.num_contacted) ** 2 * (720 * noise + 5600 * drift)
    terms = error_terms(setup)
    return (
        terms.initial / (step_size * num_ticks)
        + terms.linear * step_size
        + quadratic * step_size**2
    )


@checked
def bound(setup: FavanoSetup, *, step_size: AtLeast0, num_ticks: Count) -> float:
    """Bound the mean over t < T of the expected squared gradient of f at mu_t, Theorem 1.

    In the form of (225)-(227). The bound holds if all `conditions` do. It is about mu_t, the mean
    of all models, not about the server's model.

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        num_ticks: T, the number of server steps.

    Returns:
        The bound, in units of a squared gradient.
    """
    terms = error_terms(setup)
    return (
        terms.initial / (step_size * num_ticks)
        + terms.linear * step_size
        + terms.quadratic * step_size**2
    )


@checked
def error_terms(setup: FavanoSetup) -> ErrorTerms:
    """Collect the bound of Theorem 1 by powers of the step size.

    Args:
        setup: Constants of the problem and of the run.

    Returns:
        The coefficients, and the inverse of the largest step size that the proof allows.
    """
    n, s, L, K = setup.num_clients, setup.num_contacted, setup.smoothness, setup.max_steps
    # Deviation: (224) has 5600 for the last constant, where its own factors give 2 * 2880 = 5760.
    noise = (8 * K**2 + 720 * s**2 * setup.noise_constant) * setup.gradient_variance
    drift = (32 * K**2 + 5760 * s**2 * setup.drift_constant) * setup.dissimilarity
    return ErrorTerms(
        initial=2 * (n + 1) * setup.initial_gap / s,
        linear=L * s / (n + 1) * _noise_and_dissimilarity(setup),
        quadratic=L**2 * (noise + drift),
        cap=1 / largest_step_size(setup),
    )


@checked
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
        contraction: Rate of contraction as a function of n and s; `kappa` is the paper's.

    Returns:
        The conditions "theorem", "local gradients", "local drift", "descent" and "contraction".
    """
    n, s, L, K = setup.num_clients, setup.num_contacted, setup.smoothness, setup.max_steps
    factor, b = setup.dissimilarity_factor, setup.drift_constant
    quadratic, linear = _descent_terms(setup)
    return (
        Condition("theorem", step_size, 1 / (20 * factor * b * K * L * s)),
        Condition("local gradients", step_size, 1 / (4 * L * K**2)),
        Condition("local drift", step_size, 1 / (2 * L * K)),
        Condition("descent", quadratic * step_size**2 + linear * step_size, 1 / 4),
        Condition(
            "contraction", 48 * s**2 / n * L**2 * b * step_size**2 + 1 / (5 * n), contraction(n, s)
        ),
    )


@checked
def largest_step_size(
    setup: FavanoSetup, *, contraction: Callable[[int, int], float] = kappa_sharp
) -> float:
    """Compute the largest step size that meets all `conditions`. Derived.

    Args:
        setup: Constants of the problem and of the run.
        contraction: Rate of contraction as a function of n and s; `kappa` is the paper's.

    Returns:
        The step size; 0 if no step size meets the conditions.
    """
    n, s, L, b = (
        setup.num_clients,
        setup.num_contacted,
        setup.smoothness,
        setup.drift_constant,
    )
    limits = [condition.limit for condition in conditions(setup, step_size=0.0)[:3]]
    quadratic, linear = _descent_terms(setup)
    descent = 0.5 / (linear + np.sqrt(linear**2 + quadratic))
    room = max(contraction(n, s) - 1 / (5 * n), 0.0)
    return float(min(*limits, descent, np.sqrt(room * n / (48 * b)) / (s * L)))


@checked
def quantization_floor(smoothness: Above0, squared_error: AtLeast0) -> float:
    """Compute what quantized weights add to the bound of Theorem 1, 12 L^2 r_d.

    Args:
        smoothness: L.
        squared_error: r_d, the largest squared error of the quantizer at the iterates.

    Returns:
        The addition, in units of a squared gradient; it does not depend on the number of steps.
    """
    return 12 * smoothness**2 * squared_error


@checked
def quantized_bound(
    setup: FavanoSetup, *, step_size: AtLeast0, num_ticks: Count, squared_error: AtLeast0
) -> float:
    """Bound the same mean as `bound` if gradients are taken at quantized weights Q(w).

    The paper states this below Theorem 1 without proof.

    Args:
        setup: Constants of the problem and of the run.
        step_size: eta.
        num_ticks: T, the number of server steps.
        squared_error: r_d, the largest ||Q(w) - w||^2 at the iterates w.

    Returns:
        The bound, in units of a squared gradient. With `squared_error` 0 this is `bound`.
    """
    return bound(setup, step_size=step_size, num_ticks=num_ticks) + quantization_floor(
        setup.smoothness, squared_error
    )


@checked
def uniform_quantizer_error(dim: Whole, *, limit: AtLeast0, bits: Count, rounding: str) -> float:
    """Compute r_d, the largest squared error of a uniform quantizer on [-limit, limit]^dim.

    Derived. Weights outside this range are not covered.

    Args:
        dim: Number of weights.
        limit: Largest magnitude of a weight.
        bits: Bits per weight.
        rounding: "nearest", or "stochastic" for the worst draw, whose error is four times as large.
            The expected squared error of stochastic rounding is at most that of "nearest".

    Returns:
        r_d.

    Raises:
        KeyError: If `rounding` is neither.
    """
    step = 2 * limit / (2**bits - 1)
    return dim * step**2 / {"nearest": 4, "stochastic": 1}[rounding]


def _noise_and_dissimilarity(setup: FavanoSetup) -> float:
    """Compute sigma^2 times the mean of a^i, plus 8 b G^2."""
    return (
        setup.gradient_variance * setup.noise_constant
        + 8 * setup.drift_constant * setup.dissimilarity
    )


def _descent_terms(setup: FavanoSetup) -> tuple[float, float]:
    """Compute the coefficients of eta^2 and eta in the sum that descent needs to be at most 1/4."""
    n, s, L, K = setup.num_clients, setup.num_contacted, setup.smoothness, setup.max_steps
    factor, b = setup.dissimilarity_factor, setup.drift_constant
    return L**2 * factor * (16 * K**2 + 2880 * s**2 * b), 4 * L * s * b * factor / (n + 1)
