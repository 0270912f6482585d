"""Verdicts on rules that choose clients, and the table that is printed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import harness
from experiments.harness import Interval, Sample, Verdict, interval, lead, rule
from experiments.selection.claims import CLAIMS, OF_IMAGES

RANDOM = {
    "Power-of-Choice": "FedAvg",
    "Oort": "FedAvg",
    "TiFL": "FedAvg",
    "FedCS": "FedAvg",
    "FedAT": "FedAvg",
    "Pisces": "FedBuff",
}
"""The system that chooses at random with which each one is compared."""
SMOKE = "a smoke run, which is no evidence"


class Measured:
    """What was measured, by system; see `judge`."""

    def __init__(self, inputs: Mapping[str, Any]):
        """Read it."""
        self.samples = {
            key: {name: Sample.read(each) for name, each in inputs[key].items()}
            for key in ("ends", "times", "first times", "rounds")
        }
        self.ends, self.times = self.samples["ends"], self.samples["times"]
        self.missed: Mapping[str, int] = inputs["missed"]
        self.chance = float(inputs["chance"])

    def ratio(self, base: str, other: str, of: str = "times") -> Interval:
        """Return the logarithm of how many times as much the first one needs."""
        return interval(self.logarithms(base, other, of))

    def logarithms(self, base: str, other: str, of: str) -> np.ndarray:
        """Return the same of each seed."""
        found = self.samples[of]
        values = [np.asarray(found[name].values, float) for name in (base, other)]
        return np.log(np.maximum(values[0], 1)) - np.log(np.maximum(values[1], 1))

    def more(self, base: str, other: str, of: str = "times", ratio: float = 1.0) -> bool | None:
        """Whether the first one needs more than `ratio` times as much as the other.

        Runs that do not reach the target would need more than they count with. So nothing is found
        true if the other one has some, and nothing false if the first one has.
        """
        found = self.ratio(base, other, of).above(np.log(ratio))
        is_open = found is not None and self.missed[other if found else base] > 0
        return None if is_open else found


def spelled(ratio: Interval) -> str:
    """Write the exponential of an interval of logarithms."""
    if not np.isfinite(ratio.half):
        return f"{np.exp(ratio.mean):.2f}"
    low, high = (np.exp(ratio.mean + sign * ratio.half) for sign in (-1, 1))
    return f"{np.exp(ratio.mean):.2f} ({low:.2f} to {high:.2f})"


Judged = tuple[dict[str, Any], dict[str, bool | None], str]
"""Measured numbers, the parts of a claim, and the numbers in words."""


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge all claims on images, or all on speakers, as far as their systems were run.

    The inputs are those of `rules.run`, of which "first claim" is the number of the first
    claim.
    """
    first = inputs.get("first claim", 1)
    if inputs["smoke"]:
        numbers = range(first, first + len(OF_IMAGES))
        return [CLAIMS.verdict(number, None, harness.NOT_RUN, SMOKE) for number in numbers]
    found = Measured(inputs)
    choosing = "FedAvg", "Power-of-Choice"
    made: dict[int, Judged] = {
        1: _faster(found, ("FedAvg", "Oort"), ratio=CLAIMS[1].criterion.ratio),
        2: _shorter_rounds(found),
        3: _fewer_rounds(found),
        4: _gains_less(found, (*choosing, "rounds"), (*choosing, "first times")),
        5: _faster(found, ("FedAvg", "TiFL")),
        6: _faster(found, ("FedAvg", "FedCS")),
        7: _end(found),
        11: _not_waiting(found),
    }
    if "Pisces" in found.times:
        made[8] = _faster(found, ("FedBuff", "Pisces"))
        made[9] = _gains_less(found, ("FedAvg", "Oort", "times"), ("FedBuff", "Pisces", "times"))
    if "FedAT" in found.times:
        made[10] = _faster(found, ("FedAvg", "FedAT"))
    seeds = found.ends["FedAvg"].seeds
    words = harness.reduction(seeds, inputs["reduced"])
    where = f"; {inputs['dataset']}, {seeds} seeds"
    return [
        CLAIMS.verdict(
            first - 1 + number, {**measured, "parts": parts}, rule(parts, words), why + where
        )
        for number, (measured, parts, why) in sorted(made.items())
    ]


def _faster(found: Measured, *pairs: tuple[str, str], ratio: float = 1.0) -> Judged:
    """Judge whether the second of each pair reaches the target that many times as fast."""
    ratios = {f"{base} / {other}": found.ratio(base, other) for base, other in pairs}
    parts = {
        f"{other} before {base}": found.more(base, other, ratio=ratio) for base, other in pairs
    }
    words = ", ".join(f"{name} {spelled(each)}" for name, each in ratios.items())
    return {"log ratio of times": ratios}, parts, f"ratio of times: {words}{_missed(found, *pairs)}"


