"""NIID-Bench on MNIST as Flower's baseline repeats it: FedAvg, FedProx and FedNova, two splits.

Ten clients, all of which take part, make ten epochs a round with SGD and momentum 0.9, for 50
rounds. The network is LeNet without padding, on pixels from 0 to 1. `--methods` runs single rows.

Deviation: SCAFFOLD is left out, as the source gives its local steps momentum, which Karimireddy et
al.'s Algorithm 1 does not have and this project's `scaffold` neither. A mini-batch may hold the
last examples of one epoch and the first ones of the next, so that all are of 64.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import optax

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.reproductions import rows
from experiments.reproductions.rows import Printed
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.datasets import Dataset
from fedjax_sim.partition import Partition
from fedjax_sim.partition.parts import gather_by_owner
from fedjax_sim.systems import fedavg

STUDY = Study(
    full=Sizes(3, dataset="mnist", rounds=50, epochs=10.0),
    smoke=Sizes(2, dataset="digits", rounds=2, epochs=0.5, words="handwritten digits"),
)
SOURCE = "adap/flower, baselines/niid_bench/README.md, commit 1599d01 of its repository"
NUMBERS: Mapping[str, Mapping[str, float]] = {
    "Dirichlet(0.5)": {"FedAvg": 98.9, "FedProx": 99.0, "FedNova": 98.8},
    "two labels": {"FedAvg": 96.6, "FedProx": 96.7, "FedNova": 96.5},
}
"""Printed accuracies in percent, by split and system."""
MOMENTUM, DECAY = 0.9, 1e-5
SYSTEMS: Mapping[str, tuple[fedjax_sim.System, Mapping[str, Any]]] = {
    "FedAvg": (fedavg.system, {"optimizer": partial(optax.sgd, momentum=MOMENTUM)}),
    "FedProx": (
        fedavg.fedprox,
        {"optimizer": partial(optax.sgd, momentum=MOMENTUM), "proximal": 0.01},
    ),
    "FedNova": (fedavg.fednova, {"momentum": MOMENTUM}),
}
CLIENTS = 10
ONLY = {f"{name}: {split}": (name, split) for split in NUMBERS for name in SYSTEMS}
"""The rows that `--only` may name: system and split."""


def two_labels(labels: np.ndarray, *, num_clients: int, seed: int) -> Partition:
    """Give client i the class i and one more, and split each class evenly among those who have it.

    Li et al. (2021, arXiv 2102.02079), Sec. IV, as the source does it.
    """
    rng = np.random.default_rng(seed)
    classes = int(labels.max()) + 1
    others = [int(rng.integers(classes - 1)) for _ in range(num_clients)]
    held = [{i % classes, other + (other >= i % classes)} for i, other in enumerate(others)]
    owner = np.zeros(len(labels), int)
    for label in range(classes):
        those = [i for i in range(num_clients) if label in held[i]]
        examples = rng.permutation(np.flatnonzero(labels == label))
        for client, some in zip(those, np.array_split(examples, len(those)), strict=True):
            owner[some] = client
    return gather_by_owner(np.arange(len(labels)), owner, num_clients)


def split_of(name: str, data: Dataset, seed: int) -> Partition:
    """Make a split by its name."""
    labels = data.train_labels
    if name == "two labels":
        return two_labels(labels, num_clients=CLIENTS, seed=seed)
    return partition.dirichlet(labels, num_clients=CLIENTS, alpha=0.5, seed=seed, min_examples=10)


def run(arguments: Arguments) -> Outcome:
    """Run the rows that are asked for."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    network = models.MLP((16,), 10) if arguments.smoke else models.LeNet(data.num_classes)
    found, runs = [], {}
    for row in arguments.chosen(ONLY):
        name, split = ONLY[row]
        system, settings = SYSTEMS[name]
        hyper = system.Hyper(
            num_clients=CLIENTS,
            num_selected=CLIENTS,
            local_epochs=sizes.epochs,
            batch_size=64,
            lr=0.01,
            weighting="examples",
            sampling="reshuffled",
            **settings,
        )
        splits = [split_of(split, data, seed) for seed in range(sizes.seeds)]
        runs[row] = fedjax_sim.sweep(
            system,
            problems.make_classifications(
                network, data, splits, prior_precision=DECAY * len(data.train_labels)
            ),
            hyper,
            seeds=sizes.seeds,
            budget=fedjax_sim.Ticks(sizes.rounds),
            num_evals=min(10, sizes.rounds),
            **arguments.kept(row),
        )
    curves = {row: run.curves for row, run in runs.items()}
    for row in curves:
        name, split = ONLY[row]
        quote = f'"MNIST ... {split} ... {name} {NUMBERS[split][name]}"'
        ours = Sample.of(100 * curves[row].accuracy.isel(eval=-1).values.ravel())
        found.append((Printed(row, SOURCE, quote, NUMBERS[split][name], 0.1), ours))
    facts = sizes.config() | {"ours": {printed.name: sample for printed, sample in found}}
    text = rows.report(found, is_smoke=arguments.smoke)
    return Outcome(curves, {}, [], facts, text, panel=arguments.panel)
