"""What the replay programs of all systems launch on a GPU and a TPU, compiled without either.

    python scripts/benchmark.py programs                          all programs, for both devices
    python scripts/benchmark.py programs --target h200 favano-32  one of them
    python scripts/benchmark.py programs --detail favano-32       what each of its launches does
    python scripts/benchmark.py programs --help                   names of programs, and options

XLA can compile for a device that it has only a description of. That shows how many kernels a GPU
launches per local step and per tick, which is what small models take their time for, and how often
its host waits for it: before each trip of a loop whose trip count only the device knows, and at
each conditional. A TPU launches a program as a whole; its figures are instructions of the program.

The figures are those of the text that XLA returns. A GPU that has command buffers launches several
kernels together. XLA chooses the tiles of matrix products by measuring, for which it needs the
device; here it takes what it takes by default. A custom call, such as a decomposition of a matrix,
launches several kernels.

Compilers come with `pip install -e .[aot]`. They work next to any JAX for CPUs, as long as
`JAX_PLATFORMS=cpu` or `jax.config.update("jax_platforms", "cpu")` keeps JAX from looking for their
devices, as it does here; otherwise JAX looks, complains that there are none, and uses the CPU.
Programs are compiled in one process per target.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from benchmarks import by_hand, hlo
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

import fedjax_sim
from fedjax_sim.core.types import LatentProblem, System
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine.shares import listed
from fedjax_sim.models import CONVOLUTIONS, MLP, LeNet, SmallCNN, resnet18, resnet20
from fedjax_sim.partition import iid
from fedjax_sim.problems import latent, make_classification, make_gaussian_clients
from fedjax_sim.server import rules
from fedjax_sim.server.rules import FLTrust, GeometricMedian, Krum, Mean, Median, TrimmedMean
from fedjax_sim.systems import fedavg, fedbuff
from fedjax_sim.timelines.live import (
    Asked,
    Live,
    Selector,
    Sizes,
    live_rounds,
    live_tasks,
    uniform_cohort,
    with_clock,
)

SCRIPTS = Path(__file__).parents[1]
RESULTS = SCRIPTS / "benchmark_results.json"
TICKS, EVALUATIONS = 12, 3
"""Long enough that XLA keeps the loops, of which it dissolves those of one trip."""


class Target(NamedTuple):
    """A device to compile for.

    Attributes:
      backend: JAX's name for devices of its kind.
      packages: What must be installed to compile for it.
      facts: Arguments of `get_topology_desc`.
    """

    backend: str
    packages: tuple[str, ...]
    facts: dict[str, str]


H200 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
runtime_version { major: 13 }
dnn_version_info { major: 9 minor: 12 }
gpu_device_info {
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000
  device_memory_size: 150000000000
  l2_cache_size: 62914560
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
"""
TARGETS = {
    "h200": Target(
        "cuda",
        ("jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cuda-nvcc", "nvidia-nvvm"),
        {"topology_name": "1x1x1", "topology": "1x1x1", "target_config": H200},
    ),
    "v5e": Target("tpu", ("libtpu",), {"topology_name": "v5e:2x2"}),
}


class Workload(NamedTuple):
    """A sweep whose program is compiled.

    Attributes:
      what: Describes it in a few words.
      system: Name of the system.
      problem: Makes what is learnt, from the system's settings.
      changes: Settings other than the defaults.
      seeds: Number of seeds.
      settings: Swept settings.
      live: The system on a live clock, whose program is compiled instead.
      by_hand: Whether the same work is compiled as one writes it in plain JAX.
    """

    what: str
    system: str
    problem: Callable[[Any], Any]
    changes: Mapping[str, Any] = MappingProxyType({})
    seeds: int = 4
    settings: Mapping[str, Sequence[Any]] = MappingProxyType({})
    live: System | None = None
    by_hand: bool = False


class Images(NamedTuple):
    """Makes a classification of random images.

    Attributes:
      network: What learns.
      shape: Height, width and channels of an image.
      train: Number of training images; None for 20 for each client.
    """

    network: Any
    shape: tuple[int, int, int] = (28, 28, 1)
    train: int | None = None

    def __call__(self, hyper: Any) -> Any:
        """Make the problem, for as many clients as the settings have."""
        train = self.train or 20 * hyper.num_clients
        random, num = np.random.default_rng(0), train + 1000
        pictures = random.integers(0, 256, (num, *self.shape), dtype=np.uint8)
        labels = random.integers(0, 10, num).astype(np.int32)
        data = Dataset(
            pictures[:train], labels[:train], pictures[train:], labels[train:], 10, "random"
        )
        clients = iid(data.train_labels, num_clients=hyper.num_clients, seed=0)
        return make_classification(self.network, data, clients)


