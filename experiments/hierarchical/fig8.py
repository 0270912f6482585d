"""Hierarchical FL's Fig. 8: writers behind four servers, S = 0, 12, 24 (claims 18 and 27).

See arXiv 2302.04851. Federated EMNIST, the CNN, 3400 writers. With 850 clients in a group an
iteration takes 86 units of time, more than any S. The setting is run as printed, and a second time
with 16 writers of a group taking part in each round, which also count for its delays. `--reduced`
has MNIST and 340 clients with Dirichlet(0.5).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from experiments.harness import Arguments, Interval, Outcome, Sizes, Verdict, all_of, begins
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS, verdict

STUDY = setup.study(setup.FEMNIST, setup.MNIST)
SYNC_TIMES = [0.0, 12.0, 24.0]
ACTIVE = 16
CLOCK = setup.clock([ACTIVE] * 4, setup.FIG8, active_per_group=ACTIVE)
"""Settings of the runs with few active clients."""
EARLY = (100.0, 200.0, 300.0)


def run(arguments: Arguments) -> Outcome:
    """Run the printed setting and the one with few active clients, and judge the claims."""
    size = setup.choose(arguments, STUDY)
    data = setup.load(arguments, size)
    if data.train_clients is None:
        tasks = setup.dirichlet(data, size, 80 if arguments.smoke else 340)
    else:
        tasks = setup.split(
            data, size, "natural", int(data.train_clients.max()) + 1, client_ids=data.train_clients
        )
    swept: dict[str, Any] = {"sync_time": SYNC_TIMES}
    printed = setup.play(
        arguments, size, "printed", tasks, setup.clock([850] * 4, setup.FIG8), swept
    )
    active = setup.play(arguments, size, "active", tasks, CLOCK, swept)
    ends = setup.final(active, size.time)
    lr = setup.best_lr(ends.sel(sync_time=0.0))
    inputs = inputs_of(arguments, size, active, printed)
    figures = setup.pictures(
        setup.each_setting(active, "sync_time", lr, "S"),
        "fig8",
        f"{setup.words_of(size)}, 16 active, lr {lr:g}",
    )
    figures |= setup.pictures(
        setup.each_setting(printed, "sync_time", lr, "S"),
        "fig8_printed",
        f"{setup.words_of(size)}, as printed, lr {lr:g}",
    )
    curves = {"printed": printed, "active": active}
    return setup.outcome(size, curves, figures, judge(inputs), inputs=inputs)


def inputs_of(
    arguments: Arguments, size: Sizes, active: xr.Dataset, printed: xr.Dataset
) -> dict[str, Any]:
    """Return the numbers that `judge` needs.

    Args:
      arguments: The command line.
      size: The size of the study.
      active: Curves with few active clients.
      printed: Curves of the setting as printed.
    """
    ends = setup.final(active, size.time)
    early: dict[str, Any] = {}
    crossings: dict[str, Any] = {}
    for s in SYNC_TIMES[1:]:
        found: dict[str, Any] = {}
        places: dict[str, Any] = {}
        for rate in size.lrs:
            both = [active.sel(lr=rate, sync_time=each) for each in (0.0, s)]
            found[f"{rate:g}"], places[f"{rate:g}"] = order_of(both, size.time)
        early[f"{s:g}"], crossings[f"{s:g}"] = found, places
    first = printed.sel(sync_time=0.0)
    return setup.inputs_of(
        arguments,
        STUDY,
        size,
        ends=setup.spreads({f"S = {s:g}": ends.sel(sync_time=s) for s in SYNC_TIMES}),
        early=early,
        crossings=crossings,
        late={
            f"{s:g}": setup.leads(ends.sel(sync_time=12.0), ends.sel(sync_time=s))
            for s in (0.0, 24.0)
        },
        printed={
            "largest difference": float(
                np.max(
                    [np.abs(printed.accuracy.sel(sync_time=s) - first.accuracy) for s in SYNC_TIMES]
                )
            ),
            "same times": all(
                bool(np.all(printed.time.sel(sync_time=s) == first.time)) for s in SYNC_TIMES
            ),
            "least iteration time": min(setup.clock([850] * 4, setup.FIG8)["shift"]),
        },
    )


def order_of(pair: Sequence[xr.Dataset], last: float) -> tuple[dict[str, Interval], Any]:
    """Return the early leads of the first of two runs by time, and when they change places.

    Args:
      pair: Their curves; dimensions seed and eval.
      last: The time T.
    """
    early = {f"{time:g}": setup.compare(*(setup.at(each, time) for each in pair)) for time in EARLY}
    return early, setup.crossings(pair, np.linspace(0, last, 101)[5:])


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 18 and 27.

    Args:
      inputs: Leads of S = 0 over 12 and 24 by the other S, learning rate and time ("early"); when
        they change places, or None where that cannot be told ("crossings"); leads of S = 12 at T
        ("late"); accuracies at T ("ends"); and the comparison of the printed setting ("printed").
    """
    printed = inputs["printed"]
    return [
        judge_order(inputs),
        verdict(
            27,
            printed,
            printed["largest difference"] == 0 and printed["same times"],
            f"largest difference of accuracies {printed['largest difference']:g}; the delays are "
            "those of 850 clients a group, so that an iteration takes at least "
            f"{printed['least iteration time']:.1f} units, longer than every S",
        ),
    ]


def judge_order(inputs: Mapping[str, Any]) -> Verdict:
    """Judge claim 18; see `judge`."""
    marks = CLAIMS[18].criterion
    judged: dict[str, dict[str, bool | None]] = {}
    told = []
    for s, by_lr in inputs["early"].items():
        for rate, by_time in by_lr.items():
            leads = {time: Interval.read(each) for time, each in by_time.items()}
            places = inputs["crossings"][s][rate]
            at_all = all_of(each.above() for each in leads.values())
            crosses = None
            if places is not None:
                time, led = setup.Crossing(*places[0]) if places else (np.inf, False)
                crosses = led and marks.first <= time <= marks.last
            judged.setdefault(rate, {})[f"S = 0 leads S = {s} early"] = any_of([at_all, crosses])
            words = ", ".join(f"{each} at {time}" for time, each in leads.items())
            told.append(f"S = 0 over S = {s} by {words} ({setup.at_rate(rate)})")
    for s, found in inputs["late"].items():
        for rate, each in setup.read_leads(found).items():
            judged.setdefault(rate, {})[f"S = 12 over S = {s} at T"] = each.above()
        told.append(f"S = 12 over S = {s} at T by {setup.by_lr(setup.read_leads(found))}")
    parts = setup.by_rate(inputs, judged, inputs["ends"])
    measured = {
        **{name: inputs[name] for name in ("early", "crossings", "late")},
        "accuracy at T, %": setup.described(inputs),
    }
    why = f"{'; '.join(told)}; 16 clients a round"
    return setup.settle(inputs, 18, measured, parts, why, deciding=begins("S = 12 over"))


def any_of(judgements: Iterable[bool | None]) -> bool | None:
    """Return whether one holds: True if one does, otherwise None if one is unknown."""
    found = list(judgements)
    return True if True in found else None if None in found else False
