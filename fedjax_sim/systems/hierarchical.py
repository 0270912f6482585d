"""Delay-sensitive hierarchical federated learning (Ali and Arafa, arXiv 2302.04851), Algorithm 1.

    x^u -> `state.server`    x_i^{u,l} -> `state.clients`    alpha -> `hyper.lr`
    t_i^u -> `event.steps`   S -> `hyper.sync_time`         N_i -> `list_members`
    weight of x_i^{u,t_i} - x^u -> `event.weight`           Eq. 5 and 6 -> `server.edges`

Clients are partitioned into groups with a local server each. In a local iteration every client of a
group takes E SGD steps from the local server's model, which becomes the mean of the results; in the
paper E is 1 (Eq. 5 and 6). A group iterates until the sync time S has passed. Then the global
server adds the groups' progress D_i = x_i^{u,t_i} - x^u by one of the rules of `aggregation`, with
w_i = |N_i| / N by default:

    divide_by_steps    x^{u+1} = x^u + sum_i w_i D_i / t_i                            (Eq. 12)
    average            x^{u+1} = x^u + sum_i w_i D_i = sum_i w_i x_i^{u,t_i}          (HierFAVG)
    fednova            x^{u+1} = x^u + (sum_j w_j t_j) sum_i w_i D_i / t_i            (FedNova)

Here t_i counts iterations, not local steps. With the first rule a round is about as long as one
iteration, whatever S is. The schedule alone determines the weights of the D_i, see
`timelines.Groups`.

Special cases. HierFAVG (Liu et al. 2020, arXiv 1905.06641) has no delays: `client_steps` is
kappa_1, `min_iterations` kappa_2, `sync_time` 0, `aggregation` "average", and both `weighting` and
`group_weights` are "examples". With `proximal` above 0 clients do FedProx's steps. One group that
averages is FedAvg of everyone, with an iteration as its round; so is `sync_time` 0.

An iteration of a group counts as one local step: `executed` and `needed` count iterations of
groups, each of which evaluates E gradients of as many clients as the largest group has; sizes of 5
and 15 run 1.5 times the gradients that count. `uplink_bits` and `downlink_bits` are the models that
groups and the global server send each other, `client_uplink_bits` and `client_downlink_bits` those
between clients and groups. Batches depend on a group's iteration count, so changing one round's
length changes all later batches.

A sweep over S, c_g and seeds is one program although its lanes differ in their numbers of rounds.
If lanes run one by one, as on a CPU, a tick after a lane's end does no iteration. In a batch of
lanes, as on an accelerator, all do as many iterations in a tick as the lane that needs most. Lanes
are therefore sorted by their work into batches, so many that at most 1.5 times the needed
iterations are done (`scripts/benchmark.py hierarchical`).

Deviation: Algorithm 1 sets the clock where Eq. 13 adds to it, and its loops continue while the time
passed *is at most* S or T, where Eq. 7 and 13 continue until it *is at least*. The equations are
followed. A group does at least one iteration, as the baseline S = 0 needs.

A learning rate of each group in proportion to 1 / t_i (Remark 3) is an `lr_schedule` by "work",
`Function(function=lambda t: 1 / jnp.maximum(t, 1), by="work")`; by "client" it has a factor for
each group.

Compressed messages, lost ones and clients' hours are explained in `fedjax_sim.server.edges` and
`fedjax_sim.timelines.grouped`; the paper has none of these.

Readings. The local server's mean is unweighted, and the global server counts clients, not examples;
`weighting` and `group_weights` offer the alternatives. Delays are drawn per group, whatever E is;
`delays_of="client"` draws them per client and waits for the slowest, and `exchanges="group"` draws
the exchange's delay per group, which the paper does not do. Growing sync times are min(S, u
`sync_growth`); the paper says only that they grow "gradually" from 1 to 5. The round that crosses
the time budget is completed and counted. The paper does not say how batches are drawn: they are
drawn from the client's examples with replacement. Batch size 32 and all learning rates are our
choice. Delays of exchanges, 0 by default, are those of Fig. 7(a) in `paper`. Groups that never
exchange are S = T, a single round; `ticks_per_round` and `group_metrics` evaluate them on the way.

There are two levels and no tree: servers in between would do several rounds between two global
rounds, but here all groups have the same rounds. Groups that do not wait for each other are the
system `async_hierarchical`, which is here too.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim import clients, timelines
from fedjax_sim.core import batching, trees, types
from fedjax_sim.core.settings import ConfigError, group, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import RoundState, ServerRate, Versioned, compression, edges, stale_models
from fedjax_sim.server.report_settings import Bits
from fedjax_sim.server.staleness import StalenessWeights, staleness_weights
from fedjax_sim.timelines import GroupArrivals, presets


@struct
class Hyper(edges.EdgeTraining):
    """Settings of hierarchical learning: groups, clock, local training, weights within a group."""

    group_metrics: bool = setting(
        False,
        "Whether the groups' models are evaluated as well, just before the global model replaces "
        "them, as `accuracy_group_0` and so on.",
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        counts = {"work", "step"} if self.has_one_batch else {"work"}
        if self.clock.ticks_per_round > 1 and self.training.lr_schedule.clock in counts:
            allowed = (
                '1 with rates by "work", or "step" of a group: a tick knows a part of its round'
            )
            raise ConfigError("clock.ticks_per_round", self.clock.ticks_per_round, allowed)
        if self.clock.ticks_per_round > 1 and self.has_one_batch:
            if self.training.optimizer is not optax.sgd:
                reason = "because its state starts afresh each tick"
                allowed = f"1 with an optimizer other than sgd, {reason}"
                raise ConfigError("clock.ticks_per_round", self.clock.ticks_per_round, allowed)
            if self.training.sampling == "reshuffled":
                allowed = '1 with sampling "reshuffled", because each tick would shuffle again'
                raise ConfigError("clock.ticks_per_round", self.clock.ticks_per_round, allowed)


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind hierarchical learning to a problem."""
    train = edges.edge_training(problem, hyper, plan)
    wire = edges.EdgeWire(problem, hyper, plan)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        return wire.first_round(server, batching.replicate(server, hyper.num_groups))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        num_slots = event.clients.shape[0]
        # At the first tick of a round the groups take the server's model, later they go
        # on.
        first_tick = event.version.max()  # of the round
        is_start = first_tick == event.tick
        is_last = event.tick == first_tick + hyper.clock.ticks_per_round - 1
        begun = clients.read_clients(state.clients, event.clients)
        known = batching.replicate(wire.received(state), num_slots)
        start = jax.tree.map(partial(jnp.where, is_start), known, begun)  # x_i^{u,0} = x^u
        round_number = jnp.broadcast_to(first_tick // hyper.clock.ticks_per_round, (num_slots,))
        groups, memo, work = train(key, event, state.memo, starts=start, draws=round_number)
        # Every group reports at the end of a round, whenever it did its iterations.
        sent = event.within(steps=jnp.broadcast_to(is_last, (num_slots,)).astype("int32"))
        reports, memo = wire.receive(key, sent, memo, known, groups)
        progress = jax.tree.map(jnp.subtract, reports, known)  # x_i^{u,t_i} - x^u
        shares = jnp.asarray(hyper.shares())[event.clients]
        moved = wire.mix(key, event, progress, lambda: jnp.where(event.weight > 0, shares, 0))
        server = jax.tree.map(jnp.add, state.server, moved)  # (12)
        # The server's model is sent at the end of a round.
        published = wire.publish(key, event, memo, server)
        memo = jax.tree.map(lambda new, old: jnp.where(is_last, new, old), published, memo)
        kept = clients.write_clients(state.clients, event.clients, groups)
        return state._replace(server=server, clients=kept, memo=memo), work

    def metrics(state: RoundState) -> dict[str, Array]:
        if not hyper.group_metrics:
            return {}
        found, groups = jax.lax.map(problem.evaluate, state.clients), range(hyper.num_groups)
        return {f"{name}_group_{i}": found[name][i] for name in found for i in groups}

    def client_models(state: RoundState) -> tuple[Params, Array]:
        return state.clients, jnp.asarray(timelines.list_members(hyper).size)

    return wire.algorithm(init, step, metrics=metrics, client_models=client_models)


class Messages(edges.GroupMessages):
    """The messages of groups, with those to the global server at the end of a round."""

    def per_tick(
        self, problem: Problem, hyper: edges.EdgeTraining, timeline: types.Timeline
    ) -> Bits:
        """Count the bits that groups and the global server send at each tick, `i64[T]` each.

        A model goes up from each group, and one or its change down to it, at the last tick of every
        round; the first model is not counted.
        """
        per_round = hyper.clock.ticks_per_round
        is_last = np.arange(len(timeline.clients)) % per_round == per_round - 1
        up, _ = super().per_tick(problem, hyper, timeline)
        reports = (timeline.clients >= 0).sum(axis=1, dtype=np.int64)
        model = trees.shapes_of_model(problem)
        whole = types.full_precision_bits(model)
        down = min(compression.count_message_bits(hyper.messages.downlink, model), whole)
        return up * is_last, reports * is_last * down


paper = presets.preset(Hyper, presets.GROUPS)
system: types.System = types.System(
    "hierarchical",
    Hyper,
    timelines.schedule_group_rounds,
    algorithm,
    "groups with local servers iterate until a sync time; their scaled progress is averaged",
    messages=Messages(),
    hints=types.Hints(timelines.group_rounds_within, edges.iteration_examples),
    fit=types.Fit(complete=timelines.complete_groups),
    paper=paper,
)


# Groups that report one by one.


@struct
class AsyncHierarchical(GroupArrivals, edges.EdgeTraining, ServerRate):
    """Asynchronous hierarchical learning: each group reports when it is done.

        x -> `state.server`    x_i -> `groups`    Z -> `hyper.num_reports`
        beta -> `hyper.server_lr`    c_i -> `event.weight`

    The groups of `systems.hierarchical` (Ali and Arafa, arXiv 2302.04851) do not wait for each
    other. A group i takes the global model x^v, iterates until the sync time S has passed, and
    reports D_i = x_i - x^v after its own exchange delay. It continues from the global model
    of that moment. The global server mixes reports as FedBuff does (Nguyen et al. 2022, arXiv
    2106.06639): when Z of them have arrived,

        x <- x + beta sum_i c_i D_i,    c_i = (M w_i / Z) s(tau_i) r_i

    with weights w_i of the groups and staleness tau_i, the number of global models made since x^v.
    The discount s is chosen by `rule`: "mean" is 1. The factor r_i is that of `aggregation`, for
    t_i iterations: 1 / t_i with "divide_by_steps", 1 with "average", and T / t_i with "fednova",
    where T is the mean of t over the buffer, weighted like the D_i.

    Even if all groups report together, only the one that fills the buffer continues from the new
    model. With one group and Z = 1 this is the synchronous system. For `client_variance` a group is
    one holder of a model, whatever its size.

    The paper names asynchronous groups as future work; these rules are ours.
    """

    staleness: StalenessWeights = group(
        StalenessWeights(rule="mean", normalised=False), "weights of the reports in a buffer"
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If clients would need an estimate that their group is still making.
        """
        super().check_together()
        is_compressed = not isinstance(self.messages.compression, compression.Identity)
        if self.messages.error_feedback and is_compressed and self.num_reports > 1:
            allowed = (
                "false with num_reports above 1 and compressed messages of clients, because a "
                "group may report twice at once, and its second round needs estimates of the first"
            )
            raise ConfigError("messages.error_feedback", True, allowed)


def schedule_reports(key: Key, hyper: AsyncHierarchical, num_ticks: int) -> types.Timeline:
    """Schedule reports of groups; the weight of a slot is c_i."""
    schedule = timelines.schedule_group_arrivals(key, hyper, num_ticks)  # M w_i / Z
    staleness = jnp.arange(num_ticks)[:, None] - schedule.version
    groups, num = schedule.clients, hyper.num_groups
    discount = staleness_weights(groups, staleness, hyper.staleness, num_clients=num)
    weight = schedule.weight * (discount * hyper.num_reports)
    total = weight.sum(axis=1, keepdims=True)
    share = weight / jnp.where(total > 0, total, 1)
    rule = timelines.aggregation_weights(share, schedule.steps, hyper.aggregation)
    return schedule._replace(weight=total * rule)


def discounted_shares(hyper: AsyncHierarchical, event: Event) -> Array:
    """Compute c_i / r_i, weights of the reports without the factor of `aggregation`: `f[S]`."""
    weight = event.weight * event.steps
    if hyper.aggregation == "divide_by_steps":
        return weight
    total, work = weight.sum(), weight @ event.steps  # T = work / total
    return weight * total / jnp.where(work > 0, work, 1)


def one_by_one(
    problem: Problem, hyper: AsyncHierarchical, plan: Plan
) -> Algorithm[Versioned, Work]:
    """Bind asynchronous hierarchical learning to a problem."""
    train = edges.edge_training(problem, hyper, plan)
    wire = edges.EdgeWire(problem, hyper, plan, can_repeat=True)

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)  # x^v
        # A group's iterations before a round number its rounds.
        groups, memo, work = train(key, event, state.memo, starts=start, draws=event.offset)
        reports, memo = wire.receive(key, event, memo, start, groups)
        progress = jax.tree.map(jnp.subtract, reports, start)  # D_i
        mixed = wire.mix(key, event, progress, partial(discounted_shares, hyper, event))
        server, _ = wire.step(event, state.server, mixed)
        return wire.next_version(key, event, state, memo, server), work

    return wire.algorithm(lambda key: wire.first_version(problem.init(key)), step)


async_hierarchical = system._replace(
    name="async_hierarchical",
    Hyper=AsyncHierarchical,
    timeline=schedule_reports,
    algorithm=one_by_one,
    summary=(
        "groups with local servers that report one by one; the global server mixes what has arrived"
    ),
    can_repeat=True,
    messages=edges.GroupMessages(),
    hints=types.Hints(timelines.group_arrivals_within, edges.iteration_examples),
    paper=presets.preset(AsyncHierarchical, presets.GROUPS),
)
