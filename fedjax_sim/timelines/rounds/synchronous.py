"""How synchronous rounds go: how long one lasts, whose reports are used, and what these weigh.

The server waits for the slowest of the clients that it asked, or for the first reports that are in,
or until a deadline. The clocks of this folder differ in whom they ask and in the weights.

Dimension letters: `N` clients, `T` ticks (a tick is a round), `A` clients asked in a round, `S`
slots of a tick, that is reports that the server uses, `K` local steps of a client in a round.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.checking import Above0, checked
from fedjax_sim.settings import Checked, ConfigError, choice, count, real, struct
from fedjax_sim.streams import stream
from fedjax_sim.targets import is_for_cpu
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.delays import Speeds, draw_client_speeds, draw_runtimes
from fedjax_sim.timelines.delays.devices import draw_devices, is_lost, times_in_rounds
from fedjax_sim.types import EMPTY, Array, Key, Timeline


@struct
class CohortClock(Checked):
    """Settings of the time that a round takes."""

    num_asked: int = count(
        0,
        "Clients that are asked to take part in a round, of which the first `num_selected` reports "
        "are used; 0 asks `num_selected`.",
        least=0,
    )
    deadline: float = real(
        0.0,
        "Longest time that a round waits for reports, in units of virtual time; 0 for no limit.",
        least=0,
        simpler_at=(0.0,),
    )
    server_interact: float = real(
        0.0,
        "Duration of the server's exchange with clients, in units of virtual time.",
        least=0,
        of_time=True,
    )
    round_time: str = choice(
        "sum",
        ("sum", "one_draw", "mean"),
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


@checked
def rounds_within(hyper: Any, time: Above0) -> Any:
    """Estimate how many rounds fit in a stretch of time: those of fast clients, of mean length.

    With a recorded trace these are rounds of its mean work.

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
    devices, has_work, tick = draw_devices(key, hyper), share > 0, jnp.arange(len(clients))[:, None]
    is_asked = clients != EMPTY
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
        clients, share, steps, arrival = (
            jnp.take_along_axis(leaf, first, axis=1) for leaf in (clients, share, steps, arrival)
        )
    is_in = jnp.isfinite(arrival) & (arrival <= limit)
    version = jnp.broadcast_to(tick, clients.shape)
    return Timeline(
        time=time,
        clients=jnp.where(is_in, clients, EMPTY),
        steps=jnp.where(is_in & (share > 0), steps, 0),
        version=version,
        weight=weigh(jnp.where(is_in, share, 0)),
        holds=version,
    )


def arrivals_in(taken: Array, is_asked: Array, is_lost_here: Array) -> Array:
    """Compute when reports are in, infinite for those that never are: `f64[..., A]`.

    Args:
      taken: Times after which reports should be in, `f64[..., A]`.
      is_asked: Whose they are, `bool[..., A]`.
      is_lost_here: Which are lost, `bool[..., A]`.
    """
    return jnp.where(is_asked & ~is_lost_here, taken, jnp.inf)


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
    is_in = jnp.isfinite(first) & (first <= limit)
    last = jnp.where(is_in, first, 0).max(axis=-1)
    is_whole = is_in.sum(axis=-1) >= jnp.minimum(is_asked.sum(axis=-1), num_used)
    # A loss is known when the report should have come.
    known = jnp.maximum(last, jnp.where(is_lost_here, taken, 0).max(axis=-1))
    return jnp.where(is_whole, last, jnp.where(jnp.isfinite(limit), limit, known))


def draw_work_times(
    key: Key,
    clients: Array,
    hyper: Any,
    steps: Array | None = None,
    *,
    ticks: Array | None = None,
    speeds: Speeds | None = None,
    most: int | None = None,
) -> Array:
    """Draw how long each slot's work takes under the delay law, or look it up in the trace.

    Args:
      clients: `i[T, S]`.
      steps: `i[T, S]`, local steps of each slot; None for `hyper.local_steps` everywhere.
      ticks: `i[T]`, numbers of the ticks; from 0 if None.
      speeds: Those of all clients, `f64[N]`; drawn if None.
      most: The most local steps, if they are known: an accelerator then need not ask the host how
        often to draw.

    Returns:
      Virtual times, `f64[T, S]`; of any value in empty slots.
    """
    if hyper.delays.trace is not None and ticks is None:
        return _trace_time(clients, hyper)
    known = draw_client_speeds(key, hyper) if speeds is None else speeds
    speeds = Speeds(*(leaf[clients] for leaf in known))
    is_by_step = steps is not None and hyper.delays.time_of == "step"
    num_times: Any = steps if is_by_step else hyper.times_per_update
    if hyper.clock.round_time == "mean":
        return num_times / speeds.rate
    key = stream(key, "runtimes")
    ticks = jnp.arange(clients.shape[0]) if ticks is None else ticks

    def draw(key: Key, num: int) -> Array:
        def tick(t: Array, speeds: Speeds) -> Array:
            return draw_runtimes(jax.random.fold_in(key, t), speeds, num, hyper.delays.runtime_law)

        return jax.vmap(tick)(ticks, speeds).sum(axis=-1)

    if hyper.clock.round_time == "one_draw":
        return draw(key, 1) * num_times
    if not is_by_step:
        return draw(key, hyper.times_per_update)

    def add(q: Array, total: Array) -> Array:
        return total + jnp.where(q < num_times, draw(jax.random.fold_in(key, q), 1), 0)

    if most is not None and not is_for_cpu():
        # All at once, which is one launch instead of several a step.
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(most))
        each = jax.vmap(lambda step_key: draw(step_key, 1))(keys)
        is_taken = jnp.arange(most)[:, None, None] < num_times[None]
        return jnp.where(is_taken, each, 0).sum(axis=0)
    nothing = jnp.zeros(clients.shape, speeds.rate.dtype)
    return jax.lax.fori_loop(0, num_times.max() if most is None else most, add, nothing)


def _trace_time(clients: Array, hyper: Any) -> Array:
    """Look up how long each slot's work takes in the recorded trace: `f64[T, S]`."""
    rows = hyper.recorded.by_client(hyper.num_clients)
    _, visit = previous_visits(clients)
    first = jnp.asarray(rows.first)
    row = first[clients] + visit % (first[clients + 1] - first[clients])
    return jnp.asarray(rows.finish - rows.start)[row]
