"""Exact laws of the methods that share FA-LD's kernel, for Gaussian clients, float64. All derived.

Clients, symbols and dimension letters are those of `exact_laws`; `D` numbers of a client's state
that is sent, P of a model, or 2 P with a velocity. Problems have no batch axes here.

- `momentum_round`: SGHMC as local step. Model and velocity together move by affine maps.
- `controlled_round`: global control variates whose anchor is the server's model of every round.
- `preconditioned`: a constant diagonal preconditioner, by a change of coordinates.
- `Messages`: messages compressed by random sparsification, with memories or without: QLSD and
  QLSD++. Compression multiplies messages by random numbers, so laws are not Gaussian, but their
  first two moments follow an exact recursion.
"""

from typing import NamedTuple

import numpy as np

from experiments.fald.formulas.exact_laws import (
    FULL,
    GaussianTarget,
    Numbers,
    Participation,
    Round,
    average,
    check_rho,
    one_round,
    target_law,
)
from fedjax_sim.results.diagnostics import Gaussian


def momentum_round(
    target: GaussianTarget,
    *,
    step_size: float,
    friction: float,
    local_steps: int,
    rho: float = 0.0,
    participation: Participation = FULL,
) -> Round:
    """Compute what a round of SGHMC does to the law of model and velocity, stacked in this order.

    Args:
        target: The clients and the temperature.
        step_size: eta, positive.
        friction: a, above 0 and at most 1.
        local_steps: K, at least 1.
        rho: Mixing weight of the shared noise, in [0, 1].
        participation: Which clients are averaged.

    Returns:
        The round, of 2 P numbers, for `exact_laws.stationary` and its other functions.
    """
    n, dim = target.shape
    eye, pull = np.eye(dim), step_size * target.hessians
    kept = np.broadcast_to((1 - friction) * eye, pull.shape)
    factors = np.block([[eye - pull, kept], [-pull, kept]])
    noise = _step_noise(target, step_size, rho, friction * np.asarray(target.temperature))
    # The noise of a step moves velocity and model alike.
    blocks = noise.reshape(n, dim, n, dim)
    both = np.tile(blocks, (1, 2, 1, 2)).reshape(2 * n * dim, 2 * n * dim)
    powers, total = _several(factors, both, local_steps)
    rest = np.concatenate([target.centers, np.zeros_like(target.centers)], axis=1)
    shifts = rest - np.einsum("cij,cj->ci", powers, rest)
    excess = participation.excess(target.weights)
    pairs = target._replace(centers=rest)
    silent = Gaussian(np.zeros(len(total)), total)
    return Round(powers, shifts, average(pairs, silent, excess).covariance, target.weights, excess)


def controlled_round(
    target: GaussianTarget,
    *,
    step_size: float,
    local_steps: int,
    rho: float = 0.0,
    participation: Participation = FULL,
) -> Round:
    """Compute a round with global control variates whose anchor is the model before the round.

    Client c follows H_c (x - anchor) + H (anchor - theta_*), with H the weighted mean Hessian. Its
    fixed point is theta_* for any K. Noise that gradients have in common with those at the anchor
    cancels.

    Args:
        target: The clients and the temperature.
        step_size: eta, positive.
        local_steps: K, at least 1.
        rho: Mixing weight of the shared noise, in [0, 1].
        participation: Which clients are averaged.

    Returns:
        The round.
    """
    plain = one_round(
        target._replace(gradient_noise=0.0),
        step_size=step_size,
        local_steps=local_steps,
        rho=rho,
        participation=participation,
    )
    goal = target_law(target._replace(temperature=1.0))
    eye, hessian = np.eye(target.shape[1]), np.linalg.inv(goal.covariance)
    # The sum over j < K of A_c^j is (eta H_c)^-1 (I - A_c^K).
    powers = eye - np.linalg.solve(target.hessians, (eye - plain.powers) @ hessian)
    return plain._replace(powers=powers, shifts=(eye - powers) @ goal.mean)


def preconditioned(target: GaussianTarget, diagonal: Numbers) -> GaussianTarget:
    """Write the clients in coordinates x / sqrt(D), in which a preconditioner D is the identity.

    Args:
        target: The clients and the temperature.
        diagonal: The diagonal of D, `f64[P]`, positive.

    Returns:
        The clients in these coordinates.
    """
    root = np.sqrt(np.asarray(diagonal, float))
    scale = root[:, None] * root
    return target._replace(
        hessians=target.hessians * scale,
        centers=target.centers / root,
        gradient_noise=target.gradient_noise * scale,
    )


