"""The server's stochastic approximation S <- S + gamma H, where S are expected statistics.

Here are the step sizes gamma, the choice between the last S and a random one for evaluation, and
the bits that the server sends to clients.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import streams, trees
from fedjax_sim.core.checking import Above0
from fedjax_sim.core.settings import setting, struct
from fedjax_sim.core.types import (
    Array,
    Event,
    Key,
    LatentProblem,
    Leaf,
    Timeline,
    full_precision_bits,
)


def constant(tick: Array) -> Array:
    """Return the factor 1 at every tick."""
    return jnp.ones_like(tick)


def inverse_sqrt(tick: Array) -> Array:
    """Return the factor (k + 1)^(-1/2) at tick k."""
    return (tick + 1) ** -0.5


def inverse(tick: Array) -> Array:
    """Return the factor 1 / (k + 1) at tick k."""
    return 1 / (tick + 1)


STEP_FACTORS: dict[str, Callable[[Array], Array]] = {
    each.__name__: each for each in (constant, inverse_sqrt, inverse)
}
"""Step-size factors by their names on the command line."""


@struct
class Approximation:
    """Settings of the server's stochastic approximation, S <- S + gamma_k H.

    They are inherited by the settings of FedEM, for example.

        decaying = Approximation(gamma=0.5, gamma_factor=lambda tick: 1 / (tick + 1))
        assert decaying.step_size(event.within(tick=jnp.int32(1))) == 0.5 / 2  # of the second tick
        hyper = fedjax_sim.SYSTEMS["fedem"].Hyper(gamma=0.5, output="random")
    """

    gamma: Above0 = setting(0.01, "First step size of the server, gamma_1.")
    gamma_factor: Callable[[Array], Array] = setting(
        STEP_FACTORS["constant"],
        "Factor on gamma at tick k, gamma_{k+1} / gamma_1.",
        allowed="one of "
        + ", ".join(STEP_FACTORS)
        + ", or a function from the tick 0, 1, ... to a factor, such as an optax schedule",
        accepts=callable,
        parse=lambda text: STEP_FACTORS[text],
    )
    output: Literal["last", "random"] = setting(
        "last",
        "Which statistics are evaluated: the last S, or S_K with K uniform on the ticks so far, as "
        "in the theory.",
    )

    def step_size(self, event: Event) -> Array:
        """Compute gamma_{k+1}: `f[]`, 0 for an empty tick."""
        factor = self.gamma_factor(event.tick.astype(event.weight.dtype))
        return jnp.where(jnp.any(event.clients >= 0), self.gamma * factor, 0)

    def result(self, state: Any) -> Array:
        """Choose the statistics that are evaluated, `f[q]`.

        Args:
          state: A state with the fields `server` and `random`.

        Returns:
          S, or S_K, as `output` says.
        """
        return state.random if self.output == "random" else state.server


def broadcast_bits(problem: LatentProblem, timeline: Timeline) -> Leaf:
    """Count the bits sent down at each tick: `i64[T]`.

    Every client of the tick receives S and theta without compression. If the problem has a method
    `unknown`, only the part of theta that it returns is sent: what clients cannot derive from S.

        bits = broadcast_bits(latent, run.timelines[0])  # S and theta are one number each
        assert (bits == 4 * (32 + 32)).all()  # four clients take part

    Args:
      timeline: One lane's schedule.
    """

    def sent(key: Key) -> Any:
        statistics = problem.init(key)
        params = problem.maximise(statistics)
        known = trees.has(problem, "unknown")
        return statistics, problem.unknown(params) if known else params  # type: ignore[attr-defined]

    bits = full_precision_bits(jax.eval_shape(sent, jax.random.key(0)))
    return (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * bits


def keep_random(key: Key, event: Event, before: Array, now: Array) -> Array:
    """Keep S_K, with K uniform on the ticks 0..k.

        before, now = jnp.zeros(2), jnp.ones(2)
        assert (keep_random(key, event, before, now) == now).all()  # at tick 0 the chance is 1

    Args:
      event: Tick k.
      before: `f[q]`, the statistics kept so far.
      now: `f[q]`, the statistics of tick k, which are kept with probability 1 / (k + 1).

    Returns:
      `f[q]`.
    """
    output_key = jax.random.fold_in(streams.lane_stream(key, "output"), event.tick)
    draw = jax.random.uniform(output_key, dtype=before.dtype)
    is_taken = (draw * (event.tick + 1) < 1) & jnp.any(event.clients >= 0)
    return jnp.where(is_taken, now, before)
