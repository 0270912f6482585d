"""What `benchmarks.accelerator` measures, in the processes that it starts for it.

A request is a mapping with the key "do", one of `DO`, and that function's arguments; the answer is
a mapping too. Both can be written as JSON.
"""

import functools
import gc
import importlib.metadata
import inspect
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks import programs, traces
from benchmarks.convolution import multiplications
from benchmarks.timing import in_turns, wall

import fedjax_sim
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine.program.replay import Replay
from fedjax_sim.models import CONVOLUTIONS, MLP, ResNet, resnet20
from fedjax_sim.partition import iid
from fedjax_sim.problems import make_classification, make_gaussian_clients

PROGRAM = "jit__advance"
"""The compiled program of the replay, as traces name it."""
LONG_CALLS = 8.0
"""Seconds of measured calls after which no further turn is taken."""
TINY_TRIPS = 2000
"""Trips of the loop that shows what a launch costs."""
PRECISIONS = ("float32", "tensorfloat32", "bfloat16")


def serve(answers: Connection) -> None:
    """Answer requests until the other side closes the connection.

    The first message tells what the machine is. An exception is an answer too.
    """
    answers.send(machine())
    while True:
        try:
            request = answers.recv()
        except EOFError:
            return
        try:
            answer = DO[request["do"]](**{k: v for k, v in request.items() if k != "do"})
        except Exception as error:  # The next request may still work.
            text = str(error).strip() or type(error).__name__
            is_full = "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
            answer = {"does not fit" if is_full else "failed": text.splitlines()[0][:300]}
        # What the request compiled and left on the device goes before the next one.
        jax.clear_caches()
        gc.collect()
        answers.send(answer)


def machine() -> dict[str, Any]:
    """Describe the device and the software."""
    device = jax.devices()[0]
    driver = Path("/proc/driver/nvidia/version")
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return {
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "devices": jax.device_count(),
        "bytes for programs": limit,
        "driver": driver.read_text().splitlines()[0] if driver.exists() else None,
        "platform version": " ".join(device.client.platform_version.split()),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "compilation cache": jax.config.jax_compilation_cache_dir,  # type: ignore[attr-defined]
        "options": {
            "packed": "packed" in fedjax_sim.Layout._fields,
            "precision": _has_precision(),
        },
    }


def _has_precision() -> bool:
    return "precision" in inspect.signature(fedjax_sim.sweep).parameters


def limits(size: int, copied: int, turns: int = 5) -> dict[str, Any]:
    """Measure the machine: matrix products in each precision, a copy, and a loop of tiny kernels.

    Args:
      size: Rows and columns of the matrices.
      copied: Floats of the array that is read and written.
      turns: Measurements of each.

    Returns:
      Operations per second of products, by precision; "bfloat16 arrays" multiplies arrays of this
      type, the others float32 arrays. Bytes per second of the copy, reads and writes both counted.
      Microseconds of a trip of a loop whose body is one small kernel.
    """
    keys = jax.random.split(jax.random.key(0), 2)
    left, right = (jax.random.normal(key, (size, size)) for key in keys)
    halves = [each.astype(jnp.bfloat16) for each in (left, right)]
    contestants: dict[str, Callable[[], float]] = {}
    for name in PRECISIONS:
        product = jax.jit(partial(jnp.matmul, precision=name))
        contestants[name] = partial(_seconds_of, product, left, right)
    contestants["bfloat16 arrays"] = partial(_seconds_of, jax.jit(jnp.matmul), *halves)
    seconds = in_turns(contestants, turns)
    array = jax.random.uniform(keys[0], (copied,))
    tiny = jnp.arange(1024.0)
    add = jax.jit(lambda x: x + 1.0)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, TINY_TRIPS, lambda i, x: jnp.sin(x) + i, x))
    others = in_turns(
        {"copy": partial(_seconds_of, add, array), "loop": partial(_seconds_of, loop, tiny)}, turns
    )
    return {
        "operations per second": {name: 2 * size**3 / value for name, value in seconds.items()},
        "bytes per second": 2 * array.nbytes / others["copy"],
        "microseconds of a trip of one kernel": 1e6 * others["loop"] / TINY_TRIPS,
    }


