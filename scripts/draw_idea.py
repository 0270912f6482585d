"""Draw the README's picture: a real schedule, and the curve of a sweep that replays it.

python scripts/draw_idea.py [PATH]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.core.types import Timeline
from fedjax_sim.systems import fedbuff

PATH = Path(__file__).parents[1] / "docs" / "images" / "idea.png"
NUM_CLIENTS = 8
SHOWN = 16
"""Server actions of which the work is drawn."""
RATES = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
COLOURS = {"0": "#4c72b0", "1": "#55a868", "2 or 3": "#dd8452", "4 or more": "#c44e52"}
"""Colours of work by its staleness, in server actions."""
CLASSES = (1, 2, 4)
"""Where the next colour begins."""


def run_sweep() -> fedjax_sim.Run:
    """Train at several learning rates. All of them replay the schedule of seed 0."""
    digits = datasets.load("digits")
    split = partition.make("classes", digits.train_labels, num_clients=NUM_CLIENTS, seed=0)
    problem = problems.make_classification(models.MLP((), 10), digits, split)
    hyper = fedbuff.paper(
        num_clients=NUM_CLIENTS,
        concurrency=NUM_CLIENTS,
        buffer_size=3,
        local_steps=10,
        batch_size=16,
        rate_slow=1 / 6,
    )
    settings = {"lr": RATES}
    return fedjax_sim.sweep(
        fedbuff.system, problem, hyper, settings=settings, budget=fedjax_sim.Ticks(100)
    )


def draw_schedule(axes: Axes, timeline: Timeline) -> None:
    """Draw a bar for each piece of work, from the model it started from to its report."""
    made = np.concatenate([[0.0], timeline.time])  # when each server version was made
    for tick, slot in np.ndindex(timeline.clients.shape):
        client, version = timeline.clients[tick, slot], timeline.version[tick, slot]
        colour = list(COLOURS.values())[np.searchsorted(CLASSES, tick - version, side="right")]
        length = made[tick + 1] - made[version]
        axes.barh(client, length, left=made[version], height=0.62, color=colour, edgecolor="w")
    for time in made[: SHOWN + 1]:
        axes.axvline(time, color="0.7", linewidth=0.6, zorder=0)
    for words, colour in COLOURS.items():
        axes.bar(0, 0, color=colour, label=words)
    title = "server actions since the work's model was made"
    axes.legend(title=title, ncols=4, frameon=False, fontsize=8, title_fontsize=9)
    axes.get_legend().set_loc("lower left")
    axes.get_legend().set_bbox_to_anchor((0, 1.0))
    axes.set(xlim=(0, made[SHOWN]), ylim=(NUM_CLIENTS - 0.5, -0.5), yticks=range(NUM_CLIENTS))
    axes.set(xlabel="virtual time (lines: actions of the server)", ylabel="client")


def draw_curves(axes: Axes, run: fedjax_sim.Run) -> None:
    """Draw the accuracy of all lanes against virtual time."""
    shades = np.linspace(0.25, 1, len(RATES))
    for rate, shade in zip(RATES, shades, strict=True):
        lane = run.curves.sel(lr=rate, seed=0)
        axes.plot(lane.time, lane.accuracy, color=(0.3, 0.45, 0.69, shade), label=f"{rate:g}")
    axes.legend(title="learning rate", frameon=False, fontsize=8, loc="lower right")
    axes.set(xlabel="virtual time", ylabel="accuracy", ylim=(0, 1))
    axes.set_xlim(0, float(run.curves.time.max()))


def draw(path: Path) -> None:
    """Draw the whole picture.

    Args:
      path: Where to write it.
    """
    run = run_sweep()
    figure = Figure(figsize=(12, 4.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    figure.get_layout_engine().set(wspace=0.12)
    draw_schedule(left, run.timelines[0])
    draw_curves(right, run)
    left.set_title("1. When: the schedule, drawn before anything is learnt", loc="left", pad=42)
    right.set_title("2. What: one program replays it for all settings", loc="left", pad=42)
    figure.add_artist(
        ConnectionPatch(
            (1.01, 0.5),
            (-0.16, 0.5),
            "axes fraction",
            "axes fraction",
            axesA=left,
            axesB=right,
            arrowstyle="-|>",
            mutation_scale=25,
            linewidth=2,
            color="0.4",
        )
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PATH)
