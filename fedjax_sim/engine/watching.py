"""Watch lanes while they run: show progress, feed trackers, and ask the caller which lanes stop.

By default progress is shown where somebody looks, on a terminal and in a notebook, and nothing is
written into pipes and files.

Dimension letters: `L` lanes that run together, `v` evaluations so far, not counting the initial
one, `V` evaluations of the whole run.
"""

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError, Count, Whole, checked
from fedjax_sim.engine.planning.lanes import Lane
from fedjax_sim.results.curves import NEVER
from fedjax_sim.results.trackers import Tracker

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

Shown = bool | Path | None
"""None: on a terminal and in a notebook; True: also as lines elsewhere; False: nowhere; a path: in
a file that always holds one line."""


PAUSE = 5.0
"""Least seconds between two lines in a pipe."""


class Display:
    """Shows ticks per second, virtual time, lanes that diverged, and the remaining time."""

    def __init__(self, name: str, ticks: np.ndarray, time: np.ndarray, *, shown: Shown):
        """Prepare the line.

        Args:
          name: What runs.
          ticks: `i64[L, V + 1]`, ticks of each lane before each evaluation.
          time: `f64[L, V + 1]`, virtual time at each evaluation.
          shown: Whether and where.
        """
        self._name, self._file = name, shown if isinstance(shown, Path) else None
        self._ticks, self._times, self._num_evals = ticks, time, ticks.shape[1] - 1
        may_show = shown is None or shown is True
        self._is_notebook = may_show and in_notebook()
        has_bar = may_show and lifecycle.is_terminal(sys.stderr)
        self._has_lines = shown is True and not self._is_notebook and not has_bar
        self._cell: Any = None
        self._said = self._began = -np.inf
        self._before = 0
        self._bar: Bar | None = None
        if has_bar and not self._is_notebook:
            self._bar = _bar_of(name)
            self._task = self._bar.add_task(name, total=self._num_evals, facts="compiling")

    def __enter__(self) -> None:
        """Say that programs are being compiled."""
        if self._bar is not None:
            self._bar.start()
        self._write("compiling")
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        """Take the bar off the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Show that `done` evaluations of all lanes are done. metrics: `[L, V + 1, ...]` each."""
        now = time.perf_counter()
        ticks = self._ticks[:, done].sum() - self._ticks[:, self._before].sum()
        seconds = max(now - self._began, 1e-9)
        failed = int((~metrics["finite"][:, : done + 1].all(axis=1)).sum())
        facts = f"{ticks / seconds:.0f} ticks/s, virtual time {self._times[:, done].mean():g}"
        if failed:
            facts += f", {failed} diverged"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, facts=facts)
        left = seconds * (self._num_evals - done) / max(done - self._before, 1)
        if self._before == 0:
            # The first stretch includes compilation, which later rates leave out.
            self._before, self._began = done, now
        self._write(f"{done} of {self._num_evals} evaluations, {facts}, about {left:.0f} s left")

    def _write(self, facts: str) -> None:
        """Replace the line of the notebook and of the file, and add one to a pipe.

        A file that cannot be written ends no run.
        """
        line = f"{self._name}: {facts}"
        if self._is_notebook:
            from IPython.display import display

            # Under the notebook's cell, in place of the line before.
            content = {"text/plain": line}
            if self._cell is None:
                self._cell = display(content, raw=True, display_id=True)
            else:
                self._cell.update(content, raw=True)
        is_last = facts.startswith(f"{self._num_evals} of")
        if self._has_lines and (is_last or time.perf_counter() - self._said >= PAUSE):
            self._said = time.perf_counter()
            lifecycle.tell(line)
        if self._file is not None:
            with contextlib.suppress(OSError):
                lifecycle.write_whole(
                    self._file,
                    lambda path: path.write_text(f"{line}\n", encoding="utf-8"),
                    lasts=False,
                )


def _bar_of(name: str) -> "Bar":
    """Make the bar of a terminal."""
    from rich.console import Console  # Slow to import.
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    first, facts = (TextColumn(name), BarColumn()), TextColumn("{task.fields[facts]}")
    columns = *first, TaskProgressColumn(), facts, TimeRemainingColumn()
    return Bar(*columns, console=Console(file=sys.stderr), transient=True)


def check_file(path: Path) -> None:
    """Check that the file that is to hold the line can be written.

    Raises:
      ConfigError: If it cannot.
    """
    try:
        is_free = not path.exists() or path.is_file()
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError):
        is_free = False
    if not is_free:
        raise ConfigError("progress", str(path), "a file in a folder that can be written")


def is_shown(shown: Shown) -> bool:
    """Tell whether anything is shown to anybody."""
    return bool(shown) or (shown is None and (lifecycle.is_terminal(sys.stderr) or in_notebook()))


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of the lanes that run together, as `on_evaluation` receives it.

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


@checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch:
    """Who watches a run, and may stop it.

        watch = fedjax_sim.Watch(on_evaluation=lambda now: now.metrics["loss"][:, -1] < 0.1)
        budget = fedjax_sim.Ticks(20)
        run = fedjax_sim.simulate(fedavg.system, problem, hyper, budget=budget, watch=watch)

    Attributes:
      progress: Whether to show how far the lanes are. None: on a terminal and in a notebook. True:
        also as lines in a pipe. False: nowhere. Or a file that is to hold one line.
      on_evaluation: Called on the host after each evaluation but the initial and the last one, or
        after every `evals_per_chunk` of a layout, with a `Progress`: everything known so far. What
        it returns stops lanes: True all, a list of bools some, None or False none. It may be called
        again with the same progress in a resumed run, and should decide by that alone. A stopped
        lane stays stopped in a resumed run, also if the function is another one by then.
      trackers: What keeps metrics while lanes run, see `fedjax_sim.results.trackers`.
    """

    progress: bool | str | Path | None = None
    on_evaluation: OnEvaluation | None = None
    trackers: Sequence[Tracker] = ()

    @property
    def shown(self) -> Shown:
        """Whether and where progress is shown."""
        return self.progress if isinstance(self.progress, bool | None) else Path(self.progress)

    @property
    def is_needed(self) -> bool:
        """Whether the host wants to see every evaluation."""
        return is_shown(self.shown) or self.on_evaluation is not None or bool(self.trackers)


class Watcher:
    """Passes on the progress of lanes that run together, after each of their evaluations.

    Attributes:
      display: Shows the progress; a context that is open while the lanes run.
    """

    def __init__(
        self,
        system: str,
        group: Sequence[Lane],
        ticks: np.ndarray,
        time: np.ndarray,
        watch: Watch,
        *,
        is_batched: bool = False,
    ):
        """Prepare the display. Of several processes only the first one shows and tracks anything.

        Args:
          system: Name of the system.
          group: L lanes.
          ticks: `i64[L, V + 1]`, server actions of each lane before each evaluation.
          time: `f64[L, V + 1]`, virtual time of each evaluation.
          watch: Who watches.
          is_batched: Whether all lanes are computed together, so that a stopped one costs time.
        """
        self._system, self._group, self._ticks, self._time = system, group, ticks, time
        is_first = jax.process_index() == 0
        self.display = Display(system, ticks, time, shown=watch.shown if is_first else False)
        self._trackers = watch.trackers if is_first else ()
        self._on_evaluation = watch.on_evaluation
        self._is_batched, self._tracked = is_batched, 0
        self._order = np.argsort([lane.place for lane in group])

    def know(self, ticks: np.ndarray, time: np.ndarray) -> None:
        """Take over the ticks and times of live lanes so far.

        Args:
          ticks: `i64[L, v + 1]`, server actions of each lane before each evaluation.
          time: `f64[L, v + 1]`, virtual time of each evaluation.
        """
        for known, new in ((self._ticks, ticks), (self._time, time)):
            num = min(new.shape[1], known.shape[1])
            known[:, :num], known[:, num:] = new[:, :num], new[:, num - 1 : num]

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
        self.display.update(done, metrics)
        self.track(done, metrics, stopped_at)
        nobody = np.zeros(len(self._group), bool)
        if self._on_evaluation is None or done == num_evals:
            return nobody
        # Lanes in the order of the results.
        lanes, known = [self._group[i] for i in self._order], slice(done + 1)
        progress = Progress(
            system=self._system,
            lanes=[lane.place for lane in lanes],
            settings=[dict(lane.point) for lane in lanes],
            seeds=[lane.seed for lane in lanes],
            evaluation=done,
            num_evals=num_evals,
            ticks=self._ticks[self._order, known],
            time=self._time[self._order, known],
            metrics={name: values[self._order, known] for name, values in metrics.items()},
            stopped=stopped_at[self._order] != NEVER,
        )
        answer = self._on_evaluation(progress)
        stops = np.asarray(False if answer is None else answer)
        if stops.dtype != bool or stops.shape not in ((), nobody.shape):
            allowed = f"None, True, False or one bool for each of the {len(nobody)} lanes"
            raise ConfigError("what on_evaluation returned", answer, allowed)
        asked = nobody.copy()
        asked[self._order] = stops
        asked &= stopped_at == NEVER
        if self._is_batched and asked.any() and not (asked | (stopped_at != NEVER)).all():
            self._is_batched = False
            lifecycle.say(
                f"lanes of {self._system} are computed together here, so a stopped one saves time "
                "only once all have stopped; with layout=Layout(lanes_at_once=False) it costs "
                "nothing more, and with lanes_at_once=True, lane_batches=3 others take its place."
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
