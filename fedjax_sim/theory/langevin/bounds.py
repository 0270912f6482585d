"""The theory of FA-LD (Deng, Zhang, Ma, Song, Lin, arXiv 2112.05120): its constants and its bounds, in float64.

N clients with weights p_c sample exp(-f / tau), f the sum of p_c f^c over clients, each f^c smooth with L and strongly convex with m.
Bounds are of the 2-Wasserstein distance to that law of the averaged model after k local steps, or of moments on the way. `num_steps`,
step sizes and the numbers of `Setting` may be arrays, which broadcast. Numbers of theorems and equations are the paper's.

Corrected here, each marked in its place: the step sizes that the lemmas hold for; the drift of partial participation; the condition on K
under decreasing step sizes. On Gaussian clients, whose exact laws are in `langevin_oracle`, Theorems B.6 to B.8 are loose by two to five
orders of magnitude once the start is forgotten, and C.3 by one to five; lemmas may be almost met. The number of local steps that is best
by the theorems is not that of the algorithm; see `langevin_rounds`.
"""

import warnings
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.theory.langevin.exact_laws import (
    FULL,
    GaussianTarget,
    Numbers,
    Participation,
    Real,
    check_rho,
    target,
)


class LangevinSetup(NamedTuple):
    """The constants of assumptions 5.1 to 5.3 and of the run."""

    num_clients: int  # N
    dim: int  # d
    smoothness: Real  # L, of every f^c
    strong_convexity: Real  # m, of every f^c
    temperature: Real  # tau
    rho: Real  # share of the noise that is common to all clients, as a weight
    least_weight: Real  # smallest p_c
    start: Real  # D^2: squared distance of the start to the minimiser theta_*, over d
    dissimilarity: Real  # gamma: largest norm of a gradient of f^c at theta_*
    gradient_variance: Real = (
        0.0  # sigma^2: squared error of a stochastic gradient of f^c at most, over d
    )

    @property
    def condition_number(self) -> Real:
        """kappa"""
        return self.smoothness / self.strong_convexity

    @property
    def local_temperature(self) -> Real:
        """The largest T_{c,rho} = tau (rho^2 + (1 - rho^2) / p_c) of any client."""
        return self.temperature * (
            np.square(self.rho) + (1 - np.square(self.rho)) / self.least_weight
        )

    @property
    def client_noise(self) -> Real:
        """The weighted mean of T_{c,rho}, tau (rho^2 + N (1 - rho^2)), for any weights."""
        return self.temperature * (
            np.square(self.rho) + self.num_clients * (1 - np.square(self.rho))
        )

    @property
    def spread(self) -> Real:
        """H_rho (Def. A.4): start, injected noise, dissimilarity of clients, and gradient noise."""
        m, d = self.strong_convexity, self.dim
        return (
            self.start
            + self.local_temperature / m
            + np.square(self.dissimilarity / m) / d
            + self.gradient_variance / np.square(m)
        )

    @property
    def largest_step_size(self) -> Real:
        """1 / (2 L), up to which the theorems hold."""
        return 1 / (2 * self.smoothness)


def setup_of(clients: GaussianTarget, start: npt.ArrayLike, rho: Real) -> LangevinSetup:
    """Compute the constants of Gaussian clients, which meet the assumptions with equality. start: `f64[..., P]`, everyone's first model."""
    curvatures = np.linalg.eigvalsh(clients.hessians)
    mode = target(clients).mean
    gradients = np.einsum(
        "...cij,...cj->...ci", clients.hessians, mode[..., None, :] - clients.centers
    )
    n, dim = clients.shape
    noise = np.broadcast_to(clients.gradient_noise, clients.hessians.shape)
    return LangevinSetup(
        num_clients=n,
        dim=dim,
        smoothness=curvatures.max(axis=(-2, -1)),
        strong_convexity=curvatures.min(axis=(-2, -1)),
        temperature=clients.temperature,
        rho=rho,
        least_weight=clients.weights.min(axis=-1),
        start=np.square(np.asarray(start) - mode).sum(axis=-1) / dim,
        dissimilarity=np.linalg.norm(gradients, axis=-1).max(axis=-1),
        gradient_variance=np.trace(noise, axis1=-2, axis2=-1).max(axis=-1) / dim,
    )


def noise_correlation(weights: npt.ArrayLike, rho: Real) -> Numbers:
    """Compute the correlation between clients of the noise that a step injects, which is not rho, a mixing weight. Derived.

    Covariances are 2 eta tau rho^2 between two clients, variances 2 eta T_{c,rho}: step size and temperature cancel. With N equal weights
    the correlation is rho^2 / (rho^2 + N (1 - rho^2)). weights: `f64[..., N]`, p_c. Returns `f64[..., N, N]`, 1 on the diagonal.
    """
    check_rho(rho)
    weights, shared = np.asarray(weights, float), np.square(np.asarray(rho, float))[..., None]
    scale = np.sqrt(shared + (1 - shared) / weights)
    between = shared[..., None] / (scale[..., :, None] * scale[..., None, :])
    return np.where(np.eye(weights.shape[-1], dtype=bool), 1.0, between)


