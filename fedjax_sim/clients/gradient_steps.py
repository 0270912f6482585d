"""Local work: masked optimizer steps of the clients in the slots of a tick, each from a model of its own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.batching import map_slots
from fedjax_sim.settings import choice, count, real, static, struct
from fedjax_sim.streams import shuffle_bits, shuffled_index, stream
from fedjax_sim.types import Array, Event, Key, Params, Plan, Problem, Work


def _optimizer(name: str) -> Callable[..., optax.GradientTransformation]:
    return getattr(optax, name)


def _makes_optimizers(value: Any) -> bool:
    try:
        return isinstance(value(0.1), optax.GradientTransformation)
    except (TypeError, ValueError):
        return False


@struct
class LocalTraining:
    """Settings of gradient systems' local work."""

    lr: float = real(0.5, "Lr.", above=0)
    lr_scale: float = real(
        1.0,
        "Multiplies lr: (s + 1) / s for QuAFL and Z / N for FedBuff in the public simulator of QuAFL.",
        above=0,
    )
    batch_size: int = count(128, "Batch size.")
    sampling: str = choice(
        "shuffled_epochs",
        ("shuffled_epochs", "reshuffled", "without_replacement", "with_replacement"),
        "Where mini-batches come from: epochs, each shuffled anew, that go on from update to update; or a shuffle of each update's own; or a subset drawn anew for each step; or independent draws.",
    )
    optimizer: Callable[..., optax.GradientTransformation] = static(
        optax.sgd,
        "the name of an optax optimizer, or a function from a learning rate to a gradient transformation",
        _makes_optimizers,
        _optimizer,
        meaning="Its state starts anew with each update.",
    )


def shuffled_examples(bits: Array, step: Array, count: Array, batch_size: int) -> Array:
    """Positions of a client's next mini-batch in shuffled epochs: `i32[B]`, below `count`.

    The client's j-th sample is entry j mod m of permutation j div m, so a batch may straddle epochs (FAVANO does not say; its
    simulator has a short last batch instead). bits: `u32[rounds, 2]`, the client's own. step: `i32[]`, local steps the client did
    before, ever; step * B stays below 2^32. count: `i32[]`, its number of examples m.
    """
    sample = step.astype("uint32") * batch_size + jnp.arange(batch_size, dtype="uint32")
    epoch, place = jnp.divmod(sample, count.astype("uint32"))
    return shuffled_index(bits, place, count, epoch)


def fresh_examples(bits: Array, step: Array, count: Array, batch_size: int) -> Array:
    """Positions of a mini-batch drawn without replacement, anew for each step: `i32[B]`, below `count`.

    bits: `u32[rounds, 2]`, the client's own. step: `i32[]`, number of the step. A batch larger than the client's examples goes round its
    permutation again.
    """
    return shuffled_index(bits, jnp.arange(batch_size) % count, count, step)


BatchLoss = Callable[[Params, Array], Array]
"""From a model and the number of a local step since the start, `i32[]`, to the loss of that step's mini-batch, `f[]`."""
BatchGradient = Callable[[Params, Array], Params]
"""The same to the gradient of that loss."""


class Training(NamedTuple):
    """One client's local training, bound to its data and streams."""

    gradient: BatchGradient
    optimizer: optax.GradientTransformation
    """Its state starts anew."""


def local_steps(
    plan: Plan, start: Params, event: Event, train: Callable[[Params, Array, Array], Training]
) -> tuple[Params, Work]:
    """Run every slot's local steps, `event.steps` of them, from its own start.

    start: leaves `[S, ...]`. train: from a slot's start, client `i32[]` and offset `i32[]` to its training. Returns the models reached,
    leaves `[S, ...]`, and the gradient evaluations spent.
    """

    def slot(trips: Array, start: Params, client: Array, steps: Array, offset: Array) -> Params:
        gradient, optimizer = train(start, client, offset)

        def step(q: Array, carry: tuple[Params, Any]) -> tuple[Params, Any]:
            model, state = carry
            update, state = optimizer.update(gradient(model, q), state, model)
            after = optax.apply_updates(model, update)
            # Nothing reads the optimizer's state after a masked step: only such follow.
            return jax.tree.map(
                lambda new, old: jnp.where(q < steps, new, old), after, model
            ), state

        return jax.lax.fori_loop(0, trips, step, (start, optimizer.init(start)))[0]

    # An empty slot has no steps; its client index only has to be a valid one.
    clients = jnp.maximum(event.clients, 0)
    end, executed = map_slots(slot, plan, event.steps, start, clients, event.steps, event.offset)
    return end, Work(executed, event.steps.sum())


def batch_loss(problem: Problem, hyper: Any, key: Key, client: Array, offset: Array) -> BatchLoss:
    """The loss of a client that has done `offset` local steps before.

    Its batches and noise depend on key, client and the client's own count of steps, and on nothing else.
    """
    own = jax.random.fold_in(stream(key, "local"), client)
    batches, noises = stream(own, "batches"), stream(own, "noise")
    bits = shuffle_bits(batches)
    count = problem.counts[client]

    def loss(model: Params, q: Array) -> Array:
        if hyper.sampling == "with_replacement":
            examples = jax.random.randint(
                jax.random.fold_in(batches, offset + q), (hyper.batch_size,), 0, count
            )
        elif hyper.sampling == "without_replacement":
            examples = fresh_examples(bits, offset + q, count, hyper.batch_size)
        elif hyper.sampling == "reshuffled":
            places = (q * hyper.batch_size + jnp.arange(hyper.batch_size)) % count
            examples = shuffled_index(bits, places, count, offset)
        else:
            examples = shuffled_examples(bits, offset + q, count, hyper.batch_size)
        return problem.loss(model, client, examples, jax.random.fold_in(noises, offset + q))

    return loss


def batch_gradient(
    problem: Problem, hyper: Any, key: Key, client: Array, offset: Array
) -> BatchGradient:
    """The gradient of `batch_loss`."""
    return jax.grad(batch_loss(problem, hyper, key, client, offset))


def local_sgd(
    problem: Problem,
    hyper: Any,
    plan: Plan,
    key: Key,
    start: Params,
    event: Event,
    *,
    proximal: Array | float | None = None,
    gradient: Callable[[Problem, Any, Key, Array, Array], BatchGradient] = batch_gradient,
) -> tuple[Params, Work]:
    """Run every slot's local steps: w <- w - lr g, `event.steps` times, from its own start.

    start: leaves `[S, ...]`. proximal: mu, if mu / 2 ||w - start||^2 is added to the loss (FedProx, FedAsync). gradient: g, where slots
    stand for something else than clients. A client's batches and noise depend on key, client and its own count of steps
    (`event.offset`), not on when or with whom it is received. Returns the models reached, leaves `[S, ...]`, and the gradient
    evaluations spent.
    """

    def train(start: Params, client: Array, offset: Array) -> Training:
        own = gradient(problem, hyper, key, client, offset)

        def whole(model: Params, q: Array) -> Params:
            slope = own(model, q)
            if proximal is not None:
                slope = jax.tree.map(lambda g, w, w0: g + proximal * (w - w0), slope, model, start)
            return slope

        return Training(whole, hyper.optimizer(hyper.lr * hyper.lr_scale))

    return local_steps(plan, start, event, train)