def images(hidden: int) -> Images:
    """Return what makes a classification of 28x28 images by a perceptron of one hidden layer."""
    return Images(MLP((hidden,), 10))


def mixture(hyper: Any) -> Any:
    """Make a mixture of 10 Gaussians of 20 coordinates to fit to 2000 random examples."""
    examples = np.random.default_rng(0).normal(size=(2000, 20)).astype(np.float32)
    clients = iid(np.zeros(len(examples), np.int32), num_clients=hyper.num_clients, seed=0)
    return latent.make_estimation(latent.GaussianMixture(10), examples, clients)


def gaussians(hyper: Any) -> Any:
    """Make the simulation of FA-LD's paper."""
    return make_gaussian_clients(0, alpha=0.0, num_clients=hyper.num_clients, dtype="float32")


LIVE = {
    "fedavg": with_clock(
        fedavg.system,
        Live(
            lambda hyper: Sizes(hyper.num_selected, hyper.local_steps, is_full=True),
            lambda _, hyper: live_rounds(
                hyper,
                Selector(lambda key, now: Asked(now.drawn), draw=uniform_cohort(hyper)),
                num_used=hyper.num_selected,
            ),
        ),
        name="live_fedavg",
    ),
    "fedbuff": with_clock(
        fedbuff.system,
        Live(
            lambda hyper: Sizes(hyper.buffer_size, hyper.local_steps, hyper.concurrency, True),
            lambda _, hyper: live_tasks(
                hyper, num_tasks=hyper.concurrency, num_used=hyper.buffer_size
            ),
        ),
        name="live_fedbuff",
    ),
}
"""Planned systems on live clocks that do the same work, of clients who are never away or late."""
RULES = {
    "median": Median(),
    "trimmed_mean": TrimmedMean(),
    "krum": Krum(),
    "geometric_median": GeometricMedian(),
    "fltrust": FLTrust(),
}
NETWORKS: dict[str, tuple[Any, tuple[int, int, int], dict[str, int]]] = {
    "lenet": (LeNet, (32, 32, 3), {"num_selected": 20, "batch_size": 32}),
    "smallcnn": (SmallCNN, (32, 32, 3), {"num_selected": 50, "batch_size": 10}),
    "resnet20": (resnet20, (32, 32, 3), {"num_selected": 20, "batch_size": 32}),
    "resnet18": (resnet18, (64, 64, 3), {"num_selected": 10, "batch_size": 16}),
}
"""Networks with convolutions: how to make them, their images, and settings of FedAvg."""
CONVOLVING = {
    f"{name}-{form}-{rates}": Workload(
        f"{name}, {settings['num_selected']} slots, five steps of batch {settings['batch_size']}, "
        f"convolution: {form}, learning rates: {rates}",
        "fedavg",
        Images(make(10, convolution=CONVOLUTIONS[form]), shape),
        {"local_steps": 5, **settings},
        seeds=1,
        settings={"lr": np.geomspace(0.01, 0.1, rates).tolist()},
    )
    for name, (make, shape, settings) in NETWORKS.items()
    for form in ("patches", "lax")
    for rates in (1, 8)
}
"""Networks with convolutions by patches and by XLA, with one learning rate and with eight.

XLA's with eight are only compiled in plain JAX: JAX refuses grouped convolutions under a mesh, as
lanes run.
"""
WORKLOADS = {
    "fedavg-128": Workload(
        "perceptron 784-128-10, batches of 32, 20 slots",
        "fedavg",
        images(128),
        {"batch_size": 32, "lr": 0.1},
        seeds=1,
    ),
    "favano-32": Workload(
        "perceptron 784-32-10, batches of 128, four seeds of 20 slots", "favano", images(32)
    ),
    "fald-1": Workload(
        "one exact step a tick, 30 seeds of two step sizes, 50 slots",
        "langevin",
        gaussians,
        {"num_clients": 50, "local_steps": 1, "gradient": "exact"},
        seeds=30,
        settings={"step_size": [1e-6, 1e-7]},
    ),
    "fedavg-128-sweep": Workload(
        "perceptron 784-128-10, batches of 32, 16 seeds of four learning rates",
        "fedavg",
        images(128),
        {"batch_size": 32},
        seeds=16,
        settings={"lr": [0.05, 0.1, 0.2, 0.3]},
    ),
    "favano-32-sweep": Workload(
        "perceptron 784-32-10, batches of 128, four seeds of four learning rates",
        "favano",
        images(32),
        settings={"lr": [0.1, 0.2, 0.3, 0.4]},
    ),
    "fedavg-8-sweep": Workload(
        "perceptron 784-8-10, batches of 8, 16 seeds of four learning rates",
        "fedavg",
        images(8),
        {"batch_size": 8},
        seeds=16,
        settings={"lr": [0.1, 0.2, 0.3, 0.4]},
    ),
    **{name: work for name, work in CONVOLVING.items() if not name.endswith("lax-8")},
    **{
        f"{name}-live": Workload(f"{name} on a live clock", name, images(8), live=live)
        for name, live in LIVE.items()
    },
    **{
        f"fedavg-{name}": Workload(
            f"default settings, perceptron 784-8-10, four seeds, {name.replace('_', ' ')}",
            "fedavg",
            images(8),
            {"aggregator": rule},
        )
        for name, rule in RULES.items()
    },
    "fedavg-rules": Workload(
        "the same with the mean and these rules as alternatives of batched lanes, a seed each",
        "fedavg",
        images(8),
        seeds=1,
        settings={"aggregator": rules.rules_of_one_program([Mean(), *RULES.values()])},
    ),
    **{
        name: Workload("default settings, mixture of Gaussians, four seeds", name, mixture)
        if system.fit.learns is LatentProblem
        else Workload("default settings, perceptron 784-8-10, four seeds", name, images(8))
        for name, system in fedjax_sim.SYSTEMS.items()
    },
}
BY_HAND = ("fedavg-128", "fedavg-128-sweep", "fedavg-8-sweep", "favano-32", "favano-32-sweep")
WORKLOADS |= {
    f"plain-{name}": work._replace(what=f"the same in plain JAX: {work.what}", by_hand=True)
    for name, work in ({name: WORKLOADS[name] for name in BY_HAND} | CONVOLVING).items()
}
"""The programs by name: six of other sizes, networks with convolutions, two systems on live clocks,
FedAvg with robust rules, every system with its default settings, and some in plain JAX."""


