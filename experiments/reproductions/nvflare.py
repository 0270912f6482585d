"""CIFAR-10 as NVFlare's example of eight clients prints it: four splits and four algorithms.

In each of 50 rounds all clients make four epochs of SGD with momentum 0.9, which they keep between
rounds, in mini-batches of 64. The rate falls from epoch to epoch, by a cosine from 0.05 to a
hundredth of that. Images are padded by reflection, cropped and mirrored; the network is FedMA's.
The split is that of numpy's seed 0, as in the source, for all seeds. FedOpt's server has momentum
0.6, and its rate falls by a cosine from 1 to 0.9.

"Val score" is the accuracy on the 10,000 test images, the largest of a run: the source's plotting
script prints that. Clients test the model that they receive, so the last round's does not count.

SCAFFOLD is NIID-Bench's, whose local steps have momentum.

Readings. FedProx has mu = 1e-5, as in `run_experiments.sh` and in the README that first had the
number (commit ed48327 of 2026-01-16). Since commit f616498 of 2026-07-28 the README's command has
0.01, with the same number.

Deviation: random numbers are this project's, so first weights and mini-batches differ. Batches run
on from one epoch into the next, so that all are of 64 images, and a round's steps are cut into four
equal parts for the rates. A client's weight is its number of images, not of batches of 64, because
`fedavg` has these weights; the two differ by less than a batch.

Prepared for a GPU. A run on other data than CIFAR-10 says so and is not judged.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, images, other_data
from experiments.reproductions import rows, scaffold, splits
from experiments.reproductions.rows import Printed
from fedjax_sim import models, problems
from fedjax_sim.core.schedules import Cosine, Function
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.datasets import Dataset
from fedjax_sim.kernels.convolution import auto, max_pool
from fedjax_sim.models import networks
from fedjax_sim.partition import Partition
from fedjax_sim.partition.parts import pack_rows
from fedjax_sim.systems import fedavg

STUDY = Study(
    full=Sizes(3, dataset="cifar10", rounds=50, epochs=4),
    smoke=Sizes(2, dataset="digits", rounds=2, epochs=1, words="digits, a perceptron, 2 rounds"),
)
SOURCE = (
    "NVIDIA/NVFlare, examples/advanced/cifar10/pt/cifar10-sim/README.md, section 4, "
    "commit f3b7c1b of 2026-08-21"
)
NUMBERS: Mapping[str, float] = {
    "FedAvg 1.0": 89.11,
    "FedAvg 0.5": 87.87,
    "FedAvg 0.3": 85.27,
    "FedAvg 0.1": 80.45,
    "FedProx 0.1": 80.59,
    "FedOpt 0.1": 80.58,
    "SCAFFOLD 0.1": 82.60,
}
"""Printed accuracies in percent, by algorithm and alpha."""
ONLY = tuple(NUMBERS)
"""What `--only` may name."""
CLIENTS, CLASSES, LEAST = 8, 10, 10
CROPS = problems.Augmentation(border="reflect")
LR, FINAL = 0.05, 0.01
COLOURS = np.array([[125.3, 123.0, 113.9], [63.0, 62.1, 66.7]], "float32") / 255
MEAN, STD = COLOURS.reshape(2, 1, 1, 1, 3)


class ModerateCNN(nn.Module):
    """FedMA's network of six convolutions, with the first weights of PyTorch."""

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        """Compute logits `[..., 10]` of images `[..., H, W, 3]`."""
        for block, channels in enumerate(((32, 64), (128, 128), (256, 256))):
            for features in channels:
                x = nn.relu(networks.conv(x, features, 3, auto, None))
            x = max_pool(x)
            if block == 1:
                x = nn.Dropout(0.05, broadcast_dims=(-3, -2), deterministic=not train)(x)
        x = nn.Dropout(0.1, deterministic=not train)(networks.flatten(x))
        for _ in range(2):
            x = nn.relu(networks.dense(512, x.shape[-1], None)(x))
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return networks.dense(CLASSES, x.shape[-1], None)(x)


def split_of(labels: np.ndarray, alpha: float) -> Partition:
    """Make the source's split, with its random numbers."""
    rng = np.random.RandomState(0)
    return pack_rows(splits.capped_dirichlet(labels, CLIENTS, alpha, rng, least=LEAST))