def _missed(found: Measured, *pairs: tuple[str, ...]) -> str:
    """Say how many runs did not reach the target, if any."""
    names = dict.fromkeys(name for pair in pairs for name in pair[:2])
    told = [f"{found.missed[name]} of {name}" for name in names if found.missed[name]]
    return f"; not reached by {', '.join(told)}" if told else ""


def _shorter_rounds(found: Measured) -> Judged:
    pair = "FedAvg", "Oort"
    more = found.more(*pair, "rounds", CLAIMS[2].criterion.rounds)
    parts = {"earlier": found.more(*pair), "no fewer rounds": None if more is None else not more}
    ratios = {of: found.ratio(*pair, of) for of in ("times", "rounds")}
    words = ", ".join(f"{name} {spelled(each)}" for name, each in ratios.items())
    return {"log ratio": ratios}, parts, f"FedAvg / Oort: {words}{_missed(found, pair)}"


def _fewer_rounds(found: Measured) -> Judged:
    pair = "FedAvg", "Power-of-Choice"
    ratio = found.ratio(*pair, "rounds")
    part = found.more(*pair, "rounds", CLAIMS[3].criterion.ratio)
    why = f"ratio of rounds: {spelled(ratio)}{_missed(found, pair)}"
    return {"log ratio of rounds": ratio}, {"fewer rounds": part}, why


def _gains_less(found: Measured, more: tuple[str, str, str], less: tuple[str, str, str]) -> Judged:
    """Judge whether one ratio is larger than another.

    As in `Measured.more`, nothing is found true if a run that would make the gap smaller has not
    reached the target, and nothing false if one has not that would make it larger.
    """
    gap = interval(found.logarithms(*more) - found.logarithms(*less))
    larger = gap.above()
    against = (more[1], less[0]) if larger else (more[0], less[1])
    is_open = larger is not None and any(found.missed[name] for name in against)
    told = [
        f"{base} / {other} in {of} {spelled(found.ratio(base, other, of))}"
        for base, other, of in (more, less)
    ]
    why = f"{', '.join(told)}; their ratio {spelled(gap)}{_missed(found, more, less)}"
    return {"log ratio of both": gap}, {"larger": None if is_open else larger}, why


def _end(found: Measured) -> Judged:
    pair = found.ends["FedAvg"], found.ends["FedCS"]
    ahead = lead(*pair)
    part = harness.unless_collapsed(ahead.above(CLAIMS[7].criterion.lead), pair, found.chance)
    return {"lead": ahead}, {"FedAvg above FedCS": part}, f"lead of FedAvg over FedCS: {ahead}"


def _not_waiting(found: Measured) -> Judged:
    waiting = [name for name, base in RANDOM.items() if base == "FedAvg" and name != "FedAT"]
    return _faster(found, *((name, "FedBuff") for name in waiting))


def told(inputs: Mapping[str, Any], chosen: Mapping[str, Mapping[str, float]]) -> str:
    """Lay out one row for each system, and the verdicts."""
    found = Measured(inputs)
    rows = []
    for name, end in found.ends.items():
        base = RANDOM.get(name, "")
        against = ["", "", ""]
        if base in found.ends:
            against = [
                f"{lead(end, found.ends[base])}",
                f"{lead(found.times[name], found.times[base]).mean:+.0f} ± "
                f"{lead(found.times[name], found.times[base]).half:.0f}",
                spelled(found.ratio(base, name)),
            ]
        rows.append(
            [
                name,
                " / ".join(f"{value:g}" for value in chosen[name].values()),
                _cell(end, 1),
                against[0],
                _cell(found.times[name], 0),
                *against[1:],
                _cell(found.samples["rounds"][name], 0),
                found.missed[name],
                f"{inputs['server steps'][name]:.0f}",
            ]
        )
    header = ["system", "rates", "end (%)", "points", "time to target", "difference"]
    header += ["times as fast", "rounds to target", "not reached", "server steps"]
    words = (
        f"Target {inputs['target']:.1f} %, budget {inputs['budget']:g}; means over seeds with 95 % "
        "intervals; points, difference and ratio are against the same clock with random clients"
    )
    return f"{words}\n\n{harness.table(header, rows)}"


def _cell(sample: Sample, digits: int) -> str:
    mean, half = sample.interval()
    cell = f"{mean:.{digits}f}"
    return f"{cell} ± {half:.{digits}f}" if np.isfinite(half) else cell
