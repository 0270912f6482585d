"""Per-FedAvg (Fallah, Mokhtari and Ozdaglar 2020, arXiv 2002.07948), Algorithm 1, first order.

    w_k -> `state.server`    alpha -> `hyper.adapting_lr`    beta -> `hyper.lr`
    tau -> `hyper.local_steps`    A_k -> `event.clients`    D, D' -> mini-batches 2 q and 2 q + 1

The server's model is one from which clients adapt well by a gradient step. A local step is
w <- w - beta grad f_i(w - alpha grad f_i(w; D); D') with two mini-batches: the factor
I - alpha Hessian of the exact gradient is left out, which the paper calls FO (Sec. 4.1).

Readings. A mini-batch counts as one in a client's epochs, so that `local_epochs` counts each
example twice. A client's personal model is the server's after a step of rate alpha on all of the
client's examples; it is evaluated if the problem has `client_loss`, with the noise of one key. A
local step has two gradients here and takes as long as a step with one.
"""

from collections.abc import Callable

import optax

from fedjax_sim.clients import (
    BatchGradient,
    LocalTraining,
    adapted_metrics,
    batch_gradient,
    local_training,
)
from fedjax_sim.core.settings import AtLeast0, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Losses, Params, Plan, Problem, Work
from fedjax_sim.server import Reports, RoundState, Wire
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, Reports):
    """Settings of Per-FedAvg: its rounds, local training, messages, and the adaptation."""

    adapting_lr: AtLeast0 = setting(0.01, "Learning rate of the step that adapts a model, alpha.")


def gradient(
    problem: Losses, hyper: Hyper, key: Key, client: Array, offset: Array
) -> BatchGradient:
    """Gradient at the adapted model, on the second of a step's two mini-batches."""
    slope = batch_gradient(problem, hyper, key, client, 2 * offset)

    def after_step(model: Params, q: Array) -> Params:
        adapted = optax.tree.add_scale(model, -hyper.adapting_lr, slope(model, 2 * q))
        return slope(adapted, 2 * q + 1)

    return after_step


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind Per-FedAvg to a problem."""
    wire = Wire(problem, hyper, plan)
    train = local_training(problem, hyper, plan, gradient=gradient)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return RoundState(server, memo=wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        total = wire.total(event)
        local, work = train(key, event, start=wire.received(state), total=total)
        server, memo = wire.average(key, event, state, local, total=total)
        return RoundState(server, memo=memo), work.and_more(times=2)

    def metrics(state: RoundState) -> dict[str, Array]:
        start = wire.received(state)

        def adapt(slope: Callable[[Params], Params]) -> Params:
            return optax.tree.add_scale(start, -hyper.adapting_lr, slope(start))

        return {**adapted_metrics(problem, adapt), **wire.metrics(state)}

    return wire.algorithm(init, step, metrics=metrics)


SUMMARY = "federated averaging of a model from which clients adapt well by a gradient step"
system = cohort_system("perfedavg", Hyper, algorithm, SUMMARY)
paper = system.paper
