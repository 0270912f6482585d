"""Hierarchical FL's clock alone: iterations, rounds, a sample path (claims 1 to 3, 17, 27).

See arXiv 2302.04851, Secs. II and IV. Expected values come from
`fedjax_sim.theory.hierarchical`, for every delay setting that the paper prints. Nothing is trained.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, draw
from experiments.hierarchical import setup
from experiments.hierarchical.claims import CLAIMS, verdict
from experiments.hierarchical.formulas.delays import linear_delays
from fedjax_sim.core.types import Timeline
from fedjax_sim.results import plots
from fedjax_sim.systems import hierarchical
from fedjax_sim.theory import hierarchical as theory

TIE = 1e-9

STUDY = Study(full=Sizes(seeds=400), smoke=Sizes(seeds=40))
"""Seeds are lanes."""


class DelaySetup(NamedTuple):
    """Groups with their delays, and the sync times that the paper runs them with."""

    sizes: tuple[int, ...]
    coefficients: tuple[float, ...]
    sync_times: tuple[float, ...]
    global_shift: float | None = None

    @property
    def delays(self) -> theory.Delays:
        """The delays of the groups and of exchanges."""
        law = linear_delays(self.sizes, self.coefficients)
        return law if self.global_shift is None else law._replace(global_shift=self.global_shift)

    def hypers(self) -> list[Any]:
        """Return the system's settings for each sync time."""
        changes = setup.clock(
            self.sizes,
            self.coefficients,
            exchange_shift=self.delays.global_shift,
            num_clients=len(self.sizes),
        )
        return [hierarchical.paper(**{**changes, "sync_time": s}) for s in self.sync_times]


PRINTED = "Fig. 8 as printed"
SETTINGS = {
    "Fig. 3": DelaySetup((10, 10), setup.FIG3, (0, 5)),
    "Fig. 6": DelaySetup((500, 500), setup.FIG6, (0, 5, 10, 20)),
    "Fig. 7a": DelaySetup((15, 15), setup.FIG7, (0, 5, 20)),
    "Fig. 7b": DelaySetup((15, 15), setup.FIG7, (0, 5, 20), 30.0),
    PRINTED: DelaySetup((850,) * 4, setup.FIG8, (0, 12, 24)),
    "Fig. 8, 16 a group": DelaySetup((16,) * 4, setup.FIG8, (0, 12, 24)),
    "Fig. 9, M = 2": DelaySetup((32,) * 2, setup.FIG9, (0, 6)),
    "Fig. 9, M = 4": DelaySetup((16,) * 4, setup.FIG9, (0, 6)),
    "Fig. 9, M = 8": DelaySetup((8,) * 8, setup.FIG9, (0, 6)),
    "Fig. 11, 20 + 20": DelaySetup((20, 20), setup.FIG11, (0, 12)),
    "Fig. 11, 30 + 10": DelaySetup((30, 10), setup.FIG11, (0, 12)),
}
SYSTEM_TIME = 1000.0
MOST_ROUNDS = 220
"""Rounds drawn per lane. By T = 1000 there are 158 of the shortest rounds on average."""


class Found(NamedTuple):
    """What the schedules of one setting and sync time gave, over lanes and rounds."""

    deviation: float  # the largest of iterations and round times, in standard errors
    rounds: float  # mean U
    rounds_error: float
    rounds_expected: float
    by_group: list[list[int]]  # least, most and allowed iterations


def compare(schedule: Timeline, setting: DelaySetup, sync_time: float) -> Found:
    """Compare schedules, with leaves `[lanes, T, ...]`, with the closed forms."""
    delays = setting.delays
    laws = [
        {"shift": float(c), "mean_exp": float(m)}
        for c, m in zip(delays.shift, delays.mean_exp, strict=True)
    ]
    length = np.diff(schedule.time, axis=1, prepend=0.0).ravel()
    steps = schedule.steps.reshape(-1, schedule.steps.shape[-1]).astype(float)
    expected = theory.round_time(sync_time, delays)

    def far(values: np.ndarray, mean: float) -> float:
        error = max(values.std(ddof=1) / np.sqrt(len(values)), 1 / len(values))
        return float(abs(values.mean() - mean) / error)

    deviations = [
        far(steps[:, i], theory.expected_iterations(sync_time, **law)) for i, law in enumerate(laws)
    ]
    deviations += [far(length, expected.mean), far((length - expected.mean) ** 2, expected.std**2)]
    rounds = harness.estimate((schedule.time < SYSTEM_TIME).sum(axis=1) + 1)
    by_group = [
        [int(of_group.min()), int(of_group.max()), int(theory.max_iterations(sync_time, shift))]
        for of_group, shift in zip(steps.T, map(float, delays.shift), strict=True)
    ]
    most = theory.expected_rounds(sync_time, delays, system_time=SYSTEM_TIME)
    off = float(np.max(deviations))
    return Found(off, float(rounds.mean), float(rounds.error), most, by_group)


def relative_rounds(schedule: Timeline, baseline: Timeline) -> tuple[float, float]:
    """Return the number of rounds in a long time for one round of the baseline, and its error.

    Pairs of rounds with the same seeds are independent, so that the error is that of a ratio of
    means.
    """
    times, other = (
        np.diff(each.time, axis=1, prepend=0.0).ravel() for each in (schedule, baseline)
    )
    ratio = float(other.mean() / times.mean())
    return ratio, float((other - ratio * times).std(ddof=1) / np.sqrt(times.size) / times.mean())


