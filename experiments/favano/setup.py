"""The runs behind FAVANO's experiments on images (arXiv 2305.16099, Sec. 5).

The paper has n = 100 clients, s = 20 selected, K = 20 local steps, a buffer of Z = 10 and batches
of 128. MNIST: learning rate 0.5, 5000 units of virtual time. CIFAR-10: ResNet-20, 0.005, 10000.
TinyImageNet: ResNet-18, 0.1, 10000.

Where the paper is silent: an MLP 784-32-10 on inputs in [0, 1] for MNIST, plain SGD, s = 20
throughout, and 2/3 fast clients in the IID column. All methods share a seed's initial model, split
and speeds. Evaluation is on the official test set (the validation set of TinyImageNet).
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import fedjax_sim
from experiments import harness
from experiments.favano.claims import SMOKE, verdict
from experiments.harness import Arguments, Sample, Sizes, Study, Verdict, rule, statistics
from experiments.harness.images import load
from fedjax_sim import models, partition, problems
from fedjax_sim.core.settings import ConfigError, fields, names_of, value_of
from fedjax_sim.core.types import System
from fedjax_sim.datasets import Dataset
from fedjax_sim.models.quantized import LowBit
from fedjax_sim.problems import Classification
from fedjax_sim.problems.classification import Augmentation
from fedjax_sim.results import plots
from fedjax_sim.results.plots import label_of_axis
from fedjax_sim.results.reports import load as load_results
from fedjax_sim.systems import favano, fedavg, fedbuff, quafl


class Method(NamedTuple):
    """A system in one of its readings.

    Attributes:
      system: The system.
      settings: Settings of this reading, in place of the system's defaults.
      low_bit: Bits of weights, activations and neural gradients in local training, or None for full
        precision.
    """

    system: System
    settings: Mapping[str, Any]
    low_bit: tuple[int, int, int] | None = None


BLOCKED: dict[str, Any] = {"restart": "after_interaction", "rule": "mean"}
"""FedBuff as FAVANO's paper runs it.

All clients are at work, those that finish wait for the server, and nothing is discounted.
"""
PUBLIC: dict[str, Any] = {**BLOCKED, "restart": "own_finish", "send_old_model": True}
"""FedBuff's clock in the public simulator of QuAFL.

