"""Compare systems seed by seed: means with intervals, and all differences of pairs.

Differences of pairs are corrected for their number. The interval of each difference is that of one
comparison; which of two systems is better is said only if the corrected p-value allows it.

Dimension letters: `n` seeds.
"""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.results.summaries import points_of
from fedjax_sim.studies import criteria, statistics, tables
from fedjax_sim.studies.criteria import Criterion, Reached


class Entry(NamedTuple):
    """Results of one system at one point of its swept settings.

    Attributes:
      sample: One number per seed. Those of times are pseudo-values, see `studies.statistics`.
      seeds: The seeds.
      failed: Number of seeds that diverged; they count as worst.
      collapsed: Number of further seeds that ended at chance.
      number: Place among the systems given, by which its curves have their look.
      reached: When each seed reached the level, where the criterion asks for that; else None.
    """

    sample: statistics.Sample
    seeds: tuple[int, ...]
    failed: int
    collapsed: int
    number: int
    reached: Reached | None = None


class Pair(NamedTuple):
    """The difference of two systems.

    Attributes:
      first: Name of a system.
      second: Name of another one.
      lead: First minus second, with its 95 % interval.
      p: Chance of such a difference or a larger one, were there none; NaN if unknown.
      corrected: As `p`, corrected for the number of pairs by Holm's method.
      better: Name of the better one; None if the corrected p-value is not below 0.05.
      needed: Seeds that would show a difference of this size, see `statistics.seeds_needed`; None
        if the seeds are not shared, or too many are needed.
      resampled: The paired bootstrap's 95 % interval of a difference of times; else None.
    """

    first: str
    second: str
    lead: statistics.Interval
    p: float
    corrected: float
    better: str | None
    needed: int | None
    resampled: statistics.Interval | None = None


class Comparison(NamedTuple):
    """Systems, compared by a criterion.

    Attributes:
      criterion: The criterion.
      is_less_better: Whether a smaller number is better.
      horizon: Time to which mean times are restricted: every system has a lane that ran so far and
        did not fail. NaN if the criterion is no time. A lane that ends before is censored there.
      entries: The systems by name, the best mean first.
      pairs: All pairs.
    """

    criterion: Criterion
    is_less_better: bool
    horizon: float
    entries: dict[str, Entry]
    pairs: list[Pair]

    def systems(self) -> tables.Table:
        """Tabulate the systems: mean with interval, median, worst seed, failures."""
        rows, is_time = [], self.criterion.by == "time"
        for name, each in self.entries.items():
            values = np.asarray(each.sample.values)
            worst = values.max() if self.is_less_better else values.min()
            row = [name, each.sample.interval(), float(np.median(values)), float(worst)]
            if each.reached is not None:
                within = each.reached.reached & (each.reached.times <= self.horizon)
                row[2:] = [f"{int(within.sum())} of {len(values)}"]
            rows.append([*row, each.failed, each.collapsed, len(each.seeds)])
        middle = [f"reached by {self.horizon:.4g}"] if is_time else ["median", "worst"]
        header = ["system", str(self.criterion), *middle, "diverged", "collapsed", "seeds"]
        return tables.Table(header, rows, [(0, 1)] if rows else [])

    def differences(self) -> tables.Table:
        """Tabulate the pairs: difference with interval, p-values, which is better."""
        rows, is_time = [], self.criterion.by == "time"
        for each in self.pairs:
            needed = "-" if each.needed is None else each.needed
            chances = each.p, each.corrected, each.better or "undecided", needed
            resampled = [each.resampled] * is_time
            rows.append([f"{each.first} - {each.second}", each.lead, *resampled, *chances])
        header = ["pair", "difference", *["bootstrap"] * is_time, "p", "corrected p", "better"]
        return tables.Table([*header, "seeds needed"], rows)


