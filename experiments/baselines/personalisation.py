"""Personal models on Fashion-MNIST: eleven methods for clients whose labels differ.

20 clients share the images by Dirichlet(0.1): most have a few classes. Every round asks a quarter
of them, each of which makes six local steps with mini-batches of 32. Each client's model is
measured on test images with labels like the client's own. Judged are the mean over clients and the
mean of the worst tenth. All methods train LeNet with plain SGD. FedBN needs normalisation layers:
it trains LeNet with batch normalisation, and so does a second run of FedAvg, `fedavg, norm`. Each
method has its own learning rate of local steps, chosen on a tenth of the training images with
other seeds than those reported; their other settings are fixed, at values of their papers where
these are known. No claim of a paper is judged: the papers use other data, networks and numbers of
steps.

`local` is Ditto without the pull to the global model. `fine-tuned` is FedAvg: at every evaluation
each client trains a copy of the server's model on `TUNING_STEPS` of its mini-batches, with the
learning rate of local steps, and this copy is measured. Personal models of pFedMe and Per-FedAvg
are measured after the steps of their papers on `ADAPTING_BATCHES` mini-batches together; the
systems' own metrics would take all of a client's examples, most of the time of these runs.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from flax import linen as nn

import fedjax_sim
from experiments.baselines.setup import FIRST_TUNING_SEED, HELD_OUT, evaluated_by_client
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, lead, table
from fedjax_sim import SYSTEMS, System, clients, datasets, models, partition, problems, studies
from fedjax_sim.core.types import Array, Params, Problem
from fedjax_sim.datasets import Dataset
from fedjax_sim.kernels.convolution import auto, max_pool
from fedjax_sim.results import plots
from fedjax_sim.results.diagnostics import worst_decile
from fedjax_sim.studies import Contestant, Criterion, Tuned, criteria

RATES = (0.01, 0.03, 0.1, 0.3)
"""The grid of every method's learning rate, which is widened where the best is at its edge."""
STUDY = Study(
    full=Sizes(5, dataset="fashion_mnist", clients=20, rounds=200, tuning_seeds=3),
    smoke=Sizes(2, dataset="digits", clients=4, rounds=3, tuning_seeds=1, words="4 clients"),
)
METRIC, BY_CLIENT = "personal_accuracy", "personal_client_accuracy"
TUNING_STEPS = 50
"""Mini-batches on which a client trains FedAvg's model before `fine-tuned` is evaluated."""
ADAPTING_BATCHES = 16
"""Mini-batches to which a client of pFedMe or Per-FedAvg adapts the server's model."""
MEAN, STD = 0.2860, 0.3530
"""Mean and standard deviation of Fashion-MNIST's training images, scaled to [0, 1]."""


class NormLeNet(nn.Module):
    """LeNet with batch normalisation after its convolutions, which are padded for small images."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Compute logits `[..., num_classes]` of images `[..., H, W, C]`."""
        padding = "VALID" if x.shape[-2] >= 28 else "SAME"
        for features in (6, 16):
            x = nn.Conv(features, (5, 5), padding=padding, conv_general_dilated=auto)(x)
            x = max_pool(nn.relu(models.BatchNorm()(x, train=train)))
        x = x.reshape(*x.shape[:-3], -1)
        for features in (120, 84):
            x = nn.relu(nn.Dense(features)(x))
        return nn.Dense(self.num_classes)(x)


def fine_tuned(problem: Problem, hyper: Any, server: Params, client: Array) -> Params:
    """Train a model for `TUNING_STEPS` mini-batches of a client, always the same ones."""
    key = jax.random.fold_in(jax.random.key(0), client)
    slope = clients.batch_gradient(problem, hyper, key, client, jnp.int32(0))

    def step(q: Array, model: Params) -> Params:
        return jax.tree.map(lambda w, g: w - hyper.lr * g, model, slope(model, q))

    return jax.lax.fori_loop(0, TUNING_STEPS, step, server)


def adapted(problem: Problem, hyper: Any, server: Params, client: Array) -> Params:
    """Adapt a model to some mini-batches of a client, always the same ones, as its system does."""
    key = jax.random.fold_in(jax.random.key(0), client)
    slope = clients.batch_gradient(problem, hyper, key, client, jnp.int32(0))

    def add(q: Array, total: Params, model: Params) -> Params:
        return jax.tree.map(lambda t, g: t + g / ADAPTING_BATCHES, total, slope(model, q))

    def mean_slope(model: Params) -> Params:
        zeros = jax.tree.map(jnp.zeros_like, model)
        return jax.lax.fori_loop(0, ADAPTING_BATCHES, partial(add, model=model), zeros)

    return hyper.adapted(mean_slope, server)


