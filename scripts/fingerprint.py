"""Record the bits of results, and compare two records: to show that moved code computes the same.

    python scripts/fingerprint.py record FILE.json [--only NAME...] [--checkout FOLDER]
    python scripts/fingerprint.py compare BEFORE.json AFTER.json

A record has an entry for each of these, and an entry has the SHA-256 of every array by its name:

    experiments/PAPER/NAME  a smoke run: files of numbers, printed tables, what its pictures show
    systems/SYSTEM          `fedjax-sim run SYSTEM`, two seeds and a few ticks on the digits
    layouts/SYSTEM          `sweep` on a tiny problem in every layout, and with its other options
    layouts_x64/SYSTEM      the same in 64 bits, with JAX_ENABLE_X64=1
    timelines/SYSTEM        schedules under every delay law, and `fedjax-sim timeline SYSTEM`

`record` writes the file after each entry and leaves out entries that are there, so that it can be
stopped and called again. `--only layouts systems/favano` records a part. `--checkout` records the
code of another checkout, such as a git worktree of an earlier commit. Each entry is a new process
that uses the command line and public names alone, so that the file may stay the same while modules
move. Compiled programs are kept in a separate folder, and a second record takes a fraction of the
time of the first.

`compare` names what differs or is in one record only. Records from different versions, flags or
machines are refused, since their bits may differ for that reason alone. The flags are those of the
environment; the platform is the CPU unless JAX_PLATFORMS says otherwise.

Not recorded, because it differs between two runs of the same code or says nothing of what was
computed: seconds, dates, versions, commits, devices, digests of files, paths, the bytes of PNG
files (the arrays in pictures are recorded instead), attributes of netCDF variables, and
settings.json, whose functions have the names of their modules. Numbers in entry.json are rounded to
five digits by the harness; claims.json, results.nc and the pictures have all bits.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import runpy
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Hashes = dict[str, str]
"""SHA-256 by name of the array."""

PACKAGES = [
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "chex",
    "numpy",
    "scipy",
    "scikit-learn",
    "xarray",
    "h5netcdf",
    "h5py",
    "matplotlib",
]
UNSTEADY = {
    "commit",
    "cost",
    "date",
    "device",
    "files",
    "folder",
    "seconds",
    "seconds_compile",
    "seconds_run",
    "sha256",
    "versions",
}
"""Names in JSON and netCDF files that are left out."""
UNSTEADY_LINES = ("ritten to results",)
"""Words of lines in printed texts that are left out."""
SMALL_RUN = ["--seeds", "2", "--evals", "3", "--keep-samples"]
"""Flags of the runs of systems."""
TIME_BUDGET, EM_TIME_BUDGET = 150.0, 12.0
"""Virtual time of these runs."""
NUM_CLIENTS = 7
LAYOUT_SYSTEMS: Mapping[str, tuple[dict[str, Any], str, list[float]]] = {
    "fedavg": ({"num_selected": 4, "local_steps": 5}, "lr", [0.05, 0.1]),
    "scaffold": ({"num_selected": 4, "local_steps": 5}, "lr", [0.05, 0.1]),
    "quafl": ({"num_selected": 4, "local_steps": 5}, "lr", [0.05, 0.1]),
    "favano": ({"num_selected": 4, "local_steps": 5}, "lr", [0.05, 0.1]),
    "fedbuff": ({"concurrency": 5, "buffer_size": 4, "local_steps": 5}, "lr", [0.05, 0.1]),
    "async_hierarchical": (
        {"num_groups": 4, "sync_time": 5.0, "mean": 0.2, "num_reports": 4, "client_steps": 2},
        "lr",
        [0.05, 0.1],
    ),
    "langevin": (
        {"local_steps": 5, "temperature": 1e-3, "rho": 0.5},
        "step_size",
        [1e-3, 2e-3],
    ),
    "fedem": ({"participation": 0.6, "gamma": 0.1}, "gamma", [0.1, 0.2]),
}
"""Settings of the systems that run in every layout, and the setting that is swept."""
ONE_DEVICE = {"lane_devices": 1, "client_devices": 1}
LAYOUTS: Mapping[str, dict[str, Any]] = {
    "default": {},
    "one device": ONE_DEVICE,
    "lanes together": {**ONE_DEVICE, "lanes_at_once": True},
    "lanes in turn": {**ONE_DEVICE, "lanes_at_once": False},
    "slots one by one": {**ONE_DEVICE, "lanes_at_once": False, "slots_at_once": 1},
    "slots by twos": {**ONE_DEVICE, "lanes_at_once": False, "slots_at_once": 2},
    "packed": {**ONE_DEVICE, "packed": True},
    "two lane devices": {"lane_devices": 2, "client_devices": 1},
    "two client devices": {"lane_devices": 1, "client_devices": 2},
}
"""Fields of `Layout` by the name under which they are recorded."""
LAYOUTS_IN_64_BITS = ("default", "lanes in turn", "packed", "two client devices")
"""Those that are recorded in 64 bits too, where every program is compiled once more."""


def main(words: Sequence[str] | None = None) -> int:
    """Record, compare, or be the process that computes one entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="record|compare")
    record = commands.add_parser("record")
    record.add_argument("file", type=Path)
    record.add_argument("--only", nargs="+", metavar="NAME", help="entries, or beginnings of them")
    record.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1])
    default_cache = Path(tempfile.gettempdir()) / "fedjax_sim_fingerprint"
    record.add_argument("--cache", type=Path, default=default_cache, help="of compiled programs")
    compare = commands.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    entry = commands.add_parser("entry")  # What `record` starts.
    entry.add_argument("name")
    entry.add_argument("file", type=Path)
    entry.add_argument("checkout", type=Path)
    arguments = parser.parse_args(words)
    if arguments.command == "entry":
        check_checkout(arguments.checkout)
        content = compute(arguments.name)
        arguments.file.write_text(json.dumps(content))
        return 0
    if arguments.command == "compare":
        before, after = (
            json.loads(path.read_text()) for path in (arguments.before, arguments.after)
        )
        lines, code = compare_records(before, after)
        print("\n".join(lines))
        return code
    return write_record(arguments.file, arguments.only, arguments.checkout, arguments.cache)


