"""FA-LD, federated averaging Langevin dynamics (Deng, Zhang, Ma, Song, Lin, arXiv 2112.05120), Algorithms 1 to 4.

    theta_k -> `state.server`    beta^c -> `local`    K -> `hyper.local_steps`    eta -> `hyper.step_size`    tau -> `hyper.temperature`
    rho -> `hyper.rho`    p_c -> `hyper.client_weights`    S -> `hyper.num_selected`    k -> tick * K + local step, never reset

It samples from exp(-f / tau), f = sum_c p_c f^c the sum (not the mean) of all examples' losses: the gradient of f^c is n_c / p_c times that
of the client's mean loss, n times if p_c = n_c / n. So a step size is 1 / n of FedAvg's learning rate. Every step of client c is

    beta^c = theta^c - eta grad f^c + sqrt(2 eta tau rho^2) xi + sqrt(2 eta tau (1 - rho^2) / p_c) xi^c

with xi shared by all clients and xi^c its own, so that the average over all clients has noise of variance 2 eta tau a step. Private
noise and mini-batches depend on seed, client and k alone, shared noise on seed and k: not on rho, K or who takes part.

Settings of it: SGLD is K = 1 with everyone; FedAvg is temperature 0, with lr = n eta; the average of samples from the local posteriors
exp(-l^c / tau) in one shot is rho = 0 and a single round of many steps (`num_ticks=1`). Theorem 5.8's falling step size,
1 / (2 L + m k / 12), is `step_size` 1 / (2 L) with `step_decay` m / 12.

Readings. Clients are selected before a round and not after it, which has the same law and costs the others nothing; so uplink and
downlink are counted for the clients selected. Under partial participation the average has more noise than 2 eta tau (phi times as much,
as the algorithm is printed); `noise_correction` divides the private variance by 1 + (N - 1) C_S / S, which is not in the paper.
Mini-batches are drawn without replacement, anew for each step; with `gradient="exact"` they are all of a client's examples. A batch
larger than a client's examples goes round them again, some counting once more than others: unbiased, with more noise than need be.
Virtual time is the number of steps done, as clients act in lock-step; the settings of their clock can make it FedAvg's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.clients.gradient_steps import Training, fresh_examples, local_steps
from fedjax_sim.clients.langevin_noise import add_langevin_noise
from fedjax_sim.server.aggregation import replicate, squared_distance, weighted_sum
from fedjax_sim.settings import ConfigError, choice, count, real, static, struct, switch
from fedjax_sim.streams import shuffle_bits, stream
from fedjax_sim.timelines import WeightedRounds, schedule_weighted_rounds
from fedjax_sim.types import Algorithm, Array, Event, Key, Params, Plan, Problem, System, Work


def _makes_transformation(value: object) -> bool:
    try:
        return callable(value) and isinstance(value(), optax.GradientTransformation)
    except (TypeError, ValueError):
        return False


@struct
class Hyper(WeightedRounds):
    """Settings of FA-LD: who takes part and when, and its steps'."""

    step_size: float = real(1e-6, "eta, of the order of 1 / n.", above=0)
    step_decay: float = real(
        0.0, "How much 1 / eta grows with every step; 0 for a constant step size.", least=0
    )
    temperature: float = real(1.0, "tau.", least=0)
    rho: float = real(
        0.0,
        "Weight of the noise that all clients share (not the correlation of their noise, which is less).",
        least=0,
        most=1,
    )  # a mixing weight; the noise's correlation is theory.langevin.noise_correlation
    gradient: str = choice("minibatch", ("minibatch", "exact"), "Gradient.")
    batch_size: int = count(200, "Batch size.")
    noise_correction: bool = switch(
        False,
        "Whether the private noise is scaled down so that partial participation leaves the temperature as it is.",
    )
    transform: Callable[[], optax.GradientTransformation] = static(
        optax.identity,
        "a function that makes an optax gradient transformation",
        _makes_transformation,
        meaning="Applied to the gradients of f^c before a step is made of them, such as `partial(optax.clip_by_global_norm, 1.0)`.",
    )

    @property
    def noise_inflation(self) -> float:
        """1 + (N - 1) C_S / S: variance of the averaged private noise under partial participation, over that under full."""
        num, selected = self.num_clients, self.num_selected
        extra = {
            "full": 0.0,
            "with_replacement": (num - 1) / selected,
            "without_replacement": (num - selected) / selected,
        }
        return 1 + extra[self.participation]


