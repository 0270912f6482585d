"""Local training: optimizer steps of the clients in the slots of a tick.

A system binds it once, `train = local_training(problem, hyper, plan)`, and then calls
`train(key, event, start=model)` at every tick. The plan is what the engine fixed before compiling
(`fedjax_sim.types.Plan`); a system only passes it on.

Dimension letters: those of `fedjax_sim.types`; `m` examples of a client.
"""

import functools
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct as pytrees
from jax.experimental.layout import Layout, with_layout_constraint

from fedjax_sim.batching import (
    look_ahead,
    map_slots,
    replicate,
    split_over_devices,
    weighted_sum,
)
from fedjax_sim.clients.packing import Rows, run_in_rows
from fedjax_sim.privacy import clip_updates
from fedjax_sim.settings import ConfigError, choice, count, real, static, struct
from fedjax_sim.streams import shuffle_bits, shuffled_index, stream
from fedjax_sim.types import Array, ClientLosses, Event, Key, Params, Plan, Problem, Work

BatchLoss = Callable[[Params, Array], Array]
"""From a model and the number of a local step since the start, `i32[]`, to that step's loss."""
BatchGradient = Callable[[Params, Array], Params]
"""From a model and the number of a local step since the start, `i32[]`, to that loss's gradient."""
Direction = Callable[..., Params]
"""What a local step follows in place of the gradient g, for each number of the model alone.

It is called as `direction(g, model, q, start, *extras)` with the number of the step q, `i32[]`, the
slot's start and the slot's extras, which are models too.
"""

ELEMENTWISE = (optax.sgd, optax.adam, optax.adamw, optax.adagrad, optax.rmsprop, optax.yogi)
"""Optimizers that treat every number of a model alike, whatever the shape of its array."""


def _optimizer_named(name: str) -> Callable[..., optax.GradientTransformation]:
    return getattr(optax, name)


def _makes_optimizers(value: Any) -> bool:
    if isinstance(value, str):
        function = value if hasattr(optax, value) else "adam"
        allowed = f"a function such as optax.{function}; only the command line takes names"
        raise ConfigError("optimizer", value, allowed)
    return isinstance(value, Hashable) and _makes_steps(value)


@functools.lru_cache(maxsize=256)
def _makes_steps(value: Any) -> bool:
    """Tell whether a function makes optimizers, by tracing one step of two numbers."""
    model = jax.ShapeDtypeStruct((2,), jnp.float32)

    def step(model: Params, gradient: Params) -> Params:
        made = value(0.1)
        return made.update(gradient, made.init(model), model)[0]

    try:
        return jax.eval_shape(step, model, model).shape == model.shape
    except (AttributeError, TypeError, ValueError):
        return False


