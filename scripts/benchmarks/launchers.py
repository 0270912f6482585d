"""Run one study whole, in parts by hand, and by every launcher: equal results, and their times.

    python scripts/benchmark.py launchers [--parts 4] [--only whole local] [--out FILE]

Three systems, four learning rates and six seeds on handwritten digits: 72 lanes, with a layout that
is given. Each way starts with no compiled programs. By hand means one part after the other. Slurm
is submitit's local executor; it and Ray are left out where they are not installed.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fedjax_sim.results.reports import load

LAYOUT = "slots_at_once=1,lanes_at_once=false,client_devices=1"
STUDY = ("fedavg", "fedbuff", "favano", "--set", "lr=0.05,0.1,0.2,0.5", "--seeds", "6")
ROOT = Path(__file__).parents[2]
NEEDS = {"submitit": "submitit", "ray": "ray"}


def call(words: Sequence[str], cache: Path) -> None:
    """Run a command of the package in a process, with a folder for compiled programs."""
    variables = {**os.environ, "FEDJAX_SIM_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    subprocess.run([sys.executable, "-m", "fedjax_sim", *words], env=variables, check=True)


def run_way(way: str, study: Sequence[str], num_parts: int, folder: Path) -> Path:
    """Run the study in one way, and return its results folder."""
    out, cache = folder / way, folder / f"{way}-cache"
    if way == "by hand":
        parts = [folder / f"part-{i}" for i in range(num_parts)]
        for i, path in enumerate(parts):
            call(["run", *study, f"--part={i}/{num_parts}", f"--out={path}"], cache)
        call(["merge", *map(str, parts), f"--out={out}"], cache)
        return out
    launchers = {
        "whole": [],
        "local": ["--launcher=local"],
        "submitit": ["--launcher=slurm", "--resources=cluster=local,timeout_min=600"],
        "ray": ["--launcher=ray", "--resources=num_cpus=0.5"],
    }
    flags = launchers[way] and [*launchers[way], f"--parts={num_parts}"]
    call(["run", *study, *flags, f"--out={out}"], cache)
    return out


def differences(ours: Path, theirs: Path) -> list[str]:
    """List the variables and pictures that are not equal in two results folders, bit for bit."""
    a, b = load(ours).curves, load(theirs).curves
    assert a.keys() == b.keys()
    found = [
        f"{system}/{name}"
        for system in a
        for name in {*a[system].variables, *b[system].variables}
        if not (
            name in a[system].variables
            and name in b[system].variables
            and a[system][name].variable.identical(b[system][name].variable)
        )
    ]
    pictures = {path.name for folder in (ours, theirs) for path in folder.glob("*.png")}
    return found + [
        name for name in pictures if (ours / name).read_bytes() != (theirs / name).read_bytes()
    ]


def main(words: Sequence[str]) -> None:
    """Run the ways that were asked for, and print and keep what was found."""
    ways = ("whole", "by hand", "local", "submitit", "ray")
    parser = argparse.ArgumentParser(
        prog="benchmark.py launchers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", type=int, default=4, help="number of parts")
    parser.add_argument("--time-budget", default="2000", help="virtual time of a lane")
    parser.add_argument("--only", nargs="+", choices=ways[1:], default=ways[1:], help="ways")
    parser.add_argument("--out", type=Path, help="file for what was found, as JSON")
    given = parser.parse_args(words)
    study = (*STUDY, "--time-budget", given.time_budget, "--layout", LAYOUT)
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as name:
        for way in ("whole", *given.only):
            if way in NEEDS and importlib.util.find_spec(NEEDS[way]) is None:
                print(f"{way}: not installed")
                continue
            began = time.perf_counter()
            out = run_way(way, study, given.parts, Path(name))
            seconds = round(time.perf_counter() - began, 1)
            differ = differences(out, Path(name) / "whole")
            found[way] = {"seconds": seconds, "lanes": load(out).summary["lanes"], "differ": differ}
            print(f"{way}: {seconds} s, {len(differ)} variables and pictures differ", flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    if any(each["differ"] for each in found.values()):
        sys.exit("The results differ.")
