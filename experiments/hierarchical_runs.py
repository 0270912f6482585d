"""What the experiments on hierarchical FL's figures share (arXiv 2302.04851, Sec. VI): sizes, delays, accuracies at equal times.

The paper gives neither learning rate, batch, T nor seeds. Here: batch 32 drawn afresh, plain SGD, T = 1000, five seeds, and several
learning rates; a claim is judged at the one with which the figure's baseline ends best, and the others are told beside. CIFAR-10 has the
paper's CNN, MNIST its perceptron of 50 units. Accuracy at a time is that of the last global model finished by then.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments.support import Arguments, table
from fedjax_sim import datasets, models, partition, plots, problems
from fedjax_sim.datasets import Dataset
from fedjax_sim.settings import ConfigError
from fedjax_sim.systems import hierarchical
from fedjax_sim.theory.hierarchical_timing import linear_delays

SMOKE = "not judged: a smoke run on handwritten digits is too small"
FIG3 = (0.09, 0.1, 0.009, 0.01, 1, 3, 0.05, 0.1)
FIG6 = (1e-3, 0.5, 1e-3, 0.05, 5, 10, 1e-3, 0.05)
FIG7 = (0.01, 0.85, 1e-3, 0.085, 4, 2, 0.4, 0.2)
FIG8 = (0.1, 1.4, 0.01, 0.14, 4, 2, 0.5, 1)
FIG9 = (0.1, 1.4, 0.01, 0.14, 0.5, 5, 0.05, 0.5)
FIG11 = (0.1, 0.7, 0.001, 0.13, 3, 3, 0.01, 0.2)


class Size(NamedTuple):
    """How large a figure is run."""

    dataset: str
    seeds: int
    time: float
    """T, units of virtual time."""
    lrs: tuple[float, ...]
    network: Callable[[int], Any]
    """From the number of classes."""
    evals: int
    """Evaluations, at most: as many as rounds where there are fewer."""

    @property
    def words(self) -> str:
        network = self.network(2)
        return f"{Path(self.dataset).stem}, {type(network).__name__}, T = {self.time:g}, {self.seeds} seeds"


CIFAR10 = Size("cifar10", 5, 1000.0, (0.05, 0.2, 0.5), models.LeNet, 50)
MNIST = Size("mnist", 5, 1000.0, (0.1, 0.5, 2.0), partial(models.MLP, (50,)), 200)
FEMNIST = CIFAR10._replace(dataset="federated_emnist")
DIGITS = Size("digits", 2, 200.0, (0.5,), models.LogisticRegression, 40)


def size_of(arguments: Arguments, full: Size, reduced: Size | None = MNIST) -> Size:
    """The size asked for on the command line; a data set in place of the figure's brings its own network and learning rates."""
    if arguments.reduced and reduced is None:
        raise ConfigError("reduced", True, "left out: the full size is meant for a CPU")
    size = DIGITS if arguments.smoke else reduced if arguments.reduced else full
    assert size is not None
    if arguments.dataset is not None:
        name = Path(arguments.dataset).stem
        known = {"cifar10": CIFAR10, "fashion": MNIST, "mnist": MNIST, "federated": FEMNIST, "digits": DIGITS}
        own = next((kind for start, kind in known.items() if name.startswith(start)), size)
        size = own._replace(dataset=arguments.dataset, time=size.time, network=size.network if own is size else own.network)
    return size._replace(seeds=arguments.seeds or size.seeds)


def load(arguments: Arguments, size: Size) -> Dataset:
    """The data set of a size."""
    return datasets.load(size.dataset, data_dir=arguments.data_dir)


def clock(sizes: Sequence[int], coefficients: Sequence[float], **changes: Any) -> dict[str, Any]:
    """Settings of the delays of groups of these sizes, of which a run may have fewer clients. coefficients: {d, b, e, f, d_g, ...}."""
    delays = linear_delays(sizes, coefficients)
    return fixed_clock(delays.shift.tolist(), delays.mean_exp.tolist(), delays.global_shift, delays.global_mean_exp) | changes


def fixed_clock(shift: Sequence[float], mean: Sequence[float], exchange_shift: float, exchange_mean: float) -> dict[str, Any]:
    """Settings of delays that do not depend on sizes. shift, mean: one per group."""
    slopes = ("shift_per_client", "mean_per_client", "exchange_shift_per_group", "exchange_mean_per_group")
    own = {"shift": tuple(shift), "mean": tuple(mean), "exchange_shift": float(exchange_shift), "exchange_mean": float(exchange_mean)}
    return dict.fromkeys(slopes, 0.0) | own | {"num_groups": len(shift)}


def split(data: Dataset, size: Size, kind: str, num_clients: int, network: Any = None, **options: Any) -> list[Any]:
    """One problem per seed over the same images."""
    parts = [partition.make(kind, data.train_labels, num_clients=num_clients, seed=seed, **options) for seed in range(size.seeds)]
    return list(problems.classifications(network or size.network(data.num_classes), data, parts))


