"""Aggregate the models of the slots of a tick, and step along their mean progress.

The server's step is any optax transformation, for which the negative of the mean progress stands
for a gradient (Reddi et al. 2021, arXiv 2003.00295, Algorithm 1).

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.clients.local_settings import optimizer_named, refuse_name
from fedjax_sim.clients.rows import along
from fedjax_sim.core.batching import weighted_sum
from fedjax_sim.core.schedules import Schedule, schedule_of
from fedjax_sim.core.settings import Above0, Checked, Limit, is_known, setting, struct
from fedjax_sim.core.types import Array, Event, Params, StateT


def mean_with_server(server: Params, reports: Params, is_present: Array) -> Params:
    """Average the reports of the present clients and the server's model with equal weights.

    With s clients present each weight is 1 / (s + 1). With nobody present this is the server's
    model.

    Args:
      server: Leaves `[...]`.
      reports: Leaves `[S, ...]`.
      is_present: `bool[S]`.

    Returns:
      Leaves `[...]`.
    """
    total = weighted_sum(is_present, reports)
    share = 1 / (1 + is_present.sum())

    def mean(w: Array, u: Array) -> Array:
        wide = jnp.promote_types(w.dtype, "float32")
        return ((w + u) * share.astype(wide)).astype(w.dtype)

    return jax.tree.map(mean, server, total)


def mean_of(event: Event, start: Params, models: Params) -> Params:
    """Average models with the weights of a tick.

    Missing weight counts for the model that clients started from, also if nobody reports.

        ends = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        mean = mean_of(event, model, ends)  # with weights 1/2
        assert mean.tolist() == [0.5, 0.5, 0.0]

    Args:
      start: That model, leaves `[...]`.
      models: Leaves `[S, ...]`.

    Returns:
      Leaves `[...]`.
    """
    if event.facts.keeps("clients", "weight"):
        finish = keep_if_empty if event.facts.sums_to_one else with_missing
        return finish(event, weighted_sum(event.weight, models), start)
    progress = jax.tree.map(lambda y, x: y - x[None], models, start)
    return jax.tree.map(jnp.add, start, weighted_sum(event.weight, progress))


def with_missing(event: Event, mean: Params, start: Params) -> Params:
    """Give the weight that a tick lacks to the model that clients started from.

        start, mean = jnp.full(3, 4.0), 0.75 * jnp.full(3, 8.0)
        three_quarters = event._replace(weight=jnp.array([0.5, 0.25]))
        assert (with_missing(three_quarters, mean, start) == 0.75 * 8 + 0.25 * 4).all()

    Args:
      mean: The sum of models with the tick's weights, leaves `[...]`.
      start: The model that clients started from, leaves `[...]`.

    Returns:
      The mean, leaves `[...]`. Where weights sum to 1 up to rounding it has the same bits.
    """
    lack = 1 - event.weight.sum()
    lack = jnp.where(jnp.abs(lack) < 1e-5, 0, lack)
    mean = jax.tree.map(lambda m, x: m + lack.astype(m.dtype) * x, mean, start)
    return keep_if_empty(event, mean, start)


def scaled_progress(start: Params, end: Params, weight: Array) -> Params:
    """Continue from start through end, `weight` times as far: start + weight (end - start).

        start, end = jnp.full((2, 3), 1.0), jnp.full((2, 3), 5.0)
        moved = scaled_progress(start, end, jnp.array([0.5, 2.0]))
        assert moved[:, 0].tolist() == [1 + 0.5 * 4, 1 + 2 * 4]

    Args:
      start: Leaves `[S, ...]`.
      end: Leaves `[S, ...]`.
      weight: `[S]`.

    Returns:
      Leaves `[S, ...]`.
    """
    return jax.tree.map(lambda a, b: a + expand(weight, a) * (b - a), start, end)


def expand(weight: Array, leaf: Array) -> Array:
    """Give `weight[S]` trailing axes of length 1 to fit `leaf[S, ...]`, and the leaf's dtype.

        weight = jnp.array([1.0, 2.0])
        assert (expand(weight, jnp.ones((2, 3))) * jnp.ones((2, 3))).sum() == 3 * 1.0 + 3 * 2.0

    Args:
      weight: `[S]`.
      leaf: `[S, ...]`.

    Returns:
      `[S, 1, ...]`.
    """
    return along(weight, leaf).astype(leaf.dtype)


def where_slots(flags: Array, new: StateT, old: StateT) -> StateT:
    """Choose between two models for each slot.

        new, old = jnp.ones((2, 3)), jnp.zeros((2, 3))
        assert where_slots(jnp.array([True, False]), new, old).tolist() == [[1] * 3, [0] * 3]

    Args:
      flags: `bool[S]`.
      new: Leaves `[S, ...]`, or `[1, ...]`.
      old: Leaves `[S, ...]`.

    Returns:
      The new ones where the flags are true, the others elsewhere, leaves `[S, ...]`.
    """
    return jax.tree.map(lambda a, b: jnp.where(along(flags, b), a, b), new, old)


def keep_if_empty(event: Event, after: StateT, before: StateT) -> StateT:
    """Return `after`, or `before` if all slots of the tick are empty. Both are pytrees.

        before, after = jnp.zeros(3), jnp.ones(3)
        nobody = event.within(clients=jnp.array([-1, -1]))
        assert (keep_if_empty(event, after, before) == after).all()
        assert (keep_if_empty(nobody, after, before) == before).all()

    Args:
      after: A state after the tick.
      before: The state before it.
    """
    if event.facts.all_filled:
        return after
    is_round = jnp.any(event.clients >= 0)
    return jax.tree.map(lambda new, old: jnp.where(is_round, new, old), after, before)


def makes_transformation(make: Any, *given: float) -> bool:
    """Whether a value is a function that makes a gradient transformation of some numbers."""
    try:
        return isinstance(make(*given), optax.GradientTransformation)
    except (TypeError, ValueError):
        return False


def _is_server_optimizer(value: object) -> bool:
    refuse_name("server_optimizer", value)
    return value is None or makes_transformation(value, 0.1)


@struct
class ServerRate(Checked):
    """Settings of the server's rate.

    They are inherited by the settings of FedBuff, for example.

        from fedjax_sim.core.schedules import InverseTime

        hyper = ServerRate(server_lr=0.5, server_lr_schedule=InverseTime())
        assert hyper.at_tick(event.within(tick=jnp.int32(1))).server_lr == 0.5 / 2
    """

    server_lr: Above0 = setting(1.0, "Learning rate of the server, a factor on its steps.")
    server_lr_schedule: Schedule = schedule_of("server_lr")

    def at_tick(self, event: Event) -> Self:
        """Replace the rate by that of a tick.

        Args:
          event: The tick.

        Returns:
          The settings.
        """
        rate = self.server_lr_schedule.of(self.server_lr, event.tick)
        return self if rate is self.server_lr else self.replace(server_lr=rate)  # type: ignore[attr-defined]

    def server_transformation(self) -> optax.GradientTransformation | None:
        """Make the server's optimizer, if it has one."""
        return optax.sgd(self.server_lr)


