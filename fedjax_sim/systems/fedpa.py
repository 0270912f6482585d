"""FedPA (Al-Shedivat, Gillenwater, Xing and Rostamizadeh 2021, arXiv 2010.05273).

    theta_t -> `state.server`    x_{t, 1..l} -> `samples`    rho -> `hyper.shrinkage`
    Delta_t -> `delta`           S_t -> `event.clients`      eta of clients -> `hyper.lr`

Where client i has the Gaussian posterior N(mu_i, Sigma_i), the mode of the global one minimises a
quadratic with the gradient sum_i q_i Sigma_i^-1 (theta - mu_i). Clients send estimates of their
terms, and the server follows their mean by any optimizer, as in FedOpt. A client estimates mu_i and
Sigma_i from samples of its posterior: it runs SGD, and after `burn_in` steps each mean of so many
iterates is a sample (IASG, Mandt, Hoffman and Blei 2017).

Of l samples with mean m and sample covariance S, the covariance is estimated with shrinkage,

    Sigma_l = rho_l I + (1 - rho_l) S,    rho_l = 1 / (1 + (l - 1) rho),

so that Sigma_l / rho_l is I plus rho times the sum of squares around m, to which a sample adds a
matrix of rank one. `posterior_delta` inverts it by the formula of Sherman and Morrison, sample by
sample, in time l^2 P and memory l P for P parameters.

With one sample, the last iterate, this is FedAvg; with rho = 0 it is FedAvg on means of samples. As
in the experiments, clients may do FedAvg's updates in the first `burn_in_rounds` rounds.

Readings. All clients of a round do equally many steps; the paper has equally many epochs. Sizes of
samples are equal, and nothing is discarded between them. Regularisers, clipping and other
optimizers of local steps are those of FedAvg.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedjax_sim.clients import LocalTraining, Training, local_steps, local_training
from fedjax_sim.clients.mini_batches import untrained_leaves
from fedjax_sim.core import batching
from fedjax_sim.core.settings import (
    AtLeast0,
    ConfigError,
    Count,
    Limit,
    fixed,
    redefault,
    setting,
    struct,
)
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import Reports, RoundState, Wire
from fedjax_sim.server.aggregation import ServerStep, where_slots
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, ServerStep, Reports):
    """Settings of FedPA: its rounds, local sampling, messages, and the server's step."""

    local_epochs: float = fixed(0.0)
    server_optimizer: object = redefault(ServerStep, "server_optimizer", optax.sgd)
    burn_in: Annotated[int, Limit(least=0)] = setting(
        5, "Local steps before the first sample.", traced=False
    )
    num_samples: Count = setting(5, "Samples l of a client's posterior in a round.")
    shrinkage: AtLeast0 = setting(
        0.01, "Weight of the samples' covariance, rho; 0 takes the identity."
    )
    burn_in_rounds: Annotated[int, Limit(least=0)] = setting(
        0, "First rounds in which clients do FedAvg's updates.", traced=True
    )

    def check_together(self) -> None:
        """Check that samples have equally many steps.

        Raises:
          ConfigError: If the steps after the burn-in are not a multiple of the samples.
        """
        super().check_together()
        left = self.local_steps - self.burn_in
        if left < self.num_samples or left % self.num_samples:
            allowed = f"burn_in = {self.burn_in} plus a multiple of num_samples = "
            raise ConfigError("local_steps", self.local_steps, f"{allowed}{self.num_samples}")