With a learning rate of Z/n times lr (`lr_scale`) this is all of that simulator's FedBuff.
"""

METHODS: dict[str, Method] = {
    "FedAvg": Method(fedavg.system, {}),
    "QuAFL": Method(quafl.system, {}),
    "FedBuff, lr": Method(fedbuff.system, BLOCKED),
    "FedBuff, lr Z/n": Method(fedbuff.system, {**BLOCKED, "lr_scale": "Z/n"}),
    "FedBuff, own finish, lr": Method(fedbuff.system, PUBLIC),
    "FedBuff, own finish, lr Z/n": Method(fedbuff.system, {**PUBLIC, "lr_scale": "Z/n"}),
    "FedBuff, fresh, lr": Method(fedbuff.system, {**BLOCKED, "restart": "fresh"}),
    "FedBuff, fresh, lr Z/n": Method(
        fedbuff.system, {**BLOCKED, "restart": "fresh", "lr_scale": "Z/n"}
    ),
    "FAVANO, stochastic": Method(favano.system, {"reweight": "stochastic"}),
    "FAVANO, deterministic": Method(favano.system, {"reweight": "deterministic"}),
    "FAVANO, alpha = 1": Method(favano.system, {"reweight": "none"}),
}


PRINTED = (
    "FedAvg",
    "QuAFL",
    "FedBuff, lr",
    "FedBuff, own finish, lr",
    "FedBuff, fresh, lr",
    "FAVANO, stochastic",
)
"""The methods at the printed learning rate, FedBuff by three readings of its clock."""


class Column(NamedTuple):
    """A column of Table 2.

    Attributes:
      partition: How the data are split over clients.
      slow_fraction: The share of slow clients.
    """

    partition: str
    slow_fraction: float


COLUMNS: dict[str, Column] = {
    "IID": Column("iid", 1 / 3),
    "non-IID, 2/3 fast": Column("classes", 1 / 3),
    "non-IID, 1/9 fast": Column("classes", 8 / 9),
}


class Images(NamedTuple):
    """The experiments on one data set.

    Attributes:
      study: The sizes at which they can be run.
      augmentation: How training images are changed at random, or None.
      mean: Mean of each colour channel, subtracted from images in [0, 1].
      std: Standard deviation of each colour channel, by which images are divided.
    """

    study: Study
    augmentation: Augmentation | None = None
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0


TINY = {"num_clients": 20, "num_selected": 4, "buffer_size": 2, "local_steps": 5, "batch_size": 16}
MNIST = Images(
    Study(
        full=Sizes(
            10, dataset="mnist", time_budget=5000.0, shared={}, network=partial(models.MLP, (32,))
        ),
        smoke=Sizes(
            2,
            dataset="digits",
            time_budget=70.0,
            shared=TINY,
            network=partial(models.MLP, (32,)),
            words="handwritten digits, 20 clients",
        ),
    )
)
SMALL_CNN = Sizes(
    1,
    dataset="digits",
    time_budget=70.0,
    shared=TINY,
    network=models.SmallCNN,
    words="handwritten digits, 20 clients, a small CNN",
)
CIFAR10 = Images(
    Study(
        full=Sizes(
            10,
            dataset="cifar10",
            time_budget=10_000.0,
            shared={"lr": 0.005},
            network=models.resnet20,
        ),
        smoke=SMALL_CNN,
    ),
    augmentation=Augmentation(),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)
TINY_IMAGENET = Images(
    Study(
        full=Sizes(
            10,
            dataset="tiny_imagenet",
            time_budget=10_000.0,
            shared={"lr": 0.1},
            network=models.resnet18,
        ),
        smoke=SMALL_CNN,
    ),
    augmentation=Augmentation(pad=0),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
NUM_EVALS = 25
"""Most evaluations of a run, after equal numbers of server steps.

On MNIST one falls about every 200 units of virtual time.
"""


class Runs(NamedTuple):
    """The curves of several methods, run now or read from an earlier results folder.

    Attributes:
      curves: Curves by "METHOD | COLUMN".
      config: Data set, number of seeds, time budget, model, whether it was a smoke run, how it was
        reduced in words, and the settings of each method.
    """

    curves: dict[str, xr.Dataset]
    config: dict[str, Any]

    def title(self, column: str) -> str:
        """Return the title of a column's picture."""
        return ", ".join(filter(None, (self.config["dataset"], column, self.config["reduced"])))

    def of(self, column: str) -> dict[str, xr.Dataset]:
        """Return the curves of one column by method."""
        return {
            name.removesuffix(f" | {column}"): data
            for name, data in self.curves.items()
            if name.endswith(f" | {column}")
        }


