"""Pictures of robust rules: heat maps, accuracy against the malicious share, learning rates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.harness import heatmaps, lead
from experiments.robustness.verdicts import BUFFERED, WAITING, Ends, shares_of
from fedjax_sim.results import plots
from fedjax_sim.studies import Tuned
from fedjax_sim.studies.pictures import sensitivity_figure

SHORT = {"sign flip": "flip", "inner product": "inner"}
"""Short names of attacks."""


def pictures(
    inputs: Mapping[str, Any], tuned: Mapping[str, Tuned], title: str
) -> dict[str, Figure]:
    """Draw all pictures, from the inputs of `verdicts.judge` and tuning without attackers."""
    ends, shares = Ends(inputs), shares_of(inputs)
    pairs = [[(rule, attack) for attack in ends.attacks] for rule in ends.rules]
    coords = {"rule": list(ends.rules), "attack": [SHORT.get(each, each) for each in ends.attacks]}

    def panels(value: Any, *names: str) -> dict[str, xr.DataArray]:
        found = {}
        for name in names:
            for share in shares:
                cells = [[value(name, *pair, share) for pair in row] for row in pairs]
                words = f"{name}, {share:.0%} malicious" if name else f"{share:.0%} malicious"
                found[words] = xr.DataArray(cells, coords)
        return found

    def accuracy(system: str, rule: str, attack: str, share: float) -> float:
        return ends.under(system, rule, attack, share).mean

    def change(_: str, rule: str, attack: str, share: float) -> float:
        late, early = (ends.under(each, rule, attack, share) for each in (BUFFERED, WAITING))
        return lead(late, early).mean

    best = max(ends.clean(system, rule).mean for system in ends.systems for rule in ends.rules)
    settled: dict[str, Any] = {"across": "attack", "columns": len(shares)}
    changes = panels(change, "")
    most = max(5.0, *(float(np.abs(each).max()) for each in changes.values()))
    return {
        "heat_map.png": heatmaps.heat_maps(
            panels(accuracy, *ends.systems),
            title=f"Test accuracy, {title}",
            label="mean accuracy (%)",
            limits=(0.0, np.ceil(best / 5) * 5),
            **settled,
        ),
        "staleness.png": heatmaps.heat_maps(
            changes,
            title=f"FedBuff against FedAvg, {title}",
            label="difference (points)",
            limits=(-most, most),
            colors="RdBu",
            **settled,
        ),
        **{
            f"lines_{system.lower()}.png": _lines(ends, system, shares, f"{system}, {title}")
            for system in ends.systems
        },
        "rates.png": sensitivity_figure(tuned, f"{title}, without attackers"),
    }


@plots.styled()
def _lines(ends: Ends, system: str, shares: list[float], title: str) -> Figure:
    """Draw the accuracy against the share of malicious clients, a panel for each attack."""
    figure = Figure(figsize=(2.6 * len(ends.attacks) + 0.6, 3.4), layout="constrained")
    grid = figure.subplots(1, len(ends.attacks), sharey=True, squeeze=False)
    for axes, attack in zip(grid.flat, ends.attacks, strict=True):
        for number, rule in enumerate(ends.rules):
            found = [ends.clean(system, rule)]
            found += [ends.under(system, rule, attack, share) for share in shares]
            intervals = [each.interval() for each in found]
            look = plots.look(number, "all", markersize=3.5, label=rule)
            halves = [each.half if np.isfinite(each.half) else 0.0 for each in intervals]
            across = 100 * np.array([0.0, *shares])
            axes.errorbar(across, [each.mean for each in intervals], halves, capsize=2, **look)
        axes.set(title=attack, xlabel="malicious (%)", ylim=(0, None))
    grid.flat[0].set_ylabel("test accuracy (%)")
    grid.flat[0].legend(fontsize=6.5, loc="lower left")
    figure.suptitle(f"{title}\nmeans over seeds with 95 % intervals")
    return figure
