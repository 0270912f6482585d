"""The result of a sweep, how it is saved and loaded, and warnings of lanes that did not learn."""

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_sim.core.settings import ConfigError, checked, late_of
from fedjax_sim.core.types import HyperT, Params
from fedjax_sim.results.curves import join_lanes, lengthen
from fedjax_sim.results.run_files import Kept, read_files, write_files

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclasses.dataclass(frozen=True)
class Run(Kept[HyperT]):
    """The result of a sweep.

    Lanes are in the order of the flattened dimensions: settings as given, then seeds.

        run = fedjax_sim.sweep(
            fedavg.system,
            problem,
            hyper,
            seeds=3,
            settings={"lr": [0.1, 0.3]},
            budget=fedjax_sim.Ticks(20),
        )
        run.curves.loss.sel(lr=0.1).mean("seed").isel(eval=-1)  # curves are an xarray.Dataset

    Attributes:
      curves: Metrics with dimensions (swept names..., seed, eval), and further ones that a
        metric names, see `fedjax_sim.core.types.Problem.evaluate`. Coordinates: time, ticks,
        local_steps, uplink_bits, downlink_bits, and further traffic that the system counts (see
        `fedjax_sim.core.types.Messages`). Per lane: staleness_mean and staleness_max in
        server versions, the algorithm's `Info` (gradient evaluations executed and needed), and
        failed (whether some metric or parameter was not finite), failed_at (the first evaluation
        at which it was not, else -1) and collapsed_at (the first evaluation from which on a lane
        was at chance up to its end, else -1; see `fedjax_sim.core.types.Problem`). With
        `on_evaluation` also stopped_at, the evaluation at which a lane was stopped, else -1: from
        there on its metrics and coordinates repeat their last values, so that none is NaN and the
        last evaluation is the lane's end. Of live clocks also ended, why a lane did nothing more:
        one of `fedjax_sim.core.clocks.ENDINGS`. Attributes: seconds_compile, seconds_run,
        programs_compiled.
      models: Final models, leaves `[L, ...]`.
      timelines: Each lane's schedule, cut to its budget, or to where it was stopped.
      hypers: Each lane's settings, completed from its problem.
      samples: With `Keep(models=True)`, the models of all evaluations, the initial one first:
        leaves `[L, V + 1, ...]` in host memory; otherwise None.
    """

    def model(self, i: int) -> Params:
        """Return the final model of the lane at position `i` of the flattened results.

        Raises:
          ConfigError: If there is no such lane.
        """
        if i not in range(len(self.hypers)):
            raise ConfigError("position of a lane", i, f"from 0 to {len(self.hypers) - 1}")
        return jax.tree.map(lambda leaf: leaf[i], self.models) if self.lane_dims else self.models

    def lane(self, **labels: object) -> "Run[HyperT]":
        """Select one lane.

        Args:
          labels: The lane's seed and values of swept settings. What only one value is left of may
            be left out.

        Returns:
          The lane, as `simulate` returns it: models have leaves `[...]`.

        Raises:
          ConfigError: If no lane has these labels, or several have.
        """
        names = list(lane_labels(self.curves)[0])
        for name in labels:
            if name not in names:
                raise ConfigError("label of a lane", name, f"one of {', '.join(names)}")
        found = [
            i
            for i, known in enumerate(lane_labels(self.curves))
            if all(known[name] == value for name, value in labels.items())
        ]
        if len(found) != 1:
            example = lane_labels(self.curves)[0]
            allowed = f"those of one lane ({len(found)} lanes have them), such as {example}"
            raise ConfigError("labels", labels, allowed)
        i, sizes = found[0], [self.curves.sizes[dim] for dim in self.lane_dims]
        models, samples = self.models, self.samples
        place = np.unravel_index(i, sizes) if sizes else ()
        if sizes:
            models, samples = jax.tree.map(lambda leaf: leaf[i], (models, samples))
        curves = self.curves.isel(dict(zip(self.lane_dims, map(int, place), strict=True)))
        return Run(curves, models, [self.timelines[i]], [self.hypers[i]], samples)

    def to_dataframe(self) -> "pd.DataFrame":
        """Make a table with one row for each lane and evaluation.

        Returns:
          Columns: `system`, the swept settings, `seed`, `eval`, the coordinates and all metrics
          that are single numbers; facts about a lane are repeated in each of its rows.
        """
        dims = {*self.lane_dims, "eval"}
        names = [name for name, each in self.curves.variables.items() if set(each.dims) <= dims]
        table = self.curves[[name for name in names if name in self.curves.data_vars]]
        frame = table.drop_vars([name for name in table.coords if name not in names])
        rows = frame.assign_coords(eval=np.arange(self.curves.sizes["eval"])).to_dataframe()
        rows = rows.reset_index()
        rows.insert(0, "system", self.curves.attrs["system"])
        return rows

    @checked
    def save(self, folder: str | Path, *, without: Sequence[str] = ()) -> None:
        """Write everything into a folder, for `fedjax_sim.load` and `fedjax-sim plot`.

        Settings are kept as texts, as the command line has them. A lambda has none, nor has a rule
        of your own before it is in its table, as in `rules.RULES["mine"] = Mine`. Containers of
        models are kept if they are dictionaries, lists, tuples, or named tuples and dataclasses of
        a module; others are read back as dictionaries.

        Args:
          folder: The folder, which is made if it does not exist. Files of an earlier run in it are
            replaced. `fedjax_sim.results.run_files` lists them.
          without: Names of settings of which only a description is kept. In loaded settings a
            `NotSaved` takes their place, with which no run begins.

        Raises:
          ConfigError: If a setting has no text, before anything is written; or if there can be no
            such folder.
          StorageError: If the disk refuses.
        """
        write_files(Path(folder), self, without)