def runs(
    arguments: Arguments, images: Images, columns: Sequence[str], methods: Mapping[str, Method]
) -> Runs:
    """Run methods in columns with all seeds, or read them from an earlier results folder.

    Args:
      arguments: The command line; `results` names the earlier folder.
      images: The experiments of the data set.
      columns: Names of `COLUMNS`.
      methods: Methods by name.

    Returns:
      The curves of every method in every column, or of those cells that are asked for.

    Raises:
      ConfigError: If the earlier folder lacks one of the runs, or was run with other arguments.
    """
    if arguments.results is not None:
        return _earlier(
            arguments, [f"{method} | {column}" for column in columns for method in methods]
        )
    sizes = images.study.choose(arguments)
    if arguments.rate is not None:
        words = ", ".join(filter(None, (sizes.words, f"lr {arguments.rate:g}")))
        sizes = sizes.replace(shared={**sizes.shared, "lr": arguments.rate}, words=words)
    data = load(sizes.dataset, arguments.data_dir)
    in_color = data.train_images.shape[-1] == np.size(images.mean)
    scaling: dict[str, Any] = {"mean": images.mean, "std": images.std} if in_color else {}
    tasks = {
        low_bit: by_split(
            in_low_bits(sizes.network(data.num_classes), low_bit),
            data,
            columns,
            sizes.shared.get("num_clients", 100),
            sizes.seed_range,
            augmentation=images.augmentation,
            **scaling,
        )
        for low_bit in {method.low_bit for method in methods.values()}
    }
    curves, resolved = {}, {}
    names = [f"{method} | {column}" for method in methods for column in columns]
    cells = arguments.cells_of(names)
    for name, method in methods.items():
        system, settings, low_bit = method
        for column in (each for each in columns if f"{name} | {each}" in cells):
            split, slow_fraction = COLUMNS[column]
            hyper = hyper_of(system, {**sizes.shared, **settings, "slow_fraction": slow_fraction})
            resolved[f"{name} | {column}"] = {
                field: value_of(hyper, field) for field in fields(system.Hyper)
            } | {"partition": split, "low_bit": low_bit}
            run = fedjax_sim.sweep(
                system,
                list(tasks[low_bit][split]),
                hyper,
                seeds=sizes.seed_range,
                budget=fedjax_sim.Time(sizes.time_budget),
                num_evals=NUM_EVALS,
                keep=fedjax_sim.Keep(client_variance=True),
                **arguments.kept(f"{name} - {column}"),
            )
            curves[f"{name} | {column}"] = run.curves
    network = sizes.network(10)
    facts = {
        "dataset": Path(sizes.dataset).stem,
        "seeds": sizes.seeds,
        "time_budget": sizes.time_budget,
        "model": type(network).__name__,
        "smoke": arguments.smoke,
        "reduced": ", ".join(
            filter(
                None, (sizes.words, harness.other_data(sizes.dataset, images.study.full.dataset))
            )
        ),
    }
    return Runs(curves, facts | {"settings": resolved})


def _earlier(arguments: Arguments, wanted: Sequence[str]) -> Runs:
    found = load_results(str(arguments.results), trust=arguments.trust)
    missing = [name for name in wanted if _group(name) not in found.curves]
    if missing:
        raise ConfigError(
            "results",
            arguments.results,
            f"the folder of a run with {missing[0]!r}, such as one of favano/table2",
        )
    for name in ("smoke", "seeds"):
        if getattr(arguments, name) and getattr(arguments, name) != found.config[name]:
            raise ConfigError(
                name,
                getattr(arguments, name),
                f"left out, or {found.config[name]!r} as in {arguments.results}",
            )
    facts = {
        name: found.config[name]
        for name in ("dataset", "seeds", "time_budget", "model", "smoke", "reduced", "settings")
    }
    return Runs({name: found.curves[_group(name)] for name in wanted}, facts)


def by_split(
    network: Any,
    data: Dataset,
    columns: Iterable[str],
    num_clients: int,
    seeds: Sequence[int],
    **options: Any,
) -> dict[str, list[Classification]]:
    """Make the problem of each seed for every split of some columns.

    All share the images and, padded to one shape, the compiled programs.
    """
    splits = sorted({COLUMNS[column].partition for column in columns})
    shares = [
        partition.make(split, data.train_labels, num_clients=num_clients, seed=seed)
        for split, seed in itertools.product(splits, seeds)
    ]
    made = problems.make_classifications(network, data, shares, **options)
    return {split: made[k * len(seeds) : (k + 1) * len(seeds)] for k, split in enumerate(splits)}


def in_low_bits(network: Any, low_bit: tuple[int, int, int] | None) -> Any:
    """Return a network that trains with few bits, or the network itself for None."""
    return network if low_bit is None else LowBit(network, *low_bit)


