"""FedNova's Table 1 on CIFAR-10, as Flower's baseline of it prints it: FedAvg, FedProx and FedNova.

The table is that of Wang et al. (2020, arXiv 2007.07481); the numbers are Flower's own runs, not
the paper's. All 16 clients take part in each of 100 rounds of VGG-11 without normalisation, with
plain SGD, momentum 0.9 or a proximal term, for two epochs or a random number of epochs. Labels are
split by Dirichlet(0.1), and images are shifted by up to four pixels and mirrored. `--methods` runs
single rows.

Flower's code, which these rows follow, differs from the authors' (JYWa/FedNova, commit 47b4e09):

- Its learning rate is a tenth in round 50, a hundredth in round 75, and whole in all other rounds,
  as the curves that it stores also show. In the authors' code the lower rates last.
- Its server divides FedNova's weighted sum by the sum of the weights (`aggregate` of flwr 1.9.0).
  The effective number of steps, tau_eff, is then 1 / sum_i (p_i / ||a_i||). The authors' code, the
  paper and this project's `fednova` have a larger one, such as sum_i p_i ||a_i||.
- Random numbers of epochs are 2, 3 or 4 in both codes, where the page says "Random(2-5)".

Proximal steps for random numbers of epochs are left out: by the names of the stored files, the mean
that is printed is over runs with mu = 0.005 and runs with mu = 0.001. Runs whose loss becomes nan
are left out of our means, as they are of Flower's.

Deviation: random numbers are this project's, except for those of the split. The last mini-batch of
an epoch is filled up to 32 with the first examples of the next one, because arrays have one size.
Accuracy is the mean over images, where Flower takes that over mini-batches of 64, the last of 16.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, images, other_data
from experiments.reproductions import rows, splits
from experiments.reproductions.rows import Printed
from fedjax_sim import problems
from fedjax_sim.core import streams
from fedjax_sim.core.schedules import Table
from fedjax_sim.core.types import Array, Event, Key, Plan, Problem, System, Timeline
from fedjax_sim.datasets import Dataset
from fedjax_sim.kernels.convolution import auto, max_pool
from fedjax_sim.models import networks
from fedjax_sim.partition import Partition
from fedjax_sim.partition.parts import pack_rows
from fedjax_sim.server import Rounds
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines.rounds import assemble_rounds

VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))
STUDY = Study(
    full=Sizes(3, dataset="cifar10", rounds=100, stages=VGG11, units=512),
    smoke=Sizes(2, dataset="digits", rounds=2, stages=((4,),), units=8, words="handwritten digits"),
)
SOURCE = "adap/flower, baselines/fednova/README.md, commit fdef7af of 2026-03-29"
TABLE = (
    ("2 | Vanilla | 62.35 ± 1.33 | 67.04 ± 0.94", 6, 6),
    ("2 | Momentum | 70.78 ± 1.03 | 73.01 ± 0.32", 6, 6),
    ("2 | Proximal | 62.30 ± 0.38 | 67.00 ± 0.47", 5, 4),
    ("Random(2-5) | Vanilla | 64.30 ± 1.75 | 70.54 ± 0.43", 2, 2),
    ("Random(2-5) | Momentum | 72.75 ± 1.28 | 74.26 ± 0.39", 3, 2),
    ("Random(2-5) | Server | N/A | 73.65 ± 0.51", 0, 3),
    ("Random(2-5) | Hybrid | N/A | 75.54 ± 1.05", 0, 3),
)
"""The page's lines: local epochs, local solver, and accuracy in percent after the last round by
FedAvg and by FedNova. Then the numbers of runs in these means, those stored in `fednova/results`
that did not diverge. Runs of the last two lines are not stored; the page's command has 3 seeds."""
MOMENTUM, DECAY, BATCH, EPOCHS = 0.9, 1e-4, 32, 2
CLIENTS, CLASSES, ALPHA = 16, 10, 0.1
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def printed_rows() -> Iterator[Printed]:
    """Read the lines of the table. Names are such as "FedNova momentum random"."""
    for cells, *runs in TABLE:
        epochs, solver, *accuracies = cells.split(" | ")
        for system, text, num in zip(("FedAvg", "FedNova"), accuracies, runs, strict=True):
            if num:
                name = f"{system} {solver.lower()} {epochs.partition('(')[0].lower()}"
                yield Printed(name, SOURCE, f'"{cells}"', float(text.split()[0]), 0.01, num)


PRINTED = {each.name: each for each in printed_rows()}
ONLY = tuple(PRINTED)
"""What `--only` may name."""


class VGG(nn.Module):
    """Stages of 3x3 convolutions, each followed by pooling, and two hidden layers with dropout.

    Attributes:
      stages: Channels of each convolution, by stage.
      units: Units of a hidden layer.
    """

    stages: tuple[tuple[int, ...], ...] = VGG11
    units: int = 512

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        """Compute logits `[..., 10]` of images `[..., H, W, C]`."""
        for stage in self.stages:
            for features in stage:
                first = nn.initializers.normal((2 / (9 * features)) ** 0.5)
                convolve = nn.Conv(features, (3, 3), kernel_init=first, conv_general_dilated=auto)
                x = nn.relu(convolve(x))
            x = max_pool(x)
        x = networks.flatten(x)
        for _ in range(2):
            x = nn.Dropout(0.5, deterministic=not train)(x)
            x = nn.relu(networks.dense(self.units, x.shape[-1], None)(x))
        return networks.dense(CLASSES, self.units, None)(x)


