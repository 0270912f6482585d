"""Verdicts on robust rules, and the tables and sentences that are printed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import harness
from experiments.harness import Interval, Sample, Verdict, difference, lead, rule
from experiments.robustness.claims import CLAIMS, SHARE

SHARES = (0.1, 0.2, 0.3)
"""Shares of malicious clients."""
WAITING, BUFFERED = "FedAvg", "FedBuff"
SMOKE = "a smoke run, which is no evidence"


class Ends:
    """The final accuracies by system, rule, attack and share."""

    def __init__(self, inputs: Mapping[str, Any]):
        """Read them; see `judge`."""
        self._ends, self._own = inputs["ends"], inputs["own"]
        self.chance = float(inputs["chance"])
        self.systems = tuple(self._ends)
        self.rules = tuple(self._ends[WAITING])
        self.attacks = tuple(name for name in self._ends[WAITING]["mean"] if name != "none")

    def clean(self, system: str, rule: str) -> Sample:
        """Return the accuracies without an attack."""
        return Sample.read(self._ends[system][rule]["none"])

    def under(self, system: str, rule: str, attack: str, share: float) -> Sample:
        """Return the accuracies under an attack."""
        return Sample.read(self._ends[system][rule][attack][f"{share:.0%}"])

    def own(self, system: str, rule: str, attack: str) -> Sample:
        """Return the accuracies under an attack at rates chosen under it."""
        return Sample.read(self._own[system][rule][attack])

    def mean_under(self, system: str, rule: str, share: float) -> Sample:
        """Return each seed's accuracy, averaged over the attacks."""
        return _mean([self.under(system, rule, attack, share) for attack in self.attacks])

    def mean_own(self, system: str, rule: str) -> Sample:
        """Return the same at rates chosen under each attack."""
        return _mean([self.own(system, rule, attack) for attack in self.attacks])

    def added(self, rule: str, share: float) -> Interval:
        """Return how many more points attackers cost in FedBuff than in FedAvg."""
        pairs = [
            (self.clean(system, rule), self.mean_under(system, rule, share))
            for system in (BUFFERED, WAITING)
        ]
        return difference(*pairs)


