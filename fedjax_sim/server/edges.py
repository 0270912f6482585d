"""Local servers (edges): learning of a group of clients in its local iterations.

In an iteration every client of a group does E local steps from the model of the group's server,
which becomes the weighted mean of the models that they reach. That is a round of FedAvg within the
group. With mu > 0 a client's steps pull its model back to where it started, as in FedProx.

With E = 1 all clients step from one model, so a group is mini-batch SGD with the mean of its
clients' gradients: there is one model per group and none per client, and an iteration is one large
batch. A local optimizer other than SGD then keeps its state over the iterations of a tick, and
`sampling="reshuffled"` shuffles once for all of them. With E > 1 every client has a model and, as
in FedAvg, its optimizer's state and its shuffle start afresh with each iteration.

Messages. In every iteration a model goes down to each client that takes part, and one comes up,
compressed by `compression`; after its iterations a local server reports to the global one,
compressed by `edge_compression`, as in Hier-Local-QSGD (Liu et al. 2023, arXiv 2103.14272). With
`error_feedback` both keep estimates (`fedjax_sim.server.reports`). `downlink` compresses what the
global server sends to the local ones; these send whole models to their clients.

Losses. A client's model may be lost on its way to the local server (`drop_rate`, or a table of
clients). The mean is then that of the others; if all are lost, the group's model stays. Which ones
are lost is drawn while learning: it takes no time, because a local server waits until a model
should have come, and the schedule does not say who is behind an iteration.

Compressed or lost messages take a model for each client, also with E = 1.

Groups of unequal size are padded to the largest. A client's batches and noise are keyed by its
number and by the local steps that it would have done if it had taken part in all iterations that
its group has done since the run began.

Dimension letters: those of `core.types`; `M` groups, `C` clients of the largest group that
take part in a round.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.clients import gradient_steps, local_settings, mini_batches, rows
from fedjax_sim.clients.gradient_steps import Training
from fedjax_sim.clients.mini_batches import BatchGradient, LossGradient
from fedjax_sim.core import batching, trees, types
from fedjax_sim.core.settings import Checked, ConfigError, Count, group, setting, struct
from fedjax_sim.core.streams import lane_key, lane_stream, shuffle_bits, shuffled_index
from fedjax_sim.core.types import Array, Event, Key, Losses, Params, Plan, Timeline
from fedjax_sim.server import aggregation, attacks, privacy, report_settings, rules, stages
from fedjax_sim.server.compression import Compressor, Identity, compressed
from fedjax_sim.server.reports import Memo, Wire
from fedjax_sim.timelines import Groups, delay_sizes, draw_losses, list_members, loss_shares


@struct
class EdgeMessages(report_settings.ClientMessages):
    """Settings of messages between clients, their local server, and the global one.

    They are the group `messages` of hierarchical systems.

        few = parse_compressor("top_k:kept=10")
        messages = EdgeMessages(edge_compression=few)
        hyper = fedjax_sim.SYSTEMS["hierarchical"].Hyper(messages=messages)
    """

    edge_compression: Compressor = compressed(
        "Compressor of what a local server sends to the global one; `compression` is that "
        "of what a client sends to its local server."
    )


@struct
class EdgeWork(Checked):
    """Settings of the common work of a group's clients.

    They are the group `work` of hierarchical systems.

        work = EdgeWork(weighting="examples")
        hyper = fedjax_sim.SYSTEMS["hierarchical"].Hyper(work=work, client_steps=5)
    """

    weighting: Literal["equal", "examples"] = setting(
        "equal",
        "Weights of the clients, in the mean of their group: equal, as in the paper, or in "
        "proportion to their numbers of examples.",
    )
    clients_at_once: Count = setting(
        1000, "Clients of a group whose batches are in memory together."
    )


@struct
class EdgeTraining(Groups, local_settings.LocalTraining, report_settings.Reports):
    """Settings of training behind local servers: groups, clocks, clients' local steps, messages.

    They are inherited by the settings of hierarchical systems.

        hyper = EdgeTraining(num_clients=8, num_groups=2)
        assert hyper.has_one_batch and not hyper.replace(client_steps=5).has_one_batch
    """

    training: local_settings.ClientTraining = group(
        local_settings.ClientTraining(sampling="with_replacement"),
        local_settings.ABOUT_TRAINING,
        without=("example_clip", "optimizer_state"),
    )
    work: EdgeWork = group(EdgeWork(), "what the clients of a group do together")
    messages: EdgeMessages = group(EdgeMessages(), "compression of messages both ways")
    edge_aggregator: rules.Rule = setting(
        rules.Mean(),
        "What the global server makes of the messages of local servers.",
        allowed="a rule of `fedjax_sim.server.rules`",
        parse=rules.parse_rule,
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If clients cannot know where they are in their examples.
        """
        super().check_together()
        report_settings.check_codes(self, "edge_aggregator", "messages.edge_compression")
        if not isinstance(self.messages.local_privacy, privacy.NoLocalPrivacy):
            allowed = "none here, because the schedule does not say who is behind an iteration"
            raise ConfigError("messages.local_privacy", str(self.messages.local_privacy), allowed)
        if "lr" in self.by_step and self.has_one_step and not self.has_one_batch:
            allowed = "another one where clients report after each step, whose number is then 0"
            raise ConfigError("training.lr_schedule.by", "step", allowed)
        if self.grouping.active_per_group > 0 and self.training.sampling != "with_replacement":
            allowed = (
                '"with_replacement" with active_per_group, because clients do not count the '
                "iterations in which they are absent"
            )
            raise ConfigError("training.sampling", self.training.sampling, allowed)

    def decided(self) -> dict[str, str]:
        """Name the settings without effect, and those in their place."""
        alone = {"proximal": "one local step"} if self.has_one_step else {}
        return super().decided() | alone

    @property
    def has_one_step(self) -> bool:
        """Whether every client does one local step in an iteration, as in the paper."""
        return self.client_steps == 1

    @property
    def has_one_batch(self) -> bool:
        """Whether an iteration is one large batch of the group, with no model for each client."""
        is_whole = isinstance(self.messages.compression, Identity) and not self.delays.loses_updates
        is_plain = self.adversary.is_idle and isinstance(self.aggregator, rules.Mean)
        return self.has_one_step and is_whole and is_plain