# Lemmas -------------------------------------------------------------------------------------------------------------------------------


def contraction_bound(
    setting: LangevinSetup, *, step_size: Real, squared_distance: Real, divergence: Real
) -> Real:
    """Bound the squared distance of two models after a gradient step of each (Lemma B.1 / 5.4).

    One follows the global gradient, the other the average of the clients' at models of their own. squared_distance: before the step.
    divergence: weighted mean of the clients' squared distances to their average.
    """
    _check_lemma(setting, step_size)
    return (
        1 - step_size * setting.strong_convexity
    ) * squared_distance + 4 * step_size * setting.smoothness * divergence


def discretisation_bound(setting: LangevinSetup, *, step_size: Real) -> Real:
    """Bound how far the stationary diffusion gets on average within a step, squared (Lemma B.2)."""
    _check_step_size(step_size, 2 / np.asarray(setting.strong_convexity), "2 / m", is_strict=True)
    d, tau = setting.dim, setting.temperature
    drift = 2 * np.square(step_size) * d * setting.condition_number * setting.smoothness * tau
    return drift + 16 * step_size * d * tau


def moment_bound(setting: LangevinSetup, *, step_size: Real) -> Real:
    """Bound any client's expected squared distance to theta_*, at all steps (Lemma E.1)."""
    _check_lemma(setting, step_size)
    d, m = setting.dim, setting.strong_convexity
    sources = (
        setting.local_temperature
        + setting.gradient_variance / m
        + np.square(setting.dissimilarity) / (m * d)
    )
    return d * setting.start + 6 * d / m * sources


def gradient_bound(setting: LangevinSetup, *, step_size: Real) -> Real:
    """Bound the expected squared norm of any client's stochastic gradient, at all steps (Lemma E.2)."""
    _check_lemma(setting, step_size)
    return 14 * setting.dim * np.square(setting.smoothness) * setting.spread


def divergence_bound(
    setting: LangevinSetup, *, step_size: Real, local_steps: int, is_constant: bool = True
) -> Real:
    """Bound the clients' weighted mean squared distance to their average, at all steps (Lemma B.3 / 5.5).

    is_constant: whether the step size is; the proof then gives a fourth and a half of the two terms as printed, which allow it to halve
    within a round.
    """
    _check_lemma(setting, step_size)
    return _divergence(setting, step_size, local_steps - 1, is_constant)


def gradient_noise_bound(setting: LangevinSetup) -> Real:
    """Bound the mean squared error of the averaged gradient (Lemma B.4)."""
    return setting.dim * np.asarray(setting.gradient_variance)


def selection_bound(
    setting: LangevinSetup,
    participation: Participation,
    *,
    step_size: Real,
    local_steps: int,
    is_constant: bool = True,
) -> Real:
    """Bound the mean squared distance between the average over the selected clients and that over all (Lemma C.2).

    Scheme II needs equal weights.
    """
    _check_lemma(setting, step_size)
    return _excess(setting, participation) * _divergence(
        setting, step_size, local_steps, is_constant
    )


def start_bound(setting: LangevinSetup) -> Real:
    """Bound the distance of the start to the target (Lemma F.1)."""
    d = setting.dim
    return np.sqrt(2 * d) * (
        np.sqrt(setting.start) + np.sqrt(setting.temperature / np.asarray(setting.strong_convexity))
    )


# Theorems -----------------------------------------------------------------------------------------------------------------------------


def one_step_bound(
    setting: LangevinSetup,
    squared_distance: Real,
    *,
    step_size: Real,
    local_steps: int,
    participation: Participation = FULL,
) -> Real:
    """Bound the squared W2 after a step from that before it (Lemma B.5 / 5.6, and (38) for a step with partial participation)."""
    _check_theorem(setting, step_size)
    shrunk = (1 - step_size * setting.strong_convexity / 2) * squared_distance
    square = np.square(step_size) * setting.dim * np.square(setting.smoothness) * setting.spread
    if participation.scheme == "full":
        return shrunk + 400 * square * _drift(setting, local_steps)
    selection = (
        4
        * local_steps
        * setting.dim
        * step_size
        * setting.client_noise
        * _excess(setting, participation)
    )
    return shrunk + 450 * square * _drift(setting, local_steps + 1) + selection


def bound(
    setting: LangevinSetup,
    num_steps: npt.ArrayLike,
    *,
    step_size: Real,
    local_steps: int,
    participation: Participation = FULL,
) -> Real:
    """Bound W2 after k steps of constant size (Theorems B.6 / 5.7, for any rho B.8 / 5.9, partial participation C.3 / 5.10).

    With partial participation the distance does not go to 0 with the step size: see `participation_floor`.
    """
    _check_theorem(setting, step_size)
    m = setting.strong_convexity
    decay = np.exp(np.asarray(num_steps) * np.log1p(-step_size * m / 4)) * start_bound(setting)
    if participation.scheme == "full":
        return decay + bias_bound(setting, step_size=step_size, local_steps=local_steps)
    # Deviation: the appendix has (K - 1)^2 in the drift of partial participation; its proof gives the K^2 of the main text.
    drift = bias_bound(setting, step_size=step_size, local_steps=local_steps + 1)
    return (
        decay
        + drift
        + participation_floor(setting, participation, step_size=step_size, local_steps=local_steps)
    )