class Messages(NamedTuple):
    """FA-LD with everyone averaged, whose messages are sparsified at random.

    Attributes:
        target: The clients and the temperature.
        step_size: eta, positive.
        local_steps: K, at least 1.
        rho: Mixing weight of the shared noise, which messages do not carry, in [0, 1].
        keep: Probability with which each number of a message is kept, in (0, 1].
        memory: alpha, step size of the clients' memories; 0 for none.
    """

    target: GaussianTarget
    step_size: float
    local_steps: int
    rho: float
    keep: float
    memory: float = 0.0

    def first(self, start: Numbers) -> Gaussian:
        """Return the law before the first round, of the model and all memories, stacked.

        Args:
            start: The initial model, `f64[P]`; memories are 0.

        Returns:
            The law of (1 + N) P numbers.
        """
        n, dim = self.target.shape
        return Gaussian(
            np.concatenate([start, np.zeros(n * dim)]), np.zeros(((1 + n) * dim, (1 + n) * dim))
        )

    def rounds(self, law: Gaussian, num_rounds: int) -> Gaussian:
        """Compute the law after some rounds.

        Args:
            law: Law of the model and all memories, as `first` returns it.
            num_rounds: Number of rounds.

        Returns:
            The law of the same numbers; those of the model come first.
        """
        target = self.target
        n, dim = target.shape
        one, eye = np.eye(dim), np.eye(n)
        powers, noise = self._round()
        # y_c, what client c compresses: A_c^K theta + shift + noise - theta - shared noise - h_c.
        message = np.concatenate(
            [np.concatenate([powers[c] - one, np.kron(-eye[c], one)], axis=1) for c in range(n)]
        )
        shift = ((one - powers) @ target.centers[:, :, None]).ravel()
        # theta <- theta + shared noise + sum_c p_c (h_c + Q(y_c)),  h_c <- h_c + alpha Q(y_c)
        taken = np.concatenate([np.kron(target.weights, one), self.memory * np.kron(eye, one)])
        kept = np.eye((1 + n) * dim)
        kept[:dim, dim:] = np.kron(target.weights, one)
        apart = np.kron(np.concatenate([eye, -np.ones((n, 1))], axis=1), one)  # without the shared
        shared = np.zeros(((1 + n) * dim, (1 + n) * dim))
        shared[:dim, -dim:] = one
        move, sent = kept + taken @ message, shared + taken @ apart
        for _ in range(num_rounds):
            mean = message @ law.mean + shift
            spread = message @ law.covariance @ message.T + apart @ noise @ apart.T
            square = np.diag(spread) + mean**2
            lost = taken @ np.diag((1 / self.keep - 1) * square) @ taken.T
            law = Gaussian(
                kept @ law.mean + taken @ mean,
                move @ law.covariance @ move.T + sent @ noise @ sent.T + lost,
            )
        return law

    def _round(self) -> tuple[Numbers, Numbers]:
        """Compute A_c^K, and the covariance of the noise of a round.

        Returns:
            `f64[N, P, P]`, and `f64[(N + 1) P, (N + 1) P]`: of the clients' models, and, last, of
            a client without data, who has the shared noise alone.
        """
        target = self.target
        n, dim = target.shape
        blank = target._replace(
            hessians=np.concatenate([target.hessians, np.zeros((1, dim, dim))]),
            centers=np.concatenate([target.centers, np.zeros((1, dim))]),
            weights=np.append(target.weights, np.inf),
            gradient_noise=np.concatenate(
                [
                    np.broadcast_to(target.gradient_noise, target.hessians.shape),
                    np.zeros((1, dim, dim)),
                ]
            ),
        )
        factors = np.eye(dim) - self.step_size * blank.hessians
        noise = _step_noise(blank, self.step_size, self.rho, np.asarray(target.temperature))
        powers, total = _several(factors, noise, self.local_steps)
        return powers[:n], total


def _several(factors: Numbers, noise: Numbers, num: int) -> tuple[Numbers, Numbers]:
    """Compute F_c^K, and the covariance of the noise of K steps of all clients."""
    n, dim = factors.shape[:2]
    blocks = np.zeros((n, dim, n, dim))
    blocks[np.arange(n), :, np.arange(n), :] = factors
    whole = blocks.reshape(n * dim, n * dim)
    total = np.zeros_like(noise)
    for _ in range(num):
        total = whole @ total @ whole.T + noise
    return np.asarray(np.linalg.matrix_power(factors, num), float), total


def _step_noise(target: GaussianTarget, step_size: float, rho: float, tau: Numbers) -> Numbers:
    """Compute the covariance of the noise that a step adds to all models: `f64[N P, N P]`.

    A client of infinite weight has no private noise.
    """
    check_rho(rho)
    n, dim = target.shape
    mixing = rho**2 + (1 - rho**2) * np.diag(1 / target.weights)
    noise = np.kron(2 * step_size * tau * mixing, np.eye(dim)).reshape(n, dim, n, dim)
    gradient = step_size**2 * np.broadcast_to(target.gradient_noise, target.hessians.shape)
    noise[np.arange(n), :, np.arange(n), :] += gradient
    return np.asarray(noise.reshape(n * dim, n * dim), float)
