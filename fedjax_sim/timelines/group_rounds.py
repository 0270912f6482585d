"""Rounds of groups: as many local iterations as begin before a sync time, then a global exchange.

    S -> `sync_times`    tau_{i,l}^u -> `iteration_times`    t_i^u -> `GroupWork.steps`    tau_g^u -> `exchange_times`

Ali and Arafa, arXiv 2302.04851, Sec. II. In round u every group does local iterations until a time S has passed since the round began:
t_i = min{n >= 1: tau_{i,1} + ... + tau_{i,n} >= S} (Eq. 7). An iteration begun is completed and counted, so t_i >= 1 always. Groups that
are done wait for the last one; then the exchange takes tau_g (Eq. 9 and 13). The slots of a tick are the groups.

Draws belong to a round, an iteration and a group (or client), whatever S is: schedules that differ in S or c_g see the same ones, and t_i
and the length of a round grow with S path by path. Dimension letters: `U` rounds, `M` groups, `J` ticks of a round.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.streams import stream
from fedjax_sim.timelines.groups import Groups, exchange_law, group_shares, iteration_law, members
from fedjax_sim.timelines.laws import client_speeds, runtimes
from fedjax_sim.types import Array, Key, Timeline


def iteration_times(key: Key, groups: Groups, round_number: Array, iteration: Array) -> Array:
    """Draw how long every group's local iteration takes, tau_{i,l}^u: `f64[M]`. round_number, iteration: `i[]`, from 0."""
    own = jax.random.fold_in(jax.random.fold_in(stream(key, "iterations"), round_number), iteration)
    if groups.delays == "client":
        times = runtimes(own, client_speeds(key, groups), 1, groups.runtime_law)[:, 0]
        return times[members(groups).clients].max(axis=1)
    shift, mean = iteration_law(groups)
    return shift + mean * jax.random.exponential(own, shift.shape)


def exchange_times(key: Key, groups: Groups, num_rounds: int) -> Array:
    """Draw how long the global exchange of every round takes, tau_g^u: `f64[U]`."""
    shift, mean = exchange_law(groups)
    own = stream(key, "exchange")
    standard = jax.vmap(lambda u: jax.random.exponential(jax.random.fold_in(own, u)))(
        jnp.arange(num_rounds)
    )
    return shift + mean * standard


def sync_times(groups: Groups, num_rounds: int) -> Array:
    """The sync time S_u of every round: `f64[U]`."""
    final, growth = jnp.asarray(groups.sync_time, float), jnp.asarray(groups.sync_growth, float)
    return jnp.where(growth > 0, jnp.minimum(final, growth * (1 + jnp.arange(num_rounds))), final)


Progress = tuple[Array, Array, Array, Array]
"""Within a round: the iteration, and for every group the time passed, iterations done, and those done by each mark."""


class GroupWork(NamedTuple):
    """What every group did in every round."""

    steps: Array  # i[U, J, M]  t_i^u so far, at the end of each of the round's ticks
    busy: Array  # f64[U, M]  time from the round's beginning until the group was done


def group_work(key: Key, groups: Groups, num_rounds: int) -> GroupWork:
    """Count local iterations, round by round: until the sync time has passed, and at least one (Eq. 7).

    Deviation: Algorithm 1 goes on while the time passed is at most S, which differs from Eq. 7 where it equals S; and Eq. 7 alone would
    give no iteration for S = 0, where the paper's baseline has one.
    """
    # Each tick but the last of a round counts what was done by its part of the sync time.
    parts = jnp.arange(1, groups.ticks_per_round) / groups.ticks_per_round

    def one_round(number: Array, sync_time: Array) -> tuple[Array, Array]:
        marks = parts * sync_time

        def is_short(progress: Progress) -> Array:
            iteration, busy, _, _ = progress
            return (iteration == 0) | jnp.any(busy < sync_time)

        def iterate(progress: Progress) -> Progress:
            iteration, busy, steps, by_mark = progress
            goes_on = (iteration == 0) | (busy < sync_time)
            busy = jnp.where(goes_on, busy + iteration_times(key, groups, number, iteration), busy)
            is_before = goes_on[None] & (busy[None] <= marks[:, None])
            return iteration + 1, busy, steps + goes_on, by_mark + is_before

        nothing = jnp.zeros(groups.num_groups, int)
        begin = (
            jnp.zeros((), int),
            nothing.astype(float),
            nothing,
            jnp.zeros((len(parts), groups.num_groups), int),
        )
        _, busy, steps, by_mark = jax.lax.while_loop(is_short, iterate, begin)
        return jnp.concatenate([by_mark, steps[None]]), busy

    return GroupWork(*jax.vmap(one_round)(jnp.arange(num_rounds), sync_times(groups, num_rounds)))


def aggregation_weights(shares: Array, steps: Array, aggregation: str) -> Array:
    """Weights of the groups' progress. shares: `f[M]`, sum 1. steps: `i[U, M]`, at least 1. Returns `f[U, M]`.

    With one step everywhere these are the shares, whatever the aggregation.
    """
    shares, steps = jnp.broadcast_to(shares, steps.shape), steps.astype(shares.dtype)
    match aggregation:
        case "average":
            return shares
        case "fednova":
            return shares / steps * jnp.sum(shares * steps, axis=1, keepdims=True)
    return shares / steps


def schedule_group_rounds(key: Key, hyper: Groups, num_ticks: int) -> Timeline:
    """Schedule rounds of groups. A slot is a group, its client index the group's number; the exchange after the initial model is free.

    All ticks of a round have the version that it began with, and its last one makes the next; before it the weights are 0.
    """
    per_round = hyper.ticks_per_round
    num_rounds = -(-num_ticks // per_round)
    work = group_work(key, hyper, num_rounds)
    length = work.busy.max(axis=1) + exchange_times(key, hyper, num_rounds)
    # Deviation: Algorithm 1 sets the clock to the length of the last round; it adds up (Eq. 13). One by one, as sums of more rounds may be
    # taken in another order.
    end = jax.lax.scan(lambda clock, length: (clock + length,) * 2, jnp.zeros(()), length)[1]
    parts = jnp.arange(1, per_round) / per_round
    within = (end - length)[:, None] + sync_times(hyper, num_rounds)[:, None] * parts[None]
    time = jnp.concatenate([within, end[:, None]], axis=1)

    is_last = jnp.arange(per_round) == per_round - 1
    weight = (
        aggregation_weights(jnp.asarray(group_shares(hyper)), work.steps[:, -1], hyper.aggregation)[
            :, None
        ]
        * is_last[None, :, None]
    )
    first = jnp.arange(num_rounds) * per_round
    version = jnp.broadcast_to(first[:, None, None], work.steps.shape)
    leaves = {
        "time": time,
        "clients": jnp.broadcast_to(jnp.arange(hyper.num_groups), work.steps.shape),
        "steps": jnp.diff(work.steps, axis=1, prepend=0),
        "version": version,
        "weight": weight,
        # At a round's end the groups have the new model.
        "holds": version + per_round * is_last[None, :, None],
    }
    return Timeline(
        **{name: leaf.reshape(-1, *leaf.shape[2:])[:num_ticks] for name, leaf in leaves.items()}
    )


def group_rounds_within(hyper: Groups, time: float) -> float:
    """About how many ticks fit in a stretch of virtual time; not inside a trace."""
    sync_time = np.where(np.asarray(hyper.sync_growth) > 0, 0.0, np.asarray(hyper.sync_time, float))
    length = np.maximum(sync_time, np.max(hyper.mean_iteration())) + np.add(*exchange_law(hyper))
    return float(np.max(time / length)) * hyper.ticks_per_round
