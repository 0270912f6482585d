"""FAVANO's Table 2 over the readings that the paper leaves open: learning rate, clock, inputs.

The paper names one learning rate, 0.5, and says that "all models are fine-tuned". It does not say
how FedBuff's clients wait, nor how MNIST is normalised. Each method runs at five learning rates,
FedBuff with four clocks, on inputs in [0, 1] and on standardised ones, in the table's three
columns. In a first stage, a sixth of the training images is held out and validates, as in the
public simulator of QuAFL; its seeds are used for nothing else. Where the smallest or the largest
rate is the best one of a cell, further ones are tried one by one. In a second stage the readings
nearest to the paper, and each method at its best learning rate, run with ten seeds on all training
images (`--seeds` is the number of seeds of the second stage). Claims 26 to 29 are judged there.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments import harness
from experiments.favano import setup, table2
from experiments.favano.claims import SMOKE, verdict
from experiments.favano.setup import BLOCKED, COLUMNS, PUBLIC, TINY, Method
from experiments.favano.table2 import CHANCE, DECIDING, FAVANO, PAPER
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, Verdict
from experiments.harness.heatmaps import heat_maps
from fedjax_sim import datasets, models, studies
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.systems import favano, fedavg, fedbuff, quafl

CLOCKS: dict[str, Method] = {
    "FedBuff, fresh": Method(fedbuff.system, {**BLOCKED, "restart": "fresh"}),
    "FedBuff, 20 at work": Method(
        fedbuff.system, {"restart": "replaced", "concurrency": 20, "rule": "mean"}
    ),
    "FedBuff, blocked": Method(fedbuff.system, BLOCKED),
    "FedBuff, own finish": Method(fedbuff.system, PUBLIC),
}
"""FedBuff by its clock, always without discount.

All clients work and their running times are drawn again at each server step; 20 clients work and
are replaced when they finish; all work and wait for the server; all work and go on at once.
"""
OTHERS: dict[str, Method] = {
    "FedAvg": Method(fedavg.system, {}),
    "FAVANO": Method(favano.system, {"reweight": "stochastic"}),
    "QuAFL": Method(quafl.system, {}),
}
METHODS = {"FedAvg": OTHERS["FedAvg"], **CLOCKS, **OTHERS}
"""All methods, the cheap ones first."""
ABLATIONS: dict[str, Method] = {"FAVANO, alpha = 1": Method(favano.system, {"reweight": "none"})}
"""What claim 12 needs besides: only the second stage runs it, at FAVANO's learning rates."""
INPUTS: dict[str, tuple[float, float]] = {"[0, 1]": (0.0, 1.0), "standardised": (0.1307, 0.3081)}
"""Mean and standard deviation by which inputs in [0, 1] are normalised."""
RATES = (0.05, 0.1, 0.2, 0.35, 0.5)
"""Learning rates; the smallest is also the paper's 0.5 times Z / n, the public simulator's."""
LOWER, HIGHER = (0.025, 0.0125, 0.006), (0.7, 1.0, 1.4, 2.0)
"""Rates tried one by one while the smallest, or the largest, of those tried is the best."""
FIRST_TUNING_SEED = 1000
"""Seeds of the first stage are counted from here, and those of the second from 0."""
OWN = "best on validation data"
"""Name of the reading in which each method has its best learning rate in each column."""
JUDGED = f"{OWN}, inputs standardised"
"""The reading by which claims are judged: all methods are tuned and images are normalised."""
FIRST_CLAIM = 26
"""The number of the first claim that is judged here."""

STUDY = Study(
    full=Sizes(
        10,
        dataset="mnist",
        tuning_seeds=3,
        time_budget=5000.0,
        shared={},
        inputs=tuple(INPUTS),
        rates=RATES,
        lower=LOWER,
        higher=HIGHER,
        methods=tuple(METHODS),
        columns=tuple(COLUMNS),
    ),
    smoke=Sizes(
        2,
        dataset="digits",
        tuning_seeds=1,
        time_budget=350.0,
        shared=TINY,
        inputs=("[0, 1]",),
        rates=(0.1, 0.5),
        lower=(),
        higher=(0.7,),
        methods=("FedAvg",),
        columns=("non-IID, 1/9 fast",),
        words="handwritten digits, 20 clients, FedAvg alone",
    ),
)


