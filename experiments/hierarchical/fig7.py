"""Hierarchical FL's Figs. 7 and 12: S and the delay of exchanges (claims 15, 16, 17 and 22).

See arXiv 2302.04851. CIFAR-10, the CNN, 2 x 15 clients, Dirichlet(0.5) over clients. Fig. 7 has S =
0, 5, 20 with c_g = 10 and 30; Fig. 12 has S = 10 with c_g = 5, 10, 30, 60.
"""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.harness import Arguments, Outcome, Sizes, Verdict
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS
from fedjax_sim.theory.hierarchical.timing import expected_rounds, linear_delays

STUDY = setup.study(setup.CIFAR10)
SYNC_TIMES, DELAYS, SWEPT_DELAYS = [0.0, 5.0, 20.0], [10.0, 30.0], [5.0, 10.0, 30.0, 60.0]


def saving(data: xr.Dataset, delay: float) -> float:
    """Return the percentage of global rounds that S = 20 saves against S = 0, mean over seeds.

    It is the same at every learning rate.
    """
    rounds = data.ticks.isel(eval=-1, lr=0).sel(exchange_shift=delay).mean("seed")
    return 100 * (1 - float(rounds.sel(sync_time=20.0)) / float(rounds.sel(sync_time=0.0)))


def _crossing(found: setup.Crossing) -> str:
    return f"{found.time:g} (S = {0 if found.led_before else 20} ahead before)"


def judge(arguments: Arguments, size: Sizes, data: xr.Dataset, swept: xr.Dataset) -> list[Verdict]:
    """Judge claims 15, 16 and 22 at the learning rate with which S = 0 ends best.

    Args:
      arguments: The command line.
      size: The size of the study.
      data: Curves of Fig. 7.
      swept: Curves of Fig. 12.
    """
    time, words, lrs = size.time, setup.words_of(size), size.lrs
    ends = setup.final(data, time)
    grid = np.linspace(0, time, 101)[5:]
    best = {delay: setup.best_lr(ends.sel(exchange_shift=delay, sync_time=0.0)) for delay in DELAYS}
    pairs = [(delay, other) for delay in DELAYS for other in (0.0, 20.0)]
    leads = {
        (delay, other): setup.leads(
            *(ends.sel(exchange_shift=delay, sync_time=s) for s in (5.0, other))
        )
        for delay, other in pairs
    }
    beats = setup.all_of(leads[delay, other][best[delay]].is_clear for delay, other in pairs)
    parts = [
        f"c_g = {delay:g}: ahead of S = {other:g} by {setup.by_lr(leads[delay, other])}"
        for delay, other in pairs
    ]
    judged_at = " and ".join(f"{best[delay]:g}" for delay in DELAYS)
    points = {
        f"c_g = {d:g}, lr {rate:g}, over S = {s:g}": e._asdict()
        for (d, s), each in leads.items()
        for rate, e in each.items()
    }
    first = setup.settle(
        arguments,
        size,
        15,
        points,
        beats,
        f"S = 5, points at T; {'; '.join(parts)}; judged at lr {judged_at}; {words}",
    )
    far = data.sel(exchange_shift=30.0)
    found = {
        rate: setup.crossings(*(setup.at(far.sel(lr=rate, sync_time=s), grid) for s in (0.0, 20.0)))
        for rate in lrs
    }
    marks, mine = CLAIMS[16].criterion, found[best[30.0]]
    crossed = len(mine) == 1 and mine[0].led_before and marks.first <= mine[0].time <= marks.last
    is_known = not far.failed.sel(lr=best[30.0], sync_time=[0.0, 20.0]).any()
    told = ", ".join(
        f"{' '.join(map(_crossing, places)) or 'never'} at lr {rate:g}"
        for rate, places in found.items()
    )
    why = f"S = 0 and 20 change places: {told}; judged at lr {best[30.0]:g}; {words}"
    measured = {str(rate): [each._asdict() for each in places] for rate, places in found.items()}
    second = setup.settle(arguments, size, 16, measured, crossed if is_known else None, why)
    accuracies = setup.final(swept, time).mean("seed", skipna=False)
    falls = {rate: 100 * accuracies.sel(lr=rate).values for rate in lrs}
    rate = setup.best_lr(setup.final(swept, time).sel(exchange_shift=SWEPT_DELAYS[0]))
    numbers = "; ".join(
        f"{', '.join(f'{x:.1f}' for x in values)} at lr {each:g}" for each, values in falls.items()
    )
    last = setup.settle(
        arguments,
        size,
        22,
        {str(each): values.tolist() for each, values in falls.items()},
        bool(np.all(np.diff(falls[rate]) < 0)) if np.isfinite(falls[rate]).all() else None,
        f"% at T for c_g = 5, 10, 30, 60: {numbers}; judged at lr {rate:g}; {words}",
    )
    return [first, second, last]


def run(arguments: Arguments) -> Outcome:
    """Run both sweeps, and judge the claims, claim 17 by the number of rounds alone."""
    size = setup.choose(arguments, STUDY)
    tasks = setup.dirichlet(setup.load(arguments, size), size, 30)
    changes = setup.clock([15, 15], setup.FIG7)
    data = setup.play(
        arguments, size, "fig7", tasks, changes, {"exchange_shift": DELAYS, "sync_time": SYNC_TIMES}
    )
    swept = setup.play(
        arguments,
        size,
        "fig12",
        tasks,
        changes | {"sync_time": 10.0},
        {"exchange_shift": SWEPT_DELAYS},
    )
    verdicts = judge(arguments, size, data, swept)
    savings = {delay: saving(data, delay) for delay in DELAYS}
    expected = {}
    for delay in DELAYS:
        law = linear_delays([15, 15], setup.FIG7)._replace(global_shift=delay)
        flat, long = (expected_rounds(s, law, system_time=1000.0) for s in (0.0, 20.0))
        expected[delay] = 100 * (1 - long / flat)
    told = " and ".join(
        f"{savings[delay]:.1f} % with c_g = {delay:g} (expected at T = 1000: {expected[delay]:.1f})"
        for delay in DELAYS
    )
    measured = {str(delay): value for delay, value in savings.items()}
    saves = CLAIMS[17].criterion.least <= savings[30.0] <= CLAIMS[17].criterion.most
    verdicts.append(
        setup.settle(arguments, size, 17, measured, saves, f"{told}; judged at c_g = 30")
    )
    figures: dict[str, Figure] = {}
    for delay in DELAYS:
        of_delay = data.sel(exchange_shift=delay)
        lr = setup.best_lr(setup.final(of_delay, size.time).sel(sync_time=0.0))
        shown = setup.each_setting(of_delay, "sync_time", lr, "S")
        figures |= setup.pictures(
            shown, f"fig7_cg{delay:g}", f"{setup.words_of(size)}, c_g = {delay:g}, lr {lr:g}"
        )
    lr = setup.best_lr(setup.final(swept, size.time).sel(exchange_shift=SWEPT_DELAYS[0]))
    figures |= setup.pictures(
        setup.each_setting(swept, "exchange_shift", lr, "c_g"),
        "fig12",
        f"{setup.words_of(size)}, S = 10, lr {lr:g}",
    )
    curves = {"fig7": data, "fig12": swept}
    return setup.outcome(size, curves, figures, verdicts)
