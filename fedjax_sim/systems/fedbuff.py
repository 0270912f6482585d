"""FedBuff (Nguyen et al. 2022, arXiv 2106.06639), Algorithm 1: buffered asynchronous aggregation.

    w_t -> `state.server`          K -> `hyper.buffer_size`      M -> `hyper.concurrency`
    eta_g -> `hyper.server_lr`     beta -> `hyper.server_momentum`
    eta_l -> `hyper.lr`      Q -> `hyper.local_steps`
    s(tau) / K -> `event.weight`              -Delta_i -> `progress`

M clients are at work at any time; one that finishes is replaced at once by an idle one, which
starts from the newest model. When the buffer holds K updates the server makes a step with
s(tau) Delta / K, where tau counts the server steps since an update began. The paper's discount is
s(tau) = (1 + tau)^-1/2 (`rule="polynomial"`, not normalised); "mean" is s = 1, and the other rules
of `fedjax_sim.server.StalenessWeights` can be chosen too. The server's momentum is that of FedAvgM:
v <- beta v + mean progress, w <- w + eta_g v.

What the discount does. Its weights do not sum to 1, so it shortens the server's step: if all
updates were tau steps old, it would be a server learning rate of (1 + tau)^-1/2 eta_g. On the
bundled digits with all 30 clients at work, K = 5 and local learning rate 0.5, some of five seeds
collapse without a discount (final accuracy 0.62 +- 0.43; which seeds do depends on rounding). With
the discount it is 0.969 +- 0.003, and with a server learning rate of 0.3 instead 0.969 +- 0.005:
what helps there is the shorter step, not the attention to stale updates. The runs are `fedjax-sim
run fedbuff --preset paper --set restart=after_interaction --set lr=0.5`, to which the others add
`--set rule=mean --set server_lr=1,0.3`.

Deviation: in the paper's simulations clients arrive at a constant rate, so that the number at work
varies. Here exactly M are at work, drawn uniformly, as production systems bound it.

Readings. With `concurrency` M, mean staleness is (M - 1) / K, whatever the clients' speeds are.
FAVANO's paper (arXiv 2305.16099, Sec. 5 and App. C.2) runs FedBuff without discount, with all N
clients at work, and blocks a client from its finish to the end of the exchange that takes its
update: `restart="after_interaction", rule="mean"`. It then starts from the new model (with
`send_old_model` from the one before). QuAFL's public simulator multiplies `lr` by Z / N. The text
also says that a counter is reset at the beginning of each server step. `restart="fresh"` takes it
literally: running times are drawn again for everyone at each server step, so that only fast clients
report if there are enough of them. Mean staleness is then 5.3 server steps with 66 of 100 fast
clients and 0.1 with 11, compared with 8.9 and 8.7 under the continuous clock
(experiments/favano/README.md has the accuracies).

Servers that weigh, mix or keep updates otherwise are here too: FedStaleWeight, Generalized
AsyncSGD, FedAsync, AsyncFedED and CA2FL.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_sim import timelines
from fedjax_sim.clients import LocalTraining, local_training, rows
from fedjax_sim.core import batching, schedules, settings, types
from fedjax_sim.core.settings import Above0, Checked, ConfigError, fixed, redefault, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import Reports, ScheduledReports, StalenessWeights, Wire, staleness
from fedjax_sim.server.aggregation import ServerMomentum, ServerRate, where_slots
from fedjax_sim.server.report_settings import ReportMessages
from fedjax_sim.server.reports import Versioned, stale_models
from fedjax_sim.server.staleness import WeightedArrivals
from fedjax_sim.timelines import ArrivalClock, Arrivals, ClientQueues, presets


@struct
class Hyper(WeightedArrivals, LocalTraining, ServerMomentum, ScheduledReports):
    """Settings of FedBuff: clock, discount, local training, messages, and the server's step."""

    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="replaced"))
    staleness: StalenessWeights = redefault(
        WeightedArrivals, "staleness", StalenessWeights(rule="polynomial", normalised=False)
    )