class Reading(NamedTuple):
    """One reading of the paper's table, and how far it is from the table.

    Attributes:
      rate: The learning rate of all methods but FedBuff, or `OWN`.
      fedbuff_rate: The learning rate of FedBuff, or `OWN`.
      clock: FedBuff's clock, a key of `CLOCKS`.
      inputs: A key of `INPUTS`.
      distance: Root of the mean squared difference of the 12 cells, in points of accuracy.
      largest: The largest difference, in points.
      cell: Method and column where it is.
    """

    rate: str
    fedbuff_rate: str
    clock: str
    inputs: str
    distance: float
    largest: float
    cell: str

    def __str__(self) -> str:
        return f"{self.rates}, {self.clock}, inputs {self.inputs}"

    @property
    def rates(self) -> str:
        """Name the learning rates."""
        return f"lr {self.rate}, FedBuff {self.fedbuff_rate}"


def readings(
    accuracy: xr.DataArray, best: xr.DataArray, paper: Mapping[str, Any] = PAPER
) -> list[Reading]:
    """List all readings of the table, the nearest to the paper first.

    A reading fixes FedBuff's clock, the inputs, one learning rate for all other methods, and
    FedBuff's. In further readings every rate is that which validation chooses for each method and
    column. A reading with a cell that is NaN is left out.

    Args:
      accuracy: Mean test accuracy in percent, dimensions `method`, `inputs`, `column` and `lr`.
      best: The learning rate that validation chooses, dimensions `method`, `inputs` and `column`.
      paper: The paper's means with standard deviations, by method and column.
    """
    names = [f"{rate:g}" for rate in accuracy.lr.values]
    rates = [*itertools.product(names, names), (OWN, OWN)]
    clocks = [str(name) for name in accuracy.method.values if str(name) not in OTHERS]
    found = []
    ways = itertools.product(rates, clocks, accuracy.inputs.values.tolist())
    for (rate, fedbuff_rate), clock, inputs in ways:
        differences = {}
        for method, row in paper.items():
            place = {"method": clock if method == "FedBuff" else method, "inputs": inputs}
            name = fedbuff_rate if method == "FedBuff" else rate
            for column, (mean, _) in row.items():
                where = {**place, "column": column}
                lr = float(best.sel(where)) if name == OWN else float(name)
                value = accuracy.sel(where).sel(lr=lr) if np.isfinite(lr) else np.nan
                differences[f"{method}, {column}"] = float(value) - mean
        gaps = np.abs(list(differences.values()))
        if np.isfinite(gaps).all():
            cell = list(differences)[int(gaps.argmax())]
            largest = float(gaps.max()), f"{cell} {differences[cell]:+.1f}"
            distance = float(np.sqrt(np.mean(gaps**2)))
            found.append(Reading(rate, fedbuff_rate, clock, inputs, distance, *largest))
    return sorted(found, key=lambda reading: reading.distance)


def best_rates(validation: xr.DataArray) -> xr.DataArray:
    """Return the learning rate with the best mean validation accuracy; NaN where none is known."""
    is_known = validation.notnull().any(["seed", "lr"])
    return validation.mean("seed").fillna(-1.0).idxmax("lr").where(is_known)


