"""Runs experiments as a user does: through the command line, in this process or in another one.

Runs in this process share its compiled programs and spare the start of Python and JAX.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import jax

from experiments.harness import Verdict, main
from experiments.harness.claims import KINDS
from experiments.harness.statistics import VERDICTS

REPOSITORY = Path(__file__).parents[2]
FIELDS = set(Verdict._fields)
"""What `claims.json` says about each claim."""
FILES = {"claims.json", "config.json", "entry.json", "results.nc", "summary.json"}
"""What every results folder holds, next to pictures."""


class Ran(NamedTuple):
    """What a command left: its exit code, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run(name: str, *arguments: str, cwd: Path) -> Ran:
    """Run `python -m experiments run NAME ARGUMENTS` in this process.

    As for a user, warnings are no errors and JAX promotes ranks.

    Args:
      name: The experiment, as PAPER/NAME.
      *arguments: Further words of the command line.
      cwd: Folder to run in.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
        jax.numpy_rank_promotion("allow"),
    ):
        warnings.simplefilter("ignore")
        code = main(["run", name, *arguments])
    return Ran(code, out.getvalue(), err.getvalue())


def run_process(*arguments: str, cwd: Path) -> Ran:
    """Run `python -m experiments ARGUMENTS` in a new process, in the folder `cwd`."""
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=600,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def environment() -> dict[str, str]:
    """Return this process' environment, with the suite's cache of compiled programs."""
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(REPOSITORY),
    }


def claims(folder: Path) -> dict[str, dict]:
    """Read `claims.json` by claim, after checking that every text is there."""
    found = json.loads((folder / "claims.json").read_text())
    for each in found:
        assert set(each) == FIELDS
        assert each["verdict"] in VERDICTS and each["kind"] in KINDS
        assert each["size"] in ("full", "reduced", "smoke") and isinstance(each["seeds"], int)
        texts = (each[field] for field in ("claim", "paper", "criterion", "why"))
        assert all(isinstance(text, str) and text for text in texts)
    return {each["id"]: each for each in found}


def judged(folder: Path) -> dict[str, bool | None]:
    """Read whether each claim holds or fails, by id; None for every other verdict."""
    return {id: Verdict(**each).holds for id, each in claims(folder).items()}


def summary(folder: Path) -> dict:
    """Read `summary.json`."""
    return json.loads((folder / "summary.json").read_text())