def algorithm(
    problem: Problem,
    hyper: Any,
    plan: Plan,
    *,
    can_repeat: bool = True,
    moves: Callable[..., tuple[Params, Array, Params]] | None = None,
) -> Algorithm[Versioned, Work]:
    """Bind FedBuff to a problem.

    Args:
      problem: Data and loss.
      hyper: Settings, or those of a system that is FedBuff with weights or a clock of its own.
      plan: How the machine is used.
      can_repeat: Whether a client may have several slots of a tick.
      moves: From the settings, the wire, the tick, the state, and the models that clients started
        from and that the server decodes to what the server adds up, leaves `[S, ...]`, the weights,
        `f[S]`, and what is kept for every client then; None for the clients' progress with the
        tick's weights. What is kept begins as the settings' `first_rows`, if they have that.
    """
    train = local_training(problem, hyper, plan)
    of_clients = local_training if moves is None else None
    wire = Wire(problem, hyper, plan, can_repeat=can_repeat, train=of_clients)

    def init(key: Key) -> Versioned:
        return wire.first_version(problem.init(key), getattr(hyper, "first_rows", ()))

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start, kept = stale_models(state, event), state.clients  # base[i], a stale server model
        local, work = train(key, event, starts=start)  # y[i]
        reports, memo = wire.receive(key, event, state.memo, start, local)
        if moves is None:
            progress = optax.tree.sub(reports, start)
            change, memo = wire.noisy_sum(key, event, progress, memo)  # 0 if all slots are empty
        else:
            moved, weight, kept = moves(hyper, wire, event, state, start, reports)
            change = wire.sum(key, event, moved, weight=weight)
        server, memory = wire.step(event, state.server, change, state.memory)
        after = {"memory": memory, "clients": kept}
        return wire.next_version(key, event, state, memo, server, **after), work

    return wire.algorithm(init, step)


paper = presets.preset(Hyper, presets.FAVANO)
system: types.System[Any, Versioned, Work] = types.System(
    "fedbuff",
    Hyper,
    staleness.schedule_stale_arrivals,
    algorithm,
    "buffered asynchronous aggregation: the server acts when Z updates have arrived",
    can_repeat=True,
    messages=ReportMessages(),
    hints=types.Hints(timelines.arrivals_within),
    weigh=staleness.weigh_arrivals,
    paper=paper,
)


# Other weights, and another clock.


@struct
class FedStaleWeight(WeightedArrivals, LocalTraining, ServerMomentum, Reports):
    """FedStaleWeight (Ma, Tu, Chen and Reddi, arXiv 2406.02877): weights from averaged staleness.

        w_v -> `state.server`      b -> `hyper.buffer_size`    Q -> `hyper.local_steps`
        eta_l -> `hyper.lr`        eta_g -> `hyper.server_lr`  tau_i -> tick - version
        eta_l^(q) of Theorem 1 -> `hyper.lr` times `hyper.training.lr_schedule` by "step"
        E[tau_i], as estimated -> `server.staleness.mean_staleness`    alpha_i -> `event.weight`

    Algorithm 1: when the buffer holds b updates, tau_j = v - k_j joins the average of its client;
    alpha_j = (E[tau_j] b + 1) / n, divided by the buffer's sum; w_{v+1} = w_v + eta_g sum_j alpha_j
    Delta_j. The weights follow from the schedule alone and are part of the timeline; the step with
    them is FedBuff's (`fedbuff`). Theorem 1 has a rate eta_l^(q) for each local step q < Q, such as
    `lr_schedule=Table(factors=(1.0, 0.5, 0.25), by="step")`; `theory.fedstaleweight.local_rates`
    has their sums alpha(Q) and beta(Q).

    Deviation: Algorithm 1 prints the weight without b. It is then not the inverse of a client's
    share of arrivals (Eq. 7), so Eq. 8 is the default.

    Readings. The weight is that of Eq. 8, which the proof also uses. `rule` offers Algorithm 1's
    line ("alg1", without b), that of the authors' public code ("code", without + 1; "code_exact",
    which also averages as that code does, over a client's first four values and its latest), and
    the rules that the paper compares with; "mean" is the buffered baseline. Otherwise "moving
    average" is read as the mean of a client's last five values, the present one included; five is
    the public code's number. If buffers are as large as the number of clients that window is
    biased, and `average="cumulative"` should be used. A client takes the newest model as soon as
    its update is in, after the step that this update may have completed (`restart="free"`, which
    Eq. 6 needs); "before_aggregation" is an alternative. At most one update of each client in a
    buffer, the remedy that the paper names for its theorem's assumption, is
    `restart="after_interaction"` without an exchange time. Where the paper is silent, `paper`
    follows the public code: Q = 1, batches of 32 from a new shuffle for each update, eta_l = 0.01,
    eta_g = 1, and updates that take U(1, 2) units of time for ten fast clients and U(8, 12) for the
    last five. In one point the code is not followed: there server models share memory, here each
    version keeps its values.
    """

    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="free"))


