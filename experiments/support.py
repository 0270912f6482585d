"""What experiments share: their command line, verdicts on a paper's claims, and the folder they write."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xarray as xr

import fedjax_sim
from fedjax_sim.reporting.results import Folder, save
from fedjax_sim.settings import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CHECKPOINT_EVERY = 60.0
"""Seconds, at least, between two checkpoints."""


class Verdict(NamedTuple):
    """What an experiment says of one numbered claim of a paper."""

    id: str
    claim: str
    paper: str
    measured: Any
    holds: bool | None
    why: str


class Claims:
    """The numbered claims of one paper: per number what is claimed, and where."""

    def __init__(self, paper: str, claims: Mapping[int, tuple[str, str]]):
        self._paper, self._claims = paper, claims

    def verdict(self, number: int, measured: Any, holds: bool | None, why: str) -> Verdict:
        """Judge one claim by number."""
        claim, place = self._claims[number]
        return Verdict(f"{self._paper}-{number}", claim, place, measured, holds, why)


class Outcome(NamedTuple):
    """What an experiment leaves in its folder."""

    curves: Mapping[str, xr.Dataset]
    figures: Mapping[str, "Figure"]
    verdicts: Sequence[Verdict]
    config: Mapping[str, Any]
    text: str
    """What is printed at the end."""


class Arguments(NamedTuple):
    """The command line of an experiment."""

    smoke: bool
    seeds: int | None
    data_dir: str | None
    out: str
    results: str | None
    reduced: bool = False
    dataset: str | None = None
    resume: bool = False
    checkpoints: Path | None = None

    def kept(self, name: str) -> dict[str, Any]:
        """Options of a sweep that is to go on, under this name, where an unfinished run of the experiment ended."""
        if self.checkpoints is None:
            return {}
        return {
            "checkpoint": self.checkpoints / name.replace("/", " of "),
            "checkpoint_every": CHECKPOINT_EVERY,
            "resume": self.resume,
        }


def main(
    name: str, doc: str, run: Callable[[Arguments], Outcome], argv: Sequence[str] | None = None
) -> int:
    """Run an experiment from the command line; returns its exit code, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}", description=doc.splitlines()[0]
    )
    parser.add_argument(
        "--smoke", action="store_true", help="a few seconds on bundled data, to see that it runs"
    )
    parser.add_argument(
        "--seeds", type=int, help="number of seeds, instead of the experiment's own"
    )
    parser.add_argument(
        "--data-dir", help="folder of the raw files of the data set, where there is no network"
    )
    parser.add_argument(
        "--out",
        default=f"results-{name}",
        help="results folder, replaced if it holds an earlier run",
    )
    parser.add_argument(
        "--reduced",
        action="store_true",
        help="smaller, but on the same data: what a CPU can do of it",
    )
    parser.add_argument(
        "--dataset", help="data set in place of the experiment's own, such as an .npz file of it"
    )
    parser.add_argument(
        "--results",
        help="results folder of an experiment with the same runs, drawn again instead of run again",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the unfinished run in the results folder, if there is one",
    )
    given = parser.parse_args(argv)
    arguments = Arguments(
        given.smoke,
        given.seeds,
        given.data_dir,
        given.out,
        given.results,
        given.reduced,
        given.dataset,
        given.resume,
    )
    fedjax_sim.keep_compiled()
    fedjax_sim.use_cores()
    try:
        if arguments.smoke and arguments.reduced:
            raise ConfigError("reduced together with smoke", True, "false: a run is of one size")
        if arguments.seeds is not None and arguments.seeds < 1:
            raise ConfigError("seeds", arguments.seeds, "at least 1")
        finished = (Path(arguments.out) / "claims.json").exists()
        identity = {
            "experiment": name,
            **{
                word: getattr(arguments, word)
                for word in ("smoke", "seeds", "data_dir", "reduced", "dataset")
            },
        }
        folder = Folder(
            arguments.out, resume=arguments.resume, overwrite=finished and not arguments.resume
        )
        if arguments.resume:
            folder.check_resumable(identity)
        folder.open(identity)
        try:
            outcome = run(arguments._replace(checkpoints=folder.checkpoints))
        except ConfigError:
            folder.withdraw()
            raise
        folder.write_json("claims.json", [verdict._asdict() for verdict in outcome.verdicts])
        save(
            folder,
            outcome.curves,
            {"experiment": name, "smoke": arguments.smoke, **outcome.config},
            outcome.figures,
        )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(outcome.text)
    print(f"written to {arguments.out}")
    return 0


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Lay out rows as a Markdown table."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    cells = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
