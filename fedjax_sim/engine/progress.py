"""Show how far lanes are: on a terminal, in a notebook, in lines, or in a file for others to read.

By default progress is shown where somebody looks, on a terminal and in a notebook, and nothing is
written into pipes and files.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedjax_sim.lifecycle import is_terminal, tell, write_whole
from fedjax_sim.settings import ConfigError

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
        has_bar = may_show and is_terminal(sys.stderr)
        self._has_lines = shown is True and not self._is_notebook and not has_bar
        self._cell: Any = None
        self._said = self._began = -np.inf
        self._before = 0
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
            disable=self._is_notebook or not has_bar,
        )
        self._task = self._bar.add_task(name, total=self._num_evals, facts="compiling")

    def begin(self) -> None:
        """Say that programs are being compiled."""
        self._bar.start()
        self._write("compiling")
        self._began = time.perf_counter()

    def end(self) -> None:
        """Take the bar off the terminal."""
        if not self._bar.disable:  # Before version 15, rich ends a bar that is off by a line.
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
            self._show_in_notebook(line)
        is_last = facts.startswith(f"{self._num_evals} of")
        if self._has_lines and (is_last or time.perf_counter() - self._said >= PAUSE):
            self._said = time.perf_counter()
            tell(line)
        if self._file is not None:
            with contextlib.suppress(OSError):
                write_whole(
                    self._file,
                    lambda path: path.write_text(f"{line}\n", encoding="utf-8"),
                    lasts=False,
                )

    def _show_in_notebook(self, line: str) -> None:
        """Show a line under the notebook's cell, in place of the one before."""
        from IPython.display import display

        content = {"text/plain": line}
        if self._cell is None:
            self._cell = display(content, raw=True, display_id=True)
        else:
            self._cell.update(content, raw=True)


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
    return bool(shown) or (shown is None and (is_terminal(sys.stderr) or in_notebook()))


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