def edge_training(
    problem: Losses, hyper: EdgeTraining, plan: Plan
) -> Callable[..., tuple[Params, Memo, types.Work]]:
    """Bind the iterations of groups: the slots of a tick are groups, their steps iterations.

        hyper = EdgeTraining(num_clients=8, num_groups=2, lr=1.0, batch_size=1)
        train = edge_training(problem, hyper, plan)
        groups = event.within(clients=jnp.arange(2), steps=jnp.ones(2, "int32"))
        memo, draws = EdgeWire(problem, hyper, plan).first(model), jnp.zeros(2, "int32")
        models, _, _ = train(key, groups, memo, starts=jnp.zeros((2, 3)), draws=draws)
        assert jnp.allclose(models[0], problem.centers[:4].mean(axis=0))  # a step of each client

    Returns:
      A function that is called as `train(key, event, memo, starts=starts, draws=draws)`: `memo` is
      the memory of messages on both sides; `starts` are the models that groups start from, leaves
      `[S, ...]`; and `draws`, `i32[S]`, are numbers that differ between the rounds of a group, by
      which `active_per_group` clients are drawn. It returns the groups' models, leaves `[S, ...]`,
      the memory, and the iterations spent.
    """
    train_at_once = None
    if hyper.has_one_batch:
        train_at_once = gradient_steps.local_training(
            problem, hyper, plan, gradient=group_gradient, proximal=0
        )
    wire = Wire(problem, hyper, plan)  # between clients and their local servers
    iteration_of = _iterations(problem, hyper, plan, wire)

    def train(
        key: Key, event: Event, memo: Memo, *, starts: Params, draws: Array
    ) -> tuple[Params, Memo, types.Work]:
        if train_at_once is not None:
            groups, work = train_at_once(key, event, starts=starts, extras=(draws,))
            return groups, memo, work
        # The members of every group, and the estimates of their progress if messages
        # need these.
        present = partial(present_clients, problem, hyper, key)
        clients, weight = jax.vmap(present)(jnp.maximum(event.clients, 0), draws)
        states = None
        if wire.code.has_estimates:
            known = rows.read_clients(memo.members, clients.ravel())
            known = jax.tree.map(lambda d: d.reshape(*clients.shape, *d.shape[1:]), known)
            states = jnp.zeros_like(event.steps), known

        def training(*slot: Params, **rates: Array) -> Training:
            _, _, offset, *members = slot
            return iteration_of(hyper.at_slot(rates), key, event, offset, *members)

        steps = partial(gradient_steps.local_steps, plan, event, training, starts=starts)
        members = clients, weight
        groups, states, work = steps(extras=members, states=states, rates=hyper.of_slots(event))
        if states is None:
            return groups, memo, work
        senders = jnp.where((weight > 0) & (event.steps > 0)[:, None], clients, types.EMPTY).ravel()
        sent = jax.tree.map(lambda d: d.reshape(-1, *d.shape[2:]), states[1])
        return groups, memo._replace(members=rows.write_clients(memo.members, senders, sent)), work

    return train


