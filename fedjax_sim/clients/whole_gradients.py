"""Gradients of clients' losses at one model, without local steps.

Dimension letters: those of `fedjax_sim.core.types`; `m` examples of a client.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.clients.mini_batches import BatchGradient, LossGradient, batch_gradient
from fedjax_sim.core import streams, trees
from fedjax_sim.core.batching import look_ahead, map_slots
from fedjax_sim.core.checking import Whole
from fedjax_sim.core.settings import Checked, ConfigError, struct
from fedjax_sim.core.types import Array, Event, Key, Params, Plan, Work


@struct
class WholeGradients(Checked):
    """Settings of a system that may need gradients of all of a client's examples.

        @settings.struct
        class Hyper(LocalTraining, WholeGradients):
            "Settings of a system that may need whole gradients."
            gradient: str = settings.setting("exact", "Which gradients.")

        assert Hyper().completed(problem) == Hyper()

    Attributes:
      gradient_setting: Name of the setting that asks for them with "exact".
    """

    gradient_setting: ClassVar[str] = "gradient"

    def completed(self, problem: Any) -> Any:
        """Check that the problem can compute exact gradients, if they are asked for.

        Args:
          problem: What is learnt; None for a schedule alone.

        Returns:
          The settings, unchanged.

        Raises:
          ConfigError: If it cannot.
        """
        name = self.gradient_setting
        if getattr(self, name) == "exact":
            check_exact(problem, name, "exact", "another one")
        return super().completed(problem)


def check_exact(problem: Any, field: str, value: str, allowed: str) -> None:
    """Check that a problem can compute exact gradients.

        check_exact(problem, "gradient", "exact", "minibatch")  # `Quadratic` has `client_loss`

    Args:
      problem: The problem; None for a schedule alone.
      field: The setting that asks for them.
      value: Its value.
      allowed: What else it may be.

    Raises:
      ConfigError: If it cannot.
    """
    if problem is not None and not trees.has(problem, "client_loss"):
        reason = f"{allowed}, because {type(problem).__name__} has no client_loss"
        raise ConfigError(field, value, reason)


def whole_gradient(
    problem: Any, key: Key, client: Array, first: Array, *, most_steps: Whole | None
) -> BatchGradient:
    """Return the gradient of the loss of all of a client's examples, for local steps.

        gradient = whole_gradient(problem, key, jnp.int32(2), jnp.int32(0), most_steps=None)
        assert jnp.allclose(gradient(model, jnp.int32(0)), model - problem.centers[2])

    Args:
      problem: What is learnt; it must have `client_loss`.
      key: Key of the noise that exact gradients may have, which differs from step to step.
      client: `i32[]`.
      first: `i32[]`, number of the first of the steps.
      most_steps: As in `batch_gradient`.
    """
    losses = problem.alone(client) if trees.has(problem, "alone") else problem
    keys = look_ahead(lambda q: jax.random.fold_in(key, first + q), most_steps)
    return LossGradient(lambda model, q: losses.client_loss(model, client, keys(q)))


def gradients_at(
    problem: Any, hyper: Any, plan: Plan, *, is_exact: bool
) -> Callable[[Key, Event, Params], tuple[Params, Work]]:
    """Bind gradients of clients' losses.

        gradients, work = gradients_at(problem, hyper, plan, is_exact=True)(key, event, model)
        assert jnp.allclose(gradients[1], model - problem.centers[3])
        assert work.needed == 2  # one example of each client

    Args:
      problem: What is learnt; with exact gradients it must have `client_loss`.
      is_exact: Whether gradients are of all of a client's examples, or of the mini-batch of its
        next local step.

    Returns:
      A function from key, event and a model, leaves `[...]`, to the gradients of the slots'
      clients, leaves `[S, ...]` with any finite numbers in empty slots, and the gradient
      evaluations spent: ceil(m / batch_size) for all examples of a client, or 1 for a mini-batch.
    """

    def gradients(key: Key, event: Event, model: Params) -> tuple[Params, Work]:
        is_present = event.clients >= 0

        def slot(trips: Array, client: Array, offset: Array) -> Params:
            def gradient(_: Array | int, before: Params) -> Params:
                if not is_exact:
                    return batch_gradient(problem, hyper, key, client, offset)(model, jnp.int32(0))
                noise = jax.random.fold_in(streams.lane_stream(key, "whole gradients"), client)
                noise = jax.random.fold_in(noise, event.tick)
                return jax.grad(problem.client_loss)(model, client, noise)

            # Without a known number of trips there is none where nobody needs it.
            nothing = jax.tree.map(jnp.zeros_like, model)
            return jax.lax.fori_loop(0, trips, gradient, nothing) if is_counted else gradient(0, ())

        is_counted = plan.trips(event.facts) is None
        clients, steps = jnp.maximum(event.clients, 0), is_present.astype("int32")
        slots = (clients, event.offset)
        slopes, taken = map_slots(slot, plan, steps, *slots, trips=None if is_counted else 1)
        if not is_exact:
            return slopes, Work(taken, steps.sum())
        passes = -(-problem.counts // hyper.batch_size)
        return slopes, Work(taken * passes.max(), jnp.where(is_present, passes[clients], 0).sum())

    return gradients
