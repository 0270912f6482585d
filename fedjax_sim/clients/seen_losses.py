"""Losses of clients, for live clocks that choose clients by them and servers that weight by them.

Dimension letters: `S` slots of a tick, `B` examples of a mini-batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients.mini_batches import batches_of
from fedjax_sim.core import batching, streams, types
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Event, Key, Params, Plan, Settings, Work


class SeenLosses(NamedTuple):
    """Losses on mini-batches, before clients train on them; 0 in empty slots.

    Attributes:
      mean: `f[S]`, their means.
      root_mean_square: `f[S]`, roots of the means of their squares.
    """

    mean: Array
    root_mean_square: Array


def losses_of(
    problem: types.Losses,
    hyper: Settings,
    plan: Plan,
    key: Key,
    clients: Array,
    offset: Array,
    *,
    model: Params | None = None,
    models: Params | None = None,
) -> tuple[SeenLosses, Array]:
    """Compute losses of the mini-batches with which clients would begin.

        losses, _ = losses_of(problem, hyper, plan, key, event.clients, event.offset, model=model)
        away = model - problem.centers[3]
        assert jnp.allclose(losses.mean[1], (away**2).sum() / 2)  # of client 3

    Args:
      problem: What is learnt.
      hyper: Settings of local training.
      plan: How the machine is used.
      key: The learning key, so that these are the mini-batches on which clients train.
      clients: `i32[S]`; `EMPTY` in empty slots.
      offset: `i32[S]`, local steps that each has done before.
      model: The model of all of them.
      models: Or a model for each, leaves `[S, ...]`.

    Returns:
      The losses, and the evaluations that were run, `i32[]`: one for a mini-batch.
    """
    is_there = clients != EMPTY

    def of_slot(trips: int, client: Array, offset: Array, own: Params) -> SeenLosses:
        start = model if models is None else own
        examples, noise = batches_of(problem, hyper, key, client, offset)(jnp.int32(0))
        of_one = lambda example: problem.loss(start, client, example[None], noise)  # noqa: E731
        found = jax.vmap(of_one)(examples)
        return SeenLosses(found.mean(), jnp.sqrt((found**2).mean()))

    given = jnp.maximum(clients, 0), offset, models
    losses, _ = batching.map_slots(of_slot, plan, is_there.astype("int32"), *given, trips=1)
    # A tick without anybody counts nothing, as in local training.
    executed = jnp.where(is_there.any(), len(clients), 0).astype("int32")
    return jax.tree.map(lambda leaf: jnp.where(is_there, leaf, 0), losses), executed


def losses_at(
    problem: Any, hyper: Settings, plan: Plan, *, is_exact: bool
) -> Callable[[Key, Event, Params], tuple[Array, Work]]:
    """Bind clients' losses of a model.

        losses, work = losses_at(problem, hyper, plan, is_exact=True)(key, event, model)
        away = model - problem.centers[3]
        assert jnp.allclose(losses[1], (away**2).sum() / 2)  # of client 3
        assert work.needed == 2  # one example of each client

    Args:
      problem: What is learnt; with exact losses it must have `client_loss`.
      is_exact: Whether losses are of all of a client's examples, or of the mini-batch of its next
        local step.

    Returns:
      A function from key, event and a model, leaves `[...]`, to the losses of the slots' clients,
      `f[S]`, 0 in empty slots, and the evaluations spent: ceil(m / batch_size) for all examples of
      a client, or 1 for a mini-batch.
    """

    def losses(key: Key, event: Event, model: Params) -> tuple[Array, Work]:
        is_there, clients = event.clients != EMPTY, jnp.maximum(event.clients, 0)
        if not is_exact:
            given = key, event.clients, event.offset
            seen, executed = losses_of(problem, hyper, plan, *given, model=model)
            return seen.mean, Work(executed, is_there.sum(dtype="int32"))

        def of_slot(trips: int, client: Array) -> Array:
            noise = jax.random.fold_in(streams.lane_stream(key, "whole losses"), client)
            return problem.client_loss(model, client, jax.random.fold_in(noise, event.tick))

        found, taken = batching.map_slots(of_slot, plan, is_there.astype("int32"), clients, trips=1)
        passes = -(-problem.counts // hyper.batch_size)
        executed = jnp.where(is_there.any(), taken * passes.max(), 0).astype("int32")
        needed = jnp.where(is_there, passes[clients], 0).sum(dtype="int32")
        return jnp.where(is_there, found, 0), Work(executed, needed)

    return losses


def seeing_losses(
    algorithm: Callable[..., Algorithm], starts: Callable[..., Params] | None = None
) -> Callable[..., Algorithm]:
    """Return the same algorithm with steps that tell a live clock clients' losses.

        algorithm = seeing_losses(fedavg.system.algorithm)(problem, hyper, plan)
        _, work = algorithm.step(key, algorithm.init(key), event)
        assert work.seen.mean.shape == (2,)  # of each slot

    Args:
      algorithm: An algorithm of gradient steps whose steps return `Work`.
      starts: From state and event to the models from which slots start, leaves `[S, ...]`. None if
        all start from the server's model as clients receive it.

    Returns:
      An algorithm with `SeenLosses` in `Work.seen`. It counts one evaluation more for each slot.
    """

    def bind(problem: types.Losses, hyper: Settings, plan: Plan) -> Algorithm:
        inner = algorithm(problem, hyper, plan)

        def step(key: Key, state: types.StateT, event: Event) -> tuple[types.StateT, Work]:
            model = (inner.received or inner.model)(state) if starts is None else None
            models = None if starts is None else starts(state, event)
            given = key, event.clients, event.offset
            losses, executed = losses_of(problem, hyper, plan, *given, model=model, models=models)
            state, work = inner.step(key, state, event)
            needed = (event.clients != EMPTY).sum(dtype="int32")
            return state, work._replace(
                seen=losses, executed=work.executed + executed, needed=work.needed + needed
            )

        return inner._replace(step=step)

    return bind
