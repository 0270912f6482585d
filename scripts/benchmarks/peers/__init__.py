"""This engine against other simulators, on the same arrays and the same cores.

    python scripts/benchmark.py peers [--help]

See `contest` for the settings in which each contestant is measured and `workloads` for what they
run. Peers' environments are made first, which needs a package index and some minutes; a peer whose
environment cannot be made, or whose worker fails, is named as absent with the reason. Linux only,
because processes are bound to cores.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .contest import CONTESTANTS, Contestant, measure, measure_limits, operations
from .environments import environment_of
from .report import best_limits, document, draw, shares_of_limit, summary_table
from .workloads import WORKLOADS, Workload, shared_arrays

SCRIPTS = Path(__file__).resolve().parents[2]
RESULTS = SCRIPTS / "benchmark_results.json"
TABLE = SCRIPTS / "benchmark_peers.md"
PICTURE = SCRIPTS.parent / "docs" / "images" / "peers.png"


def main(arguments: Sequence[str]) -> None:
    """Measure, or draw what was measured.

    Args:
      arguments: Of the command line, after the name of the benchmark.
    """
    parser = argparse.ArgumentParser(
        prog="benchmark.py peers", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, help="workloads; all by default")
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, help="contestants; all by default"
    )
    parser.add_argument("--turns", type=int, default=3, help="measurements of each contestant")
    parser.add_argument("--cores", type=int, help="cores to use; all by default")
    parser.add_argument(
        "--data", type=Path, help="folder with mnist/ and cifar10/; random images by default"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("~/.cache/fedjax_sim/peers").expanduser(),
        help="folder of the peers' environments",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results to update")
    parser.add_argument("--table", type=Path, default=TABLE, help="file of tables to write")
    parser.add_argument("--remark", default="", help="a sentence to keep with the results")
    parser.add_argument("--build", action="store_true", help="make the environments and end")
    parser.add_argument(
        "--picture",
        nargs="?",
        type=Path,
        const=PICTURE,
        help="draw the results in the file --out, write their tables, and end",
    )
    options = parser.parse_args(arguments)
    if not hasattr(os, "sched_setaffinity"):
        parser.error("processes can be bound to cores on Linux only")
    if options.picture:
        results = json.loads(options.out.read_text())["cpu"]["peers"]
        draw(results, options.picture)
        options.table.write_text(document(results))
        return
    rivals, absent = _find_rivals(options.contestants or list(CONTESTANTS), options.cache)
    if options.build:
        return
    began = time.perf_counter()
    _run(options, rivals, absent)
    print(f"{(time.perf_counter() - began) / 60:.0f} minutes")


def _find_rivals(
    names: Sequence[str], cache: Path
) -> tuple[dict[str, tuple[Contestant, Path]], dict[str, str]]:
    """Find the interpreter of each contestant, and the reasons why some have none."""
    rivals, absent = {}, {}
    for name in names:
        contestant = CONTESTANTS[name]
        if contestant.is_own:
            rivals[name] = contestant, Path(sys.executable)
            continue
        environment = environment_of(contestant.worker, cache)
        if environment.python is None:
            absent[name] = environment.reason
            print(f"{name} is absent: {environment.reason}")
        else:
            rivals[name] = contestant, environment.python
    return rivals, absent


def _run(
    options: argparse.Namespace,
    rivals: dict[str, tuple[Contestant, Path]],
    absent: dict[str, str],
) -> None:
    """Measure the workloads one after another, and write what is known after each."""
    cores = sorted(os.sched_getaffinity(0))[-(options.cores or 0) :]
    stored = json.loads(options.out.read_text()) if options.out.exists() else {}
    results: dict[str, Any] = stored.setdefault("cpu", {}).setdefault("peers", {})
    parts = results.get("workloads", {})
    limits = [results["limits"]] if results.get("limits") and options.only else []
    results |= {
        "date": datetime.date.today().isoformat(),
        "machine": f"{_processor()}, {len(cores)} cores used of {os.cpu_count()}",
        "turns": options.turns,
        "remark": options.remark,
        "limits": {},
        "versions": results.get("versions", {}),
        "absent": absent,
        "workloads": parts if options.only else {},
    }
    for name in options.only or WORKLOADS:
        workload = WORKLOADS[name]
        print(f"({name}) {workload.title}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            limits.append(measure_limits(cores, Path(folder)))
        results["limits"] = best_limits(limits)
        images, labels, data = _real_data(workload, options.data)
        measured = measure(
            workload,
            shared_arrays(workload, images, labels),
            {each: rival for each, rival in rivals.items() if name in rival[0].workloads},
            cores=cores,
            turns=min(options.turns, workload.most_turns),
            say=lambda line: print(line, flush=True),
        )
        for each, facts in measured["contestants"].items():
            results["versions"][each] = {
                "versions": facts.pop("versions"),
                "note": facts.pop("note"),
            }
        results["workloads"][name] = {
            "title": workload.title,
            "data": data,
            "operations_per_round": operations(name),
            "rounds_of_losses": workload.rounds,
            **measured,
        }
        for part in results["workloads"].values():
            for facts in part["contestants"].values():
                facts["share_of_limit"] = shares_of_limit(
                    facts["rounds_per_second"], part["operations_per_round"], results["limits"]
                )
        results["workloads"] = {
            each: results["workloads"][each] for each in WORKLOADS if each in results["workloads"]
        }
        options.out.write_text(json.dumps(stored, indent=1) + "\n")
        options.table.write_text(document(results))
    print(summary_table(results))


def _real_data(
    workload: Workload, folder: Path | None
) -> tuple[np.ndarray | None, np.ndarray | None, str]:
    """Load the real data of a workload if they are found, and say what is used."""
    if folder is None:
        return None, None, "random bytes"
    from fedjax_sim.core.settings import ConfigError
    from fedjax_sim.datasets import load

    try:
        data = load(workload.data, data_dir=folder / workload.data)
    except ConfigError as error:
        print(f"  random bytes instead of {workload.data}: {error}", flush=True)
        return None, None, "random bytes"
    return data.train_images, data.train_labels, workload.data


def _processor() -> str:
    """Name the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
