"""Delay laws: who is fast, and how long a local step takes. Times are virtual; all draws are 64-bit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError, choice, count, fields, real, static, struct
from fedjax_sim.streams import stream
from fedjax_sim.timelines.trace import Trace, read_trace
from fedjax_sim.types import Array, Key

RUNTIME_LAWS = ("runtime_geom", "runtime_exp", "count_geom")


def _is_trace(value: Any) -> bool:
    return value is None or isinstance(value, Trace)


@struct
class Clients:
    """Clients of two speeds, assigned at random per lane.

    A client of rate r completes a local step after a geometric number of time units on {1, 2, ...} with mean 1/r (`runtime_geom`:
    in each unit it completes its step with probability r), or after an exponential time of the same mean (`runtime_exp`).
    `count_geom` draws the *number* of steps between two contacts as geometric whatever the time between them (the literal sentence
    of FAVANO's App. C.2); where a running time is needed it stays geometric. A recorded trace replaces the law.
    """

    num_clients: int = count(100)
    local_steps: int = count(20)
    """K: steps of a client's update, or the most it does between two contacts."""
    slow_fraction: float = real(1 / 3, least=0, most=1)
    """Share of slow clients, rounded up to whole clients."""
    rate_fast: float = real(1 / 2, above=0)
    """Local steps per unit of virtual time."""
    rate_slow: float = real(1 / 16, above=0)
    runtime_law: str = choice("runtime_geom", RUNTIME_LAWS)
    trace: Any = static(None, "a Trace, or the name of a CSV file with columns client, start, finish", _is_trace, read_trace)

    def check_together(self) -> None:
        if self.runtime_law != "runtime_exp":
            for name in ("rate_fast", "rate_slow"):
                if np.any(np.asarray(getattr(self, name)) > 1):
                    raise ConfigError(name, float(np.max(getattr(self, name))), f"at most 1, a probability, under {self.runtime_law}")
        if self.trace is not None:
            self.trace.check(self.num_clients)
        self.left_to_trace("slow_fraction", "rate_fast", "rate_slow", "runtime_law")

    def left_to_trace(self, *names: str) -> None:
        """Refuse settings that a recorded trace decides, unless they are at their defaults."""
        for name in names if self.trace is not None else ():
            value, default = getattr(self, name), fields(type(self))[name].default
            if np.any(np.asarray(value) != default):
                raise ConfigError(name, value, f"left at {default!r} with a recorded trace, which decides it")


def client_rates(key: Key, clients: Clients) -> Array:
    """Draw every client's rate, in local steps per unit of time: `f64[N]`. key: the lane's key."""
    place = jax.random.permutation(stream(key, "speeds"), clients.num_clients)
    num_slow = jnp.ceil(jnp.asarray(clients.slow_fraction, float) * clients.num_clients - 1e-6)
    return jnp.where(place < num_slow, jnp.asarray(clients.rate_slow, float), jnp.asarray(clients.rate_fast, float))


def runtimes(key: Key, rate: Array, num: int, law: str) -> Array:
    """Draw the running times of local steps. rate: `f64[...]`. Returns `f64[..., num]`, in units of virtual time."""
    rate = rate[..., None]
    standard = jax.random.exponential(key, (*rate.shape[:-1], num), rate.dtype)
    if law == "runtime_exp":
        return standard / rate
    return 1 + jnp.floor(standard / -jnp.log1p(-rate))


def update_time(key: Key, client: Array, update: Array, rates: Array, clients: Clients) -> Array:
    """Draw the running time of a client's update of K steps; the same whatever the order in which updates are asked for.

    client, update: `i32[...]`, the latter counted per client from 0. rates: `f64[N]`. Returns `f64[...]`.
    """

    def one(client: Array, update: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, client), update)
        return runtimes(own, rates[client], clients.local_steps, clients.runtime_law).sum()

    return jnp.vectorize(one)(client, update)