@checked
def load(folder: str | Path, system: str | None = None, *, trust: bool = False) -> Run:
    """Read the result of `sweep` or `simulate` from a folder.

    Reading runs no code of the folder. Settings are texts; classes are named, and found among this
    package's and those of modules that are imported already.

        run.save(folder / "first")
        same = fedjax_sim.load(folder / "first", "fedavg")
        assert same.curves.equals(run.curves)

    Args:
      folder: A folder that `Run.save` or `fedjax-sim run` wrote.
      system: Name of the system; may be left out if the folder has only one.
      trust: Whether files that carry no SHA-256 are taken as they are.

    Returns:
      The run: curves, final models, schedules, settings, and samples if they were kept.

    Raises:
      ConfigError: If it is no such folder, or lacks the system.
      InputError: If a file is damaged, of another run than the others, or of another form. The
        sentence names the file.
    """
    runs = load_runs(folder, trust=trust)
    if system is None and len(runs) == 1:
        return next(iter(runs.values()))
    if system not in runs:
        raise ConfigError("system", system, f"one of {', '.join(runs)}, as in {folder}")
    return runs[system]


def load_runs(folder: str | Path, *, trust: bool = False) -> dict[str, Run]:
    """Read the runs of all systems from a folder; as `load`, by name of the system."""
    return {name: Run(**vars(kept)) for name, kept in read_files(Path(folder), trust=trust).items()}


def lane_labels(curves: "xr.Dataset") -> list[dict[str, Any]]:
    """List the labels of the lanes, in their order: swept settings and the seed, by name.

    Args:
      curves: The curves of a sweep, of some of its lanes, or of one lane.
    """
    names = [str(dim) for dim in curves["failed"].dims]
    if names in (["lane"], []):
        of_lanes = {str(name) for name, each in curves.coords.items() if each.dims == (*names,)}
        names = [str(name) for name in curves.coords if name in of_lanes - {"lane", "ended"}]
        rows: Any = zip(*(np.ravel(curves[name]).tolist() for name in names), strict=True)
    else:
        rows = itertools.product(*(curves[dim].values.tolist() for dim in names))
    names = [name.removesuffix("_setting") for name in names]
    return [dict(zip(names, row, strict=True)) for row in rows]


