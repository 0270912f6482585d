"""NIID-Bench on MNIST as Flower's baseline repeats it: four systems, two splits.

Ten clients, all of which take part, make ten epochs a round with SGD and momentum 0.9, for 50
rounds. The network is LeNet without padding, on pixels from 0 to 1. A number is the best accuracy
of all rounds on the test images; FedProx's is that of the best of four mu, which they decide too.
SCAFFOLD's local steps have momentum, as `scaffold` says. `--methods` runs single rows.

Deviation: a mini-batch may hold the last examples of one epoch and the first ones of the next, so
that all are of 64. Random numbers are this project's. Each seed has another split.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import optax

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.reproductions import rows, scaffold, splits
from experiments.reproductions.rows import Printed
from fedjax_sim import datasets, models, problems
from fedjax_sim.datasets import Dataset
from fedjax_sim.partition import Partition
from fedjax_sim.partition.parts import gather_by_owner, pack_rows
from fedjax_sim.systems import fedavg

STUDY = Study(
    full=Sizes(3, dataset="mnist", rounds=50, epochs=10.0),
    smoke=Sizes(2, dataset="digits", rounds=2, epochs=0.5, words="handwritten digits"),
)
SOURCE = "adap/flower, baselines/niid_bench/README.md, commit fdef7af of 2026-03-29"
NUMBERS: Mapping[str, Mapping[str, str]] = {
    "Dirichlet(0.5)": {
        "FedAvg": "98.89 ± 0.07",
        "SCAFFOLD": "99.07 ± 0.06",
        "FedProx": "99.02 ± 0.02",
        "FedNova": "98.03 ± 0.06",
    },
    "two labels": {
        "FedAvg": "96.86 ± 0.30",
        "SCAFFOLD": "96.92 ± 0.52",
        "FedProx": "96.85 ± 0.15",
        "FedNova": "96.65 ± 0.39",
    },
}
"""Printed accuracies in percent, by split and system; "two labels" is "Sort and Partition (2)"."""
MOMENTUM, DECAY = 0.9, 1e-5
MU = (0.001, 0.01, 0.1, 1.0)
SYSTEMS: Mapping[str, tuple[fedjax_sim.System, Mapping[str, Any]]] = {
    "FedAvg": (fedavg.system, {"optimizer": partial(optax.sgd, momentum=MOMENTUM)}),
    "SCAFFOLD": (scaffold.system, {"optimizer": scaffold.constant}),
    "FedProx": (fedavg.fedprox, {"optimizer": partial(optax.sgd, momentum=MOMENTUM)}),
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
    rng = np.random.default_rng(seed)
    return pack_rows(splits.capped_dirichlet(labels, CLIENTS, 0.5, rng, least=10))


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
            settings={"proximal": MU} if name == "FedProx" else None,
            budget=fedjax_sim.Ticks(sizes.rounds),
            num_evals=sizes.rounds,
            **arguments.kept(row),
        )
    curves = {row: run.curves for row, run in runs.items()}
    for row in curves:
        name, split = ONLY[row]
        quote, best = NUMBERS[split][name], 100 * curves[row].accuracy.max("eval")
        if "proximal" in best.dims:
            best = best.isel(proximal=int(best.mean("seed").argmax("proximal")))
        printed = Printed(
            row, SOURCE, f'"MNIST ... {split} ... {name} {quote}"', float(quote.split()[0]), 0.01
        )
        found.append((printed, Sample.of(best.values.ravel())))
    facts = sizes.config() | {"ours": {printed.name: sample for printed, sample in found}}
    text = rows.report(found, is_smoke=arguments.smoke)
    return Outcome(curves, {}, [], facts, text, panel=arguments.panel)
