"""Run the simulator from the command line: `fedjax-sim list`, `run` and `timeline`.

`commands` is the entry point. It reads the words with `parser`, and only then loads the module of
the command: `listing` (list), `training` (run) or `schedules` (timeline). `arguments` turns texts
into checked values, `comparison` into systems, settings and problems, with the values of `defaults`
if the user gives none. `schedule_report` measures and draws schedules, `tables` prints results.
"""

from fedjax_sim.cli.commands import main

__all__ = ["main"]