def as_groups(curves: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return the same curves under names that a results file can hold."""
    return {_group(name): data for name, data in curves.items()}


def picture(
    curves: Mapping[str, xr.Dataset], metric: str, *, title: str, against: str = "time"
) -> Figure:
    """Draw a metric of several methods."""
    return plots.curves_figure(curves, metric, against=against, title=title)


REST = "FAVANO, stochastic"
"""Drawn in both panels of `by_reading`, for comparison."""


@plots.styled()
def side_by_side(
    panels: Mapping[str, tuple[Mapping[str, xr.Dataset], str, str]],
    *,
    title: str,
    end: float,
    columns: int,
) -> Figure:
    """Draw panels of medians over seeds with the band from the 10 to the 90 % quantile.

    Time ends where the slowest method may start its last server step. Numbers of steps are on a
    logarithmic axis, as the methods' differ by powers of ten, and so are losses and variances.

    Args:
      panels: By title the curves by method, the metric, and what it is drawn against. Panels in
        one row have one metric, and share its axis.
      title: The title of the picture.
      end: The time budget.
      columns: Number of panels side by side.
    """
    order = sorted(METHODS, key=lambda name: (name not in PRINTED, "FedBuff" in name))
    again = order.index(REST) + len(plots.COLORS)  # `REST` is in every panel; its colour stays its.
    looks = {name: plots.look(i + (i >= again)) for i, name in enumerate(order)}
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.4 * columns + 2.0, 3.9 * rows + 0.5))
    grid = figure.subplots(rows, columns, sharey="row", squeeze=False)
    names: dict[str, Any] = {}
    for axes, (words, (curves, metric, against)) in zip(grid.flat, panels.items(), strict=True):
        for name, data in curves.items():
            good = data.isel(seed=~data.failed.values).transpose("seed", "eval", ...)
            if not good.sizes["seed"]:
                continue
            x, values = (good[key].values.astype(float) for key in (against, metric))
            places = np.unique(np.broadcast_to(x, values.shape))
            places = places if against == "time" else places[places > 0]
            held = plots.on_grid(np.broadcast_to(x, values.shape), values, places)
            low, median, high = np.quantile(held, (0.1, 0.5, 0.9), axis=0)
            style = looks[name] | {"markevery": max(1, len(places) // 7)}
            area: dict[str, Any] = {"color": style["color"], "alpha": 0.13, "linewidth": 0}
            axes.fill_between(places, low, high, step="post", **area)
            names[name] = axes.plot(places, median, drawstyle="steps-post", **style)[0]
        axes.set(xlabel=label_of_axis(against), title=words)
        if against == "time":
            axes.set_xlim(0, end)
        else:
            axes.set_xscale("log")
        if metric == "accuracy":
            axes.set_ylim(0, 1)
        else:
            axes.set_yscale("log", nonpositive="mask")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}" if metric == "loss" else NullFormatter())
    for axes, (_, metric, _) in zip(grid.flat, panels.values(), strict=True):
        if axes in grid[:, 0]:
            axes.set_ylabel(label_of_axis(metric))
    if columns > 1:
        figure.suptitle(title)
    else:  # From the left, so that a long title ends before the legend.
        figure.suptitle(title.replace(": ", ":\n"), x=0.01, ha="left")
    plots.name_beside(figure, grid[0, 0], handles=list(names.values()), labels=list(names))
    return figure


def titled(ran: Runs, column: str) -> str:
    """Return the title of a picture of medians with bands: where, at which rate, how many seeds."""
    rate = ran.config["settings"][f"FAVANO, stochastic | {column}"]["lr"]
    seeds = ran.config["seeds"]
    return f"{ran.title(column)}, lr {rate:g}: median and 10 to 90 % band over {seeds} seeds"


def by_reading(ran: Runs, column: str) -> Figure:
    """Draw accuracy against time: the paper's methods as printed, and what else its words allow."""
    curves = ran.of(column)
    printed = {name: data for name, data in curves.items() if name in PRINTED}
    others = {name: data for name, data in curves.items() if name not in PRINTED or name == REST}
    return side_by_side(
        {
            "as printed: every method at lr; FedBuff by its clock": (printed, "accuracy", "time"),
            "FedBuff at lr Z/n, and other weights of FAVANO": (others, "accuracy", "time"),
        },
        title=titled(ran, column),
        end=ran.config["time_budget"],
        columns=2,
    )


def against_all(ran: Runs, column: str) -> Figure:
    """Draw loss and accuracy against time, local and server steps."""
    curves = ran.of(column)
    return side_by_side(
        {
            f"{metric} against {axis.replace('ticks', 'server_steps').replace('_', ' ')}": (
                curves,
                metric,
                axis,
            )
            for metric, axis in itertools.product(
                ("loss", "accuracy"), ("time", "local_steps", "ticks")
            )
        },
        title=titled(ran, column),
        end=ran.config["time_budget"],
        columns=3,
    )


def times_to(curves: Mapping[str, xr.Dataset], accuracy: float) -> dict[str, float | None]:
    """Return the virtual time at which each method's mean accuracy first reaches a value.

    Args:
      curves: Curves by method. Seeds that diverged are left out of the mean.
      accuracy: The value, between 0 and 1.

    Returns:
      The time of the first evaluation that reaches it, by method; None if none does.
    """
    found: dict[str, float | None] = {}
    for method, data in curves.items():
        good = data.isel(seed=~data.failed.values)
        above = good.accuracy.mean("seed").values >= accuracy
        found[method] = (
            float(good.time.mean("seed").values[np.argmax(above)]) if above.any() else None
        )
    return found


def final_sample(data: xr.Dataset) -> Sample:
    """Return the final test accuracy of every seed in percent; NaN for those that diverged."""
    final = 100 * data.accuracy.isel(eval=-1).values.astype(float)
    return Sample.of(np.where(data.failed.values, np.nan, final))


def inputs_of(ran: Runs, column: str) -> dict[str, Any]:
    """Return the numbers that verdicts need: each method's final accuracies, and how it was run."""
    return {
        "final": {name: final_sample(data) for name, data in ran.of(column).items()},
        "dataset": ran.config["dataset"],
        "reduced": ran.config["reduced"],
        "smoke": ran.config["smoke"],
    }


def decided(
    number: int,
    inputs: Mapping[str, Any],
    measured: Mapping[str, Any],
    parts: Mapping[str, bool | None],
    final: Mapping[str, Sample],
    chance: float,
    deciding: Callable[[str], bool] = lambda name: True,
) -> Verdict:
    """Give the verdict on a claim on final accuracies, from its parts.

    Args:
      number: The claim's number.
      inputs: What `inputs_of` returns.
      measured: What was measured.
      parts: Whether each part of the claim is true, None if that is undecided.
      final: Final accuracies by method, in percent.
      chance: The accuracy of chance, in percent.
      deciding: Which parts decide; by default all do.
    """
    if inputs["smoke"]:
        return verdict(number, measured, harness.NOT_RUN, SMOKE)
    seeds = min(each.seeds for each in final.values())
    told = ", ".join(f"{name} {each}" for name, each in final.items())
    level = (
        f"; {', '.join(low)} below twice chance ({chance:g} %)"
        if (low := [name for name, each in final.items() if statistics.has_collapsed(each, chance)])
        else ""
    )
    words = harness.reduction(seeds, inputs["reduced"])
    return verdict(
        number,
        {**measured, "parts": parts},
        rule(parts, words, deciding, substitute=inputs["reduced"]),
        f"final accuracy, %: {told}{level}; {inputs['dataset']}, {seeds} seeds",
    )


def final_percent(ran: Runs, column: str) -> dict[str, float]:
    """Return each method's mean final test accuracy in percent, over seeds that did not diverge."""
    return {
        method: float(np.mean(100 * data.accuracy.isel(eval=-1).values[~data.failed.values]))
        for method, data in ran.of(column).items()
    }


def hyper_of(system: System, settings: Mapping[str, Any]) -> Any:
    """Return a system's settings of the paper with those of others that it knows."""
    known = names_of(system.Hyper)
    hyper = system.paper(**{name: value for name, value in settings.items() if name in known})
    if settings.get("lr_scale") == "Z/n":
        hyper = hyper.replace(lr=hyper.lr * hyper.buffer_size / hyper.num_clients)
    return hyper


def _group(name: str) -> str:
    return name.replace("/", " of ").replace("|", "-")
