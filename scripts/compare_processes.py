"""Compare runs on the devices of several processes with runs on one device.

    python scripts/compare_processes.py [SYSTEM...] [--lanes 1,4] [--processes 2] [--devices 2]

Starts the processes on this machine, each with some CPU devices, and connects them by
`jax.distributed.initialize()`. Every system runs one lane, whose slots are split over all devices
of all processes, and four lanes, which are split over them. The table has the largest difference of
any metric or parameter from a run on one device of one process, relative to the largest absolute
value of that metric or parameter. The exit code is 1 if it exceeds `TOLERANCE`.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-6
"""Devices add up the slots' progress in another order: some roundings of 32 bits."""
NUM_CLIENTS = 8
SETTINGS: Mapping[str, dict[str, Any]] = {
    "fedbuff": {"buffer_size": 5, "concurrency": 6},
    "gen_async": {"num_tasks": 6},
    "fedstaleweight": {"buffer_size": 5},
    "hierarchical": {"num_groups": 3, "sync_time": 5.0},
    "async_hierarchical": {"num_groups": 3, "sync_time": 5.0},
    "langevin": {"step_size": 1e-5, "temperature": 1e-3},
    "fedem": {"participation": 0.6},
    "vr_fedem": {"participation": 0.6},
}
"""Settings other than the defaults; those that select clients otherwise select five."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the comparison, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM")
    parser.add_argument("--lanes", default="1,4")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--worker", nargs=3, metavar=("COORDINATOR", "ID", "FILE"))
    arguments = parser.parse_args(words)
    sizes = arguments.processes, arguments.devices
    study = arguments.systems, [int(word) for word in arguments.lanes.split(",")]
    if arguments.worker:
        work(*study, *sizes, *arguments.worker)
        return 0
    table = differences(run_processes(*study, 1, 1), run_processes(*study, *sizes))
    for name, difference in table.items():
        print(f"{name:24} {difference:.1e}")
    print(
        f"{arguments.processes} processes x {arguments.devices} devices against 1 x 1, largest "
        f"{max(table.values()):.1e}, tolerance {TOLERANCE:.0e}"
    )
    return int(max(table.values()) > TOLERANCE)


def run_processes(
    systems: Sequence[str], lanes: Sequence[int], processes: int, devices: int
) -> dict[str, np.ndarray]:
    """Run systems in new processes and return the results of the first.

    Args:
      systems: Names of systems; all of them if empty.
      lanes: Numbers of lanes. One lane is split by slots, several are split by lanes.
      processes: Number of processes.
      devices: CPU devices of each process.

    Returns:
      Arrays by "system, lanes/name of the array".
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    words = [*systems, "--lanes", ",".join(map(str, lanes))]
    words += [f"--processes={processes}", f"--devices={devices}", "--worker", coordinator]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.npz"
        started = [
            subprocess.Popen(
                [sys.executable, __file__, *words, str(number), str(file)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number in range(processes)
        ]
        said = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            raise RuntimeError("\n".join(said))
        with np.load(file) as saved:
            return dict(saved)


def work(
    systems: Sequence[str],
    lanes: Sequence[int],
    processes: int,
    devices: int,
    coordinator: str,
    number: str,
    file: str,
) -> None:
    """Be one of the processes; the first one writes a file."""
    import jax

    from fedjax_sim.engine.machine.processes import is_first, join_processes

    jax.config.update("jax_num_cpu_devices", devices)
    if processes > 1:
        join_processes(coordinator, processes, int(number))
        assert jax.device_count() == processes * devices
    results = run_systems(systems, lanes)
    if is_first():
        np.savez(file, allow_pickle=False, **results)


def run_systems(
    systems: Sequence[str], lanes: Sequence[int], **options: Any
) -> dict[str, np.ndarray]:
    """Run systems on all devices, and return metrics and final models.

    Args:
      systems: As in `run_processes`.
      lanes: As in `run_processes`.
      **options: Options of `sweep`.
    """
    import jax

    import fedjax_sim
    from fedjax_sim.core.settings import fields

    results: dict[str, np.ndarray] = {}
    for name in systems or fedjax_sim.SYSTEMS:
        system = fedjax_sim.SYSTEMS[name]
        problem = make_problem(system)
        selected = {"num_selected": 5} if "num_selected" in fields(system.Hyper) else {}
        hyper = system.paper(num_clients=NUM_CLIENTS, **SETTINGS.get(name, selected))
        for num in lanes:
            run = fedjax_sim.sweep(
                system,
                problem,
                hyper,
                seeds=num,
                budget=fedjax_sim.Ticks(6),
                num_evals=3,
                **options,
            )
            found = {f"curves.{key}": run.curves[key].values for key in run.curves.data_vars}
            leaves = enumerate(jax.tree.leaves(run.models))
            found |= {f"models.{i}": np.asarray(leaf) for i, leaf in leaves}
            results |= {f"{name}, {num}/{key}": value for key, value in found.items()}
    return results


def make_problem(system: Any) -> Any:
    """Make a small problem that suits a system: classes to tell apart, or a mean seen in noise."""
    from fedjax_sim import datasets, models, partition, problems
    from fedjax_sim.core.types import LatentProblem
    from fedjax_sim.problems import latent
    from fedjax_sim.problems.latent.noisy_mean import Seen

    random, num = np.random.default_rng(0), 6 * NUM_CLIENTS
    labels = random.integers(0, 2, num)
    split = partition.iid(labels, num_clients=NUM_CLIENTS, seed=0)
    if system.fit.learns is LatentProblem:
        data = Seen(random.normal(size=(num, 3)), random.uniform(0.2, 0.9, num))
        return latent.make_estimation(latent.NoisyMean(ridge=0.25), data, split, start=np.ones(3))
    images = random.normal(size=(num, 1, 4, 1)).astype("float32") + labels[:, None, None, None]
    pair = (images, labels.astype("int32"))
    pairs = datasets.Dataset(*pair, *pair, 2, "pairs")
    if system.name in ("fedper", "fedbn"):  # The last layer is personal.
        return problems.make_classification(models.MLP((4,), 2), pairs, split)
    return problems.make_logistic(pairs, split)


def differences(
    expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Find the largest relative difference of each system and number of lanes.

    Local steps that were executed are not compared, as they depend on the layout.
    """
    assert expected.keys() == found.keys()
    table: dict[str, float] = {}
    for name, values in expected.items():
        run, key = name.split("/")
        if key == "curves.executed":
            continue
        scale = max(1e-12, float(np.abs(values).max(initial=0)))
        difference = float(np.abs(values.astype(float) - found[name]).max(initial=0)) / scale
        table[run] = max(table.get(run, 0.0), difference)
    return table


if __name__ == "__main__":
    sys.exit(main())