# Comparing.


def compare_records(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], int]:
    """Compare two records.

    Args:
      before: The content of a file of `record`.
      after: That of another one.

    Returns:
      What to print, and the exit code: 0 if all arrays of all entries are equal, 1 if not, 2 if the
      records cannot be compared.
    """
    differing = differences(before["facts"], after["facts"])
    if differing:
        old, new = before["facts"], after["facts"]
        lines = [f"  {name}: {old.get(name)} and {new.get(name)}" for name, _ in differing]
        return ["The records are of different versions, flags or machines:", *lines], 2
    lines = []
    num_entries = num_arrays = num_equal = 0
    entries = {**before["entries"], **after["entries"]}
    for name in sorted(entries):
        if name not in before["entries"] or name not in after["entries"]:
            there = "after" if name in after["entries"] else "before"
            lines.append(f"{name}: only in the record {there}")
            continue
        old, new = before["entries"][name], after["entries"][name]
        found = differences(old, new)
        lines += [f"{name}: {array} {what}" for array, what in found]
        num_entries += not found
        num_arrays += len(old.keys() | new.keys())
        num_equal += len(old.keys() | new.keys()) - len(found)
    lines.append(
        f"{num_entries} of {len(entries)} entries are equal, and {num_equal} of {num_arrays} "
        "arrays of the entries in both records."
    )
    return lines, int(num_entries < len(entries))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the names at which two mappings differ, and how."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            found.append((name, f"is only {'after' if name in new else 'before'}"))
        elif old[name] != new[name]:
            found.append((name, "differs"))
    return found


# Recording.


def write_record(file: Path, only: Sequence[str] | None, checkout: Path, cache: Path) -> int:
    """Record all entries, or those asked for, that are not in the file yet.

    Args:
      file: The file, which is written after each entry.
      only: Names of entries, or their first parts; None for all.
      checkout: The checkout with the code.
      cache: Folder of compiled programs.

    Returns:
      The exit code: 0, or 1 if an entry could not be computed or the file has other facts.
    """
    checkout = checkout.resolve()
    about = run_entry("about", checkout, cache)
    if isinstance(about, str):
        print(about)
        return 1
    record = {"facts": about["facts"], "commit": commit_of(checkout), "entries": {}}
    if file.exists():
        earlier = json.loads(file.read_text())
        if any(earlier[name] != record[name] for name in ("facts", "commit")):
            print(f"{file} is of another commit, or of different versions, flags or machines.")
            return 1
        record = earlier
    names = [name for name in about["names"] if is_wanted(name, only)]
    failed = 0
    for number, name in enumerate(names, 1):
        if name in record["entries"]:
            continue
        began = time.monotonic()
        found = run_entry(name, checkout, cache)
        seconds = time.monotonic() - began
        if isinstance(found, str):
            failed += 1
            print(f"{number}/{len(names)} {name} failed after {seconds:.0f} s:\n{found}")
            continue
        record["entries"][name] = found
        scratch = file.with_name(f"{file.name}.new")
        scratch.write_text(json.dumps(record, indent=0))
        scratch.replace(file)
        print(f"{number}/{len(names)} {name}: {len(found)} arrays, {seconds:.0f} s", flush=True)
    return int(failed > 0)


