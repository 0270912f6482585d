"""Shared by trackers: the title of a lane, and loading a package that is an extra."""

import importlib
from collections.abc import Mapping
from typing import Any

from fedjax_sim.core.settings import ConfigError


def title_of(lane: Mapping[str, Any]) -> str:
    """Name a lane in one line, such as "fedavg lr=0.1 seed=0".

    Args:
      lane: As `Tracker.log` receives it: the system, swept settings and the seed.
    """
    values = {name: getattr(value, "__name__", value) for name, value in lane.items()}
    system = values.pop("system")
    return " ".join([str(system), *(f"{name}={value}" for name, value in values.items())])


def load_extra(tracker: str, module: str) -> Any:
    """Import a package that only one tracker needs.

    Args:
      tracker: Name of the tracker, which is that of its extra.
      module: The package.

    Raises:
      ConfigError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        allowed = f'one that is installed: pip install "fedjax-sim[{tracker}]" installs it'
        raise ConfigError("tracker", tracker, allowed) from None
