"""Asynchronous hierarchical learning: each group reports when it is done.

    x -> `state.server`    x_i -> `groups`    Z -> `hyper.num_reports`    beta -> `hyper.server_lr`
    c_i -> `event.weight`

The groups of `systems.hierarchical` (Ali and Arafa, arXiv 2302.04851) do not wait for each other. A
group i takes the global model x^v, iterates until the sync time S has passed, and reports
D_i = x_i - x^v, with an exchange delay of its own. It continues from the global model of that
moment. The global server mixes reports as FedBuff does (Nguyen et al. 2022, arXiv 2106.06639): when
Z of them have arrived,

    x <- x + beta sum_i c_i D_i,    c_i = (M w_i / Z) s(tau_i) r_i

with weights w_i of the groups and staleness tau_i, the number of global models made since x^v. The
discount s is chosen by `rule`: "mean" is 1. The factor r_i is that of `aggregation`, for t_i
iterations: 1 / t_i with "divide_by_steps", 1 with "average", and T / t_i with "fednova", where T is
the mean of t over the buffer, weighted like the D_i.

Even if all groups report together, only the one that fills the buffer continues from the new model.
With one group and Z = 1 this is the synchronous system. For `client_variance` a group is one holder
of a model, whatever its size.

The paper names asynchronous groups as future work; these rules are ours.
"""

import jax
import jax.numpy as jnp

from fedjax_sim import timelines
from fedjax_sim.core import types
from fedjax_sim.core.settings import ConfigError, group, struct
from fedjax_sim.core.types import Algorithm, Event, Key, Plan, Problem, Timeline, Work
from fedjax_sim.server import ServerRate, edges
from fedjax_sim.server.compression import Identity
from fedjax_sim.server.staleness import StalenessWeights, staleness_weights
from fedjax_sim.server.versions import Versioned, stale_models
from fedjax_sim.timelines import GroupArrivals, presets


@struct
class Hyper(GroupArrivals, edges.EdgeTraining, ServerRate):
    """Settings of asynchronous groups: clock, local training, discount, server learning rate."""

    staleness: StalenessWeights = group(
        StalenessWeights(rule="mean", normalised=False), "weights of the reports in a buffer"
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If clients would need an estimate that their group is still making.
        """
        super().check_together()
        is_compressed = not isinstance(self.messages.compression, Identity)
        if self.messages.error_feedback and is_compressed and self.num_reports > 1:
            allowed = (
                "false with num_reports above 1 and compressed messages of clients, because a "
                "group may report twice at once, and its second round needs estimates of the first"
            )
            raise ConfigError("messages.error_feedback", True, allowed)


def timeline(key: Key, hyper: Hyper, num_ticks: int) -> Timeline:
    """Schedule reports of groups; the weight of a slot is c_i."""
    schedule = timelines.schedule_group_arrivals(key, hyper, num_ticks)  # M w_i / Z
    staleness = jnp.arange(num_ticks)[:, None] - schedule.version
    clients, num = schedule.clients, hyper.num_groups
    discount = staleness_weights(clients, staleness, hyper.staleness, num_clients=num)
    weight = schedule.weight * (discount * hyper.num_reports)
    total = weight.sum(axis=1, keepdims=True)
    share = weight / jnp.where(total > 0, total, 1)
    rule = timelines.aggregation_weights(share, schedule.steps, hyper.aggregation)
    return schedule._replace(weight=total * rule)


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[Versioned, Work]:
    """Bind asynchronous hierarchical learning to a problem."""
    train = edges.edge_training(problem, hyper, plan)
    wire = edges.EdgeWire(problem, hyper, plan, can_repeat=True)

    def init(key: Key) -> Versioned:
        return wire.first_version(problem.init(key))

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)  # x^v
        # A group's iterations before a round number its rounds.
        groups, memo, work = train(key, event, state.memo, starts=start, draws=event.offset)
        reports, memo = wire.receive(key, event, memo, start, groups)
        progress = jax.tree.map(jnp.subtract, reports, start)  # D_i
        mixed = wire.sum(key, event, progress)  # 0 if all slots are empty
        rate = hyper.at_tick(event).server_lr
        server = jax.tree.map(lambda x, d: x + rate * d, state.server, mixed)
        return wire.next_version(key, event, state, memo, server), work

    return wire.algorithm(init, step)


paper = presets.preset(Hyper, presets.GROUPS)
system = types.System(
    "async_hierarchical",
    Hyper,
    timeline,
    algorithm,
    "groups with local servers that report one by one; the global server mixes what has arrived",
    can_repeat=True,
    messages=edges.GroupMessages(),
    hints=types.Hints(timelines.group_arrivals_within, edges.iteration_examples),
    fit=types.Fit(complete=timelines.complete_groups),
    paper=paper,
)
