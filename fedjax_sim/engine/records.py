"""What config.json says about a run and about the machine, and how JSON files are written."""

import functools
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

JAX = ("jax", "jaxlib")
"""Packages of which a resumed run may be told to accept another version."""
PACKAGES = ("flax", "optax", "numpy", "xarray")
"""Further packages whose versions config.json records."""


def versions() -> dict[str, str]:
    """Collect the versions that a run must have in common with the run that resumes it."""
    # The root of the package imports this room, which therefore must not import it.
    return {name: sys.modules[name].__version__ for name in ("fedjax_sim", *JAX)}


def environment() -> dict[str, Any]:
    """Collect versions, commit and device, for config.json."""
    others = {name: importlib.metadata.version(name) for name in PACKAGES}
    device = jax.devices()[0]
    return {
        "versions": {**versions(), "python": platform.python_version(), **others},
        "commit": _commit(),
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": jax.device_count(),
        },
    }


@functools.cache
def _commit() -> str | None:
    """Find the commit of the repository that holds the package; None if no repository does.

    "-dirty" is appended if files differ from the commit.
    """
    here = Path(__file__).parents[1]
    try:
        for command in (
            ["ls-files", "--error-unmatch", "__init__.py"],
            ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        ):
            done = subprocess.run(
                ["git", *command], cwd=here, capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def to_json(content: Any) -> str:
    """Write a value as JSON: arrays become lists, functions their names, nan and inf null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(x) for key, x in value.items()}
        if isinstance(value, list | tuple):
            return [plain(x) for x in value]
        if isinstance(value, np.generic | np.ndarray):
            return plain(value.tolist())
        if isinstance(value, float) and not np.isfinite(value):
            return None
        return (
            value
            if value is None or isinstance(value, bool | int | float | str)
            else getattr(value, "__name__", str(value))
        )

    return json.dumps(plain(content), indent=1, allow_nan=False) + "\n"