def dirichlet(data: Dataset, size: Size, num_clients: int, alpha: float = 0.5, network: Any = None) -> list[Any]:
    """The benchmark's split: Dirichlet over clients with ten examples each at least; clients that stay poor are topped up."""
    least = min(10, len(data.train_labels) // num_clients)
    return split(data, size, "dirichlet", num_clients, network, alpha=alpha, min_examples=least, top_up=True)


def play(
    arguments: Arguments,
    size: Size,
    name: str,
    tasks: Sequence[Any],
    changes: Mapping[str, Any],
    settings: Mapping[str, Sequence[Any]] | None = None,
    **options: Any,
) -> xr.Dataset:
    """Sweep learning rates, settings and seeds as one program."""
    hyper = hierarchical.Hyper(**{"num_clients": tasks[0].counts.shape[0], **changes})
    swept = {"lr": list(size.lrs), **(settings or {})}
    how = {"time_budget": size.time, "num_evals": size.evals, "progress": True, **arguments.kept(name), **options}
    return fedjax_sim.sweep(hierarchical.system, tasks, hyper, seeds=size.seeds, settings=swept, **how).curves


def at(data: xr.Dataset, times: Any, metric: str = "accuracy") -> xr.DataArray:
    """A metric at equal times: of the last model finished by then. Dimensions of the lanes, and "at"."""
    lanes = [name for name in data[metric].dims if name != "eval"]
    values, x = (data[name].transpose(*lanes, "eval") for name in (metric, "time"))
    grid = np.atleast_1d(np.asarray(times, float))
    flat = plots.on_grid(x.values.reshape(-1, x.shape[-1]), values.values.reshape(-1, values.shape[-1]).astype(float), grid)
    coords = {name: data[name].values for name in lanes} | {"at": grid}
    return xr.DataArray(flat.reshape(*values.shape[:-1], len(grid)), coords, (*lanes, "at"))


def final(data: xr.Dataset, time: float, metric: str = "accuracy") -> xr.DataArray:
    """A metric at the time T, per lane."""
    return at(data, time, metric).isel(at=0, drop=True)


class Lead(NamedTuple):
    """By how much one is ahead of another, paired by seed: mean and standard error, in points of accuracy."""

    mean: float
    error: float

    @property
    def is_clear(self) -> bool:
        return self.mean > 2 * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.error:.2f}"


def lead(first: xr.DataArray, second: xr.DataArray) -> Lead:
    """Compare accuracies per seed, in percent; two standard errors are what counts as clear."""
    difference = 100 * (first.values - second.values).astype(float).ravel()
    error = float(difference.std(ddof=1) / np.sqrt(len(difference))) if len(difference) > 1 else float("nan")
    return Lead(float(difference.mean()), error)


def best_lr(baseline: xr.DataArray) -> float:
    """The learning rate with which a baseline ends best, mean over seeds. baseline: dimensions lr and seed."""
    return float(baseline.mean("seed").idxmax("lr"))


def percent(accuracy: xr.DataArray) -> str:
    """Mean and standard deviation over seeds, in percent."""
    values = 100 * accuracy.values.astype(float)
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" if values.size > 1 else f"{values.mean():.1f}"


def pictures(curves: Mapping[str, xr.Dataset], name: str, title: str, metric: str = "accuracy") -> dict[str, Figure]:
    """A metric against time and against rounds, mean and standard deviation over seeds."""
    found = {}
    for axis, word in (("time", "time"), ("ticks", "rounds")):
        figure = plots.curves_figure(curves, metric, against=axis)
        figure.suptitle(title)
        found[f"{name}_{word}.png"] = figure
    return found


def each_setting(data: xr.Dataset, name: str, lr: float, label: str) -> dict[str, xr.Dataset]:
    """One data set per value of a swept setting, at one learning rate, labelled with the value and its number of rounds."""
    chosen = data.sel(lr=lr)
    return {
        f"{label} = {value:g}, {float(chosen.sel({name: value}).ticks.isel(eval=-1).mean()):.1f} rounds": chosen.sel({name: value})
        for value in data[name].values
    }


def table_of(data: Mapping[str, xr.Dataset], time: float) -> str:
    """Accuracies at the time T of every swept point, by name of the run."""
    rows = []
    for name, each in data.items():
        accuracies = final(each, time)
        dims = [dim for dim in accuracies.dims if dim != "seed"]
        for values in accuracies.stack(point=dims).point.values:
            point = dict(zip(dims, values, strict=True))
            words = ", ".join(f"{dim} {value:g}" for dim, value in point.items())
            number = float(each.ticks.isel(eval=-1).sel(point).mean())
            rows.append([name, words, percent(accuracies.sel(point)), f"{number:.1f}"])
    return table(["run", "settings", "accuracy at T, %", "server steps"], rows)


def by_lr(leads: Mapping[float, Lead]) -> str:
    """Leads at each learning rate, in words."""
    return ", ".join(f"{each} at lr {rate:g}" for rate, each in leads.items())
