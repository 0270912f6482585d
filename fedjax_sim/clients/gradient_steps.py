"""Local training: optimizer steps of the clients in the slots of a tick.

A system binds it once, `train = local_training(problem, hyper, plan)`, and then calls
`train(key, event, start=model)` at every tick. The plan is what the engine fixed before compiling
(`fedjax_sim.core.types.Plan`); a system only passes it on.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.experimental.layout import Layout, with_layout_constraint

from fedjax_sim.clients import mini_batches, rows
from fedjax_sim.clients.local_settings import Descent, LastingTraining, LocalTraining
from fedjax_sim.clients.mini_batches import BatchGradient, LossGradient
from fedjax_sim.clients.packing import run_in_rows
from fedjax_sim.core import batching, targets, trees, types
from fedjax_sim.core.settings import ConfigError, Limit, Named, checked, is_known, setting, struct
from fedjax_sim.core.types import Array, Event, Key, Losses, Params, Plan, StateT, System, Work

Direction = Callable[..., Params]
"""A function from the gradient g to the direction of a local step, shaped like the model.

It is called as `direction(g, model, q, start, *extras)` with the number of the step q, `i32[]`, the
slot's start and the slot's extras. If it has a parameter `batch`, it is also given the mini-batch
(`fedjax_sim.core.types.Batch`). Leaves have the shapes that they have in the model.
"""

Measure = Callable[[Params, Params, Params, Params], Array]
"""From gradient, model, start and aux of a local step to a number, `f[]`."""

ELEMENTWISE = (optax.sgd, optax.adam, optax.adamw, optax.adagrad, optax.rmsprop, optax.yogi)
"""Optimizers that treat every number of a model alike, whatever the shape of its array."""


class Training(NamedTuple):
    """One client's training in one slot.

        slope = lambda model, q: model - 1.0  # of (w - 1)^2 / 2
        training = Training(slope, optax.sgd(0.5))  # for `local_steps`

    Attributes:
      gradient: The gradient that each step follows.
      optimizer: The optimizer.
      is_elementwise: Whether the optimizer and the direction do the same to a matrix and to its
        transpose. Both may then be given matrices transposed.
      direction: What the steps follow in place of the gradient; None for the gradient.
      extras: Models that the direction is given after the slot's start.
      is_corrected: Whether, without a direction, the first of them is added to the gradient.
      proximal: mu, if mu times the way from the start is added to the gradient; None if not.
      measures: Numbers to sum over the steps, by name.
      at_step: The same with another optimizer and mu for each local step, by its number; None if
        they do not change.
    """

    gradient: BatchGradient
    optimizer: optax.GradientTransformation
    is_elementwise: bool = False
    direction: Direction | None = None
    extras: tuple[Params, ...] = ()
    is_corrected: bool = False
    proximal: Array | float | None = None
    measures: tuple[tuple[str, Measure], ...] = ()
    at_step: "Callable[[Array], Training] | None" = None

    def _shifted(self, slope: Params, model: Params, q: Array, carried: Sequence[Params]) -> Params:
        """Direction of a step. carried: the slot's start and the extras."""
        if self.direction is None and self.is_corrected:
            slope = optax.tree.add(slope, *carried[1:])
        if (mu := self.proximal) is not None:
            slope = jax.tree.map(lambda g, w, w0: g + mu * (w - w0), slope, model, carried[0])
        return slope if self.direction is None else self.direction(slope, model, q, *carried)


class SumRequest(NamedTuple):
    """A sum over the slots that is wanted in place of each one's model.

    It is added up slot by slot, so that the models of a tick need not be in memory together.

        train = local_training(problem, hyper, plan)
        mean, _ = train(key, event, start=model, total=SumRequest(event.weight))  # not two models
        models, _ = train(key, event, start=model)
        assert jnp.allclose(mean, (models[0] + models[1]) / 2)

    Attributes:
      weights: `f[S]`.
      of_progress: Whether progress is summed, y_i - x of a model y_i that started from x, in place
        of y_i. Small differences of large numbers are taken before they are added.
    """

    weights: Array
    of_progress: bool = False