def keep_samples(
    optimizer: optax.GradientTransformation, *, burn_in: int, size: int, number: int
) -> optax.GradientTransformation:
    """Keep means of iterates: each of `number` means is of `size` steps after the burn-in.

    Args:
      optimizer: The optimizer of local steps.
      burn_in: Steps before the first mean.
      size: Steps of a mean.
      number: Means.

    Returns:
      The optimizer; its state ends with the means, leaves `[number, ...]`.
    """

    def init(model: Params) -> tuple[Params, Array, Params]:
        none = jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), model)
        return optimizer.init(model), jnp.int32(0), none

    def update(
        slope: Params, state: tuple[Params, Array, Params], model: Params = None
    ) -> tuple[Params, tuple[Params, Array, Params]]:
        inner, q, samples = state
        moves, inner = optimizer.update(slope, inner, model)
        place = jnp.where(q < burn_in, number, (q - burn_in) // size)  # Out of range: dropped.
        samples = jax.tree.map(
            lambda kept, leaf: kept.at[place].add(leaf / size, mode="drop"),
            samples,
            optax.apply_updates(model, moves),
        )
        return moves, (inner, q + 1, samples)

    return optax.GradientTransformation(init, update)


def posterior_delta(start: Array, samples: Array, shrinkage: Array | float) -> Array:
    """Compute Sigma_l^-1 (x_0 - m) of l samples with mean m, by rank-one updates.

    With u_k = x_k - m_{k-1}, g_k = rho (k - 1) / k and A_k = Sigma_k / rho_k,
    A_k = A_{k-1} + g_k u_k u_k^T and m_k = m_{k-1} + u_k / k. So with v_k = A_{k-1}^-1 u_k and
    d = delta_{k-1} - v_k / k, delta_k = d - g_k (u_k . d) / (1 + g_k u_k . v_k) v_k.

        samples = jnp.array([[1.0, 0.0], [3.0, 2.0]])
        far = posterior_delta(jnp.zeros(2), samples, 0.0)
        assert far.tolist() == [-2.0, -1.0]  # the way from the mean

    Args:
      start: x_0, `f[P]`.
      samples: `f[l, P]`.
      shrinkage: rho.

    Returns:
      `f[P]`.
    """
    number = len(samples)

    def add(k: Array, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        mean, delta, rows, factors = carried
        u = samples[k] - mean
        v = u - (factors * (rows @ u)) @ rows  # A_{k-1}^-1 u; rows to come are 0
        gamma = shrinkage * k / (k + 1)
        factor = gamma / (1 + gamma * (u @ v))
        d = delta - v / (k + 1)
        delta = d - factor * (u @ d) * v
        return mean + u / (k + 1), delta, rows.at[k].set(v), factors.at[k].set(factor)

    zero = jnp.zeros_like(samples)
    first = samples[0], start - samples[0], zero, zero[:, 0]
    delta = jax.lax.fori_loop(1, number, add, first)[1]
    return delta * (1 + (number - 1) * shrinkage)


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind FedPA to a problem."""
    bound = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, train=local_training)
    kept = {"burn_in": hyper.burn_in, "number": hyper.num_samples}
    kept["size"] = (hyper.local_steps - hyper.burn_in) // hyper.num_samples

    def sampling(given: Training) -> Training:
        at, optimizer = given.at_step, keep_samples(given.optimizer, **kept)
        at_step = None if at is None else lambda q: sampling(at(q))
        return given._replace(optimizer=optimizer, is_elementwise=False, at_step=at_step)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        if untrained_leaves(problem, server) is not None:
            allowed = "one whose model is trained whole, because samples are of all of it"
            raise ConfigError("problem", type(problem).__name__, allowed)
        return wire.first_round(server)

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        if not event.facts.keeps("steps"):
            allowed = "left as they are: a client's samples have a fixed number of steps"
            raise ConfigError("steps of the event", "replaced", allowed)
        start, num_slots = wire.received(state), event.clients.shape[0]  # theta_t

        def training(start: Params, *slot: Array, **rates: Array) -> Training:
            return sampling(bound.training(key, event.facts, start, *slot, **rates))

        first = keep_samples(hyper.local_optimizer(), **kept).init(start)
        ends, states, work = local_steps(
            plan,
            event,
            training,
            start=start,
            states=batching.replicate(first, num_slots),
            rates=hyper.of_slots(event),
        )
        x, unravel = ravel_pytree(start)

        def report(end: Params, samples: Params) -> Params:
            rows = jax.vmap(lambda sample: ravel_pytree(sample)[0])(samples)
            delta = posterior_delta(x, rows, hyper.shrinkage)
            is_early = event.tick < jnp.asarray(hyper.burn_in_rounds, "int32")
            return unravel(jnp.where(is_early, ravel_pytree(end)[0], x - delta))

        reports = jax.vmap(report)(ends, states[-1])
        # An empty slot has no samples.
        reports = where_slots(event.clients >= 0, reports, ends)
        return wire.advance(key, event, state, reports), work

    return wire.algorithm(init, step)


SUMMARY = (
    "averages of clients' posteriors: FedAvg with steps scaled by covariances of local samples"
)
system = cohort_system("fedpa", Hyper, algorithm, SUMMARY)
paper = system.paper
