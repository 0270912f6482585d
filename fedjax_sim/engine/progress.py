"""A progress line on the terminal. Nothing is shown where standard error is no terminal."""

import sys
import time
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedjax_sim.engine.schedule import Schedule


class Progress:
    """Shows ticks per second, virtual time, lanes that diverged, and the remaining time."""

    def __init__(self, name: str, schedule: Schedule, *, enabled: bool):
        """Prepare the line. name: what runs. enabled: whether to show it on a terminal."""
        self._schedule, self._num_evals = schedule, schedule.ticks.shape[1] - 1
        columns = (
            TextColumn(name),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
        )
        self._bar = Bar(
            *columns,
            console=Console(file=sys.stderr),
            transient=True,
            disable=not (enabled and sys.stderr.isatty()),
        )
        self._task = self._bar.add_task(name, total=self._num_evals, facts="compiling")

    def __enter__(self) -> Self:
        self._bar.start()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, done: int, metrics: dict[str, np.ndarray]) -> None:
        """Show that `done` evaluations of all lanes are done. metrics: `[L, V + 1]` each."""
        done = min(done, self._num_evals)
        rate = self._schedule.ticks[:, done].sum() / (time.perf_counter() - self._began)
        failed = int((~metrics["finite"][:, : done + 1].all(axis=1)).sum())
        facts = f"{rate:.0f} ticks/s, virtual time {self._schedule.time[:, done].mean():g}"
        if failed:
            facts += f", {failed} diverged"
        self._bar.update(self._task, completed=done, facts=facts)
