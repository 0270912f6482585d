"""What hierarchical FL's figures share: sizes, delays, accuracies at equal times.

See arXiv 2302.04851, Sec. IV. The paper gives neither learning rate, batch, T nor seeds. Here
batches of 32 are drawn afresh, with plain SGD, T = 1000, ten seeds, and several learning rates.
Unless each run has its own rate (`tuning`), a claim is judged at the learning rates that are the
best of one of the compared runs on the test set, where none has collapsed to chance, and the rates
are parts of the claim. CIFAR-10 has the paper's CNN, MNIST its perceptron of 50 units.

The accuracy at a time is that of the last global model finished by then; every model is evaluated.
A diverged lane has no accuracy, and decides nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments.harness import (
    NOT_RUN,
    Arguments,
    Interval,
    Outcome,
    Sample,
    Sizes,
    Study,
    Verdict,
    images,
    interval,
    lead,
    other_data,
    reduction,
    rule,
    spread_table,
)
from experiments.harness.statistics import has_collapsed
from experiments.hierarchical.claims import CLAIMS, verdict
from experiments.hierarchical.formulas.delays import linear_delays
from fedjax_sim import models, partition, problems
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.datasets import Dataset
from fedjax_sim.partition.parts import pack_rows
from fedjax_sim.problems import Classification
from fedjax_sim.results import plots
from fedjax_sim.systems import hierarchical

CHANCE = 10.0
"""Accuracy of the best constant answer to ten equally frequent classes, in percent."""
SMOKE = "not judged: a smoke run on handwritten digits is too small"
ALL_COLLAPSED = "every learning rate collapsed"
"""Name of the only part of a claim that no learning rate decides."""
EVERY_TICK = 1_000_000
"""Limit on the number of evaluations, larger than the number of ticks of any run here."""
FIG3 = (0.09, 0.1, 0.009, 0.01, 1, 3, 0.05, 0.1)
FIG6 = (1e-3, 0.5, 1e-3, 0.05, 5, 10, 1e-3, 0.05)
FIG7 = (0.01, 0.85, 1e-3, 0.085, 4, 2, 0.4, 0.2)
FIG8 = (0.1, 1.4, 0.01, 0.14, 4, 2, 0.5, 1)
FIG9 = (0.1, 1.4, 0.01, 0.14, 0.5, 5, 0.05, 0.5)
FIG11 = (0.1, 0.7, 0.001, 0.13, 3, 3, 0.01, 0.2)


CIFAR10 = Sizes(
    10,
    dataset="cifar10",
    time=1000.0,
    lrs=(0.05, 0.2, 0.5),
    network=models.LeNet,
    standardised=False,
)
MNIST = CIFAR10.replace(dataset="mnist", lrs=(0.2, 0.5, 1.0), network=partial(models.MLP, (50,)))
FEMNIST = CIFAR10.replace(dataset="federated_emnist")
DIGITS = CIFAR10.replace(
    seeds=2, dataset="digits", time=200.0, lrs=(0.5,), network=models.LogisticRegression
)
STANDARDS: dict[int, tuple[Any, Any]] = {
    1: (0.1307, 0.3081),
    3: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
"""Mean and standard deviation by which inputs in [0, 1] are standardised, by number of colours.

