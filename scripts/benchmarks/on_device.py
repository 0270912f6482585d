"""One measurement of a device: python -P -m benchmarks.on_device REQUEST

The request is JSON: a mapping with the key "do", one of `PREPARE`, and that function's arguments.
The process prepares (makes arrays, traces, compiles, runs once), says that it is ready, waits for a
line on its standard input, measures, and answers; both answers are lines of JSON on standard
output. So many processes compile side by side and are measured one after another, as
`benchmarks.side_by_side` does.
"""

import cProfile
import functools
import gc
import io
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.contestants import contestant
from benchmarks.peers import workloads as peers

LONG = 6.0
"""Seconds of measured calls after which no further one is made."""
CALLS = 3
PROGRAM = "jit__advance"
"""The compiled program of the replay, as traces name it."""
TINY_TRIPS = 2000
"""Trips of the loop that shows what a launch costs."""
PRECISIONS = ("float32", "tensorfloat32", "bfloat16")
Measure = Callable[[], dict[str, Any]]


def timed(run: Callable[[], Any], calls: int = CALLS) -> list[float]:
    """Return the seconds of some calls, fewer if they take long."""
    seconds: list[float] = []
    while len(seconds) < calls and sum(seconds) < LONG:
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return seconds


def contest(**request: Any) -> Measure:
    """Run a contestant: rounds of all lanes per second, by whole calls; see `contestant`."""
    workload, rounds, run = contestant(**request)
    replays = _replays() if request["who"] == "engine" else []
    began = time.perf_counter()
    run()
    first = time.perf_counter() - began

    def measure() -> dict[str, Any]:
        replays.clear()
        seconds = timed(run)
        taken, done = statistics.median(seconds), workload.lanes * rounds
        answer = {
            "first call": first,
            "seconds": seconds,
            "rounds per second": done / taken,
            "operations per second": done * peers.round_operations(workload) / taken,
            "microseconds of a step": 1e6 * taken / rounds / workload.steps,
        }
        if replays:
            answer["rounds per second of the replay"] = done * len(seconds) / sum(replays)
        return answer

    return measure


def _replays() -> list[float]:
    """Note the seconds of every chunk that the engine replays, until its results are there."""
    import jax

    from fedjax_sim.engine.program.replay import Replay

    seconds: list[float] = []
    advance = Replay.advance

    def noted(replay: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        results = jax.block_until_ready(advance(replay, *arguments))
        seconds.append(time.perf_counter() - began)
        return results

    Replay.advance = noted  # type: ignore[method-assign]
    return seconds


def limits(size: int, copied: int, turns: int = 5) -> Measure:
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
    import jax
    import jax.numpy as jnp
    from benchmarks.timing import in_turns, wall

    def seconds_of(run: Callable[..., Any], *arguments: Any) -> float:
        return wall(lambda: run(*arguments))

    keys = jax.random.split(jax.random.key(0), 2)
    left, right = (jax.random.normal(key, (size, size)) for key in keys)
    halves = [each.astype(jnp.bfloat16) for each in (left, right)]
    contestants: dict[str, Callable[[], float]] = {}
    for name in PRECISIONS:
        product = jax.jit(partial(jnp.matmul, precision=name))
        contestants[name] = partial(seconds_of, product, left, right)
    contestants["bfloat16 arrays"] = partial(seconds_of, jax.jit(jnp.matmul), *halves)
    array = jax.random.uniform(keys[0], (copied,))
    tiny = jnp.arange(1024.0)
    add = jax.jit(lambda x: x + 1.0)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, TINY_TRIPS, lambda i, x: jnp.sin(x) + i, x))

    def measure() -> dict[str, Any]:
        seconds = in_turns(contestants, turns)
        runs = {"copy": partial(seconds_of, add, array), "loop": partial(seconds_of, loop, tiny)}
        others = in_turns(runs, turns)
        return {
            "operations per second": {name: 2 * size**3 / value for name, value in seconds.items()},
            "bytes per second": 2 * array.nbytes / others["copy"],
            "microseconds of a trip of one kernel": 1e6 * others["loop"] / TINY_TRIPS,
        }

    return measure


