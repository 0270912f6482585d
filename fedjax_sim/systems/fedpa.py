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

Readings. The steps after the burn-in are shared out among the samples as evenly as whole numbers
can be, and nothing is discarded between them. Where clients have different numbers of steps
(`local_epochs`), one with fewer steps left than samples has a sample of each, and one without any
sends FedAvg's update. Regularisers, clipping and other optimizers of local steps are those of
FedAvg.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from fedjax_sim.clients import LocalTraining, Training, local_steps, local_training
from fedjax_sim.core import batching, settings
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, Limit, setting, struct
from fedjax_sim.core.types import Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import Reports, Rounds, RoundState, Wire, aggregation
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, aggregation.ServerStep, Reports):
    """Settings of FedPA: its rounds, local sampling, messages, and the server's step."""

    server_optimizer: Callable[..., optax.GradientTransformation] | None = settings.redefault(
        aggregation.ServerStep, "server_optimizer", optax.sgd
    )
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
        """Check that there are steps for all samples.

        Raises:
          ConfigError: If fewer steps are left after the burn-in than there are samples.
        """
        super().check_together()
        least = self.burn_in + self.num_samples
        if np.all(np.asarray(self.local_epochs) == 0) and self.local_steps < least:
            allowed = f"at least burn_in + num_samples = {least}"
            raise ConfigError("local_steps", self.local_steps, allowed)


class Kept(NamedTuple):
    """State of an optimizer that keeps samples.

    Attributes:
      inner: State of the optimizer.
      step: `i32[]`, number of the next step.
      sums: Sums of the iterates of each sample, leaves `[l, ...]`.
      counts: Their numbers, `i32[l]`.
    """

    inner: Params
    step: Array
    sums: Params
    counts: Array


def keep_samples(
    optimizer: optax.GradientTransformation, steps: Array, *, burn_in: int, number: int
) -> optax.GradientTransformation:
    """Add up the iterates after the burn-in, in groups of nearly as many steps each.

        keeps = keep_samples(optax.sgd(1.0), 3, burn_in=1, number=2)
        state, model = keeps.init(jnp.zeros(())), jnp.zeros(())
        for _ in range(3):
            update, state = keeps.update(jnp.ones(()), state, model)
            model = model + update
        assert state.sums.tolist() == [-2.0, -3.0] and state.counts.tolist() == [1, 1]

    Args:
      optimizer: The optimizer of local steps.
      steps: Local steps that will be done, `i32[]`.
      burn_in: Steps before the first group.
      number: Groups.

    Returns:
      The optimizer, with a state `Kept`.
    """

    def init(model: Params) -> Kept:
        sums = jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), model)
        return Kept(optimizer.init(model), jnp.int32(0), sums, jnp.zeros(number, "int32"))

    def update(slope: Params, state: Kept, model: Params = None) -> tuple[Params, Kept]:
        moves, inner = optimizer.update(slope, state.inner, model)
        after, q = optax.apply_updates(model, moves), state.step - burn_in
        group = q * number // jnp.maximum(steps - burn_in, 1)
        place = jnp.where(q < 0, number, group)  # Out of range: dropped.
        sums = jax.tree.map(
            lambda kept, leaf: kept.at[place].add(leaf, mode="drop"), state.sums, after
        )
        return moves, Kept(inner, state.step + 1, sums, state.counts.at[place].add(1, mode="drop"))

    return optax.GradientTransformation(init, update)


