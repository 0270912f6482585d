"""The runs behind FAVANO's MNIST experiments (arXiv 2305.16099, Sec. 5): methods, columns of Table 2, and sizes.

n = 100 clients, s = 20 selected, K = 20 local steps, Z = 10, batch 128, learning rate 0.5, 5000 units of virtual time. Where the paper
is silent: MLP 784-32-10 on inputs in [0, 1], plain SGD, s = 20 throughout, 2/3 fast clients in the IID column; a seed's initial model,
split and speeds are shared by all methods, and evaluation is on the official test set.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments.support import Arguments
from fedjax_sim import datasets, models, partition, plots, problems
from fedjax_sim.results import load
from fedjax_sim.settings import ConfigError, fields
from fedjax_sim.systems import favano, fedavg, fedbuff, quafl
from fedjax_sim.types import Problem, System


class Method(NamedTuple):
    """A row of the table: a system in one of its readings."""

    system: System
    settings: Mapping[str, Any]


PUBLIC = {"restart": "own_finish", "send_old_model": True}
"""FedBuff's clock in the public simulator of QuAFL; with lr Z/n, all of that simulator's FedBuff."""

METHODS: dict[str, Method] = {
    "FedAvg": Method(fedavg.system, {}),
    "QuAFL": Method(quafl.system, {}),
    "FedBuff, lr": Method(fedbuff.system, {}),
    "FedBuff, lr Z/n": Method(fedbuff.system, {"lr_scale": "Z/n"}),
    "FedBuff, own finish, lr": Method(fedbuff.system, PUBLIC),
    "FedBuff, own finish, lr Z/n": Method(fedbuff.system, {**PUBLIC, "lr_scale": "Z/n"}),
    "FedBuff, fresh, lr": Method(fedbuff.system, {"restart": "fresh"}),
    "FedBuff, fresh, lr Z/n": Method(fedbuff.system, {"restart": "fresh", "lr_scale": "Z/n"}),
    "FAVANO, stochastic": Method(favano.system, {"reweight": "stochastic"}),
    "FAVANO, deterministic": Method(favano.system, {"reweight": "deterministic"}),
    "FAVANO, alpha = 1": Method(favano.system, {"reweight": "none"}),
}


class Column(NamedTuple):
    """A column of the table: how the data are split, and the share of slow clients."""

    partition: str
    slow_fraction: float


COLUMNS: dict[str, Column] = {
    "IID": Column("iid", 1 / 3),
    "non-IID, 2/3 fast": Column("classes", 1 / 3),
    "non-IID, 1/9 fast": Column("classes", 8 / 9),
}

PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "FedAvg": {"IID": (93.4, 0.3), "non-IID, 2/3 fast": (38.7, 7.7), "non-IID, 1/9 fast": (44.8, 6.9)},
    "QuAFL": {"IID": (92.3, 0.9), "non-IID, 2/3 fast": (40.7, 6.7), "non-IID, 1/9 fast": (45.5, 4.0)},
    "FedBuff": {"IID": (96.0, 0.1), "non-IID, 2/3 fast": (85.1, 3.2), "non-IID, 1/9 fast": (67.3, 5.5)},
    "FAVANO": {"IID": (95.1, 0.1), "non-IID, 2/3 fast": (88.9, 0.9), "non-IID, 1/9 fast": (87.3, 2.3)},
}
"""Table 2: final test accuracy in percent, mean and standard deviation over 10 runs."""


class Sizes(NamedTuple):
    """What --smoke makes small."""

    dataset: str
    num_seeds: int
    time_budget: float
    shared: Mapping[str, Any]


FULL = Sizes("mnist", 10, 5000.0, {})
SMOKE = Sizes("digits", 2, 350.0, {"num_clients": 20, "num_selected": 4, "buffer_size": 2, "local_steps": 5, "batch_size": 16})
NUM_EVALS = 25
"""An evaluation every 200 units of virtual time, about: after equal numbers of server steps."""


class Runs(NamedTuple):
    """What was run, now or earlier."""

    curves: dict[str, xr.Dataset]
    """By "METHOD | COLUMN"."""
    config: dict[str, Any]
    """dataset, seeds (their number), time_budget, smoke, and each method's settings."""

    def title(self, column: str) -> str:
        """What a picture of a column is called."""
        return f"{self.config['dataset']}, {column}"


