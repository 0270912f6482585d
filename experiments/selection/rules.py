"""Rules that choose clients, where the server waits and where it does not, in virtual time.

Every system has a live clock, so that runs of a seed have the same clients: the same data and the
same speeds. FedAvg and FedBuff, which choose at random, are put on live clocks here; their rules
are those of the planned systems. All have the same budget of virtual time. Rates are chosen on
held-out training data by the accuracy at its end, with seeds that are used for nothing else.

Clients have images, or with `--dataset tiny_shakespeare` (or another play, a `.txt` file) their own
speeches: a client is a speaker. `--smoke` then runs on a made-up play.

Accuracy is read at 100 moments of equal distance, each time of the newest model that was evaluated,
and averaged over the last five. The time to the target is the first moment at which that average
reaches it. A run that does not reach it counts with the whole budget and its rounds (censored).

Rounds to the target are those of the first evaluation that reaches it, without an average: one over
time has more rounds of a system whose rounds are short.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.selection.claims import OF_TARGET, ON_SPEAKERS
from experiments.selection.tasks import Window, of_images, of_speakers
from experiments.selection.verdicts import judge, told
from fedjax_sim import datasets, models, streams, studies
from fedjax_sim.core.types import Key, System
from fedjax_sim.results import plots
from fedjax_sim.results.summaries import first_reach
from fedjax_sim.studies import Tuned
from fedjax_sim.systems import fedat, fedavg, fedbuff, fedcs, oort, pisces, powerofchoice, tifl
from fedjax_sim.timelines import live
from fedjax_sim.timelines.live import Asked, Choosing, Live, Selector
from fedjax_sim.timelines.live import Sizes as SlotSizes

FIRST_TUNING_SEED = 1000
"""Seeds of tuning are counted from here, and those of the results from 0."""
MOMENTS = 100
"""Moments of the budget at which accuracy is read."""
AVERAGED = 5
"""Moments over which it is averaged."""
SHARED: dict[str, Any] = {"local_steps": 10, "rate_spread": 1.0}
"""Settings of all systems: log-normal speeds, exponential times of local steps."""
NAMES = ("FedAvg", "Power-of-Choice", "Oort", "TiFL", "FedCS", "FedBuff", "Pisces", "FedAT")
MEASURED = ("ends", "times", "first times", "rounds", "missed", "server steps")
"""What is measured of each system; see `judge`."""
RATES = (0.1, 0.3, 1.0)
"""The grid of the learning rate of local steps."""
SERVER_RATES = (0.3, 1.0)
"""The grid of the server learning rate of FedBuff and Pisces."""

STUDY = Study(
    full=Sizes(
        10,
        dataset="fashion_mnist",
        side=7,
        clients=100,
        heard=10,
        at_work=20,
        budget=6000.0,
        alpha=0.3,
        batch=32,
        evals=400,
        tuning_seeds=2,
        rates=RATES,
        server_rates=SERVER_RATES,
        systems=NAMES,
        network=partial(models.MLP, (32,)),
    ),
    smoke=Sizes(
        2,
        dataset="digits",
        side=4,
        clients=20,
        heard=4,
        at_work=8,
        budget=200.0,
        alpha=0.3,
        batch=32,
        evals=400,
        tuning_seeds=1,
        rates=RATES[1:2],
        server_rates=SERVER_RATES[1:],
        systems=("FedAvg", "Oort"),
        network=partial(models.MLP, (8,)),
        words="handwritten digits, 20 clients, two systems",
    ),
)
SPEAKERS = Study(
    full=Sizes(
        10,
        dataset="tiny_shakespeare",
        clients=100,
        heard=10,
        at_work=20,
        budget=6000.0,
        batch=2,
        evals=200,
        tuning_seeds=2,
        rates=(1.0, 3.0, 9.0),
        server_rates=SERVER_RATES,
        systems=NAMES,
        network=Window,
    ),
    smoke=Sizes(
        2,
        dataset="a made-up play",
        clients=20,
        heard=4,
        at_work=8,
        budget=200.0,
        batch=2,
        evals=200,
        tuning_seeds=1,
        rates=(1.0,),
        server_rates=SERVER_RATES[1:],
        systems=("FedAvg", "Oort"),
        network=partial(Window, hidden=8),
        words="a made-up play, 20 speakers, two systems",
    ),
)
"""The same of plays. Clients, reports, clocks and the budget are those of `STUDY`.

