"""When clients begin and finish work: availability, time of transfer, and lost updates.

Every clock asks here, planned or live. A client that is given work begins as soon as it is
available, receives the model, computes, and sends its update; outside its windows it does none of
these, and continues where it stopped. What is not used costs nothing: without windows, bandwidths
and losses an update takes its running time.

Windows are those of the client table, or, for `on_time` and `off_time`, one window in a cycle that
each client enters at a place drawn for it. Draws depend on client and number of its work, and never
on the order in which they are asked for.

Dimension letters: `N` clients, `W` windows of all clients.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import settings
from fedjax_sim.core.settings import Limit, checked
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Array, Instant, Key
from fedjax_sim.timelines.delays.laws import Clients, Speeds, draw_client_speeds, update_time

CLOSE = 1e-9
"""Share of a period, or of a client's windows, by which sums of times may be rounded. Work that
exactly fills a window ends with the window, before the break."""


CLOSE_IN_32_BITS = 1e-6
"""The same for times of 32 bits, which live clocks have within a period."""


Moment = Array | Instant
"""A virtual time, which as an `Instant` keeps more digits."""


def close(like: Array) -> float:
    """Return `CLOSE`, or the larger tolerance of floats of 32 bits."""
    return CLOSE if like.dtype == jnp.float64 else CLOSE_IN_32_BITS


class Place(NamedTuple):
    """Where clients are in their windows once they can work."""

    wait: Array  # f64[...]  time until then
    window: Array  # i32[...]  the window in which they are then
    worked: Array  # f64[...]  time of the period in windows before then


class Windows(NamedTuple):
    """When clients are available.

    Attributes:
      first: `i32[N]`, each client's first window.
      end_of: `i32[N]`, one more than each client's last window.
      begin: `f64[W]`, when a window begins, counted from the start of a period.
      end: `f64[W]`, when it ends.
      worked: `f64[W]`, time in the client's windows before it.
      period: `f64[N]`, time after which windows repeat.
      total: `f64[N]`, time in the client's windows.
      phase: `f64[N]`, place in the period at time 0.
      most: The most windows of a client.
    """

    first: Array
    end_of: Array
    begin: Array
    end: Array
    worked: Array
    period: Array
    total: Array
    phase: Array
    most: int

    def breaks(self, client: Array, at: Array, busy: Array) -> tuple[Array, Array]:
        """Find out how long clients that are given work wait before it, and pause during it.

        Args:
          client: Client numbers, `i32[...]`.
          at: Places in the clients' periods, `f[...]`.
          busy: Time of receiving, computing and sending, `f[...]`.

        Returns:
          Times, `f[...]` each.
        """
        place = self.place(client, at)
        wanted = place.worked + busy
        total = self.total[client]
        cycles = jnp.maximum(jnp.ceil(wanted / total - close(busy)) - 1, 0)
        left, worked = wanted - cycles * total, self.worked + (self.end - self.begin)
        last = self._search(client, worked, left, total)
        # Breaks before each window are added up, instead of times within windows, so that work
        # within one window ends exactly its running time after it began.
        before = self.begin - self.worked
        pauses = cycles * (self.period[client] - total) + before[last]
        return place.wait, jnp.maximum(pauses - before[place.window], 0)

    def time_available(self, client: Array, begin: Array, end: Array) -> Array:
        """Compute how long clients are available between two times.

        Args:
          client: Client numbers, `i32[...]`.
          begin: Virtual times, `f64[...]`.
          end: Virtual times, `f64[...]`.

        Returns:
          Times, `f64[...]`.
        """

        def until(time: Array) -> Array:
            place = self.place(client, self.at(client, time))
            passed = time + place.wait + self.phase[client]
            cycles = jnp.floor(passed / self.period[client] + CLOSE)
            return cycles * self.total[client] + place.worked

        inside = jnp.maximum(until(end) - until(begin), 0)
        return jnp.where(self.total[client] < self.period[client], inside, end - begin)

    def at(self, client: Array, time: Moment) -> Array:
        """Find the place in their periods at which clients are: `f[...]`."""
        period, phase = self.period[client], self.phase[client]
        if not isinstance(time, Instant):
            return (time + phase) % period
        # The remainder of a float is exact, whatever the time is.
        within = jax.lax.rem(jnp.broadcast_to(time.value, period.shape), period)
        return (within + (phase + time.rest)) % period

    def place(self, client: Array, at: Array) -> Place:
        """Find the window in which clients are at places `f[...]` in their periods, or the next."""
        period, first = self.period[client], self.first[client]
        found = self._search(client, self.end, at, period, strictly=True)
        is_over = found == self.end_of[client]
        window = jnp.where(is_over, first, found)
        begin = self.begin[window]
        wait = jnp.where(is_over, period - at + begin, jnp.maximum(begin - at, 0))
        # Who is a rounding before a window is in it.
        wait = jnp.where((self.total[client] < period) & (wait > close(at) * period), wait, 0)
        within = jnp.where(is_over, 0, jnp.maximum(at - begin, 0))
        return Place(wait, window, self.worked[window] + within)

    def _search(
        self, client: Array, value: Array, wanted: Array, scale: Array, *, strictly: bool = False
    ) -> Array:
        """Find clients' first windows of at least, or above, the wanted value: `i32[...]`.

        If there is none, this is the number after the client's last window.
        """
        slack = close(wanted) * scale

        def is_before(window: Array) -> Array:
            here = value[jnp.minimum(window, self.begin.size - 1)]
            return here <= wanted + slack if strictly else here < wanted - slack

        ends = self.first[client], self.end_of[client]
        return bisect(is_before, *ends, trips=self.most.bit_length())


class Drawn(NamedTuple):
    """Draws that are made once for all clients, and carried by a live clock.

    Attributes:
      speeds: Rates and spreads, `f[N]` each.
      phase: `f[N]`, place in the period of its windows at time 0; None without windows.
    """

    speeds: Speeds
    phase: Array | None


class Devices(NamedTuple):
    """Everything that decides when the clients' updates arrive.

    Times are those of a planned clock, `f64[...]`, or instants of a live one. Durations of a live
    clock are single floats; an `Instant` adds them up. Within the period of its windows a client's
    place is then known to about 10^-6 of the period, if floats have 32 bits.

    Attributes:
      speeds: Rates and spreads, `f64[N]` each.
      transfer: `f64[N]`, time in which a client receives a model and sends an update; None if it
        is 0 for all.
      loss: `f64[N]` or `f64[]`, share of updates that are lost; None if none is.
      windows: When clients are available; None if always.
      key: The lane's timeline key, or its clock key.
      hyper: The settings.
    """

    speeds: Speeds
    transfer: Array | None
    loss: Array | None
    windows: Windows | None
    key: Key
    hyper: Clients

    @property
    def drawn(self) -> Drawn:
        """Draws of speeds and phases, for `draw_devices` to make the same devices of."""
        drawn = Drawn(self.speeds, None if self.windows is None else self.windows.phase)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), drawn)

    def mean_times(self) -> Array:
        """Compute how long clients compute on average, by the delay law or the trace: `f[N]`."""
        hyper = self.hyper
        if hyper.delays.trace is None:
            return hyper.times_per_update / self.speeds.rate
        return jnp.asarray(hyper.recorded.by_client(hyper.num_clients).mean_durations(), float)

    def running_time(self, client: Array, update: Array) -> Array:
        """Draw how long clients compute, or look it up in the trace: `f[...]`.

        Args:
          client: Client numbers, `i32[...]`.
          update: Numbers of the clients' updates, lost ones included, `i32[...]`.
        """
        hyper = self.hyper
        if hyper.delays.trace is not None:
            return hyper.recorded.by_client(hyper.num_clients).durations(client, update)
        return update_time(lane_stream(self.key, "runtimes"), client, update, self.speeds, hyper)

    def follow(self, client: Array, update: Array, time: Moment) -> tuple[Array, Array]:
        """Find out when clients begin and finish an update that they may begin at a given time.

        Args:
          client: Client numbers, `i32[...]`.
          update: As in `running_time`.
          time: As in `times_of_work`.

        Returns:
          As `times_of_work`.
        """
        return self.times_of_work(client, time, self.running_time(client, update))

    def times_of_work(self, client: Array, time: Moment, running: Array) -> tuple[Array, Array]:
        """Find out when clients begin and finish work of a given running time, transfers added.

        Returns:
          For clients `i32[...]`, when they begin to receive the model, and when their updates
          arrive, `f[...]` each: virtual times, or, where `time` is an instant, counted from it.
        """
        busy = running if self.transfer is None else running + self.transfer[client]
        wait = pauses = jnp.zeros_like(busy)
        if self.windows is not None:
            wait, pauses = self.windows.breaks(client, self.windows.at(client, time), busy)
        begin = wait if isinstance(time, Instant) else time + wait
        return begin, begin + busy + pauses

    def time_away(self, client: Array, time: Moment) -> Array:
        """Compute how long clients `i32[...]` will be away from then on: `f[...]`, 0 if here."""
        if self.windows is None:
            return jnp.zeros(jnp.shape(client))
        return self.windows.place(client, self.windows.at(client, time)).wait

    def are_available(self, client: Array, time: Moment) -> Array:
        """Tell whether clients `i32[...]` are available: `bool[...]`."""
        return self.time_away(client, time) == 0

    def are_lost(self, client: Array, update: Array) -> Array:
        """Draw whether clients' updates, by client and number `i32[...]`, are lost: `bool[...]`."""
        return draw_losses(self.key, self.loss, client, update)


