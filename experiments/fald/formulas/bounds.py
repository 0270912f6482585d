"""FA-LD's constants and bounds (Deng, Zhang, Ma, Song, Lin, arXiv 2112.05120), in float64.

N clients with weights p_c sample exp(-f / tau), where f is the sum of p_c f^c over clients and each
f^c is L-smooth and m-strongly convex. The theorems bound the 2-Wasserstein distance W2 between
that law and the law of the averaged model after k local steps; the lemmas bound moments on the way.
Numbers of theorems and equations are the paper's.

Dimension letters: `N` clients, `P` parameters (the paper's d). `num_steps`, step sizes and the
fields of `LangevinSetup` may be numbers or arrays `f64[...]`, which broadcast; so do the results.

Symbols: eta `step_size`, K `local_steps`, k `num_steps`, tau `temperature`, kappa = L / m.

Unless a function says otherwise, it returns the bound, `setup` has the constants, `step_size` is
positive and at most 1 / (L + m) in lemmas and 1 / (2 L) in theorems, `local_steps` is at least 1,
`num_steps` counts all local steps from 0, and `participation` says which clients are averaged. A
step size outside its range, a participation that is not possible, and unequal weights under scheme
II raise a ValueError.

Corrections of the paper, each marked where it is made: the step sizes up to which the lemmas hold,
the drift under partial participation, and the condition on K under decreasing step sizes.

On Gaussian clients, whose exact laws are in `experiments.fald.formulas.exact_laws`, Theorems B.6
to B.8 are loose by two to five orders of magnitude once the start is forgotten, and C.3 by one to
five. Lemmas can be almost tight. The number of local steps that is best according to the theorems
is not the best one for the algorithm; see `experiments.fald.formulas.rounds`.
"""

import warnings
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.fald.formulas import exact_laws
from experiments.fald.formulas.exact_laws import GaussianTarget, Participation, Real
from fedjax_sim.core.settings import Count, checked


@checked
class LangevinSetup(NamedTuple):
    """The constants of assumptions 5.1 to 5.3 and the settings of a run that the bounds depend on.

    Attributes:
        num_clients: N, at least 1.
        dim: d, the number of parameters.
        smoothness: L, of every f^c.
        strong_convexity: m, of every f^c, positive.
        temperature: tau, at least 0.
        rho: Mixing weight of the noise that all clients share, in [0, 1].
        least_weight: Smallest p_c.
        start: D^2, squared distance of the first model to the minimiser theta_* of f, over d.
        dissimilarity: gamma, largest norm over clients of the gradient of f^c at theta_*.
        gradient_variance: sigma^2, largest expected squared error of a stochastic gradient of any
            f^c, over d; 0 for exact gradients.
    """

    num_clients: Count
    dim: Count
    smoothness: Real
    strong_convexity: Real
    temperature: Real
    rho: Real
    least_weight: Real
    start: Real
    dissimilarity: Real
    gradient_variance: Real = 0.0

    @property
    def condition_number(self) -> Real:
        """The condition number kappa = L / m."""
        return self.smoothness / self.strong_convexity

    @property
    def local_temperature(self) -> Real:
        """The largest T_{c,rho} = tau (rho^2 + (1 - rho^2) / p_c) of any client."""
        return self.temperature * (
            np.square(self.rho) + (1 - np.square(self.rho)) / self.least_weight
        )

    @property
    def client_noise(self) -> Real:
        """The weighted mean of T_{c,rho}, which is tau (rho^2 + N (1 - rho^2)) for any weights."""
        return self.temperature * (
            np.square(self.rho) + self.num_clients * (1 - np.square(self.rho))
        )

    @property
    def spread(self) -> Real:
        """H_rho of Def. A.4: start, injected noise, clients' dissimilarity and gradient noise."""
        m, d = self.strong_convexity, self.dim
        return (
            self.start
            + self.local_temperature / m
            + np.square(self.dissimilarity / m) / d
            + self.gradient_variance / np.square(m)
        )

    @property
    def largest_step_size(self) -> Real:
        """The step size 1 / (2 L), up to which the theorems hold."""
        return 1 / (2 * self.smoothness)