class EdgeCoding(stages.Coding):
    """Local servers compress their progress, and the global server decodes it."""

    name = "messages.edge_compression"


class EdgeAggregation(stages.Aggregation):
    """A rule of the global server makes a centre of the messages of local servers."""

    name = "edge_aggregator"


class EdgeWire(Wire):
    """The messages between local servers and the global one, used as `Wire` is without edges.

        few = EdgeMessages(compression=parse_compressor("top_k:kept=1"), error_feedback=True)
        hyper = EdgeTraining(num_clients=8, num_groups=2, messages=few)
        wire = EdgeWire(problem, hyper, plan)
        assert wire.senders.number == 2
        assert wire.first(model).members.shape == (8, 3)  # an estimate for each client

    Attributes:
      members: The messages between clients and their local servers.
    """

    _Coding, _Aggregation = EdgeCoding, EdgeAggregation

    def __init__(
        self, problem: Losses, hyper: EdgeTraining, plan: Plan, *, can_repeat: bool = False
    ):
        """Bind.

        Args:
          can_repeat: Whether a group may fill several slots of a tick.
        """
        self.members = Wire(problem, hyper, plan)
        between = {"compression": hyper.messages.edge_compression, "adversary": attacks.Adversary()}
        hyper = hyper.replace(aggregator=hyper.edge_aggregator, **between)  # type: ignore[attr-defined]
        super().__init__(problem, hyper, plan, can_repeat=can_repeat, num_senders=hyper.num_groups)
        self.switched_on += self.members.switched_on

    def first(self, sent: Params, *, report: Params | None = None) -> Memo:
        """Begin with the initial model, for messages of clients and of local servers.

        The arguments are those of `Wire.first`.

        Returns:
          What all sides remember.
        """
        return super().first(sent, report=report)._replace(members=self.members.code.first(sent))

    def mix(self, key: Key, event: Event, progress: Params, shares: Callable[[], Array]) -> Params:
        """Sum progress of groups with the tick's weights, which may follow their iterations.

        Running statistics and other leaves that are not trained are averaged, however many
        iterations they come from.

        Args:
          progress: Decoded progress of groups, leaves `[S, ...]`.
          shares: Makes the weights that averages have, `f[S]`.

        Returns:
          The sum, leaves `[...]`; 0 if all slots are empty.
        """
        total = self.sum(key, event, progress)
        if self.hyper.aggregation == "average" or not self.has_statistics():
            return total
        weight = shares().astype(event.weight.dtype)
        return self.of_trained(total, self.sum(key, event, progress, weight=weight))


