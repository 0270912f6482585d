"""Time the engine against named alternatives, and keep the results with date and hardware.

    python scripts/benchmark.py            most of them, into scripts/benchmark_results.json
    python scripts/benchmark.py NAME...    these
    python scripts/benchmark.py programs   counts what programs launch on devices that are not here
    python scripts/benchmark.py rounding   runs a claim with products of fewer bits
    python scripts/benchmark.py launchers  one study whole and in parts, started in every way
    python scripts/benchmark.py peers      other simulators, each in its own environment
    python scripts/benchmark.py accelerator   measures an accelerator, in under nine minutes
    python scripts/benchmark.py beyond     data in files, with less and less memory

Contestants take turns within one run, and the median over turns counts. Compilation is left out.
Images are random bytes: what they show does not change the time.
"""

import argparse
import datetime
import importlib
import json
import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "scripts" / "benchmark_results.json"
BENCHMARKS = {
    "fedavg": ("engine", "FedAvg against a hand-written vmapped scan of the same work"),
    "favano": ("engine", "FAVANO, the layout that is chosen against the masked wide one"),
    "packing": ("packing", "counts the steps that FAVANO runs with each layout; nothing is timed"),
    "sweep": ("engine", "sixteen learning rates of one seed together and one by one"),
    "layout": (
        "engine",
        "the layout that is chosen against others; once on all cores, once on one",
    ),
    "calls": ("calls", "what a repeated call costs on the host, besides the replay"),
    "arrivals": ("arrivals", "schedules of up to a million clients against a plain heap"),
    "growth": ("arrivals", "what a tick costs with a hundred to a million clients"),
    "asynchronous": ("arrivals", "FedStaleWeight's 16,000 server steps in virtual time"),
    "live": ("live", "memory of live clocks against planned ones; nothing is timed"),
    "langevin": ("langevin", "chains of FA-LD against a NumPy loop and blackjax's SGLD"),
    "em": ("em", "expected statistics per second, against NumPy and scikit-learn"),
    "hierarchical": ("hierarchical", "what padding costs in a sweep of sync times and delays"),
    "convolution": ("convolution", "a step of convolutional networks; runs alone, on one device"),
}
"""The module of each benchmark in the folder `benchmarks`, and what it measures."""
COMMANDS = {
    "programs": "counts what programs launch on devices that are not here; see programs --help",
    "accelerator": "measures an accelerator, in under nine minutes; see accelerator --help",
    "launchers": "one study whole, in parts by hand, and by every launcher; see launchers --help",
    "rounding": "what products of fewer bits do to a claim, emulated; see rounding --help",
    "beyond": "data in files, with less and less memory; see beyond --help",
    "peers": "this engine against other simulators; has options, see peers --help",
}
"""Modules in the folder `benchmarks` whose `main` takes the rest of the command line."""
ALONE = "convolution"
"""Compares single programs, and so runs on one device with all cores."""


def main() -> None:
    """Run the benchmarks named, and update the file of results."""
    sys.path.insert(1, str(ROOT))  # some run systems of `experiments`, which is not installed
    if sys.argv[1:] and sys.argv[1] in COMMANDS:
        importlib.import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
        return
    described = {name: what for name, (_, what) in BENCHMARKS.items()} | COMMANDS
    listed = "\n".join(f"  {name:13} {what}" for name, what in described.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "benchmarks",
        nargs="*",
        choices=[[], *BENCHMARKS],
        metavar="NAME",
        help="benchmarks to run; all but the last if none is named",
    )
    parser.add_argument("--turns", type=int, default=3, help="measurements of each contestant")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results to update")
    arguments = parser.parse_args()
    names = arguments.benchmarks or [name for name in BENCHMARKS if name != ALONE]
    if ALONE in names and len(names) > 1:
        parser.error(f"{ALONE} runs alone")

    import jax

    import fedjax_sim

    fedjax_sim.use_cores(1 if names == [ALONE] else None)
    device = jax.devices()[0]
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in names:
        module = importlib.import_module(f"benchmarks.{BENCHMARKS[name][0]}")
        measured = getattr(module, f"bench_{name}")(arguments.turns)
        facts = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{device.device_kind}, {jax.local_device_count()} devices, "
            f"{os.cpu_count()} cores, {platform.machine()}",
            "jax": jax.__version__,
            "turns": arguments.turns,
        }
        of_backend = results.setdefault(jax.default_backend(), {})
        of_backend[name] = of_backend.get(name, {}) | facts | measured
        print(name, json.dumps(measured, indent=1))
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