def runs(arguments: Arguments, columns: Sequence[str], methods: Sequence[str] = tuple(METHODS)) -> Runs:
    """Run methods x columns x seeds, or read them from an earlier results folder."""
    if arguments.results is not None:
        return _earlier(arguments, [f"{method} | {column}" for column in columns for method in methods])
    sizes = SMOKE if arguments.smoke else FULL
    sizes = sizes._replace(num_seeds=arguments.seeds or sizes.num_seeds)
    tasks = _tasks(sizes, arguments.data_dir, sorted({COLUMNS[column].partition for column in columns}))
    curves, resolved = {}, {}
    for method in methods:
        system, settings = METHODS[method]
        for column in columns:
            split, slow_fraction = COLUMNS[column]
            hyper = _hyper(system, {**sizes.shared, **settings, "slow_fraction": slow_fraction})
            resolved[f"{method} | {column}"] = {name: getattr(hyper, name) for name in fields(system.Hyper)} | {"partition": split}
            run = fedjax_sim.sweep(
                system,
                tasks[split],
                hyper,
                seeds=sizes.num_seeds,
                time_budget=sizes.time_budget,
                num_evals=NUM_EVALS,
                progress=True,
            )
            curves[f"{method} | {column}"] = run.curves
    facts = {"dataset": sizes.dataset, "seeds": sizes.num_seeds, "time_budget": sizes.time_budget, "smoke": arguments.smoke}
    return Runs(curves, facts | {"model": "MLP (32,)", "settings": resolved})


def _earlier(arguments: Arguments, wanted: Sequence[str]) -> Runs:
    found = load(str(arguments.results))
    missing = [name for name in wanted if _group(name) not in found.curves]
    if missing:
        raise ConfigError("results", arguments.results, f"the folder of a run with {missing[0]!r}, such as one of favano_table2")
    for name in ("smoke", "seeds"):
        if getattr(arguments, name) and getattr(arguments, name) != found.config[name]:
            raise ConfigError(name, getattr(arguments, name), f"left out, or {found.config[name]!r} as in {arguments.results}")
    facts = {name: found.config[name] for name in ("dataset", "seeds", "time_budget", "smoke", "model", "settings")}
    return Runs({name: found.curves[_group(name)] for name in wanted}, facts)


def _tasks(sizes: Sizes, data_dir: str | None, splits: Sequence[str]) -> dict[str, list[Problem]]:
    """Per split, a problem per seed; all share the images and, padded to one shape, the compiled programs."""
    data = datasets.load(sizes.dataset, data_dir=data_dir)
    num_clients = sizes.shared.get("num_clients", 100)
    names = [(split, seed) for split in splits for seed in range(sizes.num_seeds)]
    shares = [partition.make(split, data.train_labels, num_clients=num_clients, seed=seed) for split, seed in names]
    tasks = problems.classifications(models.MLP((32,), data.num_classes), data, shares)
    return {split: [task for (own, _), task in zip(names, tasks, strict=True) if own == split] for split in splits}


def as_groups(curves: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """The same curves under names that a results file can hold."""
    return {_group(name): data for name, data in curves.items()}


def picture(curves: Mapping[str, xr.Dataset], metric: str, *, title: str, against: str = "time") -> Figure:
    """Draw a metric of several methods, the variance on a logarithmic axis."""
    figure = plots.curves_figure(curves, metric, against=against)
    figure.suptitle(title)
    if metric == "client_variance":
        figure.axes[0].set_yscale("log")
    return figure


def percent(data: xr.Dataset) -> tuple[float, float]:
    """Final test accuracy in percent: mean and standard deviation over seeds (of n - 1 degrees of freedom) that did not diverge."""
    final = 100 * data.accuracy.isel(eval=-1).values[~data.failed.values].astype(float)
    return float(final.mean()) if final.size else float("nan"), float(final.std(ddof=1)) if final.size > 1 else float("nan")


def _hyper(system: System, settings: Mapping[str, Any]) -> Any:
    known = {name: value for name, value in settings.items() if name in fields(system.Hyper)}
    if known.get("lr_scale") == "Z/n":
        plain = system.Hyper(**{**known, "lr_scale": 1.0})
        known["lr_scale"] = plain.buffer_size / plain.num_clients
    return system.Hyper(**known)


def _group(name: str) -> str:
    return name.replace("/", " of ").replace("|", "-")