@checked
@dataclasses.dataclass(frozen=True)
class Train:
    """Local training that is bound to a problem, settings and a plan.

    Attributes:
      plan: The static plan.
      rates: From an event to the settings that schedules change, `f[S]` by name.
      training: From key, facts, start, client, offset, extras and the settings that schedules
        change to a slot's training.
      takes_extras: Whether the training uses extras.
      reads_own: Whether its loss may read clients' own rows.
    """

    plan: Plan
    rates: Callable[[Event], Mapping[str, Array]]
    training: Callable[..., Training]
    takes_extras: bool
    reads_own: bool = False

    def __call__(
        self,
        key: Key,
        event: Event,
        *,
        start: Params | None = None,
        starts: Params | None = None,
        extras: Params = (),
        own: Params = (),
        total: SumRequest | None = None,
    ) -> tuple[Params, Work]:
        """Run every slot's local steps.

        Args:
          start: Model that all slots start from, leaves `[...]`. Give either this or `starts`.
          starts: Model that each slot starts from, leaves `[S, ...]`.
          extras: Further inputs of each slot's gradient or direction, leaves `[S, ...]`.
          own: Rows of what the system keeps for each client, which losses may read, leaves
            `[S, ...]`.
          total: The sum to make in place of single models, if that is enough.

        Returns:
          The models reached, leaves `[S, ...]`, or the sum, leaves `[...]`; and the gradient
          evaluations spent. The model of an empty slot is its start.

        Raises:
          ConfigError: If there are extras that the training does not use.
        """
        if not self.takes_extras and jax.tree.leaves(extras):
            allowed = "left out unless gradient, direction or is_corrected uses them"
            raise ConfigError("extras", type(extras).__name__, allowed)
        of_slot = partial(self.training, key, event.facts)
        own = own if self.reads_own else ()
        slots = {"start": start, "starts": starts, "extras": (own, *extras)}
        rates = self.rates(event)
        ends, _, work = local_steps(self.plan, event, of_slot, **slots, rates=rates, total=total)
        return ends, work


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

    Batches and noise depend on key, client and its earlier local steps (`event.offset`) alone.

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
      proximal: mu, if mu / 2 ||w - start||^2 is added to the loss; by default that of the settings.

    Returns:
      A function from key, event, starting models and extras to the models that the slots' clients
      reach, leaves `[S, ...]`, and the work done.
    """
    is_directed = direction is not None or is_corrected
    sees_batch = direction is not None and "batch" in inspect.signature(direction).parameters

    def training(
        key: Key,
        facts: types.Facts,
        start: Params,
        client: Array,
        offset: Array,
        own: Params = (),
        *extras: Params,
        **rates: Array,
    ) -> Training:
        of_client = problem, hyper, key, client, offset
        if gradient is not None:
            slope = gradient(*of_client, *extras)
        else:
            most, is_alone = facts.most_steps, facts.packed is not None
            slope = mini_batches.batch_gradient(
                *of_client, most_steps=most, is_alone=is_alone, start=start, own=own
            )
        is_alike = hyper.training.optimizer in ELEMENTWISE and (direction is None or is_elementwise)
        read = extras if is_directed else ()
        along = direction
        if direction is not None and sees_batch:
            drawn = batching.look_ahead(mini_batches.batches_of(*of_client), facts.most_steps)

            def along(g: Params, model: Params, q: Array, *models: Params) -> Params:
                return direction(g, model, q, *models, batch=types.Batch(*drawn(q)))

        of_slot = hyper.at_slot(rates)

        def at(hyper: LocalTraining) -> Training:
            mu = hyper.proximal if proximal is None else proximal
            shifts = along, read, is_corrected, None if is_known(mu, 0) else mu, plan.measures
            return Training(slope, hyper.local_optimizer(), is_alike, *shifts)

        at_step = (lambda q: at(of_slot.at_step(q))) if of_slot.by_step else None
        return at(of_slot)._replace(at_step=at_step)

    reads_own = mini_batches.method_of(problem, "local_loss") is not None
    takes_extras = gradient is not None or is_directed
    return Train(plan, hyper.of_slots, training, takes_extras, reads_own)


def local_steps(
    plan: Plan,
    event: Event,
    training: Callable[..., Training],
    *,
    start: Params | None = None,
    starts: Params | None = None,
    extras: Params = (),
    states: Params | None = None,
    rates: Mapping[str, Array] = MappingProxyType({}),
    total: SumRequest | None = None,
) -> tuple[Params, Params, Work]:
    """Run every slot's local steps, `event.steps` of them.

    `start`, `starts`, `extras` and `total` are those of `Train`.

        def training(start, client, offset):
            return Training(lambda model, q: model - 1.0, optax.sgd(0.5))

        models, _, work = local_steps(plan, event, training, start=model)
        assert models[:, 0].tolist() == [1 - 0.5**2, 1 - 0.5]  # two steps from 0 towards 1, and one

    Args:
      training: From a slot's start, client `i32[]`, offset `i32[]` and extras to its training.
      states: State of the optimizer in each slot, leaves `[S, ...]`; None if it starts afresh.
      rates: Settings that differ between slots, `f[S]` by name, which the training is given.

    Returns:
      The models reached or the sum, as in `Train`; the optimizers' states after the steps, None if
      they start afresh; and the gradient evaluations spent.
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
    is_kept, common = states is not None, start

    def begin(start: Params, *slot: Params) -> tuple["_Local", "_Step"]:
        """State of a slot, and its step. start: None for the common one."""
        client, offset, extras, state, rates = slot
        start = common if start is None else start
        given = training(start, client, offset, *extras, **rates)
        return _begin(given, start, state, is_kept, plan.narrow)

    def summand(model: Params, start: Params) -> Params:
        is_progress = total is not None and total.of_progress
        return jax.tree.map(jnp.subtract, model, start) if is_progress else model

    def slot(trips: Array, steps: Array, *inputs: Params) -> "_Local | tuple[Params, _Local]":
        first, step = begin(*inputs)

        def trip(q: Array, local: _Local) -> _Local:
            return step(q, local, q < steps if plan.is_masked(facts) else None)

        last = jax.lax.fori_loop(0, trips, trip, first)
        last = last if is_kept else dataclasses.replace(last, state=())
        if facts.same_steps and not facts.all_filled and facts.most_steps:
            # Steps of empty slots are not masked one by one, but undone. In a sum, where they count
            # for nothing, they end at 0: a GPU would copy a common start for every slot.
            is_nothing = total is not None and common is not None
            model = optax.tree.zeros_like(first.model) if is_nothing else first.model
            undone = dataclasses.replace(first, model=model, state=first.state if is_kept else ())
            last = jax.tree.map(lambda new, old: jnp.where(steps > 0, new, old), last, undone)
        if total is None:
            return last
        return summand(last.model, first.model), dataclasses.replace(last, model=())

    def in_rows(_: None, steps: Array, *slots: Params) -> tuple[_Local, Array]:
        """All slots' steps laid end to end, with the results of `map_slots`."""
        if facts.packed is None or facts.most_steps is None:
            raise ValueError("Rows have the length `most_steps`, which is not known.")
        ends, executed = run_in_rows(begin, facts.packed, max(1, facts.most_steps), steps, *slots)
        return ends, executed.sum()

    # An empty slot has no steps; its client number only has to be valid.
    clients = event.clients if facts.all_filled else jnp.maximum(event.clients, 0)
    slots = (starts, clients, event.offset, extras, states, {**rates})
    if facts.packed is not None:
        if plan.client_devices > 1:
            ends, executed = batching.split_over_devices(in_rows, plan, event.steps, *slots)
        else:
            ends, executed = in_rows(None, event.steps, *slots)
        if total is not None:
            each = summand(ends.model, turn(starts, ends.is_transposed))
            ends = dataclasses.replace(ends, model=batching.weighted_sum(total.weights, each))
    else:
        weights = None if total is None else total.weights
        found, executed = batching.map_slots(
            slot, plan, event.steps, event.steps, *slots, trips=plan.trips(facts), weights=weights
        )
        ends = found if total is None else dataclasses.replace(found[1], model=found[0])
    found = {"aux": ends.aux, "measured": ends.measured or ()}
    work = Work(executed, event.steps.sum(), event.changed, **found)
    after = turn(ends.state, ends.is_state_transposed) if is_kept else None
    return turn(ends.model, ends.is_transposed), after, work