def sweep(
    system: str,
    problem: Mapping[str, Any],
    hyper: Mapping[str, Any],
    *,
    seeds: int,
    settings: Mapping[str, Sequence[float]],
    ticks: int,
    layout: Mapping[str, Any],
) -> Measure:
    """Time whole calls of a sweep, and within them the replay, which is what the device does.

    Args:
      system: Name of the system.
      problem: Arguments of one of `PROBLEMS`, and its name under the key "make".
      hyper: Settings other than the defaults.
      seeds: Number of seeds.
      settings: Swept settings.
      ticks: Ticks of each lane.
      layout: Arguments of `fedjax_sim.Layout`.
    """
    import jax

    import fedjax_sim

    described = fedjax_sim.SYSTEMS[system]
    given = {name: value for name, value in problem.items() if name != "make"}
    made, (operations, least_bytes) = PROBLEMS[problem["make"]](**given)
    bound = described.paper(**hyper)
    run = partial(
        fedjax_sim.sweep,
        described,
        made,
        bound,
        seeds=seeds,
        settings=settings,
        budget=fedjax_sim.Ticks(ticks),
        num_evals=1,
        layout=fedjax_sim.Layout(**layout),
    )
    replays = _replays()
    first = run()
    needed, executed = (float(first.curves[name].sum()) for name in ("needed", "executed"))

    def measure() -> dict[str, Any]:
        replays.clear()
        seconds = timed(run)
        call, replay = statistics.median(seconds), sum(replays) / len(seconds)
        lanes = seeds * int(np.prod([len(each) for each in settings.values()]))
        return {
            "lanes": lanes,
            "slots": first.timelines[0].clients.shape[-1],
            "compile seconds": first.curves.attrs["seconds_compile"],
            "programs compiled": first.curves.attrs["programs_compiled"],
            "seconds": seconds,
            "replay seconds": replay,
            "rounds per second": lanes * ticks / call,
            "rounds per second of the replay": lanes * ticks / replay,
            "microseconds of a step": 1e6 * replay / (ticks * bound.local_steps),
            "executed per needed": executed / needed,
            "operations per second": operations * needed / replay,
            "least bytes per second": least_bytes * needed / replay,
            "peak bytes": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
        }

    return measure


@functools.lru_cache(maxsize=1)
def _images(size: int, channels: int, clients: int, examples: int, tests: int) -> tuple[Any, Any]:
    """Make random images, and a partition of the training images in equal parts."""
    from fedjax_sim.datasets import Dataset
    from fedjax_sim.partition import iid

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
    from fedjax_sim.models import MLP
    from fedjax_sim.problems import make_classification

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
    import jax
    from benchmarks.convolution import multiplications

    from fedjax_sim.models import CONVOLUTIONS, ResNet, resnet20
    from fedjax_sim.problems import make_classification

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
    from fedjax_sim.problems import make_gaussian_clients

    problem = make_gaussian_clients(0, alpha=0.0, num_clients=clients, dtype="float32")
    return problem, (12.0, 16.0)


PROBLEMS: dict[str, Callable[..., Made]] = {
    "perceptron": perceptron,
    "residual": residual,
    "gaussians": gaussians,
}


OF_SYSTEMS = {
    "mimelite": {"gradient": "minibatch"},
    "qfedavg": {"client_losses": "minibatch"},
    "tifl": {"num_selected": 1},
    "fedat": {"num_selected": 1},
}
"""Settings with which systems run on the tiny problem. FedBN needs a network with norms, and
VR-DIANA a problem with `client_loss`."""


def _tiny(name: str) -> dict[str, Any]:
    """Return arguments of `sweep` for any system on a tiny problem."""
    import fingerprint

    import fedjax_sim
    from fedjax_sim.core.settings import idle_of, names_of

    system = fedjax_sim.SYSTEMS[name]
    few = {"num_clients": fingerprint.NUM_CLIENTS, "batch_size": 2, "num_selected": 4}
    few |= {"concurrency": 5, "buffer_size": 4}
    known = names_of(system.Hyper)
    settings = {key: few[key] for key in few if key in known}
    idle = idle_of(system.Hyper(**settings))
    settings = {key: value for key, value in settings.items() if known[key] not in idle}
    settings |= OF_SYSTEMS.get(name, {})
    if name in fingerprint.LAYOUT_SYSTEMS:
        settings |= fingerprint.LAYOUT_SYSTEMS[name][0]
    problem = fingerprint.tiny_problem(fingerprint.is_em(name), "float32")
    return {"system": system, "problem": problem, "hyper": system.paper(**settings)}


