"""How methods are tuned and compared, and the standard algorithms that two comparisons share.

All methods of a comparison share the clients' speeds, the data, the network, the mini-batches' size
and the virtual time. The protocol is that of `fedjax_sim.studies.tuning`.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments.harness import Arguments, Outcome, Study, table
from fedjax_sim import SYSTEMS, Plan, System, datasets, partition, problems, studies
from fedjax_sim.clients import personal_metrics
from fedjax_sim.core.settings import idle_of, names_of
from fedjax_sim.core.types import Algorithm, Array, Params, Problem
from fedjax_sim.datasets import Dataset
from fedjax_sim.models.calls import Model
from fedjax_sim.partition import Partition
from fedjax_sim.problems import Classification
from fedjax_sim.results import plots
from fedjax_sim.results.runs import plain_settings
from fedjax_sim.results.summaries import first_reach, median_reach
from fedjax_sim.studies import Contestant, Criterion, Tuned, pictures, tuning

HELD_OUT = 0.1
"""Share of the training examples on which settings are chosen."""
FIRST_TUNING_SEED = 1000
"""Seeds of tuning are counted from here, and those of the comparison from 0."""
NUM_EVALS = 25
"""Evaluations of a run, after equal numbers of server steps."""
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
    "feddyn": {"regularization": (0.01, 0.1, 1.0)},
    "mimelite": {},
    "fedbuff": {"server_lr": (0.3, 1.0)},
    "fedasync": {"mixing": (0.1, 0.3, 0.6, 0.9)},
    "gen_async": {"server_lr": (0.3, 1.0)},
    "fedstaleweight": {"server_lr": (0.3, 1.0)},
    "quafl": {},
    "favano": {},
}
"""What is tuned besides the learning rate, by system."""
CLOCK: dict[str, Any] = {
    "slow_fraction": 1 / 3,
    "slow_clients": "random",
    "rate_fast": 1 / 2,
    "rate_slow": 1 / 8,
    "runtime_law": "runtime_geom",
    "spread_fast": 0.0,
    "spread_slow": 0.0,
    "time_of": "step",
    "server_interact": 3.0,
    "restart": "replaced",
    "sampling": "shuffled_epochs",
}
"""Speeds of the clients and the clock, the same for all methods, whatever their papers use."""
AT_ONCE = ("fedasync", "gen_async")
"""Systems whose server takes in every message when it arrives, which takes no time."""
PERSONAL = ("ditto", "fedper")
"""Systems whose clients have models of their own. They are tuned and judged by these."""
FAMILIES = {
    "other local work": ("fedavg", "fedprox", "scaffold", "fednova", "feddyn", "mimelite"),
    "an optimizer on the server": ("fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    "no waiting for the slowest": (
        "fedavg",
        "fedbuff",
        "fedasync",
        "gen_async",
        "fedstaleweight",
        "quafl",
        "favano",
    ),
}
"""Methods that share a panel, each with FedAvg to compare with."""
SMOKE = ("fedadam", "fedper")
"""The systems of a smoke run: one for each metric."""

Split = Callable[..., Partition]
"""Splits labels over `num_clients` clients, with a `seed`."""
SPLITS: dict[str, Split] = {
    "Dirichlet(0.1)": partial(partition.dirichlet, alpha=0.1),
    "Dirichlet(1)": partial(partition.dirichlet, alpha=1.0),
    "two classes a client": partial(partition.make, "classes"),
}
"""How labels are split over clients, by the names that sizes use."""
BOTH = ("Dirichlet(0.1)", "Dirichlet(1)")
ONE = BOTH[:1]


def standard_algorithms(sizes: Any, *, smoke: bool) -> dict[str, Contestant]:
    """List the standard algorithms with their grids; a smoke run has few, with two rates each.

    Synchronous methods wait for a fifth of the clients, of which each makes 20 local steps. Where
    clients report one by one, as many are at work at any time. All clients work in FAVANO and
    QuAFL, whose server asks a fifth of them at a time.
    """
    shared = {
        **CLOCK,
        "num_clients": sizes.clients,
        "num_selected": sizes.clients // 5,
        "concurrency": sizes.clients // 5,
        "num_tasks": sizes.clients // 5,
        "buffer_size": sizes.clients // 10,
        "batch_size": sizes.batch,
        "local_steps": 20,
    }
    found = {}
    for name in SMOKE if smoke else (*GRIDS, *PERSONAL):
        grid = {"lr": sizes.rates, **GRIDS.get(name, {})}
        if smoke:
            grid = {key: values[-3:-1] for key, values in grid.items()}
        settings = {**shared, "server_interact": 0.0} if name in AT_ONCE else shared
        found[name] = contestant(name, settings, grid)
    return found


def contestant(
    system: str, settings: Mapping[str, Any], grid: Mapping[str, Sequence[float]]
) -> Contestant:
    """Make a contestant of a system and those of the settings that have an effect on it."""
    known = names_of(SYSTEMS[system].Hyper)
    fixed = {key: value for key, value in settings.items() if key in known}
    idle = idle_of(SYSTEMS[system].paper(**fixed))
    fixed = {key: value for key, value in fixed.items() if known[key] not in idle}
    return Contestant(SYSTEMS[system], SYSTEMS[system].paper(**fixed), grid)


class Comparison(NamedTuple):
    """A comparison on one data set: its sizes, network, methods and the accuracies to reach.

    `contestants` lists the methods of a size by label, and `held_out` is the share of the
    training examples on which settings are chosen. Colour channels in [0, 1] are standardised
    by `mean` and `std`.
    """

    study: Study
    network: Callable[[int], Model]
    targets: tuple[float, ...]
    contestants: Callable[..., dict[str, Contestant]] = standard_algorithms
    held_out: float = HELD_OUT
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0


class Summary(NamedTuple):
    """What a method reached. Accuracies are in percent; a diverged seed counts as 0.

    `std` is over seeds, `failed` seeds diverged, and `collapsed` further ones ended at chance.
    `rounds` and `times` are medians of the server steps and the virtual time to each target,
    None unless more than half of the seeds reach it.
    """

    mean: float
    std: float
    median: float
    worst: float
    failed: int
    collapsed: int
    rounds: Mapping[str, float | None]
    times: Mapping[str, float | None]


def summarise(curves: xr.Dataset, targets: Sequence[float], metric: str = "accuracy") -> Summary:
    """Summarise the lanes of a method, with dimensions `seed` and `eval`, by an accuracy."""
    final = 100 * Criterion(metric).values(curves).values
    return Summary(
        float(final.mean()),
        float(final.std(ddof=1)) if final.size > 1 else float("nan"),
        float(np.median(final)),
        float(final.min()),
        int(curves.failed.sum()),
        int(((curves.collapsed_at >= 0) & ~curves.failed).sum()),
        *(
            {
                f"{target:g}": median_reach(first_reach(curves, target, metric, axis=axis))
                for target in targets
            }
            for axis in ("ticks", "time")
        ),
    )


def compare(given: Comparison, arguments: Arguments) -> Outcome:
    """Tune every method on held-out examples of each split, run it with fresh seeds, and report."""
    sizes = given.study.choose(arguments)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    validation = studies.hold_out(data, given.held_out)
    methods = given.contestants(sizes, smoke=arguments.smoke)
    facts: dict[str, Any] = {
        "dataset": data.name,
        "seeds": sizes.seeds,
        "tuning_seeds": sizes.tuning_seeds,
        "time_budget": sizes.time_budget,
        "held_out": given.held_out,
        "targets": given.targets,
        "grids": {name: dict(each.grid) for name, each in methods.items()},
        "settings": {name: plain_settings([each.hyper]) for name, each in methods.items()},
        "reduced": sizes.words,
    }
    options: dict[str, Any] = {
        "budget": fedjax_sim.Time(sizes.time_budget),
        "num_evals": NUM_EVALS,
        "watch": fedjax_sim.Watch(progress=True),
    }
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    curves: dict[str, xr.Dataset] = {}
    tuned: dict[str, dict[str, Tuned]] = {}
    for split in sizes.splits:
        divide = SPLITS[split]
        of_tuning = _problems(given, validation, sizes.clients, divide, seeds)
        of_test = _problems(given, data, sizes.clients, divide, range(sizes.seeds))
        tuned[split] = {}
        for name, each in methods.items():
            key = f"{split}, {name}"
            tuned[split][name], tested = studies.tune_and_run(
                each,
                of_tuning,
                of_test,
                tuning_seeds=seeds,
                seeds=range(sizes.seeds),
                criterion=Criterion(metric_of(name)),
                widenings=0 if arguments.smoke else tuning.WIDENINGS,
                kept=lambda what, key=key: arguments.kept(f"{key}, {what}"),  # type: ignore[misc]
                options=options,
            )
            curves[key] = tested.curves
    summaries = {
        split: {
            name: summarise(curves[f"{split}, {name}"], given.targets, metric_of(name))
            for name in methods
        }
        for split in sizes.splits
    }
    facts["chosen"] = {
        f"{split}, {name}": {
            "choice": each.choice,
            "at_edge": each.at_edge,
            "validation": each.scores.reset_coords(drop=True).to_dict(),
        }
        for split, of_split in tuned.items()
        for name, each in of_split.items()
    }
    facts["results"] = {
        split: {name: each._asdict() for name, each in of_split.items()}
        for split, of_split in summaries.items()
    }
    texts = [
        f"{split}\n\n" + _table(summaries[split], tuned[split], given.targets)
        for split in sizes.splits
    ]
    figures = _figures(curves, tuned, f"{data.name}{', ' * bool(sizes.words)}{sizes.words}")
    return Outcome(curves, figures, [], facts, "\n\n".join(texts))


def evaluated_by_client(system: System, model_of: Callable[..., Params] | None = None) -> System:
    """Let a system with one model report how well it serves each client, as personal models are.

    `model_of` makes a client's model from the problem, the settings, the server's model and the
    client's number; by default it is the server's.
    """

    def algorithm(problem: Problem, hyper: Any, plan: Plan) -> Algorithm:
        made = system.algorithm(problem, hyper, plan)

        def metrics(state: Any) -> dict[str, Array]:
            server = made.model(state)
            if model_of is None:
                return personal_metrics(problem, lambda client: server)
            return personal_metrics(problem, partial(model_of, problem, hyper, server))

        return made._replace(metrics=metrics)

    return system._replace(algorithm=algorithm)


def metric_of(name: str) -> str:
    """Return the metric by which a method is tuned and judged."""
    return "personal_accuracy" if name in PERSONAL else "accuracy"


def _problems(
    given: Comparison, data: Dataset, num_clients: int, divide: Split, seeds: Sequence[int]
) -> list[Classification]:
    """Make the problem of each seed."""
    in_color = data.train_images.shape[-1] == np.size(given.mean)
    scaling: dict[str, Any] = {"mean": given.mean, "std": given.std} if in_color else {}
    shares = [divide(data.train_labels, num_clients=num_clients, seed=seed) for seed in seeds]
    return problems.make_classifications(given.network(data.num_classes), data, shares, **scaling)


def _table(
    summaries: Mapping[str, Summary], tuned: Mapping[str, Tuned], targets: Sequence[float]
) -> str:
    """Lay out a split's results. Rounds and times are medians over seeds."""
    reach = [f"{axis} to {100 * target:g} %" for axis in ("rounds", "time") for target in targets]
    header = ["method", "settings", "accuracy, %", "median", "worst", "failed", "collapsed", *reach]
    rows = []
    for name, each in summaries.items():
        settings = ", ".join(
            f"{key} {value:g}{' (edge)' if key in tuned[name].at_edge else ''}"
            for key, value in tuned[name].choice.items()
        )
        reached = (*each.rounds.values(), *each.times.values())
        rows.append(
            [
                name if name not in PERSONAL else f"{name} (personal)",
                settings,
                f"{each.mean:.1f} ± {each.std:.1f}",
                f"{each.median:.1f}",
                f"{each.worst:.1f}",
                each.failed,
                each.collapsed,
                *("not reached" if value is None else f"{value:.0f}" for value in reached),
            ]
        )
    return table(header, rows)


