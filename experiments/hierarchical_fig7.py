"""Hierarchical FL's Figs. 7 and 12 (arXiv 2302.04851): CIFAR-10, CNN, 2 x 15 clients, S and the delay of exchanges; claims 15, 16, 17, 22.

Dirichlet(0.5) over clients. Fig. 7: S = 0, 5, 20 with c_g = 10 and 30; Fig. 12: S = 10 with c_g = 5, 10, 30, 60.
"""

import sys

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.hierarchical_runs import (
    CIFAR10,
    FIG7,
    Size,
    all_of,
    at,
    best_lr,
    by_lr,
    clock,
    crossings,
    dirichlet,
    each_setting,
    final,
    lead,
    load,
    pictures,
    play,
    settle,
    size_of,
    table_of,
)
from experiments.sampling import verdict_table
from experiments.support import Arguments, Outcome, Verdict, main
from fedjax_sim.theory.hierarchical_timing import expected_rounds, linear_delays

SYNC_TIMES, DELAYS, SWEPT_DELAYS = [0.0, 5.0, 20.0], [10.0, 30.0], [5.0, 10.0, 30.0, 60.0]


def saving(data: xr.Dataset, delay: float) -> float:
    """Percent of global rounds that S = 20 saves against S = 0, means over seeds; the same at every learning rate."""
    rounds = data.ticks.isel(eval=-1, lr=0).sel(exchange_shift=delay).mean("seed")
    return 100 * (1 - float(rounds.sel(sync_time=20.0)) / float(rounds.sel(sync_time=0.0)))


def judge(arguments: Arguments, size: Size, data: xr.Dataset, swept: xr.Dataset) -> list[Verdict]:
    """Claims 15, 16 and 22 at the learning rate with which S = 0 ends best, claim 17 by rounds alone."""
    time, words, lrs = size.time, size.words, size.lrs
    own = final(data, time)
    grid = np.linspace(0, time, 101)[5:]
    best = {delay: best_lr(own.sel(exchange_shift=delay, sync_time=0.0)) for delay in DELAYS}
    leads = {
        delay: {
            rate: {other: lead(*(own.sel(lr=rate, exchange_shift=delay, sync_time=s) for s in (5.0, other))) for other in (0.0, 20.0)}
            for rate in lrs
        }
        for delay in DELAYS
    }
    beats = all_of(each.is_clear for delay in DELAYS for each in leads[delay][best[delay]].values())
    parts = [
        f"c_g = {delay:g}: ahead of S = {other:g} by {by_lr({rate: leads[delay][rate][other] for rate in lrs})}"
        for delay in DELAYS
        for other in (0.0, 20.0)
    ]
    judged_at = " and ".join(f"{best[delay]:g}" for delay in DELAYS)
    points = {
        f"c_g = {delay:g}, lr {rate:g}, over S = {other:g}": leads[delay][rate][other]._asdict()
        for delay in DELAYS
        for rate in lrs
        for other in (0.0, 20.0)
    }
    first = settle(arguments, size, 15, points, beats, f"S = 5, points at T; {'; '.join(parts)}; judged at lr {judged_at}; {words}")
    far = data.sel(exchange_shift=30.0)
    found = {rate: crossings(*(at(far.sel(lr=rate, sync_time=s), grid) for s in (0.0, 20.0))) for rate in lrs}
    mine = found[best[30.0]]
    crossed = len(mine) == 1 and mine[0].led_before and 500 <= mine[0].time <= 1000
    is_known = not far.failed.sel(lr=best[30.0], sync_time=[0.0, 20.0]).any()
    told = ", ".join(
        f"{' '.join(f'{time:g} (S = {0 if first else 20} ahead before)' for time, first in places) or 'never'} at lr {rate:g}"
        for rate, places in found.items()
    )
    why = f"S = 0 and 20 change places: {told}; judged at lr {best[30.0]:g}; {words}"
    measured = {str(rate): [each._asdict() for each in places] for rate, places in found.items()}
    second = settle(arguments, size, 16, measured, crossed if is_known else None, why)
    accuracies = final(swept, time).mean("seed", skipna=False)
    falls = {rate: 100 * accuracies.sel(lr=rate).values for rate in lrs}
    rate = best_lr(final(swept, time).sel(exchange_shift=SWEPT_DELAYS[0]))
    numbers = "; ".join(f"{', '.join(f'{x:.1f}' for x in values)} at lr {each:g}" for each, values in falls.items())
    last = settle(
        arguments,
        size,
        22,
        {str(each): values.tolist() for each, values in falls.items()},
        bool(np.all(np.diff(falls[rate]) < 0)) if np.isfinite(falls[rate]).all() else None,
        f"% at T for c_g = 5, 10, 30, 60: {numbers}; judged at lr {rate:g}; {words}",
    )
    return [first, second, last]


def run(arguments: Arguments) -> Outcome:
    """Run both sweeps."""
    size = size_of(arguments, CIFAR10)
    tasks = dirichlet(load(arguments, size), size, 30)
    changes = clock([15, 15], FIG7)
    data = play(arguments, size, "fig7", tasks, changes, {"exchange_shift": DELAYS, "sync_time": SYNC_TIMES})
    swept = play(arguments, size, "fig12", tasks, changes | {"sync_time": 10.0}, {"exchange_shift": SWEPT_DELAYS})
    verdicts = judge(arguments, size, data, swept)
    savings = {delay: saving(data, delay) for delay in DELAYS}
    expected = {}
    for delay in DELAYS:
        law = linear_delays([15, 15], FIG7)._replace(global_shift=delay)
        flat, long = (expected_rounds(s, law, system_time=1000.0) for s in (0.0, 20.0))
        expected[delay] = 100 * (1 - long / flat)
    told = " and ".join(f"{savings[delay]:.1f} % with c_g = {delay:g} (expected at T = 1000: {expected[delay]:.1f})" for delay in DELAYS)
    measured = {str(delay): value for delay, value in savings.items()}
    verdicts.append(settle(arguments, size, 17, measured, 33 <= savings[30.0] <= 41, f"{told}; judged at c_g = 30"))
    figures: dict[str, Figure] = {}
    for delay in DELAYS:
        own = data.sel(exchange_shift=delay)
        lr = best_lr(final(own, size.time).sel(sync_time=0.0))
        figures |= pictures(each_setting(own, "sync_time", lr, "S"), f"fig7_cg{delay:g}", f"{size.words}, c_g = {delay:g}, lr {lr:g}")
    lr = best_lr(final(swept, size.time).sel(exchange_shift=SWEPT_DELAYS[0]))
    figures |= pictures(each_setting(swept, "exchange_shift", lr, "c_g"), "fig12", f"{size.words}, S = 10, lr {lr:g}")
    curves = {"fig7": data, "fig12": swept}
    text = table_of(curves, size.time) + "\n\n" + verdict_table(verdicts)
    return Outcome(curves, figures, verdicts, {"size": size.words, "lrs": size.lrs}, text)


if __name__ == "__main__":
    sys.exit(main("hierarchical_fig7", __doc__ or "", run))