def is_monotone(schedules: Sequence[Timeline]) -> bool:
    """Return whether iterations grow and rounds by any time fall from one S to the next larger."""
    pairs = itertools.pairwise(schedules)
    return all(
        bool(np.all(b.steps >= a.steps) and np.all(b.time >= a.time - TIE)) for a, b in pairs
    )


def judge_rounds(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 1 from the numbers of all settings."""
    off, share_off = measured["largest_deviation"], measured["largest_deviation of ratios"]
    marks = CLAIMS[1].criterion
    far = [
        abs(rounds - measured["rounds_expected"][name]) - marks.far * measured["rounds_error"][name]
        for name, rounds in measured["rounds"].items()
    ]
    near = max(far) < marks.rounds
    holds = off < marks.far and share_off < marks.far and near
    why = (
        f"iterations, mean and variance of round times at most {off:.1f} standard errors off, "
        f"rounds {'' if near else 'not '}within {marks.rounds:g} more than {marks.far:g} of them, "
        f"rounds for one of S = 0 at most {share_off:.1f} standard errors off"
    )
    return verdict(1, measured, harness.unless_unknown(holds, measured), why)


@plots.styled()
def sample_path() -> Figure:
    """Draw the paper's Fig. 2: iterations, waiting and exchanges of two groups in three rounds."""
    delays = theory.Delays(np.array([0.8, 1.5]), np.array([0.25, 0.4]), 1.2, 0.3)
    random = np.random.default_rng(4)
    figure = Figure(figsize=(10, 2.6))
    axes = figure.subplots()
    begin, sync_time = 0.0, 5.0
    edge: dict[str, Any] = {"edgecolor": "white"}
    for _ in range(3):
        ends = []
        for i in range(2):
            at = 0.0
            while at < sync_time:
                step = delays.shift[i] + random.exponential(delays.mean_exp[i])
                axes.barh(
                    i, step, 0.5, begin + at, label="local iteration", color=plots.COLORS[0], **edge
                )
                at += step
            ends.append(at)
        longest = max(ends)
        for i, end in enumerate(ends):
            axes.barh(i, longest - end, 0.5, begin + end, label="waiting", color="#DDDDDD")
        at = begin + sync_time
        axes.plot([at, at], [-0.5, 1.5], "k:", label="S after the beginning")
        exchange = delays.global_shift + random.exponential(delays.global_mean_exp)
        style = {"color": plots.COLORS[1], "hatch": plots.HATCHES[1], "label": "exchange"} | edge
        axes.barh([0, 1], exchange, 0.5, begin + longest, **style)
        begin += longest + exchange
    axes.set(
        yticks=[0, 1],
        yticklabels=["group 1", "group 2"],
        xlabel=plots.LABELS["time"],
        xlim=(0, begin),
        title="Three rounds",
    )
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    plots.name_beside(figure, axes, handles=[*once.values()], labels=[*once])
    return figure


JUDGES: Judges = {1: judge_rounds, **CLAIMS.declared(2, 3, 17, 27)}


def run(arguments: Arguments) -> Outcome:
    """Draw schedules of every setting, compare them and judge the claims."""
    lanes = STUDY.choose(arguments, least_seeds=2).seeds
    found, shares, share_off, monotone = {}, {}, [], True
    same = False
    for name, setting in SETTINGS.items():
        # One by one, so that settings with equal numbers of groups share a program.
        schedules = [
            Timeline(*(leaf[0] for leaf in draw(hierarchical.system, [hyper], lanes, MOST_ROUNDS)))
            for hyper in setting.hypers()
        ]
        monotone &= is_monotone(schedules)
        if name == PRINTED:
            same = all(
                np.array_equal(each.steps, schedules[0].steps)
                and np.array_equal(each.time, schedules[0].time)
                for each in schedules
            )
        baseline = theory.round_time(0.0, setting.delays).mean
        for schedule, sync_time in zip(schedules, setting.sync_times, strict=True):
            each = compare(schedule, setting, sync_time)
            found[f"{name}, S = {sync_time:g}"] = each
            ratio, error = relative_rounds(schedule, schedules[0])
            expected = baseline / theory.round_time(sync_time, setting.delays).mean
            shares[f"{name}, S = {sync_time:g}"] = ratio
            # If no second iteration fits in S, the rounds are the baseline's to the bit.
            share_off.append(abs(ratio - expected) / max(error, TIE))
    saved = {
        panel: 100 * (1 - found[f"{panel}, S = 20"].rounds / found[f"{panel}, S = 0"].rounds)
        for panel in ("Fig. 7a", "Fig. 7b")
    }
    of_rounds = {
        "largest_deviation": np.max([each.deviation for each in found.values()]),
        "rounds": {name: each.rounds for name, each in found.items()},
        "rounds_error": {name: each.rounds_error for name, each in found.items()},
        "rounds_expected": {name: each.rounds_expected for name, each in found.items()},
        "rounds for one of S = 0": shares,
        "largest_deviation of ratios": np.max(share_off),
    }
    measured = {
        1: of_rounds,
        2: {name: each.by_group for name, each in found.items()},
        3: {"monotone": monotone},
        17: saved,
        27: {"same rounds": same},
    }
    verdicts = harness.judge_all(JUDGES, measured)
    return Outcome({}, {"sample_path.png": sample_path()}, verdicts, {"lanes": lanes})