def posterior_delta(
    start: Array, sums: Array, counts: Array, shrinkage: Array | float
) -> tuple[Array, Array]:
    """Compute Sigma_l^-1 (x_0 - m) of l samples with mean m, by rank-one updates.

    With u_k = x_k - m_{k-1}, g_k = rho (k - 1) / k and A_k = Sigma_k / rho_k,
    A_k = A_{k-1} + g_k u_k u_k^T and m_k = m_{k-1} + u_k / k. So with v_k = A_{k-1}^-1 u_k and
    d = delta_{k-1} - v_k / k, delta_k = d - g_k (u_k . d) / (1 + g_k u_k . v_k) v_k. It begins with
    m_0 = x_0, delta_0 = 0 and A_0 = I.

        sums, counts = jnp.array([[1.0, 0.0], [6.0, 4.0]]), jnp.array([1, 2])
        delta, number = posterior_delta(jnp.zeros(2), sums, counts, 0.0)
        assert delta.tolist() == [-2.0, -1.0] and number == 2  # the way from the mean

    Args:
      start: x_0, `f[P]`.
      sums: Sums of the iterates of each sample, `f[l, P]`.
      counts: Their numbers, `i32[l]`; 0 for a sample that is left out.
      shrinkage: rho.

    Returns:
      `f[P]`, and the number of samples, `i32[]`.
    """
    samples = sums / jnp.maximum(counts, 1)[:, None].astype(sums.dtype)
    rho = jnp.asarray(shrinkage, sums.dtype)

    def add(place: Array, before: tuple[Array, ...]) -> tuple[Array, ...]:
        number, mean, delta, rows, factors = before
        k = number.astype(rho.dtype) + 1
        u = samples[place] - mean
        v = u - (factors * (rows @ u)) @ rows  # A_{k-1}^-1 u; rows to come are 0
        gamma = rho * (k - 1) / k
        factor, d = gamma / (1 + gamma * (u @ v)), delta - v / k
        delta = d - factor * (u @ d) * v
        kept = rows.at[place].set(v), factors.at[place].set(factor)
        after = number + 1, mean + u / k, delta, *kept
        return jax.tree.map(partial(jnp.where, counts[place] > 0), after, before)

    zero = jnp.zeros_like(samples)
    first = jnp.int32(0), start, jnp.zeros_like(start), zero, zero[:, 0]
    number, _, delta, *_ = jax.lax.fori_loop(0, len(samples), add, first)
    return delta * (1 + jnp.maximum(number - 1, 0).astype(rho.dtype) * rho), number


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Rounds:
    """Bind FedPA to a problem."""
    bound = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan)
    if wire.has_statistics():
        allowed = "one whose model is trained whole, because samples are of all of it"
        raise ConfigError("problem", type(problem).__name__, allowed)
    keep = partial(keep_samples, burn_in=hyper.burn_in, number=hyper.num_samples)

    def sampling(given: Training, steps: Array) -> Training:
        at, optimizer = given.at_step, keep(given.optimizer, steps)
        at_step = None if at is None else lambda q: sampling(at(q), steps)
        return given._replace(optimizer=optimizer, is_elementwise=False, at_step=at_step)

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start, num_slots = wire.received(state), event.clients.shape[0]  # theta_t

        def training(
            start: Params, client: Array, offset: Array, steps: Array, **rates: Array
        ) -> Training:
            given = bound.training(key, event.facts, start, client, offset, **rates)
            return sampling(given, steps)

        first = keep(hyper.local_optimizer(), jnp.int32(0)).init(start)
        ends, states, work = local_steps(
            plan,
            event,
            training,
            start=start,
            extras=(event.steps,),
            states=batching.replicate(first, num_slots),
            rates=hyper.of_slots(event),
        )
        x, unravel = ravel_pytree(start)

        def report(end: Params, kept: Kept) -> Params:
            sums = jax.vmap(lambda sample: ravel_pytree(sample)[0])(kept.sums)
            delta, number = posterior_delta(x, sums, kept.counts, hyper.shrinkage)
            is_plain = (event.tick < jnp.asarray(hyper.burn_in_rounds, "int32")) | (number == 0)
            return unravel(jnp.where(is_plain, ravel_pytree(end)[0], x - delta))

        reports = jax.vmap(report)(ends, states)
        return wire.advance(key, event, state, reports), work

    return wire.algorithm(lambda key: wire.first_round(problem.init(key)), step)


SUMMARY = (
    "averages of clients' posteriors: FedAvg with steps scaled by covariances of local samples"
)
system = cohort_system("fedpa", Hyper, algorithm, SUMMARY)
paper = system.paper
