"""The theory of FAVANO (Leconte, Nguyen, Moulines, arXiv 2305.16099): identities, constants and the convergence bound, in float64.

Dimension letters: `N` clients, `P` parameters, `K` most local steps between contacts. A client's X in 0, ..., K is the number of local
steps it reports (the paper's E and K, the smaller one), `law` its probabilities. Equation numbers are the paper's; "derived" marks what
it does not state.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.timelines import step_counts

Numbers = npt.NDArray[np.float64]


class StepMoments(NamedTuple):
    """Moments of X, all `f64[N]`."""

    prob_any: Numbers  # P(X > 0)
    mean: Numbers  # E[X]
    mean_square: Numbers  # E[X^2]
    mean_inverse: Numbers  # E[1(X > 0) / X]


class FavanoSetup(NamedTuple):
    """The constants of assumptions A1 to A4 and of the run."""

    num_clients: int  # n
    num_contacted: int  # s
    max_steps: int  # K
    smoothness: float  # L
    gradient_variance: float  # sigma^2
    dissimilarity: float  # G^2
    dissimilarity_factor: float  # B^2, at least 1
    initial_gap: float  # F = f(mu_0) - f_*
    noise_constant: float  # mean of a^i
    drift_constant: float  # b


class Condition(NamedTuple):
    """One requirement of the proof: `value` may be at most `limit`."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


class ErrorTerms(NamedTuple):
    """A bound r_0 / (eta T) + b eta + e eta^2 that is valid for step sizes eta up to 1 / d."""

    initial: float  # r_0
    linear: float  # b
    quadratic: float  # e
    cap: float  # d


def step_law(
    rate: npt.ArrayLike, *, contact_probability: float, round_time: float, max_steps: int, law: str
) -> Numbers:
    """Compute the probabilities of X = 0, ..., K of each client over stationary windows.

    rate: `f64[N]`, local steps per unit of time. law: a name of `timelines.step_counts`. Returns `f64[N, K + 1]`.
    """
    with jax.enable_x64(True):
        window = {"contact_probability": contact_probability, "round_time": round_time}
        tails = np.asarray(
            step_counts.tail_probabilities(
                jnp.asarray(rate, float), max_steps=max_steps, law=law, **window
            )
        )
    return -np.diff(tails, axis=-1, prepend=1.0, append=0.0)


def step_moments(law: Numbers) -> StepMoments:
    """Compute the moments of X. law: `f64[N, K + 1]`, probabilities of X = 0, ..., K."""
    steps = np.arange(law.shape[-1])
    return StepMoments(1 - law[:, 0], law @ steps, law @ steps**2, law[:, 1:] @ (1 / steps[1:]))


def reweighted_variance(
    moments: StepMoments, *, mean: float, variance: float, reweighting: str
) -> Numbers:
    """Compute the variance of the reweighted sum of X independent gradients (lemma before App. B.2; M_1 and M_2 there).

    mean, variance: of one gradient. reweighting: "stochastic" or "deterministic". Returns `f64[N]`; the expectation is `mean`.
    """
    if reweighting == "stochastic":
        silent = mean**2 * moments.prob_any * (1 - moments.prob_any)
        return (silent + variance * moments.mean_inverse) / moments.prob_any**2
    return mean**2 * (moments.mean_square / moments.mean**2 - 1) + variance / moments.mean


def reweighting_constants(
    moments: StepMoments, *, max_steps: int, reweighting: str
) -> tuple[Numbers, float]:
    """Compute a^i, `f64[N]`, and b of Theorem 1.

    reweighting: "stochastic", "deterministic" or "deterministic_printed".
    """
    any_, mean, square, inverse = moments
    if reweighting == "stochastic":
        return (any_ / max_steps**2 + inverse) / any_**2, float(np.max(1 / any_))
    # Deviation: from (149) on the paper divides E[X^2] by E[X], where (148) has its square. As printed, (138) is false for a client
    # that rarely has a step to report: X of 1 with probability 0.05, else 0, has a second moment of 20 and a bound of 8.
    scale = {"deterministic": mean**2, "deterministic_printed": mean}[reweighting]
    return 1 / mean + square / (max_steps**2 * scale), float(np.max(square / scale))


def kappa(num_clients: int, num_contacted: int) -> float:
    """Compute the rate at which the potential contracts, eq. (6)."""
    n, s = num_clients, num_contacted
    return s * (n - s) / (2 * n * (n + 1) * (s + 1))


def kappa_sharp(num_clients: int, num_contacted: int) -> float:
    """Compute the larger rate that the proof gives at (78)-(79), and which does not vanish at s = n. Derived."""
    return num_contacted / (2 * num_clients * (num_contacted + 1))


def kappa_star(num_clients: int, num_contacted: int) -> float:
    """Compute the best rate in the absence of progress, attained when the server's model is the mean of all. Derived."""
    n, s = num_clients, num_contacted
    return s * (s * n - 1) / (n * max(n - 1, 1) * (s + 1))