def first_optimizers(problem: Losses, hyper: LastingTraining, model: Params) -> Params:
    """Make the initial states of all clients' optimizers.

        kept = ClientTraining(optimizer=optax.adam, optimizer_state="kept")
        states = first_optimizers(problem, LastingTraining(training=kept), model)
        assert states[0].mu.shape == (8, 3)  # of eight clients

    Args:
      model: A model, leaves `[...]`.

    Returns:
      Leaves `[N, ...]`; () if states are not kept.
    """
    if hyper.training.optimizer_state == "fresh":
        return ()
    return batching.replicate(hyper.local_optimizer().init(model), problem.counts.shape[0])


def lasting_training(
    problem: Losses, hyper: LastingTraining, plan: Plan
) -> Callable[..., tuple[Params, Params, Work]]:
    """Bind local training with optimizers that may remember; see `local_training`.

        kept = ClientTraining(optimizer=optax.adam, optimizer_state="kept")
        hyper = LastingTraining(batch_size=1, training=kept)
        states = first_optimizers(problem, hyper, model)
        train = lasting_training(problem, hyper, plan)
        models, states, work = train(key, event, states, start=model)
        assert states[0].count[jnp.array([0, 3, 7])].tolist() == [2, 1, 0]  # steps of these clients

    Returns:
      A function like a `fedjax_sim.clients.Train`, whose slots all start from `start`. After the
      event, in which a client fills at most one slot, it takes the states of all clients'
      optimizers, as `first_optimizers` makes them. It returns the models reached, leaves `[S, ...]`
      (empty slots have their start), or the sum; the states after the steps; and the work.
    """
    bound = local_training(problem, hyper, plan)
    is_kept = hyper.training.optimizer_state == "kept"

    def train(
        key: Key,
        event: Event,
        optimizers: Params,
        *,
        start: Params,
        total: SumRequest | None = None,
    ) -> tuple[Params, Params, Work]:
        training = partial(bound.training, key, event.facts)
        states = rows.read_clients(optimizers, event.clients) if is_kept else None
        slots = {"start": start, "states": states, "rates": hyper.of_slots(event)}
        ends, states, work = local_steps(plan, event, training, **slots, total=total)
        return ends, rows.write_clients(optimizers, event.clients, states) if is_kept else (), work

    return train


