"""Local training: optimizer steps of the clients in the slots of a tick.

A system binds it once, `train = local_training(problem, hyper, plan)`, and then calls
`train(key, event, start=model)` at every tick. The plan is what the engine fixed before compiling
(`fedjax_sim.types.Plan`); a system only passes it on.

Dimension letters: those of `fedjax_sim.types`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import optax

from fedjax_sim import batching, targets
from fedjax_sim.clients.local_settings import Descent, LocalTraining
from fedjax_sim.clients.mini_batches import BatchGradient, LossGradient, batch_gradient
from fedjax_sim.clients.packing import run_in_rows
from fedjax_sim.clients.turning import in_row_major, turn, turned_in_state
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Event, Facts, Key, Losses, PackedRows, Params, Plan, Work

Direction = Callable[..., Params]
"""A function from the gradient g to the direction of a local step, shaped like the model.

It is called as `direction(g, model, q, start, *extras)` with the number of the step q, `i32[]`, the
slot's start and the slot's extras. Leaves have the shapes that they have in the model.
"""

ELEMENTWISE = (optax.sgd, optax.adam, optax.adamw, optax.adagrad, optax.rmsprop, optax.yogi)
"""Optimizers that treat every number of a model alike, whatever the shape of its array."""


class Training(NamedTuple):
    """One client's training in one slot.

        slope = lambda model, q: model - 1.0  # of (w - 1)^2 / 2
        training = Training(slope, optax.sgd(0.5))  # for `local_steps`

    Attributes:
      gradient: The gradient that each step follows.
      optimizer: The optimizer; its state starts afresh.
      is_elementwise: Whether the optimizer and the direction do the same to a matrix and to its
        transpose. Both may then be given matrices transposed.
      direction: What the steps follow in place of the gradient; None for the gradient.
      aside: Models that the direction reads besides the slot's own, the start first.
      is_corrected: Whether the model after the start is added to the gradient.
      proximal: mu, if mu times the way from the start is added to the gradient; None if not.
      is_shifted: Whether the direction adds these two to the gradient, if any, and nothing else.
    """

    gradient: BatchGradient
    optimizer: optax.GradientTransformation
    is_elementwise: bool = False
    direction: Direction | None = None
    aside: tuple[Params, ...] = ()
    is_corrected: bool = False
    proximal: Array | float | None = None
    is_shifted: bool = True


class Total(NamedTuple):
    """A sum over the slots that is wanted in place of each one's model.

    It is added up slot by slot, so that the models of a tick need not be in memory together.

        train = local_training(problem, hyper, plan)
        mean, _ = train(key, event, start=model, total=Total(event.weight))  # one model, not two
        models, _ = train(key, event, start=model)
        assert jnp.allclose(mean, (models[0] + models[1]) / 2)

    Attributes:
      weights: `f[S]`.
      of_progress: Whether progress is summed, y_i - x of a model y_i that started from x, in place
        of y_i. Small differences of large numbers are taken before they are added.
    """

    weights: Array
    of_progress: bool = False


class Train(Protocol):
    """Local training that is bound to a problem, settings and a plan."""

    def __call__(
        self,
        key: Key,
        event: Event,
        *,
        start: Params | None = None,
        starts: Params | None = None,
        extras: Any = (),
        total: Total | None = None,
    ) -> tuple[Params, Work]:
        """Run every slot's local steps.

        Args:
          start: Model that all slots start from, leaves `[...]`. Give either this or `starts`.
          starts: Model that each slot starts from, leaves `[S, ...]`.
          extras: Further inputs of each slot's gradient or direction, leaves `[S, ...]`.
          total: The sum to make in place of single models, if that is enough.

        Returns:
          The models reached, leaves `[S, ...]`, or the sum, leaves `[...]`; and the gradient
          evaluations spent. The model of an empty slot is its start.
        """


GradientOfClient = Callable[..., BatchGradient]
"""From (problem, hyper, key, client, offset, *extras) to the gradient of that client's steps."""


