"""Let real mishaps happen to runs of the command line, and check how they end.

    python scripts/mishaps.py kills [--out DIR]    SIGKILL and SIGTERM at random moments
    python scripts/mishaps.py studies [--out DIR]  the same to the launcher of a study and its parts
    python scripts/mishaps.py merges [--out DIR]   the same to the merging of parts
    python scripts/mishaps.py others [--out DIR]   full disk, removed folder, two writers, ...

A run that was killed or stopped is resumed until it ends, and must then have the bits of one that
was left alone. Every ending must be an exit code of `core.lifecycle` with one sentence. The
kills go on where an earlier call left off; DIR/kills.json, DIR/studies.json and DIR/merges.json
count them. Exit code 0: all as it must be.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sklearn.datasets
import sklearn.model_selection  # noqa: F401
import xarray as xr

import fedjax_sim.cli.training  # noqa: F401 (loaded here, so that forks need not)
from fedjax_sim.cli import commands
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.results import plots, reports  # noqa: F401

ROOT = Path(__file__).parents[1]
COMMON = ["--seeds", "2", "--evals", "5", "--checkpoint-every", "0.05"]
FAVANO = ["run", "favano", *COMMON, "--set", "batch_size=8,16", "--time-budget", "6000"]
SMALL = [*COMMON, "--model", "logistic", "--set", "batch_size=8,16"]
RUNS = {
    "favano": FAVANO,
    "langevin": ["run", "langevin", *SMALL, "--time-budget", "1500"],
    "fedem": ["run", "fedem", *COMMON, "--set", "batch_size=8,16", "--time-budget", "800"],
    "hierarchical": ["run", "hierarchical", *SMALL, "--time-budget", "1500"],
}
"""What is killed: two groups of lanes each, that take some seconds."""
CACHE = "FEDJAX_SIM_CACHE"
SIGNALS = {"SIGKILL": 60, "SIGTERM": 20}
"""How often runs are killed in all."""


ON_THE_WAY = re.compile(r" compiles a program of | goes on after \d+ of \d+ ticks | \.\.\.$")
"""Lines that say how a run goes on."""


class MishapError(Exception):
    """A mishap that ended as it must not."""


def start(
    words: Sequence[str],
    *,
    module: str = "fedjax_sim",
    root: Path = ROOT,
    cache: Path | None = None,
) -> subprocess.Popen:
    """Start a command of some copy of the code, with its errors in a pipe."""
    command = [sys.executable, "-m", module, *words]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    variables = dict(os.environ) if cache is None else os.environ | {CACHE: str(cache)}
    return subprocess.Popen(command, cwd=root, text=True, env=variables, **pipes)


class Fork:
    """A run in a fork of this process, which has imported everything but not started JAX."""

    def __init__(self, words: Sequence[str], said: Path):
        """Start the run. Its errors go to the file `said`."""
        self._said, self._code = said, None
        self.pid = os.fork()
        if self.pid == 0:
            errors = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(errors, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(commands.main(list(words)))

    def ends_within(self, seconds: float) -> bool:
        """Wait at most some seconds for the end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                return True
            time.sleep(0.005)
        return False

    def kill(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def end(self) -> tuple[int, str]:
        """Wait for the end. Returns the exit code and the errors."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code, self._said.read_text() if self._said.exists() else ""


def ending(process: subprocess.Popen, code: int, *named: str) -> str:
    """Wait for a command; check its exit code, and that it said a sentence unless that is 0.

    Lines of a run on its way are no endings.
    """
    said = process.communicate()[1]
    lines = [line for line in said.splitlines() if not ON_THE_WAY.search(line)]
    is_right = process.returncode == code and len(lines) == (code != 0)
    if not is_right or not all(name in said for name in named):
        raise MishapError(
            f"{process.args}: exit code {process.returncode} instead of {code}: {said}"
        )
    return said.strip()


def same_bits(a: Path, b: Path) -> bool:
    """Tell whether two results folders hold the same arrays."""
    with (
        xr.open_datatree(a / "results.nc", engine="h5netcdf") as ours,
        xr.open_datatree(b / "results.nc", engine="h5netcdf") as theirs,
    ):
        return bool(ours.equals(theirs))


def whole_run(name: str, words: Sequence[str], out: Path) -> tuple[Path, float]:
    """Run without a mishap, unless that is done. Returns the folder and its seconds."""
    folder, clock = out / f"{name}-whole", out / f"{name}-seconds.json"
    if not clock.exists():
        for _ in range(2):  # The first run compiles.
            shutil.rmtree(folder, ignore_errors=True)
            began = time.monotonic()
            code, said = Fork([*words, "--out", str(folder)], out / "said").end()
            if code:
                raise MishapError(said)
        clock.write_text(json.dumps(time.monotonic() - began))
    return folder, json.loads(clock.read_text())


def kills(out: Path, signals: dict[str, int]) -> None:
    """Kill runs of every system at random moments, resume them, and compare their results."""
    record = out / "kills.json"
    counts: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    for name, words in RUNS.items():
        whole, seconds = whole_run(name, words, out)
        folder = out / f"{name}-killed"
        outcomes = (*signals, "ended with equal bits", "before the program listened")
        count = counts.setdefault(name, dict.fromkeys(outcomes, 0))
        share = {kind: -(-total // len(RUNS)) for kind, total in signals.items()}
        while open_kinds := [kind for kind in signals if count[kind] < share[kind]]:
            run = Fork([*words, "--out", str(folder), "--resume"], out / "said")
            # A resumed run has less to do than a whole one.
            if run.ends_within(random.uniform(0, 0.6 * seconds)):
                check_ended(run, folder, whole, count)
            else:
                kill(run, random.choice(open_kinds), count)
            record.write_text(json.dumps(counts, indent=1))
        if folder.exists():
            run = Fork([*words, "--out", str(folder), "--resume"], out / "said")
            check_ended(run, folder, whole, count)
            record.write_text(json.dumps(counts, indent=1))
        print(name, count, f"(a run takes {seconds:.1f} s)", flush=True)


def kill(run: Fork, kind: str, count: dict[str, int]) -> None:
    """Send a signal to a run, and check how it ends."""
    run.kill(getattr(signal, kind))
    code, said = run.end()
    is_saved = kind == "SIGTERM" and code == 75 and said.count("stopped by SIGTERM") == 1
    if is_saved or (kind == "SIGKILL" and code == -signal.SIGKILL):
        count[kind] += 1
    elif kind == "SIGTERM" and code == -signal.SIGTERM:
        count["before the program listened"] += 1
    elif code:  # Otherwise it ended just then.
        raise MishapError(f"{kind} gave exit code {code}: {said}")


def check_ended(run: Fork, folder: Path, whole: Path, count: dict[str, int]) -> None:
    """Check that a run ended with the bits of the whole one, and remove its folder."""
    code, said = run.end()
    if code or not same_bits(folder, whole):
        raise MishapError(f"{folder} ended with {code} or other bits: {said}")
    count["ended with equal bits"] += 1
    shutil.rmtree(folder)


def studies(out: Path) -> None:
    """Kill the launcher of a study or one of its parts at random moments, and resume the study."""
    whole, seconds = whole_run("study", STUDY, out)
    folder, record = out / "study", out / "studies.json"
    count = dict.fromkeys((*VICTIMS, "ended with equal bits"), 0)
    count |= json.loads(record.read_text()) if record.exists() else {}
    words = [*STUDY, "--parts", "2", "--out", str(folder), "--resume"]
    shutil.rmtree(folder, ignore_errors=True)
    while open_kinds := [kind for kind, total in VICTIMS.items() if count[kind] < total]:
        run, kind = start(words), random.choice(open_kinds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(random.uniform(1, 3 + 2 * seconds))
        name, who = kind.split()
        parts = children_of(run.pid)
        victim = run.pid if who == "launcher" else random.choice(parts or [0])
        if run.poll() is None and victim:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, getattr(signal, name))
                count[kind] += 1
        said = run.communicate()[1]
        # Parts are killed with their launcher, and may be a moment behind.
        while any(Path(f"/proc/{part}").exists() for part in parts):
            time.sleep(0.05)
        if "Traceback" in said:
            raise MishapError(said)
        if run.returncode == 0:
            check_study(folder, whole, count)
        record.write_text(json.dumps(count, indent=1))
    last = start(words)
    said = last.communicate()[1]  # The launcher says which parts have ended.
    if last.returncode != 0 or "Traceback" in said:
        raise MishapError(f"exit code {last.returncode}: {said}")
    check_study(folder, whole, count)
    print(count)


STUDY = [*FAVANO, "--layout", "slots_at_once=1,lanes_at_once=false,client_devices=1"]
"""What is launched in two parts; parts have the bits of the whole under a layout that is given."""
VICTIMS = {"SIGKILL launcher": 10, "SIGTERM launcher": 10, "SIGKILL part": 10, "SIGTERM part": 5}
"""How often a study is hit, and where."""


def children_of(process: int) -> list[int]:
    """List the processes that a process has started and that have not ended."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(number) for number in task.read_text().split()]
    return found


def check_study(folder: Path, whole: Path, count: dict[str, int]) -> None:
    """Check that a study ended with the bits of the whole run, and remove its folder."""
    if not same_bits(folder, whole):
        raise MishapError(f"{folder} ended with other bits")
    count["ended with equal bits"] += 1
    shutil.rmtree(folder)


def merges(out: Path) -> None:
    """Kill the merging of two parts at random moments, and merge them again.

    The folder has an earlier result every second time. What a killed merge leaves there is that
    result, or the new one, or is refused in a sentence when it is read.
    """
    whole, _ = whole_run("study", STUDY, out)
    parts = [out / f"part-{i}" for i in range(2)]
    for i, part in enumerate(parts):
        if not (part / "summary.json").exists():
            shutil.rmtree(part, ignore_errors=True)
            code, said = Fork([*STUDY, f"--part={i}/2", f"--out={part}"], out / "said").end()
            if code:
                raise MishapError(said)
    before, folder, record = list(map(files_of, parts)), out / "merged", out / "merges.json"
    count = dict.fromkeys((*MERGES, "before the program listened", "ended with equal bits"), 0)
    count |= {"left the earlier or the new result": 0, "left a folder that is refused": 0}
    count |= json.loads(record.read_text()) if record.exists() else {}
    words = ["merge", *map(str, parts), "--out", str(folder), "--overwrite"]
    seconds = 0.0
    while open_kinds := [kind for kind, total in MERGES.items() if count[kind] < total]:
        if random.random() < 0.5:
            shutil.rmtree(folder, ignore_errors=True)
        run = Fork(words, out / "said")
        if seconds == 0.0 or run.ends_within(random.uniform(0, seconds)):
            began = time.monotonic()
            run.end()
            seconds = seconds or time.monotonic() - began
        else:
            kill(run, random.choice(open_kinds), count)
        if (folder / "summary.json").exists():
            try:
                reports.load(folder)
            except InputError:
                count["left a folder that is refused"] += 1
            else:
                check_merged(folder, whole)
                count["left the earlier or the new result"] += 1
        code, said = Fork(words, out / "said").end()
        if code:
            raise MishapError(said)
        check_merged(folder, whole)
        count["ended with equal bits"] += 1
        if list(map(files_of, parts)) != before:
            raise MishapError("the parts have changed")
        record.write_text(json.dumps(count, indent=1))
    print(count, f"(a merge takes {seconds:.1f} s)")


MERGES = {"SIGKILL": 20, "SIGTERM": 10}
"""How often merges are killed."""


def files_of(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def check_merged(folder: Path, whole: Path) -> None:
    """Check that a folder has the bits of the whole run."""
    if not same_bits(folder, whole):
        raise MishapError(f"{folder} has other bits")


def wait_for_state(folder: Path, process: subprocess.Popen) -> None:
    """Wait until a run has written a checkpoint."""
    while not any(folder.glob("checkpoint/*/*/state-*")):
        if process.poll() is not None:
            raise MishapError(f"ended before it saved: {process.communicate()[1]}")
        time.sleep(0.02)


@contextlib.contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    """Mount a small file system in memory, which needs the rights to do so."""
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def full_disk(out: Path) -> str:
    """Fill the disk under a run, free it, and resume."""
    whole, _ = whole_run("favano", FAVANO, out)
    with small_disk(out / "small", "40m") as disk:
        words = [*RUNS["favano"], "--out", str(disk / "run")]
        process = start(words)
        wait_for_state(disk / "run", process)
        with contextlib.suppress(OSError), (disk / "filler").open("wb") as filler:
            while filler.write(bytes(4096)):
                filler.flush()
        said = ending(process, 74, "No space left on device")
        (disk / "filler").unlink()
        ending(start([*words, "--resume"]), 0)
        if not same_bits(disk / "run", whole):
            raise MishapError("other bits")
    return said


def read_only_disk(out: Path) -> str:
    """Begin on a disk that cannot be written."""
    with small_disk(out / "small", "40m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        words = [*RUNS["favano"], "--out", str(disk / "run")]
        return ending(start(words), 2, "Read-only file system")


def removed_folder(out: Path) -> str:
    """Remove the folder under a run."""
    folder = out / "removed"
    process = start([*RUNS["favano"], "--out", str(folder)])
    wait_for_state(folder, process)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)  # A file may have appeared in between.
    said = ending(process, 74, "No such file or directory")
    if folder.exists():
        raise MishapError(f"{folder} was made again")
    return said


def two_writers(out: Path) -> str:
    """Resume a run that is still running, and then let a queue stop it."""
    folder = out / "shared"
    shutil.rmtree(folder, ignore_errors=True)
    words = [*FAVANO[:-1], "200000", "--out", str(folder)]
    process = start(words)
    wait_for_state(folder, process)
    named = (f"process {process.pid} on {os.uname()[1]}", "is being written")
    said = ending(start([*words, "--resume"]), 2, *named)
    process.send_signal(signal.SIGUSR1)
    ending(process, 75, "stopped by SIGUSR1 after saving")
    return said


def interrupted_run(out: Path) -> str:
    """Press Ctrl-C in a run, and resume it."""
    whole, _ = whole_run("favano", FAVANO, out)
    folder = out / "interrupted"
    shutil.rmtree(folder, ignore_errors=True)
    process = start([*RUNS["favano"], "--out", str(folder)])
    wait_for_state(folder, process)
    process.send_signal(signal.SIGINT)
    said = ending(process, 130, "interrupted")
    ending(start([*RUNS["favano"], "--out", str(folder), "--resume"]), 0)
    if not same_bits(folder, whole):
        raise MishapError("other bits")
    return said


def interrupted_experiment(out: Path) -> str:
    """Press Ctrl-C in an experiment."""
    folder = out / "experiment"
    shutil.rmtree(folder, ignore_errors=True)
    words = ["run", "favano/lattice", "--smoke", "--out", str(folder)]
    process = start(words, module="experiments")
    while not (folder / "checkpoint" / "run.json").exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    return ending(process, 130, "interrupted")


SHORT = ["run", "favano", "--seeds", "1", "--evals", "2", "--time-budget", "600"]


def two_versions(out: Path) -> str:
    """Run two versions of the code in turns on one cache of compiled programs.

    The second version is a copy in which a constant of the shuffle of examples is another one.
    """
    other, shared = out / "other", out / "shared-cache"
    for path in (other, shared, *out.glob("version-*")):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(ROOT / "fedjax_sim", other / "fedjax_sim")
    changed = other / "fedjax_sim" / "core" / "streams.py"
    text = changed.read_text()
    if CONSTANT not in text:
        raise MishapError(f"{changed} has no {CONSTANT}")
    changed.write_text(text.replace(CONSTANT, "SHUFFLE_ROUNDS = 31"))
    roots = {"first": ROOT.absolute(), "second": other.absolute()}
    for name, root in roots.items():
        words = [*SHORT, "--out", str((out / f"version-{name}").absolute())]
        ending(start(words, root=root, cache=(out / f"version-{name}-cache").absolute()), 0)
    if same_bits(out / "version-first", out / "version-second"):
        raise MishapError("both versions give the same bits, so that nothing is tested")
    for turn in range(3):
        for name, root in roots.items():
            folder = (out / f"version-{name}-{turn}").absolute()
            ending(start([*SHORT, "--out", str(folder)], root=root, cache=shared.absolute()), 0)
            if not same_bits(folder, out / f"version-{name}"):
                raise MishapError(f"{name} version, turn {turn}: other bits")
    return "six runs on one cache have the bits of their version"


CONSTANT = "SHUFFLE_ROUNDS = 32"


def read_only_cache(out: Path) -> str:
    """Run with a cache that cannot be written: an empty one, and one that has the programs."""
    folder, plain = (out / "read-only").absolute(), (out / "read-only-plain").absolute()
    shutil.rmtree(plain, ignore_errors=True)
    with small_disk(out / "small", "400m") as disk:
        cache, said = disk.absolute() / "cache", []
        cache.mkdir()
        for is_filled in (False, True):
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            shutil.rmtree(folder, ignore_errors=True)
            process = start([*SHORT, "--out", str(folder)], cache=cache)
            said.append(process.communicate()[1])
            lines = said[-1].splitlines()
            if process.returncode or len(lines) > 1 or "Traceback" in said[-1]:
                raise MishapError(f"exit code {process.returncode}: {said[-1]}")
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            if not is_filled:
                ending(start([*SHORT, "--out", str(plain)], cache=cache), 0)
            if not same_bits(folder, plain):
                raise MishapError("other bits")
    return f"equal bits; empty: {said[0].strip()!r}, filled: {said[1].strip()!r}"


OTHERS: dict[str, Callable[[Path], str]] = {
    "full disk, freed and resumed": full_disk,
    "disk that cannot be written": read_only_disk,
    "cache that cannot be written": read_only_cache,
    "two versions of the code on one cache": two_versions,
    "folder removed": removed_folder,
    "two writers": two_writers,
    "Ctrl-C in a run, then resumed": interrupted_run,
    "Ctrl-C in an experiment": interrupted_experiment,
}


def main() -> int:
    """Let mishaps happen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("kills", "studies", "merges", "others"))
    parser.add_argument("--out", type=Path, default=Path("results-mishaps"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    # A shell lets background jobs ignore Ctrl-C, and their children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if given.what == "kills":
        kills(given.out, SIGNALS)
        return 0
    if given.what in ("studies", "merges"):
        {"studies": studies, "merges": merges}[given.what](given.out)
        return 0
    num_wrong = 0
    for name, happen in OTHERS.items():
        try:
            print(f"{name}: {happen(given.out)}", flush=True)
        except (MishapError, subprocess.CalledProcessError) as error:
            num_wrong += 1
            print(f"{name}: WRONG: {error}", flush=True)
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