def _is_bound(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < float("inf")


@struct
class LocalTraining:
    """Settings of clients' local training."""

    lr: float = real(0.5, "Learning rate of local steps.", above=0)
    lr_scale: float = real(
        1.0,
        "Factor on lr: (s + 1) / s for QuAFL and Z / N for FedBuff give the learning rates of "
        "QuAFL's public simulator.",
        above=0,
    )
    batch_size: int = count(128, "Examples of a mini-batch.")
    sampling: str = choice(
        "shuffled_epochs",
        ("shuffled_epochs", "reshuffled", "without_replacement", "with_replacement"),
        "How mini-batches are drawn: from epochs, each shuffled again, that continue from one "
        "update to the next; from a new shuffle for each update; without replacement for each "
        "step; or with replacement.",
    )
    example_clip: float = static(
        0.0,
        "0, or a finite number above 0",
        _is_bound,
        float,
        meaning="Largest L2 norm of the gradient of a single example's loss in local steps, which "
        "is clipped to it before the mean over the mini-batch; 0 does not clip.",
    )
    optimizer: Callable[..., optax.GradientTransformation] = static(
        optax.sgd,
        "the name of an optax optimizer, or a function from a learning rate to a gradient "
        "transformation",
        _makes_optimizers,
        _optimizer_named,
        meaning="Local optimizer; its state starts afresh with each update.",
    )

    def local_optimizer(self) -> optax.GradientTransformation:
        """Make the optimizer of local steps."""
        return self.optimizer(self.lr * self.lr_scale)


class Training(NamedTuple):
    """One client's training in one slot.

    Attributes:
      gradient: The gradient that each step follows.
      optimizer: The optimizer; its state starts afresh.
      is_elementwise: Whether the optimizer does the same to a matrix and to its transpose.
      direction: What the steps follow in place of the gradient; None for the gradient.
      aside: Models that the direction reads besides the slot's own, the start among them.
    """

    gradient: BatchGradient
    optimizer: optax.GradientTransformation
    is_elementwise: bool = False
    direction: Direction | None = None
    aside: tuple[Params, ...] = ()


class Total(NamedTuple):
    """A sum over the slots that is wanted in place of each one's model.

    It is added up slot by slot, so that the models of a tick need not be in memory together.

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
          key: The lane's learning key.
          event: The tick.
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
    problem: Problem,
    hyper: LocalTraining,
    plan: Plan,
    *,
    gradient: GradientOfClient | None = None,
    direction: Direction | None = None,
    proximal: Array | float | None = None,
) -> Train:
    """Bind local training: w <- w - lr g, as often as the event says.

    A client's batches and noise depend on the key, the client and the number of local steps it has
    done before (`event.offset`); they do not depend on when or with whom it is received.

    Args:
      problem: What is learnt.
      hyper: The settings.
      plan: The engine's plan.
      gradient: The gradient g, where slots stand for something other than single clients;
        `batch_gradient` if None. It is given the slot's extras.
      direction: What the steps follow in place of g, such as g plus a correction. It is given the
        slot's extras, and must do the same to a matrix and to its transpose.
      proximal: mu, if mu / 2 ||w - start||^2 is added to the loss (FedProx, FedAsync).

    Returns:
      A function from key, event, starting models and extras to the models that the slots' clients
      reach, leaves `[S, ...]`, and the work done.
    """
    training = training_of(
        problem, hyper, plan, gradient=gradient, direction=direction, proximal=proximal
    )

    def train(
        key: Key,
        event: Event,
        *,
        start: Params | None = None,
        starts: Params | None = None,
        extras: Any = (),
        total: Total | None = None,
    ) -> tuple[Params, Work]:
        of_slot, models = partial(training, key), {"start": start, "starts": starts}
        return local_steps(plan, event, of_slot, **models, extras=extras, total=total)

    return train


def training_of(
    problem: Problem,
    hyper: LocalTraining,
    plan: Plan,
    *,
    gradient: GradientOfClient | None = None,
    direction: Direction | None = None,
    proximal: Array | float | None = None,
) -> Callable[..., Training]:
    """Return a function from key, start, client, offset and extras to a slot's training.

    The arguments are those of `local_training`.

    Args:
      problem: What is learnt.
      hyper: The settings.
      plan: The engine's plan.
      gradient: As in `local_training`.
      direction: As in `local_training`.
      proximal: As in `local_training`.
    """
    gradient_of = gradient or partial(
        batch_gradient, most_steps=plan.most_steps, is_alone=plan.packed_rows > 0
    )

    def followed(slope: Params, model: Params, q: Array, start: Params, *extras: Any) -> Params:
        if direction is not None:
            slope = direction(slope, model, q, start, *extras)
        if proximal is not None:
            slope = jax.tree.map(lambda g, w, w0: g + proximal * (w - w0), slope, model, start)
        return slope

    def training(key: Key, start: Params, client: Array, offset: Array, *extras: Any) -> Training:
        of_client = extras if gradient is not None else ()
        slope = gradient_of(problem, hyper, key, client, offset, *of_client)
        optimizer = hyper.local_optimizer()
        is_elementwise = hyper.optimizer in ELEMENTWISE
        if direction is None and proximal is None:
            return Training(slope, optimizer, is_elementwise)
        of_model = extras if direction is not None else ()
        return Training(slope, optimizer, is_elementwise, followed, (start, *of_model))

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

    Args:
      plan: The engine's plan.
      event: The tick.
      training: From a slot's start, client `i32[]`, offset `i32[]` and extras to its training.
      start: As in `Train`.
      starts: As in `Train`.
      extras: As in `Train`.
      total: As in `Train`.

    Returns:
      As in `Train`.
    """
    models = {"start": start, "starts": starts}
    ends, _, work = lasting_steps(
        plan, event, training, **models, extras=extras, states=None, total=total
    )
    return ends, work


def lasting_steps(
    plan: Plan,
    event: Event,
    training: Callable[..., Training],
    *,
    start: Params | None = None,
    starts: Params | None = None,
    extras: Any = (),
    states: Any,
    total: Total | None = None,
) -> tuple[Params, Any, Work]:
    """Run every slot's local steps with an optimizer whose state has been kept.

    Args:
      plan: As in `local_steps`.
      event: As in `local_steps`.
      training: As in `local_steps`.
      start: As in `Train`.
      starts: As in `Train`.
      extras: As in `Train`.
      states: The optimizer's state in each slot, leaves `[S, ...]`; None if it starts afresh.
      total: As in `Train`.

    Returns:
      The models reached or the sum, the states after the steps, None if they start afresh, and
      the gradient evaluations spent.
    """
    num_slots = event.clients.shape[0]
    chex.assert_shape((event.steps, event.offset), (num_slots,))
    # Slots that run one after another read the common start where it is.
    if starts is None and (plan.slots_at_once > 1 or plan.packed_rows):
        starts = replicate(start, num_slots)
    chex.assert_tree_shape_prefix((starts, extras, states), (num_slots,))
    common = start

    def begin(
        start: Params | None, client: Array, offset: Array, extras: Any, state: Any
    ) -> tuple["_Local", Callable[..., "_Local"]]:
        """Return what a slot carries, and its step. start: None for the common one."""
        start = common if start is None else start
        given = training(start, client, offset, *extras)
        optimizer, direction = given.optimizer, given.direction
        are_turned = tuple(
            given.is_elementwise and leaf.ndim == 2 and leaf.shape[1] <= plan.narrow
            for leaf in jax.tree.leaves(start)
        )
        turned = partial(_turn, are_turned=are_turned)
        # Otherwise XLA lays these arrays out as they were, and transposes them at every step.
        model, *aside = (_in_row_major(turned(each), are_turned) for each in (start, *given.aside))

        @jax.named_scope("local_step")
        def step(q: Array, local: _Local, is_asked: Array | None = None) -> _Local:
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
            return local.replace(model=optax.apply_updates(local.model, update), state=after)

        if states is None:
            return _Local(model, optimizer.init(model), are_turned), step
        are_states_turned = _turned_in_state(optimizer, model, are_turned)
        first = _in_row_major(_turn(state, are_states_turned), are_states_turned)
        return _Local(model, first, are_turned, are_states_turned), step

    def summand(model: Params, start: Params) -> Params:
        is_progress = total is not None and total.of_progress
        return jax.tree.map(jnp.subtract, model, start) if is_progress else model

    def slot(trips: Array, steps: Array, *inputs: Any) -> Any:
        first, step = begin(*inputs)

        def trip(q: Array, local: _Local) -> _Local:
            return step(q, local, q < steps if plan.is_masked else None)

        last = jax.lax.fori_loop(0, trips, trip, first)
        last = last if states is not None else last.replace(state=())
        return last if total is None else (summand(last.model, first.model), last.replace(model=()))

    # An empty slot has no steps; its client number only has to be valid.
    clients = event.clients if plan.all_filled else jnp.maximum(event.clients, 0)
    slots = (starts, clients, event.offset, extras, states)
    if plan.packed_rows:
        ends, executed = _in_rows(begin, plan, event.steps, *slots)
        if total is not None:
            each = summand(ends.model, _turn(starts, ends.are_turned))
            ends = ends.replace(model=weighted_sum(total.weights, each))
    else:
        weights = None if total is None else total.weights
        found, executed = map_slots(
            slot, plan, event.steps, event.steps, *slots, trips=plan.trips, weights=weights
        )
        ends = found if total is None else found[1].replace(model=found[0])
    work = Work(executed, event.steps.sum())
    after = None if states is None else _turn(ends.state, ends.are_states_turned)
    return _turn(ends.model, ends.are_turned), after, work


class _Local(pytrees.PyTreeNode):
    """What a slot carries from step to step.

    Attributes:
      model: The model; matrices may be transposed.
      state: The optimizer's state.
      are_turned: Which leaves of the model are transposed.
      are_states_turned: Which leaves of the state are transposed, if it is kept.
    """

    model: Params
    state: Any
    are_turned: tuple[bool, ...] = pytrees.field(pytree_node=False)
    are_states_turned: tuple[bool, ...] = pytrees.field(pytree_node=False, default=())


def _turned_in_state(
    optimizer: optax.GradientTransformation, model: Params, are_turned: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Tell which leaves of an optimizer's state belong to leaves of the model that are turned."""
    flags = jax.tree.unflatten(jax.tree.structure(model), are_turned)
    state = jax.eval_shape(optimizer.init, model)
    if not any(are_turned):
        return (False,) * len(jax.tree.leaves(state))
    marked = optax.tree_map_params(
        optimizer, lambda _, flag: flag, state, flags, transform_non_params=lambda _: False
    )
    return tuple(jax.tree.leaves(marked))


def _in_rows(
    begin: Callable[..., tuple[_Local, Any]], plan: Plan, steps: Array, *slots: Any
) -> tuple[_Local, Array]:
    """Run the steps of all slots laid end to end. Results are those of `map_slots`."""
    if plan.client_devices > 1:
        alone = plan._replace(client_devices=1)
        return split_over_devices(
            lambda _, *here: _in_rows(begin, alone, *here), plan, steps, *slots
        )
    if plan.most_steps is None:
        raise ValueError("Rows have the length `most_steps`, which the plan does not have.")
    rows = Rows(max(1, plan.most_steps), plan.packed_rows, plan.lane_rows)
    ends, executed = run_in_rows(begin, rows, steps, *slots)
    return ends, executed.sum()


def _turn(model: Params, are_turned: tuple[bool, ...]) -> Params:
    """Transpose some matrices, or transpose them back. Leaves are `[...]` or `[S, ...]`."""
    leaves, structure = jax.tree.flatten(model)
    turned = [
        jnp.swapaxes(leaf, -1, -2) if is_turned else leaf
        for leaf, is_turned in zip(leaves, are_turned, strict=True)
    ]
    return jax.tree.unflatten(structure, turned)


def _in_row_major(model: Params, are_turned: tuple[bool, ...]) -> Params:
    """Lay arrays that were transposed out in memory row by row."""
    leaves, structure = jax.tree.flatten(model)
    laid = [
        with_layout_constraint(leaf, Layout(major_to_minor=tuple(range(leaf.ndim))))
        if is_turned
        else leaf
        for leaf, is_turned in zip(leaves, are_turned, strict=True)
    ]
    return jax.tree.unflatten(structure, laid)


def batch_gradient(
    problem: Problem,
    hyper: LocalTraining,
    key: Key,
    client: Array,
    offset: Array,
    *,
    most_steps: int | None = None,
    is_alone: bool = False,
) -> BatchGradient:
    """Return the gradient of `batch_loss`; with `example_clip` the mean of clipped gradients.

    A clipped example has a loss and a key of its own.

    Args:
      problem: What is learnt.
      hyper: The settings.
      key: The lane's learning key.
      client: `i32[]`, the client's number.
      offset: `i32[]`, local steps that the client has done before.
      most_steps: Largest number of local steps, if the plan knows it.
      is_alone: Whether the client's examples are looked up once for all steps.

    Returns:
      A function from a model and the number q of a local step to the gradient.
    """
    batches = (problem, hyper, key, client, offset)
    if hyper.example_clip == 0:
        return jax.grad(batch_loss(*batches, most_steps=most_steps, is_alone=is_alone))
    losses, drawn = _draw_batches(*batches, most_steps=most_steps, is_alone=is_alone)
    bound = hyper.example_clip

    def gradient(model: Params, q: Array) -> Params:
        examples, noise = drawn(q)

        def of_one(example: Array, place: Array) -> Params:
            own = jax.random.fold_in(noise, place)
            return jax.grad(losses.loss)(model, client, example[None], own)

        slopes = jax.vmap(of_one)(examples, jnp.arange(hyper.batch_size))
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), clip_updates(slopes, bound)[0])

    return gradient