def local_training(
    problem: Losses,
    hyper: LocalTraining,
    plan: Plan,
    *,
    gradient: GradientOfClient | None = None,
    direction: Direction | None = None,
    is_elementwise: bool = False,
    is_corrected: bool = False,
    proximal: Array | float | None = None,
) -> Train:
    """Bind local training: w <- w - lr g, as often as the event says.

    A client's batches and noise depend on the key, the client and the number of local steps it has
    done before (`event.offset`); they do not depend on when or with whom it is received.

        train = local_training(problem, hyper, plan)
        models, work = train(key, event, start=model)

    Args:
      gradient: The gradient g, where slots stand for something other than single clients;
        `batch_gradient` if None. It is given the slot's extras.
      direction: What the steps follow in place of g, such as g plus a correction. It is called as
        `direction(g, model, q, start, *extras)` with the step's number q = 0, 1, ..., the slot's
        first model and its extras.
      is_elementwise: Whether `direction` treats every number of a model alike, and its extras are
        models. It may then be given matrices transposed, which takes less time.
      is_corrected: Whether the slot's one extra, a model, is added to g in each step.
      proximal: mu, if mu / 2 ||w - start||^2 is added to the loss (FedProx, FedAsync).

    Returns:
      A function from key, event, starting models and extras to the models that the slots' clients
      reach, leaves `[S, ...]`, and the work done. It raises ConfigError if it is given extras that
      none of `gradient`, `direction` and `is_corrected` uses.
    """
    uses_extras = gradient is not None or direction is not None or is_corrected
    slopes: dict[str, Any] = {"gradient": gradient, "direction": direction, "proximal": proximal}
    slopes["is_elementwise"] = is_elementwise
    training = training_of(problem, hyper, plan, is_corrected=is_corrected, **slopes)

    def train(
        key: Key,
        event: Event,
        *,
        start: Params | None = None,
        starts: Params | None = None,
        extras: Any = (),
        total: Total | None = None,
    ) -> tuple[Params, Work]:
        if not uses_extras and jax.tree.leaves(extras):
            allowed = "left out unless gradient, direction or is_corrected uses them"
            raise ConfigError("extras", type(extras).__name__, allowed)
        of_slot, models = partial(training, key, event.facts), {"start": start, "starts": starts}
        ends, _, work = lasting_steps(plan, event, of_slot, **models, extras=extras, total=total)
        return ends, work

    return train


def training_of(
    problem: Losses,
    hyper: LocalTraining,
    plan: Plan,
    *,
    gradient: GradientOfClient | None = None,
    direction: Direction | None = None,
    is_elementwise: bool = False,
    is_corrected: bool = False,
    proximal: Array | float | None = None,
) -> Callable[..., Training]:
    """Return a function from key, facts, start, client, offset and extras to a slot's training.

    The arguments are those of `local_training`.
    """

    def followed(slope: Params, model: Params, q: Array, start: Params, *extras: Any) -> Params:
        if direction is not None:
            slope = direction(slope, model, q, start, *extras)
        elif is_corrected:
            slope = optax.tree.add(slope, *extras)
        if proximal is not None:
            slope = jax.tree.map(lambda g, w, w0: g + proximal * (w - w0), slope, model, start)
        return slope

    def training(
        key: Key, facts: Facts, start: Params, client: Array, offset: Array, *extras: Any
    ) -> Training:
        if gradient is not None:
            slope = gradient(problem, hyper, key, client, offset, *extras)
        else:
            slope = batch_gradient(
                problem,
                hyper,
                key,
                client,
                offset,
                most_steps=facts.most_steps,
                is_alone=facts.packed is not None,
            )
        optimizer = hyper.local_optimizer()
        is_alike = hyper.training.optimizer in ELEMENTWISE and (direction is None or is_elementwise)
        if direction is None and proximal is None and not is_corrected:
            return Training(slope, optimizer, is_alike)
        aside = (start, *(extras if direction is not None or is_corrected else ()))
        added = (is_corrected, proximal, direction is None)
        return Training(slope, optimizer, is_alike, followed, aside, *added)

    return training