def systems(names: Sequence[str], file: str) -> Measure:
    """Run systems on a tiny problem, and keep final models and curves to be compared.

    Each runs twice, which tells whether a second run has the same bits, and once with a step that
    is larger by 1e-6 of itself, which tells how much rounding may matter.

    Args:
      names: Names of the systems.
      file: Where to keep the arrays, a file of NumPy.
    """

    def measure() -> dict[str, Any]:
        import jax

        import fedjax_sim

        arrays: dict[str, Any] = {}
        told: dict[str, Any] = {}
        for name in names:
            began = time.perf_counter()
            try:
                given = _tiny(name)
                fields = given["hyper"].__dataclass_fields__
                rates = [each for each in ("lr", "step_size", "gamma") if each in fields]
                value = float(getattr(given["hyper"], rates[0])) if rates else 0.0
                more = {"seeds": 2, "budget": fedjax_sim.Ticks(30), "num_evals": 3}
                runs = [
                    fedjax_sim.sweep(**given, settings={rate: [v] for rate in rates[:1]}, **more)
                    for v in (value, value, value * (1 + 1e-6))
                ]
                kept = []
                for run in runs:
                    leaves = jax.tree.leaves(run.models)
                    kept.append(np.concatenate([np.asarray(x).reshape(2, -1) for x in leaves], 1))
                arrays |= {f"{name}/models": kept[0], f"{name}/nudged": kept[2]}
                told[name] = {"bits repeat": bool(np.array_equal(kept[0], kept[1]))}
            except Exception as error:
                told[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
            told[name]["seconds"] = round(time.perf_counter() - began, 1)
            np.savez(file, **arrays)
            print(name, told[name], file=sys.stderr, flush=True)
        return {"systems": told}

    return measure


def calls(system: str, lanes: int, ticks: int = 40) -> Measure:
    """Measure what a repeated call costs on the host besides the replay, with its profile.

    Args:
      system: Name of the system.
      lanes: Number of lanes; those of FA-LD are of five step sizes.
      ticks: Ticks of each.
    """
    import jax

    import fedjax_sim
    from fedjax_sim.problems import Quadratic, make_gaussian_clients

    described = fedjax_sim.SYSTEMS[system]
    few: dict[str, Any] = {"num_clients": 6, "num_selected": 3, "batch_size": 1, "local_steps": 2}
    problem: Any = Quadratic.of(np.random.default_rng(0).normal(size=(6, 4)), noise=0.1)
    if system == "langevin":
        few = {"num_clients": 50, "local_steps": 1, "gradient": "exact"}
        problem = make_gaussian_clients(0, alpha=0.0, dtype="float32")
    hyper, swept = described.paper(**few), None
    if system == "langevin":
        swept, lanes = {"step_size": list(np.geomspace(1e-8, 1e-6, 5))}, lanes // 5

    def run() -> Any:
        found = fedjax_sim.sweep(
            described,
            problem,
            hyper,
            seeds=lanes,
            settings=swept,
            budget=fedjax_sim.Ticks(ticks),
            num_evals=4,
        )
        return jax.block_until_ready(found.models)

    replays = _replays()
    run()
    run()

    def measure() -> dict[str, Any]:
        run()
        rows = []
        for _ in range(10):
            replays.clear()
            began = time.perf_counter()
            run()
            rows.append((time.perf_counter() - began, sum(replays)))
        wall, replayed = (statistics.median(column) for column in zip(*rows, strict=True))
        return {
            "milliseconds": 1e3 * wall,
            "replay": 1e3 * replayed,
            "besides": 1e3 * statistics.median(a - b for a, b in rows),
            "profile": profile_of(run),
        }

    return measure


def profile_of(run: Callable[[], Any], entries: int = 25) -> list[str]:
    """Return the main entries of a call's profile, by the time in each function alone."""
    profile = cProfile.Profile()
    profile.runcall(run)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(entries)
    return [line.strip() for line in text.getvalue().splitlines() if line.strip()][-entries:]


def launches(program: str, ticks: int | None = None, seeds: int | None = None) -> Measure:
    """Count the launches of a program that `benchmarks.programs` compiles without a device.

    Args:
      program: Its name there.
      ticks: Ticks, if not as many as there.
      seeds: Seeds, if not as many as there.
    """
    from benchmarks import programs, traces

    import fedjax_sim

    work = programs.WORKLOADS[program]
    system = fedjax_sim.SYSTEMS[work.system]
    hyper = system.paper(**work.changes)
    ticks = ticks or programs.TICKS
    run = partial(
        fedjax_sim.sweep,
        system,
        work.problem(hyper),
        hyper,
        seeds=seeds or work.seeds,
        settings=work.settings,
        budget=fedjax_sim.Ticks(ticks),
        num_evals=min(programs.EVALUATIONS, ticks),
    )
    run()

    def measure() -> dict[str, Any]:
        found = traces.launches_of(traced(run))
        return traces.count_launches(found, PROGRAM, ticks=ticks, steps=hyper.local_steps)

    return measure


def traced(run: Callable[[], Any]) -> Mapping[str, Any]:
    """Trace a call; see `benchmarks.traces`."""
    import jax
    from benchmarks import traces

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 1
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        return traces.read_trace(Path(folder))


def first_call(folder: str, **request: Any) -> Measure:
    """Time a first call by the engine, with its profile, where a folder may keep its programs.

    Args:
      folder: The folder of compiled programs.
      **request: As for `contestant`.
    """
    import jax

    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    *_, run = contestant(who="engine", **request)
    jax.block_until_ready(jax.numpy.ones(3) + 1)

    def measure() -> dict[str, Any]:
        began = time.perf_counter()
        profile = profile_of(run, 40)
        return {"first call": time.perf_counter() - began, "profile": profile}

    return measure


def first_calls(**request: Any) -> Measure:
    """Time a first call whose programs no folder has, and one whose programs the folder has."""

    def measure() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            asked = json.dumps({"do": "first call", "folder": folder, **request})
            command = [sys.executable, "-P", "-m", "benchmarks.on_device", asked]
            answers = []
            for _ in range(2):
                done = subprocess.run(command, input="\n", capture_output=True, text=True)
                answers.append(json.loads(done.stdout.splitlines()[-1]))
        return {"cold": answers[0], "warm": answers[1]}

    return measure


def trace(**request: Any) -> Measure:
    """List the kernels of one call by the time that they take; see `contestant`."""
    workload, rounds, run = contestant(**request)
    run()
    return lambda: kernels_of(traced(run), rounds * workload.steps)


def kernels_of(read: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Add up a trace's kernels by name: program, kernel, launches, milliseconds.

    Args:
      read: A trace.
      steps: Local steps that ran.
    """
    from benchmarks import traces

    found = traces.launches_of(read)
    total: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in found:
        total[each.program, each.kernel].append(each.microseconds)
    ranked = sorted(total.items(), key=lambda item: -sum(item[1]))[:45]
    return {
        "kernels": len(found),
        "busy milliseconds": sum(each.microseconds for each in found) / 1e3,
        "steps": steps,
        "by time": [
            [program, name, len(values), round(sum(values) / 1e3, 3)]
            for (program, name), values in ranked
        ],
    }


def own_loop(system: str, ticks: int = 40) -> Measure:
    """Compare a user's own jitted scan over ticks with `simulate`, in bits and in time."""
    import jax
    import jax.numpy as jnp

    import fedjax_sim

    given = _tiny(system)
    bound = fedjax_sim.bind(**given, budget=fedjax_sim.Ticks(ticks))
    alone = fedjax_sim.Layout(lanes_at_once=False, lane_devices=1, client_devices=1)

    @jax.jit
    def own(state: Any) -> Any:
        return jax.lax.scan(lambda s, e: (bound.step(s, e)[0], None), state, bound.events)[0]

    start = bound.init()

    def run() -> Any:
        return jax.block_until_ready(bound.model(own(start)))

    def simulated() -> Any:
        found = fedjax_sim.simulate(
            **given, budget=fedjax_sim.Ticks(ticks), num_evals=1, layout=alone
        )
        return jax.block_until_ready(found.models)

    mine, theirs = run(), simulated()

    def measure() -> dict[str, Any]:
        pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True)
        apart = [float(jnp.max(jnp.abs(a - jnp.reshape(b, a.shape)))) for a, b in pairs]
        return {
            "largest difference": max(apart),
            "own scan, seconds": timed(run, 5),
            "simulate, seconds": timed(simulated, 5),
        }

    return measure


PREPARE: dict[str, Callable[..., Measure]] = {
    "contest": contest,
    "limits": limits,
    "sweep": sweep,
    "systems": systems,
    "calls": calls,
    "first call": first_call,
    "first calls": first_calls,
    "trace": trace,
    "launches": launches,
    "own loop": own_loop,
}


def machine() -> dict[str, Any]:
    """Describe the device and the versions."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        on_card = torch.cuda.is_available()
        return {
            "device": torch.cuda.get_device_name() if on_card else "cpu",
            "torch": torch.__version__,
        }
    import jax

    device = jax.devices()[0]
    return {
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "devices": jax.device_count(),
        "bytes for programs": (device.memory_stats() or {}).get("bytes_limit"),
        "platform version": " ".join(device.client.platform_version.split()),
        "jax": jax.__version__,
    }


def main() -> None:
    """Prepare, wait, measure."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**facts: Any) -> None:
        out.write(json.dumps(facts, default=float) + "\n")
        out.flush()

    request = json.loads(sys.argv[1])
    do = request.pop("do")
    began = time.perf_counter()
    try:
        measure = PREPARE[do](**request)
        say(ready=True, prepared=round(time.perf_counter() - began, 2), machine=machine())
        gc.collect()
        sys.stdin.readline()
        say(**measure())
    except ModuleNotFoundError as error:
        say(**{"not run": f"{error.name} is not installed"})
    except Exception as error:  # Whatever it is, the others go on.
        traceback.print_exc()
        text = str(error).strip() or type(error).__name__
        is_full = "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
        say(**{"does not fit" if is_full else "failed": f"{type(error).__name__}: {text}"[:300]})


if __name__ == "__main__":
    main()
