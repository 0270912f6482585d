"""Exact laws of FA-LD (Deng, Zhang, Ma, Song, Lin, arXiv 2112.05120) for clients with Gaussian energies, in float64. All derived.

Client c has the energy f^c(x) = (x - b_c)^T H_c (x - b_c) / 2, and the global one is the sum of p_c f^c. Everything a step does is affine,
so means and covariances follow recursions without error: of all clients' models step by step, or of the averaged model round by round.
Under full participation the laws are Gaussian. Under partial participation they are mixtures of Gaussians, whose moments these are.

Dimension letters: `N` clients, `P` parameters, `Q = N P`. Leading axes `...` of any argument are a batch and broadcast, so a sweep over
step sizes, temperatures or problems is one call. Symbols: tau `temperature`, eta `step_size`, K `local_steps`, rho `rho`, S `num_selected`.
`SCHEMES`: everyone; scheme I, S draws with replacement and probabilities p_c; scheme II, S draws without, all p_c equal.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.diagnostics.gaussians import Gaussian

Numbers = npt.NDArray[np.float64]
Real = float | Numbers

SCHEMES = ("full", "with_replacement", "without_replacement")


class GaussianTarget(NamedTuple):
    """Gaussian clients, and the temperature to sample at."""

    hessians: Numbers  # f64[..., N, P, P]  H_c of the energy f^c, that is the Hessian of the client's own energy over p_c
    centers: Numbers  # f64[..., N, P]  b_c
    weights: Numbers  # f64[..., N]  p_c
    temperature: Real = 1.0  # f64[...]
    gradient_noise: Real = (
        0.0  # f64[..., N, P, P]  covariance of the noise on the gradient of f^c, whatever the model
    )

    @property
    def shape(self) -> tuple[int, int]:
        """N and P."""
        return self.centers.shape[-2], self.centers.shape[-1]


class Participation(NamedTuple):
    """Who is averaged at a synchronisation."""

    scheme: str = "full"
    num_selected: int | None = None

    def excess(self, weights: Numbers) -> float:
        """Compute C_S / S: the averaging weights w have mean p and covariance C_S / S times (diag(p) - p p^T), in both schemes.

        Raises ValueError for an unknown scheme, a size that is not possible, and scheme II with unequal weights, which is biased.
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
                "scheme is 'without_replacement', but must be 'full' or 'with_replacement' where weights are unequal."
            )
        return (num_clients - self.num_selected) / (max(num_clients - 1, 1) * self.num_selected)


FULL = Participation()


class Round(NamedTuple):
    """A round as a random affine map of the model: client c reaches A_c^K x + (I - A_c^K) b_c + noise, and a random average is taken."""

    powers: Numbers  # f64[..., N, P, P]  A_c^K, A_c = I - eta H_c
    shifts: Numbers  # f64[..., N, P]  (I - A_c^K) b_c
    noise: Numbers  # f64[..., P, P]  covariance of the average of the clients' noise
    weights: Numbers  # f64[..., N]
    excess: float  # C_S / S

    @property
    def transition(self) -> Numbers:
        """M, the mean of A_c^K: `f64[..., P, P]`."""
        return np.einsum("...c,...cij->...ij", self.weights, self.powers)

    @property
    def offset(self) -> Numbers:
        """Mean shift: `f64[..., P]`."""
        return np.einsum("...c,...ci->...i", self.weights, self.shifts)


class Step(NamedTuple):
    """Joint law of all clients' models around a step, stacked client by client: means `f64[..., Q]`, covariances `f64[..., Q, Q]`."""

    local: Gaussian  # after the step, before any synchronisation (beta)
    synced: Gaussian  # after it (theta): the same where no synchronisation is due


def target(clients: GaussianTarget) -> Gaussian:
    """Compute the law to be sampled, N(theta_*, tau / H) with H the mean Hessian."""
    weights, hessians = clients.weights, clients.hessians
    precision = np.einsum("...c,...cij->...ij", weights, hessians)
    pull = np.einsum("...c,...cij,...cj->...i", weights, hessians, clients.centers)
    covariance = np.linalg.inv(precision)
    return Gaussian(
        (covariance @ pull[..., None])[..., 0], _column(clients.temperature, 2) * covariance
    )


def local_temperature(clients: GaussianTarget, rho: Real) -> Numbers:
    """Compute T_{c,rho} = tau (rho^2 + (1 - rho^2) / p_c), at which client c diffuses (Def. A.4): `f64[..., N]`."""
    check_rho(rho)
    rho = _column(rho, 1)
    return _column(clients.temperature, 1) * (rho**2 + (1 - rho**2) / clients.weights)


def local_target(clients: GaussianTarget, rho: Real) -> Gaussian:
    """Compute what each client's chain samples if it is never synchronised, up to its step size: exp(-f^c / T_{c,rho}).

    At rho = 0 that is the client's own posterior exp(-p_c f^c / tau). Means `f64[..., N, P]`, covariances `f64[..., N, P, P]`.
    """
    covariance = local_temperature(clients, rho)[..., None, None] * np.linalg.inv(clients.hessians)
    return Gaussian(np.broadcast_to(clients.centers, covariance.shape[:-1]), covariance)