def draw_devices(key: Key, hyper: Clients, drawn: Drawn | None = None) -> Devices:
    """Draw the clients' speeds and phases, and collect their other facts.

    Args:
      key: The lane's timeline key, or its clock key.
      hyper: Settings of `Clients`.
      drawn: Earlier draws, which are taken instead.
    """
    speeds, windows = draw_client_speeds(key, hyper), _windows(key, hyper)
    if drawn is not None:
        speeds = drawn.speeds
        if windows is not None and drawn.phase is not None:
            windows = windows._replace(phase=drawn.phase)
    return Devices(speeds, hyper.delays.transfer, loss_shares(hyper), windows, key, hyper)


def loss_shares(hyper: Clients) -> Array | None:
    """Look up the share of clients' updates that is lost: `f[N]` or `f[]`, None if none is.

    A table of clients says it for each, otherwise one number is that of all.

        assert loss_shares(Clients()) is None and loss_shares(Clients(drop_rate=0.25)) == 0.25
    """
    return jnp.asarray(hyper.delays.drop_rates, float) if hyper.delays.loses_updates else None


@checked
def draw_losses(
    key: Key, shares: Annotated[Array, Limit(least=0, most=1)] | None, client: Array, update: Array
) -> Array:
    """Draw whether updates are lost.

        shares = jnp.array([0.0, 1.0])  # of client 0 nothing is lost, of client 1 all
        is_lost = draw_losses(key, shares, jnp.arange(2), jnp.zeros(2, "int32"))
        assert is_lost.tolist() == [False, True]

    Args:
      shares: Shares of lost updates, from `loss_shares`.
      client: `i32[...]`, numbers of clients.
      update: `i32[...]`, numbers of their updates.

    Returns:
      `bool[...]`.
    """
    if shares is None:
        return jnp.zeros(jnp.broadcast_shapes(client.shape, update.shape), bool)
    share = shares if shares.ndim == 0 else shares[client]
    draw = per_update(lane_stream(key, "losses"), lambda key: jax.random.uniform(key, dtype=float))
    return draw(client, update) < share


