"""Synchronous rounds: their length, the reports that are used, and the weights of these.

The server waits for the slowest of the clients that it asked, or for the first reports that are in,
or until a deadline. The clocks of this folder differ in whom they ask and in the weights.

Dimension letters: `N` clients, `T` ticks (a tick is a round), `A` clients asked in a round, `S`
slots of a tick, that is reports that the server uses, `K` local steps of a client in a round.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.checking import Above0, AtLeast0, Whole
from fedjax_sim.core.settings import Checked, ConfigError, setting, struct
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import EMPTY, Array, Key, Settings, Timeline
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.delays import laws
from fedjax_sim.timelines.delays.devices import close, draw_devices, is_lost, times_in_rounds
from fedjax_sim.timelines.delays.laws import Speeds


@struct
class CohortClock(Checked):
    """Settings of the time that a round takes.

    They are the group `clock` of systems of rounds.

        clock = CohortClock(num_asked=13, deadline=20.0, server_interact=1.0)
        hyper = fedavg.Hyper(num_selected=10, clock=clock)  # the first 10 of 13, or until 20
    """

    num_asked: Whole = setting(
        0,
        "Clients that are asked to take part in a round, of which the first `num_selected` reports "
        "are used; 0 asks `num_selected`.",
    )
    deadline: AtLeast0 = setting(
        0.0,
        "Longest time that a round waits for reports, in units of virtual time; 0 for no limit.",
        simpler_at=(0.0,),
    )
    server_interact: AtLeast0 = setting(
        0.0,
        "Duration of the server's exchange with clients, in units of virtual time.",
        of_time=True,
    )
    round_time: Literal["sum", "one_draw", "mean"] = setting(
        "sum",
        "Time that the cohort's work takes: the longest sum of K running times, K times the "
        "longest single draw, or K times the longest mean.",
    )


def check_clients(hyper: Any, *, are_distinct: bool) -> None:
    """Check that there are enough clients for a cohort, and that a trace has rows of each.

    Args:
      hyper: Settings of a clock in rounds.
      are_distinct: Whether the cohort has `num_selected` different clients.

    Raises:
      ConfigError: If the cohort exceeds the clients, or the trace lacks rows of some client.
    """
    if are_distinct and hyper.num_selected > hyper.num_clients:
        allowed = f"at most num_clients = {hyper.num_clients}"
        raise ConfigError("num_selected", hyper.num_selected, allowed)
    has_trace = hyper.delays.trace is not None
    if has_trace and len(set(hyper.recorded.client.tolist())) < hyper.num_clients:
        allowed = "with rows of every client, as any may be selected"
        raise ConfigError("delays.trace", "a client without rows", allowed)


def rounds_within(hyper: Settings, time: Above0) -> Any:
    """Estimate how many rounds fit in a stretch of time: those of fast clients, of mean length.

    With a recorded trace these are rounds of its mean work.

        hyper = fedavg.Hyper(local_steps=4, rate_fast=2.0, server_interact=3.0)
        assert rounds_within(hyper, 50.0) == 50 / (3 + 4 / 2)

    Args:
      time: Units of virtual time.
    """
    if hyper.delays.trace is None:
        work = hyper.times_per_update / hyper.delays.largest_rate
    else:
        work = (hyper.delays.trace.finish - hyper.delays.trace.start).mean()
    # Work of a trace may take no time.
    return time / np.maximum(hyper.clock.server_interact + work, 1e-200)


def assemble_rounds(
    key: Key,
    hyper: Any,
    clients: Array,
    share: Array,
    weigh: Callable[[Array], Array],
    *,
    num_used: int,
    steps: Array | None = None,
) -> Timeline:
    """Make the timeline of rounds in which given clients are asked.

    A round ends when `num_used` reports are in, or when nobody is left to wait for, or at the
    deadline. A report that is lost is waited for until it should have come. Clients keep the model
    from which they started until they are selected again.

    Args:
      hyper: Settings of a clock in rounds.
      clients: `i[T, A]`, who is asked; `EMPTY` in empty slots. With a recorded trace a client's
        work takes as long as its rows say, which are used in order and again from the first one
        after the last.
      share: `f[T, A]`, what the clients' reports weigh, up to a factor; 0 for clients that do
        nothing.
      weigh: Function from shares `f[T, S]`, 0 for reports that are not in, to weights.
      num_used: Reports S that are used in a round, at most A: the first ones.
      steps: `i[T, A]`, local steps of the clients; None for `hyper.local_steps` everywhere.

    Returns:
      The timeline. Slots without a report are `EMPTY`.
    """
    work_time = draw_work_times(key, clients, hyper, steps)
    if steps is None:
        steps = jnp.full(clients.shape, hyper.local_steps)
    devices, tick = draw_devices(key, hyper), jnp.arange(len(clients))[:, None]
    is_asked, has_work = clients != EMPTY, share > 0
    is_lost_here = is_lost(devices, jnp.maximum(clients, 0), tick) & has_work
    limit = jnp.where(hyper.clock.deadline > 0, hyper.clock.deadline, jnp.inf)

    def length(taken: Array, is_asked: Array, is_lost_here: Array) -> Array:
        """Compute how long a round lasts, `f64[...]`."""
        waits = round_length(taken, is_asked, is_lost_here, num_used=num_used, limit=limit)
        return hyper.clock.server_interact + waits

    facts = is_asked, is_lost_here
    working = jnp.where(has_work, clients, EMPTY)
    taken = times_in_rounds(devices, working, work_time, length, *facts)
    time, arrival = jnp.cumsum(length(taken, *facts)), arrivals_in(taken, *facts)
    if arrival.shape[1] > num_used:
        first = jnp.argsort(arrival, axis=1, stable=True)[:, :num_used]
        leaves = clients, share, steps, arrival
        clients, share, steps, arrival = (jnp.take_along_axis(x, first, axis=1) for x in leaves)
    is_in = are_in_time(arrival, limit)
    version = jnp.broadcast_to(tick, clients.shape)
    steps, weight = jnp.where(is_in & (share > 0), steps, 0), weigh(jnp.where(is_in, share, 0))
    return Timeline(time, jnp.where(is_in, clients, EMPTY), steps, version, weight, holds=version)


def arrivals_in(taken: Array, is_asked: Array, is_lost_here: Array) -> Array:
    """Compute when reports are in, infinite for those that never are: `f64[..., A]`.

    Args:
      taken: Times after which reports should be in, `f64[..., A]`.
      is_asked: Whose they are, `bool[..., A]`.
      is_lost_here: Which are lost, `bool[..., A]`.
    """
    return jnp.where(is_asked & ~is_lost_here, taken, jnp.inf)


def are_in_time(arrival: Array, limit: Array) -> Array:
    """Tell which reports are in by a deadline, whatever the last bits of their times.

    Args:
      arrival: As `arrivals_in` returns it.
      limit: Longest time to wait, `f64[]`, infinite for no limit.
    """
    return jnp.isfinite(arrival) & (arrival <= limit * (1 + close(arrival)))


def round_length(
    taken: Array, is_asked: Array, is_lost_here: Array, *, num_used: int, limit: Array
) -> Array:
    """Compute how long a round waits for its reports, `f64[...]`.

    Args:
      taken: As in `arrivals_in`, as are the next two.
      is_asked: Whose they are.
      is_lost_here: Which are lost.
      num_used: Reports that are used, the first ones.
      limit: Longest time to wait, `f64[]`, infinite for no limit. It ends a round in which a report
        is missing.
    """
    first = arrivals_in(taken, is_asked, is_lost_here)
    if first.shape[-1] > num_used:
        first = jnp.sort(first)[..., :num_used]
    is_in = are_in_time(first, limit)
    last = jnp.where(is_in, first, 0).max(axis=-1)
    is_whole = is_in.sum(axis=-1) >= jnp.minimum(is_asked.sum(axis=-1), num_used)
    # A loss is known when the report should have come.
    known = jnp.maximum(last, jnp.where(is_lost_here, taken, 0).max(axis=-1))
    return jnp.where(is_whole, last, jnp.where(jnp.isfinite(limit), limit, known))


def draw_work_times(key: Key, clients: Array, hyper: Any, steps: Array | None = None) -> Array:
    """Draw how long each slot's work takes under the delay law, or look it up in the trace.

    Args:
      clients: `i[T, S]`.
      steps: `i[T, S]`, local steps of each slot; None for `hyper.local_steps` everywhere.

    Returns:
      Virtual times, `f64[T, S]`; of any value in empty slots.
    """
    if hyper.delays.trace is not None:
        rows = hyper.recorded.by_client(hyper.num_clients)
        return rows.durations(clients, previous_visits(clients)[1])
    speeds = Speeds(*(leaf[clients] for leaf in laws.draw_client_speeds(key, hyper)))
    law, ticks, num_slots = hyper.delays.runtime_law, jnp.arange(len(clients)), clients.shape[1]
    if steps is None or hyper.delays.time_of != "step" or hyper.clock.round_time != "sum":
        standard = jax.vmap(lambda t: draw_standard_times(key, t, num_slots, hyper))(ticks)
        return work_times(standard, speeds, hyper, steps)

    def add(q: Array, total: Array) -> Array:
        of_step = jax.vmap(lambda t: _draw_standard_of_step(key, q, t, num_slots, hyper))(ticks)
        return total + jnp.where(q < steps, laws.scaled_runtimes(of_step, speeds, law)[..., 0], 0)

    nothing = jnp.zeros(clients.shape, speeds.rate.dtype)
    return jax.lax.fori_loop(0, steps.max(), add, nothing)


def draw_standard_times(
    key: Key, tick: Array, num_slots: int, hyper: Any, most_steps: int | None = None
) -> Array:
    """Draw the unit-scale times of a tick's work.

    Args:
      tick: `i32[]`, its number.
      num_slots: Slots S. The first ones have the same draws if there are more.
      most_steps: The most local steps if slots have different numbers of them, None if all have
        `local_steps`.

    Returns:
      As `draw_standard`, `f[S, num]`; num is 0 where nothing is drawn.
    """
    is_by_step = most_steps is not None and hyper.delays.time_of == "step"
    if hyper.clock.round_time == "sum" and is_by_step:
        steps = jnp.arange(most_steps)
        drawn = jax.vmap(lambda q: _draw_standard_of_step(key, q, tick, num_slots, hyper))(steps)
        return jnp.moveaxis(drawn[..., 0], 0, 1)
    num = {"mean": 0, "one_draw": 1, "sum": hyper.times_per_update}[hyper.clock.round_time]
    tick_key = jax.random.fold_in(lane_stream(key, "runtimes"), tick)
    return laws.draw_standard(tick_key, (num_slots, num), float, hyper.delays.runtime_law)


def _draw_standard_of_step(key: Key, q: Array, tick: Array, num_slots: int, hyper: Any) -> Array:
    """Draw the same of one local step, number q: `f[S, 1]`."""
    step_key = jax.random.fold_in(jax.random.fold_in(lane_stream(key, "runtimes"), q), tick)
    return laws.draw_standard(step_key, (num_slots, 1), float, hyper.delays.runtime_law)


def work_times(standard: Array, speeds: Speeds, hyper: Any, steps: Array | None = None) -> Array:
    """Scale the results of `draw_standard_times` to times of work.

    Args:
      standard: `f[..., S, num]`.
      speeds: Of each slot's client, `f[..., S]` each.
      steps: Local steps of each slot, `i[..., S]`; None for `local_steps`. Where single steps take
        time and times are summed, `standard` was drawn with as many as they may be.

    Returns:
      Virtual times, `f[..., S]`.
    """
    is_by_step = steps is not None and hyper.delays.time_of == "step"
    num_times: Any = steps if is_by_step else hyper.times_per_update
    if hyper.clock.round_time == "mean":
        return num_times / speeds.rate
    times = laws.scaled_runtimes(standard, speeds, hyper.delays.runtime_law)
    if hyper.clock.round_time == "one_draw":
        return times.sum(axis=-1) * num_times
    if is_by_step:
        q = jax.lax.broadcasted_iota("int32", times.shape, times.ndim - 1)
        times = jnp.where(q < num_times[..., None], times, 0)
    return times.sum(axis=-1)
