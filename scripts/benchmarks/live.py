"""Memory of programs with live clocks, and of planned ones that do the same work."""

from typing import Any

from benchmarks.programs import LIVE, images

from fedjax_sim import Layout, Ticks
from fedjax_sim.engine.shares import listed
from fedjax_sim.systems import fedavg, fedbuff
from fedjax_sim.types import System

CLIENTS, LANES = (100, 10_000), (1, 64)
SHARED = {"local_steps": 10, "batch_size": 32, "rate_spread": 1.0}
SYSTEMS: dict[str, tuple[Any, dict[str, int]]] = {
    "fedavg": (fedavg, {"num_selected": 10}),
    "fedbuff": (fedbuff, {"buffer_size": 10, "concurrency": 20}),
}
"""Modules of planned systems, and settings."""


def bench_live(turns: int) -> dict[str, Any]:
    """Compile programs of 200 ticks with 20 evaluations, for lanes that run in turn.

    The network is a perceptron 784-32-10, for 20,000 training and 1,000 test images.
    """
    problem = images(32, train=20_000)
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
    return found


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