def check_rho(rho: Real) -> None:
    """Raise ValueError unless rho is from 0 to 1: beyond, the private noise would have a negative variance."""
    values = np.atleast_1d(rho)
    is_beyond = ~((values >= 0) & (values <= 1))
    if is_beyond.any():
        raise ValueError(f"rho is {values[is_beyond][0]:g}, but must be from 0 to 1.")


def centralised(clients: GaussianTarget) -> GaussianTarget:
    """Gather everything in one client, whose chain is SGLD on the global energy with the averaged gradient noise."""
    noise = np.broadcast_to(clients.gradient_noise, clients.hessians.shape)
    gathered = np.einsum("...c,...cij->...ij", clients.weights**2, noise)
    precision = np.einsum("...c,...cij->...ij", clients.weights, clients.hessians)
    mode = target(clients).mean
    ones = np.ones((*mode.shape[:-1], 1))
    return GaussianTarget(
        precision[..., None, :, :],
        mode[..., None, :],
        ones,
        clients.temperature,
        gathered[..., None, :, :],
    )


def point(position: npt.ArrayLike) -> Gaussian:
    """The law of a model that is known: `f64[..., P]`."""
    position = np.asarray(position, float)
    return Gaussian(position, np.zeros((*position.shape, position.shape[-1])))


# Step by step -------------------------------------------------------------------------------------------------------------------------


def steps(
    clients: GaussianTarget,
    start: Gaussian,
    *,
    step_sizes: Iterable[Real],
    local_steps: int,
    rho: Real,
    participation: Participation = FULL,
) -> Iterator[Step]:
    """Follow the joint law of all clients' models, one step after the other, with a synchronisation after every K.

    start: law of the model that all clients begin from. step_sizes: one per step, each a number or `f64[...]`.
    """
    excess = participation.excess(clients.weights)
    law = _replicated(start, clients.shape[0])
    for k, step_size in enumerate(step_sizes):
        law = local = _step(clients, law, step_size, rho)
        if (k + 1) % local_steps == 0:
            law = _replicated(average(clients, local, excess), clients.shape[0])
        yield Step(local, law)


def average(clients: GaussianTarget, stacked: Gaussian, excess: float = 0.0) -> Gaussian:
    """Compute the law of the (randomly weighted) average of all clients' models from their joint law.

    excess: C_S / S, 0 for the plain weighted mean.
    """
    (n, dim), weights = clients.shape, clients.weights
    means = stacked.mean.reshape(*stacked.mean.shape[:-1], n, dim)
    blocks = stacked.covariance.reshape(*stacked.covariance.shape[:-2], n, dim, n, dim)
    mean = np.einsum("...c,...ci->...i", weights, means)
    covariance = np.einsum("...c,...cidj,...d->...ij", weights, blocks, weights, optimize=True)
    own = np.einsum("...c,...cicj->...ij", weights, blocks) + _spread(weights, means, mean)
    return Gaussian(mean, (1 - excess) * covariance + excess * own)


def of_client(stacked: Gaussian, client: int, dim: int) -> Gaussian:
    """Compute the marginal law of one client's model."""
    own = slice(client * dim, (client + 1) * dim)
    return Gaussian(stacked.mean[..., own], stacked.covariance[..., own, own])


def _step(clients: GaussianTarget, law: Gaussian, step_size: Real, rho: Real) -> Gaussian:
    """One local step of every client (Alg. 4, l. 4-8)."""
    n, dim = clients.shape
    factors = _factors(clients, step_size)
    pull = _column(step_size, 2) * np.einsum(
        "...cij,...cj->...ci", clients.hessians, clients.centers
    )
    mean = _blocks_times(factors, law.mean[..., None])[..., 0] + pull.reshape(
        *pull.shape[:-2], n * dim
    )
    return Gaussian(
        mean, _congruence(factors, law.covariance) + _step_noise(clients, step_size, rho)
    )


def _factors(clients: GaussianTarget, step_size: Real) -> Numbers:
    """A_c = I - eta H_c: `f64[..., N, P, P]`."""
    return np.eye(clients.shape[1]) - _column(step_size, 3) * clients.hessians


def _step_noise(clients: GaussianTarget, step_size: Real, rho: Real) -> Numbers:
    """Covariance of what a step injects: 2 eta tau (rho^2 + [c = c'] (1 - rho^2) / p_c) I + [c = c'] eta^2 G_c: `f64[..., Q, Q]`."""
    n, dim = clients.shape
    check_rho(rho)
    # The shared noise is not divided by p_c.
    own = _column(1 - np.square(rho), 1) / clients.weights
    mixing = _column(np.square(rho), 2) + own[..., None] * np.eye(n)
    injected = np.einsum(
        "...cd,ij->...cidj",
        2 * _column(np.multiply(step_size, clients.temperature), 2) * mixing,
        np.eye(dim),
    )
    gradient = _column(np.square(step_size), 3) * np.broadcast_to(
        clients.gradient_noise, clients.hessians.shape
    )
    both = injected + np.einsum("...cij,cd->...cidj", gradient, np.eye(n))
    return both.reshape(*both.shape[:-4], n * dim, n * dim)