def _iterations(
    problem: Losses, hyper: EdgeTraining, plan: Plan, wire: Wire
) -> Callable[..., Training]:
    """Bind the training of one group: its steps are iterations.

    The state of its optimizer is the number of the iteration and the estimates of the members'
    progress, leaves `[C, ...]`.
    """
    # A group's clients train like the slots of a tick, whose steps are known or counted.
    at_once = 1 if plan.slots_at_once == 1 else hyper.work.clients_at_once
    within = Plan(slots_at_once=at_once, narrow=plan.narrow)
    facts = types.Facts(all_filled=True, most_steps=hyper.client_steps, same_steps=True)
    lost_shares = loss_shares(hyper)
    facts = facts._replace(sums_to_one=lost_shares is None)

    def training(own: EdgeTraining, key: Key, event: Event, *group: Array) -> Training:
        offset, clients, weight = group
        train_clients = gradient_steps.local_training(problem, own, within)
        steps = jnp.broadcast_to(jnp.int32(hyper.client_steps), clients.shape)

        def first(edge: Params) -> tuple[Array, Params]:
            zeros = batching.replicate(jax.tree.map(jnp.zeros_like, edge), clients.shape[0])
            return jnp.int32(0), zeros if wire.code.has_estimates else ()

        def iterate(edge: Params, state: tuple[Array, Params], _: Params) -> tuple[Params, Params]:
            """Return how the group's model changes in an iteration."""
            iteration, known = state
            turns = jnp.broadcast_to(offset + iteration, clients.shape)
            of_clients = event.within(
                facts=facts, clients=clients, steps=steps, weight=weight, offset=steps * turns
            )
            # The members' local steps from the group's model, and what the local
            # server decodes of them.
            reached, _ = train_clients(key, of_clients, start=edge)
            from_edge = batching.replicate(edge, clients.shape[0])
            of_group = jax.random.fold_in(lane_stream(key, "members"), clients[0])
            rule_key = jax.random.fold_in(of_group, offset + iteration)
            is_there = jnp.where(weight > 0, clients, types.EMPTY)
            members = of_clients.within(facts=facts._replace(all_filled=False), clients=is_there)
            draws, seen = lane_stream(rule_key, "attack"), (from_edge, reached)
            reached, _ = wire.attack.client(key, members, (), *seen, draws=draws)
            sent, estimates = wire.code.decode(
                lane_stream(key, "members"), of_clients, known, from_edge, reached, turns=turns
            )
            # Their mean, over those heard; if nobody is heard the group keeps its model. Both sides
            # know of a message that is lost or not finite, and keep their estimate.
            is_kept = jnp.zeros(clients.shape, bool)
            if wire.code.has_estimates:
                is_kept = wire.senders.finite_clients(members, estimates) == types.EMPTY
            if lost_shares is not None:
                is_lost = draw_losses(lane_stream(key, "members"), lost_shares, clients, turns)
                heard, is_kept = jnp.where(is_lost, 0, weight), is_kept | is_lost
                total = heard.sum()
                is_there = jnp.where(is_lost, types.EMPTY, is_there)
                share = heard / jnp.where(total > 0, total, 1)
                members = members.within(facts=members.facts, clients=is_there, weight=share)
            estimates = aggregation.where_slots(is_kept, known, estimates)
            mean = wire.mean(rule_key, members, edge, sent)
            return jax.tree.map(jnp.subtract, mean, edge), (iteration + 1, estimates)

        return Training(lambda edge, _: edge, optax.GradientTransformation(first, iterate))

    return training


def group_gradient(
    problem: Losses, hyper: EdgeTraining, key: Key, group: Array, offset: Array, draw: Array
) -> BatchGradient:
    """Return the weighted mean gradient of a group's clients: sum_k g_{i,k} / |N_i| by default.

    A client's batches and noise are the same as in any other system after `offset` local steps.

    Args:
      group: `i32[]`.
      offset: `i32[]`, iterations that the group has done before.
      draw: As in `present_clients`.
    """
    mini_batches.check_plain(problem)
    of_lane = lane_key(key)  # A loop would carry the tick's key too.
    clients, weight = present_clients(problem, hyper, of_lane, group, draw)
    at_once = min(hyper.work.clients_at_once, clients.shape[0])
    padding = -clients.shape[0] % at_once
    clients = jnp.concatenate([clients, jnp.repeat(clients[:1], padding)]).reshape(-1, at_once)
    weight = jnp.pad(weight, (0, padding)).reshape(-1, at_once)

    def loss(model: Params, q: Array, clients: Array, weight: Array) -> Array:
        def of_client(client: Array) -> Array:
            return mini_batches.batch_loss(problem, hyper, of_lane, client, offset)(model, q)

        losses = jax.vmap(of_client)(clients)
        return jnp.sum(weight.astype(losses.dtype) * losses)

    if clients.shape[0] == 1:
        return LossGradient(lambda model, aux, q: (loss(model, q, clients[0], weight[0]), aux))

    def gradient(model: Params, q: Array) -> Params:
        def add(total: Params, chunk: tuple[Array, Array]) -> tuple[Params, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(model, q, *chunk)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, model), (clients, weight))[0]

    return gradient


