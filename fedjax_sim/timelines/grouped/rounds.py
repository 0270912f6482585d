"""Rounds of groups: local iterations until a sync time has passed, then a global exchange.

Ali and Arafa, arXiv 2302.04851, Sec. II. In round u every group does local iterations until a time
S has passed since the round began: t_i = min{n >= 1: tau_{i,1} + ... + tau_{i,n} >= S} (Eq. 7). An
iteration that has begun is completed and counted, so t_i >= 1 always. Groups that are done wait for
the last one; then the exchange takes tau_g (Eq. 9 and 13). With `exchanges="group"`, which is not
in the paper, every group's exchange takes its own time and begins when the group is done; the round
ends with the last of them. The slots of a tick are the groups. A round is one tick, or several if
groups are to be evaluated before it ends (`ticks_per_round`).

A delay is drawn for its round, iteration and group (or client), whatever S is. Schedules that
differ in S, or in c_g, the least that tau_g can be, therefore see the same delays, and on every
path t_i and the length of a round grow with S.

The paper's symbols: S is `sync_times`, tau_{i,l}^u is `iteration_times`, t_i^u is
`GroupWork.steps`, and tau_g^u is `exchange_times`.

Clients that have hours (with `delays_of="client"`) stop at a break, and continue after it; their
group waits for them. Rounds are then drawn one after another, because delays depend on when a round
begins.

Asynchronous groups (`GroupArrivals`) do not wait for each other. A group takes the global model,
iterates until the sync time has passed, and exchanges models with the global server, which takes
the group's own time tau_g. It then begins its next round from the global model. The global server
acts whenever its buffer of Z reports is full, as in buffered arrivals
(`fedjax_sim.timelines.Arrivals` with `restart="free"`): a report that fills the buffer is in the
model with which its group continues, and a fast group may fill several slots of one buffer. The
u-th round of a group has the delays that it has in the u-th synchronous round with
`exchanges="group"`. A single group, with a buffer of one, therefore has the same schedule in both.

Dimension letters: `U` rounds, `M` groups, `J` ticks of a round, `T` ticks, `A` reports of
asynchronous groups, `Z` reports of a buffer (slots of a tick).
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import Above0, Count, Limit, OneOf, checked, shape
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Array, Key, Timeline
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.delays.devices import close, draw_devices
from fedjax_sim.timelines.delays.laws import Speeds, draw_runtimes
from fedjax_sim.timelines.grouped.groups import AGGREGATIONS, GroupArrivals, Groups, list_members


def iteration_times(
    key: Key, groups: Groups, round_number: Array, iteration: Array, begin: Array | None = None
) -> Array:
    """Draw how long one local iteration of every group takes, tau_{i,l}^u.

    Args:
      groups: Settings.
      round_number: Number of the round from 0, `i[]`.
      iteration: Number of the iteration in its round from 0, `i[]`.
      begin: Virtual times at which the groups begin it, `f64[M]`; needed if clients have breaks.

    Returns:
      Virtual times, `f64[M]`. With delays of clients a group takes as long as its slowest client,
      whose breaks are a part of that.
    """
    round_key = jax.random.fold_in(lane_stream(key, "iterations"), round_number)
    iteration_key = jax.random.fold_in(round_key, iteration)
    if groups.clock.delays_of == "client":
        devices, clients = draw_devices(key, groups), jnp.asarray(list_members(groups).clients)
        running = _client_times(iteration_key, devices.speeds, groups)[clients]
        begin = jnp.zeros(len(clients)) if begin is None else begin
        start = begin[:, None] + jnp.zeros_like(running)
        finish = devices.times_of_work(clients, start, running)[1]
        return (finish - begin[:, None]).max(axis=1)
    shift, mean = groups.iteration_law()
    return shift + mean * jax.random.exponential(iteration_key, shift.shape)


def _client_times(key: Key, speeds: Speeds, groups: Groups) -> Array:
    """Draw how long every client's local steps of one iteration take: `f64[N]`."""
    if groups.steps_of_epochs is None or groups.delays.time_of == "update":
        num = groups.times_per_update
        return draw_runtimes(key, speeds, num, groups.delays.law).sum(axis=1)

    steps = jnp.asarray(groups.steps_of_epochs).astype(int)

    def add(q: Array, total: Array) -> Array:
        taken = draw_runtimes(jax.random.fold_in(key, q), speeds, 1, groups.delays.law)
        return jnp.where(q < steps, total + taken[:, 0], total)

    return jax.lax.fori_loop(0, steps.max(), add, jnp.zeros_like(speeds.rate))


