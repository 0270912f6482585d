"""Watch lanes while they run: show progress, feed trackers, and ask the caller which lanes stop.

Dimension letters: `L` lanes that run together, `v` evaluations so far, not counting the initial
one, `V` evaluations of the whole run.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_sim.checking import Count, Whole, checked
from fedjax_sim.engine.curves import NEVER
from fedjax_sim.engine.lanes import Lane
from fedjax_sim.engine.progress import Display, Shown
from fedjax_sim.lifecycle import say
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Tracker


@checked
@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the lanes that run together are: what `on_evaluation` receives.

    All lanes of a sweep run together if they have equal static settings and fit in memory;
    otherwise `on_evaluation` is called for one part of the lanes after another. Lanes are in the
    order of the results: settings as given, then seeds.

    Attributes:
      system: Name of the system.
      lanes: Position of each lane in the flattened results.
      settings: The values of each lane's swept settings, by name.
      seeds: Each lane's seed.
      evaluation: Number of the newest evaluation, v; the initial one is number 0.
      num_evals: Number of the last evaluation, V.
      ticks: `i64[L, v + 1]`, server actions before each evaluation.
      time: `f64[L, v + 1]`, virtual time of each evaluation.
      metrics: All metrics so far by name, `[L, v + 1, ...]`. A lane that was stopped repeats its
        last values.
      stopped: `bool[L]`, whether a lane was stopped at an earlier evaluation.
    """

    system: str
    lanes: Sequence[int]
    settings: Sequence[Mapping[str, Any]]
    seeds: Sequence[int]
    evaluation: Whole
    num_evals: Count
    ticks: np.ndarray
    time: np.ndarray
    metrics: Mapping[str, np.ndarray]
    stopped: np.ndarray


Stop = bool | Sequence[bool] | np.ndarray | None
"""Which lanes stop: all (True), none (False or None), or one answer for each lane."""
OnEvaluation = Callable[[Progress], Stop]


class Watch:
    """Passes on what lanes that run together have reached, after each of their evaluations."""

    def __init__(
        self,
        system: str,
        group: Sequence[Lane],
        ticks: np.ndarray,
        time: np.ndarray,
        *,
        shown: Shown = False,
        trackers: Sequence[Tracker] = (),
        on_evaluation: OnEvaluation | None = None,
        is_batched: bool = False,
    ):
        """Prepare the display.

        Args:
          system: Name of the system.
          group: L lanes.
          ticks: `i64[L, V + 1]`, server actions of each lane before each evaluation.
          time: `f64[L, V + 1]`, virtual time of each evaluation.
          shown: Whether and where progress is shown, see `fedjax_sim.engine.progress`.
          trackers: What keeps metrics.
          on_evaluation: Decides which lanes stop.
          is_batched: Whether lanes are computed together, so that a stopped one still costs time.
        """
        self._system, self._group, self._ticks, self._time = system, group, ticks, time
        self._display = Display(system, ticks, time, shown=shown)
        self._trackers, self._on_evaluation = trackers, on_evaluation
        self._is_batched, self._tracked = is_batched, 0
        self._order = np.argsort([lane.place for lane in group])

    def begin(self) -> None:
        """Begin the display."""
        self._display.begin()

    def close(self) -> None:
        """End the display."""
        self._display.end()

    def update(
        self, done: int, metrics: Mapping[str, np.ndarray], stopped_at: np.ndarray
    ) -> np.ndarray:
        """Pass an evaluation on.

        Args:
          done: Number of the newest evaluation.
          metrics: All metrics, `[L, V + 1, ...]`, known up to that evaluation.
          stopped_at: `i64[L]`, the evaluation at which a lane stopped, or `NEVER`.

        Returns:
          `bool[L]`, which lanes are to stop. At the last evaluation none is.

        Raises:
          ConfigError: If `on_evaluation` returned something else than it should.
        """
        num_evals = self._ticks.shape[1] - 1
        done = min(done, num_evals)
        self._display.update(done, metrics)
        self.track(done, metrics, stopped_at)
        nobody = np.zeros(len(self._group), bool)
        if self._on_evaluation is None or done == num_evals:
            return nobody
        answer = self._on_evaluation(self._progress(done, metrics, stopped_at))
        stops = np.asarray(False if answer is None else answer)
        if stops.dtype != bool or stops.shape not in ((), nobody.shape):
            allowed = f"None, True, False or one bool for each of the {len(nobody)} lanes"
            raise ConfigError("what on_evaluation returned", answer, allowed)
        asked = nobody.copy()
        asked[self._order] = stops
        asked &= stopped_at == NEVER
        if self._is_batched and asked.any() and not (asked | (stopped_at != NEVER)).all():
            self._is_batched = False
            say(
                f"lanes of {self._system} are computed together here, so a stopped one saves time "
                "only once all have stopped; with layout=Layout(lanes_at_once=False) it costs "
                "nothing more."
            )
        return asked

    def track(
        self, done: int, metrics: Mapping[str, np.ndarray], stopped_at: np.ndarray | None = None
    ) -> None:
        """Give trackers all evaluations up to `done` that they do not have yet."""
        single = {name: each for name, each in metrics.items() if each.ndim == 2}
        single.pop("finite", None)
        for at in range(self._tracked, done + 1 if self._trackers else 0):
            for i in self._order:
                if stopped_at is not None and NEVER < stopped_at[i] < at:
                    continue
                lane = self._group[i]
                label = {"system": self._system, **lane.point, "seed": lane.seed}
                values = {name: float(each[i, at]) for name, each in single.items()}
                values |= {"evaluation": float(at), "virtual_time": float(self._time[i, at])}
                for tracker in self._trackers:
                    tracker.log(label, int(self._ticks[i, at]), values)
        self._tracked = done + 1

    def _progress(
        self, done: int, metrics: Mapping[str, np.ndarray], stopped_at: np.ndarray
    ) -> Progress:
        """Describe the state after an evaluation, lanes in the order of the results."""
        lanes, known = [self._group[i] for i in self._order], slice(done + 1)
        return Progress(
            system=self._system,
            lanes=[lane.place for lane in lanes],
            settings=[dict(lane.point) for lane in lanes],
            seeds=[lane.seed for lane in lanes],
            evaluation=done,
            num_evals=self._ticks.shape[1] - 1,
            ticks=self._ticks[self._order, known],
            time=self._time[self._order, known],
            metrics={name: values[self._order, known] for name, values in metrics.items()},
            stopped=stopped_at[self._order] != NEVER,
        )
