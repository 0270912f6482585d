"""Tune systems on held-out training examples, and run the choice with other seeds.

1. A part of the training examples is held out for validation, from the pool (`hold_out`) or from
   each client's own (`hold_out_of_clients`). What they return has no test examples, so that none
   can be read while settings are chosen.
2. Every system runs at every point of its grid, with seeds that are used for nothing else, and is
   scored by a `Criterion` (`tune`). Lanes that diverged, or collapsed to chance, count as worst. If
   the best value of a setting is the first or the last of its grid, the grid is widened there by
   one more value, a limited number of times. With `Halving`, losing points end early.
3. The choice runs again, on all training examples and with other seeds, and is measured on the
   test set (`tune_and_run`).

Dimension letters: `n` examples, `N` clients, `M` examples of the client with the most, `L` lanes.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import xarray as xr

from fedjax_sim.core import settings
from fedjax_sim.core.lifecycle import say
from fedjax_sim.core.types import AnyProblem, Layout, Settings, System
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine import sweeps, watching
from fedjax_sim.partition import Partition
from fedjax_sim.results.curves import read_name
from fedjax_sim.results.runs import Run
from fedjax_sim.studies import criteria

ProblemT = TypeVar("ProblemT", bound=AnyProblem)
Grid = Mapping[str, Sequence[Any]]
"""Values of settings, by name."""
Options = Mapping[str, Any]
"""Further arguments of a sweep."""
WIDENINGS = 3
"""Times that a grid is widened by one value."""


class Contestant(NamedTuple):
    """A system, and the settings that are tuned for it.

    Attributes:
      system: The system.
      hyper: Its settings that are not tuned.
      grid: Values of each tuned setting by name; all combinations are tried.
    """

    system: System
    hyper: Settings
    grid: Grid


class Halving(NamedTuple):
    """Successive halving: losing points of a grid end early (Jamieson and Talwalkar, AISTATS 2016).

    At some evaluations only the best points so far go on, each with all of its seeds: at first one
    in `factor`, then half of them after three times the share of the run, and half again.

    Deviation: the paper divides the points by one factor, by which it multiplies the budget. Rates
    that learn fast at first are often not the best at the end, so that the last points run longer
    here. All lanes are of one program from the start. Where they are batched, points that go on
    take the places of those that ended (`Layout.lane_batches`).

    Attributes:
      factor: By how much the number of points is divided at first.
      least: Share of the run after which points are compared for the first time.
    """

    factor: int = 3
    least: float = 0.08

    def rungs(self, points: int, num_evals: int) -> dict[int, int]:
        """Plan the evaluations at which points end.

        Args:
          points: Number of points of the grid.
          num_evals: Number of evaluations.

        Returns:
          How many points go on, by the evaluation at which that is decided.
        """
        found, share, factor = dict[int, int](), self.least, self.factor
        while share < 1 and points > 1:
            points = -(-points // factor)
            found[max(1, round(share * num_evals))] = points
            share, factor = 3 * share, 2
        return found


class Tuned(NamedTuple):
    """The choice for one system, and the scores behind it.

    Attributes:
      choice: The chosen value of each tuned setting.
      scores: What each lane is worth, more is better; dimensions are the tuned settings and `seed`.
        NaN where a point ended early.
      at_edge: Tuned settings whose chosen value is the first or the last of several. The best value
        may lie outside of the grid.
      lanes: Number of lanes that ran.
      time: Virtual time of all lanes together.
    """

    choice: dict[str, Any]
    scores: xr.DataArray
    at_edge: list[str]
    lanes: int = 0
    time: float = 0.0


@settings.checked
def hold_out(data: Dataset, share: settings.Fraction, *, seed: int = 0) -> Dataset:
    """Replace the test set by a part of the training set that is held out.

    Args:
      data: A data set of n training examples.
      share: Share of the training examples of each class that is held out, in (0, 1).
      seed: Which examples are held out.

    Returns:
      The data set with fewer training examples and with the part held out as its test set. The
      given test set is not in it.

    Raises:
      ConfigError: If the share is not in (0, 1).
    """
    generator = np.random.default_rng(seed)
    is_held_out = np.zeros(len(data.train_labels), bool)
    for label in range(data.num_classes):
        of_class = generator.permutation(np.flatnonzero(data.train_labels == label))
        is_held_out[of_class[: round(share * len(of_class))]] = True
    kept, clients = ~is_held_out, data.train_clients
    return data._replace(
        train_images=data.train_images[kept],
        train_labels=data.train_labels[kept],
        test_images=data.train_images[is_held_out],
        test_labels=data.train_labels[is_held_out],
        train_clients=None if clients is None else clients[kept],
    )


@settings.checked
def hold_out_of_clients(
    data: Dataset, partitions: Sequence[Partition], share: settings.Fraction, *, seed: int = 0
) -> list[tuple[Dataset, Partition]]:
    """Hold out a part of each client's training examples, for each of several partitions.

    Args:
      data: A data set of n training examples.
      partitions: Who holds which of them, such as one partition per seed.
      share: Share of the examples of each client that is held out, in (0, 1).
      seed: Which examples are held out.

    Returns:
      For each partition, the data set with the examples held out as its test set (equally many for
      all partitions, without the given test set), and the partition without them.

    Raises:
      ConfigError: If the share is not in (0, 1), or leaves a client without a training example.
    """
    found: list[tuple[np.ndarray, Partition]] = []
    for each in partitions:
        generator = np.random.default_rng(seed)
        kept, held = list[np.ndarray](), list[np.ndarray]()
        counts = each.counts - np.round(share * each.counts).astype(each.counts.dtype)
        if (counts < 1).any():
            raise settings.ConfigError("share", share, "such that every client keeps an example")
        for own, count in zip(each.rows(), counts, strict=True):
            mixed = generator.permutation(own)
            kept.append(np.sort(mixed[:count]))
            held.append(mixed[count:])
        mixed = generator.permutation(np.concatenate(held))
        found.append((mixed, Partition(np.concatenate(kept), counts)))
    fewest = min(len(held) for held, _ in found)
    if not fewest:
        raise settings.ConfigError("share", share, "such that an example is held out")
    return [
        (
            data._replace(
                test_images=data.train_images[held[:fewest]],
                test_labels=data.train_labels[held[:fewest]],
            ),
            left,
        )
        for held, left in found
    ]


def tune(
    contestant: Contestant,
    problem: list[ProblemT] | Callable[[int], ProblemT],
    *,
    seeds: Sequence[int],
    criterion: criteria.Criterion = criteria.Criterion(),
    widenings: int = WIDENINGS,
    halving: Halving | None = None,
    known: xr.DataArray | None = None,
    kept: Callable[[str], Options] = lambda name: {},
    **options: Any,
) -> Tuned:
    """Choose a system's settings by their mean score on validation data.

    A sentence on the error stream says if the choice is at an edge of its grid, and if no point
    learns.

    Args:
      contestant: The system and its grid.
      problem: The problem of each seed, or a function of the seed. Its test set is the validation
        part.
      seeds: Seeds of the runs that are scored.
      criterion: How lanes are scored.
      widenings: Most values that are added to the grid, one at a time, where the best value is at
        its edge.
      halving: How losing points end early; None if all run to their end.
      known: Scores of an earlier call, whose points are not run again.
      kept: From a sweep's name to further options of `fedjax_sim.sweep`, such as a checkpoint.
      **options: Options of `fedjax_sim.sweep`, such as `budget`.

    Returns:
      The choice with all scores. Of settings with equal means the smallest values win: those that
      come first in the grid, in which numbers are sorted.

    Raises:
      ConfigError: If a grid may be widened and has a number that is not positive, as grids go on by
        ratios.
    """
    grid = {
        name: sorted(values) if _is_numeric(values) else list(values)
        for name, values in contestant.grid.items()
    }
    check_grid(grid, widenings)
    lanes, time = 0, 0.0

    def score(name: str, values: Grid, early: Halving | None) -> xr.DataArray:
        nonlocal lanes, time
        how = {**options, **kept(name)}
        if early is not None:
            how |= _ending_early(early, criterion, contestant.system, problem, values, seeds, how)
        run = sweeps.sweep(
            contestant.system, problem, contestant.hyper, seeds=seeds, settings=values, **how
        )
        lanes += len(run.hypers)
        time += float(run.curves["time"].isel(eval=-1).broadcast_like(run.curves["failed"]).sum())
        found = criterion.scores(run.curves)
        return found.where(run.curves["stopped_at"] < 0) if early is not None else found

    tuned = choose(score("tuning", grid, halving) if known is None else known, grid)
    for _ in range(widenings):
        beyond = _beyond(contestant, tuned)
        if not beyond:
            break
        name, value = beyond
        dim = _dim_of(name, tuned.scores)
        slab = {each: _values(each, tuned.scores, grid[each]) for each in grid} | {name: [value]}
        added = score(f"tuning, {name} {value:g}", slab, None)
        grid[name] = sorted([*_values(name, tuned.scores, grid[name]), value])
        whole = xr.concat([tuned.scores, added], dim, combine_attrs="drop_conflicts")
        if criterion.by == "time":  # The shortest lane of all points bounds their times.
            worst = max(each.attrs.get("worst", -np.inf) for each in (tuned.scores, added))
            whole = whole.clip(min=worst).assign_attrs(worst=worst)
        tuned = choose(whole.sortby(dim), grid)
    whose = f"{contestant.system.name}: the chosen"
    if tuned.at_edge:
        edges = ", ".join(f"{name} {tuned.choice[name]}" for name in tuned.at_edge)
        say(f"{whose} {edges} is at an edge of its grid, beyond which a better one may be.")
    mean = tuned.scores.mean("seed")
    if not float(mean.max()) > float(tuned.scores.min()) and tuned.scores.size > 1:
        say(f"{whose} setting is no better than others: no point of the grid learns.")
    return tuned._replace(lanes=lanes, time=time)


def tune_and_run(
    contestant: Contestant,
    validation: list[ProblemT] | Callable[[int], ProblemT],
    test: list[ProblemT] | Callable[[int], ProblemT],
    *,
    tuning_seeds: Sequence[int],
    seeds: Sequence[int],
    kept: Callable[[str], Options] = lambda name: {},
    options: Options,
    **how: Any,
) -> tuple[Tuned, Run]:
    """Tune a system, and run the choice with other seeds on the test problems.

    Args:
      contestant: The system and its grid.
      validation: The problem of each tuning seed, as in `tune`.
      test: The problem of each seed; a function is not called before the settings are chosen.
      tuning_seeds: Seeds by which settings are chosen.
      seeds: Seeds of the reported runs.
      kept: From a sweep's name ("test" is the last one's) to further options of it.
      options: Options of all sweeps, such as `budget`.
      **how: `criterion`, `widenings`, `halving` and `known`, as in `tune`.

    Returns:
      What tuning found, and the run of the choice.

    Raises:
      ConfigError: If a seed is among both, as the best of many settings is partly luck.
    """
    if shared := {*tuning_seeds} & {*seeds}:
        allowed = "apart from the seeds that are reported, as the best on a seed is partly luck"
        raise settings.ConfigError("tuning seeds", sorted(shared), allowed)
    tuned = tune(contestant, validation, seeds=tuning_seeds, kept=kept, **options, **how)
    hyper = contestant.hyper.replace(**tuned.choice)
    return tuned, sweeps.sweep(
        contestant.system, test, hyper, seeds=list(seeds), **{**options, **kept("test")}
    )


def check_grid(grid: Grid, widenings: int) -> None:
    """Check that a grid can be widened, which goes on by ratios.

    Raises:
      ConfigError: If it is to be, and has a number that is not positive.
    """
    for name, values in grid.items():
        if widenings and _is_numeric(values) and min(values) <= 0:
            raise settings.ConfigError(f"grid of {name}", list(values), "positive, or not widened")


def choose(scores: xr.DataArray, grid: Grid | None = None) -> Tuned:
    """Return the point with the best mean over seeds; see `Tuned`.

    Args:
      scores: Scores with the dimension `seed`; NaN where a point ended early.
      grid: The values of each setting in the order of the scores; the scores' labels if None.
    """
    mean = scores.mean("seed", skipna=False)
    chosen = {str(dim): int(place) for dim, place in mean.argmax(list(mean.dims)).items()}
    names = dict(zip(chosen, chosen if grid is None else grid, strict=True))
    values = {dim: _values(names[dim], scores, (grid or {}).get(names[dim])) for dim in chosen}
    return Tuned(
        {names[dim]: values[dim][place] for dim, place in chosen.items()},
        scores,
        [
            names[dim]
            for dim, place in chosen.items()
            if scores.sizes[dim] > 1
            and place in (0, scores.sizes[dim] - 1)
            and _is_numeric(values[dim])
        ],
    )


def _values(name: str, scores: xr.DataArray, given: Sequence[Any] | None) -> list[Any]:
    """Return the values of a setting: those given, unless scores have labels for others."""
    labels = scores[_dim_of(name, scores)].values.tolist()
    return list(given) if given is not None and len(given) == len(labels) else labels


def _dim_of(name: str, scores: xr.DataArray) -> str:
    """Return the dimension of a setting, which is named otherwise if a coordinate has its name."""
    return name if name in scores.dims else f"{name}_setting"


def _is_numeric(values: Sequence[object]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _beyond(contestant: Contestant, tuned: Tuned) -> tuple[str, Any] | None:
    """Return the first setting at an edge of its grid and the value beyond, if it is allowed."""
    for name in tuned.at_edge:
        values = tuned.scores[_dim_of(name, tuned.scores)].values.tolist()
        value: Any = next_value(values, above=tuned.choice[name] == values[-1])
        if all(isinstance(each, int) for each in values):
            value = round(value)
        if value in values:
            continue
        try:
            settings.check(contestant.hyper.replace(**{**tuned.choice, name: value}))
        except settings.ConfigError:
            continue
        return name, value
    return None


def next_value(values: Sequence[float], *, above: bool) -> float:
    """Continue an ascending grid by the ratio of its last two values, or of its first two."""
    first, second = (values[-1], values[-2]) if above else (values[0], values[1])
    return float(f"{first * first / second:.3g}")


def _ending_early(
    halving: Halving,
    criterion: criteria.Criterion,
    system: System,
    problem: list[ProblemT] | Callable[[int], ProblemT],
    grid: Grid,
    seeds: Sequence[int],
    options: Options,
) -> dict[str, Any]:
    """Return the options of a sweep that ends losing points early.

    Raises:
      ConfigError: If the criterion asks for an axis that is not known while lanes run; and from the
        sweep, if lanes lack its metric.
    """
    if criterion.against not in ("time", "rounds"):
        raise settings.ConfigError("against", criterion.against, "time or rounds with halving")
    known, kinds = settings.names_of(system.Hyper), settings.fields(system.Hyper)
    for name in grid:
        if not settings.is_traced(kinds[known[name]]):
            allowed = "of numbers with halving, as points are compared in one program"
            raise settings.ConfigError("grid", name, allowed)
    points = list(itertools.product(*grid.values()))
    first = problem(seeds[0]) if callable(problem) else problem[0]
    is_less = criterion.prefers_less(getattr(first, criteria.LESS, ()))

    def decide(now: watching.Progress) -> np.ndarray | None:
        if len(now.lanes) != len(points) * len(seeds):
            raise settings.ConfigError("grid", dict(grid), "small enough for memory, with halving")
        left = halving.rungs(len(points), now.num_evals).get(now.evaluation)
        if left is None:
            return None
        along = now.time if criterion.against == "time" else now.ticks
        num_dims = 3 if criterion.by == "worst_client" else 2
        found = {read_name(name)[0]: x for name, x in now.metrics.items() if x.ndim == num_dims}
        metric = settings.Named("metric", found)[criterion.metric]
        failed = now.metrics["finite"].min(axis=1) == 0
        if criterion.by == "time":
            seen = criterion.first(metric, along, failed, is_less=is_less)
            score = -seen.bounded(~failed & ~now.stopped)[0]
        else:
            score = criterion.measure(metric, along, is_less=is_less) * (-1 if is_less else 1)
        # Of points that are alike so far, such as those that no lane brought to the level, the
        # newest value decides.
        newest = metric[:, -1] if metric.ndim == 2 else np.nanmean(metric[:, -1], axis=-1)
        keys = np.stack([score, newest * (-1 if is_less else 1)])
        worst = np.where(np.isfinite(keys), keys, np.inf).min(axis=1, keepdims=True) - 1
        keys = np.where(failed | ~np.isfinite(keys), worst, keys)
        mean = keys.reshape(2, len(points), len(seeds)).mean(axis=2)
        has_ended = now.stopped.reshape(len(points), len(seeds)).all(axis=1)
        order = np.lexsort((np.arange(len(points)), -mean[1], -mean[0], has_ended))
        stays = np.zeros(len(points), bool)
        stays[order[:left]] = True
        return np.repeat(~stays, len(seeds))

    watch: watching.Watch = options.get("watch", watching.Watch())
    layout: Layout = options.get("layout", Layout())
    if layout.lanes_at_once is None and layout.lane_batches is None:
        # Lanes that have ended cost nothing if lanes take turns, as on a CPU. On an accelerator the
        # best points of the first comparison take the places of the others in one batch.
        together, stay = jax.default_backend() != "cpu", -(-len(points) // halving.factor)
        batches = len(points) // stay if together else None
        layout = layout._replace(lanes_at_once=together, lane_batches=batches)
    return {"watch": watching.Watch(**{**vars(watch), "on_evaluation": decide}), "layout": layout}
