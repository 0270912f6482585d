"""Gradients on mini-batches of a client's examples, and on all of them.

Dimension letters: those of `fedjax_sim.core.types`; `m` examples of a client.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.clients.clipping import clip_updates
from fedjax_sim.core import batching, settings, streams, trees, types
from fedjax_sim.core.types import Array, Batch, Event, Extras, Key, Losses, Params, Plan, Work

BatchLoss = Callable[[Params, Array], Array]
"""From a model and the number of a local step since the start, `i32[]`, to that step's loss."""
BatchGradient = Callable[[Params, Array], Params]
"""From a model and the number of a local step since the start, `i32[]`, to its loss's gradient."""
StepLoss = Callable[[Params, Params, Array], tuple[Array, Params]]
"""From a model, the loss's aux and the number of a local step to that step's loss and next aux."""


class LossGradient:
    """The gradient of a loss of local steps, a `BatchGradient` that also carries the loss's aux.

    Attributes:
      loss: The loss of each step.
      aux: The aux that the first step is given.
      untrained: Bools in the model's structure: leaves whose new values are the aux that `loss`
        returns, a model with None in the places of the others. It is given () then. None if the
        steps train all leaves.
    """

    def __init__(self, loss: StepLoss, aux: Params = (), untrained: Params | None = None):
        """Differentiate a loss."""
        self.loss, self.aux, self.untrained = loss, aux, untrained

    def __call__(self, model: Params, q: Array) -> Params:
        """Return the gradient of a first step."""
        return self.carrying(model, self.aux, q)[0]

    def carrying(self, model: Params, aux: Params, q: Array) -> tuple[Params, Params]:
        """Return the gradient, and the next aux. The arguments are those of `StepLoss`."""
        return jax.grad(self.loss, has_aux=True)(model, aux, q)

    def descent(
        self, rate: Array | float, model: Params, aux: Params, q: Array
    ) -> tuple[Params, Params]:
        """Return -rate times the gradient, no array of its size being multiplied, and the next aux.

        The rate is the cotangent of -loss: a kernel that computes the loss's derivative takes the
        sign in, but the negated rate would have one for itself. Where the rate would be rounded, or
        a derivative written by hand may depend on it, the gradient is multiplied.

        Args:
          rate: `f[]`.
          model: The model, leaves `[...]`.
          aux: As in `StepLoss`.
          q: As in `BatchGradient`.
        """
        traced = jax.make_jaxpr(self.loss)(model, aux, q)
        kinds = [leaf.dtype for leaf in (traced.out_avals[0], *jax.tree.leaves(model))]
        if any(map(trees.is_narrow, kinds)) or _minds_scale(traced.jaxpr):
            slope, aux = self.carrying(model, aux, q)
            return jax.tree.map(lambda leaf: -(rate * leaf), slope), aux

        def negative(model: Params) -> tuple[Array, Params]:
            value, carried = self.loss(model, aux, q)
            return -value, carried

        value, pull_back, carried = jax.vjp(negative, model, has_aux=True)
        return pull_back(jnp.asarray(rate, value.dtype))[0], carried


def _minds_scale(program: Any) -> bool:
    """Tell whether the derivative of a traced loss may depend on the scale of its cotangent.

    That is so if `jax.custom_vjp` has written it, which may clip it, or if small numbers are 0 in
    one of its types, such as float16.
    """
    least = jnp.finfo("float32").minexp
    for equation in program.eqns:
        if equation.primitive.name.startswith("custom_vjp"):
            return True
        kinds = (var.aval.dtype for var in equation.outvars if hasattr(var.aval, "dtype"))
        if any(jnp.issubdtype(k, jnp.floating) and jnp.finfo(k).minexp > least for k in kinds):
            return True
        if any(map(_minds_scale, trees.programs_within(equation))):
            return True
    return False


def method_of(problem: object, name: str) -> Any:
    """Optional method of a problem; None if its class lacks it.

    A wrapper that hands on all attributes of another problem does not take it over unasked: it may
    have a loss that differs.

        assert method_of(problem, "client_loss") and method_of(problem, "local_loss") is None
    """
    return getattr(problem, name, None) if hasattr(type(problem), name) else None