@struct
class BaseOptimizer(LocalTraining):
    """Settings of local training with a base optimizer, by default SGD with momentum.

    Karimireddy et al. (2021, arXiv 2008.03606) split an optimizer into an update U(g, s) and a rule
    V(g, s) for its statistics s, for MIME and MimeLite. Here both are results of an optax
    optimizer's `update`. Local steps use U with the server's statistics and leave these as they
    are. Momentum has the paper's form, U = V = beta s + (1 - beta) g.

        hyper = BaseOptimizer(lr=1.0, momentum=0.9)
        base = hyper.local_optimizer()
        update, _ = base.update(jnp.array([4.0]), base.init(jnp.array([0.0])))
        assert jnp.allclose(update, -(1 - 0.9) * 4.0)
    """

    momentum: Annotated[float, Limit(least=0, most=0.999)] = setting(
        0.9, "Momentum of local steps, beta, if the base optimizer is sgd."
    )

    @property
    def has_momentum(self) -> bool:
        """Whether the base is SGD with momentum, and not another optimizer."""
        return self.training.optimizer is optax.sgd

    def decided(self) -> dict[str, str]:
        """Name the settings without effect, and those in their place."""
        found = super().decided()
        return found if self.has_momentum else found | {"momentum": "another optimizer"}

    def local_optimizer(self) -> optax.GradientTransformation:
        """Make the base optimizer."""
        if not self.has_momentum:
            return super().local_optimizer()
        scale = optax.scale_by_learning_rate(self.lr)
        return optax.chain(optax.scale(1 - self.momentum), optax.trace(self.momentum), scale)


