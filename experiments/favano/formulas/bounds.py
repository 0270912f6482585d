"""FAVANO's contraction, fixed points and convergence bound, in float64.

The paper is Leconte, Nguyen and Moulines, arXiv 2305.16099. Equation numbers are the paper's.
"Derived" marks what the paper does not state; "Deviation:" marks where this module corrects it.

Dimension letters: `N` clients (the paper's n), `P` parameters, `K` the largest number of local
steps that a client does between two contacts, `T` server steps.

X, in 0, ..., K, is the number of local steps that a client reports at a contact: the smaller of the
paper's E and K. `law` holds the probabilities of its values. The server contacts s clients per
step; eta is the step size of local steps; mu_t is the mean of the server's model and all clients'
base models (the models that clients started from) at server step t; Phi_t, the potential, is the
sum of squared distances of these n + 1 models to mu_t. The law of X, its moments and the conditions
on the step size are in `fedjax_sim.theory.favano`.

Arguments: `num_clients` is n, `num_contacted` s, `step_size` eta, `num_ticks` T; `setup` has the
constants of the problem and of the run.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import AtLeast0, Count, checked
from fedjax_sim.theory.favano import FavanoSetup, StepMoments, largest_step_size, step_moments

Numbers = npt.NDArray[np.float64]


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
def reweighted_variance(
    moments: StepMoments, *, mean: float, variance: AtLeast0, reweighting: str
) -> Numbers:
    """Compute the variance of the reweighted sum of X independent scalar gradients: `f64[N]`.

    The lemma on Var(M_1) and Var(M_2), just before the tuning lemma of App. B.1. The expectation of
    the reweighted sum is `mean`.

    Args:
        moments: Moments of X.
        mean: Expectation of one gradient.
        variance: Variance of one gradient.
        reweighting: "stochastic" (M_1) or "deterministic" (M_2).
    """
    if reweighting == "stochastic":
        no_step = mean**2 * moments.prob_any * (1 - moments.prob_any)
        return (no_step + variance * moments.mean_inverse) / moments.prob_any**2
    return mean**2 * (moments.mean_square / moments.mean**2 - 1) + variance / moments.mean


@checked
def kappa(num_clients: Count, num_contacted: Count) -> float:
    """Compute the rate at which the potential contracts, eq. (6).

    Without progress, the expected potential falls at least by this share per step. It is 0 if all
    clients are contacted.
    """
    n, s = num_clients, num_contacted
    return s * (n - s) / (2 * n * (n + 1) * (s + 1))


@checked
def kappa_star(num_clients: Count, num_contacted: Count) -> float:
    """Compute the best possible rate without progress. Derived.

    It is attained when the server's model is the mean of all models.
    """
    n, s = num_clients, num_contacted
    return s * (s * n - 1) / (n * max(n - 1, 1) * (s + 1))


@checked
def expected_potential(server: Numbers, bases: Numbers, *, num_contacted: Count) -> float:
    """Compute exactly the expected potential after one server step without progress. Derived.

    The expectation is over the draw of clients.

    Args:
        server: `f64[P]`, the server's model before the step.
        bases: `f64[N, P]`, the models that clients started from.
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

    Derived. With curvature a and optimum c_i, the expected reweighted progress from w is
    omega_i a (w - c_i), and the result is eta a omega_i, the mean share of the way to c_i that is
    covered: `f64[N]`. Gradients shrink along a trajectory, so omega_i falls as X grows: reweighting
    over-corrects in favour of clients that do few steps. `step_curvature` is eta a, and the
    reweighting is "stochastic", "deterministic" or "none".
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

    Returns:
        The mean m of the server's model, and the means m_i of the base models.
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
def bound(setup: FavanoSetup, *, step_size: AtLeast0, num_ticks: Count) -> float:
    """Bound the mean over t < T of the expected squared gradient of f at mu_t, Theorem 1.

    In the form of (225)-(227). The bound holds if all conditions on the step size do. It is about
    mu_t, the mean of all models, not about the server's model.
    """
    terms = error_terms(setup)
    return (
        terms.initial / (step_size * num_ticks)
        + terms.linear * step_size
        + terms.quadratic * step_size**2
    )


@checked
def error_terms(setup: FavanoSetup) -> ErrorTerms:
    """Collect the bound of Theorem 1 by powers of the step size."""
    n, s, L, K = setup.num_clients, setup.num_contacted, setup.smoothness, setup.max_steps
    # Deviation: (224) has 5600 for the last constant, where its own factors give 2 * 2880 = 5760.
    noise = (8 * K**2 + 720 * s**2 * setup.noise_constant) * setup.gradient_variance
    drift = (32 * K**2 + 5760 * s**2 * setup.drift_constant) * setup.dissimilarity
    return ErrorTerms(
        initial=2 * (n + 1) * setup.initial_gap / s,
        linear=L * s / (n + 1) * noise_and_dissimilarity(setup),
        quadratic=L**2 * (noise + drift),
        cap=1 / largest_step_size(setup),
    )


def noise_and_dissimilarity(setup: FavanoSetup) -> float:
    """Compute sigma^2 times the mean of a^i, plus 8 b G^2."""
    return (
        setup.gradient_variance * setup.noise_constant
        + 8 * setup.drift_constant * setup.dissimilarity
    )
