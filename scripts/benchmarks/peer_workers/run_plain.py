"""Federated averaging written by hand in JAX, with nothing but what the workload needs.

Modes: "vmap" batches the clients of a round and "map" runs them one after another, all rounds in
one scan; "vmap lanes" batches the runs of a sweep as well. XLA's convolutions are some thirty times
slower inside a loop on a CPU, so "unrolled" compiles one client's steps without a loop and is
called once for each client.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_networks import logits, mean_cross_entropy
from protocol import Data, Job, Model, Shuffles, scaled, serve


def prepare(
    job: Job,
    data: Data,
    *,
    convolve: Any = jax.lax.conv_general_dilated,
    rate_as_cotangent: bool = False,
) -> Callable[[int], Model]:
    """Return a function that runs a number of rounds.

    Args:
      job: The job.
      data: The shared arrays.
      convolve: What convolves, with the arguments of `jax.lax.conv_general_dilated`.
      rate_as_cotangent: As for `local_step`.
    """
    images, labels, index = (
        jnp.asarray(leaf) for leaf in (scaled(data.images), data.labels, data.index)
    )
    initial = [jnp.asarray(leaf) for leaf in data.initial]
    step = local_step(
        lambda model, x: logits(model, x, len(job.convolutions), convolve),
        rate_as_cotangent=rate_as_cotangent,
    )
    all_rounds = averaging(job, step)

    def scan(rounds: int) -> Model:
        key = jax.random.key(job.seed)
        model = compiled((images, labels, index), initial, job.lr, key, rounds)
        return [np.asarray(leaf) for leaf in jax.block_until_ready(model)]

    def lanes(rounds: int) -> Model:
        seeds = job.lanes // len(job.rates)
        keys = jnp.tile(jax.random.split(jax.random.key(job.seed), seeds), len(job.rates))
        rates = jnp.repeat(jnp.asarray(job.rates), seeds)
        models = compiled_lanes((images, labels, index), initial, rates, keys, rounds)
        return [np.asarray(leaf)[0] for leaf in jax.block_until_ready(models)]

    def unrolled(rounds: int) -> Model:
        draw, model = Shuffles(data, job), initial
        for _ in range(rounds):
            total = [jnp.zeros_like(leaf) for leaf in model]
            for client in draw.cohort():
                total = one_client_unrolled(images, labels, model, total, draw.examples(client))
            model = total
        return [np.asarray(leaf) for leaf in jax.block_until_ready(model)]

    @jax.jit
    def one_client_unrolled(images: Any, labels: Any, server: Any, total: Any, chosen: Any) -> Any:
        model = server
        for rows in chosen.reshape(job.steps, job.batch):
            model = step(model, images[rows], labels[rows], job.lr)
        return jax.tree.map(lambda sum, leaf: sum + leaf / job.cohort, total, model)

    compiled = jax.jit(all_rounds, static_argnums=4)
    compiled_lanes = jax.jit(
        jax.vmap(all_rounds, in_axes=(None, None, 0, 0, None)), static_argnums=4
    )
    return {"unrolled": unrolled, "vmap lanes": lanes}.get(job.mode, scan)


def local_step(
    scores: Callable[[Any, Any], Any], *, rate_as_cotangent: bool = False
) -> Callable[[Any, Any, Any, Any], Any]:
    """Return a function that takes a model one step further on images and labels, at a rate.

    Args:
      scores: Computes the logits of images from a model and them.
      rate_as_cotangent: Whether -lr is the cotangent of the loss, so that what comes back is added
        to the model as it is; otherwise the gradient is multiplied by lr.
    """

    def step(model: Any, x: Any, y: Any, lr: Any) -> Any:
        def loss(model: Any) -> Any:
            return mean_cross_entropy(scores(model, x), y)

        if rate_as_cotangent:
            _, pull_back = jax.vjp(loss, model)
            return jax.tree.map(jnp.add, model, pull_back(-jnp.asarray(lr, jnp.float32))[0])
        return jax.tree.map(lambda w, g: w - lr * g, model, jax.grad(loss)(model))

    return step


def averaging(job: Job, step: Callable[[Any, Any, Any, Any], Any]) -> Callable[..., Any]:
    """Return a function that runs rounds of federated averaging.

    Its arguments are the images, labels and index of `Data`, the initial model, a learning rate, a
    key, and the number of rounds.
    """

    def one_client(arrays: Any, model: Any, lr: Any, key: Any, client: Any) -> Any:
        images, labels, index = arrays
        mine = index[client]
        # Shuffled epochs as everybody's: batches drawn with replacement reach another loss.
        wanted = job.steps * job.batch
        keys = jax.random.split(key, -(-wanted // mine.shape[0]))
        order = jax.vmap(lambda key: jax.random.permutation(key, mine))(keys)
        rows = order.reshape(-1)[:wanted].reshape(job.steps, job.batch)

        @jax.named_scope("local_step")
        def one_step(model: Any, rows: Any) -> tuple[Any, None]:
            return step(model, images[rows], labels[rows], lr), None

        return jax.lax.scan(one_step, model, rows)[0]

    def all_rounds(arrays: Any, model: Any, lr: Any, key: Any, rounds: int) -> Any:
        @jax.named_scope("tick")
        def one_round(model: Any, key: Any) -> tuple[Any, None]:
            choice, *keys = jax.random.split(key, 1 + job.cohort)
            clients = jax.random.permutation(choice, arrays[-1].shape[0])[: job.cohort]
            inputs = jnp.stack(keys), clients
            if job.mode == "map":
                models = jax.lax.map(lambda each: one_client(arrays, model, lr, *each), inputs)
            else:
                models = jax.vmap(lambda key, client: one_client(arrays, model, lr, key, client))(
                    *inputs
                )
            return jax.tree.map(lambda leaf: leaf.mean(axis=0), models), None

        return jax.lax.scan(one_round, model, jax.random.split(key, rounds))[0]

    return all_rounds


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "numpy")
