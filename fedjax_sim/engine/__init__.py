"""The engine: draw schedules, decide what runs where, replay the schedules through an algorithm.

It knows no system and no problem. Start reading with `sweeps`, whose `_run_group` shows the order.
`drawing` draws the schedules (phase one). `schedule` cuts them to length and plans where old models
are kept, with `store` and `held_models`. `lanes` and `placement` decide what runs together and on
which device. `replay` runs the compiled program (phase two), and `curves` labels the results. These
modules use `checkpoint`, `progress`, `compile_meter` and `step_cost`.
"""

from fedjax_sim.engine.placement import Layout, keep_compiled, use_cores
from fedjax_sim.engine.sweeps import Run, simulate, sweep

__all__ = ["Layout", "Run", "keep_compiled", "simulate", "sweep", "use_cores"]
