"""The work of replay programs in plain JAX, as one writes it by hand, to be compiled and counted.

Federated averaging is that of `benchmarks.peer_workers.run_plain`. FAVANO trains all selected
clients side by side, each for the most steps that any client may have to do, and masks what is too
much. Its schedule is an argument, as the engine's is.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.targets import tracing_for

PEERS = str(Path(__file__).parent / "peer_workers")
Step = Callable[[Any, Any, Any, Any], Any]
"""Takes a model one step further, from images, labels and a learning rate."""


def lowered(
    scores: Callable[[Any, Any], Any],
    model: Any,
    images: Sequence[int],
    *,
    system: str,
    hyper: Any,
    rates: int,
    seeds: int,
    ticks: int,
    device: Any,
) -> jax.stages.Lowered:
    """Lower a sweep over learning rates and seeds for a device, in float32.

    Args:
      scores: Computes logits from a model and images, which are `f32[B, *images]`.
      model: Shapes of a model.
      images: Height, width and channels.
      system: "fedavg" or "favano".
      hyper: Settings of the system.
      rates: Number of learning rates.
      seeds: Number of seeds.
      ticks: Number of rounds.
      device: What to lower for.
    """
    if PEERS not in sys.path:
        sys.path.insert(0, PEERS)
    from protocol import Job
    from run_plain import averaging, local_step

    clients, slots, steps = hyper.num_clients, hyper.num_selected, hyper.local_steps
    step, lanes = local_step(scores), rates * seeds
    job = Job([], [], slots, steps, hyper.batch_size, 0.1, lanes, [], 0, "vmap", 0, "")
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), lanes))
    data = (
        jax.ShapeDtypeStruct((clients * 20, *images), jnp.float32),
        jax.ShapeDtypeStruct((clients * 20,), jnp.int32),
        jax.ShapeDtypeStruct((clients, 20), jnp.int32),
    )
    lr = jax.ShapeDtypeStruct((lanes,), jnp.float32)
    if system == "fedavg":
        run, schedule = averaging(job, step), ()
    else:
        run = favano(steps, hyper.batch_size, clients, step)
        schedule = tuple(
            jax.ShapeDtypeStruct((lanes, ticks, slots), kind)
            for kind in (jnp.int32, jnp.int32, jnp.float32)
        )

    def all_lanes(data: Any, model: Any, lr: Any, keys: Any, *schedule: Any) -> Any:
        def one(lr: Any, key: Any, *schedule: Any) -> Any:
            return run(data, model, lr, key, *(schedule or (ticks,)))

        # One run is not batched: a lane of one would only be in its way.
        if lanes > 1:
            return jax.vmap(one)(lr, keys, *schedule)
        return one(lr[0], keys[0], *(each[0] for each in schedule))

    placed = jax.sharding.SingleDeviceSharding(device)
    with tracing_for(device.platform), jax.default_matmul_precision("float32"):
        program = jax.jit(all_lanes, in_shardings=placed, out_shardings=placed)
        return program.lower(data, model, lr, keys, *schedule)


def favano(steps: int, batch: int, num_clients: int, step: Step) -> Callable[..., Any]:
    """Return a function that runs FAVANO (arXiv 2305.16099, Alg. 1).

    Its arguments are the images, labels and index of all clients, the initial model, a learning
    rate, a key, and a schedule: clients, their steps, and what their progress is divided by, each
    `[T, S]`.
    """

    def train(arrays: Any, model: Any, lr: Any, key: Any, client: Any, count: Any) -> Any:
        images, labels, index = arrays
        mine = index[client]
        keys = jax.random.split(key, -(-steps * batch // mine.shape[0]))
        order = jax.vmap(lambda key: jax.random.permutation(key, mine))(keys)
        rows = order.reshape(-1)[: steps * batch].reshape(steps, batch)

        @jax.named_scope("local_step")
        def one_step(model: Any, turn: Any) -> tuple[Any, None]:
            number, rows = turn
            after = step(model, images[rows], labels[rows], lr)
            return jax.tree.map(lambda a, b: jnp.where(number < count, a, b), after, model), None

        return jax.lax.scan(one_step, model, (jnp.arange(steps), rows))[0]

    def all_ticks(
        arrays: Any, model: Any, lr: Any, key: Any, clients: Any, counts: Any, alphas: Any
    ) -> Any:
        @jax.named_scope("tick")
        def one_tick(state: Any, event: Any) -> tuple[Any, None]:
            server, starts = state
            key, clients, counts, alphas = event
            keys = jax.random.split(key, len(clients))
            before = jax.tree.map(lambda leaf: leaf[clients], starts)
            after = jax.vmap(lambda model, *each: train(arrays, model, lr, *each))(
                before, keys, clients, counts
            )

            def mean(server: Any, before: Any, after: Any) -> Any:
                scale = alphas.reshape(-1, *(1,) * server.ndim)
                reached = (before + (after - before) / scale).sum(axis=0)
                return (server + reached) / (1 + len(clients))

            server = jax.tree.map(mean, server, before, after)
            starts = jax.tree.map(lambda all, one: all.at[clients].set(one), starts, server)
            return (server, starts), None

        starts = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), model
        )
        keys = jax.random.split(key, len(clients))
        (server, _), _ = jax.lax.scan(one_tick, (model, starts), (keys, clients, counts, alphas))
        return server

    return all_ticks