@checked
def setup_of(target: GaussianTarget, start: npt.ArrayLike, rho: Real) -> LangevinSetup:
    """Compute the constants of Gaussian clients, which meet the assumptions with equality.

    Args:
        target: The clients and the temperature, of any batch shape.
        start: `f64[..., P]`, the first model of all clients.
        rho: Mixing weight of the shared noise, in [0, 1], a number or `f64[...]`.
    """
    curvatures = np.linalg.eigvalsh(target.hessians)
    mode = exact_laws.target_law(target).mean
    gradients = np.einsum(
        "...cij,...cj->...ci", target.hessians, mode[..., None, :] - target.centers
    )
    n, dim = target.shape
    noise = np.broadcast_to(target.gradient_noise, target.hessians.shape)
    return LangevinSetup(
        num_clients=n,
        dim=dim,
        smoothness=curvatures.max(axis=(-2, -1)),
        strong_convexity=curvatures.min(axis=(-2, -1)),
        temperature=target.temperature,
        rho=rho,
        least_weight=target.weights.min(axis=-1),
        start=np.square(np.asarray(start) - mode).sum(axis=-1) / dim,
        dissimilarity=np.linalg.norm(gradients, axis=-1).max(axis=-1),
        gradient_variance=np.trace(noise, axis1=-2, axis2=-1).max(axis=-1) / dim,
    )


# Lemmas -------------------------------------------------------------------------------------------


@checked
def contraction_bound(
    setup: LangevinSetup, *, step_size: Real, squared_distance: Real, divergence: Real
) -> Real:
    """Bound the squared distance of two models after a gradient step of each (Lemma B.1 / 5.4).

    One model follows the global gradient. The other follows the average of the clients' gradients,
    each taken at the client's model, where the average of these models is the second model.
    `squared_distance` is that of the two models before the step, and `divergence` the weighted
    mean of the clients' squared distances to their average.
    """
    _check_lemma(setup, step_size)
    return (
        1 - step_size * setup.strong_convexity
    ) * squared_distance + 4 * step_size * setup.smoothness * divergence


@checked
def discretisation_bound(setup: LangevinSetup, *, step_size: Real) -> Real:
    """Bound the mean squared distance that the stationary diffusion moves in a step (Lemma B.2).

    The step size is positive and less than 2 / m.
    """
    _check_step_size(step_size, 2 / np.asarray(setup.strong_convexity), "2 / m", is_strict=True)
    d, tau = setup.dim, setup.temperature
    drift = 2 * np.square(step_size) * d * setup.condition_number * setup.smoothness * tau
    return drift + 16 * step_size * d * tau


@checked
def moment_bound(setup: LangevinSetup, *, step_size: Real) -> Real:
    """Bound the expected squared distance of any client to theta_*, at all steps (Lemma E.1)."""
    _check_lemma(setup, step_size)
    d, m = setup.dim, setup.strong_convexity
    sources = (
        setup.local_temperature
        + setup.gradient_variance / m
        + np.square(setup.dissimilarity) / (m * d)
    )
    return d * setup.start + 6 * d / m * sources


@checked
def gradient_bound(setup: LangevinSetup, *, step_size: Real) -> Real:
    """Bound the expected squared norm of any stochastic gradient, at all steps (Lemma E.2)."""
    _check_lemma(setup, step_size)
    return 14 * setup.dim * np.square(setup.smoothness) * setup.spread


@checked
def divergence_bound(
    setup: LangevinSetup, *, step_size: Real, local_steps: Count, is_constant: bool = True
) -> Real:
    """Bound the weighted mean squared distance of clients to their average (Lemma B.3 / 5.5).

    The bound holds at all steps. If the step size is constant, the proof gives a quarter of the
    first and half of the second printed term; as printed, they allow it to halve within a round.
    """
    _check_lemma(setup, step_size)
    return _divergence(setup, step_size, local_steps - 1, is_constant)


@checked
def gradient_noise_bound(setup: LangevinSetup) -> Real:
    """Bound the mean squared error of the averaged gradient by d sigma^2 (Lemma B.4)."""
    return setup.dim * np.asarray(setup.gradient_variance)