def frozen_training(
    problem: Losses, hyper: BaseOptimizer, plan: Plan
) -> Callable[[Key, Event, Params, Params], tuple[Params, Work]]:
    """Bind local training: y <- y - lr U(g, s), as often as the event says.

        hyper = BaseOptimizer(lr=0.5, momentum=0.0, batch_size=1)
        statistics = hyper.local_optimizer().init(model)
        models, _ = frozen_training(problem, hyper, plan)(key, event, model, statistics)
        assert jnp.allclose(models[1], 0.5 * problem.centers[3])  # one step of client 3

    Returns:
      A function from the lane's learning key, the tick, the model that all slots start from and
      the statistics s to the models reached, leaves `[S, ...]`, and the gradient evaluations spent.
    """
    bound = local_training(problem, hyper, plan)

    def train(key: Key, event: Event, start: Params, statistics: Params) -> tuple[Params, Work]:
        def frozen(given: Training) -> Training:
            base, at_step = given.optimizer, given.at_step
            optimizer = optax.GradientTransformation(
                lambda y: (), lambda g, _, y: (base.update(g, statistics, y)[0], ())
            )
            later = None if at_step is None else lambda q: frozen(at_step(q))
            return given._replace(optimizer=optimizer, is_elementwise=False, at_step=later)

        def training(*slot: Params, **rates: Array) -> Training:
            return frozen(bound.training(key, event.facts, *slot, **rates))

        rates = hyper.of_slots(event)
        models, _, work = local_steps(plan, event, training, start=start, rates=rates)
        return models, work

    return train


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Local:
    """The state of a slot between two local steps.

    Attributes:
      model: The model; matrices may be transposed.
      state: The optimizer's state.
      aux: The loss's aux.
      measured: Sums of measures, by name.
      is_transposed: Which leaves of the model are transposed.
      is_state_transposed: Which leaves of the state are transposed, if it is kept.
    """

    model: Params
    state: Params
    aux: Params
    measured: dict[str, Array]
    is_transposed: tuple[bool, ...] = dataclasses.field(metadata={"static": True})
    is_state_transposed: tuple[bool, ...] = dataclasses.field(default=(), metadata={"static": True})


_Step = Callable[..., _Local]
"""From the number of a step, a slot's state and whether the step counts to the next state."""