def bias_bound(setting: LangevinSetup, *, step_size: Real, local_steps: int) -> Real:
    """Bound what is left of W2 after many steps, 30 kappa sqrt(eta m d H (( K - 1)^2 + kappa)): the second term of Theorem B.6."""
    rate = step_size * setting.strong_convexity * setting.dim
    return (
        30
        * setting.condition_number
        * np.sqrt(rate * setting.spread * _drift(setting, local_steps))
    )


def participation_floor(
    setting: LangevinSetup, participation: Participation, *, step_size: Real, local_steps: int
) -> Real:
    """Bound what partial participation adds to W2: the last term of Theorem C.3.

    It stays positive as the step size goes to 0, also at rho = 1, where the true distance does vanish: the proof bounds a variance by a
    second moment, which counts the shared noise.
    """
    whole = step_size * setting.strong_convexity * local_steps
    factor = whole / -np.expm1(-whole / 2)  # C_K, from 2 to 2 + eta m K
    noise = setting.dim * setting.client_noise / setting.strong_convexity
    return 2 * np.sqrt(factor * noise * _excess(setting, participation))


def squared_bound(
    setting: LangevinSetup,
    num_steps: npt.ArrayLike,
    squared_distance: Real,
    *,
    step_size: Real,
    local_steps: int,
) -> Real:
    """Bound the squared W2 after k steps from that at the start, full participation (29)."""
    _check_theorem(setting, step_size)
    rate = step_size * setting.strong_convexity
    floor = (
        800
        * np.square(setting.condition_number)
        * rate
        * setting.dim
        * setting.spread
        * _drift(setting, local_steps)
    )
    return np.exp(np.asarray(num_steps) * np.log1p(-rate / 2)) * squared_distance + floor


def decreasing_step_size(setting: LangevinSetup, step: npt.ArrayLike) -> Real:
    """Compute eta_k = 1 / (2 L + m k / 12) of Theorem 5.8; k counts all local steps from 0."""
    return 1 / (2 * setting.smoothness + setting.strong_convexity * np.asarray(step) / 12)


def decreasing_bound(setting: LangevinSetup, num_steps: npt.ArrayLike, *, local_steps: int) -> Real:
    """Bound W2 after k = 0, 1, ... steps of decreasing size (Theorem B.7 / 5.8); full participation."""
    # Deviation: the proof needs the step size not to halve within a round, a condition that the paper does not state.
    if np.any(local_steps - 1 > 24 * np.asarray(setting.condition_number)):
        warnings.warn(
            "local_steps - 1 exceeds 24 kappa, beyond which Theorem 5.8 is not proved", stacklevel=2
        )
    step_size = decreasing_step_size(setting, num_steps)
    return 1.5 * bias_bound(setting, step_size=step_size, local_steps=local_steps)


def _divergence(
    setting: LangevinSetup, step_size: Real, steps_apart: int, is_constant: bool
) -> Real:
    drift, noise = (28, 4) if is_constant else (112, 8)
    drifted = (
        drift
        * np.square(steps_apart * np.asarray(step_size) * setting.smoothness)
        * setting.dim
        * setting.spread
    )
    return drifted + noise * steps_apart * step_size * setting.dim * setting.client_noise


def _drift(setting: LangevinSetup, local_steps: int) -> Real:
    """(K - 1)^2 + kappa"""
    return (local_steps - 1) ** 2 + setting.condition_number


def _excess(setting: LangevinSetup, participation: Participation) -> float:
    equal = 1 / setting.num_clients
    if participation.scheme == "without_replacement" and np.any(
        np.abs(np.asarray(setting.least_weight) - equal) > 1e-12
    ):
        raise ValueError(
            f"least_weight is {np.min(setting.least_weight):g}, but must be {equal:g}: clients drawn without replacement."
        )
    return participation.excess(np.full(setting.num_clients, 1 / setting.num_clients))


def _check_lemma(setting: LangevinSetup, step_size: Real) -> None:
    # Deviation: the paper states the lemmas for step sizes below 2 / m, at which gradient descent may diverge.
    _check_step_size(
        step_size, 1 / (np.asarray(setting.smoothness) + setting.strong_convexity), "1 / (L + m)"
    )


def _check_theorem(setting: LangevinSetup, step_size: Real) -> None:
    _check_step_size(step_size, setting.largest_step_size, "1 / (2 L)")


def _check_step_size(step_size: Real, limit: Real, words: str, is_strict: bool = False) -> None:
    sizes, limits = np.broadcast_arrays(np.asarray(step_size, float), np.asarray(limit, float))
    is_beyond = ~(
        (sizes > 0) & ((sizes < limits) if is_strict else (sizes <= limits * (1 + 1e-12)))
    )
    if is_beyond.any():
        most = f"{'below' if is_strict else 'at most'} {words} = {limits[is_beyond][0]:g}"
        raise ValueError(f"step_size is {sizes[is_beyond][0]:g}, but must be above 0 and {most}.")