They are MNIST's and CIFAR-10's.
"""


def study(full: Sizes, reduced: Sizes | None = MNIST) -> Study:
    """Return the sizes of a figure, whose smoke run is on handwritten digits."""
    return Study(full, DIGITS, reduced)


def choose(arguments: Arguments, sizes: Study) -> Sizes:
    """Return the size asked for on the command line.

    A data set in place of the figure's brings its learning rates, and its network unless the figure
    has another network than is usual for the figure's data set.
    """
    size = sizes.choose(arguments._replace(dataset=None))
    if arguments.dataset is None:
        return size
    given, usual = _of_dataset(arguments.dataset, size), _of_dataset(size.dataset, size)
    network = given.network if size.network is usual.network else size.network
    return size.replace(dataset=arguments.dataset, lrs=given.lrs, network=network)


def words_of(size: Sizes) -> str:
    """Describe a size: data set, network, time and number of seeds."""
    return (
        f"{Path(size.dataset).stem}, {type(size.network(2)).__name__}, "
        f"T = {size.time:g}, {size.seeds} seeds"
        f"{', standardised inputs' if getattr(size, 'standardised', False) else ''}"
    )


def _of_dataset(dataset: str, unknown: Sizes) -> Sizes:
    known = {
        "cifar10": CIFAR10,
        "fashion": MNIST,
        "mnist": MNIST,
        "federated": FEMNIST,
        "digits": DIGITS,
    }
    return next(
        (kind for start, kind in known.items() if Path(dataset).stem.startswith(start)), unknown
    )


def panel_of(size: Sizes) -> str:
    """Name of the panel of a record: "cifar10" for runs on CIFAR-10, and none for other data."""
    return "cifar10" if Path(size.dataset).stem.startswith("cifar10") else ""


def load(arguments: Arguments, size: Sizes) -> Dataset:
    """Load the data set of a size."""
    return images.load(size.dataset, arguments.data_dir)


def clock(sizes: Sequence[int], coefficients: Sequence[float], **changes: Any) -> dict[str, Any]:
    """Return the settings of the delays of groups of these sizes; a run may have fewer clients."""
    delays = linear_delays(sizes, coefficients)
    return (
        fixed_clock(
            delays.shift.tolist(),
            delays.mean_exp.tolist(),
            delays.global_shift,
            delays.global_mean_exp,
        )
        | changes
    )


def fixed_clock(
    shift: Sequence[float], mean: Sequence[float], exchange_shift: float, exchange_mean: float
) -> dict[str, Any]:
    """Return the settings of delays that do not depend on group sizes.

    `shift` and `mean`, one per group, are those of an iteration, and the others of an exchange.
    """
    slopes = (
        "shift_per_client",
        "mean_per_client",
        "exchange_shift_per_group",
        "exchange_mean_per_group",
    )
    constants = {
        "shift": tuple(shift),
        "mean": tuple(mean),
        "exchange_shift": float(exchange_shift),
        "exchange_mean": float(exchange_mean),
    }
    return dict.fromkeys(slopes, 0.0) | constants | {"num_groups": len(shift)}


def split(
    data: Dataset,
    size: Sizes,
    kind: str,
    num_clients: int,
    *,
    seeds: Sequence[int] | None = None,
    clients: slice = slice(None),
    **options: Any,
) -> list[Classification]:
    """Make one problem per seed over the same images, divided in a way of `partition`.

    Those of `clients` alone take part. Further options are those of the division.
    """
    parts = [
        partition.make(kind, data.train_labels, num_clients=num_clients, seed=seed, **options)
        for seed in (range(size.seeds) if seeds is None else seeds)
    ]
    numbers = np.arange(num_clients)[clients]
    parts = [pack_rows([each.rows()[i] for i in numbers]) for each in parts]
    colours = data.train_images.shape[-1]
    if size.standardised and colours not in STANDARDS:
        raise ConfigError("dataset", data.name, "one of grey or RGB images")
    mean, std = STANDARDS[colours] if size.standardised else (0.0, 1.0)
    network = size.network(data.num_classes)
    return problems.make_classifications(network, data, parts, mean=mean, std=std)


def dirichlet(data: Dataset, size: Sizes, num_clients: int, **how: Any) -> list[Classification]:
    """Make the benchmark's split: Dirichlet(0.5) over clients, topped up to ten examples each."""
    least = min(10, len(data.train_labels) // num_clients)
    options: dict[str, Any] = {"alpha": 0.5, "min_examples": least, "top_up": True}
    return split(data, size, "dirichlet", num_clients, **options, **how)


def play(
    arguments: Arguments,
    size: Sizes,
    name: str,
    tasks: Sequence[Any],
    changes: Mapping[str, Any],
    settings: Mapping[str, Sequence[Any]] | None = None,
) -> xr.Dataset:
    """Sweep learning rates, settings and seeds as one program, and evaluate after every tick."""
    hyper = hierarchical.paper(**{"num_clients": tasks[0].counts.shape[0], **changes})
    swept = {"lr": list(size.lrs), **(settings or {})}
    how = {
        "budget": fedjax_sim.Time(size.time),
        "num_evals": EVERY_TICK,
        "watch": fedjax_sim.Watch(progress=True),
        **arguments.kept(name),
    }
    curves = fedjax_sim.sweep(
        hierarchical.system, list(tasks), hyper, seeds=size.seeds, settings=swept, **how
    ).curves
    assert int(curves.ticks.diff("eval").max()) <= 1, (
        "an accuracy at a time would be that of an older model"
    )
    return curves


def at(data: xr.Dataset, times: Any, metric: str = "accuracy") -> xr.DataArray:
    """Return a metric at equal times, that of the last model finished by then.

    It has the dimensions of the lanes and "at", and is NaN for failed lanes.
    """
    lanes = [name for name in data[metric].dims if name != "eval"]
    values, x = (data[name].transpose(*lanes, "eval") for name in (metric, "time"))
    grid = np.atleast_1d(np.asarray(times, float))
    flat = plots.on_grid(
        x.values.reshape(-1, x.shape[-1]),
        values.values.reshape(-1, values.shape[-1]).astype(float),
        grid,
    )
    coords = {name: data[name].values for name in lanes} | {"at": grid}
    found = xr.DataArray(flat.reshape(*values.shape[:-1], len(grid)), coords, (*lanes, "at"))
    return found.where(~data["failed"]).transpose(*lanes, "at") if "failed" in data else found


def final(data: xr.Dataset, time: float, metric: str = "accuracy") -> xr.DataArray:
    """Return a metric at the time T, per lane."""
    return at(data, time, metric).isel(at=0, drop=True)


def compare(first: xr.DataArray, second: xr.DataArray) -> Interval:
    """Compare accuracies paired by seed, in points."""
    return interval(100 * (first.values - second.values).astype(float).ravel())


def leads(first: xr.DataArray, second: xr.DataArray) -> dict[str, Interval]:
    """Compare two runs at each learning rate. Dimensions are lr and seed."""
    return {
        f"{rate:g}": compare(first.sel(lr=rate), second.sel(lr=rate)) for rate in first["lr"].values
    }


def spreads(ends: Mapping[str, xr.DataArray]) -> dict[str, dict[str, Sample]]:
    """Return the accuracies at T in percent per seed, by run and learning rate."""
    return {
        name: {f"{rate:g}": Sample.of(100 * each.sel(lr=rate).values) for rate in each["lr"].values}
        for name, each in ends.items()
    }


def inputs_of(arguments: Arguments, study: Study, size: Sizes, **found: Any) -> dict[str, Any]:
    """Return the numbers that verdicts need, with how they were run."""
    how = {"smoke": arguments.smoke, "seeds": size.seeds, "words": words_of(size)}
    return {**how, "reduced": smaller(study.full, size), **found}


def smaller(full: Sizes, size: Sizes) -> str:
    """Say how a run differs from the figure's in data, network and time; empty if it does not."""
    pairs = [
        (_network_words(size), _network_words(full)),
        (f"T = {size.time:g}", f"{full.time:g}") if size.time != full.time else ("", ""),
    ]
    words = [f"{given} in place of {usual}" for given, usual in pairs if given != usual]
    return ", ".join(filter(None, (size.words, other_data(size.dataset, full.dataset), *words)))


def _network_words(size: Sizes) -> str:
    """Name a network with the numbers of its hidden units."""
    network = size.network(2)
    units = ", ".join(f"{each}" for each in getattr(network, "hidden", ()))
    return f"{type(network).__name__}({units})" if units else type(network).__name__


def settle(
    inputs: Mapping[str, Any],
    number: int,
    measured: Mapping[str, Any],
    parts: Mapping[str, bool | None],
    why: str,
    *,
    deciding: Callable[[str], bool] = lambda name: True,
    smoke: str = SMOKE,
) -> Verdict:
    """Give the verdict on a claim from its parts, or none after a smoke run.

    `inputs` are those of `inputs_of`, and `deciding` tells which parts decide.
    """
    if inputs["smoke"]:
        return verdict(number, measured, NOT_RUN, smoke)
    small = inputs["reduced"]
    ruling = rule(parts, reduction(inputs["seeds"], small), deciding, substitute=small)
    return verdict(number, {**measured, "parts": parts}, ruling, f"{why}; {inputs['words']}")


def by_rate(
    inputs: Mapping[str, Any],
    judged: Mapping[str, Mapping[str, bool | None]],
    compared: Iterable[str],
) -> dict[str, bool | None]:
    """Name the parts of a claim by learning rate, and leave out rates that decide nothing.

    Left out are rates at which most seeds of a compared run diverged or are below twice chance,
    and of the others those that suit none of the runs, as each has a higher mean accuracy at
    another. Chance is `CHANCE` unless the inputs have another "chance". If no rate is left, the
    only part is `ALL_COLLAPSED`, which leaves the claim undecided.
    """
    ends, chance = inputs["ends"], inputs.get("chance", CHANCE)
    rows = [
        {rate: Sample.read(sample) for rate, sample in ends[name].items()}
        for name in compared
        if name in ends
    ]
    good = [
        rate
        for rate in judged
        if not any(has_collapsed(row[rate], chance) for row in rows if rate in row)
    ]
    best = [
        max((row[r].mean for r in good if r in row and np.isfinite(row[r].mean)), default=0.0)
        for row in rows
    ]
    parts: dict[str, bool | None] = {}
    for rate in good:
        known = [(row[rate], top) for row, top in zip(rows, best, strict=True) if rate in row]
        if not known or any(sample.mean >= top for sample, top in known):
            parts |= {f"{words} at lr {rate}": value for words, value in judged[rate].items()}
    return parts or {ALL_COLLAPSED: None}


def read_leads(found: Mapping[str, Any]) -> dict[str, Interval]:
    """Read leads by learning rate as JSON keeps them."""
    return {rate: Interval.read(each) for rate, each in found.items()}


def described(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spread over seeds of the accuracies at T, by run and learning rate."""
    chance = inputs.get("chance", CHANCE)
    return {
        name: {rate: Sample.read(each).described(chance) for rate, each in row.items()}
        for name, row in inputs["ends"].items()
    }


class Crossing(NamedTuple):
    """When two curves change places, and whether the first one led before."""

    time: float
    led_before: bool


def crossings(pair: Sequence[xr.Dataset], times: np.ndarray) -> list[list[Any]] | None:
    """Return when two curves change places, as `Crossing` has it, None if that cannot be told.

    At a time one is ahead if the 95 % t interval of the difference, paired by seed, is above or
    below zero, and one of the means is at least twice chance. They change places at the first
    time at which the other one is ahead. It cannot be told if a seed diverged, or if nothing is
    found and at the last time none is ahead, or both are below twice chance after the first
    quarter.
    """
    if any(bool(each.failed.any()) for each in pair):
        return None
    first, second = (at(each, times).transpose("at", "seed").values for each in pair)
    is_readable = 100 * np.maximum(first.mean(axis=1), second.mean(axis=1)) >= 2 * CHANCE
    sign = np.zeros(len(times), int)
    for i in np.flatnonzero(is_readable):
        each = interval(first[i] - second[i])
        sign[i] = 0 if abs(each.mean) <= each.half else np.sign(each.mean)
    is_clear = np.flatnonzero(sign)
    changes = np.flatnonzero(np.diff(sign[is_clear]))
    if not len(changes) and not (sign[-1] and is_readable[len(times) // 4 :].all()):
        return None
    return [[float(times[is_clear[k + 1]]), bool(sign[is_clear[k]] > 0)] for k in changes]


def passes_once(
    places: Sequence[Sequence[Any]] | None, ends: Sequence[Sample]
) -> dict[str, bool | None]:
    """Judge whether S = 20 passes S = 0 once, and near 750 (claim 16), by their `crossings`.

    Neither can be told if neither run is ahead at T, as they may have changed places again.
    """
    once: bool | None = None
    near: bool | None = None
    if places is not None:
        marks, found = CLAIMS[16].criterion, [Crossing(*each) for each in places]
        once = len(found) == 1 and found[0].led_before
        near = once and marks.first <= found[0].time <= marks.last
        if once and lead(*ends).above() is None:
            once, near = None, None if near else False
    return {"S = 20 passes S = 0 once": once, "near 750": near}


def told_crossings(places: Sequence[Sequence[Any]] | None) -> str:
    """Describe what `crossings` returns for S = 0 and 20."""
    if places is None:
        return "cannot be told"
    found = [Crossing(*each) for each in places]
    words = [f"{x.time:g} (S = {0 if x.led_before else 20} ahead before)" for x in found]
    return ", ".join(words) or "never"


def best_lr(baseline: xr.DataArray) -> float:
    """Return the learning rate with the best mean over seeds, none of which failed there."""
    return float(baseline.mean("seed", skipna=False).fillna(-1.0).idxmax("lr"))


def pictures(
    curves: Mapping[str, xr.Dataset], name: str, title: str, metric: str = "accuracy"
) -> dict[str, Figure]:
    """Draw a metric of every seed and its median, against time and against rounds.

    The vertical axis is that of the values after the first fifth, whose rise would hide the rest.
    """
    found = {}
    for axis, word in (("time", "time"), ("ticks", "rounds")):
        figure = plots.curves_figure(curves, metric, against=axis, title=title)
        found[f"{name}_{word}.png"] = figure
        late = []
        for line in figure.axes[0].get_lines():
            x, y = (np.asarray(each, float) for each in line.get_data())
            late.append(y[(x >= 0.2 * np.max(x)) & np.isfinite(y)])
        values = np.concatenate(late)
        if values.size and np.ptp(values) > 0:
            figure.axes[0].set_ylim(
                *(np.quantile(values, (0, 1)) + np.array([-0.02, 0.02]) * np.ptp(values))
            )
    return found


def table_of(data: Mapping[str, xr.Dataset], time: float, chance: float = CHANCE) -> str:
    """Lay out the accuracies at the time T of every swept point, by name of the run."""
    samples = {}
    for name, each in data.items():
        accuracies = final(each, time)
        dims = [dim for dim in accuracies.dims if dim != "seed"]
        for values in accuracies.stack(point=dims).point.values:
            point = dict(zip(dims, values, strict=True))
            words = ", ".join(f"{dim} {value:g}" for dim, value in point.items())
            number = float(each.ticks.isel(eval=-1).sel(point).mean())
            label = f"{name}, {words}, {number:.1f} server steps"
            samples[label] = Sample.of(100 * accuracies.sel(point).values)
    return f"accuracy at T, %\n\n{spread_table(samples, chance)}"


def by_lr(leads: Mapping[str, Interval]) -> str:
    """Describe leads at each learning rate."""
    return ", ".join(f"{each} at lr {rate}" for rate, each in leads.items())


def outcome(
    size: Sizes,
    curves: Mapping[str, xr.Dataset],
    figures: Mapping[str, Figure],
    verdicts: Sequence[Verdict],
    shown: str | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Outcome:
    """Make the outcome of a figure, by default with a table of the accuracies at T.

    Pictures against time come first, as only the first few are committed.
    """
    figures = dict(sorted(figures.items(), key=lambda item: item[0].endswith("_rounds.png")))
    if shown is None:
        shown = table_of(curves, size.time, (inputs or {}).get("chance", CHANCE))
    config = {"size": words_of(size), "seeds": size.seeds, "lrs": size.lrs}
    return Outcome(curves, figures, verdicts, config, shown, inputs, panel_of(size))
