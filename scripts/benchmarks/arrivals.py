"""Schedules of many clients, and learning on them: seconds and peak memory.

Each contestant runs in a separate process, so that its peak memory can be told.
"""

import concurrent.futures
import heapq
import multiprocessing
import random
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from benchmarks.timing import in_turns

import fedjax_sim
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine.planning.drawing import draw_timelines
from fedjax_sim.models import MLP, LogisticRegression
from fedjax_sim.partition import Partition, iid
from fedjax_sim.problems import make_classification
from fedjax_sim.systems import fedstaleweight

NUM_CLIENTS = (10_000, 100_000, 1_000_000)
ARRIVALS_PER_CLIENT = 2
BUFFER = 1000
SYSTEM = fedstaleweight.system
GROWTH_CLIENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
GROWTH_SETTINGS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "fedavg": ("fedavg", lambda num: {"num_selected": 20}),
    "favano": ("favano", lambda num: {"num_selected": 20}),
    "fedbuff": ("fedbuff", lambda num: {"buffer_size": 20, "restart": "after_interaction"}),
    "fedbuff, a tenth at work": (
        "fedbuff",
        lambda num: {"buffer_size": 20, "concurrency": num // 10},
    ),
    "gen_async, a task for ten": ("gen_async", lambda num: {"num_tasks": num // 10}),
}
"""Contestants whose cost per tick is measured: a system, and settings for a number of clients. All
but Generalized AsyncSGD, whose ticks have one slot, have cohorts of 20."""
GROWTH_TICKS = (100, 2100)
"""Two lengths of a run; their difference tells the cost of a tick from what is done once."""


def bench_arrivals(turns: int) -> dict[str, Any]:
    """Measure schedules of two arrivals per client, by the package and by a plain Python heap.

    Staleness is exact in both. Learning is then measured on the largest schedule.
    """
    found: dict[str, Any] = {}
    for num in NUM_CLIENTS:
        ours, heap = (_apart(task, num, turns) for task in (_ours, _heap))
        ratio = heap["seconds"] / ours["seconds"]
        found[f"{num} clients, {ARRIVALS_PER_CLIENT * num} arrivals"] = {
            "ours": ours,
            "heap": heap,
            "heap over ours": ratio,
        }
    found["learning, 1000000 clients, logistic regression"] = _apart(_learn, NUM_CLIENTS[-1], 1)
    return found


def bench_asynchronous(turns: int) -> dict[str, Any]:
    """Measure FedStaleWeight's CIFAR-10 script: 16,000 server steps of 5 updates.

    The public benchmark, which really waits for its clients, would sleep 3.1 hours.
    """
    return {
        "schedule": _apart(_script_schedule, 16_000, turns),
        "perceptron on 32x32x3, schedule and learning": _apart(_script, 16_000, 1),
    }


def bench_growth(turns: int) -> dict[str, Any]:
    """Measure how the cost of a tick grows with the clients, by CPU time.

    Clients do two local steps, so that learning does not hide the rest.
    """
    return {
        f"{name}, {num} clients": _apart(_growth, name, num, turns)
        for name in GROWTH_SETTINGS
        for num in GROWTH_CLIENTS
    }


def _apart(task: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run a task in a new process, and add its peak memory in MiB beyond that of its imports."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_with_memory, task, *arguments).result()


def _with_memory(task: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    fedjax_sim.use_cores(1)
    jax.block_until_ready(jax.numpy.zeros(1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return task(*arguments) | {
        "peak MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    }


def _growth(name: str, num: int, turns: int) -> dict[str, Any]:
    """Measure drawing one lane's schedule, and the whole run, at two lengths."""
    name, settings = GROWTH_SETTINGS[name]
    system = fedjax_sim.SYSTEMS[name]
    problem = _two_images_each(num, (8, 8, 1))
    hyper = system.paper(num_clients=num, local_steps=2, batch_size=2, **settings(num))

    def draw(ticks: int) -> None:
        draw_timelines(system, [0], [hyper], ticks)

    def run(ticks: int) -> None:
        fedjax_sim.sweep(
            system, problem, hyper, seeds=1, budget=fedjax_sim.Ticks(ticks), num_evals=2
        )

    short, long = GROWTH_TICKS
    found = in_turns(
        {
            f"{task.__name__} {ticks}": partial(_cpu, partial(task, ticks))
            for task in (draw, run)
            for ticks in GROWTH_TICKS
        },
        turns,
    )
    result = {}
    for task, words in (("draw", "schedule"), ("run", "whole run")):
        per_tick = (found[f"{task} {long}"] - found[f"{task} {short}"]) / (long - short)
        result[f"{words}, ms a tick"] = 1e3 * per_tick
        result[f"{words}, ms once"] = 1e3 * (found[f"{task} {short}"] - short * per_tick)
    return result


def _cpu(call: Callable[[], None]) -> float:
    """Run a function, and return the seconds of CPU time that it took."""
    began = time.process_time()
    call()
    return time.process_time() - began


def _ours(num: int, turns: int) -> dict[str, Any]:
    """Draw the schedule with the package."""
    hyper = SYSTEM.paper(num_clients=num, buffer_size=BUFFER, rule="mean")
    seconds = []
    for _ in range(turns + 1):
        began = time.perf_counter()
        drawn = draw_timelines(SYSTEM, [0], [hyper], ARRIVALS_PER_CLIENT * num // BUFFER)
        seconds.append(time.perf_counter() - began)
    staleness = np.arange(drawn.time.shape[1])[:, None] - drawn.version[0]
    return {
        "seconds": float(np.median(seconds[1:])),
        "first call, with compilation": seconds[0],
        "mean staleness": float(staleness.mean()),
        "virtual time": float(drawn.time[0, -1]),
    }


def _heap(num: int, turns: int) -> dict[str, Any]:
    """Draw the schedule with a heap."""
    measured = [_one_heap(num) for _ in range(turns)]
    return {
        "seconds": float(np.median([seconds for seconds, _ in measured])),
        "mean staleness": measured[-1][1],
    }


def _one_heap(num: int) -> tuple[float, float]:
    """Draw one schedule by the same law, as one would write it in plain Python."""
    uniform = random.Random(0).uniform
    began = time.perf_counter()
    num_fast = num - -(-num // 3)
    ends = [(1.0, 2.0) if i < num_fast else (8.0, 12.0) for i in range(num)]
    waiting = [(uniform(*ends[i]), i) for i in range(num)]
    heapq.heapify(waiting)
    base = [0] * num
    clients, staleness = [], []
    version = filled = 0
    for _ in range(ARRIVALS_PER_CLIENT * num):
        clock, i = waiting[0]
        clients.append(i)
        staleness.append(version - base[i])
        filled += 1
        if filled == BUFFER:
            version, filled = version + 1, 0
        base[i] = version
        heapq.heapreplace(waiting, (clock + uniform(*ends[i]), i))
    return time.perf_counter() - began, sum(staleness) / len(staleness)


def _learn(num: int, turns: int) -> dict[str, Any]:
    """Learn with two of 60,000 images per client.

    The store holds as many old server models as the staleness requires.
    """
    problem = _two_images_each(num, (28, 28, 1))
    hyper = SYSTEM.paper(num_clients=num, buffer_size=BUFFER, batch_size=2)
    ticks = ARRIVALS_PER_CLIENT * num // BUFFER
    began = time.perf_counter()
    run = fedjax_sim.sweep(
        SYSTEM, problem, hyper, seeds=turns, budget=fedjax_sim.Ticks(ticks), num_evals=2
    )
    seconds = time.perf_counter() - began
    staleness = np.arange(ticks)[:, None] - run.timelines[0].version
    parameters = sum(leaf.size for leaf in jax.tree.leaves(problem.init(jax.random.key(0))))
    return {
        "seconds, with compilation": seconds,
        "updates per second": ticks * BUFFER / seconds,
        "largest staleness": int(staleness.max()),
        "store of models at least, MiB": float(staleness.max() * parameters * 4 / 2**20),
        "models of all clients would take, MiB": float(num * parameters * 4 / 2**20),
    }


def _script_schedule(ticks: int, turns: int) -> dict[str, Any]:
    """Draw the schedule of the script."""
    seconds = []
    for _ in range(turns + 1):
        began = time.perf_counter()
        drawn = draw_timelines(SYSTEM, [0], [SYSTEM.paper()], ticks)
        seconds.append(time.perf_counter() - began)
    virtual = float(drawn.time[0, -1])
    return {
        "seconds": float(np.median(seconds[1:])),
        "virtual seconds": virtual,
        "virtual over real": virtual / float(np.median(seconds[1:])),
    }


def _script(ticks: int, turns: int) -> dict[str, Any]:
    """Run the script with a perceptron on random images of 32x32x3."""
    data = _random_images((32, 32, 3))
    problem = make_classification(
        MLP((128,), 10), data, iid(data.train_labels, num_clients=15, seed=0)
    )
    began = time.perf_counter()
    run = fedjax_sim.sweep(
        SYSTEM,
        problem,
        SYSTEM.paper(),
        seeds=turns,
        budget=fedjax_sim.Ticks(ticks),
        num_evals=20,
    )
    seconds = time.perf_counter() - began
    virtual = float(run.timelines[0].time[-1])
    return {
        "seconds, with compilation": seconds,
        "virtual seconds": virtual,
        "virtual over real": virtual / seconds,
    }


def _two_images_each(num: int, shape: tuple[int, int, int]) -> Any:
    """Make a problem of logistic regression in which each client has two of 60,000 images."""
    rng = np.random.default_rng(0)
    partition = Partition(
        rng.integers(0, 60_000, 2 * num, dtype=np.int32), np.full(num, 2, np.int32)
    )
    return make_classification(LogisticRegression(10), _random_images(shape), partition)


def _random_images(shape: tuple[int, int, int]) -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (61_000, *shape), dtype=np.uint8)
    labels = rng.integers(0, 10, 61_000).astype(np.int32)
    return Dataset(images[:60_000], labels[:60_000], images[60_000:], labels[60_000:], 10, "random")
