"""Fair comparisons: the settings of every method are chosen on held-out training data.

1. A part of the training examples is held out for validation (`hold_out`).
2. Every method runs at every point of its stated grid, with seeds that are used for nothing else,
   and is scored on the held-out part (`tune`). While the best value of a setting is the first or
   the last of its grid, the grid is widened there by one more value, a limited number of times.
3. The best point of each method is run again, on all training examples, with other seeds, and is
   measured on the test set.

`sensitivity_figure` shows the scores of all points and the choices, `summarise` what a method
reached: mean, median, worst seed, diverged and collapsed seeds, and the time to given accuracies.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import fedjax_sim
from fedjax_sim.core.settings import ConfigError, check
from fedjax_sim.core.types import AnyProblem, System
from fedjax_sim.datasets import Dataset
from fedjax_sim.results import plots
from fedjax_sim.results.summaries import first_reach, median_reach

ProblemT = TypeVar("ProblemT", bound=AnyProblem)

WINDOW = 3
"""Evaluations at the end of a run over which a score is averaged."""
WIDENINGS = 3
"""Times that a grid is widened by one value."""


class Contestant(NamedTuple):
    """A method, and the settings that are tuned for it.

    Attributes:
      system: The system.
      settings: Settings in place of the system's defaults, not tuned.
      grid: Values of each tuned setting by name; all combinations are tried.
    """

    system: System
    settings: Mapping[str, Any]
    grid: Mapping[str, Sequence[float]]


class Tuned(NamedTuple):
    """What tuning one method found.

    Attributes:
      choice: The chosen value of each tuned setting.
      scores: Final accuracy on the validation part; dimensions are the tuned settings and `seed`.
        A lane that diverged scores 0.
      at_edge: Tuned settings whose chosen value is the first or the last of several. The best value
        may lie outside of the grid.
    """

    choice: dict[str, float]
    scores: xr.DataArray
    at_edge: list[str]


def hold_out(data: Dataset, share: float, *, seed: int = 0) -> Dataset:
    """Replace the test set by a part of the training set that is held out.

    Args:
      data: A data set of n training examples.
      share: Share of the training examples of each class that is held out, in (0, 1).
      seed: Which examples are held out.

    Returns:
      The data set with fewer training examples and with the part held out as its test set. The
      given test set is not in it.

    Raises:
      ConfigError: If the share is not in (0, 1).
    """
    if not 0 < share < 1:
        raise ConfigError("share held out", share, "above 0 and below 1")
    generator = np.random.default_rng(seed)
    is_held_out = np.zeros(len(data.train_labels), bool)
    for label in range(data.num_classes):
        of_class = generator.permutation(np.flatnonzero(data.train_labels == label))
        is_held_out[of_class[: round(share * len(of_class))]] = True
    kept, clients = ~is_held_out, data.train_clients
    return data._replace(
        train_images=data.train_images[kept],
        train_labels=data.train_labels[kept],
        test_images=data.train_images[is_held_out],
        test_labels=data.train_labels[is_held_out],
        train_clients=None if clients is None else clients[kept],
    )


def tune(
    contestant: Contestant,
    problem: list[ProblemT] | Callable[[int], ProblemT],
    *,
    seeds: Sequence[int],
    metric: str = "accuracy",
    widenings: int = WIDENINGS,
    known: xr.DataArray | None = None,
    kept: Callable[[str], Mapping[str, Any]] = lambda name: {},
    **options: Any,
) -> Tuned:
    """Choose a method's settings by its mean final accuracy on validation data.

    Args:
      contestant: The method and its grid.
      problem: The problem of each seed, or a function of the seed. Its test set is the validation
        part.
      seeds: Seeds of the runs that are scored.
      metric: The accuracy by which settings are chosen.
      widenings: Most values that are added to the grid, one at a time, where the best value is at
        its edge.
      known: Scores of an earlier call, whose points are not run again.
      kept: From a sweep's name to further options of `fedjax_sim.sweep`, such as a checkpoint.
      **options: Options of `fedjax_sim.sweep`, such as `time_budget`.

    Returns:
      The choice with all scores. Of settings with equal means the smallest values win.

    Raises:
      ConfigError: If a grid may be widened and has a value that is not positive, as grids go on by
        ratios.
    """
    for name, values in contestant.grid.items():
        if widenings and min(values) <= 0:
            raise ConfigError(f"grid of {name}", list(values), "positive, or not widened")

    def score(name: str, grid: Mapping[str, Sequence[float]]) -> xr.DataArray:
        curves = fedjax_sim.sweep(
            contestant.system,
            problem,
            contestant.system.paper(**contestant.settings),
            seeds=seeds,
            settings=grid,
            **options,
            **kept(name),
        ).curves
        return final_accuracy(curves, metric)

    grid = {name: sorted(values) for name, values in contestant.grid.items()}
    tuned = choose(score("tuning", grid) if known is None else known)
    for _ in range(widenings):
        beyond = _beyond(contestant, tuned)
        if not beyond:
            break
        name, value = beyond
        slab = {each: tuned.scores[each].values.tolist() for each in grid} | {name: [value]}
        added = score(f"tuning, {name} {value:g}", slab)
        tuned = choose(xr.concat([tuned.scores, added], name).sortby(name))
    return tuned


def _beyond(contestant: Contestant, tuned: Tuned) -> tuple[str, float] | None:
    """Return the first setting at an edge of its grid and the value beyond, if it is allowed."""
    for name in tuned.at_edge:
        values = tuned.scores[name].values.tolist()
        value = next_value(values, above=tuned.choice[name] == values[-1])
        settings = {**contestant.settings, **tuned.choice, name: value}
        try:
            check(contestant.system.paper(**settings))
        except ConfigError:
            continue
        return name, value
    return None


def choose(scores: xr.DataArray) -> Tuned:
    """Choose the point with the best mean over seeds; see `Tuned`."""
    mean = scores.mean("seed")
    chosen = {str(name): int(place) for name, place in mean.argmax(list(mean.dims)).items()}
    sizes = scores.sizes
    return Tuned(
        {name: float(scores[name][place]) for name, place in chosen.items()},
        scores,
        [
            name
            for name, place in chosen.items()
            if sizes[name] > 1 and place in (0, sizes[name] - 1)
        ],
    )


def next_value(values: Sequence[float], *, above: bool) -> float:
    """Continue an ascending grid by the ratio of its last two values, or of its first two."""
    first, second = (values[-1], values[-2]) if above else (values[0], values[1])
    return float(f"{first * first / second:.3g}")


def final_accuracy(curves: xr.Dataset, metric: str = "accuracy") -> xr.DataArray:
    """Average the accuracy of the last evaluations of each lane; 0 if the lane diverged.

    Args:
      curves: Curves with dimension `eval`.
      metric: The accuracy.

    Returns:
      Accuracies between 0 and 1, without the dimension `eval`.
    """
    last = curves[metric].isel(eval=slice(-WINDOW, None)).mean("eval")
    return last.where(~curves.failed, 0.0)


class Summary(NamedTuple):
    """What a method reached. Accuracies are in percent; a diverged seed counts as 0.

    Attributes:
      mean: Mean final accuracy over seeds.
      std: Its standard deviation over seeds.
      median: The median over seeds.
      worst: The worst seed.
      failed: Number of seeds that diverged.
      collapsed: Number of further seeds that ended at chance.
      rounds: Median number of server steps to each target; None unless more than half of the seeds
        reach it.
      times: The same in virtual time.
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
    """Summarise the lanes of a method.

    Args:
      curves: Curves with dimensions `seed` and `eval`.
      targets: Accuracies, between 0 and 1.
      metric: The accuracy.
    """
    final = 100 * final_accuracy(curves, metric).values
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


