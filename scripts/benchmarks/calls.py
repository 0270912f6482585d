"""What a repeated call costs on the host in addition to the replay, with and without drawing."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fedjax_sim
from fedjax_sim.engine.planning import drawing
from fedjax_sim.engine.program import replay
from fedjax_sim.problems import Quadratic, make_gaussian_clients
from fedjax_sim.systems import favano, fedavg, langevin

CALLS, LANES = 20, 1500
FEW: dict[str, Any] = {"num_clients": 6, "num_selected": 3, "batch_size": 1, "local_steps": 2}


class Clock:
    """A function that adds up the time of its calls until their results are there.

    Attributes:
      seconds: Of all calls, and those of them in which this thread computed.
    """

    def __init__(self, function: Any):
        self._function, self.seconds = function, np.zeros(2)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        began = _now()
        result = jax.block_until_ready(self._function(*args, **kwargs))
        self.seconds += _now() - began
        return result

    def __getattr__(self, name: str) -> Any:
        """Look up what else the function has, such as `lower`."""
        return getattr(self._function, name)


def _now() -> np.ndarray:
    return np.array([time.perf_counter(), time.thread_time()])


def bench_calls(turns: int) -> dict[str, Any]:
    """Measure milliseconds of repeated calls: medians of twenty in each turn, and the least median.

    "cpu" counts the time in which the calling thread computes, which others on the machine disturb
    less.
    """
    quadratic = Quadratic.of(np.random.default_rng(0).normal(size=(6, 4)), noise=0.1)
    gaussian = make_gaussian_clients(0, alpha=0.0, dtype="float32")
    chains = langevin.paper(num_clients=50, local_steps=1, gradient="exact")
    few: dict[str, Any] = {"budget": fedjax_sim.Ticks(40), "num_evals": 8}
    sizes = {"step_size": list(np.geomspace(1e-8, 1e-6, 5))}

    def fedavg_of(lanes: int) -> Callable[[], Any]:
        hyper = fedavg.paper(**FEW)
        return lambda: fedjax_sim.sweep(fedavg.system, quadratic, hyper, seeds=lanes, **few)

    def favano_of(lanes: int) -> Callable[[], Any]:
        hyper = favano.paper(**FEW)
        return lambda: fedjax_sim.sweep(favano.system, quadratic, hyper, seeds=lanes, **few)

    calls = {
        "fedavg, 1 lane": fedavg_of(1),
        "favano, 1 lane": favano_of(1),
        f"fedavg, {LANES} lanes": fedavg_of(LANES),
        f"favano, {LANES} lanes": favano_of(LANES),
        f"langevin, {LANES} lanes": lambda: fedjax_sim.sweep(
            langevin.system,
            gaussian,
            chains,
            seeds=LANES // 5,
            settings=sizes,
            budget=fedjax_sim.Ticks(300),
        ),
    }
    begin = replay._begin
    programs = (
        (begin, "well"),
        (begin, "quickly"),
        (replay, "_advance"),
        (replay, "_final_models"),
    )
    clocks = [Clock(getattr(*program)) for program in programs]
    for program, clock in zip(programs, clocks, strict=True):
        setattr(*program, clock)
    drawn = Clock(drawing.draw_timelines)
    drawing.draw_timelines = drawn  # type: ignore[assignment]
    measured = {}
    for name, call in calls.items():
        call()
        found = [_median(call, clocks, drawn) for _ in range(turns)]
        measured[name] = {what: min(each[what] for each in found) for what in found[0]}
        print(name, measured[name], flush=True)
    return {"milliseconds": measured}


def _median(call: Callable[[], Any], programs: list[Clock], drawing: Clock) -> dict[str, float]:
    """Measure some calls."""
    rows = []
    for _ in range(CALLS):
        for clock in (*programs, drawing):
            clock.seconds = np.zeros(2)
        began = _now()
        call()
        host = _now() - began - sum(clock.seconds for clock in programs)
        replayed = sum(clock.seconds[0] for clock in programs)
        rows.append([replayed, *host, *(host - drawing.seconds)])
    names = ("replay", "host", "host, cpu", "without drawing", "without drawing, cpu")
    values = (1e3 * statistics.median(column) for column in zip(*rows, strict=True))
    return {name: round(float(value), 2) for name, value in zip(names, values, strict=True)}