def _seconds_of(run: Callable[..., Any], *arguments: Any) -> float:
    return wall(lambda: run(*arguments))


def launches(program: str, ticks: int | None = None, seeds: int | None = None) -> dict[str, Any]:
    """Count the launches of a program that `benchmarks.programs` compiles without a device.

    Args:
      program: Its name there.
      ticks: Ticks, if not as many as there.
      seeds: Seeds, if not as many as there.
    """
    work = programs.WORKLOADS[program]
    system = fedjax_sim.SYSTEMS[work.system]
    hyper = system.Hyper(**work.changes)
    ticks = ticks or programs.TICKS
    run = partial(
        fedjax_sim.sweep,
        system,
        work.problem(hyper),
        hyper,
        seeds=seeds or work.seeds,
        settings=work.settings,
        num_ticks=ticks,
        num_evals=min(programs.EVALUATIONS, ticks),
    )
    first = run()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 1
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        found = traces.launches_of(traces.read_trace(Path(folder)))
    counted = traces.count_launches(found, PROGRAM, ticks=ticks, steps=hyper.local_steps)
    return counted | {"compile seconds": first.curves.attrs["seconds_compile"]}


def sweep(
    system: str,
    problem: Mapping[str, Any],
    hyper: Mapping[str, Any],
    *,
    seeds: int,
    settings: Mapping[str, Sequence[float]],
    ticks: int,
    layout: Mapping[str, Any],
    precision: str,
    turns: int = 3,
) -> dict[str, Any]:
    """Time whole calls of a sweep, and within them the replay, which is what the device does.

    Args:
      system: Name of the system.
      problem: Arguments of one of `PROBLEMS`, and its name under the key "make".
      hyper: Settings other than the defaults.
      seeds: Number of seeds.
      settings: Swept settings.
      ticks: Ticks of each lane.
      layout: Arguments of `fedjax_sim.Layout`.
      precision: Precision of matrix products.
      turns: Measured calls, after one that compiles.

    Returns:
      Seconds of compiling, of a call and of its replay; rounds per second of all lanes; what a
      local step of all lanes and slots together takes; operations and bytes that a needed step of
      one slot takes at least, and how many of these steps ran in a second of the replay. The most
      bytes in use, if this is more than "peak bytes before", from earlier requests of the process.
    """
    known = {name: value for name, value in layout.items() if name in fedjax_sim.Layout._fields}
    if "packed" not in known and layout.get("packed"):
        return {"not run": "the engine cannot pack slots"}
    described = fedjax_sim.SYSTEMS[system]
    given = {name: value for name, value in problem.items() if name != "make"}
    made, (operations, least_bytes) = PROBLEMS[problem["make"]](**given)
    bound = described.Hyper(**hyper)
    in_precision: Any = nullcontext()
    options: dict[str, Any] = {}
    if _has_precision():
        options["precision"] = precision
    else:
        in_precision = jax.default_matmul_precision(precision)
    run = partial(
        fedjax_sim.sweep,
        described,
        made,
        bound,
        seeds=seeds,
        settings=settings,
        num_ticks=ticks,
        num_evals=1,
        layout=fedjax_sim.Layout(**known),
        **options,
    )
    before = _peak()
    calls: list[float] = []
    replays: list[float] = []
    with in_precision, timed_replays() as replayed:
        first = run()
        while len(calls) < turns and sum(calls) < LONG_CALLS:
            replayed.clear()
            began = time.perf_counter()
            run()
            calls.append(time.perf_counter() - began)
            replays.append(sum(replayed))
    needed, executed = (float(first.curves[name].sum()) for name in ("needed", "executed"))
    call, replay = statistics.median(calls), statistics.median(replays)
    lanes = seeds * int(np.prod([len(each) for each in settings.values()]))
    peak = _peak()
    return {
        "lanes": lanes,
        "slots": first.timelines[0].clients.shape[-1],
        "compile seconds": first.curves.attrs["seconds_compile"],
        "programs compiled": first.curves.attrs["programs_compiled"],
        "call seconds": call,
        "calls": len(calls),
        "replay seconds": replay,
        "rounds per second": lanes * ticks / call,
        "rounds per second of the replay": lanes * ticks / replay,
        "microseconds of a local step": 1e6 * replay / (ticks * bound.local_steps),
        "executed per needed": executed / needed,
        "operations of a step": operations,
        "least bytes of a step": least_bytes,
        "steps per second": needed / replay,
        "peak bytes": peak if peak is None or before is None or peak > before else None,
        "peak bytes before": before,
    }


