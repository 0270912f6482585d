"""Hierarchical FL's Figs. 4 and 5 (arXiv 2302.04851): cooperating against isolated groups, CIFAR-10, CNN; claims 12 and 13.

Fig. 4: 5 and 15 clients; Fig. 5: 10 and 10. Dirichlet(0.1) among the groups, i.i.d. within (Figs. 4, 5b); two labels a client and groups
with labels of their own (Fig. 5a). Delays of Fig. 3, S = 5 against S = T. Every model is tested on the common test set.
"""

import sys
from typing import Any

import xarray as xr

from experiments.hierarchical_claims import verdict
from experiments.hierarchical_runs import CIFAR10, FIG3, SMOKE, Lead, at, best_lr, clock, final, lead, load, play, size_of, split
from experiments.sampling import verdict_table
from experiments.support import Arguments, Outcome, main, table
from fedjax_sim import plots

PANELS: dict[str, tuple[tuple[int, int], str, dict[str, Any]]] = {
    "fig4": ((5, 15), "dirichlet_groups", {"alpha": 0.1}),
    "fig5a": ((10, 10), "disjoint_groups", {"classes": 2}),
    "fig5b": ((10, 10), "dirichlet_groups", {"alpha": 0.1}),
}
LOOKS = 40
"""At isolated groups on their way."""
LITTLE = 2.0
"""Points that count as a small loss."""


def isolated(data: xr.Dataset, group: int) -> xr.Dataset:
    """The same curves with a group's accuracy as theirs."""
    return data.assign(accuracy=data[f"accuracy_group_{group}"])


def run(arguments: Arguments) -> Outcome:
    """Run the three panels."""
    size = size_of(arguments, CIFAR10)
    data = load(arguments, size)
    curves: dict[str, xr.Dataset] = {}
    figures, rows, words = {}, [], {}
    gains: dict[str, list[Lead]] = {}
    for name, (sizes, kind, options) in PANELS.items():
        tasks = split(data, size, kind, sum(sizes), group_sizes=sizes, **options)
        changes = clock(sizes, FIG3, group_sizes=sizes)
        together = play(arguments, size, f"{name} together", tasks, changes | {"sync_time": 5.0})
        alone = changes | {"sync_time": size.time, "ticks_per_round": LOOKS, "group_metrics": True}
        apart = play(arguments, size, f"{name} apart", tasks, alone, num_evals=LOOKS)
        curves |= {f"{name}_together": together, f"{name}_apart": apart}
        lr = best_lr(final(together, size.time))
        own = {f"group {i + 1} of {sizes[i]} alone": isolated(apart, i).sel(lr=lr) for i in range(2)}
        shown = {"cooperating, S = 5": together.sel(lr=lr), **own}
        figures[f"{name}.png"] = plots.curves_figure(shown, "accuracy")
        figures[f"{name}.png"].suptitle(f"{size.words}, lr {lr:g}")
        gains[name] = [lead(final(together.sel(lr=lr), size.time), at(each, size.time).isel(at=0)) for each in own.values()]
        words[name] = " and ".join(f"{each} over group {i + 1} ({sizes[i]} clients)" for i, each in enumerate(gains[name]))
        rows += [[name, label, f"{100 * float(at(each, size.time).mean()):.1f}"] for label, each in shown.items()]
    small, large = gains["fig4"]
    judged = [
        (12, small.is_clear and large.mean > -LITTLE, words["fig4"]),
        (13, all(each.is_clear for name in ("fig5a", "fig5b") for each in gains[name]), f"5a {words['fig5a']}; 5b {words['fig5b']}"),
    ]
    measured = {name: [each._asdict() for each in both] for name, both in gains.items()}
    tail = f"points at T at the learning rate best for cooperation; {size.words}"
    verdicts = [
        verdict(number, measured, None if arguments.smoke else bool(holds), SMOKE if arguments.smoke else f"{text}: {tail}")
        for number, holds, text in judged
    ]
    text = table(["panel", "model", "accuracy at T, %"], rows) + "\n\n" + verdict_table(verdicts)
    return Outcome(curves, figures, verdicts, {"size": size.words, "lrs": size.lrs}, text)


if __name__ == "__main__":
    sys.exit(main("hierarchical_fig4_5", __doc__ or "", run))