def _begin(
    given: Training, start: Params, state: Params, is_kept: bool, narrow: int
) -> tuple[_Local, _Step]:
    """First state of a slot, and its step.

    Args:
      given: The slot's training.
      start: Its first model.
      state: The optimizer's state, if it is kept.
      is_kept: Whether it is; otherwise it starts afresh.
      narrow: Columns of a matrix up to which it is transposed.
    """
    optimizer = given.optimizer
    untrained = getattr(given.gradient, "untrained", None)
    can_turn = given.is_elementwise and untrained is None
    is_transposed = tuple(
        can_turn and leaf.ndim == 2 and leaf.shape[1] <= narrow for leaf in jax.tree.leaves(start)
    )
    turned = partial(turn, is_transposed=is_transposed)
    is_shifted = given.is_corrected or given.proximal is not None
    model, *carried = start, *((start, *given.extras) if is_shifted or given.direction else ())
    # Otherwise XLA lays these arrays out as they were, and transposes them at every step.
    if any(is_transposed):
        model, *carried = (turned(each, is_laid=True) for each in (model, *carried))

    # On an accelerator the rate goes in as the loss's cotangent, so that an update is a product
    # that is added to the weights, and so is what a step adds to the gradient: a correction c
    # and mu (w - start), as -lr (c - mu start) and -lr mu w. Otherwise an array of the weights'
    # size, which holds each lane's rate, is written and read, or the gradient is. Other
    # directions read arrays of that size anyway, and a CPU takes longer.
    scaled = correction = None
    is_plain = isinstance(optimizer, Descent) and given.direction is None
    is_plain = is_plain and given.at_step is None
    if is_plain and isinstance(given.gradient, LossGradient) and not targets.is_for_cpu():
        scaled = partial(given.gradient.descent, optimizer.rate)
        if given.is_corrected:
            correction = optax.tree.scale(-optimizer.rate, carried[1])
        if given.proximal is not None:
            pull = optimizer.rate * given.proximal
            known = optax.tree.zeros_like(model) if correction is None else correction
            correction = optax.tree.add_scale(known, pull, carried[0])

    @jax.named_scope("local_step")
    def step(q: Array, local: _Local, is_asked: Array | None = None) -> _Local:
        model, slope, aux = turned(local.model), None, local.aux
        if scaled is not None and isinstance(given.gradient, LossGradient):
            # Measures need the gradient, which no rate of 0 gives back.
            slope = given.gradient.carrying(model, aux, q)[0] if given.measures else None
            scaled_slope, aux = scaled(model, aux, q)
            update = turned(scaled_slope)
            if correction is not None:
                update = optax.tree.add(update, correction)
            if given.proximal is not None:
                update = optax.tree.add_scale(update, -pull, local.model)
            after = local.state
        else:
            if isinstance(given.gradient, LossGradient):
                slope, aux = given.gradient.carrying(model, aux, q)
            else:
                slope = given.gradient(model, q)
            now = given if given.at_step is None else given.at_step(q)
            shifted = now._shifted(turned(slope), local.model, q, carried)
            followed = optax.tree.cast_like(shifted, local.model)  # Rates have 32 bits.
            update, after = now.optimizer.update(followed, local.state, local.model)
        measured = {
            name: local.measured[name] + measure(slope, model, start, aux).astype("float32")
            for name, measure in given.measures
        }
        if is_asked is not None:
            update = jax.tree.map(lambda leaf: jnp.where(is_asked, leaf, 0), update)
            before = local.aux if untrained is None else trees.split(local.model, untrained)[1]
            if_asked = partial(jax.tree.map, lambda new, old: jnp.where(is_asked, new, old))
            aux, measured = if_asked(aux, before), if_asked(measured, local.measured)
            # Otherwise nothing reads the state after a masked step: only masked steps follow.
            after = if_asked(after, local.state) if is_kept else after
        model = optax.apply_updates(local.model, update)
        if untrained is not None:
            model, aux = trees.join(aux, model), ()
        return dataclasses.replace(local, model=model, state=after, aux=aux, measured=measured)

    aux = given.gradient.aux if isinstance(given.gradient, LossGradient) else ()
    measured = {name: jnp.zeros((), "float32") for name, _ in given.measures}
    if not is_kept:
        return _Local(model, optimizer.init(model), aux, measured, is_transposed), step
    is_state_transposed = turned_in_state(optimizer, model, is_transposed)
    state = turn(state, is_state_transposed, is_laid=True)
    return _Local(model, state, aux, measured, is_transposed, is_state_transposed), step