def batch_loss(
    problem: Problem,
    hyper: LocalTraining,
    key: Key,
    client: Array,
    offset: Array,
    *,
    most_steps: int | None = None,
    is_alone: bool = False,
) -> BatchLoss:
    """Return the mini-batch loss of a client.

    Args:
      problem: What is learnt.
      hyper: The settings; `batch_size` and `sampling` are used.
      key: The lane's learning key.
      client: `i32[]`.
      offset: `i32[]`, local steps that the client has done before.
      most_steps: The number of a step is below this. If it is known, the mini-batches of all
        steps are drawn together before the first; call this outside the loop over steps then.
      is_alone: Whether the client's data are looked up here and not in every step, if the problem
        can do that (`fedjax_sim.types.SeparableProblem`).
    """
    losses, drawn = _draw_batches(
        problem, hyper, key, client, offset, most_steps=most_steps, is_alone=is_alone
    )
    return lambda model, q: losses.loss(model, client, *drawn(q))


def _draw_batches(
    problem: Any,
    hyper: LocalTraining,
    key: Key,
    client: Array,
    offset: Array,
    *,
    most_steps: int | None,
    is_alone: bool,
) -> tuple[ClientLosses, Callable[[Array], tuple[Array, Key]]]:
    """Return a client's losses, and a function from a step's number to its mini-batch and key.

    The arguments are those of `batch_loss`.
    """
    client_key = jax.random.fold_in(stream(key, "local"), client)
    batches, noises = stream(client_key, "batches"), stream(client_key, "noise")
    bits = shuffle_bits(batches)
    count = problem.counts[client]

    def draw(q: Array) -> tuple[Array, Key]:
        """Draw the positions of a step's mini-batch, `i32[B]`, and its key."""
        step = offset + q
        if hyper.sampling == "with_replacement":
            batch_key = jax.random.fold_in(batches, step)
            examples = jax.random.randint(batch_key, (hyper.batch_size,), 0, count)
        elif hyper.sampling == "without_replacement":
            examples = fresh_examples(bits, step, count, hyper.batch_size)
        elif hyper.sampling == "reshuffled":
            places = (q * hyper.batch_size + jnp.arange(hyper.batch_size)) % count
            examples = shuffled_index(bits, places, count, offset)
        else:
            examples = shuffled_examples(bits, step, count, hyper.batch_size)
        return examples, jax.random.fold_in(noises, step)

    drawn = look_ahead(draw, most_steps)
    losses = problem.alone(client) if is_alone and hasattr(problem, "alone") else problem
    return losses, drawn