@struct
class GenAsync(ClientQueues, LocalTraining, ServerMomentum, Reports):
    """Generalized AsyncSGD (Leconte, Jonckheere, Samsonov and Moulines 2024, arXiv 2405.00017).

        w_k -> `state.server`    C -> `hyper.num_tasks`    p_i -> `timelines.routing_shares`
        eta -> `hyper.lr`        J_k -> `event.clients`      I_k -> `event.version`
        1 / (n p_i) -> `event.weight`

    C tasks circulate: a client works on its tasks in the order in which they came, each a gradient
    at the model that the task carries. When client J_k has finished one, the server makes the step
    w_{k+1} = w_k - eta / (n p_{J_k}) g_{J_k}(w_{I_k}), draws a client with probabilities p, and
    sends it a task with the new model. In the long run client i sends a share p_i of the gradients,
    whatever its speed is, so that the weight 1 / (n p_i) makes all clients count equally. The step
    is FedBuff's (`fedbuff`) with a buffer of one.

    Deviation: the paper begins with a given set of C clients. Here the first C tasks are drawn with
    probabilities p as well, because a set would be one more setting, which is forgotten after a
    while.

    Readings. Several local steps make a task an update of the model (`local_steps`; the paper has
    one gradient), and `server_lr` scales the server's step. `routing_exponent` names a family of
    probabilities; `routing` gives them one by one.
    """


fedstaleweight = system._replace(
    name="fedstaleweight",
    Hyper=FedStaleWeight,
    summary=(
        "buffered asynchronous aggregation; weights from staleness give slow clients their share"
    ),
    paper=presets.preset(FedStaleWeight, presets.STALENESS),
)
gen_async: types.System[GenAsync, Versioned, Work] = types.System(
    "gen_async",
    GenAsync,
    timelines.schedule_client_queues,
    partial(algorithm, can_repeat=False),
    "clients with queues; each finished gradient is a server step, weighted by 1 / (n p_i)",
    messages=ReportMessages(),
    hints=types.Hints(timelines.client_queues_within),
    paper=presets.preset(GenAsync, {**presets.FAVANO, "local_steps": 1}),
)


# Servers that act on each update.