@checked
def selection_bound(
    setup: LangevinSetup,
    participation: Participation,
    *,
    step_size: Real,
    local_steps: Count,
    is_constant: bool = True,
) -> Real:
    """Bound the mean squared distance of the selected clients' average to that of all (Lemma C.2).

    See `divergence_bound` for `is_constant`.
    """
    _check_lemma(setup, step_size)
    return _excess(setup, participation) * _divergence(setup, step_size, local_steps, is_constant)


@checked
def start_bound(setup: LangevinSetup) -> Real:
    """Bound W2 between the first model and the target law (Lemma F.1)."""
    d = setup.dim
    return np.sqrt(2 * d) * (
        np.sqrt(setup.start) + np.sqrt(setup.temperature / np.asarray(setup.strong_convexity))
    )


# Theorems -----------------------------------------------------------------------------------------


@checked
def one_step_bound(
    setup: LangevinSetup,
    squared_distance: Real,
    *,
    step_size: Real,
    local_steps: Count,
    participation: Participation = exact_laws.FULL,
) -> Real:
    """Bound the squared W2 to the target after a step from that before it (Lemma B.5 / 5.6).

    For a step that ends with partial participation it is (38).
    """
    _check_theorem(setup, step_size)
    shrunk = (1 - step_size * setup.strong_convexity / 2) * squared_distance
    square = np.square(step_size) * setup.dim * np.square(setup.smoothness) * setup.spread
    if participation.scheme == "full":
        return shrunk + 400 * square * _drift(setup, local_steps)
    selection = (
        4 * local_steps * setup.dim * step_size * setup.client_noise * _excess(setup, participation)
    )
    return shrunk + 450 * square * _drift(setup, local_steps + 1) + selection


@checked
def bound(
    setup: LangevinSetup,
    num_steps: npt.ArrayLike,
    *,
    step_size: Real,
    local_steps: Count,
    participation: Participation = exact_laws.FULL,
) -> Real:
    """Bound W2 to the target law after k steps of constant size.

    Theorem B.6 / 5.7 for rho = 0, B.8 / 5.9 for any rho, and C.3 / 5.10 for partial participation,
    where the distance does not go to 0 with the step size: see `participation_floor`.
    """
    _check_theorem(setup, step_size)
    m = setup.strong_convexity
    decay = np.exp(np.asarray(num_steps) * np.log1p(-step_size * m / 4)) * start_bound(setup)
    if participation.scheme == "full":
        return decay + bias_bound(setup, step_size=step_size, local_steps=local_steps)
    # Deviation: under partial participation the appendix has (K - 1)^2 in the drift term. Its proof
    # gives the K^2 of the main text.
    drift = bias_bound(setup, step_size=step_size, local_steps=local_steps + 1)
    return (
        decay
        + drift
        + participation_floor(setup, participation, step_size=step_size, local_steps=local_steps)
    )


@checked
def bias_bound(setup: LangevinSetup, *, step_size: Real, local_steps: Count) -> Real:
    """Bound W2 in the limit of many steps, the second term of Theorem B.6.

    It is 30 kappa sqrt(eta m d H ((K - 1)^2 + kappa)), with H of `LangevinSetup.spread`. The limit
    of the step size is not checked.
    """
    rate = step_size * setup.strong_convexity * setup.dim
    return 30 * setup.condition_number * np.sqrt(rate * setup.spread * _drift(setup, local_steps))


@checked
def participation_floor(
    setup: LangevinSetup, participation: Participation, *, step_size: Real, local_steps: Count
) -> Real:
    """Bound what partial participation adds to W2, the last term of Theorem C.3.

    It stays positive as the step size goes to 0, even at rho = 1, where the true distance does
    vanish: the proof bounds a variance by a second moment, which includes the shared noise. The
    limit of the step size is not checked.
    """
    whole = step_size * setup.strong_convexity * local_steps
    factor = whole / -np.expm1(-whole / 2)  # C_K, from 2 to 2 + eta m K
    noise = setup.dim * setup.client_noise / setup.strong_convexity
    return 2 * np.sqrt(factor * noise * _excess(setup, participation))