def expected_potential(server: Numbers, bases: Numbers, *, num_contacted: int) -> float:
    """Compute the expected potential after one server step without progress, exactly. Derived.

    server: `f64[P]`. bases: `f64[N, P]`, the models that clients started from. The potential is the sum of squared distances of the
    server's and the clients' models to their mean mu.
    """
    n, s = len(bases), num_contacted
    if n == 1:
        return 0.0  # Server and client both end at the mean of the two.
    everyone = np.vstack([server, bases])
    potential = np.sum((everyone - everyone.mean(0)) ** 2)
    variance = np.sum((bases - server) ** 2)
    pull = (n - s) * variance + (s - 1) * (n + 1) * potential
    return float(potential - s / (n * (s + 1)) * pull / (n - 1))


def expected_pull(law: Numbers, *, step_curvature: float, reweighting: str) -> Numbers:
    """Compute the share of the way to its own optimum that a client's reweighted progress covers on average, on a quadratic. Derived.

    With curvature a and step size eta, `step_curvature` is eta a and the result eta a omega_i, where the expected progress is
    omega_i a (w - c_i). Gradients shrink along a trajectory, so a client that does many steps is reweighted too much: omega_i falls with X.
    law: `f64[N, K + 1]`. reweighting: "stochastic", "deterministic" or "none". Returns `f64[N]`.
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


def long_run_means(
    optima: Numbers, pull: Numbers, *, num_contacted: int
) -> tuple[Numbers, Numbers]:
    """Compute the stationary means of the server's model and of the clients' base models on quadratics of one curvature. Derived.

    A client reports u_i = m_i + pull_i (c_i - m_i) on average, where m_i is the mean of what the server holds after contacting it:
    (s + 1) m_i = m + u_i + (s - 1) / (n - 1) sum_{j != i} u_j, and m is the mean of all u_i.
    optima: `f64[N]` or `f64[N, P]`. pull: `f64[N]`, as from `expected_pull`. Returns m, `f64[]` or `f64[P]`, and `f64[N]` or `f64[N, P]`.
    """
    n, s = len(optima), num_contacted
    together = (s - 1) / max(n - 1, 1)
    mix = (1 - together) * np.eye(n) + (together + 1 / n)
    bases = np.linalg.solve(
        (s + 1) * np.eye(n) - mix * (1 - pull), np.einsum("ij,j,j...->i...", mix, pull, optima)
    )
    return np.mean(bases + np.einsum("i,i...->i...", pull, optima - bases), axis=0), bases


def second_moment_bound(setting: FavanoSetup, *, potential: float, gradient_square: float) -> float:
    """Bound the sum over clients of the second moments of reweighted progress, (135)-(138); needs eta < 1 / (4 L K^2).

    potential: Phi_t. gradient_square: squared norm of the gradient at mu_t.
    """
    n, b = setting.num_clients, setting.drift_constant
    noise = setting.gradient_variance * n * setting.noise_constant
    spread = 16 * setting.smoothness**2 * b * potential
    return (
        noise
        + spread
        + 8 * n * b * (setting.dissimilarity_factor * gradient_square + setting.dissimilarity)
    )


def potential_step_bound(
    setting: FavanoSetup,
    *,
    step_size: float,
    potential: float | Numbers,
    gradient_square: float | Numbers,
) -> float | Numbers:
    """Bound the expected potential after one server step, (157)-(167), from its value and the squared gradient at mu_t before it."""
    # Deviation: (164) lacks the factor b of G^2 and (157), (160) the factor sigma^2; both are in the bound that they start from.
    scale = (setting.num_contacted * step_size) ** 2
    drift = 24 * setting.dissimilarity_factor * setting.drift_constant * gradient_square
    return (1 - 1 / (5 * setting.num_clients)) * potential + scale * (
        3 * _noise_and_dissimilarity(setting) + drift
    )


def potential_sum_bound(
    setting: FavanoSetup, *, step_size: float, num_ticks: int, gradient_square_sum: float
) -> float:
    """Bound the sum of expected potentials over t = 0, ..., T of a run that starts with all models equal, (168)-(171).

    gradient_square_sum: sum over t < T of the squared gradient at mu_t.
    """
    scale = setting.num_clients * (setting.num_contacted * step_size) ** 2
    drift = 120 * setting.dissimilarity_factor * setting.drift_constant * gradient_square_sum
    return scale * (drift + 15 * num_ticks * _noise_and_dissimilarity(setting))


def bound_of_main_text(setting: FavanoSetup, *, step_size: float, num_ticks: int) -> float:
    """Compute the right side of eq. (8) as printed, which leaves out two terms of the proof; see `bound`."""
    noise = setting.noise_constant * setting.gradient_variance
    drift = setting.drift_constant * setting.dissimilarity
    quadratic = (setting.smoothness * setting.num_contacted) ** 2 * (720 * noise + 5600 * drift)
    terms = error_terms(setting)
    return (
        terms.initial / (step_size * num_ticks)
        + terms.linear * step_size
        + quadratic * step_size**2
    )


def bound(setting: FavanoSetup, *, step_size: float, num_ticks: int) -> float:
    """Bound the mean over t < T of the expected squared gradient at mu_t, Theorem 1 in the form of (225)-(227).

    Holds if every one of `conditions` does. It is about the mean of all models mu_t, not the server's model.
    """
    terms = error_terms(setting)
    return (
        terms.initial / (step_size * num_ticks)
        + terms.linear * step_size
        + terms.quadratic * step_size**2
    )


def error_terms(setting: FavanoSetup) -> ErrorTerms:
    """Collect Theorem 1 by powers of the step size."""
    n, s, L, K = setting.num_clients, setting.num_contacted, setting.smoothness, setting.max_steps
    # Deviation: (224) has 5600 for the last constant, where its own factors give 2 * 2880 = 5760.
    noise = (8 * K**2 + 720 * s**2 * setting.noise_constant) * setting.gradient_variance
    drift = (32 * K**2 + 5760 * s**2 * setting.drift_constant) * setting.dissimilarity
    return ErrorTerms(
        initial=2 * (n + 1) * setting.initial_gap / s,
        linear=L * s / (n + 1) * _noise_and_dissimilarity(setting),
        quadratic=L**2 * (noise + drift),
        cap=1 / largest_step_size(setting),
    )


def conditions(
    setting: FavanoSetup,
    *,
    step_size: float,
    contraction: Callable[[int, int], float] = kappa_sharp,
) -> tuple[Condition, ...]:
    """List what the proof of Theorem 1 asks of the step size. Derived, but for the first, which is eq. (7).

    The paper states the first alone; it does not imply the others when K or s is small. contraction: `kappa` for the paper's rate.
    """
    n, s, L, K = setting.num_clients, setting.num_contacted, setting.smoothness, setting.max_steps
    factor, b = setting.dissimilarity_factor, setting.drift_constant
    quadratic, linear = _descent_terms(setting)
    return (
        Condition("theorem", step_size, 1 / (20 * factor * b * K * L * s)),
        Condition("local gradients", step_size, 1 / (4 * L * K**2)),
        Condition("local drift", step_size, 1 / (2 * L * K)),
        Condition("descent", quadratic * step_size**2 + linear * step_size, 1 / 4),
        Condition(
            "contraction", 48 * s**2 / n * L**2 * b * step_size**2 + 1 / (5 * n), contraction(n, s)
        ),
    )


def largest_step_size(
    setting: FavanoSetup, *, contraction: Callable[[int, int], float] = kappa_sharp
) -> float:
    """Compute the largest step size that meets all `conditions`; 0 if there is none. Derived."""
    n, s, L, b = (
        setting.num_clients,
        setting.num_contacted,
        setting.smoothness,
        setting.drift_constant,
    )
    limits = [condition.limit for condition in conditions(setting, step_size=0.0)[:3]]
    quadratic, linear = _descent_terms(setting)
    descent = 0.5 / (linear + np.sqrt(linear**2 + quadratic))
    room = max(contraction(n, s) - 1 / (5 * n), 0.0)
    return float(min(*limits, descent, np.sqrt(room * n / (48 * b)) / (s * L)))


def quantization_floor(smoothness: float, squared_error: float) -> float:
    """Compute what Theorem 1's bound grows by if gradients are taken at quantized weights, 12 L^2 r_d. squared_error: r_d."""
    return 12 * smoothness**2 * squared_error