@contextmanager
def timed_replays() -> Iterator[list[float]]:
    """Note the seconds of every chunk that is replayed, until its results are there."""
    seconds: list[float] = []
    advance = Replay.advance

    def timed(replay: Replay, *arguments: Any) -> Any:
        began = time.perf_counter()
        results = jax.block_until_ready(advance(replay, *arguments))
        seconds.append(time.perf_counter() - began)
        return results

    with mock.patch.object(Replay, "advance", timed):
        yield seconds


def _peak() -> int | None:
    """Return the most bytes that were in use on the device; None if it does not tell."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


@functools.lru_cache(maxsize=1)
def _images(size: int, channels: int, clients: int, examples: int, tests: int) -> tuple[Any, Any]:
    """Make random images, and a partition of the training images in equal parts."""
    random, train = np.random.default_rng(0), clients * examples
    shape = (train + tests, size, size, channels)
    images = random.integers(0, 256, shape, dtype=np.uint8)
    labels = random.integers(0, 10, len(images)).astype(np.int32)
    data = Dataset(images[:train], labels[:train], images[train:], labels[train:], 10, "random")
    return data, iid(data.train_labels, num_clients=clients, seed=0)


Made = tuple[Any, tuple[float, float]]
"""A problem, with the operations of a step of one slot and the bytes that it must move."""


def perceptron(
    hidden: int, batch: int, *, clients: int, examples: int, size: int = 28, tests: int = 200
) -> Made:
    """Make a classification of random grey images.

    A step multiplies for the forward pass, for the gradient of the weights and, except for the
    first layer, for the gradient of the inputs. It reads and writes all weights once.

    Args:
      hidden: Units of the hidden layer.
      batch: Examples of a step.
      clients: Number of clients.
      examples: Training images of each client.
      size: Height and width of the images.
      tests: Test images.
    """
    problem = make_classification(MLP((hidden,), 10), *_images(size, 1, clients, examples, tests))
    first, second = size**2 * hidden, hidden * 10
    weights = first + second + hidden + 10
    return problem, (batch * (4.0 * first + 6.0 * second), 8.0 * weights + batch * size**2)


def residual(
    convolution: str,
    batch: int,
    *,
    clients: int,
    examples: int,
    size: int = 32,
    tests: int = 100,
    stages: Sequence[int] = (),
) -> Made:
    """Make a classification of random colour images by ResNet-20.

    Args:
      convolution: One of `CONVOLUTIONS`.
      batch: Examples of a step.
      clients: Number of clients.
      examples: Training images of each client.
      size: Height and width of the images.
      tests: Test images.
      stages: Channels of each stage of one block, for a smaller network.
    """
    network = (
        ResNet(10, tuple(stages), 1, convolution=CONVOLUTIONS[convolution])
        if stages
        else resnet20(10, convolution=CONVOLUTIONS[convolution])
    )
    problem = make_classification(network, *_images(size, 3, clients, examples, tests))
    described = jax.eval_shape(problem.init, jax.random.key(0))
    weights = sum(leaf.size for leaf in jax.tree.leaves(described))
    operations = 2.0 * multiplications(network, (size, size, 3), batch)
    return problem, (operations, 8.0 * weights + batch * 3 * size**2)


def gaussians(clients: int) -> Made:
    """Make the simulation of FA-LD's paper, with two coordinates.

    A step is a product with a matrix of 2x2, and reads and writes two numbers.

    Args:
      clients: Number of clients.
    """
    problem = make_gaussian_clients(0, alpha=0.0, num_clients=clients, dtype="float32")
    return problem, (12.0, 16.0)


PROBLEMS: dict[str, Callable[..., Made]] = {
    "perceptron": perceptron,
    "residual": residual,
    "gaussians": gaussians,
}
DO: dict[str, Callable[..., dict[str, Any]]] = {
    "limits": limits,
    "launches": launches,
    "sweep": sweep,
}