def local_steps(
    plan: Plan,
    event: Event,
    training: Callable[..., Training],
    *,
    start: Params | None = None,
    starts: Params | None = None,
    extras: Any = (),
    total: Total | None = None,
) -> tuple[Params, Work]:
    """Run every slot's local steps, `event.steps` of them.

    `start`, `starts`, `extras` and `total` are those of `Train`.

        def training(start, client, offset):
            return Training(lambda model, q: model - 1.0, optax.sgd(0.5))

        models, work = local_steps(plan, event, training, start=model)
        assert models[:, 0].tolist() == [1 - 0.5**2, 1 - 0.5]  # two steps from 0 towards 1, and one

    Args:
      training: From a slot's start, client `i32[]`, offset `i32[]` and extras to its training.

    Returns:
      As in `Train`.
    """
    models = {"start": start, "starts": starts}
    ends, _, work = lasting_steps(plan, event, training, **models, extras=extras, total=total)
    return ends, work


def lasting_steps(
    plan: Plan,
    event: Event,
    training: Callable[..., Training],
    *,
    start: Params | None = None,
    starts: Params | None = None,
    extras: Any = (),
    states: Any = None,
    total: Total | None = None,
) -> tuple[Params, Any, Work]:
    """Run every slot's local steps with an optimizer whose state has been kept.

    `start`, `starts` and `extras` are those of `Train`.

    Args:
      training: As in `local_steps`.
      states: The optimizer's state in each slot, leaves `[S, ...]`; None if it starts afresh.
      total: As in `Train`.

    Returns:
      The models reached or the sum, the states after the steps, None if they start afresh, and
      the gradient evaluations spent.
    """
    num_slots, facts = event.clients.shape[0], event.facts
    chex.assert_shape((event.steps, event.offset), (num_slots,))
    if not (facts.is_drawn or facts.all_filled):
        steps = jnp.where(event.clients >= 0, jnp.maximum(event.steps, 0), 0)
        event = event.within(facts=facts, steps=steps)
    # Slots that run one after another read the common start where it is.
    if starts is None and (plan.slots_at_once > 1 or facts.packed):
        starts = batching.replicate(start, num_slots)
    chex.assert_tree_shape_prefix((starts, extras, states), (num_slots,))
    common = start

    def begin(
        start: Params | None, client: Array, offset: Array, extras: Any, state: Any
    ) -> tuple["_Local", Callable[..., "_Local"]]:
        """Return the state of a slot, and its step. start: None for the common one."""
        start = common if start is None else start
        given = training(start, client, offset, *extras)
        optimizer, direction = given.optimizer, given.direction
        are_turned = tuple(
            given.is_elementwise and leaf.ndim == 2 and leaf.shape[1] <= plan.narrow
            for leaf in jax.tree.leaves(start)
        )
        turned = partial(turn, are_turned=are_turned)
        # Otherwise XLA lays these arrays out as they were, and transposes them at every step.
        model, *aside = start, *given.aside
        if any(are_turned):
            model, *aside = (in_row_major(turned(each), are_turned) for each in (model, *aside))

        # On an accelerator the rate goes in as the loss's cotangent, so that an update is a product
        # that is added to the weights, and so is what a step adds to the gradient: a correction c
        # and mu (w - start), as -lr (c - mu start) and -lr mu w. Otherwise an array of the weights'
        # size, which holds each lane's rate, is written and read, or the gradient is. Other
        # directions read arrays of that size anyway, and a CPU takes longer.
        scaled = correction = None
        is_plain = isinstance(optimizer, Descent) and given.is_shifted
        if is_plain and isinstance(given.gradient, LossGradient) and not targets.is_for_cpu():
            scaled = partial(given.gradient.descent, optimizer.rate)
            if given.is_corrected:
                correction = optax.tree.scale(-optimizer.rate, aside[1])
            if given.proximal is not None:
                pull = optimizer.rate * given.proximal
                known = optax.tree.zeros_like(model) if correction is None else correction
                correction = optax.tree.add_scale(known, pull, aside[0])

        @jax.named_scope("local_step")
        def step(q: Array, local: _Local, is_asked: Array | None = None) -> _Local:
            if scaled is not None:
                update = turned(scaled(turned(local.model), q))
                if correction is not None:
                    update = optax.tree.add(update, correction)
                if given.proximal is not None:
                    update = optax.tree.add_scale(update, -pull, local.model)
                after = local.state
            else:
                slope = turned(given.gradient(turned(local.model), q))
                if direction is not None:
                    slope = direction(slope, local.model, q, *aside)
                update, after = optimizer.update(slope, local.state, local.model)
            if is_asked is not None:
                update = jax.tree.map(lambda leaf: jnp.where(is_asked, leaf, 0), update)
                if states is not None:
                    # Otherwise nothing reads it after a masked step: only masked steps follow.
                    after = jax.tree.map(
                        lambda new, old: jnp.where(is_asked, new, old), after, local.state
                    )
            model = optax.apply_updates(local.model, update)
            return dataclasses.replace(local, model=model, state=after)

        if states is None:
            return _Local(model, optimizer.init(model), are_turned), step
        are_states_turned = turned_in_state(optimizer, model, are_turned)
        first = in_row_major(turn(state, are_states_turned), are_states_turned)
        return _Local(model, first, are_turned, are_states_turned), step

    def summand(model: Params, start: Params) -> Params:
        is_progress = total is not None and total.of_progress
        return jax.tree.map(jnp.subtract, model, start) if is_progress else model

    def slot(trips: Array, steps: Array, *inputs: Any) -> Any:
        first, step = begin(*inputs)

        def trip(q: Array, local: _Local) -> _Local:
            return step(q, local, q < steps if plan.is_masked(facts) else None)

        last = jax.lax.fori_loop(0, trips, trip, first)
        last = last if states is not None else dataclasses.replace(last, state=())
        if facts.same_steps and not facts.all_filled and facts.most_steps:
            # Steps of empty slots are not masked one by one, but undone. In a sum, where they count
            # for nothing, they end at 0: a GPU would copy a common start for every slot.
            is_nothing = total is not None and common is not None
            model = optax.tree.zeros_like(first.model) if is_nothing else first.model
            state = first.state if states is not None else ()
            undone = dataclasses.replace(first, model=model, state=state)
            last = jax.tree.map(lambda new, old: jnp.where(steps > 0, new, old), last, undone)
        if total is None:
            return last
        return summand(last.model, first.model), dataclasses.replace(last, model=())

    # An empty slot has no steps; its client number only has to be valid.
    clients = event.clients if facts.all_filled else jnp.maximum(event.clients, 0)
    slots = (starts, clients, event.offset, extras, states)
    if facts.packed is not None:
        ends, executed = _in_rows(begin, plan, facts.packed, facts.most_steps, event.steps, *slots)
        if total is not None:
            each = summand(ends.model, turn(starts, ends.are_turned))
            ends = dataclasses.replace(ends, model=batching.weighted_sum(total.weights, each))
    else:
        weights = None if total is None else total.weights
        found, executed = batching.map_slots(
            slot, plan, event.steps, event.steps, *slots, trips=plan.trips(facts), weights=weights
        )
        ends = found if total is None else dataclasses.replace(found[1], model=found[0])
    work = Work(executed, event.steps.sum(), event.changed)
    after = None if states is None else turn(ends.state, ends.are_states_turned)
    return turn(ends.model, ends.are_turned), after, work


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Local:
    """The state of a slot between two local steps.

    Attributes:
      model: The model; matrices may be transposed.
      state: The optimizer's state.
      are_turned: Which leaves of the model are transposed.
      are_states_turned: Which leaves of the state are transposed, if it is kept.
    """

    model: Params
    state: Any
    are_turned: tuple[bool, ...] = dataclasses.field(metadata={"static": True})
    are_states_turned: tuple[bool, ...] = dataclasses.field(default=(), metadata={"static": True})


def _in_rows(
    begin: Callable[..., tuple[_Local, Any]],
    plan: Plan,
    rows: PackedRows,
    most_steps: int | None,
    steps: Array,
    *slots: Any,
) -> tuple[_Local, Array]:
    """Run the steps of all slots laid end to end. Results are those of `map_slots`."""
    if plan.client_devices > 1:
        alone = plan._replace(client_devices=1)
        return batching.split_over_devices(
            lambda _, *here: _in_rows(begin, alone, rows, most_steps, *here), plan, steps, *slots
        )
    if most_steps is None:
        raise ValueError("Rows have the length `most_steps`, which is not known.")
    ends, executed = run_in_rows(begin, rows, max(1, most_steps), steps, *slots)
    return ends, executed.sum()
