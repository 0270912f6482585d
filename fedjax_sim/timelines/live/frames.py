"""Give a system a live clock."""

from functools import partial
from typing import Any

import jax.numpy as jnp

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Key, Live, Sizes, System, Timeline


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

    Returns:
      The system. Its timeline says how many slots ticks have and nothing else.
    """
    can_repeat = changes.get("can_repeat", system.can_repeat)
    frames = partial(_frames, live.sizes, can_repeat)
    known = {"timeline": frames, "live": live, "weigh": None, "paper": None}
    return system._replace(**{**known, **changes})


def _frames(sizes: Any, can_repeat: bool, key: Key, hyper: Any, num_ticks: int) -> Timeline:
    """Make the timeline of a live system: filled slots of most steps, and no time."""
    found: Sizes = sizes(hyper)
    if found.slots > hyper.num_clients and not can_repeat:
        allowed = f"at most num_clients = {hyper.num_clients}, as no client can have two"
        raise ConfigError("slots of a live clock", found.slots, allowed)
    shape = num_ticks, found.slots
    tick = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], shape)

    def everywhere(value: Any) -> Array:
        return jnp.broadcast_to(value, shape)

    return Timeline(
        time=jnp.zeros(num_ticks),
        clients=everywhere(jnp.arange(found.slots) % hyper.num_clients),
        steps=everywhere(jnp.int32(found.most_steps)),
        version=tick,
        weight=everywhere(jnp.full((), 1 / found.slots)),
        holds=tick,
    )