def exchange_times(key: Key, groups: Groups, num_rounds: int) -> Array:
    """Draw how long the global exchange of every round takes, tau_g^u.

    Args:
      groups: Settings.
      num_rounds: Number of rounds U.

    Returns:
      Virtual times, `f64[U, M]` with exchanges of groups and `f64[U, 1]` with one exchange of all.
    """
    shift, mean = groups.exchange_law()
    exchange_key = lane_stream(key, "exchange")
    shape = (groups.num_groups,) if groups.exchange.exchanges == "group" else ()
    draw = jax.vmap(lambda u: jax.random.exponential(jax.random.fold_in(exchange_key, u), shape))
    standard = draw(jnp.arange(num_rounds)).reshape(num_rounds, -1)
    return jnp.atleast_1d(shift)[None] + jnp.atleast_1d(mean)[None] * standard


def sync_times(groups: Groups, num_rounds: int) -> Array:
    """Compute the sync time S_u of every round.

    Args:
      groups: Settings.
      num_rounds: Number of rounds U.

    Returns:
      Virtual times, `f64[U]`.
    """
    final = jnp.asarray(groups.sync_time, float)
    growth = jnp.asarray(groups.clock.sync_growth, float)
    return jnp.where(growth > 0, jnp.minimum(final, growth * (1 + jnp.arange(num_rounds))), final)


Progress = tuple[Array, Array, Array, Array]
"""Progress within a round.

The number of the iteration `i[]`; and for every group the time passed `f64[M]`, the iterations done
`i[M]`, and the iterations done by the end of each tick but the last `i[J - 1, M]`.
"""


class GroupWork(NamedTuple):
    """Work of every group in every round.

    Attributes:
      steps: `i[U, J, M]`, iterations of the round done by the end of each of its ticks; at the last
        tick these are t_i^u.
      busy: `f64[U, M]`, virtual time from the beginning of the round until the group was done.
    """

    steps: Array
    busy: Array


def all_together(busy: Array, exchange: Array) -> Array:
    """Compute how long rounds last that end with the last group: `f64[..., M]`.

    Args:
      busy: `f64[..., M]`, time from the beginning of a round until the group was done.
      exchange: `f64[..., M or 1]`, time of its exchange.
    """
    longest = (busy + exchange).max(axis=-1, keepdims=True)
    return jnp.broadcast_to(longest, busy.shape)


def group_work(
    key: Key, groups: Groups, num_rounds: int, length: Callable[[Array, Array], Array] = jnp.add
) -> GroupWork:
    """Count each group's local iterations in every round.

    A group iterates until the sync time has passed, and at least once (Eq. 7), or `min_iterations`
    times. Deviation: Algorithm 1 continues while the time passed is at most S, which differs from
    Eq. 7 where it equals S. Eq. 7 without "at least once" would give no iteration for S = 0, where
    the paper's baseline has one.

    Args:
      groups: Settings.
      num_rounds: Number of rounds U.
      length: From times as those of `all_together` to how long rounds last; by default no group
        waits for another. It matters if clients have breaks, because their work then depends on
        when a round begins.

    Returns:
      Iterations and times of every group.
    """
    # Each tick of a round but the last counts what was done by its part of the sync time.
    parts = jnp.arange(1, groups.clock.ticks_per_round) / groups.clock.ticks_per_round
    least = jnp.asarray(groups.clock.min_iterations, int)

    def one_round(number: Array, sync_time: Array, start: Array | None = None) -> list[Array]:
        # Iterations that exactly fill the sync time do so whatever the last bits of their sum.
        slack = close(sync_time) * sync_time
        goal, marks = sync_time - slack, parts * sync_time + slack

        def is_short(progress: Progress) -> Array:
            iteration, busy, _, _ = progress
            return (iteration < least) | jnp.any(busy < goal)

        def iterate(progress: Progress) -> Progress:
            iteration, busy, steps, by_mark = progress
            continues = (iteration < least) | (busy < goal)
            begin = None if start is None else start + busy
            taken = iteration_times(key, groups, number, iteration, begin)
            busy = jnp.where(continues, busy + taken, busy)
            is_before = continues[None] & (busy[None] <= marks[:, None])
            return iteration + 1, busy, steps + continues, by_mark + is_before

        nothing = jnp.zeros(groups.num_groups, int)
        by_mark = jnp.zeros((len(parts), groups.num_groups), int)
        first = jnp.zeros((), int), nothing.astype(float), nothing, by_mark
        _, busy, steps, by_mark = jax.lax.while_loop(is_short, iterate, first)
        return [jnp.concatenate([by_mark, steps[None]]), busy]

    # Without breaks rounds do not depend on when they begin, and are computed together.
    numbers, syncs = jnp.arange(num_rounds), sync_times(groups, num_rounds)
    if groups.clock.delays_of == "group" or draw_devices(key, groups).windows is None:
        return GroupWork(*jax.vmap(one_round)(numbers, syncs))

    def next_round(start: Array, round_of: tuple[Array, Array, Array]) -> tuple[Array, GroupWork]:
        number, sync_time, exchange = round_of
        work = GroupWork(*one_round(number, sync_time, start))
        return start + length(work.busy, exchange), work

    exchanges = exchange_times(key, groups, num_rounds)
    start = jnp.zeros(groups.num_groups)
    return jax.lax.scan(next_round, start, (numbers, syncs, exchanges))[1]


