"""Exact laws of FA-LD (arXiv 2112.05120) for clients with Gaussian energies, float64. All derived.

Client c has the energy f^c(x) = (x - b_c)^T H_c (x - b_c) / 2, and the global energy is the sum of
p_c f^c. Every step is an affine map plus noise, so means and covariances follow recursions without
approximation: `steps` follows all clients' models jointly, step by step, and `one_round` and
`iterate_rounds` follow the averaged model round by round. Under full participation the laws are
Gaussian. Under partial participation they are mixtures of Gaussians, and these are their moments.

Dimension letters: `N` clients, `P` parameters, `Q = N P`. Leading axes `...` of any argument are a
batch and broadcast, so a sweep over step sizes, temperatures or problems is one call.

Symbols: tau `temperature`, eta `step_size`, K `local_steps`, rho `rho`, S `num_selected`.

Unless a function says otherwise, `target` has the clients and the temperature, `local_steps` is at
least 1, `rho` is the mixing weight of the shared noise, in [0, 1], a number or `f64[...]`,
`participation` says which clients are averaged, `taken` is a round, and `stacked` is the joint law
of the clients' models, `f64[..., Q]` and `f64[..., Q, Q]`. Other laws are those of one model,
`f64[..., P]` and `f64[..., P, P]`. A rho outside [0, 1] and a participation that is not possible
(see `Participation.excess`) raise a ValueError.

`SCHEMES` are the ways to choose who is averaged: "full" is everyone; "with_replacement" is scheme
I, S draws with probabilities p_c; "without_replacement" is scheme II, S distinct clients, which
needs equal p_c.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import Count, Whole, checked
from fedjax_sim.results.diagnostics import Gaussian
from fedjax_sim.theory.langevin import SCHEMES

Numbers = npt.NDArray[np.float64]
Real = float | Numbers


@checked
class GaussianTarget(NamedTuple):
    """Clients with Gaussian energies, and the temperature to sample at.

    Attributes:
        hessians: `f64[..., N, P, P]`, H_c of the energy f^c: the Hessian of the client's
            energy divided by p_c.
        centers: `f64[..., N, P]`, b_c, the minimiser of f^c.
        weights: `f64[..., N]`, p_c, positive with sum 1.
        temperature: tau, a number or `f64[...]`.
        gradient_noise: Covariance of the noise on the gradient of f^c, `f64[..., N, P, P]` or 0
            for exact gradients. It does not depend on the model.
    """

    hessians: Numbers
    centers: Numbers
    weights: Numbers
    temperature: Real = 1.0
    gradient_noise: Real = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """The number of clients N and the number of parameters P."""
        return self.centers.shape[-2], self.centers.shape[-1]


@checked
class Participation(NamedTuple):
    """Which clients are averaged at a synchronisation.

    Attributes:
        scheme: One of `SCHEMES`.
        num_selected: S, at least 1, and at most N without replacement. Ignored by "full".
    """

    scheme: str = "full"
    num_selected: Whole | None = None

    def excess(self, weights: Numbers) -> float:
        """Compute C_S / S, which measures how much the averaging weights vary between draws.

        In both schemes the averaging weights w have the mean p and the covariance
        C_S / S (diag(p) - p p^T). It is 0 if everyone is averaged. `weights` are p_c.

        Raises:
            ValueError: If the scheme is unknown, if S is not possible, or if the weights are
                unequal under scheme II, which is then biased.
        """
        num_clients = weights.shape[-1]
        if self.scheme not in SCHEMES:
            raise ValueError(f"scheme is {self.scheme!r}, but must be one of {', '.join(SCHEMES)}.")
        if self.scheme == "full":
            return 0.0
        most = num_clients if self.scheme == "without_replacement" else np.inf
        if self.num_selected is None or not 1 <= self.num_selected <= most:
            raise ValueError(f"num_selected is {self.num_selected}, but must be from 1 to {most}.")
        if self.scheme == "with_replacement":
            return 1 / self.num_selected
        if np.ptp(weights, axis=-1).max() > 1e-12:
            raise ValueError(
                "scheme is 'without_replacement', but must be 'full' or 'with_replacement' for "
                "unequal weights."
            )
        return (num_clients - self.num_selected) / (max(num_clients - 1, 1) * self.num_selected)


FULL = Participation()
"""Everyone is averaged."""


class Round(NamedTuple):
    """A round as a random affine map of the model.

    Client c maps the model x to A_c^K x + (I - A_c^K) b_c + noise, where A_c = I - eta H_c. Then a
    randomly weighted average over clients is taken.

    Attributes:
        powers: `f64[..., N, P, P]`, A_c^K.
        shifts: `f64[..., N, P]`, (I - A_c^K) b_c.
        noise: `f64[..., P, P]`, covariance of the randomly weighted average of the clients' noise.
        weights: `f64[..., N]`, p_c, the mean of the averaging weights.
        excess: C_S / S, see `Participation.excess`.
    """

    powers: Numbers
    shifts: Numbers
    noise: Numbers
    weights: Numbers
    excess: float

    @property
    def transition(self) -> Numbers:
        """M, the weighted mean of A_c^K over clients: `f64[..., P, P]`."""
        return np.einsum("...c,...cij->...ij", self.weights, self.powers)

    @property
    def offset(self) -> Numbers:
        """The weighted mean of the shifts over clients: `f64[..., P]`."""
        return np.einsum("...c,...ci->...i", self.weights, self.shifts)


class Step(NamedTuple):
    """Joint law of all clients' models around a local step.

    The models are stacked client by client: means are `f64[..., Q]`, covariances `f64[..., Q, Q]`.

    Attributes:
        local: Law after the step, before any synchronisation (the paper's beta).
        synced: Law after the synchronisation (theta); equal to `local` if none is due.
    """

    local: Gaussian
    synced: Gaussian


@checked
def target_law(target: GaussianTarget) -> Gaussian:
    """Compute the law to be sampled, N(theta_*, tau H^-1) with H the weighted mean Hessian."""
    weights, hessians = target.weights, target.hessians
    precision = np.einsum("...c,...cij->...ij", weights, hessians)
    pull = np.einsum("...c,...cij,...cj->...i", weights, hessians, target.centers)
    covariance = np.linalg.inv(precision)
    return Gaussian(
        (covariance @ pull[..., None])[..., 0], _column(target.temperature, 2) * covariance
    )


@checked
def local_temperature(target: GaussianTarget, rho: Real) -> Numbers:
    """Compute the clients' T_{c,rho} = tau (rho^2 + (1 - rho^2) / p_c), Def. A.4: `f64[..., N]`."""
    check_rho(rho)
    rho = _column(rho, 1)
    return _column(target.temperature, 1) * (rho**2 + (1 - rho**2) / target.weights)


@checked
def local_target(target: GaussianTarget, rho: Real) -> Gaussian:
    """Compute the law exp(-f^c / T_{c,rho}) that each client's chain samples without averaging.

    It is what a chain that is never synchronised samples, up to the error of its step size. At
    rho = 0 it is the client's posterior exp(-p_c f^c / tau). Means are `f64[..., N, P]`.
    """
    covariance = local_temperature(target, rho)[..., None, None] * np.linalg.inv(target.hessians)
    return Gaussian(np.broadcast_to(target.centers, covariance.shape[:-1]), covariance)


@checked
def check_rho(rho: Real) -> None:
    """Refuse a rho outside [0, 1], for which the private noise would have a negative variance."""
    values = np.atleast_1d(rho)
    is_beyond = ~((values >= 0) & (values <= 1))
    if is_beyond.any():
        raise ValueError(f"rho is {values[is_beyond][0]:g}, but must be from 0 to 1.")


@checked
def centralised(target: GaussianTarget) -> GaussianTarget:
    """Combine all clients into one with the global energy and the averaged gradient noise.

    FA-LD with this one client is SGLD, and has the same target law.
    """
    noise = np.broadcast_to(target.gradient_noise, target.hessians.shape)
    gathered = np.einsum("...c,...cij->...ij", target.weights**2, noise)
    precision = np.einsum("...c,...cij->...ij", target.weights, target.hessians)
    mode = target_law(target).mean
    ones = np.ones((*mode.shape[:-1], 1))
    return GaussianTarget(
        precision[..., None, :, :],
        mode[..., None, :],
        ones,
        target.temperature,
        gathered[..., None, :, :],
    )


@checked
def point(position: npt.ArrayLike) -> Gaussian:
    """Build the law of a known model, `f64[..., P]`, which has covariance 0."""
    position = np.asarray(position, float)
    return Gaussian(position, np.zeros((*position.shape, position.shape[-1])))


# Step by step -------------------------------------------------------------------------------------


@checked
def steps(
    target: GaussianTarget,
    start: Gaussian,
    *,
    step_sizes: Iterable[Real],
    local_steps: Count,
    rho: Real,
    participation: Participation = FULL,
) -> Iterator[Step]:
    """Follow the joint law of all clients' models, with a synchronisation after every K steps.

    Args:
        start: Law of the one model that all clients begin from.
        step_sizes: eta of each step, each a number or `f64[...]`.

    Yields:
        The laws around each step.
    """
    excess = participation.excess(target.weights)
    law = _replicated(start, target.shape[0])
    for k, step_size in enumerate(step_sizes):
        law = local = _step(target, law, step_size, rho)
        if (k + 1) % local_steps == 0:
            law = _replicated(average(target, local, excess), target.shape[0])
        yield Step(local, law)


@checked
def average(target: GaussianTarget, stacked: Gaussian, excess: float = 0.0) -> Gaussian:
    """Compute the law of the (randomly weighted) average of all clients' models.

    Only the weights of `target` are used; excess is C_S / S, 0 for the plain weighted mean.
    """
    (n, dim), weights = target.shape, target.weights
    means = stacked.mean.reshape(*stacked.mean.shape[:-1], n, dim)
    blocks = stacked.covariance.reshape(*stacked.covariance.shape[:-2], n, dim, n, dim)
    mean = np.einsum("...c,...ci->...i", weights, means)
    covariance = np.einsum("...c,...cidj,...d->...ij", weights, blocks, weights, optimize=True)
    # Covariance of the model of one client that is drawn with probabilities p_c.
    of_one_drawn = np.einsum("...c,...cicj->...ij", weights, blocks) + _spread(weights, means, mean)
    return Gaussian(mean, (1 - excess) * covariance + excess * of_one_drawn)


def _step(target: GaussianTarget, law: Gaussian, step_size: Real, rho: Real) -> Gaussian:
    """Apply one local step of every client to their joint law (Alg. 4, l. 4-8)."""
    n, dim = target.shape
    factors = _factors(target, step_size)
    pull = _column(step_size, 2) * np.einsum("...cij,...cj->...ci", target.hessians, target.centers)
    mean = _blocks_times(factors, law.mean[..., None])[..., 0] + pull.reshape(
        *pull.shape[:-2], n * dim
    )
    return Gaussian(
        mean, _congruence(factors, law.covariance) + _step_noise(target, step_size, rho)
    )


def _factors(target: GaussianTarget, step_size: Real) -> Numbers:
    """Compute A_c = I - eta H_c: `f64[..., N, P, P]`."""
    return np.eye(target.shape[1]) - _column(step_size, 3) * target.hessians


def _step_noise(target: GaussianTarget, step_size: Real, rho: Real) -> Numbers:
    """Compute the covariance of the noise that a step adds to all models: `f64[..., Q, Q]`.

    2 eta tau (rho^2 + [c = c'] (1 - rho^2) / p_c) I + [c = c'] eta^2 G_c, with G_c the covariance
    of the gradient noise.
    """
    n, dim = target.shape
    check_rho(rho)
    # The shared noise is not divided by p_c.
    private = _column(1 - np.square(rho), 1) / target.weights
    mixing = _column(np.square(rho), 2) + private[..., None] * np.eye(n)
    injected = np.einsum(
        "...cd,ij->...cidj",
        2 * _column(np.multiply(step_size, target.temperature), 2) * mixing,
        np.eye(dim),
    )
    gradient = _column(np.square(step_size), 3) * np.broadcast_to(
        target.gradient_noise, target.hessians.shape
    )
    both = injected + np.einsum("...cij,cd->...cidj", gradient, np.eye(n))
    return both.reshape(*both.shape[:-4], n * dim, n * dim)


def _replicated(law: Gaussian, num_clients: int) -> Gaussian:
    """Compute the joint law of the clients' models if all hold the same model."""
    return Gaussian(
        np.tile(law.mean, num_clients), np.tile(law.covariance, (num_clients, num_clients))
    )


# Round by round -----------------------------------------------------------------------------------


@checked
def one_round(
    target: GaussianTarget,
    *,
    step_size: Real,
    local_steps: Count,
    rho: Real,
    participation: Participation = FULL,
) -> Round:
    """Compute what K local steps and a synchronisation do to the law of the model.

    It takes O(log K) matrix products. step_size is eta, positive, a number or `f64[...]`.
    """
    powers, noise = _power_and_noise(
        _factors(target, step_size), _step_noise(target, step_size, rho), local_steps
    )
    shifts = np.einsum("...cij,...cj->...ci", np.eye(target.shape[1]) - powers, target.centers)
    excess = participation.excess(target.weights)
    silent = Gaussian(np.zeros(noise.shape[:-1]), noise)
    return Round(powers, shifts, average(target, silent, excess).covariance, target.weights, excess)


@checked
def advance(law: Gaussian, taken: Round) -> Gaussian:
    """Compute the law of the model after a round from the law before it."""
    means = np.einsum("...cij,...j->...ci", taken.powers, law.mean) + taken.shifts
    mean = np.einsum("...c,...ci->...i", taken.weights, means)
    transition, excess = taken.transition, taken.excess
    together = transition @ law.covariance @ _turned(transition)
    if excess == 0:
        return Gaussian(mean, together + taken.noise)
    apart = np.einsum(
        "...c,...cij->...ij",
        taken.weights,
        taken.powers @ law.covariance[..., None, :, :] @ _turned(taken.powers),
    )
    of_one_drawn = apart + _spread(taken.weights, means, mean)
    return Gaussian(mean, (1 - excess) * together + excess * of_one_drawn + taken.noise)


@checked
def iterate_rounds(taken: Round, start: Gaussian, num_rounds: Whole) -> Gaussian:
    """Compute the laws of the model after 0, 1, ..., R rounds, on a new first axis."""
    batch = np.broadcast_shapes(start.mean.shape, taken.offset.shape)
    law = Gaussian(
        np.broadcast_to(start.mean, batch), np.broadcast_to(start.covariance, (*batch, batch[-1]))
    )
    laws = [law]
    for _ in range(num_rounds):
        law = advance(law, taken)
        laws.append(law)
    return Gaussian(
        np.stack([each.mean for each in laws]), np.stack([each.covariance for each in laws])
    )


@checked
def stationary(taken: Round) -> Gaussian:
    """Compute the stationary law of the model, which a round does not change.

    Raises:
        ValueError: If second moments grow from round to round, so that there is no such law.
    """
    transition, excess = taken.transition, taken.excess
    dim = transition.shape[-1]
    carried = (1 - excess) * np.einsum("...ik,...jl->...ijkl", transition, transition)
    carried = carried + excess * np.einsum(
        "...c,...cik,...cjl->...ijkl", taken.weights, taken.powers, taken.powers, optimize=True
    )
    carried = carried.reshape(*carried.shape[:-4], dim**2, dim**2)
    # Without excess `carried` is the Kronecker square of the transition, so a small matrix will do.
    grows, degree = (transition, 2) if excess == 0 else (carried, 1)
    is_finite = np.isfinite(carried).all()
    growth = np.abs(np.linalg.eigvals(grows)).max() ** degree if is_finite else np.inf
    if growth >= 1:
        raise ValueError(
            f"step_size makes a round multiply second moments by {growth:.4g}, but must be so "
            "small that this factor is below 1."
        )
    mean = _solved(np.eye(dim) - transition, taken.offset)
    means = np.einsum("...cij,...j->...ci", taken.powers, mean) + taken.shifts
    constant = taken.noise + excess * _spread(taken.weights, means, mean)
    covariance = _solved(np.eye(dim**2) - carried, constant.reshape(*constant.shape[:-2], dim**2))
    return Gaussian(mean, covariance.reshape(constant.shape))


def _power_and_noise(factors: Numbers, noise: Numbers, num: int) -> tuple[Numbers, Numbers]:
    """Compute A^K and the sum over j < K of A^j Q (A^j)^T for block-diagonal A, by doubling.

    Twice the number of steps has the power A^2 and the noise Q + A Q A^T.
    """
    power, total = np.broadcast_to(np.eye(factors.shape[-1]), factors.shape), np.zeros_like(noise)
    while num:
        if num % 2:
            power, total = factors @ power, _congruence(factors, total) + noise
        factors, noise = factors @ factors, _congruence(factors, noise) + noise
        num //= 2
    return power, total


# Arrays -------------------------------------------------------------------------------------------


def _column(x: npt.ArrayLike, axes: int) -> Numbers:
    """Add axes at the end, so that a batch of numbers broadcasts against a batch of arrays."""
    x = np.asarray(x, float)
    return x.reshape(*x.shape, *[1] * axes) if x.ndim else x


def _turned(x: Numbers) -> Numbers:
    """Transpose matrices."""
    return np.swapaxes(x, -1, -2)


def _solved(matrix: Numbers, vector: Numbers) -> Numbers:
    """Solve linear systems, one per matrix and vector of the batch."""
    return np.asarray(np.linalg.solve(matrix, vector[..., None])[..., 0], float)


def _blocks_times(blocks: Numbers, x: Numbers) -> Numbers:
    """Multiply a block-diagonal matrix `f64[..., N, P, P]` with a matrix `f64[..., Q, R]`."""
    n, dim = blocks.shape[-3:-1]
    product = blocks @ x.reshape(*x.shape[:-2], n, dim, x.shape[-1])
    return product.reshape(*product.shape[:-3], n * dim, x.shape[-1])


def _congruence(blocks: Numbers, x: Numbers) -> Numbers:
    """Compute A X A^T for symmetric X `f64[..., Q, Q]` and block-diagonal A."""
    return _blocks_times(blocks, _turned(_blocks_times(blocks, x)))


def _spread(weights: Numbers, means: Numbers, mean: Numbers) -> Numbers:
    """Compute the weighted covariance of the clients' means `f64[..., N, P]` around `mean`."""
    apart = means - mean[..., None, :]
    return np.einsum("...c,...ci,...cj->...ij", weights, apart, apart)