def _figures(
    curves: Mapping[str, xr.Dataset], tuned: Mapping[str, Mapping[str, Tuned]], title: str
) -> dict[str, Figure]:
    """Draw accuracy against virtual time, and the sensitivity to settings, for each split."""
    found = {}
    for number, (split, of_split) in enumerate(tuned.items()):
        drawn = {
            name: curves[f"{split}, {name}"] for name in of_split if metric_of(name) == "accuracy"
        }
        words = f"{title}, {split}"
        found[f"accuracy_{number}.png"] = (
            families_figure(drawn, words)
            if all(name in drawn for names in FAMILIES.values() for name in names)
            else plots.curves_figure(drawn, "accuracy", title=words)
        )
        found[f"sensitivity_{number}.png"] = pictures.sensitivity_figure(of_split, words)
    return found


def families_figure(curves: Mapping[str, xr.Dataset], title: str) -> Figure:
    """Draw the median test error of each family of methods against virtual time."""
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    panels = figure.subplots(1, len(FAMILIES), sharey=True)
    least = 100.0
    for axes, (family, names) in zip(panels, FAMILIES.items(), strict=True):
        for number, name in enumerate(names):
            error = 100 * (1 - curves[name].accuracy.median("seed"))
            least = min(least, float(error.min()))
            look = plots.look(number, "all", markersize=3.5, label=name)
            axes.plot(curves[name].time.median("seed"), error, **look)
        axes.set(yscale="log", xlabel="virtual time (units)", title=family)
        axes.legend()
    panels[0].set_ylabel("test error (%)")
    marks = [mark for mark in (3, 5, 10, 20, 30, 40, 50, 60, 80, 100) if mark >= least]
    panels[0].set_yticks(marks, map(str, marks))
    panels[0].minorticks_off()
    num_seeds = curves["fedavg"].sizes["seed"]
    words = textwrap.fill(title, 120)
    figure.suptitle(f"{words}\nmedians over {num_seeds} seeds at each evaluation", fontsize=11)
    return figure
