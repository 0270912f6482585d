"""Rounds in which clients have models that are theirs, in part or as a whole.

Clients keep some leaves of the model (FedPer, FedRep, FedBN), a second model (Ditto, APFL), or the
number of one of the server's models (IFCA); or they adapt the server's model to their data (pFedMe,
Per-FedAvg).
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_sim import clients
from fedjax_sim.clients import BatchGradient, LocalTraining, PersonalLeaves, batch_gradient, rows
from fedjax_sim.core import settings, trees
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import Above0, AtLeast0, Count, Whole, redefault, setting, struct
from fedjax_sim.core.types import Array, Event, Key, Losses, Params, Plan, Problem, Work
from fedjax_sim.server import PrivateReports, ReportMessages, Reports, Rounds, RoundState, Wire
from fedjax_sim.server.aggregation import ServerStep, weighted_sum, where_slots
from fedjax_sim.timelines import CohortRounds, cohort_system


def own_of(state: RoundState, client: Array) -> Params:
    """Row of one client, who is known to be there, leaves `[...]`. No mask is needed for it."""
    known = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
    return jax.tree.map(lambda leaf: leaf.at[client].get(**known), state.clients)


# FedPer, FedRep and FedBN: clients keep leaves of the model.


@struct
class FedPer(CohortRounds, LocalTraining, PersonalLeaves, ServerStep, Reports):
    """FedPer (Arivazhagan et al., arXiv 1912.00818) and FedRep (Collins et al., arXiv 2102.07078).

        W_B -> the shared leaves of `state.server`    W_{P_j} -> `state.clients`
        personal leaves -> those whose path `hyper.personal` matches    eta -> `hyper.lr`

    Some leaves of the model, its head, are personal: every client keeps its own and sends only the
    others, the body, which the server averages. In FedPer all leaves learn together. FedRep takes
    the first `head_steps` local steps with the head alone and the others with the body alone.

    Deviation: both papers draw every client's head at random. Here all heads begin as the first
    model's, so that clients differ by their data alone.

    Readings. The model that is evaluated on everybody's test examples has the mean of all heads,
    which no client uses; personal models are the body as clients know it with their own head, and
    are evaluated on each client's own kind of test examples, see `fedjax_sim.core.types.Problem`.
    In FedRep, gradients of leaves whose turn it is not are 0; a local optimizer with momentum or
    weight decay moves these leaves all the same.
    """

    head_steps: Whole = setting(
        0, "First local steps, which change the head alone (FedRep); 0 for FedPer."
    )

    def check_together(self) -> None:
        """Check that the body has local steps left."""
        super().check_together()
        if not self.local_epochs and 0 < self.local_steps <= self.head_steps:
            allowed = f"below local_steps = {self.local_steps}, as the others change the body"
            raise settings.ConfigError("head_steps", self.head_steps, allowed)


@struct
class FedBN(FedPer):
    """FedBN (Li et al. 2021, arXiv 2102.07623), Algorithm 1: local batch normalisation.

        w_t -> the shared leaves of `state.server`    w_{k, BN} -> `state.clients`
        E -> `hyper.local_steps`    eta -> `hyper.lr`

    Every client keeps the parameters and the running statistics of its normalisation layers, and
    the server averages all other leaves. It is FedPer with other personal leaves: those of layers
    whose name has "norm", such as BatchNorm_0, or begins with "bn".

    Deviation: in Algorithm 1 all clients take part in every round, which is `num_selected` equal to
    `num_clients`.
    """

    personal: str | Callable[[str], bool] = redefault(FedPer, "personal", r"(?i)norm|(^|/)bn")


def with_personal_leaves(problem: Problem, hyper: FedPer, plan: Plan) -> Rounds:
    """Bind FedPer to a problem. The state has None in place of leaves of the other kind."""
    wire = Wire(problem, hyper, plan)

    def in_turn(gradient: Params, model: Params, q: Array, start: Params) -> Params:
        is_first, own = q < hyper.head_steps, hyper.are_personal(model)
        return jax.tree.map(lambda g, is_own: jnp.where(is_first == is_own, g, 0), gradient, own)

    direction = in_turn if hyper.head_steps else None
    train = clients.local_training(problem, hyper, plan, direction=direction, is_elementwise=True)

    def init(key: Key) -> RoundState:
        shared, own = hyper.split(problem.init(key))
        return wire.first_round(shared, replicate(own, problem.counts.shape[0]))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        shared = replicate(wire.received(state), event.clients.shape[0])
        own = rows.read_clients(state.clients, event.clients)
        local, work = train(key, event, starts=trees.join(shared, own), own=own)
        shared, own = hyper.split(local)
        kept = rows.write_clients(state.clients, event.clients, own)
        return wire.advance(key, event, state, shared)._replace(clients=kept), work

    def model(state: RoundState) -> Params:
        return trees.join(state.server, jax.tree.map(lambda leaf: leaf.mean(axis=0), state.clients))

    def personal(state: RoundState, client: Array) -> Params:
        return trees.join(wire.received(state), own_of(state, client))

    return wire.algorithm(init, step, personal, model=model)


BODY = ReportMessages(lambda params, hyper: hyper.split(params)[0])
SUMMARY = "federated averaging of a shared body; every client keeps its own head"
fedper = cohort_system("fedper", FedPer, with_personal_leaves, SUMMARY, messages=BODY)
SUMMARY = "federated averaging in which every client keeps its own normalisation layers"
fedbn = cohort_system("fedbn", FedBN, with_personal_leaves, SUMMARY, messages=BODY)


# Ditto and APFL: clients keep a second model.


@struct
class Ditto(CohortRounds, LocalTraining, ServerStep, PrivateReports):
    """Ditto (Li et al. 2021, arXiv 2012.04221), Algorithm 1 with FedAvg for the global model.

        w^t -> `state.server`    v_k -> `state.clients`    S_t -> `event.clients`
        lambda -> `hyper.attachment`    eta -> `hyper.lr`

    Every client has a model of its own, v_k, which it pulls to the global one: v_k <- v_k - eta
    (grad F_k(v_k) + lambda (v_k - w^t)). The global model is FedAvg's and does not know of the
    others. Personal models are evaluated on each client's own kind of test examples; see
    `fedjax_sim.core.types.Problem`.

    Deviation: Algorithm 1 has a number of steps s of its own for personal models, and draws their
    mini-batches for themselves. Here both models of a client take as many steps, at one learning
    rate and on the same mini-batches, because a schedule counts one number of steps for a client.

    Readings. Personal models begin as copies of the first global model. They are pulled to w^t as
    the client knows it, which differs from the server's with a compressed downlink.
    """

    attachment: AtLeast0 = setting(0.1, "Pull of personal models to the global one, lambda.")


def with_pulled_models(problem: Problem, hyper: Ditto, plan: Plan) -> Rounds:
    """Bind Ditto to a problem."""
    wire = Wire(problem, hyper, plan, train=clients.local_training)
    train = clients.local_training(problem, hyper, plan)

    def pulled(g: Params, v: Params, q: Array, start: Params, w: Params) -> Params:
        return jax.tree.map(lambda g, v, w: g + hyper.attachment * (v - w), g, v, w)

    personalise = clients.local_training(
        problem, hyper, plan, direction=pulled, is_elementwise=True, proximal=0
    )

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return wire.first_round(server, replicate(server, problem.counts.shape[0]))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)  # w^t
        total = wire.total(event)
        own = rows.read_clients(state.clients, event.clients)  # v_k
        local, work = train(key, event, start=start, own=own, total=total)
        target = replicate(start, event.clients.shape[0])
        own, more = personalise(key, event, starts=own, own=own, extras=(target,))
        kept = rows.write_clients(state.clients, event.clients, own)
        after = wire.advance(key, event, state, local, total=total)
        return after._replace(clients=kept), work.and_more(more)

    return wire.algorithm(init, step, own_of)


SUMMARY = (
    "federated averaging, and a personal model of every client that is pulled to the global one"
)
ditto = cohort_system("ditto", Ditto, with_pulled_models, SUMMARY)


@struct
class APFL(CohortRounds, LocalTraining, ServerStep, PrivateReports):
    """APFL (Deng, Kamani and Mahdavi 2020, arXiv 2003.13461), Algorithm 1, in rounds with a clock.

        w^(t) -> `state.server`    v_i, alpha_i -> `state.clients`    w_i -> `shared`
        eta_t -> `hyper.lr`    tau -> `hyper.local_steps`    U_t -> `event.clients`

    Every client has a model v_i that it mixes with the global one: vbar_i = alpha_i v_i + (1 -
    alpha_i) w_i is its personal model. A local step follows the gradients of f_i(w_i) in w_i and of
    f_i(vbar_i) in v_i, which is alpha_i grad f_i(vbar_i), on one mini-batch; w_i is FedAvg's local
    model, and only it is sent. With `adaptive`, a step also follows the derivative in alpha_i, <v_i
    - w_i, grad f_i(vbar_i)>.

    Readings. alpha_i is updated in every local step, with the same optimizer and learning rate; it
    is used, and kept for the client's next round, as the nearest number from 0 to 1. All v_i begin
    as the first global model. Personal models are evaluated with the newest global model as clients
    know it. A local step has two gradients here and takes as long as a step with one.
    """

    personal_share: settings.Probability = setting(
        0.5, "Share of own models in personal ones, alpha."
    )
    adaptive: bool = setting(False, "Whether clients adapt that share by gradient steps.")

    def mixed(self, shared: Params, own: Params, share: Params) -> tuple[Params, Array]:
        """Mixture of two models, and alpha. share: alpha_i, () if clients do not adapt it."""
        alpha = jnp.clip(share, 0, 1) if self.adaptive else jnp.asarray(self.personal_share)
        mixture = jax.tree.map(lambda w, v: w + alpha.astype(v.dtype) * (v - w), shared, own)
        return mixture, alpha

    def gradient(self, problem: Losses, key: Key, client: Array, offset: Array) -> BatchGradient:
        """Gradients for w_i, v_i and alpha_i of a client's steps, on the same mini-batches."""
        slope = batch_gradient(problem, self, key, client, offset)

        def of_all(models: Params, q: Array) -> Params:
            shared, own, share = models
            mixture, alpha = self.mixed(shared, own, share)
            inner = slope(mixture, q)
            of_share = optax.tree.vdot(optax.tree.sub(own, shared), inner) if self.adaptive else ()
            return slope(shared, q), optax.tree.scale(alpha, inner), of_share

        return of_all


