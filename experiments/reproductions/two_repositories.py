"""FedAvg on MNIST, as two widely used PyTorch repositories print it: networks, splits, rounds.

100 clients of 600 images each; in a round ten of them train with SGD at rate 0.01 and momentum 0.5,
which starts anew, in mini-batches of ten; their models are averaged. Without the same distribution
for all (non-IID) a client has two of 200 shards of the images in order of their labels. Half of the
units of the perceptron, of the channels of the second convolution and of the dense units drop out.

AshwinRJ's clients train on four fifths of their images: the first ones, so that non-IID all of one
shard and 180 of the other. Its perceptron's loss is minus the probability of the right class.

Deviation: random numbers are this project's; the order of a client's two shards is drawn, where
AshwinRJ's follows from Python's sets; all local epochs of a round have one order of the images,
where the repositories shuffle them before each.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.reproductions import rows
from experiments.reproductions.rows import Printed
from fedjax_sim import datasets, problems
from fedjax_sim.core.types import Array
from fedjax_sim.datasets import Dataset
from fedjax_sim.kernels.convolution import auto, max_pool
from fedjax_sim.models import networks
from fedjax_sim.partition import Partition
from fedjax_sim.partition.parts import gather_by_owner
from fedjax_sim.systems import fedavg

STUDY = Study(
    full=Sizes(3, dataset="mnist", clients=100, selected=10),
    smoke=Sizes(2, dataset="digits", clients=10, selected=2, words="handwritten digits, 2 rounds"),
)
MEAN, STD = 0.1307, 0.3081
CLASSES = 10


class Perceptron(nn.Module):
    """A hidden layer, half of which drops out, with the first weights of PyTorch."""

    units: int

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        """Compute logits `[..., 10]` of images `[..., H, W, 1]`."""
        x = networks.flatten(x)
        x = networks.dense(self.units, x.shape[-1], None)(x)
        x = nn.relu(nn.Dropout(0.5, deterministic=not train)(x))
        return networks.dense(CLASSES, self.units, None)(x)


class Convolutions(nn.Module):
    """PyTorch's old MNIST example: two 5x5 convolutions without padding, 50 dense units."""

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        """Compute logits `[..., 10]` of images `[..., H, W, 1]`."""
        padding = "VALID" if x.shape[-2] >= 28 else "SAME"
        x = nn.relu(max_pool(networks.conv(x, 10, 5, auto, None, padding=padding)))
        x = networks.conv(x, 20, 5, auto, None, padding=padding)
        x = nn.Dropout(0.5, broadcast_dims=(-3, -2), deterministic=not train)(x)
        x = networks.flatten(nn.relu(max_pool(x)))
        x = nn.relu(networks.dense(50, x.shape[-1], None)(x))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return networks.dense(CLASSES, 50, None)(x)


def minus_probability(logits: Array, labels: Array) -> Array:
    """Return minus the probability of the right class: `f[B]`."""
    return -jnp.exp(-problems.cross_entropy(logits, labels))


class Repository(NamedTuple):
    """The settings of a repository.

    Attributes:
      where: Its files and commit.
      epochs: Local epochs of a round.
      share: The part of a client's images that it trains on.
      perceptron: Its perceptron.
      loss: The loss of the perceptron, from logits and labels; the other network has cross entropy.
      printed: Accuracies in percent, by network and split, after numbers of rounds.
    """

    where: str
    epochs: int
    share: float
    perceptron: Perceptron
    loss: Callable[[Array, Array], Array]
    printed: Mapping[str, Mapping[int, float]]


REPOSITORIES: Mapping[str, Repository] = {
    "AshwinRJ": Repository(
        "AshwinRJ/Federated-Learning-PyTorch, README.md and src, commit 26eaec4 of 2021-03-11",
        epochs=10,
        share=0.8,
        perceptron=Perceptron(64),
        loss=minus_probability,
        printed={
            "MLP IID": {10: 88.38},
            "MLP non-IID": {10: 73.49},
            "CNN IID": {10: 97.28},
            "CNN non-IID": {10: 75.94},
        },
    ),
    "shaoxiongji": Repository(
        "shaoxiongji/federated-learning, README.md and main_fed.py, commit 5a9da1a of 2020-12-14",
        epochs=5,
        share=1.0,
        perceptron=Perceptron(200),
        loss=problems.cross_entropy,
        printed={
            "MLP IID": {10: 94.57, 50: 97.21},
            "MLP non-IID": {10: 70.44, 50: 93.03},
            "CNN IID": {10: 96.59, 50: 98.60},
            "CNN non-IID": {10: 77.72, 50: 93.81},
        },
    ),
}


