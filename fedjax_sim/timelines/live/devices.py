"""The clients of a live clock: the same laws as those of planned ones, one draw at a time.

Draws depend on client and number of its work, or on the round and the place in it, and never on
the order in which they are asked for. Durations are single floats; an `Instant` adds them up.
Within the period of its windows a client's place is known to about 10^-6 of the period, if floats
have 32 bits.

Dimension letters: `N` clients, `K` local steps of an update.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Array, Instant, Key
from fedjax_sim.timelines.delays.devices import Devices, breaks, draw_devices, wait_of
from fedjax_sim.timelines.delays.laws import Clients, Speeds, update_time


class Drawn(NamedTuple):
    """Draws that are made once for all clients, and carried by a clock.

    Attributes:
      speeds: Rates and spreads, `f[N]` each.
      phase: `f[N]`, place in the period of its windows at time 0; None without windows.
    """

    speeds: Speeds
    phase: Array | None


def draw_clients(key: Key, hyper: Clients) -> Drawn:
    """Draw the clients' speeds and phases.

    Args:
      key: The lane's clock key.
      hyper: Settings of `Clients`.
    """
    devices = draw_devices(key, hyper)
    drawn = Drawn(devices.speeds, None if devices.windows is None else devices.windows.phase)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), drawn)


def devices_of(key: Key, hyper: Clients, drawn: Drawn) -> Devices:
    """Return the devices again, without drawing anything again.

    Args:
      key: The lane's clock key.
      hyper: Settings of `Clients`.
      drawn: The result of `draw_clients`.
    """
    devices = draw_devices(key, hyper)._replace(speeds=drawn.speeds)
    if devices.windows is None or drawn.phase is None:
        return devices
    return devices._replace(windows=devices.windows._replace(phase=drawn.phase))


def running_time(devices: Devices, client: Array, number: Array) -> Array:
    """Draw how long clients compute, or look it up in the trace: `f[...]`.

    Args:
      client: Client numbers, `i32[...]`.
      number: How often each client was given work before, `i32[...]`.
    """
    hyper = devices.hyper
    if hyper.delays.trace is not None:
        return hyper.recorded.by_client(hyper.num_clients).durations(client, number)
    key = lane_stream(devices.key, "runtimes")
    return update_time(key, client, number, devices.speeds, hyper)


def times_of_work(
    devices: Devices, client: Array, now: Instant, running: Array
) -> tuple[Array, Array]:
    """Find out how long after `now` clients' work begins and is in: hours, transfers, breaks.

    Args:
      client: Client numbers, `i32[...]`.
      now: When they are given the work.
      running: Time of computing, `f[...]`.

    Returns:
      When it begins and when it is in, counted from now, `f[...]` each.
    """
    busy = running if devices.transfer is None else running + devices.transfer[client]
    if devices.windows is None:
        return jnp.zeros_like(busy), busy
    wait, pauses = breaks(devices.windows, client, _place(devices, client, now), busy)
    return wait, wait + busy + pauses


def are_available(devices: Devices, client: Array, now: Instant) -> Array:
    """Tell whether clients `i32[...]` are available: `bool[...]`.

    Args:
      client: Client numbers.
      now: The time.
    """
    return time_away(devices, client, now) == 0


def time_away(devices: Devices, client: Array, now: Instant) -> Array:
    """Compute how long clients `i32[...]` will be away from now on: `f[...]`, 0 for those here.

    Args:
      devices: The clients.
      client: Client numbers.
      now: The time.
    """
    if devices.windows is None:
        return jnp.zeros(jnp.shape(client), now.value.dtype)
    return wait_of(devices.windows, client, _place(devices, client, now))


def _place(devices: Devices, client: Array, now: Instant) -> Array:
    """Find the place in their periods at which clients are: `f[...]`."""
    assert devices.windows is not None
    period, phase = devices.windows.period[client], devices.windows.phase[client]
    # The remainder of a float is exact, whatever the time is.
    within = jax.lax.rem(jnp.broadcast_to(now.value, period.shape), period)
    return (within + (phase + now.rest)) % period
