"""Draw the picture of the page "How it works" from the schedule that the page prints.

python docs/site/worked_picture.py    writes docs/images/worked_picture.png
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[1] / "how-it-works.md"
PATH = PAGE.parent / "images" / "worked_picture.png"
COLOURS = ("#4c72b0", "#dd8452", "#c44e52")
"""Colours of work by its staleness: 0, 1, and 2 or more server steps."""


def schedule() -> Any:
    """Run the first block of the page, and return the schedule that it draws."""
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0]
    scope: dict[str, Any] = {"print": lambda *words: None}
    exec(compile(block, PAGE.name, "exec"), scope)
    return scope["timeline"]


def picture() -> Figure:
    """Draw the schedule above, and what learning makes of it below."""
    timeline = schedule()
    clients, versions = np.asarray(timeline.clients), np.asarray(timeline.version)
    made = np.concatenate([[0.0], timeline.time])  # when each server version was made
    num_clients = int(clients.max()) + 1
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[3, 2])
    for version, time in enumerate(made):
        above.axvline(time, color="#bbbbbb", linewidth=0.8, zorder=0)
        above.annotate(f"v{version}", (time, -0.75), ha="center", va="center", fontsize=9)
    for tick, slot in np.ndindex(*clients.shape):
        client, base = clients[tick, slot], versions[tick, slot]
        start, stop, staleness = made[base], made[tick + 1], tick - base
        above.barh(
            client,
            stop - start,
            left=start,
            height=0.6,
            color=COLOURS[min(staleness, 2)],
            edgecolor="white",
        )
        words = f"from v{base}" if stop - start > 3.5 else f"v{base}"
        above.text((start + stop) / 2, client, words, ha="center", va="center", color="white")
    for staleness, words in enumerate(("0", "1", "2 or more")):
        above.bar(0, 0, color=COLOURS[staleness], label=words)
    above.legend(title="staleness", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    above.set_ylim(num_clients - 0.4, -1.1)
    above.set_yticks(range(num_clients), [f"client {i}" for i in range(num_clients)])
    above.set_xlim(0, made[-1] + 1)
    above.set_xlabel("virtual time")
    above.set_title("1. The timeline: who works when, and from which server version", loc="left")
    below.set_axis_off()
    below.set_title("2. Learning: the ticks are replayed in order", loc="left")
    for tick, (ids, starts, weights) in enumerate(
        zip(clients, versions, np.asarray(timeline.weight), strict=True)
    ):
        terms = [
            f"{weight:.2f} × update of client {client} from v{start}"
            for client, start, weight in zip(ids, starts, weights, strict=True)
        ]
        line = f"tick {tick}:   v{tick + 1} = v{tick} + " + " + ".join(terms)
        below.text(0.02, 0.9 - tick / len(clients), line, transform=below.transAxes, fontsize=10)
    for side in ("top", "right"):
        above.spines[side].set_visible(False)
    return figure


if __name__ == "__main__":
    picture().savefig(PATH, dpi=110)