class State(NamedTuple):
    server: Params  # [...]
    spread: (
        Array  # f[]  of the clients' models around their average, before they were replaced by it
    )


def algorithm(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind FA-LD to a problem."""
    share = hyper.shares(problem.counts)
    factor = problem.counts / share  # of the gradient of f^c over that of the client's mean loss
    correction = hyper.noise_inflation if hyper.noise_correction else 1.0

    def eta(k: Array) -> Array:
        return hyper.step_size / (1 + hyper.step_size * hyper.step_decay * k)

    def init(key: Key) -> State:
        server = problem.init(key)
        return State(server, jnp.zeros((), jax.tree.leaves(server)[0].dtype))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        first = event.tick * jnp.asarray(hyper.local_steps, "int32")  # k of the round's first step

        def train(start: Params, client: Array, offset: Array) -> Training:
            own = jax.random.fold_in(stream(key, "local"), client)
            bits, noises = shuffle_bits(stream(own, "batches")), stream(own, "noise")
            part = (
                problem.alone(client) if hasattr(problem, "alone") else problem
            )  # SeparableProblem
            count, scale = problem.counts[client], factor[client]

            def gradient(theta: Params, q: Array) -> Params:
                chance = jax.random.fold_in(noises, first + q)
                if hyper.gradient == "exact":
                    slope = jax.grad(part.client_loss)(theta, client, chance)
                else:
                    examples = fresh_examples(bits, first + q, count, hyper.batch_size)
                    slope = jax.grad(part.loss)(theta, client, examples, chance)
                return jax.tree.map(lambda g: g * scale.astype(g.dtype), slope)  # of f^c

            private = hyper.temperature * (1 - hyper.rho**2) / (share[client] * correction)
            dynamics = optax.chain(
                hyper.transform(),
                optax.scale_by_schedule(lambda q: -eta(first + q)),
                add_langevin_noise(
                    stream(key, "shared noise"), eta, hyper.temperature * hyper.rho**2, first=first
                ),
                add_langevin_noise(stream(own, "private noise"), eta, private, first=first),
            )
            return Training(gradient, dynamics)

        local, work = local_steps(
            plan, replicate(state.server, event.clients.shape[0]), event, train
        )
        mean = weighted_sum(event.weight, local)  # p_c, 1/S, or j/S for a client drawn j times
        spread = jnp.sum(event.weight.astype(state.spread.dtype) * squared_distance(local, mean))
        is_round = jnp.any(event.clients >= 0)
        return jax.tree.map(
            lambda new, old: jnp.where(is_round, new, old), State(mean, spread), state
        ), work

    return Algorithm(
        init,
        step,
        lambda state: state.server,
        lambda state, holders: {"client_variance": state.spread},
    )


def complete(hyper: Any, problem: Problem | None) -> Any:
    """Take the clients' weights from their numbers of examples where none are given; without a problem they are equal."""
    if hyper.gradient == "exact" and problem is not None and not hasattr(problem, "client_loss"):
        raise ConfigError(
            "gradient", "exact", f"minibatch, as {type(problem).__name__} has no client_loss"
        )
    return hyper.weighted(
        np.ones(hyper.num_clients) if problem is None else np.asarray(problem.counts, float)
    )


system = System(
    name="langevin",
    summary="federated averaging Langevin dynamics: local steps with noise, whose averages sample from the posterior",
    Hyper=Hyper,
    timeline=schedule_weighted_rounds,
    algorithm=algorithm,
    ticks_within=lambda hyper, time: (
        time / (hyper.server_interact + hyper.times_per_update / hyper.largest_rate)
    ),
    complete=complete,
    keeps_versions=False,
)
