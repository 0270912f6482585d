"""The measurements: where they are from, how the small tables were made, and how they are read.

    git clone https://github.com/Haoran-Jie/fedctl rack
    git -C rack checkout d5fb8ea757599796af63ab5b78f62ab75516d89f
    git clone https://github.com/Qiyr0/AsyncFedED machines
    git -C machines checkout 37b7562003b5508768a0bb38c255c5ac7b7e3b0d
    python -m experiments.clocks.sources rack machines

writes the tables in `measured/` again.

**The rack** (Haoran Jie's fedctl, without a licence: the tables have measured numbers only) has ten
Raspberry Pi 5 and five slower Raspberry Pi 4, which train on CIFAR-10 until 60 % accuracy.
`rack_runs.csv` has its diagnostics, run by run, as published. `rack_updates.csv` has the updates of
the first 60 server steps of six runs. Their times are not published: they are interpolated between
the server's evaluations, which are ten updates apart, and count from the first evaluation.

**The machines** (AsyncFedED, Copyright (c) 2022 Qiyr0, MIT licence) are ten, with work of very
different lengths. `machines_times.csv` has the times of consecutive updates of each machine in
milliseconds, of runs without dropped updates (PE = 0). `machines_targets.csv` has when each run
first reached an accuracy, and how many updates the server had received by then.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "measured"
TASKS = {"FEMNIST": 70.0, "Shake": 35.0, "Synthetic": 95.0}
"""Tasks of the machines, with the accuracy in percent that counts as the target."""
MODES = ("Constant", "Hinge", "FedAvg", "Prox")
"""Their systems: FedAsync with constant and with hinge weights, FedAvg and FedProx."""
NUM_RUNS = 3
"""Runs of each that the tables have, the first ones by date."""
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """Read a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(name: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table."""
    with (FOLDER / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([list(header), *map(list, rows)])


def make_rack(clone: Path) -> None:
    """Write the tables of the rack from a clone of its repository."""
    folder = clone / "plot" / "output"
    clock = defaultdict(list)
    for row in read(folder / "network_main_accuracy_vs_wall_clock_raw.csv"):
        clock[row["run_id"]].append((float(row["client_trip"]), float(row["wall_clock_s"])))
    runs = []
    for row in read(folder / "network_main_accuracy_vs_client_trips_summary.csv"):
        if row["topology"] == "mixed":
            trips, seconds = np.transpose(sorted(clock[row["run_id"]]))
            runs.append(
                [
                    *(row[name] for name in ("regime", "method", "seed", "target_client_trips")),
                    *(f"{x:g}" for x in (trips[0], trips[-1])),
                    *(f"{x:.1f}" for x in (seconds[0], seconds[-1])),
                    *(row[f"rpi4_{name}"][:7] for name in SHARES[:3]),
                    row["rpi5_staleness"][:7],
                ]
            )
    for row in read(folder / "network_stressor_sweep_summary.csv"):
        if row["profile"] == "none" and row["buffer_size"] == "5":
            found = [*(row[name] for name in ("method", "seed", "target_client_trips")), *[""] * 4]
            found += [*(row[f"rpi4_{name}"][:7] for name in SHARES[:3]), row["rpi5_staleness"][:7]]
            runs.append(["buffers of five", *found])
    names = ("regime", "method", "seed", "trips_to_target", "first_trips", "last_trips")
    write("rack_runs.csv", [*names, "first_seconds", "last_seconds", *SHARES], runs)
    updates: list[list[str]] = []
    boards: dict[tuple[str, str], int] = {}
    for row in read(folder / "network_async_update_weights_raw.csv"):
        run = row["run_id"]
        if run in clock:
            number = boards.setdefault((run, row["node_id"]), len(boards) % 15)
            trip, (trips, seconds) = int(row["client_trips_total"]), np.transpose(clock[run])
            now = np.interp(trip, trips, seconds - seconds[0])
            known = f"{now:.1f}" if trip >= trips[0] else ""
            who = f"{row['device_type']}-{number}"
            updates.append([row["method"], row["seed"], who, row["staleness"], known])
    write("rack_updates.csv", ["method", "seed", "board", "staleness", "finish"], updates)


SHARES = ("update_share", "weight_share", "staleness", "fast_staleness")
"""Columns of a run: the slow boards' shares and mean staleness, and that of the fast ones."""


def make_machines(clone: Path) -> None:
    """Write the tables of the machines from a clone of their repository."""
    times: list[list[object]] = []
    targets: list[list[object]] = []
    for task, target in TASKS.items():
        for mode in MODES:
            folders = sorted((clone / f"{task}Release").glob(f"{task}{mode}-PE=0.0-*"))
            for number, folder in enumerate(folders[:NUM_RUNS]):
                for client in range(10):
                    cost = [float(row["TimeCost"]) for row in read(folder / f"{client}.csv")]
                    words = " ".join(str(round(1000 * x)) for x in cost)
                    if mode in ("Constant", "FedAvg"):
                        times.append([task, mode, number, client, words])
                rows = read(folder / "cloud_server.csv")
                ended = rows[-1]
                reached = [row for row in rows if float(row["TestAccuracy"]) >= target]
                place = reached[0] if reached else dict.fromkeys(ended, "")
                found = [*map(place.get, COUNTS), *map(ended.get, COUNTS)]
                found = [f"{float(x):.1f}" if x else "" for x in found]
                targets.append([task, mode, number, *found])
    names = ("seconds", "updates", "last_seconds", "last_updates")
    write("machines_times.csv", ["task", "mode", "run", "machine", "milliseconds"], times)
    write("machines_targets.csv", ["task", "mode", "run", *names], targets)


COUNTS = ("WallTime", "ModelIterations")
"""The server's columns that `machines_targets.csv` has."""


def main() -> None:
    """Write all tables."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m experiments.clocks.sources RACK MACHINES")
    make_rack(Path(sys.argv[1]))
    make_machines(Path(sys.argv[2]))


def rack_runs() -> list[Row]:
    """Read the diagnostics of the rack's runs."""
    return read(FOLDER / "rack_runs.csv")


def rack_updates(method: str, seed: str) -> list[Row]:
    """Read the updates of one of the rack's runs, in order."""
    rows = read(FOLDER / "rack_updates.csv")
    return [row for row in rows if (row["method"], row["seed"]) == (method, seed)]


def machine_times(task: str, mode: str) -> dict[str, list[np.ndarray]]:
    """Read the seconds of consecutive updates, of ten machines by number of the run."""
    found = defaultdict(list)
    for row in read(FOLDER / "machines_times.csv"):
        if (row["task"], row["mode"]) == (task, mode):
            found[row["run"]].append(np.array(row["milliseconds"].split(), float) / 1000)
    return found


def machine_targets(task: str) -> Mapping[str, list[Row]]:
    """Read when runs reached the target, by system."""
    found = defaultdict(list)
    for row in read(FOLDER / "machines_targets.csv"):
        if row["task"] == task:
            found[row["mode"]].append(row)
    return found


if __name__ == "__main__":
    main()
