"""Compile the programs of several sweeps at once, before each of them runs.

Compiling one program keeps little more than one core busy. JAX keeps what is compiled here, and
finds it when the sweep asks for the same programs.
"""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine.machine.compiling import CompileMeter, metered_apart
from fedjax_sim.engine.planning.drawing import QUICKLY_COMPILED, measure_plan
from fedjax_sim.engine.planning.lanes import Lane, groups_of
from fedjax_sim.engine.program.prepare import plan_group, schedules_of
from fedjax_sim.engine.request import Options, grid_of, list_lanes
from fedjax_sim.types import System

MOST_BYTES = 2**28
"""Bytes of a sweep's problems up to which its programs are compiled ahead: planning it may hold
these a second time while another sweep runs."""


@contextlib.contextmanager
def compiling_ahead(
    sweeps: Mapping[str, tuple[Mapping[str, Any], Options]],
) -> Iterator[Callable[[str], tuple[float, int]]]:
    """Compile the programs of sweeps, two sweeps at a time and in their order.

    Args:
      sweeps: By name, the arguments of `sweep` that are no options, and the options.

    Yields:
      A function that waits for the programs of a sweep and returns for how many seconds it waited,
      and how many programs were compiled. What is wrong with a sweep is left for the sweep to say.
    """
    with contextlib.ExitStack() as stack:
        workers = concurrent.futures.ThreadPoolExecutor(2)
        stack.callback(workers.shutdown, cancel_futures=True)
        jobs = {name: workers.submit(_compile, *each) for name, each in sweeps.items()}

        def wait(name: str) -> tuple[float, int]:
            began = time.perf_counter()
            if name not in jobs or jobs[name].exception() is not None:
                return 0.0, 0
            return time.perf_counter() - began, jobs[name].result()

        yield wait


def _compile(given: Mapping[str, Any], options: Options) -> int:
    """Compile the programs of a sweep whose lanes all run at a time, and count them."""
    grid = grid_of(given["seeds"], given["settings"])
    with metered_apart(), CompileMeter() as meter:
        lanes = list_lanes(given["system"], given["problem"], given["hyper"], grid, options)
        for group in groups_of(lanes):
            _compile_group(given["system"], group, options)
    return meter.count


def _compile_group(system: System, group: list[Lane], options: Options) -> None:
    """Compile the programs of a group, unless it is large."""
    firsts, row = schedules_of(system, group)
    drawn = [group[i].seed for i in firsts], [group[i].hyper for i in firsts]
    budget: dict[str, Any] = {"time_budget": options.time_budget, "num_ticks": options.num_ticks}
    size = measure_plan(system, *drawn, **budget)
    problems = [lane.problem for lane in group]
    if size.slots * size.num <= QUICKLY_COMPILED and _count_bytes(problems) <= MOST_BYTES:
        in_order = [group[i] for i in np.argsort(row, kind="stable")]
        plan_group(system, in_order, options).on_devices(is_described=True).compile()


def _count_bytes(problems: Sequence[Any]) -> int:
    """Count the bytes of the arrays of problems, each array once."""
    arrays = {id(leaf): leaf for problem in problems for leaf in jax.tree.leaves(problem)}
    return sum(getattr(leaf, "nbytes", 0) for leaf in arrays.values())
