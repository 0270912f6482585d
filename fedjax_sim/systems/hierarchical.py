"""Delay-sensitive hierarchical federated learning (Ali and Arafa, arXiv 2302.04851), Algorithm 1 as corrected by its equations.

    x^u -> `state.server`    x_i^{u,l} -> `state.groups`    alpha -> `hyper.lr`    t_i^u -> `event.steps`    S -> `hyper.sync_time`
    N_i -> `members`         |N_i| / (N t_i^u) -> `event.weight`                   g_{i,k} -> `group_gradient`

Clients are partitioned into groups with a local server each. In a local iteration every client of a group takes one SGD step from the local
server's model, which becomes their mean (Eq. 5 and 6); the global server adds the groups' progress, divided by their numbers of iterations
and weighted by their numbers of clients (Eq. 12). What the groups' weights are, the schedule alone decides: see `timelines.Groups`.

As clients start every iteration from one model and take one step, a group is mini-batch SGD with the mean of its clients' gradients. So
there is a model per group and none per client, and an iteration is one large batch. Local steps are counted in iterations of groups, and
messages between their servers and the global one.

Groups of unequal size are padded to the largest: `executed` and `needed` count iterations of groups, each of which evaluates as many client
gradients as the largest group has clients, so sizes of 5 and 15 run 1.5 times those that count. A client's batches and noise are keyed by
its number and by the iterations that its group has done since the run began, not by round: after a round of other length they are others.

A sweep over S, c_g and seeds is one program although its lanes differ in their numbers of rounds. Lane by lane, as on a CPU, a tick past a
lane's end does no iteration. Batched, as on an accelerator, lanes are sorted by their work into so many batches that the iterations of
every tick's longest group stay within 1.5 times those needed (`scripts/benchmark.py hierarchical`).

Deviation: Algorithm 1 sets the clock where Eq. 13 adds up, and its loops go on while the time passed *is at most* S or T, where Eq. 7 and
13 say until it *is at least*; the equations are followed. A group does at least one iteration, as the baseline S = 0 needs.

Readings. The local server's mean is unweighted, and the global server counts clients, not examples; `client_weights` and `group_weights`
have the alternatives. Division by t_i makes a round about one SGD step long, whatever S is; `aggregation` "average" takes the mean of the
groups' models instead, and "fednova" FedNova's rescaled division. Delays are drawn per group; `delays="client"` draws them per client and
waits for the slowest, which the paper does not do. Growing sync times are min(S, u `sync_growth`); the paper tells only that they go
"gradually" from 1 to 5. The round that crosses the time budget is completed and counted. Batches are drawn afresh from the client's
examples; its size 32 and all learning rates are ours. Isolated groups are S = T, looked at on the way with `ticks_per_round` and
`group_metrics`.

There are two levels, no tree: servers in between would do numbers of rounds of their own between two global ones, and a tick here is one
round of all groups.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.clients.gradient_steps import BatchGradient, LocalTraining, batch_loss, local_sgd
from fedjax_sim.server.aggregation import (
    read_rows,
    replicate,
    squared_distance,
    weighted_sum,
    write_clients,
)
from fedjax_sim.settings import ConfigError, choice, count, redefault, struct, switch
from fedjax_sim.streams import shuffle_bits, shuffled_index, stream
from fedjax_sim.timelines import Groups, group_rounds_within, members, schedule_group_rounds
from fedjax_sim.types import (
    Algorithm,
    Array,
    Event,
    Key,
    Leaf,
    Params,
    Plan,
    Problem,
    System,
    Timeline,
    Work,
    full_precision_bits,
)


@struct
class Hyper(Groups, LocalTraining):
    """Settings of hierarchical learning: its groups' and clock's, its local training's, and the weights within a group."""

    batch_size: int = redefault(LocalTraining, "batch_size", 32)
    sampling: str = redefault(LocalTraining, "sampling", "with_replacement")
    client_weights: str = choice(
        "equal",
        ("equal", "examples"),
        "Of the clients of a group in its mean: equal, as in the paper, or their numbers of examples.",
    )
    clients_at_once: int = count(1000, "Clients of a group whose batches are in memory together.")
    group_metrics: bool = switch(
        False,
        "Whether the groups' models are evaluated too, just before the global model replaces them: `accuracy_group_0` and so on.",
    )

    def check_together(self) -> None:
        super().check_together()
        if self.ticks_per_round > 1 and self.optimizer is not optax.sgd:
            raise ConfigError(
                "ticks_per_round",
                self.ticks_per_round,
                "1 with an optimizer other than sgd, whose state a tick begins anew",
            )
        if self.ticks_per_round > 1 and self.sampling == "reshuffled":
            raise ConfigError(
                "ticks_per_round",
                self.ticks_per_round,
                '1 with sampling "reshuffled", as a tick would shuffle anew',
            )
        if self.active_per_group > 0 and self.sampling != "with_replacement":
            allowed = '"with_replacement" with active_per_group, as clients do not count the iterations they are absent from'
            raise ConfigError("sampling", self.sampling, allowed)


