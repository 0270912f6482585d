"""A virtual environment for each peer, made once and kept."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

TORCH = "torch==2.13.0"
REQUIREMENTS = {
    "fedjax": ("fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2"),
    "pfl": ("pfl[pytorch]==0.6.0", TORCH),
    "flower": ("flwr[simulation]==1.41.0", TORCH),
    "flsim": ("flsim==0.1.0", TORCH),
    "torch": (TORCH, "numpy"),
}
"""What is installed for each peer, by the name of its worker."""
MARK = "requirements.json"
"""File in a finished environment that says what was installed."""

Runner = Callable[[Sequence[str]], tuple[int, str]]
"""Runs a command and returns its exit code and its output."""


class Environment(NamedTuple):
    """Where a peer's Python is, or why there is none.

    Attributes:
      python: The interpreter, or None.
      reason: Why there is none; "" if there is one.
    """

    python: Path | None
    reason: str = ""


def environment_of(name: str, folder: Path, *, run: Runner | None = None) -> Environment:
    """Find a peer's environment, or make it.

    pip's own settings decide where packages come from; a CPU build of torch is enough.

    Args:
      name: A name in `REQUIREMENTS`.
      folder: Folder of all environments.
      run: Runs a command; for tests.

    Returns:
      The environment, or the reason why it cannot be made: the last line that says "ERROR", or the
      last line at all.
    """
    run = run or _run
    wanted, place = list(REQUIREMENTS[name]), folder / name
    python, mark = place / "bin" / "python", place / MARK
    if python.exists() and mark.exists() and json.loads(mark.read_text()) == wanted:
        return Environment(python)
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"making the environment of {name}: {', '.join(wanted)}", flush=True)
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "install", "--quiet", *wanted],
    ):
        code, output = run(command)
        if code:
            return Environment(None, _reason(output) or f"{command[0]} ended with code {code}")
    mark.write_text(json.dumps(wanted))
    return Environment(python)


def _run(command: Sequence[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _reason(output: str) -> str:
    """Find the line of a failed installation that says why."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1].removeprefix("ERROR: ")[:200]
