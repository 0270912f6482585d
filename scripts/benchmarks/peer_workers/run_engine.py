"""This engine: whole calls of `fedjax_sim.sweep`, schedules and set-up included.

The mode "initial" finds the initial model that the engine draws, for all the others to start from.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from protocol import Data, Job, Model, serve

import fedjax_sim
from fedjax_sim.datasets import Dataset
from fedjax_sim.models import MLP, LogisticRegression, SmallCNN
from fedjax_sim.partition import Partition
from fedjax_sim.problems import make_classification
from fedjax_sim.systems import fedavg

TEST_IMAGES = 10
"""The engine evaluates before and after; its rivals do not, so there is hardly anything to do."""


def prepare(job: Job, data: Data) -> Callable[[int], Model]:
    """Return a function that runs a number of rounds; 0 for the initial model."""
    fedjax_sim.use_cores(job.cores)
    network: Any = MLP(tuple(job.hidden), 10) if job.hidden else LogisticRegression(10)
    if job.convolutions:
        network = SmallCNN(10)
    num_clients, share = data.index.shape
    problem = make_classification(
        network,
        Dataset(
            data.images,
            data.labels,
            data.images[:TEST_IMAGES],
            data.labels[:TEST_IMAGES],
            10,
            "shared arrays",
        ),
        Partition(data.index.ravel(), np.full(num_clients, share, np.int32)),
    )
    hyper = fedavg.paper(
        num_clients=num_clients,
        num_selected=job.cohort,
        local_steps=job.steps,
        batch_size=job.batch,
        lr=job.lr,
    )
    rates = {"lr": job.rates} if job.rates else None
    seeds = list(range(job.seed, job.seed + job.lanes // max(1, len(job.rates))))

    def run(rounds: int) -> Model:
        result = fedjax_sim.sweep(
            fedavg.system,
            problem,
            hyper,
            seeds=seeds,
            settings=rates,
            budget=fedjax_sim.Ticks(max(rounds, 1)),
            num_evals=1,
            keep=fedjax_sim.Keep(models=rounds == 0),
        )
        models = result.models if rounds else {"params": _first_evaluation(result.samples)}
        layers = models["params"]
        names = sorted(layers, key=lambda name: (not name.startswith("Conv"), name))
        return [np.asarray(layers[name][leaf])[0] for name in names for leaf in ("kernel", "bias")]

    def _first_evaluation(samples: Any) -> Any:
        return {
            name: {leaf: np.asarray(value)[:, 0] for leaf, value in layer.items()}
            for name, layer in samples["params"].items()
        }

    return run


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "flax", "numpy")
