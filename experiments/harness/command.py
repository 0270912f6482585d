"""The command line of the experiments, and the results folder that each run writes."""

import argparse
import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fedjax_sim
from experiments.harness import ledger, queue, registry, report
from experiments.harness.claims import verdict_table
from experiments.harness.experiment import Arguments, Outcome
from experiments.harness.parts import CHECKPOINTS, ExperimentPart, WaitsError, read_identity
from fedjax_sim.cli.arguments import read_value
from fedjax_sim.cli.commands import Parser
from fedjax_sim.cli.training import read_launcher
from fedjax_sim.core import lifecycle
from fedjax_sim.core.lifecycle import exit_code_of
from fedjax_sim.core.settings import ConfigError, Count
from fedjax_sim.engine.planning import placement
from fedjax_sim.launch.jobs import Launcher, finish_jobs, jobs_of
from fedjax_sim.launch.parts import read_part
from fedjax_sim.results.records import to_json
from fedjax_sim.results.reports import UNFINISHED, Folder, save

IDENTITY = (
    *("smoke", "seeds", "first_seed", "data_dir", "reduced", "dataset", "rate", "only", "cells"),
    "precision",
)
"""Arguments that an unfinished run and the run that resumes it must have in common."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of `python -m experiments`."""
    top = Parser(
        prog="python -m experiments", description="Run the figures and studies of the papers."
    )
    commands = top.add_subparsers(dest="command", required=True)
    every = commands.add_parser("list", help="list all experiments with one line each")
    run = commands.add_parser("run", help="run one experiment and write its results folder")
    run.add_argument("name", metavar="PAPER/NAME", help="the experiment, such as favano/table2")
    run.add_argument(
        "--smoke", action="store_true", help="a few seconds on bundled data, to see that it runs"
    )
    run.add_argument(
        "--reduced", action="store_true", help="smaller, but on the same data: what a CPU can do"
    )
    run.add_argument("--full", action="store_true", help="the paper's size, as without a size")
    run.add_argument(
        "--seeds",
        metavar="N or A-B",
        help="number of seeds, in place of the experiment's, or those that a record is to get",
    )
    run.add_argument(
        "--cells",
        metavar="TEXT",
        nargs="+",
        action="extend",
        default=[],
        help="only cells with this in their names, such as a method, to be added to the record",
    )
    run.add_argument(
        "--dataset", help="data set in place of the experiment's, such as an .npz file"
    )
    run.add_argument(
        "--rate", type=float, help="learning rate in place of that of the paper's favano/fig3a"
    )
    run.add_argument(
        "--only",
        metavar="NAME,...",
        help="some panels, such as fig7 of hierarchical/own_rates; a wrong name lists all",
    )
    run.add_argument(
        "--methods",
        metavar="TEXT,...",
        help="only sweeps with this in their names; those of other calls with the same --out count",
    )
    run.add_argument("--minutes", type=float, help="save and stop after as many minutes")
    run.add_argument("--precision", default="float32", help="of matrix products, as of `run`")
    run.add_argument("--data-dir", help="folder with the raw files of the data set, if offline")
    run.add_argument(
        "--resume",
        action="store_true",
        help="continue the unfinished run in the results folder, if there is one",
    )
    run.add_argument(
        "--out",
        metavar="DIR",
        help="results folder, replaced if it holds a finished run (results-PAPER-NAME)",
    )
    run.add_argument("--part", metavar="I/N", help="run one of N parts; all have the same --out")
    run.add_argument("--parts", metavar="N", help="run in N parts, which --launcher starts")
    run.add_argument("--launcher", metavar="NAME", help="local (the default), slurm or ray")
    run.add_argument("--resources", metavar="NAME=VALUE,...", help="fields of the launcher")
    report = commands.add_parser(
        "report", help="write the tables of verdicts, and a page of all claims, from the results"
    )
    report.add_argument("--out", metavar="DIR", help="folder of the page (results-report)")
    report.add_argument(
        "--keep",
        metavar="DIR",
        nargs="+",
        action="extend",
        default=[],
        help="results folders of runs whose results are first put under experiments/PAPER/results; "
        "those of further seeds or of single cells are added to what is there",
    )
    compare = commands.add_parser(
        "compare", help="compare results folders with the committed record, claim by claim"
    )
    compare.add_argument("folders", metavar="DIR", nargs="+", help="results folders of runs")
    queued = commands.add_parser(
        "queue", help="run what needs an accelerator, in order, as far as the time goes"
    )
    queued.add_argument("--minutes", type=float, default=9.0, help="of this call (9)")
    queued.add_argument("--dataset", help="file with CIFAR-10's images, if offline")
    queued.add_argument("--data-dir", help="folder with the raw files of other data, if offline")
    queued.add_argument("--precision", default="float32", help="of matrix products")
    queued.add_argument("--smoke", action="store_true", help="each for a few seconds")
    queued.add_argument("--out", metavar="DIR", help="folder of the results (results-queue)")
    merge = commands.add_parser("merge", help="write the results of parts that have run")
    merge.add_argument("out", metavar="DIR", help="results folder of the parts")
    for command in (report, compare):
        command.add_argument(
            "--trust",
            action="store_true",
            help="also read files that end without their SHA-256, as those of earlier versions",
        )
    for command in (every, run, report, compare, merge):
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `python -m experiments`.

    Args:
      argv: The arguments, by default those of the process.

    Returns:
      The exit code, see `core.lifecycle.EXIT_CODES`. Whatever is not 0 is explained in one
      sentence on stderr, apart from a fault of the program.
    """
    return exit_code_of("experiments", lambda: _run(parser().parse_args(argv)))


def _run(given: argparse.Namespace) -> None:
    """List the experiments, run one or a part of it, or merge parts."""
    if given.command == "list":
        lines = registry.summaries()
        if given.json:
            print(to_json(lines), end="")
            return
        width = max(map(len, lines))
        print("\n".join(f"{name:{width}}  {line}" for name, line in lines.items()))
        return
    if given.command == "report":
        for folder in given.keep:
            print(f"kept {ledger.keep(Path(folder), trust=given.trust)}")
        counts = report.write_report(Path(given.out or "results-report"))
        print(to_json(counts) if given.json else report.told(counts), end="")
        return
    if given.command == "compare":
        found = {each: ledger.compared(Path(each), trust=given.trust) for each in given.folders}
        if given.json:
            print(to_json(found), end="")
        else:
            for folder, told in found.items():
                print(f"{folder}: {'; '.join(told) or 'as in the record'}")
        return
    if given.command == "queue":
        queue.run(given)
        return
    if given.command == "merge":
        name, num_parts, common = read_identity(Path(given.out))
        arguments = Arguments(out=given.out, **common)
        merged = merge_parts(name, registry.find(name), arguments, num_parts)
        _show(merged, given.out, as_json=given.json)
        return
    run = registry.find(given.name)
    for option, word, lacks in (
        ("only", "ONLY", "has no panels to choose from"),
        ("rate", "RATES", "has one learning rate"),
    ):
        value = getattr(given, option)
        if value is not None and not registry.declares(given.name, word):
            raise ConfigError(option, value, f"left out with {given.name}, which {lacks}")
    if given.rate is not None and not given.rate > 0:
        raise ConfigError("rate", given.rate, "a number above 0")
    seeds, first_seed = read_seeds(given.seeds)
    if (first_seed or given.cells) and not registry.declares(given.name, "CELLS"):
        allowed = f"with {given.name}, whose record takes no further ones"
        if first_seed:
            raise ConfigError("seeds", given.seeds, f"a number of seeds {allowed}")
        raise ConfigError("cells", given.cells, f"left out {allowed}")
    chosen = {word: value for word, value in vars(given).items() if word in Arguments._fields}
    chosen["out"] = given.out or f"results-{given.name.replace('/', '-')}"
    arguments = Arguments(**chosen)._replace(seeds=seeds, first_seed=first_seed)
    if given.full and (given.smoke or given.reduced):
        raise ConfigError("full together with a smaller size", True, "false: a run is of one size")
    with stopping_after(given.minutes):
        outcome = _run_as_asked(given, run, arguments)
    if outcome is not None:
        _show(outcome, arguments.out, as_json=given.json)


def read_seeds(words: str | None) -> tuple[int | None, int]:
    """Read `--seeds`: a number of seeds, or the first and the last one of those that are added.

    Args:
      words: Such as "10" or "5-9"; None for the experiment's own number.

    Returns:
      The number of seeds and the first one.
    """
    if words is None:
        return None, 0
    first, _, last = words.rpartition("-")
    if not last.isdecimal() or (first and not first.isdecimal()) or words.startswith("-"):
        raise ConfigError("seeds", words, "a number, or two with a sign between them, as 5-9")
    number = int(last) - int(first) + 1 if first else int(last)
    if number < 1:
        raise ConfigError("seeds", words, "at least 1")
    return number, int(first or 0)


def _run_as_asked(
    given: argparse.Namespace, run: Callable[[Arguments], Outcome], arguments: Arguments
) -> Outcome | None:
    """Run an experiment, one part of it or some methods; None if others have to run too."""
    part, launcher, out = read_part(given.part), read_launcher(given), Path(arguments.out)
    if given.methods is not None:
        if part is not None or launcher is not None:
            raise ConfigError("methods", given.methods, "left out with parts")
        return run_methods(given.name, run, arguments, given.methods.split(","))
    if part is not None:
        share = ExperimentPart(out, part.number, part.num_parts)
        print(run_part(given.name, run, arguments, share))
        return None
    if launcher is not None:
        num_parts = read_value("parts", given.parts, launcher.count(), Count)
        parts = ExperimentPart(out, None, num_parts)
        return launch_parts(launcher, given.name, run, arguments, parts)
    return run_experiment(given.name, run, arguments)


@contextlib.contextmanager
def stopping_after(minutes: float | None) -> Iterator[None]:
    """Ask the process to save and stop after some time, as SIGUSR1 does, or never if it is None."""
    if minutes is None:
        yield
        return
    if not 0 < minutes <= threading.TIMEOUT_MAX / 60:
        raise ConfigError("minutes", minutes, "a number above 0")

    def stop() -> None:
        lifecycle.say(f"{minutes:.3g} minutes are over", "experiments")
        os.kill(os.getpid(), signal.SIGUSR1)

    timer = threading.Timer(60 * minutes, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _show(outcome: Outcome, out: str, *, as_json: bool) -> None:
    """Print what an experiment found, and where its results are."""
    if as_json:
        claims = [verdict._asdict() for verdict in outcome.verdicts]
        print(to_json({"folder": out, "claims": claims}), end="")
    else:
        told = (
            [outcome.text, verdict_table(outcome.verdicts)] if outcome.verdicts else [outcome.text]
        )
        print("\n\n".join(filter(None, told)), f"written to {out}", sep="\n")


def run_experiment(name: str, run: Callable[[Arguments], Outcome], arguments: Arguments) -> Outcome:
    """Run one experiment and write its results folder.

    Returns:
      What the experiment returned, after it was written to `arguments.out`.

    Raises:
      ConfigError: If the arguments do not fit together or the folder cannot be written. The
        folder is then as it was.
    """
    identity = _begin(name, arguments)
    out = Path(arguments.out)
    finished = (out / "claims.json").exists() and not (out / UNFINISHED).exists()
    replaces = (finished or arguments.share is not None) and not arguments.resume
    folder = Folder(out, resume=arguments.resume, overwrite=replaces)
    if arguments.resume:
        folder.check_resumable(identity)
    folder.open(identity)
    began, began_cpu = time.monotonic(), time.process_time()
    try:
        outcome = run(arguments._replace(checkpoints=folder.checkpoints))
        if arguments.share is not None and arguments.share.waits is not None:
            raise arguments.share.waits
    except (ConfigError, WaitsError):
        folder.withdraw()
        raise
    verdicts = ledger.complete(
        outcome.verdicts, ledger.size_of(arguments), outcome.config, outcome.inputs
    )
    outcome = outcome._replace(verdicts=verdicts)
    folder.write_json("claims.json", [verdict._asdict() for verdict in outcome.verdicts])
    cost = ledger.Cost(time.monotonic() - began, time.process_time() - began_cpu)
    folder.write_json(ledger.FILE, ledger.entry_of(name, arguments, outcome, cost))
    save(
        folder,
        outcome.curves,
        {"experiment": name, "smoke": arguments.smoke, **outcome.config},
        outcome.figures,
    )
    return outcome


def run_part(
    name: str, run: Callable[[Arguments], Outcome], arguments: Arguments, share: ExperimentPart
) -> str:
    """Run one part of an experiment, as far as it comes without the other parts.

    Args:
      share: The part.

    Returns:
      What is to be done next, in a sentence.

    Raises:
      ConfigError: If the arguments do not fit together or the folder is of another experiment.
    """
    share.open(_begin(name, arguments))
    part = f"part {share.number}/{share.num_parts}"
    with contextlib.suppress(WaitsError):
        run(arguments._replace(checkpoints=share.checkpoints, share=share, resume=True))
    if share.waits is not None:
        return f"{part} is at an end for now: {share.waits}; merge, or run it again after them."
    return f"{part} is done, and so are the others: merge {arguments.out}."


def run_methods(
    name: str, run: Callable[[Arguments], Outcome], arguments: Arguments, methods: Sequence[str]
) -> Outcome | None:
    """Run those sweeps of an experiment whose names have certain words in them.

    They are kept in the results folder. Once all sweeps are there, the results are written.

    Args:
      methods: The words.

    Returns:
      What the experiment returned, or None if other sweeps have to be run.

    Raises:
      ConfigError: If the arguments do not fit together, the folder is of another experiment, or
        there is a word that no sweep has in its name. Sweeps that have run are kept.
    """
    share = ExperimentPart(Path(arguments.out), 0, 1, methods)
    run_part(name, run, arguments, share)
    strange = [each for each in methods if not any(each in sweep for sweep in share.seen)]
    if strange == list(methods) or (strange and share.waits is None):  # None may come later.
        known = ", ".join(map(repr, share.seen))
        raise ConfigError("methods", ",".join(strange), f"parts of {known}, which come next")
    if share.waits is None:
        return merge_parts(name, run, arguments, 1)
    print(f"{share.waits}; name it in --methods of the next call.")
    return None


def merge_parts(
    name: str, run: Callable[[Arguments], Outcome], arguments: Arguments, num_parts: int
) -> Outcome:
    """Write the results of an experiment whose parts have run.

    Args:
      num_parts: Number of parts.

    Returns:
      What the experiment returned.

    Raises:
      ConfigError: If lanes are missing.
    """
    parts = ExperimentPart(Path(arguments.out), None, num_parts)
    try:
        outcome = run_experiment(name, run, arguments._replace(share=parts, resume=False))
    except WaitsError as error:
        allowed = f"complete, but {error}, which are to be run (again)"
        raise ConfigError("folder of parts", str(parts.folder), allowed) from None
    shutil.rmtree(parts.folder)
    return outcome


def launch_parts(
    launcher: Launcher,
    name: str,
    run: Callable[[Arguments], Outcome],
    arguments: Arguments,
    parts: ExperimentPart,
) -> Outcome:
    """Run an experiment in parts, in as many rounds as it needs, and write its results.

    Args:
      launcher: What starts the parts.
      parts: All parts.

    Returns:
      What the experiment returned.

    Raises:
      ConfigError: If the arguments do not fit together or the folder is of another experiment.
      PartError: If a part failed.
    """
    parts.open(_begin(name, arguments))
    words = ["-m", "experiments", "run", name, f"--out={arguments.out}"]
    words += [] if arguments.seeds is None else [f"--seeds={arguments.words_of_seeds}"]
    words += ["--cells", *arguments.cells] if arguments.cells else []
    for word in (each for each in IDENTITY if each not in ("seeds", "first_seed", "cells")):
        value = getattr(arguments, word)
        if value not in (None, False):
            flag = "--" + word.replace("_", "-")
            words.append(flag if value is True else f"{flag}={value}")
    within = parts.folder / CHECKPOINTS
    jobs = jobs_of(parts.num_parts, within, lambda part, folder: (*words, f"--part={part}"))
    while True:
        before = parts.files()
        finish_jobs(launcher, jobs, parts.folder.absolute())
        try:
            return merge_parts(name, run, arguments, parts.num_parts)
        except ConfigError:
            if parts.files() == before:  # Another round would bring nothing new.
                raise


def _begin(name: str, arguments: Arguments) -> dict[str, Any]:
    """Set JAX up, check the arguments, and return what runs of one folder have in common."""
    fedjax_sim.keep_compiled()
    fedjax_sim.use_cores()
    if arguments.smoke and arguments.reduced:
        raise ConfigError("reduced together with smoke", True, "false: a run is of one size")
    placement.check_precision(arguments.precision)
    return {"experiment": name, **{word: getattr(arguments, word) for word in IDENTITY}}
