"""Criteria: one number for each lane, by which settings are chosen and systems compared.

Dimension letters: `L` lanes, `V` evaluations, `N` clients.
"""

import dataclasses
from collections.abc import Collection
from typing import Annotated, Literal, NamedTuple

import numpy as np
import xarray as xr

from fedjax_sim.core.settings import ConfigError, Finite, OneOf, checked
from fedjax_sim.results import plots, reports

WINDOW = 3
"""Evaluations at the end of a run over which a final value is averaged."""


class Reached(NamedTuple):
    """When lanes reach a level, as far as that is known.

    Attributes:
      times: `f[L]`, the time, or another axis, at which a lane reaches it, or ends without.
      reached: `bool[L]`, which lanes reach it.
      ends: `f[L]`, where each lane ends.
    """

    times: np.ndarray
    reached: np.ndarray
    ends: np.ndarray

    def bounded(self, count: np.ndarray) -> tuple[np.ndarray, float]:
        """Bound all times by the end of the shortest lane that counts, of all if none does.

        Args:
          count: `bool[L]`, which lanes count.

        Returns:
          Times, `f[L]`, that end where a lane does not reach the level; and that end.
        """
        end = (self.ends[count] if count.any() else self.ends).min()
        return np.where(self.reached, np.minimum(self.times, end), end), float(end)