def compile_here(target: Target, names: Sequence[str], folder: Path) -> None:
    """Compile programs in this process, and write their texts and sizes into a folder.

    The files of a program are its name with ".hlo" and ".json", or with ".txt" if the device has
    not enough memory for it: the compiler's sentence.
    """
    described = topologies.get_topology_desc(platform=target.backend, **target.facts)
    lowered = {}
    for name in names:
        work = WORKLOADS[name]
        system = fedjax_sim.SYSTEMS[work.system]
        hyper = system.paper(**work.changes)
        if work.by_hand:
            lowered[name] = plain(work, hyper, described.devices[0])
            continue
        system = work.live or system
        (lowered[name],) = listed(
            system,
            work.problem(hyper),
            hyper,
            devices=described.devices[:1],
            seeds=work.seeds,
            settings=work.settings,
            budget=fedjax_sim.Ticks(TICKS),
            num_evals=EVALUATIONS,
        ).lower()
    # What is compiled for a device that is not there can be written to the cache but not read.
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    for name, program in lowered.items():
        try:
            compiled = program.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            (folder / f"{name}.txt").write_text(str(error).splitlines()[0])
            continue
        text, memory = compiled.as_text(), compiled.memory_analysis()
        if text is None or memory is None:
            raise RuntimeError(f"{target.packages[0]} does not show what it has compiled.")
        sizes = {"bytes of temporaries": memory.temp_size_in_bytes}
        (folder / f"{name}.hlo").write_text(text)
        (folder / f"{name}.json").write_text(json.dumps(sizes))


