"""FedJAX: its federated averaging over clients in memory, with its `jit` backend.

FedJAX 0.0.17 calls `jax.tree_map`, which newer versions of JAX call `jax.tree_util.tree_map`. The
old name is given back: with it FedJAX runs unchanged, and with a newer JAX it is faster than with
the newest one that has the name (0.5.3). Its `pmap` backend needs functions that are gone; with the
older JAX it was a tenth faster than `jit` on two cores, which one run on each core exceeds.
"""

from collections.abc import Callable
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from jax_networks import logits, mean_cross_entropy
from protocol import Data, Job, Model, scaled, serve

jax.tree_map = jax.tree_util.tree_map  # type: ignore[attr-defined]


def prepare(job: Job, data: Data) -> Callable[[int], Model]:
    """Return a function that runs a number of rounds."""
    fedjax.set_for_each_client_backend("jit")
    images = scaled(data.images)
    clients = fedjax.InMemoryFederatedData(
        {
            str(client).encode(): {"x": images[mine], "y": data.labels[mine]}
            for client, mine in enumerate(data.index)
        }
    )
    initial = [jnp.asarray(leaf) for leaf in data.initial]

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return mean_cross_entropy(logits(params, batch["x"], len(job.convolutions)), batch["y"])

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(job.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=job.batch, num_epochs=None, num_steps=job.steps, seed=None
        ),
    )

    def run(rounds: int) -> Model:
        sampler = fedjax.client_samplers.UniformGetClientSampler(
            clients, num_clients=job.cohort, seed=job.seed
        )
        state = algorithm.init(initial)
        for _ in range(rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        return [np.asarray(leaf) for leaf in jax.block_until_ready(state.params)]

    return run


if __name__ == "__main__":
    serve(prepare, "fedjax", "jax", "numpy", note="the name jax.tree_map is given back")