def is_wanted(name: str, only: Sequence[str] | None) -> bool:
    """Return whether an entry is one of those asked for."""
    return only is None or any(f"{name}/".startswith(f"{each.rstrip('/')}/") for each in only)


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, marked if files were changed since; "" without git."""
    words = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*"]
    found = subprocess.run([*words, "--dirty"], capture_output=True, text=True)
    return found.stdout.strip()


def run_entry(name: str, checkout: Path, cache: Path) -> Any:
    """Compute one entry in a new process.

    Args:
      name: The entry, or "about" for what all entries have in common.
      checkout: The checkout with the code.
      cache: Folder of compiled programs.

    Returns:
      The entry, or the end of what the process said if it failed.
    """
    environment = os.environ | {
        "PYTHONPATH": str(checkout),
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "MPLBACKEND": "agg",
        "COLUMNS": "160",
    }
    if name.startswith("layouts_x64/"):
        environment["JAX_ENABLE_X64"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "entry.json"
        command = [sys.executable, str(Path(__file__).resolve()), "entry", name, str(file)]
        done = subprocess.run(
            [*command, str(checkout)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return json.loads(file.read_text()) if done.returncode == 0 else done.stdout[-4000:]


# Computing one entry, in a separate process.


def check_checkout(checkout: Path) -> None:
    """Check that the code is that of the checkout, and not of an installed package.

    Raises:
      ImportError: If it is not.
    """
    import experiments
    import fedjax_sim

    for package in (fedjax_sim, experiments):
        assert package.__file__ is not None
        if checkout.resolve() not in Path(package.__file__).resolve().parents:
            raise ImportError(f"{package.__name__} is not that of {checkout}: {package.__file__}")


def compute(name: str) -> Any:
    """Compute an entry."""
    if name == "about":
        return about()
    kind, _, inner = name.partition("/")
    return KINDS[kind](inner)


def about() -> dict[str, Any]:
    """List all entries, and the facts on which bits depend."""
    systems = list(json.loads(command("fedjax_sim", "list", "--json"))["systems"])
    experiments = list(json.loads(command("experiments", "list", "--json")))
    import jax

    flags = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("JAX_", "XLA_", "OMP_", "OPENBLAS_", "MKL_")) and "CACHE" not in name
    }
    facts = {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "flags": flags,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "devices": [f"{each.platform} {each.device_kind}" for each in jax.devices()],
    }
    names = [f"timelines/{name}" for name in systems]
    for kind in ("layouts", "layouts_x64"):
        names += [f"{kind}/{name}" for name in systems if name in LAYOUT_SYSTEMS]
    names += [f"systems/{name}" for name in systems]
    return {"facts": facts, "names": names + [f"experiments/{name}" for name in experiments]}


def processor() -> str:
    """Name the model of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else f"{platform.machine()} {platform.processor()}"


def of_experiment(name: str) -> Hashes:
    """Run an experiment's smoke test and hash what it found."""
    with pictures() as found:
        text = command("experiments", "run", name, "--smoke", "--out", "results")
    return of_folder(Path("results")) | found | {"stdout": digest(steady(text).splitlines())}


def of_system(name: str) -> Hashes:
    """Run a system on the digits by the command line and hash what was written."""
    budget = EM_TIME_BUDGET if is_em(name) else TIME_BUDGET
    words = ["run", name, *SMALL_RUN, *preset(), "--time-budget", str(budget), "--out", "results"]
    if not is_em(name):  # Whose clients hold no models.
        words.append("--client-variance")
    with pictures() as found:
        text = command("fedjax_sim", *words)
    return of_folder(Path("results")) | found | {"stdout": digest(steady(text).splitlines())}