def _mean(samples: Sequence[Sample]) -> Sample:
    return Sample.of(np.mean([np.asarray(each.values, float) for each in samples], axis=0))


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge all claims on the final accuracies in percent, by system, rule, attack and share.

    Of "none" as attack there is no share, and "own" are those at rates chosen under an attack.
    """
    if inputs["smoke"]:
        return [CLAIMS.verdict(number, None, harness.NOT_RUN, SMOKE) for number in CLAIMS]
    ends = Ends(inputs)
    found = {
        1: _noise(ends),
        2: _price_of_krum(ends),
        3: _stronger_attack(ends),
        4: _inner_product(ends),
        5: _no_best_rule(ends),
        6: _staleness(ends),
        7: _rates(ends),
    }
    seeds = ends.clean(WAITING, "mean").seeds
    words = harness.reduction(seeds, inputs["reduced"])
    where = f"; {inputs['dataset']}, {seeds} seeds"
    return [
        CLAIMS.verdict(number, {**measured, "parts": parts}, rule(parts, words), why + where)
        for number, (measured, parts, why) in found.items()
    ]


Judged = tuple[dict[str, Any], dict[str, bool | None], str]
"""Measured numbers, the parts of a claim, and the numbers in words."""


def _losses(ends: Ends, attack: str, share: float, rules: Sequence[str]) -> dict[str, Interval]:
    """Return the points lost to an attack, by "RULE (SYSTEM)"."""
    return {
        f"{name} ({system})": lead(
            ends.clean(system, name), ends.under(system, name, attack, share)
        )
        for system in ends.systems
        for name in rules
    }


def _words(found: Mapping[str, Interval]) -> str:
    return ", ".join(f"{name} {each}" for name, each in found.items())


def _not(judgement: bool | None) -> bool | None:
    return None if judgement is None else not judgement


def _noise(ends: Ends) -> Judged:
    mark = CLAIMS[1].criterion
    lost = _losses(ends, "noise", mark.share, ends.rules)
    parts = {
        f"mean destroyed{name.removeprefix('mean')}"
        if name.startswith("mean")
        else f"{name} holds": each.above(mark.mean)
        if name.startswith("mean")
        else _not(each.above(mark.others))
        for name, each in lost.items()
    }
    return {"points lost": lost}, parts, f"points lost: {_words(lost)}"


def _price_of_krum(ends: Ends) -> Judged:
    mark = CLAIMS[2].criterion
    leads, parts = {}, {}
    for system in ends.systems:
        pair = ends.clean(system, "mean"), ends.clean(system, "Krum")
        leads[system] = lead(*pair)
        parts[system] = harness.ahead(*pair, ends.chance, mark.lead)
    return {"lead of the mean": leads}, parts, f"lead of the mean over Krum: {_words(leads)}"


def _stronger_attack(ends: Ends) -> Judged:
    share = CLAIMS[3].criterion.share
    leads = {
        f"{name} ({system})": lead(
            ends.under(system, name, "ALIE", share), ends.under(system, name, "min-max", share)
        )
        for system in ends.systems
        for name in ends.rules
    }
    parts = {name: each.above() for name, each in leads.items()}
    return {"ALIE over min-max": leads}, parts, f"points between them: {_words(leads)}"


def _inner_product(ends: Ends) -> Judged:
    mark = CLAIMS[4].criterion
    lost = _losses(ends, "inner product", mark.share, ("Krum", "centred clipping"))
    parts = {
        name: each.above(mark.krum) if name.startswith("Krum") else _not(each.above(mark.clipping))
        for name, each in lost.items()
    }
    return {"points lost": lost}, parts, f"points lost: {_words(lost)}"


def _no_best_rule(ends: Ends) -> Judged:
    mark = CLAIMS[5].criterion
    above: dict[str, Interval] = {}
    parts: dict[str, bool | None] = {}
    for system in ends.systems:
        for name in ends.rules:
            leads = {
                f"{other} over {name} under {attack} ({system})": lead(
                    ends.under(system, other, attack, mark.share),
                    ends.under(system, name, attack, mark.share),
                )
                for attack in ends.attacks
                for other in ends.rules
                if other != name
            }
            judgements = [each.above(mark.lead) for each in leads.values()]
            is_beaten = any(each is True for each in judgements)
            parts[f"{name} ({system})"] = (
                True if is_beaten else None if None in judgements else False
            )
            clearest = max(leads, key=lambda key: leads[key].mean - leads[key].half)
            above[clearest] = leads[clearest]
    return {"clearest lead over each rule": above}, parts, f"clearest leads: {_words(above)}"


def _staleness(ends: Ends) -> Judged:
    mark = CLAIMS[6].criterion
    added = {name: ends.added(name, mark.share) for name in ends.rules}
    parts = {
        name: harness.unless_collapsed(
            each.above(), [ends.clean(system, name) for system in ends.systems], ends.chance
        )
        for name, each in added.items()
    }
    return {"more points lost": added}, parts, f"more points lost: {_words(added)}"


def _rates(ends: Ends) -> Judged:
    mark = CLAIMS[7].criterion
    gains = {
        f"{name} ({system})": lead(
            ends.mean_own(system, name), ends.mean_under(system, name, mark.share)
        )
        for system in ends.systems
        for name in ends.rules
    }
    parts = {name: _not(each.above(mark.gain)) for name, each in gains.items()}
    return {"gain": gains}, parts, f"gain: {_words(gains)}"


def told(inputs: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Lay out the accuracies, the chosen rates and what staleness does."""
    ends = Ends(inputs)
    blocks = []
    for system in ends.systems:
        rows = [
            [
                name,
                _rates_of(chosen[system][name]["none"]),
                f"{share:.0%}",
                _cell(ends.clean(system, name)),
                *(_cell(ends.under(system, name, attack, share)) for attack in ends.attacks),
            ]
            for name in ends.rules
            for share in shares_of(inputs)
        ]
        header = ["rule", "rates", "malicious", "no attack", *ends.attacks]
        blocks.append(f"{system}, accuracy in %, 95 % intervals\n\n{harness.table(header, rows)}")

    def cell(system: str, name: str, attack: str) -> str:
        rates = _rates_of(chosen[system][name][attack])
        return f"{_cell(ends.own(system, name, attack))} ({rates})"

    rows = [
        [system, name, *(cell(system, name, attack) for attack in ends.attacks)]
        for system in ends.systems
        for name in ends.rules
    ]
    header = ["system", "rule", *ends.attacks]
    words = f"{SHARE:.0%} malicious, rates chosen under the attack"
    blocks.append(f"{words}\n\n{harness.table(header, rows)}")
    blocks.append("\n".join(staleness_sentences(ends)))
    return "\n\n".join(blocks)


def shares_of(inputs: Mapping[str, Any]) -> list[float]:
    """Return the shares of malicious clients that were run."""
    of_mean = inputs["ends"][WAITING]["mean"]
    attack = next(name for name in of_mean if name != "none")
    return [float(name.rstrip("%")) / 100 for name in of_mean[attack]]


def staleness_sentences(ends: Ends) -> list[str]:
    """Say for each rule what staleness does to it, with and without attackers."""
    found = []
    for name in ends.rules:
        clean = lead(ends.clean(BUFFERED, name), ends.clean(WAITING, name))
        attacked = lead(
            ends.mean_under(BUFFERED, name, SHARE), ends.mean_under(WAITING, name, SHARE)
        )
        added = ends.added(name, SHARE)
        does = {
            True: "staleness adds to the harm that they do",
            False: "with staleness they do less harm",
            None: "that staleness changes the harm that they do is not shown",
        }[added.above()]
        found.append(
            f"- {name}: FedBuff against FedAvg {clean} points without attackers and {attacked} "
            f"with {SHARE:.0%} malicious, averaged over the attacks; they cost {added} more "
            f"points: {does}."
        )
    return found


def _rates_of(choice: Mapping[str, float]) -> str:
    return " / ".join(f"{value:g}" for value in choice.values())


def _cell(sample: Sample) -> str:
    mean, half = sample.interval()
    return f"{mean:.1f} ± {half:.1f}" if np.isfinite(half) else f"{mean:.1f}"
