"""Pictures of tuning and of times to a target."""

import textwrap
from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from fedjax_sim.results import plots, reports
from fedjax_sim.studies import comparing, statistics, tables
from fedjax_sim.studies.tuning import Tuned

MOST_COLUMNS = 4
"""Most panels of a sensitivity picture side by side."""
MOST_LETTERS = 34
"""Letters in a line above such a panel, which the next panel's title does not touch."""


@plots.styled()
def sensitivity_figure(tuned: Mapping[str, Tuned], title: str, setting: str = "lr") -> Figure:
    """Draw the validation scores of every system against a setting.

    Lines are means over seeds, points are seeds, and a ring is the choice. A system with a second
    tuned setting has a line for each of its values.

    Args:
      tuned: What tuning found, by name of the system; each has a tuned setting.
      title: The title.
      setting: The setting on the horizontal axis; of a system that does not tune it, the first one.
    """
    settings = {name: [str(d) for d in x.scores.dims if d != "seed"] for name, x in tuned.items()}
    along = {name: setting if setting in x else x[0] for name, x in settings.items()}
    columns = min(MOST_COLUMNS, -(-len(tuned) // 2))
    rows = -(-len(tuned) // columns)
    figure = Figure(figsize=(2.9 * columns, 2.4 * rows + 0.7))
    is_shared = len({*along.values()}) == 1
    panels = figure.subplots(rows, columns, sharex=is_shared, sharey=True, squeeze=False)
    for axes in panels.flat[len(tuned) :]:
        axes.set_axis_off()
    about = next(iter(tuned.values())).scores.attrs
    is_share = "accuracy" in about.get("criterion", "accuracy") and about.get("sign", 1) == 1
    most = max(_lines_of(each, along[name]).sizes["line"] for name, each in tuned.items())
    has_legend = any(each.scores.ndim > 2 for each in tuned.values())
    for axes, (name, each) in zip(panels.flat, tuned.items(), strict=False):
        _draw_scores(axes, each, along[name])
        if is_share:
            room = 0.13 * most if has_legend else 0.0
            axes.set(ylim=(0, 1.02 + room), yticks=np.linspace(0, 1, 6))
        edge = f" ({', '.join(map(_words, each.at_edge))} at the edge)" if each.at_edge else ""
        axes.set_title(textwrap.fill(name + edge, MOST_LETTERS))
    first = len(tuned) - columns if is_shared else 0  # With a label, as all below it.
    for axes, dim in [*zip(panels.flat, along.values(), strict=False)][first:]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("local learning rate" if dim == "lr" else _words(dim))
    for axes in panels[:, 0]:
        axes.set_ylabel(f"validation {about.get('criterion', 'accuracy').removeprefix('final ')}")
    figure.suptitle(f"{title}\nmean (line) and each tuning seed (points); ring: the choice")
    return figure


def _draw_scores(axes: Axes, tuned: Tuned, along: str) -> None:
    """Draw the scores of one system, and a ring around the choice."""
    sign = tuned.scores.attrs.get("sign", 1)
    others = [str(dim) for dim in tuned.scores.dims if dim not in (along, "seed")]
    lines = sign * _lines_of(tuned, along)
    labels = lines[along].values
    is_number = np.issubdtype(labels.dtype, np.number)
    places = labels if is_number else np.arange(len(labels))
    for number in range(lines.sizes["line"]):
        line = lines.isel(line=number)
        label = ", ".join(
            f"{_words(other)} {tables.written(line[other].item())}" for other in others
        )
        shown = plots.look(number, "all", markersize=3.5, label=label or None)
        axes.plot(places, line.mean("seed", skipna=False), **shown)
        seeds = line.transpose(along, "seed").values
        axes.plot(places, seeds, ".", color=shown["color"], ms=2.5, alpha=0.5)
    mean = tuned.scores.mean("seed", skipna=False)
    best = mean.isel(mean.argmax(list(mean.dims)))
    at = places[np.flatnonzero(labels == best[along].item())]
    axes.plot(at, [sign * float(best)], "o", ms=11, mfc="none", mec=plots.FACE, zorder=5)
    if is_number and places.min() > 0:
        axes.set(xscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())  # Labels would touch.
    elif not is_number:
        axes.set_xticks(places, list(map(str, labels)))
    if others:
        axes.legend(fontsize=6.5, handlelength=2.2, loc="upper left", borderaxespad=0)


def _lines_of(tuned: Tuned, along: str) -> xr.DataArray:
    """Return the scores with the dimension "line" in place of the settings that are not drawn."""
    others = [str(dim) for dim in tuned.scores.dims if dim not in (along, "seed")]
    return tuned.scores.stack(line=others) if others else tuned.scores.expand_dims("line")


def _words(setting: str) -> str:
    """Write a setting's name in words."""
    return setting.replace("_", " ").replace("lr", "learning rate")


@plots.styled()
def survival_figure(found: comparing.Comparison) -> Figure:
    """Draw the share of seeds that have not reached the level yet, by system.

    Args:
      found: A comparison of times.
    """
    figure = Figure(figsize=(8.5, 4.8))
    axes = figure.subplots()
    for name, entry in found.entries.items():
        assert entry.reached is not None
        times, share = statistics.survival(entry.reached.times, entry.reached.reached)
        is_within = times <= found.horizon
        times = np.append(times[is_within], found.horizon)
        share = np.append(share[is_within], share[is_within][-1])
        shown = plots.look(entry.number, "all", label=name, drawstyle="steps-post")
        axes.plot(times, share, **shown)
    axis = plots.label_of_axis(reports.ALL_AXES[found.criterion.against])
    axes.set(xlabel=axis, ylabel="seeds on their way (share)", ylim=(-0.02, 1.02))
    axes.set_title(f"{found.criterion}".capitalize())
    plots.name_beside(figure, axes)
    return figure