def split_of(labels: np.ndarray) -> Partition:
    """Make the source's split, with its random numbers."""
    rng = np.random.RandomState(2020)
    return pack_rows(splits.capped_dirichlet(labels, CLIENTS, ALPHA, rng, least=10))


def factors(rounds: int) -> tuple[float, ...]:
    """Return the factor on the learning rate in each round."""
    special = {int(0.75 * rounds): 0.01} | {int(rounds / 2): 0.1}
    return tuple(special.get(number, 1.0) for number in range(1, rounds + 1))


def rounds_of(key: Key, hyper: fedavg.Hyper, num_ticks: int, *, most_more: int) -> Timeline:
    """Schedule rounds of all clients, of `local_epochs` epochs and up to `most_more` further ones.

    An epoch has ceil(m / batch_size) steps. As in the source, where the seed of a draw is a sum,
    the epochs of client i in round t are those of client i + 1 in round t - 1.
    """

    def more(place: Array) -> Array:
        own = jax.random.fold_in(streams.lane_stream(key, "epochs"), place)
        return jax.random.randint(own, (), 0, most_more + 1)

    drawn = jax.vmap(more)(jnp.arange(num_ticks + hyper.num_clients))
    everyone, share = jnp.arange(hyper.num_clients)[None], jnp.asarray(hyper.examples)[None]
    epochs = hyper.local_epochs + drawn[jnp.arange(num_ticks)[:, None] + everyone]
    steps = (epochs * jnp.ceil(share / hyper.batch_size)).astype(int)
    clients, share = (jnp.broadcast_to(each, steps.shape) for each in (everyone, share))

    def weigh(share: Array) -> Array:
        return share / share.sum(axis=1, keepdims=True)

    num = hyper.num_clients
    return assemble_rounds(key, hyper, clients, share, weigh, num_used=num, steps=steps)


def averaged(problem: Problem, hyper: fedavg.FedNova, plan: Plan) -> Rounds:
    """Bind FedNova with weights p_i / ||a_i||, divided by their sum."""

    def scale_of(event: Event) -> Array:
        size = hyper.at_slot(hyper.of_slots(event)).size(event.steps)
        return 1 / (size * (event.weight / size).sum())

    return fedavg.algorithm(problem, hyper, plan, scale_of)


def system_and_settings(row: str, rounds: int) -> tuple[System, Any]:
    """Make the system of a row and its settings."""
    name, solver, epochs = row.split()
    is_nova, momentum = name == "FedNova", partial(optax.sgd, momentum=MOMENTUM)
    system: System = fedavg.fedprox if solver == "proximal" else fedavg.system
    system = fedavg.fednova._replace(algorithm=averaged) if is_nova else system
    local = {"momentum": MOMENTUM} if is_nova else {"optimizer": momentum}
    settings: dict[str, Any] = {
        "vanilla": {"lr": 0.05},
        "momentum": {"lr": 0.02} | local,
        "proximal": {"lr": 0.05, "proximal": 0.005},
        "server": {"lr": 0.02, "server_optimizer": momentum},
        "hybrid": {"lr": 0.02, "server_optimizer": momentum} | local,
    }[solver]
    settings |= {"num_clients": CLIENTS, "num_selected": CLIENTS, "weighting": "examples"}
    settings |= {"local_epochs": EPOCHS, "batch_size": BATCH, "sampling": "shuffled_epochs"}
    settings |= {"lr_schedule": Table(factors=factors(rounds))}
    timeline = partial(rounds_of, most_more=2 if epochs == "random" else 0)
    return system._replace(timeline=timeline), system.Hyper(**settings)


def problem_of(data: Dataset, network: VGG) -> problems.Classification:
    """Make the problem, whose split is the same for all seeds."""
    channels = data.train_images.shape[-1]
    return problems.make_classification(
        network,
        data,
        split_of(data.train_labels),
        mean=MEAN[:channels],
        std=STD[:channels],
        augmentation=problems.Augmentation(pad=4),
        prior_precision=DECAY * len(data.train_labels),
    )


def run(arguments: Arguments) -> Outcome:
    """Run the rows that are asked for."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    data = images.load(sizes.dataset, arguments.data_dir)
    problem, runs = problem_of(data, VGG(sizes.stages, sizes.units)), {}
    for row in arguments.chosen(ONLY):
        system, hyper = system_and_settings(row, sizes.rounds)
        runs[row] = fedjax_sim.sweep(
            system,
            problem,
            hyper,
            seeds=sizes.seeds,
            budget=fedjax_sim.Ticks(sizes.rounds),
            num_evals=min(10, sizes.rounds),
            **arguments.kept(row),
        )
    curves = {row: run.curves for row, run in runs.items()}
    found, diverged = [], {}
    for row in curves:
        last = curves[row].isel(eval=-1)
        is_left, values = np.isfinite(last.loss.values.ravel()), 100 * last.accuracy.values.ravel()
        diverged[row] = int((~is_left).sum())
        found.append((PRINTED[row], Sample.of(values[is_left] if is_left.any() else [np.nan])))
    facts = sizes.config() | {"ours": {printed.name: sample for printed, sample in found}}
    other = other_data(sizes.dataset, STUDY.smoke.dataset if arguments.smoke else "cifar10")
    notes = [f"{row}: {num} diverged and left out." for row, num in diverged.items() if num]
    notes += [f"On {other}: no row is judged."] if other else []
    table = rows.report(found, is_smoke=arguments.smoke or bool(other))
    text = "\n".join([*notes, "", table]).lstrip()
    return Outcome(curves, {}, [], facts | {"diverged": diverged}, text, panel=arguments.panel)