def run(arguments: Arguments) -> Outcome:
    """Run the first stage, find the nearest readings, and run the second stage at these."""
    sizes = STUDY.choose(arguments)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    cells = list(itertools.product(sizes.methods, sizes.inputs, sizes.columns))
    first = first_stage(arguments, sizes, data, cells, seeds)
    best = best_rates(first.validation)
    near = readings(first.test.mean("seed"), best)
    first = first.assign(best=best)
    facts = sizes.config() | {
        "reduced": sizes.words,
        "held_out": HELD_OUT,
        "nearest": [each._asdict() for each in near],
    }
    chosen = _chosen(near, best)
    curves = second_stage(arguments, sizes, data, itertools.chain(*chosen.values()))
    read: dict[str, dict[str, dict[str, dict[str, Sample]]]] = {}
    for reading, of_reading in chosen.items():
        rows = read.setdefault(reading, {"cells": {}})["cells"]
        for cell in of_reading:
            name = FAVANO if cell[0] == "FAVANO" else cell[0]  # as in Table 2
            rows.setdefault(name, {})[cell[2]] = setup.final_sample(curves[_key(*cell)])
    inputs = {
        "words": f"{data.name}, {sizes.seeds} seeds; {sizes.tuning_seeds} chose the learning rates",
        "readings": read,
        "smoke": arguments.smoke,
    }
    verdicts = judge(inputs)
    text = harness.spread_table(
        {key: setup.final_sample(each) for key, each in curves.items()}, CHANCE
    )
    figures = {"test.png": _figure(first.test, best, f"{data.name}, seeds: {sizes.tuning_seeds}")}
    facts["first_stage"] = {name: first[name].to_dict() for name in first}
    return Outcome(curves, figures, verdicts, facts, text, inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 26 to 29: 9 to 12 at own rates, on standardised inputs, with fresh times."""
    if inputs["smoke"]:
        return [
            verdict(FIRST_CLAIM + i, None, harness.NOT_RUN, SMOKE) for i in range(len(DECIDING))
        ]
    readings = {name: table2.read_cells(found) for name, found in inputs["readings"].items()}
    cells = readings[JUDGED]
    seeds = min(sample.seeds for row in cells.values() for sample in row.values())
    measured = {name: {"final accuracy, %": table2.means(each)} for name, each in readings.items()}
    words = f"{JUDGED}, {inputs['words']}"
    fresh = "FedBuff, fresh"
    return table2.judged(
        table2.parts_of(cells, fresh), measured, cells, seeds, words, fresh, FIRST_CLAIM
    )


Cell = tuple[str, str, str, float]
"""Method, inputs, column and learning rate of one sweep of the second stage."""


def _key(name: str, inputs: str, column: str, rate: float) -> str:
    """Name a sweep of the second stage."""
    return f"{name} | {inputs} | {column} | lr {rate:g}"


HELD_OUT = 1 / 6
"""Share of the training images that validates in the first stage: 10,000 of MNIST's."""


def first_stage(
    arguments: Arguments,
    sizes: Sizes,
    data: Dataset,
    cells: Sequence[tuple[str, str, str]],
    seeds: Sequence[int],
) -> xr.Dataset:
    """Run all cells at all learning rates, trained without the images held out.

    The rates are those of the grid, and further ones as long as the best one is at an end.

    Returns:
      Accuracy of the final models on "validation" and "test" images, in percent, with dimensions
      `method`, `inputs`, `column`, `lr` and `seed`. A diverged lane has accuracy 0; a cell or a
      rate that is not run has NaN.
    """
    tasks = _tasks(sizes, studies.hold_out(data, HELD_OUT), seeds)
    test_data = (jnp.asarray(data.test_images), jnp.asarray(data.test_labels, "int32"))

    def tried(name: str, inputs: str, column: str, rates: Sequence[float], key: str) -> xr.Dataset:
        of_seeds = tasks[inputs, COLUMNS[column].partition]
        ran = fedjax_sim.sweep(
            METHODS[name].system,
            list(of_seeds),
            _hyper(METHODS[name], sizes, column),
            seeds=seeds,
            settings={"lr": list(rates)},
            budget=fedjax_sim.Time(sizes.time_budget),
            num_evals=1,
            watch=fedjax_sim.Watch(progress=True),
            **arguments.kept(key),
        )
        final = ran.curves.accuracy.isel(eval=-1, drop=True)
        task = dataclasses.replace(of_seeds[0], test_data=test_data)
        of_lanes = jax.jit(lambda x: jax.lax.map(task.evaluate, x))(ran.models)["accuracy"]
        on_test = final.copy(data=np.asarray(of_lanes).reshape(final.shape))
        both = xr.Dataset({"validation": final, "test": on_test}).reset_coords(drop=True)
        return 100 * both.where(~ran.curves.failed, 0.0)

    found = []
    for name, inputs, column in cells:
        key = f"{name}, {inputs}, {column}"
        scores = tried(name, inputs, column, sizes.rates, key)
        for further, end in ((sizes.lower, 0), (sizes.higher, -1)):
            for rate in further:
                if best_rates(scores.validation) != scores.lr[end]:
                    break
                more = tried(name, inputs, column, [rate], f"{key}, lr {rate:g}")
                scores = xr.concat([scores, more], "lr").sortby("lr")
        found.append(scores.expand_dims(method=[name], inputs=[inputs], column=[column]))
    places = {"method": list(METHODS), "inputs": list(sizes.inputs), "column": list(COLUMNS)}
    return xr.merge(found, join="outer", compat="no_conflicts").reindex(places)


def second_stage(
    arguments: Arguments, sizes: Sizes, data: Dataset, chosen: Iterable[Cell]
) -> dict[str, xr.Dataset]:
    """Run cells with fresh seeds on all training images; return curves by `_key`."""
    tasks = _tasks(sizes, data, range(sizes.seeds))
    curves = {}
    for name, inputs, column, rate in dict.fromkeys(chosen):
        method = {**METHODS, **ABLATIONS}[name]
        key = _key(name, inputs, column, rate)
        curves[key] = fedjax_sim.sweep(
            method.system,
            list(tasks[inputs, COLUMNS[column].partition]),
            _hyper(method, sizes, column).replace(lr=rate),
            seeds=sizes.seeds,
            budget=fedjax_sim.Time(sizes.time_budget),
            num_evals=25,
            watch=fedjax_sim.Watch(progress=True),
            **arguments.kept(key),
        ).curves
    return curves


def _chosen(near: Sequence[Reading], best: xr.DataArray) -> dict[str, list[Cell]]:
    """List the cells of the second stage by reading.

    These are each method at its best learning rate on each kind of inputs, and the nearest reading
    with one learning rate for FedBuff and one for all others, if there is a complete one.
    """
    common = next((each for each in near if each.rate != OWN), None)
    found: dict[str, list[Cell]] = {}
    cells = list(itertools.product((*METHODS, *ABLATIONS), COLUMNS))
    for inputs, (name, column) in itertools.product(best.inputs.values, cells):
        parent = "FAVANO" if name in ABLATIONS else name
        rate = float(best.sel({"method": parent, "inputs": inputs, "column": column}))
        if np.isfinite(rate):
            own = found.setdefault(f"{OWN}, inputs {inputs}", [])
            own.append((name, str(inputs), column, rate))
    if common is not None:
        for name, column in cells:
            if name not in CLOCKS or name == common.clock:
                rate = float(common.fedbuff_rate if name in CLOCKS else common.rate)
                found.setdefault(common.rates, []).append((name, common.inputs, column, rate))
    return found


def _tasks(
    sizes: Sizes, data: Dataset, seeds: Sequence[int]
) -> dict[tuple[str, str], list[Classification]]:
    """Make the problem of each seed, by inputs and partition."""
    found: dict[tuple[str, str], list[Classification]] = {}
    for inputs in sizes.inputs:
        mean, std = INPUTS[inputs]
        number, network = sizes.shared.get("num_clients", 100), models.MLP((32,), data.num_classes)
        made = setup.by_split(network, data, COLUMNS, number, seeds, mean=mean, std=std)
        found |= {(inputs, split): each for split, each in made.items()}
    return found


def _hyper(method: Method, sizes: Sizes, column: str) -> Any:
    """Complete a method's settings for a column."""
    slow = {"slow_fraction": COLUMNS[column].slow_fraction}
    return setup.hyper_of(method.system, {**sizes.shared, **method.settings, **slow})


def _figure(tested: xr.DataArray, best: xr.DataArray, title: str) -> Figure:
    """Draw test accuracy by method and learning rate, a panel for each column and inputs."""
    panels = {
        f"{column}\ninputs {inputs}": tested.mean("seed").sel(inputs=inputs, column=column)
        for inputs, column in itertools.product(tested.inputs.values, tested.column.values)
    }
    marked = {
        name: (best.sel(inputs=panel.inputs, column=panel.column) == panel.lr).transpose(
            *panel.dims
        )
        for name, panel in panels.items()
    }
    return heat_maps(
        panels,
        title=f"Test accuracy in percent ({title}); boxed: chosen on validation images",
        label="test accuracy (%)",
        across="learning rate",
        marked=marked,
        columns=len(tested.column),
        limits=(0, 100),
    )