@checked
@dataclasses.dataclass(frozen=True)
class Criterion:
    """A score of a lane, by which settings are chosen and systems compared.

        assert str(Criterion()) == "final accuracy"
        first = Criterion(by="time", level=0.8, against="rounds")  # rounds to an accuracy of 0.8

    Attributes:
      metric: Name of a metric of the curves.
      by: "final", the mean of the last `WINDOW` evaluations; "area", the mean over the run along
        the axis; "time", where the axis first reaches the level; "worst_client", the final value of
        the client that is served worst, of a metric with a value for each client.
      level: The level of the metric that "time" asks for; None for the others.
      against: The axis: time, rounds, steps, bits or energy.
      less_is_better: Whether small values of the metric are good ones; None: as its problem says.
    """

    metric: str = "accuracy"
    by: Literal["final", "area", "time", "worst_client"] = "final"
    level: Finite | None = None
    against: Annotated[str, OneOf(tuple(reports.ALL_AXES))] = "time"
    less_is_better: bool | None = None

    def __post_init__(self) -> None:
        """Check that the fields fit together.

        Raises:
          ConfigError: If they do not.
        """
        if (self.level is not None) != (self.by == "time"):
            allowed = "a level of the metric" if self.by == "time" else f"left out with {self.by}"
            raise ConfigError("level", self.level, f"{allowed} as the criterion")

    def __str__(self) -> str:
        name = self.metric.replace("_", " ")
        axis = plots.label_of_axis(reports.ALL_AXES[self.against]).partition(" (")[0]
        return {
            "final": f"final {name}",
            "area": f"mean {name} over {axis}",
            "time": f"{axis} to {name} {self.level}",
            "worst_client": f"final {name} of the worst client",
        }[self.by]

    def prefers_less(self, known: Collection[str]) -> bool:
        """Tell whether a smaller metric is better. known: metrics of which a problem says so."""
        return self.metric in known if self.less_is_better is None else self.less_is_better

    def values(self, curves: xr.Dataset, *, is_strict: bool = False) -> xr.DataArray:
        """Measure every lane.

        A lane that failed has the worst value: an accuracy of 0; of other metrics infinity; and of
        times the end of the shortest lane that neither failed nor was stopped, which also bounds
        all other times.

        Args:
          curves: Curves of a sweep, with dimension `eval`.
          is_strict: Whether lanes that collapsed to chance count as failed lanes do, see
            `collapsed`.

        Returns:
          One number for each lane, with the dimensions of lanes; the attribute `worst` is that of
          lanes that failed.

        Raises:
          ConfigError: If the curves lack the metric or the axis.
        """
        failed, is_less = curves["failed"], self.prefers_less(less_is_better(curves))
        metric, along = self._arrays(curves)
        bad = (failed | self.collapsed(curves) if is_strict else failed).values.ravel()
        if self.by == "time":
            seen = self.first(metric, along, failed.values.ravel(), is_less=is_less)
            is_whole = curves["stopped_at"].values.ravel() < 0 if "stopped_at" in curves else True
            found, worst = seen.bounded(~failed.values.ravel() & is_whole)
        else:
            worst = np.inf if is_less else 0.0 if "accuracy" in self.metric else -np.inf
            found = self.measure(metric, along, is_less=is_less)
        values = failed.copy(data=np.where(bad, worst, found).reshape(failed.shape))
        return values.assign_attrs(worst=worst)

    def collapsed(self, curves: xr.Dataset) -> xr.DataArray:
        """Mark the lanes that ended at chance.

        Chance is of the metrics that the problem names. Of another one, such as a group's accuracy
        where the server's model stays as it was, it says nothing.

        Args:
          curves: Curves of a sweep, as in `values`.

        Returns:
          A bool for each lane, with the dimensions of lanes.
        """
        return (curves["collapsed_at"] >= 0) & bool(curves[self.metric].attrs.get(CHANCE))

    def scores(self, curves: xr.Dataset) -> xr.DataArray:
        """Score every lane: more is better, and lanes that collapsed count as failed ones do.

        Args:
          curves: Curves of a sweep, as in `values`.

        Returns:
          One number for each lane, with the dimensions of lanes.
        """
        is_less = self.by == "time" or self.prefers_less(less_is_better(curves))
        sign = -1 if is_less else 1
        values = self.values(curves, is_strict=True)
        worst = sign * values.attrs["worst"]
        return (sign * values).assign_attrs(criterion=str(self), sign=sign, worst=worst)

    def measure(self, metric: np.ndarray, along: np.ndarray, *, is_less: bool) -> np.ndarray:
        """Measure lanes up to their newest evaluation, whatever became of them; not for times.

        Args:
          metric: `f[L, V]`, or `f[L, V, N]` for the worst client.
          along: `f[L, V]`, the axis.
          is_less: Whether less is better.

        Returns:
          `f[L]`.
        """
        if self.by == "area":
            width = np.diff(along, axis=1)
            found: np.ndarray = (metric[:, :-1] * width).sum(axis=1) / width.sum(axis=1)
            return found
        last: np.ndarray = metric[:, -WINDOW:].mean(axis=1)
        if self.by == "worst_client":  # Clients without test examples have NaN.
            return np.nanmax(last, axis=1) if is_less else np.nanmin(last, axis=1)
        return last

    def reached(self, curves: xr.Dataset) -> Reached:
        """Return where each lane first reaches the level; a lane that failed never does.

        Args:
          curves: Curves of a sweep, as in `values`.
        """
        is_less = self.prefers_less(less_is_better(curves))
        return self.first(*self._arrays(curves), curves["failed"].values.ravel(), is_less=is_less)

    def first(
        self, metric: np.ndarray, along: np.ndarray, failed: np.ndarray, *, is_less: bool
    ) -> Reached:
        """Return where lanes first reach the level, as `reached` does, of arrays.

        Args:
          metric: `f[L, V]`.
          along: `f[L, V]`, the axis.
          failed: `bool[L]`, which lanes failed.
          is_less: Whether less is better.
        """
        assert self.level is not None
        is_there = metric <= self.level if is_less else metric >= self.level
        reached = is_there.any(axis=1) & ~failed
        places = np.where(reached, is_there.argmax(axis=1), along.shape[1] - 1)
        times = np.take_along_axis(along, places[:, None], axis=1)[:, 0]
        return Reached(times.astype(float), reached, along[:, -1].astype(float))

    def _arrays(self, curves: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
        """Return the metric, `f[L, V]` or `f[L, V, N]`, and the axis, `f[L, V]`."""
        lanes = curves["failed"]
        dims = [*lanes.dims, "eval", *(["client"] if self.by == "worst_client" else [])]
        known = [str(name) for name, each in curves.data_vars.items() if {*each.dims} == {*dims}]
        if self.metric not in known:
            raise ConfigError("metric", self.metric, f"one of {', '.join(known) or 'none here'}")
        axis = reports.ALL_AXES[self.against]
        if axis not in curves.variables:
            raise ConfigError("against", self.against, "an axis of the curves, which lack it")
        metric = curves[self.metric].transpose(*dims).values
        like = lanes.expand_dims(eval=curves.sizes["eval"], axis=-1)
        along = curves[axis].reset_coords(drop=True).broadcast_like(like)
        along = along.transpose(*lanes.dims, "eval")
        shape = (lanes.size, curves.sizes["eval"])
        return metric.reshape(*shape, *metric.shape[lanes.ndim + 1 :]), along.values.reshape(shape)


def less_is_better(curves: xr.Dataset) -> set[str]:
    """Name the metrics of which less is better, as curves say."""
    return {str(name) for name, each in curves.data_vars.items() if each.attrs.get(LESS)}


LESS, CHANCE = "less_is_better", "has_chance"
"""Attributes of a metric of which less is better, and of one of which chance is known."""