def join_runs(runs: Sequence[Run[HyperT]]) -> Run[HyperT]:
    """Join the results of the parts of one sweep.

    Args:
      runs: What each part returned, in any order.

    Returns:
      What the whole sweep would have returned.

    Raises:
      ConfigError: If the parts are of different grids, or a lane is missing or there twice.
    """
    curves = join_lanes([run.curves for run in runs])
    order = np.argsort(np.concatenate([run.curves["lane"].values for run in runs]))
    models, samples = join_lanes_of_trees(
        [(run.models, run.samples) for run in runs], order, curves.sizes["eval"]
    )
    timelines = [timeline for run in runs for timeline in run.timelines]
    hypers = [hyper for run in runs for hyper in run.hypers]
    return Run(curves, models, [timelines[i] for i in order], [hypers[i] for i in order], samples)


def join_lanes_of_trees(
    parts: Sequence[tuple[Params, Params]], order: np.ndarray, num_evals: int
) -> tuple[Params, Params]:
    """Put the final models and the samples of all parts together.

    Args:
      parts: Models, leaves `[L, ...]`, and samples, leaves `[L, V + 1, ...]` or None, of each part.
      order: `i64[L]`, the order of the lanes of all parts.
      num_evals: To how many evaluations shorter samples are lengthened.
    """

    def in_order(*leaves: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(leaf) for leaf in leaves])[order]

    models = jax.tree.map(in_order, *(models for models, _ in parts))
    samples = jax.tree.map(
        lambda *leaves: in_order(*(lengthen(leaf, num_evals) for leaf in leaves)),
        *(samples for _, samples in parts),
    )
    return models, samples


NAMED = 5
"""Most lanes that a warning names."""


ROOT = str(Path(__file__).parents[1])


class LaneWarning(UserWarning):
    """Lanes of a sweep did not learn, or end before something that their settings ask for.

    `failed_at` and `collapsed_at` of the curves say which did not learn.
    """


class DivergedWarning(LaneWarning):
    """In some lanes a metric or a parameter became infinite or NaN."""


class CollapsedWarning(LaneWarning):
    """Some lanes ended at chance: they are no better than the best constant guess."""


KINDS = {
    "failed_at": (DivergedWarning, "diverged (a number was not finite)"),
    "collapsed_at": (CollapsedWarning, "ended at chance"),
}


def warn_of_lanes(curves: "xr.Dataset") -> None:
    """Warn once of all lanes that diverged, and once of all that collapsed.

    The warning points to the line outside of this package that asked for the sweep.

    Args:
      curves: The curves of a sweep.
    """
    for name, (kind, words) in KINDS.items():
        at = curves[name].values.ravel()
        found = np.flatnonzero(at >= 0)
        if not found.size:
            continue
        labels = lane_labels(curves)
        lanes = [
            ", ".join(f"{label}={value}" for label, value in labels[i].items())
            + f" from evaluation {at[i]} on"
            for i in found[:NAMED]
        ]
        more = f" and {found.size - NAMED} more" if found.size > NAMED else ""
        system = curves.attrs["system"]
        sentence = f"{found.size} of {at.size} lanes of {system} {words}: {'; '.join(lanes)}{more}."
        warnings.warn(sentence, kind, stacklevel=_frames_inside())


def warn_of_late(hypers: Sequence[Any], ticks: Sequence[int]) -> None:
    """Warn of each setting by which something would begin after the end of a lane.

    Args:
      hypers: The settings of lanes.
      ticks: How many ticks each lane has.
    """
    found: dict[str, list[str]] = {}
    for hyper, num in zip(hypers, ticks, strict=True):
        for name, (value, what) in late_of(hyper, num).items():
            sentence = f"{name} is {value}, but the run has {num} ticks: {what} never begins"
            found.setdefault(name, []).append(sentence)
    for sentences in found.values():
        more = f" (in {len(sentences)} of {len(ticks)} lanes)" if len(ticks) > 1 else ""
        warnings.warn(f"{sentences[0]}{more}.", LaneWarning, stacklevel=_frames_inside())


def _frames_inside() -> int:
    """Count the frames from the caller to the first one outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ROOT):
        frame, level = frame.f_back, level + 1
    return level