def augmented(key: Key, batch: tuple[Array, Array]) -> tuple[Array, Array]:
    """Crop and mirror images `[B, H, W, C]`."""
    return CROPS(key, batch[0]), batch[1]


def normalised(batch: tuple[Array, Array]) -> tuple[Array, Array]:
    """Scale images as the source does; one channel becomes three."""
    pixels, labels = batch
    return (pixels.astype("float32") / 255 - MEAN) / STD, labels


def problem_of(network: nn.Module, data: Dataset, alpha: float) -> problems.Supervised:
    """Make the problem of a split."""
    return problems.supervised(
        network,
        problems.cross_entropy,
        (data.train_images, data.train_labels.astype("int32")),
        split_of(data.train_labels, alpha),
        test=(data.test_images, data.test_labels.astype("int32")),
        metrics={"accuracy": problems.is_right},
        prepare=normalised,
        augment=augmented,
    )


def by_epoch(
    work: Array, shift: Params | None = None, *, epochs: int, rounds: int
) -> optax.GradientTransformation:
    """Make SGD with momentum whose rate falls from epoch to epoch.

    Args:
      work: `LR` times the client's local steps of a round, which the schedule of `lr` makes of it.
      shift: What is added to momentum in each step; None for nothing.
      epochs: Epochs of a round.
      rounds: Number of rounds.
    """
    steps = jnp.round(work / LR).astype("int32")
    cosine = Cosine(over=float(epochs * rounds), final=FINAL)
    return scaffold.descent(lambda count: cosine.of(LR, count * epochs // steps), shift)


SYSTEMS: Mapping[str, tuple[fedjax_sim.System, Mapping[str, Any]]] = {
    "FedAvg": (fedavg.system, {}),
    "FedProx": (fedavg.fedprox, {"proximal": 1e-5}),
    "FedOpt": (
        fedavg.fedopt,
        {
            "server_optimizer": partial(optax.sgd, momentum=0.6),
            "server_lr": 1.0,
            "server_lr_schedule": Cosine(final=0.9),
        },
    ),
    "SCAFFOLD": (scaffold.system, {}),
}


def hyper_of(name: str, *, epochs: int, rounds: int) -> fedavg.Hyper:
    """Make the settings of an algorithm."""
    system, settings = SYSTEMS[name]
    return system.Hyper(
        num_clients=CLIENTS,
        num_selected=CLIENTS,
        local_epochs=float(epochs),
        batch_size=64,
        weighting="examples",
        lr=LR,
        lr_schedule=Function(by="work", function=jnp.asarray),
        optimizer=partial(by_epoch, epochs=epochs, rounds=rounds),
        optimizer_state="kept",
        **settings,
    )


def run(arguments: Arguments) -> Outcome:
    """Run the rows that are asked for."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    data = images.load(sizes.dataset, arguments.data_dir)
    network = models.MLP((16,), CLASSES) if arguments.smoke else ModerateCNN()
    curves, found, lasts = {}, [], {}
    for row in arguments.chosen(ONLY):
        name, alpha = row.split()
        curves[row] = fedjax_sim.sweep(
            SYSTEMS[name][0],
            problem_of(network, data, float(alpha)),
            hyper_of(name, epochs=sizes.epochs, rounds=sizes.rounds),
            seeds=sizes.seeds,
            budget=fedjax_sim.Ticks(sizes.rounds),
            num_evals=sizes.rounds,
            **arguments.kept(row),
        ).curves
    for row, those in curves.items():
        name, alpha = row.split()
        received = 100 * those.accuracy.isel(eval=slice(-1))
        quote = f'"cifar10_{name.lower()} | {alpha} | {NUMBERS[row] / 100:.4f}"'
        printed = Printed(row, SOURCE, quote, NUMBERS[row], 0.01)
        found.append((printed, Sample.of(received.max("eval").values.ravel())))
        lasts[row] = Sample.of(received.isel(eval=-1).values.ravel())
    other = other_data(sizes.dataset, STUDY.full.dataset)
    text = rows.report(found, is_smoke=arguments.smoke or bool(other))
    words = ", ".join(f"{row} {each.mean:.1f}" for row, each in lasts.items())
    text += f"\n\nBefore the last round: {words}"
    if other:
        text += f"\n\nNot judged: {other}"
    facts = sizes.config() | {"ours": {each.name: ours for each, ours in found}, "last": lasts}
    return Outcome(curves, {}, [], facts, text, panel=arguments.panel)