def shuffled_examples(bits: Array, step: Array, count: Array, batch_size: int) -> Array:
    """Compute the positions of a mini-batch in shuffled epochs.

    The client's j-th sample is entry j mod m of permutation j div m, so a batch may straddle two
    epochs. FAVANO does not say how epochs end; its simulator has a short last batch instead.

    Args:
      bits: `u32[rounds, 2]`, the client's bits from `shuffle_bits`.
      step: `i32[]`, local steps that the client has done before; step * B must be below 2^32.
      count: `i32[]`, the client's number of examples, m.
      batch_size: B.

    Returns:
      `i32[B]`, below `count`.
    """
    sample = step.astype("uint32") * batch_size + jnp.arange(batch_size, dtype="uint32")
    epoch, place = jnp.divmod(sample, count.astype("uint32"))
    return shuffled_index(bits, place, count, epoch)


def fresh_examples(bits: Array, step: Array, count: Array, batch_size: int) -> Array:
    """Compute the positions of a mini-batch drawn without replacement for each step.

    A batch that is larger than the client's examples runs through its permutation again.

    Args:
      bits: `u32[rounds, 2]`, the client's bits from `shuffle_bits`.
      step: `i32[]`, number of the step.
      count: `i32[]`, the client's number of examples.
      batch_size: B.

    Returns:
      `i32[B]`, below `count`.
    """
    return shuffled_index(bits, jnp.arange(batch_size) % count, count, step)
