"""Who takes part in the comparisons of standard algorithms, and how they are run.

All methods share the clients' speeds, the data, the network, the mini-batches' size and the virtual
time. Synchronous methods wait for a fifth of the clients, of which each makes 20 local steps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import fedjax_sim
from experiments.harness import Arguments, Outcome, Study, comparison, table
from experiments.harness.comparison import Contestant
from fedjax_sim import SYSTEMS, datasets, partition, problems
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.reporting import plots
from fedjax_sim.settings import fields
from fedjax_sim.types import Model

HELD_OUT = 0.1
"""Share of the training examples on which settings are chosen."""
FIRST_TUNING_SEED = 1000
"""Seeds of tuning are counted from here, and those of the comparison from 0."""
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The grid of every method's learning rate of local steps."""
SERVER_RATES = (0.003, 0.01, 0.03, 0.1)
"""The grid of the server's learning rate where its optimizer is adaptive."""
GRIDS: dict[str, dict[str, Sequence[float]]] = {
    "fedavg": {},
    "fedprox": {"proximal": (0.01, 0.1, 1.0)},
    "scaffold": {},
    "fednova": {},
    "fedavgm": {"server_lr": (0.1, 0.3, 1.0)},
    "fedadagrad": {"server_lr": SERVER_RATES},
    "fedadam": {"server_lr": SERVER_RATES},
    "fedyogi": {"server_lr": SERVER_RATES},
    "feddyn": {"alpha": (0.01, 0.1, 1.0)},
    "mimelite": {},
    "fedbuff": {"server_lr": (0.3, 1.0)},
    "fedasync": {},
    "gen_async": {},
    "fedstaleweight": {},
    "quafl": {},
    "favano": {},
}
"""What is tuned besides the learning rate, by system."""
PERSONAL = ("ditto", "fedper")
"""Systems whose clients have models of their own. They are tuned and judged by these."""
SMOKE = ("fedadam", "fedper")
"""The systems of a smoke run, on the first split: one for each metric."""
SPLITS = {"Dirichlet(0.1)": 0.1, "Dirichlet(1)": 1.0}


class Comparison(NamedTuple):
    """A comparison on one data set.

    Attributes:
      study: Its sizes.
      network: Makes the network from the number of classes.
      targets: Accuracies whose rounds and times are reported.
      mean: Mean of each colour channel, subtracted from images in [0, 1].
      std: Standard deviation of each colour channel, by which images are divided.
    """

    study: Study
    network: Callable[[int], Model]
    targets: tuple[float, ...]
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0


def contestants(sizes: Any, *, smoke: bool) -> dict[str, Contestant]:
    """List the methods with their grids; a smoke run has few of them, with two rates each."""
    shared = {
        "num_clients": sizes.clients,
        "num_selected": sizes.clients // 5,
        "buffer_size": sizes.clients // 10,
        "batch_size": sizes.batch,
        "local_steps": 20,
        "rate_slow": 1 / 8,
    }
    found = {}
    for name in SMOKE if smoke else (*GRIDS, *PERSONAL):
        system = SYSTEMS[name]
        settings = {key: value for key, value in shared.items() if key in fields(system.Hyper)}
        grid = {"lr": RATES, **GRIDS.get(name, {})}
        if smoke:
            grid = {key: values[-3:-1] for key, values in grid.items()}
        found[name] = Contestant(system, settings, grid)
    return found


