"""The engine: draw schedules, decide what runs where, replay the schedules through an algorithm.

It knows no system and no problem. Start reading with `groups`, which shows the order; `sweeps`
checks a caller's inputs, and `pieces` calls `groups` for as many lanes at a time as fit in
`memory`. With several `processes` all of them make the same calls. `drawing` draws the schedules
(phase one). `schedule` cuts them to length and plans where old models are kept, with `store` and
`held_models`. `lanes` and `placement` decide what runs together and on which device. `replay` runs
the compiled program (phase two), `chunks` calls it, `watching` passes on what is known after each
evaluation and lets a caller stop lanes, `starts` gives lanes their first models, and `curves`
labels the results, which `runs` holds and `run_files` keeps. `division` divides the lanes among
parts that run in several processes or on several machines. These modules use `checkpoint`,
`progress`, `compile_meter` and `step_cost`.

What is deterministic. The same call on the same machine with the same versions gives the same bits,
in one piece or resumed from a checkpoint; on a GPU only with the flag
`XLA_FLAGS=--xla_gpu_deterministic_ops=true`. A schedule depends on seed and settings alone, up to
the last bit of its times. With `lanes_at_once` given by the caller, a lane's bits do not depend on
which other lanes run, nor on how many run at a time. Another layout, precision, machine or version
of JAX adds up in another order: results then agree up to rounding, which a long run may amplify.
Random numbers are those of JAX's implementation `jax_default_prng_impl`, which `config.json`
records.
"""

from fedjax_sim.engine.bad_lanes import CollapsedWarning, DivergedWarning, LaneWarning
from fedjax_sim.engine.placement import Layout, keep_compiled, use_cores
from fedjax_sim.engine.runs import Run, load
from fedjax_sim.engine.sweeps import simulate, sweep
from fedjax_sim.engine.watching import Progress

__all__ = [
    "CollapsedWarning",
    "DivergedWarning",
    "LaneWarning",
    "Layout",
    "Progress",
    "Run",
    "keep_compiled",
    "load",
    "simulate",
    "sweep",
    "use_cores",
]