def per_update(key: Key, draw: Callable[[Key], Array]) -> Callable[[Array, Array], Array]:
    """Make a function that draws one value for every client `i32[...]` and update `i32[...]`."""
    return jnp.vectorize(
        lambda client, update: draw(jax.random.fold_in(jax.random.fold_in(key, client), update))
    )


def _windows(key: Key, hyper: Clients) -> Windows | None:
    """Collect the windows of the table, or those of the cycle of `on_time` and `off_time`."""
    table, num = hyper.delays.client_table, hyper.num_clients
    if table is not None and table.windows is not None:
        first, begin, end, period = table.windows
        length = np.cumsum(end - begin)
        before = length - (end - begin)
        worked = before - np.repeat(before[first[:-1]], np.diff(first))
        total = worked[first[1:] - 1] + (end - begin)[first[1:] - 1]
        # Of the type of floats now: JAX may remember that of an array in an earlier program.
        times = [jnp.asarray(x, float) for x in (begin, end, worked, period, total, np.zeros(num))]
        places = jnp.asarray(first[:-1]), jnp.asarray(first[1:])
        return Windows._make([*places, *times, int(np.diff(first).max())])
    if settings.is_known(hyper.delays.off_time, 0):
        return None
    on, off = jnp.asarray(hyper.delays.on_time, float), jnp.asarray(hyper.delays.off_time, float)
    everyone = jnp.arange(num, dtype="int32")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(lane_stream(key, "phases"), everyone)
    phase = jax.vmap(lambda own: jax.random.uniform(own, dtype=float))(keys) * (on + off)
    none, all_on, cycle = jnp.zeros(num), jnp.full(num, on), jnp.full(num, on + off)
    return Windows(everyone, everyone + 1, none, all_on, none, cycle, all_on, phase, 1)


def bisect(is_before: Callable[[Array], Array], low: Array, high: Array, *, trips: int) -> Array:
    """Find the first place from `low` on that a condition does not hold of, by bisection.

    Args:
      is_before: Function from places `i32[...]` to `bool[...]`, true up to some place.
      low: First places, `i32[...]`.
      high: Results if it holds of all places before, `i32[...]`.
      trips: Number of halvings.

    Returns:
      Places, `i32[...]`.
    """

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        go_right = is_before(middle) & (low < high)
        return jnp.where(go_right, middle + 1, low), jnp.where(go_right, high, middle)

    return jax.lax.fori_loop(0, trips, halve, (low, high))[0]
