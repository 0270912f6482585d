"""The server's stochastic approximation on expected statistics, and what it sends to clients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import choice, real, static, struct
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Event, Key, LatentProblem, Leaf, Timeline, full_precision_bits

STEP_FACTORS: dict[str, Callable[[Array], Array]] = {
    "constant": lambda k: jnp.ones_like(k),
    "inverse_sqrt": lambda k: (k + 1) ** -0.5,
    "inverse": lambda k: 1 / (k + 1),
}
"""By the names of the command line."""


@struct
class Approximation:
    """Settings of the server's stochastic approximation, S <- S + gamma_k H."""

    gamma: float = real(0.01, "gamma_1.", above=0)
    gamma_factor: Callable[[Array], Array] = static(
        STEP_FACTORS["constant"],
        "one of "
        + ", ".join(STEP_FACTORS)
        + ", or a function from the tick 0, 1, ... to a factor, such as an optax schedule",
        callable,
        lambda text: STEP_FACTORS[text],
        meaning="gamma_{k+1} / gamma_1 at tick k.",
    )
    output: str = choice(
        "last",
        ("last", "random"),
        "What is evaluated: the last S, or S_K with K uniform on the ticks so far, as the theory has it.",
    )

    def step_size(self, event: Event) -> Array:
        """gamma_{k+1}, 0 for an empty tick."""
        factor = self.gamma_factor(event.tick.astype(jnp.result_type(float)))
        return jnp.where(jnp.any(event.clients >= 0), self.gamma * factor, 0)


def broadcasts(problem: LatentProblem, timeline: Timeline) -> Leaf:
    """Bits sent down at each tick, `i64[T]`: S and theta, not compressed, to all clients.

    Of theta only what `problem.unknown`, if there is one, leaves over: what clients do not know already, and once each.
    """

    def sent(key: Key) -> Any:
        statistics = problem.init(key)
        params = problem.maximise(statistics)
        return statistics, getattr(problem, "unknown", lambda whole: whole)(params)

    bits = full_precision_bits(jax.eval_shape(sent, jax.random.key(0)))
    return (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * bits


def chosen(key: Key, event: Event, before: Array, now: Array) -> Array:
    """Keep S_K for K uniform on 0..k: the statistics `now` of tick k with probability 1 / (k + 1), else those kept before; `f[q]` each."""
    lot = jax.random.uniform(jax.random.fold_in(stream(key, "output"), event.tick))
    is_taken = (lot * (event.tick + 1) < 1) & jnp.any(event.clients >= 0)
    return jnp.where(is_taken, now, before)
