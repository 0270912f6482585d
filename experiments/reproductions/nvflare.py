"""CIFAR-10 as NVFlare's example of eight clients prints it: four splits and four algorithms.

In each of 50 rounds all clients make four epochs of SGD with momentum 0.9, which they keep between
rounds, in mini-batches of 64. The rate falls from epoch to epoch, by a cosine from 0.05 to a
hundredth of that. Images are padded by reflection, cropped and mirrored; the network is FedMA's.
The split is that of numpy's seed 0, as in the source, for all seeds. FedOpt's server has momentum
0.6, and its rate falls by a cosine from 1 to 0.9.

"Val score" is the accuracy on the 10,000 test images, the largest of a run: the source's plotting
script prints that. Clients test the model that they receive, so the last round's does not count.

SCAFFOLD is NIID-Bench's, `corrected`: after each step of SGD with momentum the model moves by the
rate times the difference of the control variates, which does not go into momentum.

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

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, other_data
from experiments.reproductions import rows
from experiments.reproductions.rows import Printed
from fedjax_sim import Algorithm, clients, datasets, models, problems
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.schedules import Cosine, Function
from fedjax_sim.core.types import Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.datasets import Dataset
from fedjax_sim.kernels.convolution import auto, max_pool
from fedjax_sim.models import networks
from fedjax_sim.partition import Partition
from fedjax_sim.partition.parts import gather_by_owner
from fedjax_sim.server import Rounds, RoundState, expand, weighted_sum
from fedjax_sim.systems import fedavg, scaffold
from fedjax_sim.timelines import cohort_system

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
CLIENTS, CLASSES, LEAST, PAD = 8, 10, 10, 4
LR, FINAL, MOMENTUM = 0.05, 0.01, 0.9
COLOURS = np.array([[125.3, 123.0, 113.9], [63.0, 62.1, 66.7]], "float32") / 255
MEAN, STD = COLOURS.reshape(2, 1, 1, 1, 3)
Memory = tuple[Params, Array, Array]
"""What a client's optimizer remembers: momentum, its number of steps, and the last one's rate."""


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
    """Deal each class in Dirichlet shares to the clients that have less than their part so far.

    FedMA's split (Wang et al. 2020, arXiv 2002.06440), with the source's random numbers.
    """
    rng, held = np.random.RandomState(0), np.zeros(CLIENTS, int)
    owner = np.zeros(len(labels), int)
    while held.min() < LEAST:
        held = np.zeros(CLIENTS, int)
        for label in range(CLASSES):
            examples = np.flatnonzero(labels == label)
            rng.shuffle(examples)
            shares = rng.dirichlet(np.full(CLIENTS, alpha)) * (held < len(labels) / CLIENTS)
            ends = (np.cumsum(shares / shares.sum()) * len(examples)).astype(int)[:-1]
            dealt = np.diff(ends, prepend=0, append=len(examples))
            owner[examples] = np.repeat(np.arange(CLIENTS), dealt)
            held += dealt
    return gather_by_owner(np.arange(len(labels)), owner, CLIENTS)


def augmented(key: Key, batch: tuple[Array, Array]) -> tuple[Array, Array]:
    """Pad images `[B, H, W, C]` by reflection, crop them, and mirror each with probability 1/2."""
    images, labels = batch
    drawn = jax.random.uniform(key, (len(images), 3), "float32")
    corners = (drawn[:, :2] * (2 * PAD + 1)).astype("int32")
    padded = jnp.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
    cut = partial(jax.lax.dynamic_slice, slice_sizes=images.shape[1:])
    images = jax.vmap(lambda image, corner: cut(image, (*corner, 0)))(padded, corners)
    is_mirrored = drawn[:, 2, None, None, None] < 0.5
    return jnp.where(is_mirrored, images[:, :, ::-1], images), labels


def normalised(batch: tuple[Array, Array]) -> tuple[Array, Array]:
    """Scale images as the source does; one channel becomes three."""
    images, labels = batch
    return (images.astype("float32") / 255 - MEAN) / STD, labels


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


def descent(
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

    def init(model: Params) -> Memory:
        return optax.tree.zeros_like(model), jnp.int32(0), jnp.float32(0)

    def update(slope: Params, memory: Memory, model: Params = None) -> tuple[Params, Memory]:
        momentum, count, _ = memory
        momentum = optax.tree.add_scale(slope, MOMENTUM, momentum)
        rate = cosine.of(LR, count * epochs // steps)
        way = momentum if shift is None else optax.tree.add(momentum, shift)
        return optax.tree.scale(-rate, way), (momentum, count + 1, rate)

    return optax.GradientTransformation(init, update)


def corrected(problem: Problem, hyper: fedavg.Hyper, plan: Plan) -> Rounds:
    """Bind NIID-Bench's SCAFFOLD (Li et al. 2021, arXiv 2102.02079) to a problem.

    x -> `state.server`    c -> `state.memory`    c_i and optimizers -> `state.clients`
    """
    bound = clients.local_training(problem, hyper, plan)

    def init(key: Key) -> RoundState:
        x = problem.init(key)
        c, optimizers = optax.tree.zeros_like(x), clients.first_optimizers(problem, hyper, x)
        return RoundState(x, c, (replicate(c, CLIENTS), optimizers))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        before, optimizers = clients.read_clients(state.clients, event.clients)
        shifts = jax.tree.map(lambda c, c_i: c[None] - c_i, state.memory, before)

        def training(
            start: Params, client: Array, offset: Array, shift: Params, *, lr: Array
        ) -> clients.Training:
            given = bound.training(key, event.facts, start, client, offset, lr=lr)
            return given._replace(optimizer=hyper.training.optimizer(lr, shift))

        rates, slots = hyper.of_slots(event), {"extras": (shifts,), "states": optimizers}
        local, optimizers, work = clients.local_steps(
            plan, event, training, start=state.server, rates=rates, **slots
        )
        moved = jax.tree.map(lambda y, x: y - x[None], local, state.server)
        # c_i - c + (x - y_i) / (K eta), with the rate eta of the last step
        covered = event.steps * optimizers[-1]
        after = jax.tree.map(lambda d, shift: -d / expand(covered, d) - shift, moved, shifts)
        gain = weighted_sum(event.weight, (moved, optax.tree.sub(after, before)))
        x, c = optax.tree.add((state.server, state.memory), gain)
        kept = clients.write_clients(state.clients, event.clients, (after, optimizers))
        return RoundState(x, c, kept), work

    return Algorithm(init, step, lambda state: state.server)


SUMMARY = "NIID-Bench's SCAFFOLD, whose local steps have momentum"
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
    "SCAFFOLD": (
        cohort_system("corrected", fedavg.Hyper, corrected, SUMMARY, messages=scaffold.TWO),
        {},
    ),
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
        optimizer=partial(descent, epochs=epochs, rounds=rounds),
        optimizer_state="kept",
        **settings,
    )


def run(arguments: Arguments) -> Outcome:
    """Run the rows that are asked for."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
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