def _replicated(law: Gaussian, num_clients: int) -> Gaussian:
    """All clients hold one and the same model."""
    return Gaussian(
        np.tile(law.mean, num_clients), np.tile(law.covariance, (num_clients, num_clients))
    )


# Round by round -----------------------------------------------------------------------------------------------------------------------


def one_round(
    clients: GaussianTarget,
    *,
    step_size: Real,
    local_steps: int,
    rho: Real,
    participation: Participation = FULL,
) -> Round:
    """Work out what K local steps and a synchronisation do to the law of the model; costs log K products of matrices."""
    powers, noise = _power_and_noise(
        _factors(clients, step_size), _step_noise(clients, step_size, rho), local_steps
    )
    shifts = np.einsum("...cij,...cj->...ci", np.eye(clients.shape[1]) - powers, clients.centers)
    excess = participation.excess(clients.weights)
    silent = Gaussian(np.zeros(noise.shape[:-1]), noise)
    return Round(
        powers, shifts, average(clients, silent, excess).covariance, clients.weights, excess
    )


def advance(law: Gaussian, taken: Round) -> Gaussian:
    """Compute the law of the model after a round."""
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
    own = apart + _spread(taken.weights, means, mean)
    return Gaussian(mean, (1 - excess) * together + excess * own + taken.noise)


def iterate_rounds(taken: Round, start: Gaussian, num_rounds: int) -> Gaussian:
    """Compute the laws of the model after 0, 1, ..., R rounds, stacked on a new first axis of R + 1."""
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


def stationary(taken: Round) -> Gaussian:
    """Compute the law that rounds leave as it is. Raises ValueError where second moments grow from round to round: there is none."""
    transition, excess = taken.transition, taken.excess
    dim = transition.shape[-1]
    carried = (1 - excess) * np.einsum("...ik,...jl->...ijkl", transition, transition)
    carried = carried + excess * np.einsum(
        "...c,...cik,...cjl->...ijkl", taken.weights, taken.powers, taken.powers, optimize=True
    )
    carried = carried.reshape(*carried.shape[:-4], dim**2, dim**2)
    growth = np.abs(np.linalg.eigvals(carried)).max() if np.isfinite(carried).all() else np.inf
    if growth >= 1:
        raise ValueError(
            f"step_size is such that a round multiplies second moments by {growth:.4g}, but must be so small that they shrink."
        )
    mean = _solved(np.eye(dim) - transition, taken.offset)
    means = np.einsum("...cij,...j->...ci", taken.powers, mean) + taken.shifts
    constant = taken.noise + excess * _spread(taken.weights, means, mean)
    covariance = _solved(np.eye(dim**2) - carried, constant.reshape(*constant.shape[:-2], dim**2))
    return Gaussian(mean, covariance.reshape(constant.shape))


def _power_and_noise(factors: Numbers, noise: Numbers, num: int) -> tuple[Numbers, Numbers]:
    """A^K and the sum over j < K of A^j Q (A^j)^T, A block diagonal: twice the steps are A^2 and Q + A Q A^T."""
    power, total = np.broadcast_to(np.eye(factors.shape[-1]), factors.shape), np.zeros_like(noise)
    while num:
        if num % 2:
            power, total = factors @ power, _congruence(factors, total) + noise
        factors, noise = factors @ factors, _congruence(factors, noise) + noise
        num //= 2
    return power, total


# Arrays -------------------------------------------------------------------------------------------------------------------------------


def _column(x: npt.ArrayLike, axes: int) -> Numbers:
    """Add axes at the end, so that a batch of numbers broadcasts against a batch of arrays."""
    x = np.asarray(x, float)
    return x.reshape(*x.shape, *[1] * axes) if x.ndim else x


def _turned(x: Numbers) -> Numbers:
    return np.swapaxes(x, -1, -2)


def _solved(matrix: Numbers, vector: Numbers) -> Numbers:
    return np.asarray(np.linalg.solve(matrix, vector[..., None])[..., 0], float)


def _blocks_times(blocks: Numbers, x: Numbers) -> Numbers:
    """Block-diagonal matrix `f64[..., N, P, P]` times `f64[..., Q, R]`."""
    n, dim = blocks.shape[-3:-1]
    product = blocks @ x.reshape(*x.shape[:-2], n, dim, x.shape[-1])
    return product.reshape(*product.shape[:-3], n * dim, x.shape[-1])


def _congruence(blocks: Numbers, x: Numbers) -> Numbers:
    """A X A^T for symmetric X `f64[..., Q, Q]` and block-diagonal A."""
    return _blocks_times(blocks, _turned(_blocks_times(blocks, x)))


def _spread(weights: Numbers, means: Numbers, mean: Numbers) -> Numbers:
    """Weighted covariance of the clients' means `f64[..., N, P]` around `f64[..., P]`."""
    apart = means - mean[..., None, :]
    return np.einsum("...c,...ci,...cj->...ij", weights, apart, apart)
