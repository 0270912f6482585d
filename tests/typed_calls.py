"""Calls for mypy, which checks this file with the package: mistakes in arguments are found.

Nothing runs this. mypy is told to ignore the lines with a planted mistake, and as
`warn_unused_ignores` is set, it fails if it finds nothing there, or anything elsewhere.
"""

import jax

import fedjax_sim
from fedjax_sim import Layout, System, Timeline
from fedjax_sim.core.types import LatentProblem, Problem
from fedjax_sim.systems import fedavg


def correct(
    problem: Problem, latent: LatentProblem, system: System, timeline: Timeline
) -> jax.Array:
    """Call sweeps as they are meant to be called."""
    run = fedjax_sim.sweep(
        fedavg.system,
        problem,
        fedavg.paper(num_clients=20, lr=0.1),
        seeds=3,
        settings={"lr": [0.1, 0.2]},
        budget=fedjax_sim.Ticks(5),
        layout=Layout(slots_at_once=1),
    )
    fedjax_sim.sweep(system, [problem, problem], seeds=[1, 2], budget=fedjax_sim.Ticks(5))
    fedjax_sim.sweep(system, lambda seed: latent, seeds=(1, 2), budget=fedjax_sim.Ticks(5))
    return run.hypers[0].lr * run.timelines[0].time


def wrong(problem: Problem, system: System, timeline: Timeline) -> None:
    """Misspell an option, and give other types and systems than there are."""
    ticks = fedjax_sim.Ticks(5)
    fedjax_sim.sweep(system, problem, budget=ticks, num_eval=5)  # type: ignore[call-arg]
    fedjax_sim.simulate(system, problem, budget=ticks, num_eval=5)  # type: ignore[call-arg]
    fedjax_sim.sweep(system, problem)  # type: ignore[call-arg]
    fedjax_sim.sweep(system, problem, budget=5)  # type: ignore[arg-type]
    fedjax_sim.simulate(system, problem, budget=ticks, keep=True)  # type: ignore[arg-type]
    fedjax_sim.Checkpoints(resume=True)  # type: ignore[call-arg]
    fedjax_sim.sweep(system, problem, budget=ticks, layout="wide")  # type: ignore[arg-type]
    fedjax_sim.sweep(system, problem, budget=ticks, seeds=2.5)  # type: ignore[arg-type]
    fedjax_sim.sweep("fedzip", problem, budget=ticks)  # type: ignore[arg-type]
    fedjax_sim.sweep(fedjax_sim.systems.fedzip.system, problem, budget=ticks)  # type: ignore[attr-defined]
    fedjax_sim.sweep(system, timeline, budget=ticks)  # type: ignore[arg-type]
