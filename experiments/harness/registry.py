"""Finds the experiments: one package per paper, one module per figure, table or study.

An experiment is a module with a function `run(arguments) -> Outcome`, named in the tuple
`EXPERIMENTS` of its package. The first line of its docstring says what it is.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path

from experiments.harness.experiment import Arguments, Outcome
from fedjax_sim.core.lifecycle import nearest
from fedjax_sim.core.settings import ConfigError

PAPERS = (
    "baselines",
    "clocks",
    "favano",
    "fald",
    "fedem",
    "fedstaleweight",
    "hierarchical",
    "reproductions",
    "robustness",
    "selection",
)
"""The packages, one per paper."""


def names() -> list[str]:
    """Return the names of all experiments, as PAPER/NAME."""
    return [
        f"{paper}/{name}"
        for paper in PAPERS
        for name in importlib.import_module(f"experiments.{paper}").EXPERIMENTS
    ]


def find(name: str) -> Callable[[Arguments], Outcome]:
    """Import one experiment and return its function `run`.

    Raises:
      ConfigError: If there is no experiment of this name.
    """
    known = names()
    if name not in known:
        allowed = "a name of `python -m experiments list`" + nearest(name, known)
        raise ConfigError("experiment", name, allowed)
    return importlib.import_module("experiments." + name.replace("/", ".")).run


def declares(name: str, word: str) -> bool:
    """Tell whether an experiment's module has a name that says which options it takes.

    These are `ONLY` for single panels, `CELLS` for further seeds and single cells of a record, and
    `RATES` for another learning rate.
    """
    return hasattr(importlib.import_module("experiments." + name.replace("/", ".")), word)


def summaries() -> dict[str, str]:
    """Return the first docstring line of every experiment by name, without importing them."""
    root = Path(__file__).parents[1]
    trees = {name: ast.parse((root / f"{name}.py").read_bytes()) for name in names()}
    return {name: (ast.get_docstring(tree) or "").split("\n")[0] for name, tree in trees.items()}
