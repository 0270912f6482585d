"""Data beyond memory: rounds per second and peak memory against the memory that windows are given.

    python scripts/benchmark.py beyond [--gigabytes 2] [--shares 1 0.5 0.1] [--limit 4] [--folder X]
    python scripts/benchmark.py beyond --peers fedjax pfl    then also these, on the same files

FedAvg on random bytes: examples of 3,072 bytes in a file of NumPy, which is written first, in full.
A share is the memory for windows as a part of the data. Each share runs in its own process, and
`--limit` bounds the memory of that process in GB (`RLIMIT_DATA`; what is mapped from files does not
count). The program waits for a window if this is not there when the chunk before is done.
Peak memory is the process's own: what the kernel keeps of the files does not count.

FedJAX reads whole clients from an SQLite file, which is written first. When pfl-research draws a
user, it reads the user's mini-batches from mapped files. Each has its own environment, as in
`peers`, and the same limit of memory. Their first round, in which they compile, is not timed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES = 3072, 10
ROW = FEATURES + 4
COHORT, BATCH, LR = 50, 32, 0.05
"""Clients of a round, examples of a step, and its learning rate."""
WORKERS = Path(__file__).parent / "peer_workers"
BLOCK = 2**16
"""Examples that are drawn, and written again and again."""


def write(folder: Path, gigabytes: float) -> int:
    """Write random examples, unless they are there, and return how many there are."""
    num = int(gigabytes * 1e9 / ROW)
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "inputs": ((num, FEATURES), "uint8"),
        "targets": ((num,), "int32"),
    }
    for name, (shape, kind) in shapes.items():
        path = folder / f"{name}.npy"
        if path.exists() and np.load(path, mmap_mode="r").shape == shape:
            continue
        with path.open("wb") as opened:
            header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(opened, header)
            most = 256 if kind == "uint8" else CLASSES
            block = random.integers(0, most, (BLOCK, *shape[1:]), kind)
            for first in range(0, num, BLOCK):
                opened.write(block[: num - first].tobytes())
            opened.flush()
            os.fsync(opened.fileno())
    return num


def run(folder: Path, share: float, asked: argparse.Namespace) -> dict[str, Any]:
    """Run FedAvg once, and return what it took."""
    import fedjax_sim
    from fedjax_sim import datasets, models, partition, problems
    from fedjax_sim.engine.running import chunks

    files = datasets.stored(folder)
    num, spent = files.num, {"make": 0.0, "take": 0.0}

    def timed(name: str, function: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*given)
        finally:
            spent[name] += time.perf_counter() - began

    class Thread(ThreadPoolExecutor):
        """A thread that notes how long windows are made, and how long they are waited for."""

        def submit(self, make: Callable[..., Any], *given: Any) -> Any:  # type: ignore[override]
            made: Any = super().submit(timed, "make", make, *given)
            made.result = partial(timed, "take", made.result)
            return made

    chunks.ThreadPoolExecutor = Thread  # type: ignore[misc]
    counts = np.full(asked.clients, num // asked.clients, "int32")
    index = np.arange(counts.sum(), dtype="int32")
    test = np.zeros((100, FEATURES), "uint8"), np.zeros(100, "int32")
    problem = problems.supervised(
        models.MLP((asked.hidden,), CLASSES),
        problems.cross_entropy,
        files,
        partition.Partition(index, counts),
        prepare=lambda batch: (batch[0].astype("float32") / 255, batch[1]),
        test=test,
    )
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper = system.Hyper(
        num_clients=asked.clients,
        num_selected=COHORT,
        local_steps=asked.steps,
        batch_size=BATCH,
        lr=LR,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = fedjax_sim.simulate(
        system,
        problem,
        hyper,
        budget=fedjax_sim.Ticks(asked.rounds),
        num_evals=1,
        layout=fedjax_sim.Layout(
            window=int(share * num * ROW) if share < 1 else num * ROW,
            # Windows are for one device a lane.
            client_devices=asked.devices if share == 1 else None,
        ),
    )
    seconds = result.curves.attrs["seconds_run"]
    return {
        "share": share,
        "rounds_per_second": asked.rounds / seconds,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "peak_before_gb": before / 1e6,
        "seconds": seconds,
        "reading": spent["make"] / seconds,
        "waiting": spent["take"] / seconds,
        "loss": float(result.curves.loss.values[-1]),
    }


def run_peer(name: str, folder: Path, asked: argparse.Namespace) -> dict[str, Any] | str:
    """Run another simulator on the same files: what it took, or why it did not run."""
    from benchmarks.peers.environments import environment_of

    environment = environment_of(name, asked.cache)
    if environment.python is None:
        return environment.reason
    own = {key: getattr(asked, key) for key in ("clients", "steps", "hidden", "rounds", "limit")}
    job = own | {"folder": str(folder), "cohort": COHORT, "batch": BATCH, "lr": LR}
    job |= {"features": FEATURES, "classes": CLASSES, "cores": len(os.sched_getaffinity(0))}
    worker = WORKERS / f"beyond_{name}.py"
    command = [str(environment.python), str(worker), json.dumps(job)]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=kept)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {}
    return found or f"exit code {done.returncode}"


def main(words: list[str]) -> None:
    """Run each share in its own process, and print a table of the measurements."""
    parser = argparse.ArgumentParser(prog="benchmark.py beyond", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the data")
    parser.add_argument("--shares", type=float, nargs="+", default=[1, 0.5, 0.1], help="of it")
    parser.add_argument("--limit", type=float, default=0.0, help="gigabytes of anonymous memory")
    parser.add_argument("--folder", type=Path, default=None, help="for the data")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10, help="local steps")
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer")
    parser.add_argument("--devices", type=int, help="of a lane with all data in memory")
    parser.add_argument("--peers", nargs="+", default=[], choices=("fedjax", "pfl"))
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("~/.cache/fedjax_sim/peers").expanduser(),
        help="folder of the peers' environments",
    )
    parser.add_argument("--one", type=float, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        num = write(folder, asked.gigabytes)
        if asked.one is not None:
            if asked.limit:
                most = int(asked.limit * 1e9)
                resource.setrlimit(resource.RLIMIT_DATA, (most, most))
            print(json.dumps(run(folder, asked.one, asked)))
            return
        print(f"{num} examples of {ROW} bytes, {num * ROW / 1e9:.2f} GB")
        print("share  rounds/s  peak GB  (before)  reading  waiting  loss")
        for share in asked.shares:
            given = [*words, "--one", str(share), "--folder", str(folder)]
            command = [sys.executable, sys.argv[0], "beyond", *given]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                print(f"{share:5}  failed")
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{share:5}  {found['rounds_per_second']:8.2f}  {found['peak_gb']:7.2f}  "
                f"{found['peak_before_gb']:8.2f}  {found['reading']:7.1%}  "
                f"{found['waiting']:7.1%}  {found['loss']:.6f}"
            )
        for name in asked.peers:
            peer = run_peer(name, folder, asked)
            if isinstance(peer, str):
                print(f"{name} is absent: {peer}")
                continue
            print(
                f"{name:>6} {peer['rounds_per_second']:8.2f}  {peer['peak_gb']:7.2f}  "
                f"{peer['peak_before_gb']:8.2f}"
            )