@struct
class FedAsync(WeightedArrivals, LocalTraining, Reports):
    """FedAsync (Xie, Koyejo and Gupta 2019, arXiv 1903.03934): each arriving model is mixed in.

        x_t -> `state.server`    alpha -> `hyper.mixing`    s(t - tau) -> `event.weight`
        rho -> `hyper.proximal`

    A client starts from version k of the server's model and reaches y. When y arrives, the server
    is at version v and makes x_{v+1} = (1 - a) x_v + a y with a = alpha s(v - k). Models are mixed
    instead of updates, so that a stale base also pulls the server back. The discount s(tau) is
    named by `rule`: "polynomial" is (1 + tau)^-exponent; "hinge" is 1 up to `hinge_start` and then
    falls; "exponential" is base^tau; "mean" is 1. The local loss has the proximal term rho / 2 ||w
    - x_k||^2.

    Deviation: in Algorithm 1 t is the number of the model that is being made, so that a model from
    the newest version has t - tau = 1 and is discounted too. Here its staleness is 0 and s = 1,
    because the paper wants s to be 1 without staleness, and so that the word means the same in all
    systems.

    Readings. All clients are always at work, as in the experiments of FedStaleWeight, whose paper
    only describes FedAsync and whose clients `paper` has. With `restart="replaced"` only
    `concurrency` of them are, and mean staleness is that number less one. Mixing 0.6, exponent 0.5
    and rho 0.005 are among the values of FedAsync's own experiments.
    """

    buffer_size: int = fixed(1)
    staleness: StalenessWeights = redefault(
        WeightedArrivals, "staleness", StalenessWeights(rule="polynomial", normalised=False)
    )
    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="free"))
    mixing: settings.Portion = setting(
        0.6, "Share of a received model in the server's, alpha, if it is not stale."
    )
    mixing_schedule: schedules.Schedule = schedules.schedule_of("mixing")
    proximal: float = redefault(LocalTraining, "proximal", 0.005)

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        discounts = ("polynomial", "hinge", "exponential", "mean")
        if self.staleness.normalised:
            allowed = "false, because the weight of a single update would be 1"
            raise ConfigError("staleness.normalised", True, allowed)
        if self.staleness.rule not in discounts:
            allowed = "one of " + ", ".join(discounts)
            raise ConfigError("staleness.rule", self.staleness.rule, allowed)

    def moves(
        self, wire: Wire, event: Event, state: Versioned, start: Params, reports: Params
    ) -> tuple[Params, Array, Params]:
        """Way from the server's model to each received one, and the share of it to go."""
        mixing = self.mixing_schedule.of(self.mixing, event.tick)
        ways = jax.tree.map(lambda x, y: y - x[None], state.server, reports)
        return ways, mixing * event.weight, ()  # The weight is 0 in an empty slot.


@struct
class EuclideanStaleness(Checked):
    """Settings of the server's steps along updates, by how far the model has moved since."""

    numerator: Above0 = setting(1.0, "Scale of the server's steps, lambda.")
    offset: Above0 = setting(1.0, "What is added to an update's staleness, epsilon.")

    def moves(
        self, wire: Wire, event: Event, state: Versioned, start: Params, reports: Params
    ) -> tuple[Params, Array, Params]:
        """Progress of each client, and eta_g."""
        progress = optax.tree.sub(reports, start)
        gone = jax.tree.map(lambda x, old: x[None] - old, state.server, start)
        trained = map(wire.of_trained, (gone, progress))
        distance, length = map(jax.vmap(optax.tree.norm), trained)
        gamma = jnp.where(length > 0, distance / jnp.where(length > 0, length, 1), 0)
        rate = self.numerator / (gamma + self.offset)
        if wire.has_statistics():  # They are averaged: no rate acts on them.
            own = jax.tree.map(lambda d: d / rows.along(rate, d).astype(d.dtype), progress)
            progress = wire.of_trained(progress, own)
        return progress, rate * event.weight, self.rows_after(event, state, gamma)

    def rows_after(self, event: Event, state: Versioned, gamma: Array) -> Params:
        """Rows of clients after a tick. gamma: staleness of the slots, `f[S]`."""
        return ()


@struct
class AsyncFedED(EuclideanStaleness, WeightedArrivals, LocalTraining, Reports):
    """AsyncFedED (Wang et al. 2022, arXiv 2205.13797), Algorithm 1: Euclidean staleness.

        x_t -> `state.server`    x_{t-tau} -> `start`    Delta_i(x_{t-tau}) -> `progress`
        gamma(i, tau) -> `gamma`    lambda -> `hyper.numerator`    epsilon -> `hyper.offset`

    Every update that arrives moves the server's model, x_{t+1} = x_t + eta_g Delta_i. Its staleness
    is the distance that the model has moved since the client began, relative to the update's
    length: gamma(i, tau) = ||x_t - x_{t-tau}|| / ||Delta_i||, and eta_g = lambda / (gamma(i, tau) +
    epsilon).

    Deviation: the paper also adapts a client's number of local steps K to gamma. Here K is
    constant, so that the schedule is drawn before learning. `asyncfeded_adaptive`, whose clock is
    live, adapts it.

    Readings. Running statistics and other leaves that are not trained do not count in these norms,
    and eta_g does not act on them. An update of 0 counts as fresh. With a compressed downlink
    x_{t-tau} is what its client knows of it, and x_t is the server's. The defaults lambda = epsilon
    = 1 make a fresh update count as it is. All clients are always at work, and `paper` has the
    values of FAVANO's experiments, so that it can be compared with other systems of arrivals.
    """

    buffer_size: int = fixed(1)
    staleness: StalenessWeights = fixed(StalenessWeights(rule="mean"))
    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="free"))


