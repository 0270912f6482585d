"""FedJAX's federated averaging on data in SQLite, which it reads client by client.

    python beyond_fedjax.py JOB    a JSON object, see `benchmarks.beyond`

The database is made of the job's files first, which is not timed. As in `run_fedjax`, the name
`jax.tree_map` is given back.
"""

import itertools
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from jax_networks import logits, mean_cross_entropy

jax.tree_map = jax.tree_util.tree_map  # type: ignore[attr-defined]


def write(path: Path, folder: Path, clients: int) -> None:
    """Write the clients' examples into a database, unless it is there."""
    if path.exists():
        return
    inputs, targets = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in NAMES)
    each, half = len(targets) // clients, path.with_suffix(".part")
    half.unlink(missing_ok=True)
    with fedjax.SQLiteFederatedDataBuilder(str(half)) as builder:
        builder.add_many(
            (
                f"{client:07}".encode(),
                {"x": np.asarray(inputs[rows]), "y": np.asarray(targets[rows])},
            )
            for client in range(clients)
            for rows in [slice(client * each, (client + 1) * each)]
        )
    half.rename(path)


NAMES = ("inputs", "targets")


def main() -> None:
    """Run, and print what it took."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(job["folder"])
    path = folder / f"clients-{job['clients']}.sqlite"
    write(path, folder, job["clients"])
    if job["limit"]:
        most = int(job["limit"] * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    fedjax.set_for_each_client_backend("jit")
    clients = fedjax.SQLiteFederatedData.new(str(path)).preprocess_batch(
        lambda batch: {"x": batch["x"].astype(np.float32) / np.float32(255), "y": batch["y"]}
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = (job["features"], job["hidden"], job["classes"])
    random, model = np.random.default_rng(0), []
    for fan_in, fan_out in itertools.pairwise(sizes):
        kernel = random.normal(0, fan_in**-0.5, (fan_in, fan_out))
        model += [jnp.asarray(kernel, "float32"), jnp.zeros(fan_out)]

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return mean_cross_entropy(logits(params, batch["x"], 0), batch["y"])

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(job["lr"]),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=job["batch"], num_epochs=None, num_steps=job["steps"], seed=None
        ),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        clients, num_clients=job["cohort"], seed=0
    )
    state = algorithm.init(model)
    state, _ = algorithm.apply(state, sampler.sample())  # Compiles.
    jax.block_until_ready(state.params)
    began = time.perf_counter()
    for _ in range(job["rounds"]):
        state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state.params)
    seconds = time.perf_counter() - began
    found = {"rounds_per_second": job["rounds"] / seconds, "peak_before_gb": before / 1e6}
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps(found))


if __name__ == "__main__":
    main()
