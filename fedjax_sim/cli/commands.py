"""The command line: `fedjax-sim list`, `run` and `timeline`."""

import argparse
import ast
import errno
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import xarray as xr
from rich.console import Console
from rich.table import Table

from fedjax_sim import datasets, partition
from fedjax_sim.cli import arguments as words
from fedjax_sim.cli import comparison
from fedjax_sim.cli.comparison import Contender, Data
from fedjax_sim.cli.defaults import Defaults, defaults_of
from fedjax_sim.engine.placement import check_layout, keep_compiled, use_cores
from fedjax_sim.engine.sweeps import sweep
from fedjax_sim.models import MODELS
from fedjax_sim.problems import latent
from fedjax_sim.reporting import results
from fedjax_sim.settings import ConfigError, fields
from fedjax_sim.systems import SYSTEMS
from fedjax_sim.types import LatentProblem
from fedjax_sim.version import __version__

COMMANDS = {
    "list": "List systems, data sets, models, partitions and experiments; or the settings of a SYSTEM.",
    "run": "Train and compare systems; without a SYSTEM fedavg, quafl, fedbuff and favano.",
    "timeline": "Work out schedules alone: a summary, and a picture of who computes when.",
}
SHOWN = (("accuracy", "loss"), ("objective", "mean_field"))
"""Metrics in the table that a run prints, of classification and of expectation maximisation."""
WORDS = {"mean_field": "||h||^2"}
BAD_INPUT = 2
INTERRUPTED = 130
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
PLAIN_WIDTH = 150


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 2 after bad input, 130 when interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        return _command(argv)
    except ConfigError as error:
        print(f"fedjax-sim: {error}".replace("\n", " "), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(
            "fedjax-sim: interrupted; --resume goes on with a run from its last checkpoint.",
            file=sys.stderr,
        )
        return INTERRUPTED
    except OSError as error:
        if error.errno not in DISK_TROUBLE:
            raise
        print(
            f"fedjax-sim: writing failed ({error.strerror}: {error.filename}); --resume goes on once that is mended.",
            file=sys.stderr,
        )
        return BAD_INPUT


def _command(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(
            f"fedjax-sim {__version__}: federated-learning simulation, the schedule first, learning second\n"
        )
        for name, summary in COMMANDS.items():
            print(f"  fedjax-sim {name:9} {summary}")
        print("\nfedjax-sim COMMAND --help tells a command's flags.")
        return 0
    if argv[0] == "--version":
        print(__version__)
        return 0
    command = words.named("command", argv[0], COMMANDS)
    arguments = words.parser_of(command, COMMANDS[command]).read(argv[1:])
    return {"list": _list, "run": _run, "timeline": _timeline}[command](arguments)


def _list(arguments: argparse.Namespace) -> int:
    console = _console()
    for name in arguments.systems:
        system = SYSTEMS[words.named("system", name, SYSTEMS)]
        table = Table(
            title=f"{name}: {system.summary}", title_justify="left", box=None, padding=(0, 2)
        )
        for column in ("setting", "default", "allowed"):
            table.add_column(column, overflow="fold")
        for field in fields(system.Hyper).values():
            default = field.default
            text = (
                f"{default:g}"
                if isinstance(default, float)
                else str(getattr(default, "__name__", default))
            )
            table.add_row(field.name, text, field.metadata["allowed"])
        console.print(table)
    if not arguments.systems:
        lists = {
            "systems": {name: system.summary for name, system in SYSTEMS.items()},
            "data sets": datasets.names(),
            "models": {name: entry.summary for name, entry in MODELS.items()},
            "latent-variable models": {
                name: entry.summary for name, entry in latent.MODELS.items()
            },
            "partitions": {name: summary for name, (_, summary) in partition.PARTITIONS.items()},
            "experiments": _experiments(),
        }
        for title, entries in lists.items():
            table = Table(
                title=title, title_justify="left", box=None, show_header=False, padding=(0, 2)
            )
            for name, summary in entries.items():
                table.add_row(name, summary)
            if entries:
                console.print(table)
    return 0


def _experiments() -> dict[str, str]:
    """The experiments beside the package, to be run as `python -m experiments.NAME`, with the first lines of their docstrings."""
    found = {}
    for path in sorted((Path(__file__).parents[1] / "experiments").glob("*.py")):
        text = path.read_text()
        docstring = ast.get_docstring(ast.parse(text))
        if '__name__ == "__main__"' in text and docstring:
            found[path.stem] = docstring.splitlines()[0]
    return found


def _run(arguments: argparse.Namespace) -> int:
    defaults = defaults_of(arguments.dataset or "digits")
    seeds = words.seeds(arguments.seeds)
    time_budget = _time_budget(arguments, defaults)
    num_evals = words.whole("evals", arguments.evals, 25)
    checkpoint_every = words.number("checkpoint_every", arguments.checkpoint_every, 20.0)
    layout = words.layout(arguments.layout)
    contenders = comparison.contenders(arguments.systems, words.settings(arguments), defaults)
    folder = _folder(arguments, "results", resume=arguments.resume)
    data = comparison.data(arguments, defaults, contenders, seeds)
    config = _config(contenders, seeds, time_budget) | {
        "dataset": {"name": data.dataset.name, "sha256": data.digest()},
        "partition": data.partition,
        "model": data.model,
        **data.facts,
        "evals": num_evals,
        "layout": layout._asdict(),
    }
    if arguments.resume:
        folder.check_resumable(_identity(config))
    keep_compiled()
    use_cores()
    check_layout(layout)
    problems = {num: data.problems(num) for num in data.partitions}
    for contender in contenders:
        comparison.check_problems(contender, problems[contender.hyper.num_clients])
        comparison.timelines(
            contender, seeds, time_budget
        )  # for the errors that only a schedule shows, before any training
    folder.open(_identity(config))
    curves = {}
    for contender in contenders:
        name = contender.system.name
        curves[name] = sweep(
            contender.system,
            problems[contender.hyper.num_clients],
            contender.hyper,
            seeds=seeds,
            settings=contender.swept,
            time_budget=time_budget,
            num_evals=num_evals,
            layout=layout,
            checkpoint=folder.checkpoints / name,
            checkpoint_every=checkpoint_every,
            resume=arguments.resume,
            progress=True,
        ).curves
    summary = results.save(folder, curves, config, _curve_figures(curves))
    _report_run(curves, summary, folder, data)
    return 0


def _timeline(arguments: argparse.Namespace) -> int:
    from fedjax_sim.cli import schedule_report

    defaults = defaults_of(arguments.dataset or "digits")
    if arguments.dataset is not None and not arguments.dataset.endswith((".npz", ".txt")):
        words.named("dataset", arguments.dataset, datasets.names())
    seeds = words.seeds(arguments.seeds)
    time_budget = _time_budget(arguments, defaults)
    contenders = comparison.contenders(arguments.systems, words.settings(arguments), defaults)
    folder = _folder(arguments, "results-timeline", resume=False)
    keep_compiled()
    use_cores()
    entries = [
        entry
        for contender in contenders
        for entry in schedule_report.entries(contender, seeds, time_budget)
    ]
    folder.open()
    schedule_report.save(folder, entries, _config(contenders, seeds, time_budget))
    console = _console()
    console.print(schedule_report.table(entries))
    console.print(
        f"Means over {len(seeds)} seed{'s' * (len(seeds) > 1)}. Written to {folder.path}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _time_budget(arguments: argparse.Namespace, defaults: Defaults) -> float:
    is_latent = any(
        name in SYSTEMS and SYSTEMS[name].learns is LatentProblem for name in arguments.systems
    )
    return words.number(
        "time_budget",
        arguments.time_budget,
        defaults.em_time_budget if is_latent else defaults.time_budget,
    )


def _folder(arguments: argparse.Namespace, base: str, *, resume: bool) -> results.Folder:
    path = words.free_folder(base, resume=resume) if arguments.out is None else Path(arguments.out)
    return results.Folder(path, resume=resume, overwrite=arguments.overwrite)


def _config(
    contenders: Sequence[Contender], seeds: Sequence[int], time_budget: float
) -> dict[str, Any]:
    systems = {contender.system.name: contender.resolved() for contender in contenders}
    return {"systems": systems, "seeds": list(seeds), "time_budget": time_budget}


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for a run to resume another and end with the same bits."""
    versions = {"fedjax_sim": __version__, "jax": jax.__version__}
    return {**config, "versions": versions}


def _curve_figures(curves: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    from fedjax_sim.reporting import plots

    def is_entry(metric: str) -> bool:
        """Whether it is one of many, such as the weight of a mixture's component."""
        return metric.rsplit("_", 1)[-1].isdigit()

    metrics = dict.fromkeys(
        metric
        for data in curves.values()
        for metric in results.metrics_of(data)
        if not is_entry(metric)
    )
    return {f"{metric}.png": plots.curves_figure(curves, metric) for metric in metrics}


def _report_run(
    curves: Mapping[str, xr.Dataset], summary: Mapping[str, Any], folder: results.Folder, data: Data
) -> None:
    """Print the final table, lanes that diverged, and where everything is."""
    table = Table(box=None, padding=(0, 2), title_justify="left")
    shown = next(names for names in SHOWN if names[0] in next(iter(curves.values())))
    for column in (
        "system",
        *(f"final {WORDS.get(name, name)}" for name in shown),
        "virtual time",
        "server steps",
        "local steps",
        "sent up",
        "sent down",
    ):
        table.add_column(column, justify="left" if column == "system" else "right")
    for name, lanes in curves.items():
        entry = summary["systems"][name]
        for (point, own), final in zip(
            results.settings_of(lanes), entry.get("settings", [entry]), strict=True
        ):
            table.add_row(
                results.label(name, point),
                *(_mean_and_std(final["final"].get(name)) for name in shown),
                f"{final['virtual_time']:.0f}",
                str(final["ticks"]),
                str(final["local_steps"]),
                _bits(final["uplink_bits"]),
                _bits(float(own["downlink_bits"].isel(eval=-1).mean())),
            )
    console = _console()
    num_seeds = max(lanes.sizes["seed"] for lanes in curves.values())
    setup = f"{data.dataset.name}, partition {data.partition['name']}, model {data.model}, {num_seeds} seeds, means +- std:"
    console.print(setup, highlight=False)
    console.print(table)
    for name, lanes in curves.items():
        for point, own in results.settings_of(lanes):
            failed = own["seed"].values[own["failed"].values]
            if failed.size:
                lost = f"{failed.size} of {own.sizes['seed']} lanes diverged (seeds {', '.join(map(str, failed))})"
                text = f"{results.label(name, point)}: {lost} and are left out of its means."
                console.print(text, highlight=False, soft_wrap=True)
    seconds = summary["seconds"]
    spent = f"{seconds['compile']:.1f} s compiling, {seconds['run']:.1f} s running"
    console.print(f"Written to {folder.path} ({spent})", highlight=False, soft_wrap=True)


def _mean_and_std(value: Mapping[str, float | None] | None) -> str:
    if value is None:
        return "-"
    return (
        "diverged"
        if value["mean"] is None
        else f"{value['mean']:{_digits(value['mean'])}} +- {value['std']:{_digits(value['mean'])}}"
    )


def _digits(value: float | None) -> str:
    return ".3f" if value is None or value == 0 or 1e-3 <= abs(value) < 1000 else ".3g"


def _bits(bits: float) -> str:
    power = min(4, int(math.log10(max(bits, 1)) // 3))
    return f"{bits / 1000**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}bit"


def _console() -> Console:
    """A console that never breaks a table's lines where its output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