def with_mixed_models(problem: Problem, hyper: APFL, plan: Plan) -> Rounds:
    """Bind APFL to a problem. A client's rows are v_i and, if it adapts, alpha_i."""
    wire = Wire(problem, hyper, plan, train=clients.local_training)
    train = clients.local_training(problem, hyper, plan, gradient=gradient_of)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        share = jnp.asarray(hyper.personal_share) if hyper.adaptive else ()
        return wire.first_round(server, replicate((server, share), problem.counts.shape[0]))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = replicate(wire.received(state), event.clients.shape[0])
        kept = rows.read_clients(state.clients, event.clients)
        (shared, own, share), work = train(key, event, starts=(start, *kept))
        share = jax.tree.map(lambda alpha: jnp.clip(alpha, 0, 1), share)
        kept = rows.write_clients(state.clients, event.clients, (own, share))
        after = wire.advance(key, event, state, shared)
        return after._replace(clients=kept), work.and_more(times=2)

    def personal(state: RoundState, client: Array) -> Params:
        return hyper.mixed(wire.received(state), *own_of(state, client))[0]

    return wire.algorithm(init, step, personal)


SUMMARY = "federated averaging, and a mixture of its model with one of every client's own"
apfl = cohort_system("apfl", APFL, with_mixed_models, SUMMARY)


