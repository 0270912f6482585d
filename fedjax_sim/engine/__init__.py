"""The engine: draw schedules, choose a layout, replay the schedules through an algorithm.

It knows no system and no problem. Start reading with `sweeps`, whose `_run_group` shows the order:
`drawing` (phase one), `schedule` (plan on the host: `store`, `held_models`), `lanes` and
`placement` (who runs where), `replay` (phase two: the compiled program), `curves` (labelled
results). `checkpoint`, `progress`, `compile_meter` and `step_cost` are what these use.
"""

from fedjax_sim.engine.placement import Layout, keep_compiled, use_cores
from fedjax_sim.engine.sweeps import Run, simulate, sweep

__all__ = ["Layout", "Run", "keep_compiled", "simulate", "sweep", "use_cores"]
