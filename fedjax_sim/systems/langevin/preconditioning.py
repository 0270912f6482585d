"""A diagonal preconditioner that all clients share for a round: pSGLD's.

1 / (floor + sqrt(V)), where V follows the square of a gradient (Li, Chen, Carlson and Carin 2016,
arXiv 1512.07666) without their term Gamma, which they leave out too.

Deviation: their preconditioner moves with every step. Here all clients share one for a round,
because the mean of noises that are scaled differently would have another temperature. V follows the
square of the clients' mean gradient at the server's model, and begins with the first such square
instead of 0.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.clients.whole_gradients import gradients_at
from fedjax_sim.core.checking import Above0, Probability
from fedjax_sim.core.settings import Checked, setting, struct
from fedjax_sim.core.types import Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import weighted_sum


@struct
class Preconditioning(Checked):
    """Settings of the preconditioner."""

    preconditioner: Literal["none", "rmsprop"] = setting(
        "none", "Preconditioner of steps and noise, 1 / (floor + sqrt(V))."
    )
    precondition_decay: Probability = setting(
        0.99,
        "Share of V that a round keeps; 1 keeps the first one.",
        only_with={"preconditioner": ("rmsprop",)},
    )
    precondition_floor: Above0 = setting(
        1e-3,
        "Added to sqrt(V), in units of the gradient of the mean loss.",
        only_with={"preconditioner": ("rmsprop",)},
    )


class Square(NamedTuple):
    """The statistics of the preconditioner; () without one.

    Attributes:
      value: V, leaves `[...]`.
      is_known: `bool[]`, whether there was a gradient yet.
    """

    value: Params = ()
    is_known: Any = ()


class Preconditioner:
    """A preconditioner that is bound to a problem, settings and a plan."""

    def __init__(self, problem: Problem, hyper: Any, plan: Plan, factor: Array, *, is_exact: bool):
        """Bind it.

        Args:
          hyper: Settings with the fields of `Preconditioning` and of `LocalTraining`'s batches.
          factor: `f[N]`, the gradient of f^c over that of the mean loss of client c.
          is_exact: Whether gradients are of all of a client's examples.
        """
        self.is_used = hyper.preconditioning.preconditioner != "none"
        self.decay = hyper.preconditioning.precondition_decay
        self.floor = hyper.preconditioning.precondition_floor
        self.counts, self.factor = problem.counts, factor
        self.slope_at = gradients_at(problem, hyper, plan, is_exact=is_exact)

    def first(self, model: Params) -> Square:
        """Begin before any gradient is known.

        Args:
          model: The model, leaves `[...]`.
        """
        zero = optax.tree.zeros_like(model)
        return Square(zero, jnp.asarray(False)) if self.is_used else Square()

    def move(
        self, key: Key, event: Event, square: Square, model: Params, first_step: Array
    ) -> tuple[Square, Work]:
        """Move V towards the square of the clients' mean gradient.

        Args:
          square: V before.
          model: The server's model, leaves `[...]`.
          first_step: `i32[]`, number of the round's first local step, whose mini-batch is used.

        Returns:
          V after the tick, for ticks with a report, and the gradient evaluations spent.
        """
        if not self.is_used:
            return square, Work(jnp.int32(0), jnp.int32(0))
        here = event._replace(offset=jnp.broadcast_to(first_step, event.offset.shape))
        found, work = self.slope_at(key, here, model)
        clients = jnp.maximum(event.clients, 0)
        slope = weighted_sum(event.weight * self.factor[clients] / self.counts.sum(), found)
        decay = jnp.where(square.is_known, self.decay, 0)

        def move(v: Array, g: Array) -> Array:
            return decay.astype(v.dtype) * v + (1 - decay).astype(v.dtype) * jnp.square(g)

        return Square(jax.tree.map(move, square.value, slope), jnp.asarray(True)), work

    def root(self, square: Square) -> Params:
        """Return the square root of the preconditioner; () without one.

        Args:
          square: V.
        """
        floor = self.floor
        return jax.tree.map(lambda v: (floor + jnp.sqrt(v)).astype(v.dtype) ** -0.5, square.value)