@checked
def compare(
    curves: Mapping[str, xr.Dataset], criterion: Criterion = Criterion(), *, power: float = 0.8
) -> Comparison:
    """Compare the curves of several systems.

    Seeds are paired where two systems have the same ones; otherwise the interval is Welch's. A seed
    that diverged counts as worst: an accuracy of 0, or a level that is not reached.

    Args:
      curves: The curves of `sweep`, by name. Each point of swept settings is compared as a system.
      criterion: By which number.
      power: Of the number of seeds that a difference needs.

    Returns:
      The systems, the best first, and the differences of all pairs.

    Raises:
      ConfigError: If curves lack the metric, or do not agree on whether less of it is better.
    """
    points = dict(points_of(curves))
    if not points:
        raise ConfigError("curves", {}, "those of one system at least")
    is_less = {criterion.prefers_less(criteria.less_is_better(each)) for each in points.values()}
    if len(is_less) > 1:
        allowed = "one of which less is better in all curves, or in none"
        raise ConfigError("metric", criterion.metric, allowed)
    less, horizon = is_less.pop() or criterion.by == "time", float("nan")
    failed = {name: each["failed"].values.ravel() for name, each in points.items()}
    seen, found = dict[str, Reached](), dict[str, Entry]()
    if criterion.by == "time":
        seen = {name: criterion.reached(each) for name, each in points.items()}
        horizon = min(_known_until(each, failed[name]) for name, each in seen.items())
    for number, (name, each) in enumerate(points.items()):
        bad, seeds, reached = failed[name], np.ravel(each["seed"].values), seen.get(name)
        if reached is None:
            values = criterion.values(each).values.ravel()
        else:  # A lane that failed is known never to reach the level.
            reached = reached._replace(times=np.where(bad, horizon, reached.times))
            values = statistics.pseudo_values(reached.times, reached.reached, horizon)
        sample = statistics.Sample.of(values)
        counts = int(bad.sum()), int((criterion.collapsed(each).values.ravel() & ~bad).sum())
        found[name] = Entry(sample, tuple(seeds.tolist()), *counts, number, reached)
    order = sorted(found, key=lambda name: found[name].sample.mean * (1 if less else -1))
    entries = {name: found[name] for name in order}
    pairs = [_pair(entries, names, power) for names in itertools.combinations(entries, 2)]
    for i, p in enumerate(statistics.holm([pair.p for pair in pairs])):
        better = pairs[i].first if (pairs[i].lead.mean < 0) == less else pairs[i].second
        pairs[i] = pairs[i]._replace(corrected=p, better=better if p < statistics.LEVEL else None)
    return Comparison(criterion, less, horizon, entries, pairs)


def _known_until(seen: Reached, failed: np.ndarray) -> float:
    """Return until when a system is known by one of its lanes at least that did not fail."""
    times, reached, ends = (each[~failed | failed.all()] for each in seen)
    return min(float(ends.max()), statistics.known_until(times, reached))


def _pair(entries: Mapping[str, Entry], names: tuple[str, str], power: float) -> Pair:
    """Compare two systems, paired by seed if they have the same seeds."""
    first, second = (entries[name] for name in names)
    own, other, differences = first.sample, second.sample, np.zeros(0)
    if {*first.seeds} == {*second.seeds}:
        order = [second.seeds.index(seed) for seed in first.seeds]
        other = statistics.Sample.of(np.asarray(other.values)[order])
        differences = np.asarray(own.values) - np.asarray(other.values)
    else:
        own, other = own._replace(values=None), other._replace(values=None)
    lead, p = statistics.lead(own, other), statistics.p_value(own, other)
    needed, resampled = None, None
    if len(differences) > 1 and np.isfinite(lead.half):
        spread = float(np.std(differences, ddof=1))
        needed = statistics.seeds_needed(spread, lead.mean, power)
    if len(differences) > 1 and first.reached is not None:
        resampled = statistics.bootstrap(differences)
    return Pair(*names, lead, p, p, None, needed, resampled)