def preset() -> list[str]:
    """Return the flag for the papers' values, which were the defaults of checkouts without it."""
    import fedjax_sim

    return ["--preset", "paper"] if hasattr(fedjax_sim.SYSTEMS["em"], "paper") else []


def paper_of(system: Any) -> Callable[..., Any]:
    """Return what makes a system's settings with the papers' values."""
    return system.paper if preset() else system.Hyper


def of_layouts(name: str) -> Hashes:
    """Sweep a system over two values and two seeds on a tiny problem, in every layout."""
    import fedjax_sim
    from fedjax_sim import Checkpoints, Keep, Layout, Ticks

    fedjax_sim.use_cores(2)
    system = fedjax_sim.SYSTEMS[name]
    settings, swept, values = LAYOUT_SYSTEMS[name]
    hyper = paper_of(system)(num_clients=NUM_CLIENTS, batch_size=2, **settings)
    is_x64 = os.environ.get("JAX_ENABLE_X64") == "1"
    problem = tiny_problem(is_em(name), "float64" if is_x64 else "float32")
    common: dict[str, Any] = {"seeds": 2, "settings": {swept: values}, "num_evals": 3}

    def run(layout: Mapping[str, Any] = ONE_DEVICE, **options: Any) -> Hashes:
        given = {"problem": problem, "budget": Ticks(6), **common, **options}
        return of_run(fedjax_sim.sweep(system, hyper=hyper, layout=Layout(**layout), **given))

    layouts = LAYOUTS_IN_64_BITS if is_x64 else LAYOUTS
    found = {what: run(LAYOUTS[what]) for what in layouts}
    everything = Keep(models=True, client_variance=not is_em(name))
    found["keep_models, client_variance"] = run(keep=everything)
    folder, stepwise = Path("checkpoint"), {**ONE_DEVICE, "evals_per_chunk": 1}
    found["checkpoint"] = run(stepwise, checkpoints=Checkpoints(folder, every=0))
    found["resumed"] = run(stepwise, checkpoints=Checkpoints(folder, every=0, resume=True))
    if is_x64:
        found["float32"] = run(problem=tiny_problem(is_em(name), "float32"))
    else:
        found["some lanes"] = run(lanes=[1, 2])
    return {
        f"{what}/{array}": value for what, each in found.items() for array, value in each.items()
    }


def delay_cases(name: str) -> dict[str, dict[str, Any]]:
    """List the settings of delays that a system has: every law, and breaks with losses."""
    told = json.loads(command("fedjax_sim", "list", name, "--json"))[name]["settings"]
    listed = {setting.rpartition(".")[2]: each for setting, each in told.items()}
    laws = listed.get("runtime_law", {}).get("allowed", "").removeprefix("one of ").split(", ")
    # Rounds that are drawn by coins have no delays.
    has_coins = "cohorts" in listed.get("rounds", {}).get("allowed", "")
    asked: dict[str, Any] = {"rounds": "cohorts"} if has_coins else {}
    cases = {law: {"runtime_law": law, **asked} for law in laws if law}
    breaks = {"drop_rate": 0.2, "on_time": 30.0, "off_time": 10.0, **asked}
    return {"default": {}, **cases} | ({"breaks": breaks} if breaks.keys() <= listed.keys() else {})


def of_timelines(name: str) -> Hashes:
    """Draw a system's schedules under its delay laws, and by the command line."""
    import fedjax_sim

    system, cases = fedjax_sim.SYSTEMS[name], delay_cases(name)
    found: Hashes = {}
    for what, settings in cases.items():
        try:
            drawn = draw(system, paper_of(system)(num_clients=10, **settings))
        except fedjax_sim.ConfigError:  # Some systems refuse some laws.
            found[what] = "refused"
            continue
        found |= of_tree(what, drawn)
    budget = EM_TIME_BUDGET if is_em(name) else TIME_BUDGET
    words = ["timeline", name, "--seeds", "2", *preset(), "--time-budget", str(budget)]
    with pictures() as shown:
        text = command("fedjax_sim", *words, "--out", "results")
    return (
        found | of_folder(Path("results")) | shown | {"stdout": digest(steady(text).splitlines())}
    )


KINDS: Mapping[str, Callable[[str], Hashes]] = {
    "experiments": of_experiment,
    "systems": of_system,
    "layouts": of_layouts,
    "layouts_x64": of_layouts,
    "timelines": of_timelines,
}


