"""MimeLite (Karimireddy et al. 2021, arXiv 2008.03606), Algorithm 1.

    x -> `state.server`    s -> `state.memory`    y_i -> `local`    S -> `event.clients`
    U, V -> the two results of the base optimizer's `update`        eta -> `hyper.lr`

The statistics s of a base optimizer, such as its momentum, belong to the server. Local steps
y_i <- y_i - eta U(g_i(y_i), s) use them and do not change them; after the round they are updated
with the clients' mean gradient at the server's model, s <- V(mean grad f_i(x), s). Up, a message is
a local model and a gradient; down, the model and the statistics. By default the base is SGD with
momentum in the paper's form, U = beta s + (1 - beta) g = V.

Deviation: the paper's Adam divides by the square root of the server's second moment as it is, and
corrects no bias. Any optax optimizer may be the base here, and with optax's Adam a local step
divides by the second moment to which its own gradient is added, with the bias corrected. Otherwise
the first round, where the server has no moments yet, would divide by nothing but epsilon.

Deviation: gradients at x are of all of a client's examples, as in the paper, or with
`gradient="minibatch"` of the batch of its first local step, which costs one gradient.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_sim.clients import BaseOptimizer, WholeGradients, frozen_training, gradients_at
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import ConfigError, setting, struct
from fedjax_sim.core.types import Algorithm, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import ReportMessages, Reports, RoundState, Wire
from fedjax_sim.server.aggregation import keep_if_empty
from fedjax_sim.server.compression import Identity
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, BaseOptimizer, WholeGradients, Reports):
    """Settings of MimeLite: its rounds, local training, messages, and the base optimizer."""

    gradient: Literal["minibatch", "exact"] = setting(
        "exact", "Gradients of a mini-batch or of all examples, at the server's model."
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        if not self.has_momentum and not isinstance(self.messages.downlink, Identity):
            allowed = "identity unless the optimizer is sgd: other statistics may not be rounded"
            raise ConfigError("messages.downlink", str(self.messages.downlink), allowed)


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind MimeLite to a problem."""
    base, wire = hyper.local_optimizer(), Wire(problem, hyper, plan)
    train = frozen_training(problem, hyper, plan)
    gradient_at = gradients_at(problem, hyper, plan, is_exact=hyper.gradient == "exact")

    def init(key: Key) -> RoundState:
        x = problem.init(key)
        s = base.init(x)
        return RoundState(x, s, memo=wire.first((x, s), report=(x, x)))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        x, s = wire.start(state.memo, (state.server, state.memory))
        local, work = train(key, event, x, s)  # y_i <- y_i - eta U(g_i(y_i), s)
        slopes, more = gradient_at(key, event, x)
        starts = replicate(x, event.clients.shape[0]), jax.tree.map(jnp.zeros_like, slopes)
        (local, slopes), memo = wire.receive(key, event, state.memo, starts, (local, slopes))
        nowhere = jax.tree.map(jnp.zeros_like, x)
        mean, slope = wire.mean(key, event, (x, nowhere), (local, slopes))
        _, s = base.update(slope, state.memory, state.server)  # V
        if wire.downlink.is_on:  # What clients have not heard yet stays with the server.
            mean = jax.tree.map(lambda w, end, begin: w + (end - begin), state.server, mean, x)
        x = mean
        x, s = keep_if_empty(event, (x, s), (state.server, state.memory))
        memo = wire.publish(key, event, memo, (x, s))
        return RoundState(x, s, memo=memo), work.and_more(more)

    def received(state: RoundState) -> Params:
        return wire.start(state.memo, (state.server, state.memory))[0]

    return wire.algorithm(init, step, received=received)


def message(params: Params, hyper: Hyper) -> Params:
    """Return the server's message: its model and the statistics."""
    return params, jax.eval_shape(hyper.local_optimizer().init, params)


SUMMARY = "federated averaging whose local steps use the server's momentum and do not change it"
system = cohort_system(
    "mimelite",
    Hyper,
    algorithm,
    SUMMARY,
    messages=ReportMessages(lambda params, hyper: (params, params), down=message),
)
paper = system.paper
