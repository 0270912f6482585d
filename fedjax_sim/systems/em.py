"""Expectation maximisation (Dempster, Laird and Rubin 1977) in the space of expected statistics.

    S_k -> `server`    S_{k+1} = mean_i s_i(T(S_k)), eq. (5) of arXiv 2111.02083

The parameters of classical EM are theta_k = T(S_k). It is the baseline of FedEM: in every round
every client evaluates all its examples and sends their mean statistics uncompressed.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import Expectation, local_expectation
from fedjax_sim.core import trees, types
from fedjax_sim.core.settings import fixed, redefault, struct
from fedjax_sim.core.types import Algorithm, Event, Key, Plan, Work
from fedjax_sim.server import broadcast_bits, keep_if_empty, weighted_sum
from fedjax_sim.timelines import CoinRounds, presets, schedule_coin_rounds


@struct
class Hyper(CoinRounds, Expectation):
    """Settings of EM."""

    participation: float = fixed(1.0)
    batch_size: int = redefault(Expectation, "batch_size", 200)
    batches: Literal["full"] = fixed("full")


class State(NamedTuple):
    """State of EM.

    Attributes:
      server: S_k, `f[q]`.
    """

    server: types.Array


def algorithm(problem: types.LatentProblem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind EM to a problem; the arguments are those of `System.algorithm`."""
    expect = local_expectation(problem, hyper, plan)

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        is_present = event.clients >= 0
        natural = problem.natural(problem.maximise(state.server))
        means, work = expect(key, event, natural, is_full=True, works=is_present)
        num_present = jnp.maximum(is_present.sum(), 1).astype(means.dtype)
        after = State(weighted_sum(is_present, means) / num_present)
        return keep_if_empty(event, after, state), work

    return Algorithm(lambda key: State(problem.init(key)), step, model=lambda state: state.server)


class Messages(types.Messages):
    """The messages of expectation maximisation: statistics up, S and theta down."""

    def per_tick(
        self, problem: types.LatentProblem, hyper: Hyper, timeline: types.Timeline
    ) -> tuple[types.Leaf, types.Leaf]:
        """Count the bits sent at each tick, `i64[T]` each."""
        message = types.full_precision_bits(trees.shapes_of_model(problem))
        up = (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * message
        return up, broadcast_bits(problem, timeline)


paper = presets.preset(Hyper, {**presets.EM, "batch_size": 200})
system = types.System(
    "em",
    Hyper,
    schedule_coin_rounds,
    algorithm,
    "classical expectation maximisation: every round uses all examples of all clients",
    overshoot=False,
    messages=Messages(),
    hints=types.Hints(lambda hyper, time: time / hyper.round_length),
    fit=types.Fit(types.LatentProblem),
    paper=paper,
)