@struct
class ServerMomentum(ServerRate):
    """Settings of a server's step with momentum: v <- beta v + mean progress, w <- w + eta v.

    They are inherited by the settings of FedBuff, for example.

        optimizer = ServerMomentum(server_lr=0.5, server_momentum=0.9).server_transformation()
        assert optimizer.init(jnp.zeros(3))[0].trace.shape == (3,)  # v
    """

    server_momentum: Annotated[float, Limit(least=0, most=0.999)] = setting(
        0.0,
        "Momentum of the server, beta: share of its last step that is added to the next.",
        simpler_at=(0.0,),
    )

    def server_transformation(self) -> optax.GradientTransformation:
        """Make the server's optimizer."""
        momentum = None if is_known(self.server_momentum, 0) else self.server_momentum
        return optax.sgd(self.server_lr, momentum)


@struct
class ServerStep(ServerRate):
    """Settings of the server's step. With the defaults it takes the mean of clients' messages.

    They are inherited by the settings of FedAvg, for example, which is FedOpt with an optimizer.

        optimizer = ServerStep(server_lr=0.5, server_optimizer=optax.sgd).server_transformation()
        progress = jnp.array([4.0])
        update, _ = optimizer.update(-progress, optimizer.init(progress))
        assert update == 0.5 * 4.0
        hyper = fedjax_sim.SYSTEMS["fedavg"].Hyper(server_lr=0.1, server_optimizer=optax.adam)
    """

    server_lr: Above0 = setting(
        1.0,
        "Learning rate of the server, a factor on its steps.",
        only_with={"server_optimizer": lambda optimizer: optimizer is not None},
    )
    server_optimizer: Callable[..., optax.GradientTransformation] | None = setting(
        None,
        "Optimizer of the server, which follows the clients' mean progress, and whose state lasts; "
        "none for the mean of what they send.",
        allowed="the name of an optax optimizer, or a function from a learning rate to a gradient "
        "transformation",
        accepts=_is_server_optimizer,
        parse=lambda name: None if name == "none" else optimizer_named(name),
    )

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        alone = {"server_lr_schedule": "server_optimizer none"}
        return super().decided() | (alone if self.server_optimizer is None else {})

    def server_transformation(self) -> optax.GradientTransformation | None:
        """Make the server's optimizer, if it has one."""
        return None if self.server_optimizer is None else self.server_optimizer(self.server_lr)