def command(module: str, *words: str) -> str:
    """Run `python -m MODULE WORDS` in this process and return what it printed.

    Raises:
      RuntimeError: If it fails.
    """
    out, before = io.StringIO(), sys.argv
    sys.argv = [module, *words]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    if code:
        raise RuntimeError(f"{module} {' '.join(words)} ended with {code}:\n{out.getvalue()}")
    return out.getvalue()


def is_em(name: str) -> bool:
    """Return whether a system is one of expectation maximisation."""
    return name in ("em", "fedem", "vr_fedem", "async_fedem")


def draw(system: Any, hyper: Any) -> Any:
    """Draw 20 ticks of a schedule for two seeds, in 64 bits."""
    import jax

    with jax.enable_x64(True):
        keys = jax.vmap(jax.random.key)(np.arange(2))
        return jax.jit(jax.vmap(lambda key: system.timeline(key, hyper, 20)))(keys)


# Tiny problems, written out here so that they depend on nothing that moves.


def tiny_problem(is_latent: bool, dtype: str) -> Any:
    """Make least squares with random batches and noisy gradients, or a mean to estimate by EM."""
    import jax
    import jax.numpy as jnp

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Regression:
        inputs: jax.Array  # [N, M, P]
        targets: jax.Array  # [N, M]
        counts: jax.Array  # [N]

        def init(self, key: Any) -> Any:
            return {"w": jax.random.normal(key, self.inputs.shape[2:], self.inputs.dtype)}

        def loss(self, params: Any, client: Any, examples: Any, key: Any) -> Any:
            w = params["w"]
            residual = self.inputs[client, examples] @ w - self.targets[client, examples]
            noise = 0.1 * jax.random.normal(key, w.shape, w.dtype)
            return jnp.mean(jnp.square(residual)) / 2 + noise @ w

        def evaluate(self, params: Any) -> Any:
            mask = jnp.arange(self.targets.shape[1])[None] < self.counts[:, None]
            residual = jnp.where(mask, self.inputs @ params["w"] - self.targets, 0)
            return {"loss": jnp.sum(jnp.square(residual)) / 2 / self.counts.sum()}

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Mean:
        values: jax.Array  # [N, M, q]
        counts: jax.Array  # [N]

        def init(self, key: Any) -> Any:
            return jax.random.normal(key, self.values.shape[2:], self.values.dtype)

        def maximise(self, statistics: Any) -> Any:
            return statistics / 1.25

        def natural(self, params: Any) -> Any:
            return params

        def statistics(self, natural: Any, client: Any, examples: Any, weight: Any) -> Any:
            seen = jnp.tanh(self.values[client, examples] * natural) + self.values[client, examples]
            return weight @ seen

        def client_statistics(self, natural: Any) -> Any:
            mask = jnp.arange(self.values.shape[1])[None] < self.counts[:, None]
            seen = jnp.tanh(self.values * natural) + self.values
            total = jnp.sum(jnp.where(mask[..., None], seen, 0), axis=1)
            return total / self.counts[:, None].astype(total.dtype)

        def evaluate(self, statistics: Any) -> Any:
            return {"square": jnp.sum(jnp.square(statistics))}

    random = np.random.default_rng(0)
    inputs = random.normal(size=(NUM_CLIENTS, 6, 3)).astype(dtype)
    counts = jnp.asarray(random.integers(2, 7, NUM_CLIENTS), "int32")
    if is_latent:
        return Mean(jnp.asarray(inputs), counts)
    targets = inputs @ random.normal(size=3) + random.normal(size=(NUM_CLIENTS, 1))
    return Regression(jnp.asarray(inputs), jnp.asarray(targets.astype(dtype)), counts)


# Hashing.


