"""Control variates of clients' gradients: whole gradients at an anchor model.

A client's gradient is corrected by the gradient of the same mini-batch at the anchor, and by a
whole gradient there: of the client's examples ("client": variance reduction, as in QLSD++), or of
all clients' examples ("global", which also keeps clients from drifting apart; these are the
conducive gradients of FSGLD, el Mekkaoui et al. 2020, arXiv 2004.11231, with densities that are
linear in the parameters for surrogates). The anchor is the server's model of every
`control_rounds`-th round; of the next round with a report if nobody reports in that one.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim import server
from fedjax_sim.clients import rows, whole_gradients
from fedjax_sim.clients.mini_batches import BatchGradient
from fedjax_sim.core import batching
from fedjax_sim.core.checking import Count
from fedjax_sim.core.settings import Checked, setting, struct
from fedjax_sim.core.types import Array, Event, Facts, Key, Params, Plan, Problem, Work


@struct
class Controls(Checked):
    """Settings of control variates."""

    anchor: Literal["none", "client", "global"] = setting(
        "none",
        "Control variates of the gradients: whole gradients at an anchor, of the client or of all.",
    )
    control_rounds: Count = setting(
        1,
        "Rounds between two anchors of the control variates.",
        only_with={"anchor": ("client", "global")},
        traced=True,
    )


class Anchor(NamedTuple):
    """The anchors of control variates, and their gradients; () without control variates.

    Attributes:
      model: The anchor, leaves `[...]`.
      slopes: Gradients of the f^c there, leaves `[N, ...]`, or of f, leaves `[...]`.
      period: `i32[]`, how many times `control_rounds` rounds had passed then; -1 before the first.
    """

    model: Params = ()
    slopes: Params = ()
    period: Array | tuple[()] = ()


class ControlVariates:
    """Control variates that are bound to a problem, settings and a plan."""

    def __init__(self, problem: Problem, hyper: Any, plan: Plan, factor: Array):
        """Bind them.

        Args:
          problem: What is learnt; it must have `client_loss` if there are control variates.
          hyper: Settings with the fields of `Controls` and of `LocalTraining`'s batches.
          factor: `f[N]`, the gradient of f^c over that of the mean loss of client c.
        """
        anchor, self.rounds = hyper.control_variates.anchor, hyper.control_variates.control_rounds
        self.is_used, self.is_global = anchor != "none", anchor == "global"
        self.counts, self.factor = problem.counts, factor
        self.slopes_at = whole_gradients.gradients_at(problem, hyper, plan, is_exact=True)

    def first(self, model: Params) -> Anchor:
        """Begin at a model, before any gradient is known.

        Args:
          model: The model, leaves `[...]`.
        """
        if not self.is_used:
            return Anchor()
        zero = optax.tree.zeros_like(model)
        slopes = zero if self.is_global else batching.replicate(zero, len(self.counts))
        return Anchor(model, slopes, jnp.int32(-1))

    def move(self, key: Key, event: Event, anchor: Anchor, model: Params) -> tuple[Anchor, Work]:
        """Move the anchor to the server's model if its round has come, and somebody reports.

        Args:
          anchor: The anchor before.
          model: The server's model, leaves `[...]`.

        Returns:
          The anchor, and the gradient evaluations spent by all clients.
        """
        if not self.is_used:
            return anchor, Work(jnp.int32(0), jnp.int32(0))
        num_clients = len(self.counts)
        rounds = jnp.asarray(self.rounds, "int32")
        period = event.tick // rounds
        everyone = event.within(
            facts=Facts(all_filled=True, most_steps=1, same_steps=True),
            clients=jnp.arange(num_clients, dtype="int32"),
            steps=jnp.ones(num_clients, "int32"),
            offset=jnp.zeros(num_clients, "int32"),
        )

        if event.facts.all_filled:
            has_come = event.tick % rounds == 0
        else:
            has_come = (period > anchor.period) & jnp.any(event.clients >= 0)

        def to_model() -> tuple[Anchor, Work]:
            slopes, work = self.slopes_at(key, everyone, model)
            if self.is_global:
                slopes = server.weighted_sum(self.counts, slopes)
            else:
                of_f = jax.vmap(lambda g, scale: optax.tree.scale(scale, g))(slopes, self.factor)
                slopes = jax.tree.map(lambda g, f: f.astype(g.dtype), slopes, of_f)
            moved = Anchor(model, slopes, period), work.needed
            stayed = anchor, jnp.zeros_like(work.needed)
            moved, needed = jax.tree.map(partial(jnp.where, has_come), moved, stayed)
            return moved, work._replace(needed=needed)

        def stay() -> tuple[Anchor, Work]:
            return anchor, optax.tree.zeros_like(jax.eval_shape(to_model)[1])

        return jax.lax.cond(batching.any_lane(has_come), to_model, stay)

    def of_slots(self, anchor: Anchor, clients: Array) -> tuple[Params, ...]:
        """Return the whole gradient of each slot, leaves `[S, ...]`; () without control variates.

        Args:
          anchor: The anchor.
          clients: `i32[S]`, not negative.
        """
        if not self.is_used:
            return ()
        if self.is_global:
            return (batching.replicate(anchor.slopes, len(clients)),)
        return (rows.read_rows(anchor.slopes, clients),)

    def corrected(
        self, slope_of: BatchGradient, anchor: Anchor, scale: Array, whole: tuple[Params, ...]
    ) -> BatchGradient:
        """Turn the gradient of a client's mean loss into a corrected one of f^c.

        Args:
          slope_of: The gradient of the client's mean loss on a mini-batch.
          anchor: The anchor.
          scale: `f[]`, the gradient of f^c over that of the mean loss.
          whole: The client's part of what `of_slots` returned.

        Returns:
          The gradient of f^c on a mini-batch, with its control variate if there is one.
        """

        def gradient(model: Params, q: Array) -> Params:
            slope = slope_of(model, q)
            if self.is_used:
                slope = jax.tree.map(jnp.subtract, slope, slope_of(anchor.model, q))
            slope = jax.tree.map(lambda g: g * scale.astype(g.dtype), slope)
            return jax.tree.map(jnp.add, slope, whole[0]) if self.is_used else slope

        return gradient


def anchor_moves(hyper: Any, senders: np.ndarray) -> np.ndarray:
    """Tell at which ticks the anchor moves: `bool[T]`.

    Args:
      hyper: Settings with the fields of `Controls`.
      senders: `i64[T]`, participants of each tick.
    """
    if hyper.control_variates.anchor == "none":
        return np.zeros(senders.shape, bool)
    period = np.arange(len(senders)) // int(hyper.control_variates.control_rounds)
    latest = np.maximum.accumulate(np.where(senders > 0, period, -1))
    return np.diff(latest, prepend=-1) > 0