def variant(kind: type[Arrivals], values: Mapping[str, Any], **changes: Any) -> types.System:
    """FedBuff with other settings; their class has the system's name. values: those of `paper`."""
    named = system._replace(name=kind.__name__.lower(), Hyper=kind)
    return named._replace(paper=presets.preset(kind, values), **changes)


SUMMARY = "asynchronous mixing: every arriving model is averaged into the server's, stale ones less"
alone = partial(algorithm, moves=FedAsync.moves)
fedasync = variant(FedAsync, presets.STALENESS, algorithm=alone, summary=SUMMARY, can_repeat=False)
SUMMARY = "asynchronous steps along every update, shorter where the server's model has moved far"
alone = partial(algorithm, moves=AsyncFedED.moves)
asyncfeded = variant(AsyncFedED, presets.FAVANO, algorithm=alone, summary=SUMMARY, can_repeat=False)


# A server that keeps every client's last update.


@struct
class CA2FL(WeightedArrivals, LocalTraining, ServerRate, Reports):
    """CA2FL (Wang, Cao, Wu, Chen and Chen 2024, ICLR), Algorithm 2: cached update calibration.

        x_t -> `state.server`    h_t^i -> `state.clients`    h_t -> `state.memory`
        Delta_i -> `progress`    eta -> `hyper.server_lr`    S_t -> `event.clients`
        M -> `hyper.buffer_size`    M_c -> `hyper.concurrency`

    The server of FedBuff keeps the last update of every client, h_t^i, 0 at first. When its buffer
    is full, it steps along v_t = h_t + 1 / M sum over S_t of (Delta_i - h_t^i), where h_t is the
    mean of all h_t^i, and then keeps the new Delta_i: clients who report seldom count as much as
    others.

    Readings. Stale updates are not discounted, as in the paper; `staleness` offers discounts, with
    weights in place of 1 / M. If a client has several updates in a buffer, all of them are compared
    with h_t^i, and the last one is kept. The cache holds what the server decoded. Clocks and
    `concurrency` are FedBuff's, see `fedjax_sim.systems.fedbuff`.
    """

    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="replaced"))
    staleness: StalenessWeights = redefault(
        WeightedArrivals, "staleness", StalenessWeights(rule="mean")
    )


def calibrated(problem: Problem, hyper: CA2FL, plan: Plan) -> Algorithm[Versioned, Work]:
    """Bind CA2FL to a problem."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, can_repeat=True)

    def init(key: Key) -> Versioned:
        server = problem.init(key)
        zero = optax.tree.zeros_like(server)
        first = wire.first_version(server, batching.replicate(zero, len(problem.counts)))
        return first._replace(memory=zero)

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start, before = stale_models(state, event), rows.read_clients(state.clients, event.clients)
        local, work = train(key, event, starts=start, own=before)
        reports, memo = wire.receive(key, event, state.memo, start, local)
        progress = optax.tree.sub(reports, start)  # Delta_i
        gains = optax.tree.sub(progress, before)
        moved = optax.tree.add(state.memory, wire.sum(key, event, gains))  # v_t
        server, _ = wire.step(event, state.server, moved)
        # Of a client's updates the last one stays, unless it is not finite.
        learns = wire.senders.finite_clients(event, progress)
        learns = jnp.where(
            jnp.triu(learns[:, None] == learns[None], 1).any(axis=1), types.EMPTY, learns
        )
        gains = where_slots(learns != types.EMPTY, gains, optax.tree.zeros_like(gains))
        total = batching.weighted_sum(jnp.ones(learns.shape), gains)
        mean = optax.tree.add_scale(state.memory, 1 / len(problem.counts), total)
        kept = {"clients": rows.write_clients(state.clients, learns, progress), "memory": mean}
        return wire.next_version(key, event, state, memo, server, **kept), work

    return wire.algorithm(init, step)


SUMMARY = "buffered asynchronous aggregation that keeps every client's last update"
ca2fl = variant(CA2FL, presets.FAVANO, algorithm=calibrated, summary=SUMMARY)