def aggregation_weights(
    shares: Annotated[Array, shape("M", "U M"), Limit(least=0)],
    steps: Annotated[Array, shape("U M"), Limit(least=1)],
    aggregation: Annotated[str, OneOf(AGGREGATIONS)],
) -> Array:
    """Compute the weights of the groups' progress in every round.

    With one step everywhere the weights are the shares, whatever the aggregation.

        shares, steps = jnp.array([0.5, 0.5]), jnp.array([[1, 4]])
        weights = aggregation_weights(shares, steps, "divide_by_steps")
        assert weights.tolist() == [[0.5 / 1, 0.5 / 4]]

    Args:
      shares: `f[M]`, or `f[U, M]` if they differ between rounds: the groups' weights in the global
        model, of sum 1.
      steps: `i[U, M]`, local iterations t_i, at least 1.
      aggregation: A name of `groups.AGGREGATIONS`. "divide_by_steps" is Eq. 12.

    Returns:
      Weights, `f[U, M]`.

    Raises:
      ConfigError: If the shapes do not fit together.
    """
    shares, steps = jnp.broadcast_to(shares, steps.shape), steps.astype(shares.dtype)
    match aggregation:
        case "average":
            return shares
        case "fednova":
            return shares / steps * jnp.sum(shares * steps, axis=1, keepdims=True)
    return shares / steps