def digest(value: Any) -> str:
    """Return the SHA-256 of an array's type, shape and bytes; of anything else that of its JSON."""
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.hasobject:
            texts = [each.decode() if isinstance(each, bytes) else each for each in array.flat]
            return digest([list(array.shape), [str(each) for each in texts]])
        content = f"{array.dtype.name} {array.shape} ".encode() + array.tobytes()
    else:
        content = json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def of_tree(name: str, tree: Any) -> Hashes:
    """Hash the leaves of a pytree."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{name}{jax.tree_util.keystr(path)}": digest(leaf) for path, leaf in leaves}


def of_run(run: Any) -> Hashes:
    """Hash the curves, models, schedules, settings and samples of a `fedjax_sim.Run`."""
    found = {f"curves.{name}": digest(each.values) for name, each in run.curves.variables.items()}
    for name in ("models", "timelines", "hypers", "samples"):
        found |= of_tree(name, getattr(run, name))
    return found


def of_folder(folder: Path) -> Hashes:
    """Hash the arrays and values in the netCDF and JSON files of a results folder."""
    found: Hashes = {}
    for path in sorted(folder.glob("*.nc")):
        found |= {f"{path.name}/{name}": value for name, value in of_netcdf(path).items()}
    for path in sorted(folder.glob("*.json")):
        if path.name != "settings.json":
            found |= of_json(path.name, json.loads(path.read_text()))
    return found


def of_netcdf(path: Path) -> Hashes:
    """Hash the variables of all groups of a netCDF file."""
    import h5py

    found: Hashes = {}

    def take(name: str, content: Any) -> None:
        if isinstance(content, h5py.Dataset) and name.rpartition("/")[2] not in UNSTEADY:
            found[name] = digest(content[()])

    with h5py.File(path) as file:
        file.visititems(take)
    return found


def of_json(name: str, content: Any) -> Hashes:
    """Hash the values in a JSON file; a list of numbers or texts counts as one value."""
    if isinstance(content, dict):
        inner: Iterable[tuple[str, Any]] = (
            (f"{name}/{key}", value) for key, value in content.items() if key not in UNSTEADY
        )
    elif isinstance(content, list) and any(isinstance(each, dict | list) for each in content):
        inner = (
            (f"{name}/{each['id'] if isinstance(each, dict) and 'id' in each else i}", each)
            for i, each in enumerate(content)
        )
    else:
        return {name: digest(steady(content) if isinstance(content, str) else content)}
    return {key: value for each in inner for key, value in of_json(*each).items()}


def steady(text: str) -> str:
    """Return a text without the lines that name the results folder or what was timed."""
    lines = (line.rstrip() for line in text.split("\n"))
    return "\n".join(line for line in lines if not any(each in line for each in UNSTEADY_LINES))


@contextlib.contextmanager
def pictures() -> Any:
    """Hash the arrays in all pictures that are saved, which are not drawn: the files are empty.

    Yields:
      A mapping that grows by the hashes of each picture, which is named by its number.
    """
    from matplotlib.figure import Figure

    found: Hashes = {}
    numbers = iter(range(10**6))

    def savefig(self: Figure, file: Any, **options: Any) -> None:
        found.update(of_picture(f"picture {next(numbers)}", self))
        Path(file).touch()

    save = Figure.savefig
    Figure.savefig = savefig  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        Figure.savefig = save  # type: ignore[method-assign]


def of_picture(name: str, figure: Any) -> Hashes:
    """Hash the lines, areas, images, bars and words of all panels of a picture."""
    found: Hashes = {}
    for number, axes in enumerate(figure.axes):
        shown: dict[str, Any] = {
            "words": [
                *(axes.get_title(loc=place) for place in ("left", "center", "right")),
                axes.get_xlabel(),
                axes.get_ylabel(),
                *(each.get_text() for each in axes.texts),
            ],
            "limits": np.asarray([*axes.get_xlim(), *axes.get_ylim()], float),
        }
        for i, line in enumerate(axes.lines):
            shown[f"line {i}"] = np.asarray(line.get_xydata(), float)
        for i, image in enumerate(axes.images):
            shown[f"image {i}"] = filled(image.get_array())
        for i, patch in enumerate(axes.patches):
            corners = patch.get_patch_transform().transform(patch.get_path().vertices)
            shown[f"patch {i}"] = np.asarray(corners, float)
        for i, each in enumerate(axes.collections):
            shown[f"collection {i} offsets"] = filled(each.get_offsets())
            paths = [np.asarray(path.vertices, float).ravel() for path in each.get_paths()]
            shown[f"collection {i} paths"] = np.concatenate([np.zeros(0), *paths])
            if each.get_array() is not None:
                shown[f"collection {i} values"] = filled(each.get_array())
        found |= {f"{name}/panel {number}/{what}": digest(value) for what, value in shown.items()}
    return found


def filled(array: Any) -> np.ndarray:
    """Return an array of numbers, NaN where it is masked."""
    return np.ma.filled(np.ma.asarray(array, float), np.nan)


if __name__ == "__main__":
    sys.exit(main())