def plain(work: Workload, hyper: Any, device: Any) -> Any:
    """Lower a workload in plain JAX: the package's network in a loop written by hand."""
    network, shape = work.problem.network, work.problem.shape  # type: ignore[attr-defined]
    return by_hand.lowered(
        network.apply,
        jax.eval_shape(network.init, jax.random.key(0), np.zeros((1, *shape), np.float32)),
        shape,
        system=work.system,
        hyper=hyper,
        rates=len(work.settings.get("lr", [hyper.lr])),
        seeds=work.seeds,
        ticks=TICKS,
        device=device,
    )


def compile_apart(target: str, names: Sequence[str], folder: Path) -> None:
    """Do `compile_here` in another process, which holds the target's compiler instead of this one.

    Raises:
      RuntimeError: If it fails; with the last lines of what it wrote.
    """
    paths = [str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # do not ask a cloud's server for the TPU of this machine
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # there is no TPU that two processes could fight for
    }
    command = [sys.executable, "-m", "benchmarks.programs", target, str(folder), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        last = "\n".join(done.stderr.splitlines()[-20:])
        raise RuntimeError(f"Compiling for {target} failed (exit {done.returncode}):\n{last}")


def missing_packages(target: Target) -> list[str]:
    """List packages that are needed to compile for a target and are not installed."""
    return [name for name in target.packages if not versions([name])]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Find the versions of those packages that are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def facts_of(anatomy: hlo.Anatomy, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Collect what is stored of a program."""

    def counted(counts: hlo.Counts) -> dict[str, int]:
        return {"launches": hlo.launches(counts)} | {kind: counts[kind] for kind in hlo.COUNTED}

    return {
        "local steps": [{"trips": step.trips} | counted(step.counts) for step in anatomy.steps],
        "tick without steps": counted(anatomy.tick),
        "evaluation without ticks": counted(anatomy.evaluation),
        **sizes,
    }


_COLUMNS = f"{'launched':>8} {'(f+c+y+o)':13}chk cnd"
HEADER = f"""\
{"":20} {"a local step":^52} {"a tick without its steps":^29} {"evalu-":>6} {"tempo-":>9}
{"program":20} {"trips":>5} {_COLUMNS} {"moved/MB":>8} {"GFLOP":>7} {_COLUMNS} {"ation":>6} \
{"raries/kB":>9}"""
LEGEND = (
    "f: fusions, c: custom calls, y: copies, o: other kernels; chk: checks of loops whose trips "
    "only the device knows (trips: ?), cnd: conditionals, each of both a wait of a GPU's host; "
    "moved: what launches read and write of arrays; GFLOP: of matrix products and convolutions. "
    "trips -: XLA has dissolved the loop of one step into the tick."
)


def rows_of(name: str, facts: Mapping[str, Any]) -> list[str]:
    """Write a program's rows of the table: one, and one for each further loop over local steps."""

    def cells(counts: Mapping[str, int]) -> str:
        kinds = "+".join(str(counts[kind]) for kind in hlo.LAUNCHES)
        waits = f"{counts['loop checks']:3} {counts['conditionals']:3}"
        return f"{counts['launches']:8} ({kinds})".ljust(22) + waits

    def step_cells(step: Mapping[str, Any]) -> str:
        trips = "?" if step["trips"] is None else step["trips"]
        moved, operations = step["bytes"] / 1e6, step["operations"] / 1e9
        return f"{trips:>5} {cells(step)} {moved:8.1f} {operations:7.4g}"

    first, *others = [step_cells(step) for step in facts["local steps"]] or ["    -"]
    tick, evaluation = facts["tick without steps"], facts["evaluation without ticks"]["launches"]
    kilobytes = round(facts["bytes of temporaries"] / 1000)
    return [
        f"{name:20} {first:52} {cells(tick)} {evaluation:6} {kilobytes:9}",
        *(f"{'':20} {other}" for other in others),
    ]


def detail_of(program: hlo.Program) -> Iterator[str]:
    """Write one line for each launch of a local step and of the rest of a tick."""
    anatomy = hlo.anatomy(program)
    loops = {each.name: each for each in hlo.loops(program)}
    for step in anatomy.steps:
        trips = "?" if step.trips is None else step.trips
        yield f"a local step ({hlo.launches(step.counts)} launches, {trips} trips)"
        yield from _lines(program, loops[step.loop], "local_step", ())
    yield f"a tick without its steps ({hlo.launches(anatomy.tick)} launches)"
    yield from _lines(program, loops[anatomy.tick_loop], "tick", {s.loop for s in anatomy.steps})


def _lines(
    program: hlo.Program, loop: hlo.Instruction, scope: str, without: Container[str]
) -> Iterator[str]:
    """Write one line for each launch of a loop's trip."""
    for depth, each, primitives in hlo.list_trip(program, loop, without):
        trips = f" x {hlo.trips_of(program, each) or '?'}" if each.opcode == "while" else ""
        shape = re.sub(r"\{[^}]*\}|/\*[^*]*\*/", "", each.shape)
        source = each.path.split(f"{scope}/")[-1].removeprefix("jit(_advance)/")
        source = re.sub(r"((vmap\()+\)+|closed_call|while/body)/", "", source)
        inside = f"  [{' '.join(primitives)}]" if len(primitives) > 1 else ""
        yield (
            f"  {'    ' * depth + each.name + trips:38} "
            f"{textwrap.shorten(shape, 34, placeholder='...'):34} {source}{inside}"
        )


def main(arguments: Sequence[str]) -> None:
    """Compile programs, print the table or the details of one, and store the table's figures."""
    listed = "\n".join(f"  {name:15} {work.what}" for name, work in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        prog="benchmark.py programs",
        description=f"{__doc__}\nPrograms:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="*",
        choices=[[], *WORKLOADS],
        metavar="NAME",
        help="programs; all by default",
    )
    parser.add_argument("--target", choices=TARGETS, help="one device instead of all")
    parser.add_argument(
        "--detail", action="store_true", help="list every launch instead of a table"
    )
    parser.add_argument("--keep", type=Path, help="folder in which to keep the compiled texts")
    parser.add_argument(
        "--out",
        type=Path,
        help="file of results to update, where other programs of the same compiler stay; none by "
        "default if only some programs are named",
    )
    options = parser.parse_args(arguments)
    names = options.names or list(WORKLOADS)
    out = options.out or (None if options.names or options.detail else RESULTS)
    for target in [options.target] if options.target else TARGETS:
        if missing := missing_packages(TARGETS[target]):
            parser.error(f"{target} needs {', '.join(missing)}: pip install -e .[aot]")
        with contextlib.ExitStack() as stack:
            folder = options.keep and options.keep / target
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            compile_apart(target, names, folder)
            report(target, names, folder, out, detail=options.detail)


def report(
    target: str, names: Sequence[str], folder: Path, out: Path | None, *, detail: bool
) -> None:
    """Print what a folder of compiled programs shows, and store it if a file is given."""
    refused = [name for name in names if (folder / f"{name}.txt").exists()]
    programs = {
        name: hlo.parse((folder / f"{name}.hlo").read_text())
        for name in names
        if name not in refused
    }
    compiler = versions(TARGETS[target].packages)
    described = ", ".join(f"{name} {version}" for name, version in compiler.items())
    print(f"For {target}, by jax {jax.__version__}: {described}")
    for name in refused:
        print(f"{name} does not fit: {(folder / f'{name}.txt').read_text()}")
    if detail:
        for name, program in programs.items():
            print(f"\n{name}", *detail_of(program), sep="\n")
        return
    counted = {
        name: facts_of(hlo.anatomy(program), json.loads((folder / f"{name}.json").read_text()))
        for name, program in programs.items()
    }
    print(HEADER)
    for name, facts in counted.items():
        print(*rows_of(name, facts), sep="\n")
    print(textwrap.fill(LEGEND, 118), end="\n\n")
    if out is not None:
        results = json.loads(out.read_text()) if out.exists() else {}
        told = {
            "machine": f"none; compiled for {target}",
            "jax": jax.__version__,
            "compiler": compiler,
        }
        backend = TARGETS[target].backend
        first = results.get(f"{backend} (compiled only)", {}).get("programs", told)
        # Another version of JAX than that of the table has a table of its own.
        version = "" if first["jax"] == jax.__version__ else f", JAX {jax.__version__}"
        stored = results.setdefault(f"{backend}{version} (compiled only)", {})
        before = stored.get("programs", {})
        is_same = all(before.get(key) == value for key, value in told.items())
        kept = before["programs"] if is_same else {}
        stored["programs"] = {
            "date": datetime.date.today().isoformat(),
            **told,
            "programs": kept | counted,
        }
        out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    compile_here(TARGETS[sys.argv[1]], sys.argv[3:], Path(sys.argv[2]))
