"""Expectation maximisation (Dempster, Laird, Rubin 1977) of all clients' examples, in the space of expected statistics.

    S_k -> `state.server`    S_{k+1} = mean_i s_i(T(S_k)), eq. (5) of arXiv 2111.02083; the parameters of classical EM are theta_k = T(S_k)

The baseline of FedEM: every client goes over all its examples in every round, and sends their mean statistics as they are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.e_steps import local_statistics
from fedjax_sim.server.aggregation import weighted_sum
from fedjax_sim.server.approximation import broadcasts
from fedjax_sim.settings import count, fixed, struct
from fedjax_sim.timelines import CoinRounds, schedule_coin_rounds
from fedjax_sim.types import (
    Algorithm,
    Array,
    Event,
    Key,
    LatentProblem,
    Leaf,
    Plan,
    System,
    Timeline,
    Work,
    full_precision_bits,
)


@struct
class Hyper(CoinRounds):
    """Settings of EM."""

    participation: float = fixed(1.0)
    batch_size: int = count(200, "Examples of a client that are gone over at once.")


class State(NamedTuple):
    server: Array  # f[q]  S_k


def algorithm(problem: LatentProblem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind EM to a problem."""

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        is_present = event.clients >= 0
        natural = problem.natural(problem.maximise(state.server))
        means, work = local_statistics(
            problem, hyper, plan, key, event, natural, is_full=True, works=is_present
        )
        after = weighted_sum(is_present, means) / jnp.maximum(is_present.sum(), 1).astype(
            means.dtype
        )
        return State(jnp.where(jnp.any(is_present), after, state.server)), work

    return Algorithm(lambda key: State(problem.init(key)), step, model=lambda state: state.server)


def traffic(problem: LatentProblem, hyper: Hyper, timeline: Timeline) -> tuple[Leaf, Leaf]:
    """Bits sent at each tick, `i64[T]` each: every client's mean statistics up, S and theta down, as in FedEM."""
    message = full_precision_bits(jax.eval_shape(problem.init, jax.random.key(0)))
    return (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * message, broadcasts(
        problem, timeline
    )


system = System(
    name="em",
    summary="classical expectation maximisation, every round over all examples of all clients",
    Hyper=Hyper,
    timeline=schedule_coin_rounds,
    algorithm=algorithm,
    ticks_within=lambda hyper, time: time / hyper.round_time,
    overshoot=False,
    traffic=traffic,
    learns=LatentProblem,
)