def quantized_bound(
    setting: FavanoSetup, *, step_size: float, num_ticks: int, squared_error: float
) -> float:
    """Bound as `bound` does a run whose gradients are taken at quantized weights Q(w), stated below Theorem 1 without proof.

    squared_error: r_d, the most by which ||Q(w) - w||^2 errs at the iterates; what it adds is constant in time. With 0 this is `bound`.
    """
    return bound(setting, step_size=step_size, num_ticks=num_ticks) + quantization_floor(
        setting.smoothness, squared_error
    )


def uniform_quantizer_error(dim: int, *, limit: float, bits: int, rounding: str) -> float:
    """Compute r_d, the largest squared error of a uniform quantizer on [-limit, limit]^dim. Derived.

    rounding: "nearest", or "stochastic" for the worst draw, four times as much; its expected squared error is at most that of "nearest".
    """
    step = 2 * limit / (2**bits - 1)
    return dim * step**2 / {"nearest": 4, "stochastic": 1}[rounding]


def _noise_and_dissimilarity(setting: FavanoSetup) -> float:
    return (
        setting.gradient_variance * setting.noise_constant
        + 8 * setting.drift_constant * setting.dissimilarity
    )


def _descent_terms(setting: FavanoSetup) -> tuple[float, float]:
    """The coefficients of eta^2 and eta which must stay below 1/4 for the squared gradient to be bounded."""
    n, s, L, K = setting.num_clients, setting.num_contacted, setting.smoothness, setting.max_steps
    factor, b = setting.dissimilarity_factor, setting.drift_constant
    return L**2 * factor * (16 * K**2 + 2880 * s**2 * b), 4 * L * s * b * factor / (n + 1)
