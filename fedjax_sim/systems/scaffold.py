"""SCAFFOLD (Karimireddy et al. 2020, arXiv 1910.06378), Algorithm 1.

    x -> `state.server`    c -> `state.memory`    c_i -> `state.clients`    y_i -> `local`
    S -> `event.clients`   K -> `hyper.local_steps`    eta_l -> `hyper.lr`    eta_g -> `server_lr`

Every local step follows the gradient plus c - c_i, the difference between the server's and the
client's control variates, so that it goes where all clients would go together. All control variates
begin at 0. A client's new one is the gradient at the server's model (option I) or the mean gradient
of its local steps (option II). Messages both ways have a model and a control variate.

Deviation: option I asks for an additional pass over the client's data. That is `control="exact"`;
"minibatch" takes the batch of the client's first local step instead, which costs one gradient.

Readings. K differs between clients under `local_epochs`: option II divides by each client's own K.
With `weighting="examples"` the objective has weights p_i in proportion to examples; c is then the
mean of the c_i with these weights. With equal weights both are the paper's.

FedDyn and MimeLite are here too: their local steps are corrected as well, by the linear terms of a
regulariser and by a momentum of the server's.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_sim import clients
from fedjax_sim.clients import ClientTraining, LocalTraining, WholeGradients, local_training, rows
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import Above0, ConfigError, fixed, group, setting, struct
from fedjax_sim.core.types import EMPTY, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import ReportMessages, Reports, Rounds, RoundState, ServerRate, Wire, expand
from fedjax_sim.server.aggregation import keep_if_empty
from fedjax_sim.server.compression import Identity
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LocalTraining, WholeGradients, ServerRate, Reports):
    """Settings of SCAFFOLD: its rounds, local training, messages, and the control variates."""

    gradient_setting = "control"
    training: ClientTraining = group(
        ClientTraining(), clients.ABOUT_TRAINING, without=("optimizer", "optimizer_state")
    )
    control: Literal["steps", "exact", "minibatch"] = setting(
        "steps",
        'New control variate of a client: the mean gradient of its local steps ("steps"), or the '
        "gradient at the server's model, of all its examples or of a mini-batch.",
    )


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Rounds:
    """Bind SCAFFOLD to a problem."""
    share, wire = hyper.shares(problem.counts), Wire(problem, hyper, plan)
    gradient_at = clients.gradients_at(problem, hyper, plan, is_exact=hyper.control == "exact")
    # y_i <- y_i - eta_l (g_i(y_i) + c - c_i)
    train = local_training(problem, hyper, plan, is_corrected=True)

    def init(key: Key) -> RoundState:
        x = problem.init(key)
        c = optax.tree.zeros_like(x)
        return RoundState(x, c, replicate(c, problem.counts.shape[0]), wire.first((x, c)))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        # Local steps with the drift taken off.
        x, c = known_of(wire, state)
        before = rows.read_clients(state.clients, event.clients)  # c_i
        correction = jax.tree.map(lambda c, c_i: c[None] - c_i, c, before)
        local, work = train(key, event, start=x, own=before, extras=(correction,))
        # New control variates of the clients.
        moves = event.steps > 0  # nothing is learnt without a step, or at a rate of 0
        if hyper.control == "steps":  # c_i - c + (x - y_i) / (K eta_l)
            covered = hyper.rate_sums(event)
            moves, covered = moves & (covered > 0), jnp.where(covered > 0, covered, 1)
            slope = jax.tree.map(lambda x, y: (x[None] - y) / expand(covered, y), x, local)
            after = optax.tree.sub(slope, correction)
        else:
            after, more = gradient_at(key, event, x)
            work = work.and_more(more)
        # What the server hears of both, and its new model and control variate.
        starts = (replicate(x, event.clients.shape[0]), before)
        (local, after), memo = wire.receive(key, event, state.memo, starts, (local, after))
        finite_clients = wire.senders.finite_clients(event, (local, after))
        learns = jnp.where(moves, finite_clients, EMPTY)
        moved = optax.tree.sub((local, after), starts)
        progress, _ = wire.sum(key, event, moved)
        _, gain = wire.sum(key, event, moved, weight=share[learns] * (learns >= 0))
        x, _ = wire.step(event, state.server, progress)
        c = optax.tree.add(state.memory, gain)  # c + (1 / N) sum_i (c_i+ - c_i)
        memo = wire.publish(key, event, memo, (x, c))
        return RoundState(x, c, rows.write_clients(state.clients, learns, after), memo), work

    return wire.algorithm(init, step, received=lambda state: known_of(wire, state)[0])


def known_of(wire: Wire, state: RoundState) -> tuple[Params, Params]:
    """Model and memory of the server as clients know them, where both are sent."""
    known: tuple[Params, Params] = wire.start(state.memo, (state.server, state.memory))
    return known


TWO = ReportMessages(lambda params, hyper: (params, params))
SUMMARY = "federated averaging whose control variates correct the drift of local steps"
system = cohort_system("scaffold", Hyper, algorithm, SUMMARY, messages=TWO)
paper = system.paper


@struct
class FedDyn(CohortRounds, LocalTraining, Reports):
    """FedDyn (Acar et al. 2021, arXiv 2111.04263), Algorithm 1.

        theta^t -> `state.server`    h^t -> `state.memory`    alpha -> `hyper.regularization`
        theta_k -> `local`           P_t -> `event.clients`   grad L_k(theta_k) -> `state.clients`

    Client k minimises L_k(theta) - <g_k, theta> + alpha / 2 ||theta - theta^{t-1}||^2, here by
    local steps, where g_k is the gradient of its loss where it last stopped: g_k <- g_k - alpha
    (theta_k - theta^{t-1}). The server's memory is h <- h - alpha / m sum_k (theta_k -
    theta^{t-1}), and its model is the mean of the theta_k less h / alpha. If clients solve their
    problems exactly, the fixed point is the minimum of the mean loss, however much they differ.

    Deviation: Algorithm 1 lets clients solve their problems exactly, and only then is g_k the
    gradient at theta_k. Here they take local steps, as in the paper's experiments, because exact
    minima are not to be had; g_k and h then follow the formulas.

    Readings. With `weighting="examples"` the sum over clients, 1 / m sum_k, has weights in
    proportion to examples. With a compressed downlink theta^{t-1} is what the clients know of it.
    """

    regularization: Above0 = setting(0.1, "Strength of the dynamic regulariser, alpha.")
    proximal: float = fixed(0.0)


def regularised(problem: Problem, hyper: FedDyn, plan: Plan) -> Rounds:
    """Bind FedDyn to a problem."""
    share, alpha = hyper.shares(problem.counts), hyper.regularization
    wire = Wire(problem, hyper, plan)
    # g - g_k + alpha (theta - theta^{t-1})
    train = local_training(problem, hyper, plan, is_corrected=True, proximal=alpha)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        zero = optax.tree.zeros_like(server)
        slopes = replicate(zero, problem.counts.shape[0])
        return RoundState(server, zero, slopes, wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)  # theta^{t-1}
        linear = rows.read_clients(state.clients, event.clients)  # g_k
        extras = (optax.tree.scale(-1, linear),)
        local, work = train(key, event, start=start, own=linear, extras=extras)
        starts = replicate(start, event.clients.shape[0])
        local, memo = wire.receive(key, event, state.memo, starts, local)
        moved = optax.tree.sub(local, starts)
        linear = optax.tree.add_scale(linear, -alpha, moved)
        of_all = wire.sum(key, event, moved, weight=share[event.clients] * (event.clients >= 0))
        memory = optax.tree.add_scale(state.memory, -alpha, wire.of_trained(of_all))  # h^t
        server = optax.tree.add_scale(wire.mean(key, event, start, local), -1 / alpha, memory)
        server = keep_if_empty(event, server, state.server)
        memo = wire.publish(key, event, memo, server)
        finite_clients = wire.senders.finite_clients(event, local)
        kept = rows.write_clients(state.clients, finite_clients, linear)
        return RoundState(server, memory, kept, memo), work

    return wire.algorithm(init, step)


SUMMARY = "federated averaging whose local losses are regularised so that their minima agree"
feddyn = cohort_system("feddyn", FedDyn, regularised, SUMMARY)


@struct
class MimeLite(CohortRounds, clients.BaseOptimizer, WholeGradients, Reports):
    """MimeLite (Karimireddy et al. 2021, arXiv 2008.03606), Algorithm 1.

        x -> `state.server`    s -> `state.memory`    y_i -> `local`    S -> `event.clients`
        U, V -> the two results of the base optimizer's `update`        eta -> `hyper.lr`

    The statistics s of a base optimizer, such as its momentum, belong to the server. Local steps
    y_i <- y_i - eta U(g_i(y_i), s) use them and do not change them; after the round they are
    updated with the clients' mean gradient at the server's model, s <- V(mean grad f_i(x), s). Up,
    a message is a local model and a gradient; down, the model and the statistics. By default the
    base is SGD with momentum in the paper's form, U = beta s + (1 - beta) g = V.

    Deviation: the paper's Adam divides by the square root of the server's second moment as it is,
    and corrects no bias. Any optax optimizer may be the base here, and with optax's Adam a local
    step divides by the second moment to which its own gradient is added, with the bias corrected.
    Otherwise the first round, where the server has no moments yet, would divide by nothing but
    epsilon.

    Deviation: gradients at x are of all of a client's examples, as in the paper, or with
    `gradient="minibatch"` of the batch of its first local step, which costs one gradient.
    """

    gradient: Literal["minibatch", "exact"] = setting(
        "exact", "Gradients of a mini-batch or of all examples, at the server's model."
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        if not self.has_momentum and not isinstance(self.messages.downlink, Identity):
            allowed = "identity unless the optimizer is sgd: other statistics may not be rounded"
            raise ConfigError("messages.downlink", str(self.messages.downlink), allowed)


def with_frozen_statistics(problem: Problem, hyper: MimeLite, plan: Plan) -> Rounds:
    """Bind MimeLite to a problem."""
    base, wire = hyper.local_optimizer(), Wire(problem, hyper, plan)
    train = clients.frozen_training(problem, hyper, plan)
    gradient_at = clients.gradients_at(problem, hyper, plan, is_exact=hyper.gradient == "exact")

    def init(key: Key) -> RoundState:
        x = problem.init(key)
        s = base.init(x)
        return RoundState(x, s, memo=wire.first((x, s), report=(x, x)))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        x, s = known_of(wire, state)
        local, work = train(key, event, x, s)  # y_i <- y_i - eta U(g_i(y_i), s)
        slopes, more = gradient_at(key, event, x)
        starts = replicate(x, event.clients.shape[0]), jax.tree.map(jnp.zeros_like, slopes)
        (local, slopes), memo = wire.receive(key, event, state.memo, starts, (local, slopes))
        nowhere = jax.tree.map(jnp.zeros_like, x)
        mean, slope = wire.mean(key, event, (x, nowhere), (local, slopes))
        _, s = base.update(slope, state.memory, state.server)  # V
        if wire.downlink.is_on:  # What clients have not heard yet stays with the server.
            mean = jax.tree.map(lambda w, end, begin: w + (end - begin), state.server, mean, x)
        x, s = mean, keep_if_empty(event, s, state.memory)  # without reports, the mean is x
        memo = wire.publish(key, event, memo, (x, s))
        return RoundState(x, s, memo=memo), work.and_more(more)

    return wire.algorithm(init, step, received=lambda state: known_of(wire, state)[0])


def message(params: Params, hyper: MimeLite) -> Params:
    """Message of the server: its model and the statistics."""
    return params, jax.eval_shape(hyper.local_optimizer().init, params)


SUMMARY = "federated averaging whose local steps use the server's momentum and do not change it"
mimelite = cohort_system(
    "mimelite",
    MimeLite,
    with_frozen_statistics,
    SUMMARY,
    messages=ReportMessages(TWO.up, down=message),
)
