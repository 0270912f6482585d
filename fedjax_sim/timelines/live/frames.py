"""Give a system a live clock."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax.numpy as jnp

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import HyperT, Key, Live, Sizes, System, Timeline
from fedjax_sim.timelines import presets
from fedjax_sim.timelines.delays.laws import Clients


def with_clock(system: System, live: Live, **changes: Any) -> System:
    """Return a system with a live clock: the same algorithm, on times that may follow from it.

        def clock(problem, hyper):
            draw = uniform_cohort(hyper)
            select = lambda key, now: Asked(now.drawn)
            return live_rounds(hyper, select, num_used=hyper.num_selected, draw=draw)

        live = Live(lambda hyper: Sizes(hyper.num_selected, hyper.local_steps), clock)
        system = with_clock(fedavg.system, live, name="live_fedavg")

    Args:
      system: Any system, whose own clock is left out.
      live: The clock, and what it never exceeds.
      **changes: Other fields of the system, such as `name`, `Hyper`, `algorithm` and `summary`.
        With a `Hyper`, `paper` is FAVANO's comparison unless it is given.

    Returns:
      The system. Its timeline says how many slots ticks have and nothing else.
    """
    can_repeat = changes.get("can_repeat", system.can_repeat)
    paper = presets.preset(changes["Hyper"], presets.FAVANO) if "Hyper" in changes else None
    frames = partial(_frames, live.sizes, can_repeat)
    known = {"timeline": frames, "live": live, "weigh": None, "paper": paper}
    return system._replace(**{**known, **changes})


def _frames(
    sizes: Callable[[HyperT], Sizes], can_repeat: bool, key: Key, hyper: HyperT, num_ticks: int
) -> Timeline:
    """Make the timeline of a live system: filled slots of most steps, and no time."""
    found, num_clients = sizes(hyper), cast(Clients, hyper).num_clients
    if found.slots > num_clients and not can_repeat:
        allowed = f"at most num_clients = {num_clients}, as no client can have two"
        raise ConfigError("slots of a live clock", found.slots, allowed)
    shape = num_ticks, found.slots
    tick = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], shape)
    clients = jnp.broadcast_to(jnp.arange(found.slots) % num_clients, shape)
    steps = jnp.full(shape, found.most_steps, "int32")
    weight = jnp.full(shape, 1 / found.slots)
    return Timeline(jnp.zeros(num_ticks), clients, steps, tick, weight, holds=tick)
