"""APFL (Deng, Kamani and Mahdavi 2020, arXiv 2003.13461), Algorithm 1, in rounds with a clock.

    w^(t) -> `state.server`    v_i, alpha_i -> `state.clients`    w_i -> `shared`
    eta_t -> `hyper.lr`    tau -> `hyper.local_steps`    U_t -> `event.clients`

Every client has a model v_i that it mixes with the global one: vbar_i = alpha_i v_i +
(1 - alpha_i) w_i is its personal model. A local step follows the gradients of f_i(w_i) in w_i and
of f_i(vbar_i) in v_i, which is alpha_i grad f_i(vbar_i), on one mini-batch; w_i is FedAvg's local
model, and only it is sent. With `adaptive`, a step also follows the derivative in alpha_i,
<v_i - w_i, grad f_i(vbar_i)>.

Readings. alpha_i is updated in every local step, with the same optimizer and learning rate; it is
used, and kept for the client's next round, as the nearest number from 0 to 1. All v_i begin as the
first global model. Personal models are evaluated with the newest global model as clients know it.
A local step has two gradients here and takes as long as a step with one.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_sim import clients
from fedjax_sim.clients import BatchGradient, LocalTraining, local_training, rows
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import Probability, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Losses, Params, Plan, Problem, Work
from fedjax_sim.server import PrivateReports, RoundState, Wire
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, PrivateReports):
    """Settings of APFL: its rounds, local training, messages, and the mixture of models."""

    personal_share: Probability = setting(0.5, "Share of own models in personal ones, alpha.")
    adaptive: bool = setting(False, "Whether clients adapt that share by gradient steps.")

    def mixed(self, shared: Params, own: Params, share: Params) -> tuple[Params, Array]:
        """Mixture of two models, and alpha. share: alpha_i, () if clients do not adapt it."""
        alpha = jnp.clip(share, 0, 1) if self.adaptive else jnp.asarray(self.personal_share)
        mixture = jax.tree.map(lambda w, v: w + alpha.astype(v.dtype) * (v - w), shared, own)
        return mixture, alpha


def gradient(
    problem: Losses, hyper: Hyper, key: Key, client: Array, offset: Array
) -> BatchGradient:
    """Gradients for w_i, v_i and alpha_i of a client's steps, on the same mini-batches."""
    slope = clients.batch_gradient(problem, hyper, key, client, offset)

    def of_all(models: Params, q: Array) -> Params:
        shared, own, share = models
        mixture, alpha = hyper.mixed(shared, own, share)
        inner = slope(mixture, q)
        of_share = optax.tree.vdot(optax.tree.sub(own, shared), inner) if hyper.adaptive else ()
        return slope(shared, q), optax.tree.scale(alpha, inner), of_share

    return of_all


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind APFL to a problem. A client's rows are v_i and, if it adapts, alpha_i."""
    wire = Wire(problem, hyper, plan, train=local_training)
    train = local_training(problem, hyper, plan, gradient=gradient)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        share = jnp.asarray(hyper.personal_share) if hyper.adaptive else ()
        kept = replicate((server, share), problem.counts.shape[0])
        return RoundState(server, (), kept, wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = replicate(wire.received(state), event.clients.shape[0])
        kept = rows.read_clients(state.clients, event.clients)
        (shared, own, share), work = train(key, event, starts=(start, *kept))
        share = jax.tree.map(lambda alpha: jnp.clip(alpha, 0, 1), share)
        server, memo = wire.average(key, event, state, shared)
        kept = rows.write_clients(state.clients, event.clients, (own, share))
        return RoundState(server, (), kept, memo), work.and_more(times=2)

    def personal(state: RoundState, client: Array) -> Params:
        return hyper.mixed(wire.received(state), *rows.read_rows(state.clients, client))[0]

    def metrics(state: RoundState) -> dict[str, Array]:
        return clients.personal_metrics(problem, partial(personal, state)) | wire.metrics(state)

    def client_models(state: RoundState) -> tuple[Params, Array]:
        everyone = jnp.arange(problem.counts.shape[0])
        return jax.vmap(partial(personal, state))(everyone), jnp.ones(len(everyone))

    return wire.algorithm(init, step, metrics=metrics, client_models=client_models)


SUMMARY = "federated averaging, and a mixture of its model with one of every client's own"
system = cohort_system("apfl", Hyper, algorithm, SUMMARY)
paper = system.paper