def untrained_leaves(problem: object, model: Params) -> Params | None:
    """Flags of the leaves that are averaged but not trained; None without such leaves."""
    untrained = method_of(problem, "untrained")
    flags = None if untrained is None else untrained(model)
    return flags if any(jax.tree.leaves(flags)) else None


def check_plain(problem: object) -> None:
    """Refuse a problem with `local_loss`, for local steps that carry no aux.

    Raises:
      ConfigError: If it has one.
    """
    if method_of(problem, "local_loss") is not None:
        allowed = "one without local_loss and model state, which these local steps do not carry"
        raise settings.ConfigError("problem", type(problem).__name__, allowed)


def _without_slope(model: Params, flags: Params | None) -> Params:
    """Keep derivatives from some leaves, those with a true flag."""
    if flags is None:
        return model
    return jax.tree.map(lambda x, flag: jax.lax.stop_gradient(x) if flag else x, model, flags)


def batch_gradient(
    problem: Losses,
    hyper: types.Settings,
    key: Key,
    client: Array,
    offset: Array,
    *,
    most_steps: settings.Whole | None = None,
    is_alone: bool = False,
    start: Params | None = None,
    own: Params = (),
) -> BatchGradient:
    """Return the gradient of `local_loss`; with `example_clip` the mean of clipped gradients.

    Without `local_loss` it is that of `loss`, which has no aux. Each clipped example has its key.

        gradient = batch_gradient(problem, hyper, key, jnp.int32(2), jnp.int32(0))
        assert jnp.allclose(gradient(model, jnp.int32(0)), model - problem.centers[2])

    Args:
      client: `i32[]`, the client's number.
      offset: `i32[]`, local steps that the client has done before.
      most_steps: The number of a step is below this. If it is known, the mini-batches of all
        steps are drawn together before the first; call this outside the loop over steps then.
      is_alone: Whether the client's data are looked up once, if the problem can (has `alone`).
      start: The model that the steps start from; None if the caller carries no aux.
      own: The client's rows of what the system keeps for clients.

    Returns:
      A function from a model and the number q of a local step to the gradient.

    Raises:
      ConfigError: If there is an aux that the caller does not carry, or with clipped examples.
    """
    drawn = batching.look_ahead(batches_of(problem, hyper, key, client, offset), most_steps)
    loss, first_aux = method_of(problem, "local_loss"), method_of(problem, "first_aux")
    if start is None:
        check_plain(problem)
    flags = None if loss is None else untrained_leaves(problem, start)
    aux = () if first_aux is None else first_aux(start)
    if loss is None:
        losses: Any = problem
        if is_alone and trees.has(problem, "alone"):
            losses = losses.alone(client)

        def loss(params: Params, aux: Params, batch: Batch, extras: Extras) -> tuple[Array, Params]:
            return losses.loss(params, client, *batch), aux

    extras = Extras(start, own, client)

    def of_batch(model: Params, aux: Params, batch: Batch) -> tuple[Array, Params]:
        if flags is not None:
            model, aux = _without_slope(model, flags), trees.split(model, flags)[1]
        return loss(model, aux, batch, extras)

    bound = hyper.training.example_clip
    if bound == 0:
        return LossGradient(
            lambda model, aux, q: of_batch(model, aux, Batch(*drawn(q))), aux, flags
        )
    if flags is not None or jax.tree.leaves(aux):
        allowed = "0 where a loss has an aux: it would tell of examples, as nothing clips it"
        raise settings.ConfigError("training.example_clip", bound, allowed)

    def gradient(model: Params, q: Array) -> Params:
        examples, noise = drawn(q)

        def of_one(example: Array, place: Array) -> Params:
            own_key = jax.random.fold_in(noise, place)
            batch = Batch(example[None], own_key)
            return jax.grad(of_batch, has_aux=True)(model, aux, batch)[0]

        slopes = jax.vmap(of_one)(examples, jnp.arange(hyper.batch_size))
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), clip_updates(slopes, bound)[0])

    return gradient