def compare(given: Comparison, arguments: Arguments) -> Outcome:
    """Tune every method on held-out examples of each split, run it with fresh seeds, and report."""
    sizes = given.study.choose(arguments)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    validation = comparison.hold_out(data, HELD_OUT)
    methods = contestants(sizes, smoke=arguments.smoke)
    curves: dict[str, xr.Dataset] = {}
    chosen: dict[str, Any] = {}
    texts = []
    tuning_seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    splits = dict(list(SPLITS.items())[: 1 if arguments.smoke else None])
    for split, alpha in splits.items():
        of_split: dict[str, xr.Dataset] = {}
        of_tuning = _problems(given, validation, sizes.clients, alpha, tuning_seeds)
        of_test = _problems(given, data, sizes.clients, alpha, range(sizes.seeds))
        for name, contestant in methods.items():
            metric = metric_of(name)
            options = {"time_budget": sizes.time_budget, "num_evals": 25, "progress": True}
            tuned = comparison.tune(
                contestant,
                of_tuning,
                seeds=tuning_seeds,
                metric=metric,
                **options,
                **arguments.kept(f"{split}, {name}, tuning"),
            )
            of_split[name] = fedjax_sim.sweep(
                contestant.system,
                of_test,
                contestant.system.Hyper(**{**contestant.settings, **tuned.choice}),
                seeds=sizes.seeds,
                **options,
                **arguments.kept(f"{split}, {name}"),
            ).curves
            key = f"{split}, {name}"
            chosen[key] = {
                "choice": tuned.choice,
                "at_edge": tuned.at_edge,
                "validation": tuned.scores.mean("seed").to_dict()["data"],
            }
            curves[key] = of_split[name]
        rows = [
            _row(name, of_split[name], chosen[f"{split}, {name}"], given.targets)
            for name in methods
        ]
        texts.append(f"{split}\n\n" + table(_header(given.targets), rows))
    facts = {
        "dataset": data.name,
        "seeds": sizes.seeds,
        "tuning_seeds": sizes.tuning_seeds,
        "time_budget": sizes.time_budget,
        "held_out": HELD_OUT,
        # "validation" has a dimension for each setting of the grid, ascending.
        "grids": {name: dict(contestant.grid) for name, contestant in methods.items()},
        "chosen": chosen,
        "reduced": sizes.words,
    }
    return Outcome(curves, _figures(curves, methods, splits), [], facts, "\n\n".join(texts))


def metric_of(name: str) -> str:
    """Return the metric by which a method is tuned and judged."""
    return "personal_accuracy" if name in PERSONAL else "accuracy"


def _problems(
    given: Comparison, data: Dataset, num_clients: int, alpha: float, seeds: Sequence[int]
) -> list[Classification]:
    """Make the problem of each seed."""
    in_color = data.train_images.shape[-1] == np.size(given.mean)
    scaling: dict[str, Any] = {"mean": given.mean, "std": given.std} if in_color else {}
    shares = [
        partition.dirichlet(data.train_labels, num_clients=num_clients, alpha=alpha, seed=seed)
        for seed in seeds
    ]
    return problems.make_classifications(given.network(data.num_classes), data, shares, **scaling)


def _header(targets: Sequence[float]) -> list[str]:
    reach = [f"rounds to {100 * target:g} %" for target in targets]
    times = [f"time to {100 * target:g} %" for target in targets]
    return ["method", "settings", "accuracy, %", "median", "worst", "failed", *reach, *times]


def _row(
    name: str, curves: xr.Dataset, chosen: Mapping[str, Any], targets: Sequence[float]
) -> list[Any]:
    """Summarise a method. Rounds and times are medians over seeds."""
    metric = metric_of(name)
    final = 100 * comparison.final_accuracy(curves, metric).values
    spread = final.std(ddof=1) if final.size > 1 else float("nan")
    settings = ", ".join(
        f"{key} {value:g}{' (edge)' if key in chosen['at_edge'] else ''}"
        for key, value in chosen["choice"].items()
    )
    reached = [
        _number(comparison.first_reach(curves, target, metric, axis=axis).median())
        for axis in ("ticks", "time")
        for target in targets
    ]
    return [
        name if name not in PERSONAL else f"{name} (personal)",
        settings,
        f"{final.mean():.1f} ± {spread:.1f}",
        f"{np.median(final):.1f}",
        f"{final.min():.1f}",
        int(curves.failed.sum()),
        *reached,
    ]


def _number(value: xr.DataArray) -> str:
    return f"{float(value):.0f}" if np.isfinite(value) else "not reached"


def _figures(
    curves: Mapping[str, xr.Dataset], methods: Iterable[str], splits: Iterable[str]
) -> dict[str, Any]:
    """Draw accuracy against virtual time for each split."""
    found = {}
    for number, split in enumerate(splits):
        drawn = {name: curves[f"{split}, {name}"] for name in methods if name not in PERSONAL}
        found[f"accuracy_{number}.png"] = plots.curves_figure(drawn, "accuracy", title=split)
    return found
