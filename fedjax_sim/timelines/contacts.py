"""Periodic contacts: the server interrupts clients whenever its own clock says so, without waiting.

Dimension letters: `N` clients, `T` ticks, `S` slots of a tick, `K` most local steps of a client
between two contacts, `R` rows of a recorded trace.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import settings, streams
from fedjax_sim.core.settings import AtLeast0, Checked, ConfigError, Count, checked, setting, struct
from fedjax_sim.core.types import EMPTY, Array, Key, Timeline
from fedjax_sim.timelines.cohorts import draw_cohorts, previous_visits
from fedjax_sim.timelines.delays.devices import bisect, draw_devices
from fedjax_sim.timelines.delays.laws import Clients, Speeds, draw_client_speeds, draw_runtimes


@struct
class ContactClock(Checked):
    """Settings of the time between two contacts, which is `server_wait + server_interact`.

    By default ten of 100 clients are contacted in every unit of time. A client of mean rate then
    has time for ten steps between two of its contacts, on average, as many as it may do.

        clock = ContactClock(server_wait=4.0, server_interact=3.0)
        assert Contacts(clock=clock).period == 4 + 3
        hyper = favano.Hyper(num_selected=20, clock=clock)
    """

    server_wait: AtLeast0 = setting(
        1.0,
        "Time that the server waits between two exchanges, in units of virtual time.",
        of_time=True,
    )
    server_interact: AtLeast0 = setting(
        0.0,
        "Duration of the server's exchange with clients, in units of virtual time.",
        of_time=True,
    )


@struct
class Contacts(Clients):
    """Settings of a server that contacts a uniform cohort periodically.

    They are inherited by the settings of FAVANO, for example.

        hyper = Contacts(num_clients=8, num_selected=3, server_wait=2.0, local_steps=5)
        assert hyper.period == 2
    """

    num_selected: Count = setting(
        10, "Size of the cohort, S: clients contacted per tick, drawn without replacement."
    )
    clock: ContactClock = settings.group(ContactClock(), "when the server contacts clients")

    @property
    def period(self) -> float:
        """Virtual time between two contacts of the server, D."""
        return self.clock.server_wait + self.clock.server_interact

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the cohort exceeds the clients, the period is not positive, or delays are
            those of whole updates.
        """
        super().check_together()
        self.check_at_most_clients("num_selected")
        period = np.asarray(self.period, float)
        if np.any(period <= 0):
            raise ConfigError("server_wait + server_interact", float(period.min()), "above 0")
        if self.delays.time_of == "update":
            allowed = '"step", as contacts interrupt clients between steps'
            raise ConfigError("delays.time_of", "update", allowed)


@checked
def schedule_contacts(key: Key, hyper: Contacts, num_ticks: Count) -> tuple[Timeline, Array]:
    """Schedule periodic contacts of a uniform cohort.

    All clients start at time 0. A client contacted at a tick restarts from the model made there.
    The rows of a recorded trace are single local steps; those count that finish in the window. The
    first ticks do not depend on `num_ticks`.

    A contact with a client that is not available, or that is lost, does not take place: the slot is
    empty, and the client goes on. A client works in the part of its window in which it is available
    and does not transfer messages.

        contacts, _ = schedule_contacts(key, Contacts(num_clients=8, num_selected=3), 5)
        assert (contacts.time == jnp.arange(1, 6)).all()  # the server waits for nobody

    Args:
      num_ticks: Number of ticks T.

    Returns:
      The timeline, with all weights 1, and the length of the window of work behind each slot,
      `f64[T, S]`, in units of virtual time.
    """
    # Who is contacted when, without those that are away or not reached.
    tick, period = jnp.arange(num_ticks)[:, None], jnp.asarray(hyper.period, float)
    clock = jnp.arange(1, num_ticks + 1) * period
    cohorts = streams.lane_stream(key, "cohorts")
    clients = draw_cohorts(cohorts, hyper.num_clients, hyper.num_selected, num_ticks)
    devices, selected = draw_devices(key, hyper), clients
    if devices.windows is not None or devices.loss is not None:
        now = jnp.broadcast_to(clock[:, None], clients.shape)
        number = jnp.broadcast_to(tick, clients.shape)
        is_reached = devices.are_available(clients, now) & ~devices.are_lost(clients, number)
        clients = jnp.where(is_reached, clients, EMPTY)
    previous, _ = previous_visits(clients)
    # Multiply a whole number of ticks by the period, because a difference of two large clock times
    # would be rounded. A window that is whole up to rounding is made whole.
    window = (tick - previous) * period
    begin = jnp.where(previous >= 0, clock[previous], 0.0)
    end = jnp.broadcast_to(clock[:, None], begin.shape)
    # Time in which a client can work: without breaks and transfers.
    if devices.windows is not None:
        window = devices.windows.time_available(selected, begin, end)
    if devices.transfer is not None:
        window -= devices.transfer[selected]
    is_whole = jnp.abs(window - jnp.round(window)) < 1e-9 * (1 + window)
    window = jnp.where(is_whole, jnp.round(window), jnp.maximum(window, 0.0))
    # Local steps in the windows.
    if hyper.delays.trace is not None:
        steps = _trace_steps(clients, begin, end, hyper)
    else:
        steps = _law_steps(key, clients, window, hyper)
    steps = jnp.where(clients == EMPTY, 0, steps)
    holds = jnp.broadcast_to(jnp.arange(1, num_ticks + 1)[:, None], clients.shape)
    return Timeline(clock, clients, steps, previous + 1, jnp.ones_like(window), holds), window


def _law_steps(key: Key, clients: Array, window: Array, hyper: Contacts) -> Array:
    """Count the steps, at most K, that the delay law gives in each window: `i32[T, S]`."""
    speeds = Speeds(*(leaf[clients] for leaf in draw_client_speeds(key, hyper)))
    law, ticks = hyper.delays.law, jnp.arange(clients.shape[0])
    num = 1 if law.is_count else hyper.local_steps
    keys = jax.vmap(jax.random.fold_in, (None, 0))(streams.lane_stream(key, "runtimes"), ticks)
    times = jax.vmap(lambda own, speeds: draw_runtimes(own, speeds, num, law))(keys, speeds)
    if law.is_count:
        steps = jnp.minimum(times[..., 0], hyper.local_steps)
        return jnp.where(window > 0, steps, 0).astype("int32")
    # A sum of K equal times may miss the window's end by its last bits.
    end = window[..., None]
    return (jnp.cumsum(times, axis=-1) <= end + 1e-12 * end).sum(axis=-1).astype("int32")


def _trace_steps(clients: Array, start: Array, end: Array, hyper: Contacts) -> Array:
    """Count the recorded steps, at most K, that finish after `start` and by `end`, `f64[T, S]`."""
    rows = hyper.recorded.by_client(hyper.num_clients)
    first, finish = jnp.asarray(rows.first), jnp.asarray(rows.finish)

    def rows_until(time: Array) -> Array:
        """Find the end of the clients' rows that finish by a time."""

        def is_before(row: Array) -> Array:
            return finish[jnp.minimum(row, finish.size - 1)] <= time

        return bisect(is_before, first[clients], first[clients + 1], trips=32)

    # A step that ended exactly at the previous contact was counted there.
    return jnp.minimum(rows_until(end) - rows_until(start), hyper.local_steps).astype("int32")