@checked
def squared_bound(
    setup: LangevinSetup,
    num_steps: npt.ArrayLike,
    squared_distance: Real,
    *,
    step_size: Real,
    local_steps: Count,
) -> Real:
    """Bound the squared W2 after k steps from that at the start, under full participation (29)."""
    _check_theorem(setup, step_size)
    rate = step_size * setup.strong_convexity
    floor = (
        800
        * np.square(setup.condition_number)
        * rate
        * setup.dim
        * setup.spread
        * _drift(setup, local_steps)
    )
    return np.exp(np.asarray(num_steps) * np.log1p(-rate / 2)) * squared_distance + floor


@checked
def decreasing_step_size(setup: LangevinSetup, step: npt.ArrayLike) -> Real:
    """Compute the step size eta_k = 1 / (2 L + m k / 12) of Theorem 5.8.

    `step` is k, counting all local steps from 0, across rounds.
    """
    return 1 / (2 * setup.smoothness + setup.strong_convexity * np.asarray(step) / 12)


@checked
def decreasing_bound(setup: LangevinSetup, num_steps: npt.ArrayLike, *, local_steps: Count) -> Real:
    """Bound W2 after k steps of `decreasing_step_size`, full participation (Theorem B.7 / 5.8).

    Warns if K - 1 exceeds 24 kappa, where the theorem is not proved.
    """
    # Deviation: the proof needs the step size not to halve within a round. The paper does not state
    # this condition.
    if np.any(local_steps - 1 > 24 * np.asarray(setup.condition_number)):
        warnings.warn(
            "local_steps - 1 exceeds 24 kappa, beyond which Theorem 5.8 is not proved", stacklevel=2
        )
    step_size = decreasing_step_size(setup, num_steps)
    return 1.5 * bias_bound(setup, step_size=step_size, local_steps=local_steps)


def _divergence(setup: LangevinSetup, step_size: Real, steps_apart: int, is_constant: bool) -> Real:
    """Compute the right side of Lemma B.3 with `steps_apart` in place of K - 1."""
    drift, noise = (28, 4) if is_constant else (112, 8)
    drifted = (
        drift
        * np.square(steps_apart * np.asarray(step_size) * setup.smoothness)
        * setup.dim
        * setup.spread
    )
    return drifted + noise * steps_apart * step_size * setup.dim * setup.client_noise


def _drift(setup: LangevinSetup, local_steps: int) -> Real:
    """Compute (K - 1)^2 + kappa."""
    return (local_steps - 1) ** 2 + setup.condition_number


def _excess(setup: LangevinSetup, participation: Participation) -> float:
    """Compute C_S / S, and refuse unequal weights under scheme II."""
    equal = 1 / setup.num_clients
    if participation.scheme == "without_replacement" and np.any(
        np.abs(np.asarray(setup.least_weight) - equal) > 1e-12
    ):
        raise ValueError(
            f"least_weight is {np.min(setup.least_weight):g}, but must be {equal:g} = 1 / N for "
            "clients drawn without replacement."
        )
    return participation.excess(np.full(setup.num_clients, 1 / setup.num_clients))


def _check_lemma(setup: LangevinSetup, step_size: Real) -> None:
    """Refuse step sizes for which the lemmas are not proved."""
    # Deviation: the paper states the lemmas for step sizes below 2 / m, at which gradient descent
    # may diverge.
    _check_step_size(
        step_size, 1 / (np.asarray(setup.smoothness) + setup.strong_convexity), "1 / (L + m)"
    )


def _check_theorem(setup: LangevinSetup, step_size: Real) -> None:
    """Refuse step sizes for which the theorems are not proved."""
    _check_step_size(step_size, setup.largest_step_size, "1 / (2 L)")


def _check_step_size(step_size: Real, limit: Real, words: str, is_strict: bool = False) -> None:
    """Refuse step sizes that are not positive or beyond the limit, which `words` describe."""
    sizes, limits = np.broadcast_arrays(np.asarray(step_size, float), np.asarray(limit, float))
    is_beyond = ~(
        (sizes > 0) & ((sizes < limits) if is_strict else (sizes <= limits * (1 + 1e-12)))
    )
    if is_beyond.any():
        most = f"{'below' if is_strict else 'at most'} {words} = {limits[is_beyond][0]:g}"
        raise ValueError(f"step_size is {sizes[is_beyond][0]:g}, but must be above 0 and {most}.")
