"""Memory and time of programs with live clocks, and of planned ones that do the same work."""

from collections.abc import Callable
from typing import Any

from benchmarks.programs import LIVE, images
from benchmarks.timing import in_turns, wall

import fedjax_sim
from fedjax_sim import Layout, Ticks, Time
from fedjax_sim.core.types import System
from fedjax_sim.engine.shares import listed
from fedjax_sim.systems import fedavg, fedbuff

CLIENTS, LANES = (100, 10_000), (1, 64)
SHARED = {"local_steps": 10, "batch_size": 32, "rate_spread": 1.0}
SYSTEMS: dict[str, tuple[Any, dict[str, int]]] = {
    "fedavg": (fedavg, {"num_selected": 10}),
    "fedbuff": (fedbuff, {"buffer_size": 10, "concurrency": 20}),
}
"""Modules of planned systems, and settings."""
WORK = {
    "10 steps of 32 examples": {},
    "1 step of 4 examples": {"local_steps": 1, "batch_size": 4},
}
TICKS = 200
"""Ticks of a program. A single lane of it is timed."""
ENDS = 60
"""Mean ticks of 64 lanes that end at a virtual time; each has three times as many at most."""


def bench_live(turns: int) -> dict[str, Any]:
    """Compile programs of 200 ticks with 20 evaluations, for lanes that run in turn, and time some.

    Times are of ticks: of one lane of 200 ticks, and of 64 lanes that end at one virtual time, and
    so at different ticks. All have 100 clients. The network is a perceptron 784-32-10, for 20,000
    training and 1,000 test images.
    """
    problem = images(32)._replace(train=20_000)
    found: dict[str, Any] = {}
    for name, (module, settings) in SYSTEMS.items():
        for clients in CLIENTS:
            hyper = module.Hyper(num_clients=clients, **SHARED, **settings)
            learnt = problem(hyper)
            for lanes in LANES:
                found[f"{name}, {clients} clients, {lanes} lanes"] = {
                    "planned": _bytes(module.system, learnt, hyper, lanes),
                    "live": _bytes(LIVE[name], learnt, hyper, lanes),
                }
        for work, changes in WORK.items():
            hyper = module.Hyper(num_clients=CLIENTS[0], **(SHARED | settings | changes))
            learnt, systems = problem(hyper), {"planned": module.system, "live": LIVE[name]}
            of_lane = {kind: _lane(each, learnt, hyper) for kind, each in systems.items()}
            found[f"seconds of a tick, {name}, {work}"] = in_turns(of_lane, turns)
        ends = fedjax_sim.simulate(module.system, learnt, hyper, budget=Ticks(ENDS), num_evals=1)
        end, ticks = float(ends.curves.time[-1]), {}
        of_lanes = {
            kind: _lanes(each, learnt, hyper, end, ticks, kind) for kind, each in systems.items()
        }
        of_sweep = in_turns(of_lanes, turns)
        found[f"seconds of a tick, {name}, 64 lanes with {work}"] = of_sweep | ticks
    return found


def _lane(system: System, problem: Any, hyper: Any) -> Callable[[], float]:
    """Return a function that takes the ticks of one lane, and returns the seconds of one."""
    bound = fedjax_sim.bind(system, problem, hyper, budget=Ticks(TICKS))
    state = bound.init()
    return lambda: wall(lambda: bound.run(state)) / TICKS


def _lanes(
    system: System, problem: Any, hyper: Any, end: float, ticks: dict[str, Any], kind: str
) -> Callable[[], float]:
    """Return a function that sweeps 64 seeds, and returns the seconds of one lane's tick."""

    def run() -> float:
        runs: list[Any] = []
        budget = Time(end, most_ticks=3 * ENDS if system.live else None)
        seconds = wall(
            lambda: runs.append(
                fedjax_sim.sweep(system, problem, hyper, seeds=64, budget=budget, num_evals=1)
            )
        )
        of_lanes = runs[0].curves.ticks.values[..., -1]
        ticks[f"ticks of {kind} lanes"] = [int(of_lanes.min()), int(of_lanes.max())]
        return seconds / int(of_lanes.sum())

    return run


def _bytes(system: System, problem: Any, hyper: Any, lanes: int) -> dict[str, int]:
    """Compile a program, and return what its parts take."""
    (lowered,) = listed(
        system,
        problem,
        hyper,
        seeds=lanes,
        budget=Ticks(200),
        num_evals=20,
        layout=Layout(lanes_at_once=False),
    ).lower()
    memory: Any = lowered.compile().memory_analysis()
    return {
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
    }