MOST_COLUMNS = 4
"""Most panels of a sensitivity picture side by side."""
MOST_LETTERS = 34
"""Letters in a line above such a panel, which the next panel's title does not touch."""


@plots.styled()
def sensitivity_figure(tuned: Mapping[str, Tuned], title: str, metric: str = "lr") -> Figure:
    """Draw the validation accuracy of every method against its learning rate.

    Lines are means over seeds, points are seeds, and a ring is the choice. A method with a second
    tuned setting has a line for each of its values.

    Args:
      tuned: What tuning found, by method.
      title: The title.
      metric: The setting on the horizontal axis.
    """
    columns = min(MOST_COLUMNS, -(-len(tuned) // 2))
    rows = -(-len(tuned) // columns)
    figure = Figure(figsize=(2.9 * columns, 2.4 * rows + 0.7))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(tuned) :]:
        axes.set_axis_off()
    most = max(_lines_of(each, metric).sizes["line"] for each in tuned.values())
    has_legend = any(each.scores.ndim > 2 for each in tuned.values())
    room = 0.13 * most if has_legend else 0.0
    for axes, (name, each) in zip(panels.flat, tuned.items(), strict=False):
        others = [str(dim) for dim in each.scores.dims if dim not in (metric, "seed")]
        lines = _lines_of(each, metric)
        for number in range(lines.sizes["line"]):
            line = lines.isel(line=number)
            label = ", ".join(f"{_words(other)} {float(line[other]):g}" for other in others)
            rates = line[metric].values
            shown = plots.look(number, "all", markersize=3.5, label=label or None)
            axes.plot(rates, line.mean("seed"), **shown)
            for seed in range(line.sizes["seed"]):
                axes.plot(rates, line.isel(seed=seed), ".", color=shown["color"], ms=2.5, alpha=0.5)
        at = float(each.scores.mean("seed").sel(each.choice))
        ring = {"marker": "o", "ms": 11, "mfc": "none", "mec": plots.FACE, "zorder": 5}
        axes.plot([each.choice[metric]], [at], linestyle="", **ring)
        axes.set(xscale="log", ylim=(0, 1.02 + room), yticks=np.linspace(0, 1, 6))
        axes.xaxis.set_minor_formatter(NullFormatter())  # Labels would touch.
        edge = f" ({', '.join(map(_words, each.at_edge))} at the edge)" if each.at_edge else ""
        axes.set_title(textwrap.fill(name + edge, MOST_LETTERS))
        if others:
            axes.legend(fontsize=6.5, handlelength=2.2, loc="upper left", borderaxespad=0)
    for axes in panels.flat[max(0, len(tuned) - columns) : len(tuned)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("local learning rate")
    for axes in panels[:, 0]:
        axes.set_ylabel("validation accuracy")
    figure.suptitle(f"{title}\nmean (line) and each tuning seed (points); ring: the choice")
    return figure


def _lines_of(tuned: Tuned, metric: str) -> xr.DataArray:
    """Return the scores with the dimension "line" in place of the settings that are not drawn."""
    others = [str(dim) for dim in tuned.scores.dims if dim not in (metric, "seed")]
    return tuned.scores.stack(line=others) if others else tuned.scores.expand_dims("line")


def _words(setting: str) -> str:
    """Write a setting's name in words."""
    return setting.replace("_", " ").replace("lr", "learning rate")