# pFedMe and Per-FedAvg: clients adapt the server's model.


@struct
class PFedMe(CohortRounds, LocalTraining, ServerStep, PrivateReports):
    """pFedMe (Dinh, Tran and Nguyen 2020, arXiv 2006.08848), Algorithm 1, in rounds with a clock.

        w_t -> `state.server`    w_{i,r} -> `local`    R -> `hyper.local_steps`    eta -> `hyper.lr`
        S_t -> `event.clients`    lambda -> `hyper.pull`    beta -> `hyper.server_lr`
        K -> `hyper.personal_steps`    theta_i -> `near`, by steps of size `hyper.personal_lr`

    Clients minimise the envelope F_i(w) = min over theta of f_i(theta) + lambda / 2 ||theta -
    w||^2, whose gradient is lambda (w - theta_i(w)). In a local step K gradient steps on one
    mini-batch make theta_i, and then w <- w - eta lambda (w - theta_i). The server's model is
    w_{t+1} = (1 - beta) w_t + beta mean over S_t of w_{i,R}.

    Readings. The paper asks for theta_i to an accuracy nu by any method: here these are K steps of
    plain descent that start at w. In Algorithm 1 all clients train and the server then draws S_t;
    here the others do not train, which changes no model. A client's personal model is theta_i at
    the server's model, by K steps on all of the client's examples; it is evaluated if the problem
    has `client_loss`, with the noise of one key, and K passes over all examples for each evaluation
    can take longer than the training. A local step has K gradients here and takes as long as a step
    with one.
    """

    pull: Above0 = setting(15.0, "Pull of personal models to the local one, lambda.")
    personal_steps: Count = setting(5, "Gradient steps that make a personal model, K.")
    personal_lr: Above0 = setting(0.01, "Learning rate of these steps.")
    server_optimizer: Callable[..., optax.GradientTransformation] | None = redefault(
        ServerStep, "server_optimizer", optax.sgd
    )

    @property
    def num_gradients(self) -> int:
        """Gradients of a local step."""
        return self.personal_steps

    def adapted(self, slope: Callable[[Params], Params], model: Params) -> Params:
        """Personal model theta near a model w, by gradient steps. slope: gradient of the loss."""

        def step(_: Array, theta: Params) -> Params:
            def moved(x: Array, g: Array, w: Array) -> Array:
                return (x - self.personal_lr * (g + self.pull * (x - w))).astype(x.dtype)

            return jax.tree.map(moved, theta, slope(theta), model)

        return jax.lax.fori_loop(0, self.personal_steps, step, model)

    def gradient(self, problem: Losses, key: Key, client: Array, offset: Array) -> BatchGradient:
        """Gradient of a client's envelope, lambda (w - theta)."""
        slope = batch_gradient(problem, self, key, client, offset)

        def of_envelope(model: Params, q: Array) -> Params:
            near = self.adapted(lambda theta: slope(theta, q), model)
            return optax.tree.scale(self.pull, optax.tree.sub(model, near))

        return of_envelope


