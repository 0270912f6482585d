"""Run the simulator from the command line: `fedjax-sim run`, `tune`, `compare` and others.

`commands` is the entry point, with the table of all flags. It parses the words, and only then loads
the module of the command: `listing` (list), `training` (run), `studying` (tune, compare),
`plotting` (plot, merge) or `schedules` (timeline). `arguments` turns texts into checked values.
From these `comparison` makes systems with their settings, and `data` problems. `defaults` has the
values of what the user leaves out. `tables` prints results.
"""

from fedjax_sim.cli.commands import main as main
