"""pFedMe (Dinh, Tran and Nguyen 2020, arXiv 2006.08848), Algorithm 1, in rounds with a clock.

    w_t -> `state.server`    w_{i,r} -> `local`    R -> `hyper.local_steps`    eta -> `hyper.lr`
    S_t -> `event.clients`    lambda -> `hyper.pull`    beta -> `hyper.server_lr`
    K -> `hyper.personal_steps`    theta_i -> `near`, by steps of size `hyper.personal_lr`

Clients minimise the envelope F_i(w) = min over theta of f_i(theta) + lambda / 2 ||theta - w||^2,
whose gradient is lambda (w - theta_i(w)). In a local step K gradient steps on one mini-batch make
theta_i, and then w <- w - eta lambda (w - theta_i). The server's model is
w_{t+1} = (1 - beta) w_t + beta mean over S_t of w_{i,R}.

Readings. The paper asks for theta_i to an accuracy nu by any method: here these are K steps of
plain descent that start at w. In Algorithm 1 all clients train and the server then draws S_t; here
the others do not train, which changes no model. A client's personal model is theta_i at the
server's model, by K steps on all of the client's examples; it is evaluated if the problem has
`client_loss`, with the noise of one key. A local step has K gradients here and takes as long as a
step with one.
"""

from collections.abc import Callable

import jax
import optax

from fedjax_sim.clients import (
    BatchGradient,
    LocalTraining,
    adapted_metrics,
    batch_gradient,
    local_training,
)
from fedjax_sim.core.settings import Above0, Count, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Losses, Params, Plan, Problem, Work
from fedjax_sim.server import Reports, RoundState, Wire
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, Reports):
    """Settings of pFedMe: its rounds, local training, messages, and the personal models."""

    pull: Above0 = setting(15.0, "Pull of personal models to the local one, lambda.")
    personal_steps: Count = setting(5, "Gradient steps that make a personal model, K.")
    personal_lr: Above0 = setting(0.01, "Learning rate of these steps.")
    server_lr: Above0 = setting(1.0, "Learning rate of the server, beta.")

    def near(self, slope: Callable[[Params], Params], model: Params) -> Params:
        """Personal model theta near a model w, by gradient steps. slope: gradient of the loss."""

        def step(_: Array, theta: Params) -> Params:
            def moved(x: Array, g: Array, w: Array) -> Array:
                return x - self.personal_lr * (g + self.pull * (x - w))

            return jax.tree.map(moved, theta, slope(theta), model)

        return jax.lax.fori_loop(0, self.personal_steps, step, model)


def gradient(
    problem: Losses, hyper: Hyper, key: Key, client: Array, offset: Array
) -> BatchGradient:
    """Gradient of a client's envelope, lambda (w - theta)."""
    slope = batch_gradient(problem, hyper, key, client, offset)

    def of_envelope(model: Params, q: Array) -> Params:
        near = hyper.near(lambda theta: slope(theta, q), model)
        return optax.tree.scale(hyper.pull, optax.tree.sub(model, near))

    return of_envelope


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind pFedMe to a problem."""
    wire = Wire(problem, hyper, plan)
    train = local_training(problem, hyper, plan, gradient=gradient)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return RoundState(server, memo=wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        total = wire.total(event, of_progress=True)
        local, work = train(key, event, start=wire.received(state), total=total)
        progress, memo = wire.progress(key, event, state, local, total=total)
        server = optax.tree.add_scale(state.server, hyper.server_lr, progress)
        memo = wire.publish(key, event, memo, server)
        return RoundState(server, memo=memo), work.and_more(times=hyper.personal_steps)

    def metrics(state: RoundState) -> dict[str, Array]:
        start = wire.received(state)
        own = adapted_metrics(problem, lambda slope: hyper.near(slope, start))
        return {**own, **wire.metrics(state)}

    return wire.algorithm(init, step, metrics=metrics)


SUMMARY = "federated averaging of envelopes, with personal models near the server's"
system = cohort_system("pfedme", Hyper, algorithm, SUMMARY)
paper = system.paper