ONLY = tuple(REPOSITORIES)
"""What `--only` may name."""


def split_of(
    labels: np.ndarray, clients: int, seed: int, share: float, *, is_iid: bool
) -> Partition:
    """Deal images, or two shards of sorted images, to clients; keep the first share of each."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels)) if is_iid else np.argsort(labels, kind="stable")
    shards = order[: len(order) // (2 * clients) * 2 * clients].reshape(2 * clients, -1)
    held = rng.permutation(shards).reshape(clients, -1)
    held = held[:, : round(share * held.shape[1])]
    return gather_by_owner(held.ravel(), np.repeat(np.arange(clients), held.shape[1]), clients)


def normalised(batch: tuple[Array, Array]) -> tuple[Array, Array]:
    """Scale images as the repositories do."""
    images, labels = batch
    return (images.astype("float32") / 255 - MEAN) / STD, labels


def problems_of(
    data: Dataset, source: Repository, cell: str, clients: int, seeds: range
) -> list[problems.Supervised]:
    """Make the problem of each seed."""
    network, split = cell.split()
    networks_by_name = {
        "MLP": (source.perceptron, source.loss),
        "CNN": (Convolutions(), problems.cross_entropy),
    }
    deal = partial(split_of, data.train_labels, clients, share=source.share, is_iid=split == "IID")
    return problems.supervised(
        *networks_by_name[network],
        (data.train_images, data.train_labels.astype("int32")),
        [deal(seed) for seed in seeds],
        test=(data.test_images, data.test_labels.astype("int32")),
        metrics={"accuracy": problems.is_right},
        prepare=normalised,
    )


def run(arguments: Arguments) -> Outcome:
    """Run the repositories that `--only` asks for; `--methods` names rows."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    found, runs = [], {}
    names = {
        f"{name} {cell}": (name, cell)
        for name in arguments.chosen(ONLY)
        for cell in REPOSITORIES[name].printed
    }
    for row, (name, cell) in names.items():
        source = REPOSITORIES[name]
        printed = source.printed[cell]
        settings: dict[str, Any] = {"optimizer": partial(optax.sgd, momentum=0.5), "lr": 0.01}
        settings |= {"batch_size": 10, "sampling": "reshuffled"}
        hyper = fedavg.Hyper(
            num_clients=sizes.clients,
            num_selected=sizes.selected,
            local_epochs=0.1 if arguments.smoke else source.epochs,
            **settings,
        )
        most = 2 if arguments.smoke else max(printed)
        runs[row] = fedjax_sim.sweep(
            fedavg.system,
            problems_of(data, source, cell, sizes.clients, range(sizes.seeds)),
            hyper,
            seeds=sizes.seeds,
            budget=fedjax_sim.Ticks(most),
            num_evals=most // min(most, *printed),
            **arguments.kept(row),
        )
    curves = {row: run.curves for row, run in runs.items()}
    for row in curves:
        name, cell = names[row]
        source = REPOSITORIES[name]
        for rounds, number in source.printed[cell].items():
            is_then = curves[row].ticks == (min(rounds, 2) if arguments.smoke else rounds)
            after = curves[row].accuracy.where(is_then).max("eval")
            quote = f'"{number:.2f}%": {cell}, {rounds} rounds, E = {source.epochs}'
            ours = Sample.of(100 * after.values.ravel())
            found.append(
                (Printed(f"{row}, {rounds} rounds", source.where, quote, number, 0.01), ours)
            )
    facts = sizes.config() | {"ours": {printed.name: sample for printed, sample in found}}
    return Outcome(
        curves, {}, [], facts, rows.report(found, is_smoke=arguments.smoke), panel=arguments.panel
    )