@struct
class PerFedAvg(CohortRounds, LocalTraining, ServerStep, PrivateReports):
    """Per-FedAvg (Fallah, Mokhtari and Ozdaglar 2020, arXiv 2002.07948), Algorithm 1, first order.

        w_k -> `state.server`    alpha -> `hyper.adapting_lr`    beta -> `hyper.lr`
        tau -> `hyper.local_steps`    A_k -> `event.clients`
        D, D' -> mini-batches 2 q and 2 q + 1

    The server's model is one from which clients adapt well by a gradient step. A local step is
    w <- w - beta grad f_i(w - alpha grad f_i(w; D); D') with two mini-batches: the factor
    I - alpha Hessian of the exact gradient is left out, which the paper calls FO (Sec. 4.1).

    Readings. A mini-batch counts as one in a client's epochs, so that `local_epochs` counts each
    example twice. A client's personal model is the server's after a step of rate alpha on all of
    the client's examples; it is evaluated if the problem has `client_loss`, with the noise of one
    key, which is a pass over all examples for each evaluation. A local step has two gradients here
    and takes as long as a step with one.
    """

    num_gradients: ClassVar[int] = 2
    """Gradients of a local step."""
    adapting_lr: AtLeast0 = setting(0.01, "Learning rate of the step that adapts a model, alpha.")

    def adapted(self, slope: Callable[[Params], Params], model: Params) -> Params:
        """Model after the step that adapts it. slope: gradient of the loss."""
        return optax.tree.add_scale(model, -self.adapting_lr, slope(model))

    def gradient(self, problem: Losses, key: Key, client: Array, offset: Array) -> BatchGradient:
        """Gradient at the adapted model, on the second of a step's two mini-batches."""
        slope = batch_gradient(problem, self, key, client, 2 * offset)

        def after_step(model: Params, q: Array) -> Params:
            adapted = self.adapted(lambda w: slope(w, 2 * q), model)
            return slope(adapted, 2 * q + 1)

        return after_step


def gradient_of(
    problem: Losses, hyper: APFL | PFedMe | PerFedAvg, key: Key, client: Array, offset: Array
) -> BatchGradient:
    """Gradient of a client's steps that the settings define."""
    return hyper.gradient(problem, key, client, offset)


def with_adapted_models(problem: Problem, hyper: PFedMe | PerFedAvg, plan: Plan) -> Rounds:
    """Bind pFedMe or Per-FedAvg to a problem."""
    wire = Wire(problem, hyper, plan)
    train = clients.local_training(problem, hyper, plan, gradient=gradient_of)

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        total = wire.total(event)
        local, work = train(key, event, start=wire.received(state), total=total)
        after = wire.advance(key, event, state, local, total=total)
        return after, work.and_more(times=hyper.num_gradients)

    def metrics(state: RoundState) -> dict[str, Array]:
        adapt = partial(hyper.adapted, model=wire.received(state))
        return clients.adapted_metrics(problem, adapt) | wire.metrics(state)

    return wire.algorithm(lambda key: wire.first_round(problem.init(key)), step, metrics=metrics)


SUMMARY = "federated averaging of envelopes, with personal models near the server's"
pfedme = cohort_system("pfedme", PFedMe, with_adapted_models, SUMMARY)
SUMMARY = "federated averaging of a model from which clients adapt well by a gradient step"
perfedavg = cohort_system("perfedavg", PerFedAvg, with_adapted_models, SUMMARY)