Evaluations are fewer than on images (`evals`, at most), because each takes longer. Pisces may act
on single reports, and may make as many server steps as there.
"""


class Method(NamedTuple):
    """A system with its settings that are not tuned, and the grid of those that are.

    It is evaluated after `every` server steps, fewer than 1 % of a run's.
    """

    system: System
    hyper: Any
    every: int
    grid: Mapping[str, Sequence[float]]


def at_random(key: Key, now: Choosing) -> Asked:
    """Choose a uniform cohort."""
    hyper: Any = now.devices.hyper
    round_key = jax.random.fold_in(streams.stream(key, "choice"), now.round.number)
    order = jax.random.permutation(round_key, hyper.num_clients).astype("int32")
    return Asked(order[: hyper.num_selected])


WAITING = live.with_clock(
    fedavg.system,
    Live(
        lambda hyper: SlotSizes(hyper.num_selected, hyper.local_steps),
        lambda problem, hyper: live.live_rounds(
            hyper, Selector(at_random), num_used=hyper.num_selected
        ),
    ),
    name="live_fedavg",
)
"""FedAvg on a live clock, with equal weights for all reports."""
BUFFERED = live.with_clock(
    fedbuff.system,
    Live(
        lambda hyper: SlotSizes(hyper.buffer_size, hyper.local_steps, hyper.concurrency),
        lambda problem, hyper: live.live_tasks(
            hyper, num_tasks=hyper.concurrency, num_used=hyper.buffer_size
        ),
    ),
    name="live_fedbuff",
)
"""FedBuff on a live clock, with equal weights for all reports."""


def methods(sizes: Any) -> dict[str, Method]:
    """List the systems by name.

    Power-of-Choice and FedCS have twice as many candidates as they would hear. TiFL measures
    everyone once before learning, which takes its time. Pisces keeps its own pace. All else has
    the systems' defaults.
    """
    shared = {**SHARED, "num_clients": sizes.clients, "batch_size": sizes.batch}
    heard = sizes.heard
    cohort, at_work = {**shared, "num_selected": heard}, {"concurrency": sizes.at_work}
    local = {"lr": sizes.rates}
    both = {**local, "server_lr": sizes.server_rates}
    choosing = powerofchoice.Hyper(**shared, num_selected=2 * heard, num_chosen=heard)
    fast: Any = fedcs.Hyper(**cohort)
    tiers: Any = tifl.Hyper(**cohort)
    buffered = fedbuff.Hyper(**shared, **at_work, buffer_size=heard)
    found = {
        "FedAvg": Method(WAITING, fedavg.Hyper(**cohort), 1, local),
        "Power-of-Choice": Method(powerofchoice.system, choosing, 1, local),
        "Oort": Method(oort.system, oort.Hyper(**cohort), 3, local),
        "TiFL": Method(tifl.system, tiers.replace(profile_rounds=1), 1, local),
        "FedCS": Method(fedcs.system, fast.replace(num_candidates=2 * heard), 4, local),
        "FedBuff": Method(BUFFERED, buffered, 6, both),
        "Pisces": Method(
            pisces.system, pisces.Hyper(**shared, **at_work), 2400 // sizes.evals, both
        ),
        "FedAT": Method(fedat.system, fedat.Hyper(**cohort), 15, local),
    }
    return {name: found[name] for name in sizes.systems}


def run(arguments: Arguments) -> Outcome:
    """Tune all systems, run them for the same virtual time, judge, and draw."""
    is_play = datasets.is_text(arguments.dataset or "")
    sizes = (SPEAKERS if is_play else STUDY).choose(arguments)
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    task = (of_speakers if is_play else of_images)(sizes, arguments, seeds)
    tuned: dict[str, Tuned] = {}
    curves: dict[str, xr.Dataset] = {}
    found: dict[str, xr.Dataset] = {}
    for name, method in methods(sizes).items():
        on = partial(_sweep, name, method, sizes, arguments)
        scores = read(on("tuning", task.tuning, seeds, {}, method.grid), sizes.budget).accuracy
        tuned[name] = studies.choose(scores.isel(moment=-1, drop=True))
        curves[name] = on("test", task.test, range(sizes.seeds), tuned[name].choice, None)
        found[name] = read(curves[name], sizes.budget)
    # The target follows from tuning alone.
    target = OF_TARGET * float(tuned["FedAvg"].scores.mean("seed").max())
    inputs = {
        **{name: {} for name in MEASURED},
        "target": 100 * target,
        "budget": sizes.budget,
        "chance": task.chance,
        "dataset": task.name,
        "first claim": 1 + ON_SPEAKERS if is_play else 1,
        "reduced": sizes.words,
        "smoke": arguments.smoke,
    }
    for name, each in curves.items():
        for key, value in measure(each, sizes.budget, target).items():
            inputs[key][name] = value
    facts = {
        **{name: value for name, value in sizes.config().items() if name != "network"},
        "dataset": task.name,
        "chosen": {name: each.choice for name, each in tuned.items()},
        "at the edge": {name: each.at_edge for name, each in tuned.items()},
    }
    verdicts = judge(inputs)
    figures = {"curves.png": picture(found, target, task.title)}
    text, panel = told(inputs, facts["chosen"]), task.name if is_play else ""
    return Outcome(curves, figures, verdicts, facts, text, inputs, panel)


def _sweep(
    name: str,
    method: Method,
    sizes: Sizes,
    arguments: Arguments,
    what: str,
    of_seeds: Any,
    seeds: Sequence[int],
    choice: Mapping[str, float],
    swept: Mapping[str, Sequence[float]] | None,
) -> xr.Dataset:
    """Run lanes one after another for the budget of time, and check that it was enough."""
    full = f"{name}, {what}"
    curves = fedjax_sim.sweep(
        method.system,
        of_seeds,
        method.hyper.replace(**choice),
        seeds=seeds,
        settings=swept,
        budget=fedjax_sim.Time(sizes.budget, most_ticks=sizes.evals * method.every),
        num_evals=sizes.evals,
        layout=fedjax_sim.Layout(lanes_at_once=False),
        watch=fedjax_sim.Watch(progress=True),
        **arguments.kept(full),
    ).curves
    too_short = (curves.ended != "budget") & ~curves.failed
    assert not too_short.any(), f"{full}: some runs ended before the budget"
    return curves


def read(curves: xr.Dataset, budget: float) -> xr.Dataset:
    """Read accuracy and server steps at equal distances of virtual time, the dimension `moment`.

    Accuracy is averaged over the last moments, and 0 where a run diverged.
    """
    moments = np.linspace(0, budget, MOMENTS + 1)

    def at_moments(time: np.ndarray, values: np.ndarray) -> np.ndarray:
        return values[np.searchsorted(time, moments, side="right") - 1]

    def along(values: xr.DataArray) -> xr.DataArray:
        dims: Any = {"input_core_dims": [["eval"], ["eval"]], "output_core_dims": [["moment"]]}
        found = xr.apply_ufunc(at_moments, curves.time, values, vectorize=True, **dims)
        return found.transpose(..., "moment").assign_coords(moment=moments)

    accuracy = along(curves.accuracy.where(~curves.failed, 0.0))
    accuracy = accuracy.rolling(moment=AVERAGED, min_periods=1).mean()
    return xr.Dataset({"accuracy": accuracy, "ticks": along(curves.ticks)})


def measure(curves: xr.Dataset, budget: float, target: float) -> dict[str, Any]:
    """Return a system's part of the inputs of `judge`, from its curves."""
    found = read(curves, budget)
    is_there = found.accuracy >= target
    reached = is_there.any("moment")
    place = is_there.argmax("moment").where(reached, MOMENTS).astype(int)
    within = curves.assign(accuracy=curves.accuracy.where(curves.time <= budget))
    first = {axis: first_reach(within, target, axis=axis).values for axis in ("time", "ticks")}
    last = found.ticks.isel(moment=-1).values
    return {
        "ends": Sample.of(100 * found.accuracy.isel(moment=-1).values.astype(float)),
        "times": Sample.of(found.moment.values[place.values]),
        "first times": Sample.of(np.minimum(first["time"], budget)),
        "rounds": Sample.of(np.minimum(first["ticks"], last)),
        "missed": int((~reached).sum()),
        "server steps": float(last.mean()),
    }


@plots.styled()
def picture(found: Mapping[str, xr.Dataset], target: float, title: str) -> Figure:
    """Draw the mean accuracy against virtual time, synchronous systems and others."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for number, (name, each) in enumerate(found.items()):
        does_wait = name not in ("FedBuff", "Pisces", "FedAT")
        look = plots.look(number, "some", points=MOMENTS, label=name)
        mean = 100 * each.accuracy.mean("seed")
        panels[0 if does_wait else 1].plot(each.moment, mean, **look)
    for axes, words in zip(panels, ("the server waits", "it does not"), strict=True):
        axes.axhline(100 * target, color=plots.FACE, linewidth=0.8, label="target")
        axes.set(title=words, xlabel="virtual time")
        axes.legend(fontsize=7, loc="lower right")
    panels[0].set_ylabel("test accuracy (%)")
    figure.suptitle(f"{title}\nmeans over seeds")
    return figure