def turn(model: Params, is_transposed: tuple[bool, ...], *, is_laid: bool = False) -> Params:
    """Transpose some matrices, or transpose them back. Leaves are `[...]` or `[S, ...]`.

    They are laid out in memory row by row if `is_laid`.
    """

    def turned(leaf: Array, is_one: bool) -> Array:
        found = jnp.swapaxes(leaf, -1, -2) if is_one else leaf
        layout = Layout(major_to_minor=tuple(range(leaf.ndim)))
        return with_layout_constraint(found, layout) if is_one and is_laid else found

    flags = jax.tree.unflatten(jax.tree.structure(model), is_transposed)
    return jax.tree.map(turned, model, flags)


def turned_in_state(
    optimizer: optax.GradientTransformation, model: Params, is_transposed: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Tell which leaves of an optimizer's state belong to transposed leaves of the model."""
    flags = jax.tree.unflatten(jax.tree.structure(model), is_transposed)
    state = jax.eval_shape(optimizer.init, model)
    if not any(is_transposed):
        return (False,) * len(jax.tree.leaves(state))
    marked = optax.tree_map_params(
        optimizer, lambda _, flag: flag, state, flags, transform_non_params=lambda _: False
    )
    return tuple(jax.tree.leaves(marked))


def gradient_norm(gradient: Params, model: Params, start: Params, aux: Params) -> Array:
    """Compute the norm of a local step's gradient: `f[]`.

    The arguments are those of `Measure`.

        assert gradient_norm(jnp.array([3.0, 4.0]), model, model, ()) == 5
    """
    return optax.tree.norm(gradient)


def drift(gradient: Params, model: Params, start: Params, aux: Params) -> Array:
    """Compute a local step's distance from the slot's start: `f[]`, before the step.

    The arguments are those of `Measure`.

        assert drift(model, model + jnp.array([3.0, 4.0, 0.0]), model, ()) == 5
    """
    return optax.tree.norm(optax.tree.sub(model, start))


MEASURES = Named[Measure]("measure", {"drift": drift, "gradient_norm": gradient_norm})
"""Measures by name."""


def with_measures(system: System, measures: Mapping[str, Measure] | Sequence[str]) -> System:
    """Make the same system with measures of its local steps among the metrics.

    They do not change what is learnt. For each, curves have its mean over the steps of all clients
    since the last evaluation, and "client_NAME[client]", that over each client's steps: nan without
    a step, as at the first evaluation. They are of local training, as `Train` runs it.

        measured = with_measures(fedavg.system, {"drift": drift, "slope": gradient_norm})
        run = fedjax_sim.simulate(measured, problem, hyper, budget=fedjax_sim.Ticks(20))
        assert run.curves.client_drift.dims == ("eval", "client")

    Args:
      system: A system whose slots are clients.
      measures: From a step's gradient, model, start and aux after it to a number, `f[]`, by name;
        or names of `MEASURES`.

    Returns:
      The system.

    Raises:
      ConfigError: If there is no measure of a name; and when the system is run, if its slots are no
        clients in local training.
    """
    own = measures if isinstance(measures, Mapping) else {name: MEASURES[name] for name in measures}
    return _with_measures(system, tuple(own.items()))


@functools.lru_cache(maxsize=32)  # An equal system has its program compiled.
def _with_measures(system: System, measures: tuple[tuple[str, Measure], ...]) -> System:
    """Make the system of `with_measures`."""

    @functools.wraps(system.algorithm)
    def algorithm(problem: types.AnyProblem, hyper: types.Settings, plan: Plan) -> types.Algorithm:
        made = system.algorithm(problem, hyper, plan._replace(measures=measures))
        are_clients = system.messages.num_senders(hyper) is None

        @functools.wraps(made.step)
        def step(key: Key, state: StateT, event: Event) -> tuple[StateT, Work]:
            state, work = made.step(key, state, event)
            if not (are_clients and getattr(work, "measured", False)):
                allowed = "a system whose slots are clients in local training"
                raise ConfigError("system with measures", system.name, allowed)
            return state, work

        return made._replace(step=step)

    return system._replace(algorithm=algorithm)
