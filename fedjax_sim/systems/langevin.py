"""FA-LD, federated averaging Langevin dynamics (arXiv 2112.05120), Algorithms 1 to 4.

    theta_k -> `state.server`    beta^c -> `local`        K -> `hyper.local_steps`
    eta -> `hyper.step_size`     rho -> `hyper.rho`       tau -> `hyper.temperature`
    p_c -> `hyper.client_weights`    S -> `hyper.num_selected`
    k -> tick * K + local step, never reset

By Deng, Zhang, Ma, Song and Lin. It samples from exp(-f / tau), where f is the sum (not the mean)
of all examples' losses, written as f = sum_c p_c f^c. So f^c is n_c / p_c times the mean loss of
client c, or n times if p_c = n_c / n, and a step size is 1 / n of FedAvg's learning rate. Every
step of client c is

    beta^c = theta^c - eta grad f^c
             + sqrt(2 eta tau rho^2) xi + sqrt(2 eta tau (1 - rho^2) / p_c) xi^c

with noise xi shared by all clients and private noise xi^c, so that the average over all clients has
noise of variance 2 eta tau a step. Private noise and mini-batches depend only on seed, client and
k, shared noise only on seed and k; neither depends on rho, K or who takes part.

Special cases. SGLD is K = 1 with everyone. FedAvg is temperature 0, with lr = n eta. The one-shot
average of samples from the local posteriors exp(-l^c / tau), where l^c = p_c f^c is the sum of the
losses of client c, is rho = 0 and one round of many steps (`num_ticks=1`). Theorem 5.8's falling
step size 1 / (2 L + m k / 12) is `step_size` 1 / (2 L) with `step_decay` m / 12.

Readings. Clients are selected before a round instead of after it. That has the same law and costs
the other clients nothing; uplink and downlink are counted for the selected clients. Under partial
participation the average has more noise than 2 eta tau: in the algorithm as printed
phi = 1 + (1 - rho^2) (N - 1) C_S / S times as much, where C_S is 1 for draws with replacement and
(N - S) / (N - 1) without. `noise_correction`, which is not in the paper, divides the private
variance by 1 + (N - 1) C_S / S. Mini-batches are drawn without replacement for each step; with
`gradient="exact"` they are all of a client's examples. A batch that is larger than a client's
examples runs through them again, so that some count once more than others: unbiased, with more
noise than necessary. Virtual time is the number of steps done, because clients act in lock-step;
the settings of the clock can make it FedAvg's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.batching import look_ahead
from fedjax_sim.clients import Training, add_langevin_noise, local_steps
from fedjax_sim.clients.gradient_steps import fresh_examples
from fedjax_sim.server import keep_if_empty, weighted_sum
from fedjax_sim.settings import ConfigError, choice, count, is_known, real, static, struct, switch
from fedjax_sim.streams import shuffle_bits, stream
from fedjax_sim.timelines import WeightedRounds, schedule_weighted_rounds
from fedjax_sim.types import (
    Algorithm,
    Array,
    Event,
    Fit,
    Hints,
    Key,
    Params,
    Plan,
    Problem,
    System,
    Work,
)


def _makes_transformation(value: object) -> bool:
    try:
        return callable(value) and isinstance(value(), optax.GradientTransformation)
    except (TypeError, ValueError):
        return False


@struct
class Hyper(WeightedRounds):
    """Settings of FA-LD: participation, clock, and Langevin steps."""

    step_size: float = real(1e-6, "Step size eta, of the order of 1 / n.", above=0)
    step_decay: float = real(
        0.0, "How much 1 / eta grows with every step; 0 for a constant step size.", least=0
    )
    temperature: float = real(1.0, "Temperature tau.", least=0, simpler_at=(0.0,))
    # A mixing weight; theory.langevin.bounds.noise_correlation computes the noise's correlation.
    rho: float = real(
        0.0,
        "Weight of the noise that all clients share (the correlation of their noise is smaller).",
        least=0,
        most=1,
        simpler_at=(0.0, 1.0),
    )
    gradient: str = choice(
        "minibatch", ("minibatch", "exact"), "Whether gradients use a mini-batch or all examples."
    )
    batch_size: int = count(200, "Examples of a mini-batch.")
    noise_correction: bool = switch(
        False,
        "Whether private noise is scaled down so that partial participation keeps the temperature.",
    )
    transform: Callable[[], optax.GradientTransformation] = static(
        optax.identity,
        "a function that makes an optax gradient transformation",
        _makes_transformation,
        meaning="Applied to the gradients of f^c before each step, such as "
        "`partial(optax.clip_by_global_norm, 1.0)`.",
    )

    @property
    def noise_inflation(self) -> float:
        """1 + (N - 1) C_S / S, the factor on the variance of the averaged private noise.

        It compares partial with full participation.
        """
        num, selected = self.num_clients, self.num_selected
        extra = {
            "full": 0.0,
            "with_replacement": (num - 1) / selected,
            "without_replacement": (num - selected) / selected,
        }
        return 1 + extra[self.participation]


class State(NamedTuple):
    """What FA-LD carries from round to round.

    Attributes:
      server: theta_k, leaves `[...]`.
    """

    server: Params


def algorithm(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind FA-LD to a problem."""
    share = hyper.shares(problem.counts)
    factor = problem.counts / share  # the gradient of f^c over that of the client's mean loss
    correction = hyper.noise_inflation if hyper.noise_correction else 1.0
    is_separable = hasattr(problem, "alone")
    is_exact = hyper.gradient == "exact"
    is_noisy = not is_known(hyper.temperature, 0)
    has_shared = is_noisy and not is_known(hyper.rho, 0)
    has_private = is_noisy and not is_known(hyper.rho, 1)

    def eta(k: Array) -> Array:
        return hyper.step_size / (1 + hyper.step_size * hyper.step_decay * k)

    def init(key: Key) -> State:
        return State(problem.init(key))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        first = event.tick * jnp.asarray(hyper.local_steps, "int32")  # k of the round's first step

        def training(start: Params, client: Array, offset: Array) -> Training:
            client_key = jax.random.fold_in(stream(key, "local"), client)
            bits = shuffle_bits(stream(client_key, "batches"))
            noises = stream(client_key, "noise")
            losses = problem.alone(client) if is_separable else problem
            count, scale = problem.counts[client], factor[client]

            def draw(q: Array) -> tuple[Array | None, Key]:
                k, size = first + q, hyper.batch_size
                examples = None if is_exact else fresh_examples(bits, k, count, size)
                return examples, jax.random.fold_in(noises, k)

            drawn = look_ahead(draw, plan.most_steps)

            def gradient(theta: Params, q: Array) -> Params:
                examples, noise_key = drawn(q)
                if is_exact:
                    slope = jax.grad(losses.client_loss)(theta, client, noise_key)
                else:
                    slope = jax.grad(losses.loss)(theta, client, examples, noise_key)
                return jax.tree.map(lambda g: g * scale.astype(g.dtype), slope)  # of f^c

            dynamics = [hyper.transform(), optax.scale_by_schedule(lambda q: -eta(first + q))]
            if has_shared:
                shared_tau = hyper.temperature * hyper.rho**2
                shared_key = stream(key, "shared noise")
                dynamics.append(add_langevin_noise(shared_key, eta, shared_tau, first=first))
            if has_private:
                private_tau = hyper.temperature * (1 - hyper.rho**2) / (share[client] * correction)
                private_key = stream(client_key, "private noise")
                dynamics.append(add_langevin_noise(private_key, eta, private_tau, first=first))
            return Training(gradient, optax.chain(*dynamics))

        local, work = local_steps(plan, event, training, start=state.server)
        mean = weighted_sum(event.weight, local)  # p_c, 1/S, or j/S for a client drawn j times
        return keep_if_empty(plan, event, State(mean), state), work

    return Algorithm(init, step, model=lambda state: state.server)


def complete(hyper: Hyper, problem: Problem | None) -> Hyper:
    """Fill in clients' weights from their numbers of examples, unless they are given.

    Without a problem, weights are equal.

    Raises:
      ConfigError: If exact gradients are asked for and the problem has none.
    """
    if hyper.gradient == "exact" and problem is not None and not hasattr(problem, "client_loss"):
        allowed = f"minibatch, because {type(problem).__name__} has no client_loss"
        raise ConfigError("gradient", "exact", allowed)
    counts = np.ones(hyper.num_clients) if problem is None else np.asarray(problem.counts, float)
    return hyper.weighted(counts)


system = System(
    "langevin",
    Hyper,
    schedule_weighted_rounds,
    algorithm,
    "federated averaging Langevin dynamics: averages of noisy local steps sample a posterior",
    hints=Hints(
        lambda hyper, time: (
            time / (hyper.server_interact + hyper.times_per_update / hyper.largest_rate)
        )
    ),
    fit=Fit(complete=complete),
)