@checked
def schedule_group_rounds(key: Key, hyper: Groups, num_ticks: Count) -> Timeline:
    """Schedule rounds of groups.

    A slot belongs to a group, and its client number is the group's number. All ticks of a round
    have the version with which the round began. Only the last tick of a round aggregates; the
    weights of the other ticks are 0. Distributing the initial model takes no time. The first ticks
    do not depend on `num_ticks`.

        rounds = schedule_group_rounds(key, Groups(num_clients=8, num_groups=2, sync_time=5.0), 3)
        assert (rounds.clients == jnp.arange(2)[None]).all()  # slots are groups, steps iterations

    Args:
      num_ticks: Number of ticks T; every `ticks_per_round` of them are a round.

    Returns:
      A timeline with one slot per group; a slot's steps are the group's iterations in that tick.
    """
    per_round = hyper.clock.ticks_per_round
    num_rounds = -(-num_ticks // per_round)
    work = group_work(key, hyper, num_rounds, all_together)
    length = all_together(work.busy, exchange_times(key, hyper, num_rounds))[:, 0]
    # Deviation: Algorithm 1 sets the clock to the length of the last round; here the lengths add up
    # (Eq. 13). They are added one by one, because a cumulative sum of more rounds may add in
    # another order and change the first ticks.
    end = jax.lax.scan(lambda clock, length: (clock + length,) * 2, jnp.zeros(()), length)[1]
    parts = jnp.arange(1, per_round) / per_round
    within = (end - length)[:, None] + sync_times(hyper, num_rounds)[:, None] * parts[None]
    time = jnp.concatenate([within, end[:, None]], axis=1)

    is_last = jnp.arange(per_round) == per_round - 1
    shares, iterations = jnp.asarray(hyper.shares()), work.steps[:, -1]
    weight = aggregation_weights(shares, iterations, hyper.aggregation)
    first = jnp.arange(num_rounds) * per_round
    version = jnp.broadcast_to(first[:, None, None], work.steps.shape)
    leaves = Timeline(
        time,
        clients=jnp.broadcast_to(jnp.arange(hyper.num_groups), work.steps.shape),
        steps=jnp.diff(work.steps, axis=1, prepend=0),
        version=version,
        weight=weight[:, None] * is_last[None, :, None],
        # The groups receive the new model at the end of a round.
        holds=version + per_round * is_last[None, :, None],
    )
    return Timeline(*(leaf.reshape(-1, *leaf.shape[2:])[:num_ticks] for leaf in leaves))


def group_rounds_within(hyper: Groups, time: Above0) -> float:
    """Estimate how many ticks fit into a stretch of virtual time.

        hyper = Groups(sync_time=5.0, exchange_shift=3.0)
        assert group_rounds_within(hyper, 80.0) == 80 / (5 + 3)

    Args:
      hyper: Settings with concrete values, not traced ones.
      time: Length of the stretch, in units of virtual time.

    Returns:
      The approximate number of ticks.
    """
    length = np.max(mean_work(hyper)) + np.max(hyper.mean_exchange())
    return float(time / length) * hyper.clock.ticks_per_round


@checked
def schedule_group_arrivals(key: Key, hyper: GroupArrivals, num_ticks: Count) -> Timeline:
    """Schedule buffered reports of groups.

    A slot is a place in the buffer, and its client number is the group's number. Reports that
    arrive at the same time are in order of their groups' numbers. The first ticks do not depend on
    `num_ticks`. Time and memory are proportional to M times A, because any group may have sent all
    of the first A reports.

        hyper = GroupArrivals(num_clients=8, num_groups=2, num_reports=1)
        reports = schedule_group_arrivals(key, hyper, 4)
        assert reports.clients.shape == (4, 1) and (reports.clients < 2).all()  # groups

    Args:
      num_ticks: Number of ticks T.

    Returns:
      A timeline with Z slots. A slot's steps are the group's iterations, and its weight is M w_i /
      Z for a group of weight w_i: 1 / Z for groups of equal weight.
    """
    size, num = hyper.num_reports, num_ticks * hyper.num_reports
    shape = (num_ticks, size)
    work = group_work(key, hyper, num)
    length = work.busy + exchange_times(key, hyper, num)
    # Added one by one, as the clock of `schedule_group_rounds` is.
    start = jnp.zeros(hyper.num_groups)
    finish = jax.lax.scan(lambda clock, length: (clock + length,) * 2, start, length)[1]
    order = jnp.argsort(finish.T.ravel(), stable=True)[:num]
    place, number = jnp.divmod(order, num)
    time, group, steps = finish[number, place], place.astype("int32"), work.steps[number, -1, place]
    previous, _ = previous_visits(group[:, None])  # the group's previous report, or -1
    share = jnp.asarray(hyper.shares()) * (hyper.num_groups / size)
    return Timeline(
        time=time.reshape(shape)[:, -1],
        clients=group.reshape(shape),
        steps=steps.reshape(shape),
        version=((previous + 1) // size).reshape(shape),
        weight=share[group].reshape(shape),
        holds=(jnp.arange(1, num + 1) // size).reshape(shape),
    )


def group_arrivals_within(hyper: GroupArrivals, time: Above0) -> float:
    """Estimate how many ticks fit into a stretch of virtual time.

        hyper = GroupArrivals(num_groups=2, sync_time=5.0, exchange_shift=3.0)
        assert group_arrivals_within(hyper, 80.0) == 2 * 80 / (5 + 3)

    Args:
      hyper: Settings with concrete values, not traced ones.
      time: Length of the stretch, in units of virtual time.

    Returns:
      The approximate number of ticks.
    """
    return float(np.sum(time / (mean_work(hyper) + hyper.mean_exchange()))) / hyper.num_reports


def mean_work(hyper: Groups) -> np.ndarray:
    """Estimate how long groups are busy in a round, from below; not inside a trace.

    Args:
      hyper: Settings with concrete values.

    Returns:
      Virtual times, `f64[M]`.
    """
    grows = np.asarray(hyper.clock.sync_growth) > 0
    sync_time = np.where(grows, 0.0, np.asarray(hyper.sync_time, float))
    return np.maximum(sync_time, hyper.mean_iteration() * np.asarray(hyper.clock.min_iterations))