class State(NamedTuple):
    server: Params  # [...]
    groups: Params  # [M, ...]  what the groups reached by the end of the last tick


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind hierarchical learning to a problem."""

    def init(key: Key) -> State:
        server = problem.init(key)
        return State(server, replicate(server, hyper.num_groups))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        slots = event.clients.shape[0]
        first_tick = event.version.max()  # of the round
        begins, goes_on = (
            replicate(state.server, slots),
            read_rows(state.groups, jnp.maximum(event.clients, 0)),
        )
        start = jax.tree.map(
            lambda x, y: jnp.where(first_tick == event.tick, x, y), begins, goes_on
        )  # x_i^{u,0} = x^u
        gradient = partial(group_gradient, round_number=first_tick // hyper.ticks_per_round)
        groups, work = local_sgd(problem, hyper, plan, key, start, event, gradient=gradient)
        progress = jax.tree.map(lambda y, x: y - x[None], groups, state.server)  # x_i^{u,t_i} - x^u
        server = jax.tree.map(jnp.add, state.server, weighted_sum(event.weight, progress))  # (12)
        return State(server, write_clients(state.groups, event.clients, groups)), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        distance = squared_distance(state.groups, state.server)
        metrics = {"client_variance": (distance * members(hyper).size.astype(distance.dtype)).sum()}
        if hyper.group_metrics:
            each = jax.lax.map(problem.evaluate, state.groups)
            metrics |= {
                f"{name}_group_{i}": value[i]
                for name, value in each.items()
                for i in range(hyper.num_groups)
            }
        return metrics

    return Algorithm(init, step, lambda state: state.server, report)


def group_gradient(
    problem: Problem, hyper: Hyper, key: Key, group: Array, offset: Array, *, round_number: Array
) -> BatchGradient:
    """The weighted mean of the gradients of a group's clients, all at one model: sum_k g_{i,k} / |N_i| by default.

    round_number: of the round, by which `active_per_group` clients are drawn. A client's batches and noise are those it has in any other
    system after `offset` local steps.
    """
    clients, weight = _present(problem, hyper, key, group, round_number)
    at_once = min(hyper.clients_at_once, clients.shape[0])
    padding = -clients.shape[0] % at_once
    clients = jnp.concatenate([clients, jnp.repeat(clients[:1], padding)]).reshape(-1, at_once)
    weight = jnp.pad(weight, (0, padding)).reshape(-1, at_once)

    def gradient(model: Params, q: Array) -> Params:
        def loss(model: Params, clients: Array, weight: Array) -> Array:
            each = jax.vmap(
                lambda client: batch_loss(problem, hyper, key, client, offset)(model, q)
            )(clients)
            return jnp.sum(weight.astype(each.dtype) * each)

        def add(total: Params, chunk: tuple[Array, Array]) -> tuple[Params, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(model, *chunk)), None

        if clients.shape[0] == 1:
            return jax.grad(loss)(model, clients[0], weight[0])
        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, model), (clients, weight))[0]

    return gradient


def _present(
    problem: Problem, hyper: Hyper, key: Key, group: Array, round_number: Array
) -> tuple[Array, Array]:
    """The clients of a group that take part in a round, and their weights in its mean, 0 for padding: `i32[C]`, `f[C]`."""
    everyone = members(hyper)
    clients, is_there = jnp.asarray(everyone.clients)[group], jnp.asarray(everyone.is_there)[group]
    if 0 < hyper.active_per_group < clients.shape[0]:
        size = jnp.asarray(everyone.size)[group]
        places = jnp.arange(hyper.active_per_group)
        is_there = places < size
        bits = shuffle_bits(jax.random.fold_in(stream(key, "active"), group))
        clients = clients[shuffled_index(bits, jnp.minimum(places, size - 1), size, round_number)]
    weight = (
        is_there.astype(float)
        if hyper.client_weights == "equal"
        else jnp.where(is_there, problem.counts[clients], 0).astype(float)
    )
    return clients, weight / weight.sum()


def step_examples(hyper: Hyper) -> int:
    """Of a group's step: the mini-batches of all clients that are in memory together, of the largest group."""
    largest = members(hyper).clients.shape[1]
    return hyper.batch_size * min(hyper.active_per_group or largest, largest, hyper.clients_at_once)


def traffic(problem: Problem, hyper: Hyper, timeline: Timeline) -> tuple[Leaf, Leaf]:
    """Bits sent at each tick, `i64[T]` each: a model up from each group and one down to it, at the last tick of every round."""
    num_ticks = timeline.clients.shape[0]
    is_last = np.arange(num_ticks) % hyper.ticks_per_round == hyper.ticks_per_round - 1
    messages = (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * is_last
    bits = messages * full_precision_bits(jax.eval_shape(problem.init, jax.random.key(0)))
    return bits, bits


system = System(
    name="hierarchical",
    summary="groups with local servers iterate until a sync time; their progress is divided by their iterations and averaged",
    Hyper=Hyper,
    timeline=schedule_group_rounds,
    algorithm=algorithm,
    ticks_within=group_rounds_within,
    traffic=traffic,
    step_examples=step_examples,
)