def batch_loss(
    problem: Losses, hyper: types.Settings, key: Key, client: Array, offset: Array
) -> BatchLoss:
    """Return the mini-batch loss of a client.

        loss = batch_loss(problem, hyper, key, jnp.int32(2), jnp.int32(0))
        away = model - problem.centers[2]
        assert jnp.allclose(loss(model, jnp.int32(0)), (away**2).sum() / 2)  # of its first step

    Args:
      hyper: The settings; `batch_size` and `sampling` are used.
      client: `i32[]`.
      offset: `i32[]`, local steps that the client has done before.
    """
    drawn = batches_of(problem, hyper, key, client, offset)
    return lambda model, q: problem.loss(model, client, *drawn(q))


def batches_of(
    problem: Losses, hyper: types.Settings, key: Key, client: Array, offset: Array
) -> Callable[[Array], tuple[Array, Key]]:
    """Return a function from a step's number to its mini-batch, `i32[B]`, and its key.

    The arguments are those of `batch_loss`.
    """
    client_key = jax.random.fold_in(streams.lane_stream(key, "local"), client)
    batches, noises = (
        streams.lane_stream(client_key, "batches"),
        streams.lane_stream(client_key, "noise"),
    )
    bits, count, size = streams.shuffle_bits(batches), problem.counts[client], hyper.batch_size

    def draw(q: Array) -> tuple[Array, Key]:
        step = offset + q
        if hyper.training.sampling == "with_replacement":
            batch_key = jax.random.fold_in(batches, step)
            examples = jax.random.randint(batch_key, (size,), 0, count, "int32")
        elif hyper.training.sampling == "without_replacement":
            # A batch that is larger than the client's examples runs through them again.
            examples = streams.shuffled_index(bits, jnp.arange(size) % count, count, step)
        elif hyper.training.sampling == "reshuffled":
            places = (q * size + jnp.arange(size)) % count
            examples = streams.shuffled_index(bits, places, count, offset)
        else:
            examples = shuffled_examples(bits, step, count, size)
        return examples, jax.random.fold_in(noises, step)

    return draw


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
    return streams.shuffled_index(bits, place, count, epoch)


@settings.struct
class WholeGradients(settings.Checked):
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
        raise settings.ConfigError(field, value, reason)


def whole_gradient(
    problem: Any, key: Key, client: Array, first: Array, *, most_steps: settings.Whole | None
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
    check_plain(problem)
    losses = problem.alone(client) if trees.has(problem, "alone") else problem
    keys = batching.look_ahead(lambda q: jax.random.fold_in(key, first + q), most_steps)
    return LossGradient(lambda model, aux, q: (losses.client_loss(model, client, keys(q)), aux))


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
        of_batch, flags = partial(batch_gradient, problem, hyper), untrained_leaves(problem, model)

        def of_all(model: Params, client: Array, noise: Key) -> Array:
            return problem.client_loss(_without_slope(model, flags), client, noise)

        def slot(trips: Array, client: Array, offset: Array) -> Params:
            def gradient(_: Array | int, before: Params) -> Params:
                if not is_exact:
                    return of_batch(key, client, offset, start=model)(model, jnp.int32(0))
                noise = jax.random.fold_in(streams.lane_stream(key, "whole gradients"), client)
                noise = jax.random.fold_in(noise, event.tick)
                return jax.grad(of_all)(model, client, noise)

            # Without a known number of trips there is none where nobody needs it.
            nothing = jax.tree.map(jnp.zeros_like, model)
            return jax.lax.fori_loop(0, trips, gradient, nothing) if is_counted else gradient(0, ())

        is_counted = plan.trips(event.facts) is None
        clients, steps = jnp.maximum(event.clients, 0), is_present.astype("int32")
        slots = (clients, event.offset)
        slopes, taken = batching.map_slots(
            slot, plan, steps, *slots, trips=None if is_counted else 1
        )
        if not is_exact:
            return slopes, Work(taken, steps.sum())
        passes = -(-problem.counts // hyper.batch_size)
        return slopes, Work(taken * passes.max(), jnp.where(is_present, passes[clients], 0).sum())

    return gradients