# IFCA: clients keep the number of one of the server's models.


@struct
class IFCA(CohortRounds, LocalTraining, clients.WholeGradients, Reports):
    """IFCA (Ghosh, Chung, Yin and Ramchandran 2020, arXiv 2006.04088), Algorithm 1, option II.

        theta_j -> row j of `state.server`    k -> `hyper.num_models`    M_t -> `event.clients`
        j of client i -> `state.clients`    gamma -> `hyper.lr`    tau -> `hyper.local_steps`

    The server has k models, one for each cluster of clients, and sends all of them. A client finds
    the model with the smallest loss on its data, trains that one, and sends it with its number.
    Each model becomes the mean of those that were sent with its number, or stays if there are none
    (option II, model averaging).

    Deviation: losses of all of a client's examples need an additional pass. That is
    `client_losses="exact"`; "minibatch" takes the batch of the client's first local step instead.

    Readings. The paper draws first models at random, close enough to the clusters': here the first
    is the problem's first model, as in other systems, and the others are further draws of it, which
    only differ if the problem draws it at random. Means within a cluster have the weights of the
    round; other rules are refused, because a cluster may have too few messages for them. Personal
    models are those of the clusters that clients last found, of the first before. The model that is
    evaluated on everybody's test examples is the mean of all k, which no client uses.
    """

    gradient_setting = "client_losses"
    tells = "their clusters"
    num_models: Count = setting(2, "Clusters of clients, each with a model of the server's, k.")
    client_losses: Literal["exact", "minibatch"] = setting(
        "exact", "Losses of clients, which tell clusters: of all examples or the next mini-batch."
    )


def with_clusters(problem: Problem, hyper: IFCA, plan: Plan) -> Rounds:
    """Bind IFCA to a problem."""
    wire = Wire(problem, hyper, plan)
    train = clients.local_training(problem, hyper, plan)
    losses_of = clients.losses_at(problem, hyper, plan, is_exact=hyper.client_losses == "exact")
    clusters = range(hyper.num_models)

    def init(key: Key) -> RoundState:
        if hyper.num_models > 1 and getattr(type(problem), "is_given", False):
            allowed = f"None with num_models = {hyper.num_models}, which would all be that model"
            raise settings.ConfigError("start", "given", allowed)
        first = problem.init(key)
        others = [problem.init(jax.random.fold_in(key, j)) for j in clusters[1:]]
        server = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, *others)
        found = jnp.zeros(problem.counts.shape, "int32")
        return RoundState(server, (), found, wire.first(server, report=first))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        models = wire.received(state)  # theta_j, leaves [k, ...]
        each = [losses_of(key, event, rows.read_rows(models, jnp.int32(j))) for j in clusters]
        losses = jnp.stack([losses for losses, _ in each])
        cluster = jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses), axis=0)
        starts = rows.read_rows(models, cluster)
        local, work = train(key, event, starts=starts)
        reports, memo = wire.receive(key, event, state.memo, starts, local)

        is_heard = wire.senders.finite_clients(event, reports) >= 0
        moved = optax.tree.sub(where_slots(is_heard, reports, starts), starts)

        def progress(j: int) -> Params:
            weight = jnp.where(is_heard & (cluster == j), event.weight, 0)
            share = weight / jnp.where(weight.sum() > 0, weight.sum(), 1)
            return weighted_sum(share, moved)

        changes = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(progress, clusters))
        server = optax.tree.add(state.server, changes)
        memo = wire.publish(key, event, memo, server)
        kept = rows.write_clients(state.clients, event.clients, cluster)
        return RoundState(server, (), kept, memo), work.and_more(*(more for _, more in each))

    def personal(state: RoundState, client: Array) -> Params:
        return rows.read_rows(wire.received(state), state.clients[client])

    def client_models(state: RoundState) -> tuple[Params, Array]:
        return wire.received(state), jnp.bincount(state.clients, length=hyper.num_models)

    def model(state: RoundState) -> Params:
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), state.server)

    return wire.algorithm(init, step, personal, model=model, client_models=client_models)


SUMMARY = "federated averaging of k models, of which each client trains the one that suits it best"
ifca = cohort_system(
    "ifca",
    IFCA,
    with_clusters,
    SUMMARY,
    messages=ReportMessages(
        down=lambda params, hyper: (params,) * hyper.num_models,
        number_bits=lambda params, hyper: (hyper.num_models - 1).bit_length(),
    ),
)