def present_clients(
    problem: Losses, hyper: EdgeTraining, key: Key, group: Array, draw: Array
) -> tuple[Array, Array]:
    """Find the clients of a group that take part in a round, and their weights in its mean.

    Args:
      group: `i32[]`.
      draw: `i32[]`, different for every round of the group, by which `active_per_group` clients are
        drawn.

    Returns:
      `i32[C]` and `f[C]`; padding has weight 0.
    """
    everyone = list_members(hyper)
    clients, is_there = jnp.asarray(everyone.clients)[group], jnp.asarray(everyone.is_there)[group]
    if 0 < hyper.grouping.active_per_group < clients.shape[0]:
        size = jnp.asarray(everyone.size)[group]
        places = jnp.arange(hyper.grouping.active_per_group)
        is_there = places < size
        bits = shuffle_bits(jax.random.fold_in(lane_stream(key, "active"), group))
        clients = clients[shuffled_index(bits, jnp.minimum(places, size - 1), size, draw)]
    weight = is_there.astype(float)
    if hyper.work.weighting == "examples":
        weight = jnp.where(is_there, problem.counts[clients], 0).astype(float)
    return clients, weight / weight.sum()


def iteration_examples(hyper: EdgeTraining) -> int:
    """Count the examples of an iteration of the largest group that are in memory together.

    hyper = EdgeTraining(num_clients=8, num_groups=2, batch_size=10, client_steps=3)
    assert iteration_examples(hyper) == 4 * 10 * 3  # four clients in a group
    """
    largest = list_members(hyper).clients.shape[1]
    clients = min(hyper.grouping.active_per_group or largest, largest, hyper.work.clients_at_once)
    return hyper.batch_size * clients * hyper.client_steps


class GroupMessages(report_settings.ReportMessages):
    """The messages of groups, with their reports to the global server, and its answers.

    In every iteration a model goes down to each client that takes part and one comes back, which is
    also counted if it is lost.

        hyper = EdgeTraining(num_clients=8, num_groups=2)
        assert GroupMessages().bits(jnp.zeros(3), hyper) == (3 * 32, 3 * 32)
        groups, iterations = np.array([[0, 1]]), np.array([[2, 5]])
        timeline = run.timelines[0]._replace(clients=groups, steps=iterations)
        bits = GroupMessages().further(problem, hyper, timeline)["client_uplink_bits"]
        assert bits == (2 + 5) * 4 * 3 * 32  # four clients in a group, three numbers
    """

    def per_tick(
        self, problem: types.Problem, hyper: EdgeTraining, timeline: Timeline
    ) -> report_settings.Bits:
        """Count the bits that groups and the global server send at each tick, `i64[T]` each."""
        model, compressor = trees.shapes_of_model(problem), hyper.messages.edge_compression
        reports = (timeline.clients >= 0).sum(axis=1, dtype=np.int64)
        up = hyper.edge_aggregator.chosen.message_bits(compressor, model)
        return reports * up, report_settings.count_downlink(hyper, timeline, model)

    def further(
        self, problem: types.Problem, hyper: EdgeTraining, timeline: Timeline
    ) -> dict[str, types.Leaf]:
        """Count the bits sent between clients and their local servers at each tick."""
        clients = np.asarray(delay_sizes(hyper), np.int64)
        each = np.where(timeline.clients >= 0, timeline.steps * clients[timeline.clients], 0)
        up, down = self.bits(trees.shapes_of_model(problem), hyper)
        messages = each.sum(axis=1)
        return {"client_uplink_bits": messages * up, "client_downlink_bits": messages * down}

    def num_senders(self, hyper: EdgeTraining) -> int:
        """Return the number of groups, which are the slots."""
        return hyper.num_groups

    def check(self, hyper: EdgeTraining, timeline: Timeline) -> None:
        """Check the rules of local servers and of the global one."""
        hyper.edge_aggregator.chosen.check_ticks(hyper, "edge_aggregator", timeline)
        rule, active = hyper.aggregator.chosen, hyper.grouping.active_per_group
        sizes = np.asarray(list_members(hyper).size)
        rule.check_heard("aggregator", np.minimum(sizes, active) if active else sizes)
        if rule.weighs:
            return
        if hyper.work.weighting != "equal":
            allowed = f"equal with {rule}, which does not weigh messages"
            raise ConfigError("work.weighting", hyper.work.weighting, allowed)
        if rule.least_present() > 1 and loss_shares(hyper) is not None:
            allowed = f"a rule that can do with one message where messages may be lost; {rule} "
            allowed += f"needs {rule.least_present()}"
            raise ConfigError("aggregator", str(rule), allowed)
