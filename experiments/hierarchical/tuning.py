"""Each run at its own learning rate, chosen on held-out training images.

First a run is tried at eight rates, trained without the held-out images. The rate with the best
accuracy on them wins, by the mean of the last three evaluations. While that is the first or the
last rate, one more is tried beyond it, three at most. Then the run is repeated at this rate with
fresh seeds on all training images. The last model finished by T is measured on the test set. Inputs
are standardised.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import xarray as xr
from matplotlib.figure import Figure

from experiments.harness import Arguments, Outcome, Sample, Sizes, Verdict, spread_table
from experiments.hierarchical import setup
from fedjax_sim import Time, Watch, studies
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification
from fedjax_sim.studies import pictures, tuning
from fedjax_sim.systems import hierarchical

RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
HELD_OUT = 0.1
"""Share of the training images on which rates are chosen."""
FIRST_SEED = 1000
"""Seeds of the first stage are counted from here, and those of the second from 0."""
FULL: dict[str, Any] = {
    "standardised": True,
    "rates": RATES,
    "tuning_seeds": 2,
    "widenings": tuning.WIDENINGS,
}
SMOKE: dict[str, Any] = {**FULL, "rates": (0.5, 1.0), "tuning_seeds": 1, "widenings": 0}

MakeTasks = Callable[[Dataset, Sequence[int]], list[Classification]]
"""Makes one problem per seed over the given images."""


class Stages(NamedTuple):
    """The problems on which rates are chosen, by held-out images, and those of the results."""

    first: list[Classification]
    second: list[Classification]


class Measured(NamedTuple):
    """The choice of a run's learning rate, and its curves there, by seed, on the test set."""

    tuned: studies.Tuned
    curves: xr.Dataset

    @property
    def lr(self) -> float:
        """The chosen rate."""
        return self.tuned.choice["lr"]


Panels = Mapping[str, Mapping[str, Measured]]
"""Runs by panel and name."""


def sizes(usual: Sizes, options: Mapping[str, Any], **extras: Any) -> Sizes:
    """Return usual sizes with what tuning needs, `FULL` or `SMOKE`, and further numbers."""
    return Sizes(**{**usual.config(), "words": usual.words, **options, **extras})


def tuning_seeds(size: Sizes) -> range:
    """Return the seeds of the first stage."""
    return range(FIRST_SEED, FIRST_SEED + size.tuning_seeds)


def stages(data: Dataset, size: Sizes, make: MakeTasks) -> Stages:
    """Make the problems of both stages."""
    held = studies.hold_out(data, HELD_OUT)
    return Stages(make(held, tuning_seeds(size)), make(data, range(size.seeds)))


def measure(
    arguments: Arguments,
    size: Sizes,
    name: str,
    tasks: Stages,
    changes: Mapping[str, Any],
    metric: str = "accuracy",
) -> Measured:
    """Choose the rate of a run by an accuracy, and run it there.

    The returned curves have this metric as `accuracy`.
    """
    num_clients = tasks.second[0].counts.shape[0]
    hyper = hierarchical.system.paper(**{"num_clients": num_clients, **changes})
    tuned = studies.tune(
        studies.Contestant(hierarchical.system, hyper, {"lr": size.rates}),
        tasks.first,
        seeds=tuning_seeds(size),
        criterion=studies.Criterion(metric),
        widenings=size.widenings,
        kept=lambda stage: arguments.kept(f"{name}, {stage}"),
        budget=Time(size.time),
        num_evals=setup.EVERY_TICK,
        watch=Watch(progress=True),
    )
    own = size.replace(lrs=(tuned.choice["lr"],))
    curves = setup.play(arguments, own, name, tasks.second, changes).isel(lr=0)
    return Measured(tuned, curves.assign(accuracy=curves[metric]))


def outcome(
    size: Sizes,
    found: Panels,
    figures: Mapping[str, Figure],
    verdicts: Sequence[Verdict],
    inputs: Mapping[str, Any],
) -> Outcome:
    """Collect what a study returns, with the accuracies on held-out images."""
    all_runs = {
        f"{panel}, {run}": each for panel, runs in found.items() for run, each in runs.items()
    }
    scores = {
        name: each.tuned.scores.reset_coords(drop=True).to_dict() for name, each in all_runs.items()
    }
    config = size.config() | {
        "network": str(size.network),
        "lrs": {name: each.lr for name, each in all_runs.items()},
        "validation": scores,
    }
    curves = {name: each.curves for name, each in all_runs.items()}
    samples = {
        f"{name}, lr {each.lr:g}": Sample.of(100 * setup.final(each.curves, size.time).values)
        for name, each in all_runs.items()
    }
    text = spread_table(samples, setup.CHANCE)
    return Outcome(curves, figures, verdicts, config, text, inputs, setup.panel_of(size))


def sensitivity_figure(size: Sizes, found: Panels) -> Figure:
    """Draw the choice of all rates."""
    tuned = {
        f"{title_of(panel)}, {run}": each.tuned
        for panel, runs in found.items()
        for run, each in runs.items()
    }
    words = setup.words_of(size.replace(seeds=size.tuning_seeds))
    return pictures.sensitivity_figure(tuned, f"{words}, held-out training images")


def title_of(panel: str) -> str:
    """Name a panel as the paper does."""
    return panel.replace("fig", "Fig. ")
