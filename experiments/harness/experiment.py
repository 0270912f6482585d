"""What an experiment is given and what it returns: `run(arguments) -> Outcome`."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xarray as xr

from experiments.harness.claims import Verdict
from experiments.harness.parts import ExperimentPart
from fedjax_sim import Checkpoints
from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.request import Precision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHECKPOINT_EVERY = 60.0
"""Least time between two checkpoints, in seconds."""


class Outcome(NamedTuple):
    """What an experiment returns, to be written to its results folder.

    Attributes:
      curves: Labelled arrays by name, the groups of `results.nc`.
      figures: Pictures by file name.
      verdicts: Verdicts on the paper's claims, the entries of `claims.json`.
      config: The settings behind the results, added to `config.json`.
      text: What is printed at the end, before the table of verdicts.
      inputs: The numbers from which the verdicts follow, for the function `judge(inputs)` of the
        experiment's module; None if it has no such function. They are kept with the results, so
        that a change of the standard needs no new run.
      panel: Names the part of the study that was run, such as one of its data sets; empty if all of
        it was run. The results of a named part are kept in a file with that name.
    """

    curves: Mapping[str, xr.Dataset]
    figures: Mapping[str, "Figure"]
    verdicts: Sequence[Verdict]
    config: Mapping[str, Any]
    text: str = ""
    inputs: Mapping[str, Any] | None = None
    panel: str = ""


class Arguments(NamedTuple):
    """The command line of one experiment.

    Attributes:
      smoke: Run in seconds on bundled data, to see that everything runs.
      seeds: Number of seeds in place of the study's, at least 1, or None.
      first_seed: The first seed, 0 but for seeds that are added to a record.
      data_dir: Folder with the raw files of data sets, or None to download them.
      out: Results folder.
      reduced: Run the smaller size on the same data.
      dataset: Data set in place of the study's, or None.
      resume: Continue the unfinished run in the results folder, if there is one.
      checkpoints: Folder for checkpoints of sweeps, or None to keep none.
      share: The part to run of an experiment that runs in parts, or None.
      rate: Learning rate in place of the paper's, or None.
      only: Names of the panels to run, joined by commas, or None for all.
      cells: Parts of the names of those cells that are run and added to a record; all if empty.
      precision: Precision of matrix products, as in `sweep`.
    """

    smoke: bool = False
    seeds: int | None = None
    first_seed: int = 0
    data_dir: str | None = None
    out: str = ""
    reduced: bool = False
    dataset: str | None = None
    resume: bool = False
    checkpoints: Path | None = None
    share: ExperimentPart | None = None
    rate: float | None = None
    only: str | None = None
    cells: Sequence[str] = ()
    precision: Precision = "float32"

    def chosen(self, names: Collection[str]) -> list[str]:
        """Return those of the names that are asked for.

        Raises:
          ConfigError: If another name is asked for.
        """
        asked = list(names) if self.only is None else self.only.split(",")
        for name in asked:
            if name not in names:
                raise ConfigError("only", name, f"one of {', '.join(names)}")
        return asked

    @property
    def panel(self) -> str:
        """The panels that are asked for, as a part of a file's name; "" for all."""
        return re.sub(r"\W+", "_", self.only or "")

    @property
    def adds(self) -> bool:
        """Whether the run is no whole study, but is to be added to a record."""
        return bool(self.first_seed or self.cells)

    @property
    def words_of_seeds(self) -> str | None:
        """The seeds as `--seeds` has them, None for those of the study."""
        if self.first_seed:
            return f"{self.first_seed}-{self.first_seed + (self.seeds or 1) - 1}"
        return None if self.seeds is None else str(self.seeds)

    def cells_of(self, names: Sequence[str]) -> list[str]:
        """Return those cells of a study that are asked for.

        Args:
          names: The names of all cells.

        Raises:
          ConfigError: If no cell has some of the texts in its name.
        """
        for text in self.cells:
            if not any(text in name for name in names):
                raise ConfigError("cells", text, f"a part of one of {', '.join(map(repr, names))}")
        return [name for name in names if any(map(name.__contains__, self.cells or ("",)))]

    def kept(self, name: str) -> dict[str, Any]:
        """Return the options of a sweep by which it can be resumed, run in parts or in TF32.

        A line on stderr says that the sweep begins, as long runs otherwise say nothing.

        Args:
          name: Name of the sweep, different for every sweep of the experiment.
        """
        if self.checkpoints is None:
            return {"precision": self.precision}
        lifecycle.say(f"{name} ...", "experiments")
        folder = self.checkpoints / name.replace("/", " of ")
        return {
            "precision": self.precision,
            "checkpoints": Checkpoints(folder, every=CHECKPOINT_EVERY, resume=self.resume),
            **({} if self.share is None else {"lanes": self.share.of_sweep(name)}),
        }