FEDAVG = evaluated_by_client(SYSTEMS["fedavg"])
PFEDME = evaluated_by_client(SYSTEMS["pfedme"], adapted)
METHODS: Mapping[str, tuple[System, Mapping[str, Any]]] = {
    "local": (SYSTEMS["ditto"], {"attachment": 0.0}),
    "fedavg": (FEDAVG, {}),
    "fine-tuned": (evaluated_by_client(SYSTEMS["fedavg"], fine_tuned), {}),
    "ditto": (SYSTEMS["ditto"], {"attachment": 0.1}),
    "fedper": (SYSTEMS["fedper"], {}),
    "fedrep": (SYSTEMS["fedper"], {"head_steps": 3}),
    "apfl": (SYSTEMS["apfl"], {"adaptive": True}),
    "pfedme": (PFEDME, {"pull": 15.0, "lr": 0.03, "personal_steps": 5}),
    "perfedavg": (evaluated_by_client(SYSTEMS["perfedavg"], adapted), {"adapting_lr": 0.03}),
    "ifca": (SYSTEMS["ifca"], {"num_models": 3, "client_losses": "minibatch"}),
    "fedavg, norm": (FEDAVG, {}),
    "fedbn": (SYSTEMS["fedbn"], {}),
}
"""Systems and fixed settings by method."""
TUNED = {"pfedme": "personal_lr"}
"""The learning rate that is tuned, where it is not `lr`."""
WITH_NORM = ("fedavg, norm", "fedbn")
"""Methods that train the network with batch normalisation."""


def run(arguments: Arguments) -> Outcome:
    """Choose each method's rate, run it at this rate, and compare by clients."""
    sizes = STUDY.choose(arguments)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    validation = studies.hold_out(data, HELD_OUT)
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    shared = {"num_clients": sizes.clients, "num_selected": sizes.clients // 4}
    shared |= {"local_steps": 6, "batch_size": 32}
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(sizes.rounds), "num_evals": 5}
    names = [*METHODS]
    curves, tuned = {}, {}
    for name in names:
        system, fixed = METHODS[name]
        grid = {TUNED.get(name, "lr"): RATES[1:3] if arguments.smoke else RATES}
        network = network_of(data, has_norm=name in WITH_NORM)
        tuned[name], tested = studies.tune_and_run(
            Contestant(system, system.Hyper(**{**shared, **fixed}), grid),
            problems_of(network, validation, sizes.clients, seeds),
            problems_of(network, data, sizes.clients, range(sizes.seeds)),
            tuning_seeds=seeds,
            seeds=range(sizes.seeds),
            criterion=Criterion(METRIC),
            widenings=0 if arguments.smoke else 2,
            kept=lambda sweep, name=name: arguments.kept(f"{name}, {sweep}"),  # type: ignore[misc]
            options=options,
        )
        curves[name] = tested.curves
    means, worst = ({name: each(curves[name]) for name in names} for each in (mean_of, worst_of))
    figure = plots.curves_figure(
        {name: each.assign(accuracy=each[METRIC]) for name, each in curves.items()},
        "accuracy",
        against="ticks",
        title=f"personal models on {data.name}, own rates",
    )
    facts = sizes.config() | {
        "rates": {name: each.choice for name, each in tuned.items()},
        "at_edge": {name: each.at_edge for name, each in tuned.items()},
        "mean": means,
        "worst_decile": worst,
        "diverged": {name: int(each.failed.sum()) for name, each in curves.items()},
    }
    text = report(tuned, means, worst, facts["diverged"])
    return Outcome(curves, {"accuracy.png": figure}, [], facts, text)


def report(
    tuned: Mapping[str, Tuned],
    means: Mapping[str, Sample],
    worst: Mapping[str, Sample],
    diverged: Mapping[str, int],
) -> str:
    """Lay out means over clients and their worst tenths, in percent, with 95 % intervals.

    `diverged` counts the seeds in which the model of a client was not finite in the end.
    """
    rows = []
    for name, each in tuned.items():
        rate = ", ".join(
            f"{value:g}{' (edge)' * bool(each.at_edge)}" for value in each.choice.values()
        )
        base = "fedavg, norm" if name in WITH_NORM else "fedavg"
        ahead = lead(means[name], means[base]) if base in means and name != base else "-"
        intervals = (sample[name].interval() for sample in (means, worst))
        cells = [f"{mean:.1f} ± {half:.1f}" for mean, half in intervals]
        rows.append([name, rate, *cells, ahead, str(diverged[name])])
    header = ["method", "rate", "mean over clients, %", "worst tenth, %", "mean - FedAvg's"]
    header.append("diverged")
    return table(header, rows)


def mean_of(curves: xr.Dataset) -> Sample:
    """Mean accuracy over clients in percent, at the last evaluations of each seed."""
    return Sample.of(100 * Criterion(METRIC).values(curves).values)


def worst_of(curves: xr.Dataset) -> Sample:
    """Mean accuracy of the worst tenth of clients in percent, at the last evaluations."""
    last = curves[BY_CLIENT].isel(eval=slice(-criteria.WINDOW, None)).mean("eval")
    values = worst_decile(last.transpose("seed", "client").values)
    return Sample.of(np.where(curves.failed.values, 0, 100 * values))


def network_of(data: Dataset, *, has_norm: bool) -> nn.Module:
    """LeNet, with batch normalisation if asked for, or a small perceptron for small images."""
    if has_norm:
        return NormLeNet(data.num_classes)
    is_small = min(data.train_images.shape[1:3]) < 28
    return models.MLP((16,), data.num_classes) if is_small else models.LeNet(data.num_classes)


def problems_of(
    network: nn.Module, data: Dataset, num_clients: int, seeds: Sequence[int]
) -> list[problems.Classification]:
    """Make the problem of each seed, by which labels are split."""
    split = partial(partition.dirichlet, num_clients=num_clients, alpha=0.1)
    parts = [split(data.train_labels, seed=seed) for seed in seeds]
    return problems.make_classifications(network, data, parts, mean=MEAN, std=STD, per_client=True)
