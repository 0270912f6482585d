"""Shared by trackers: their contract, the title of a lane, and loading an extra's package."""

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from fedjax_sim.core.settings import ConfigError


class Tracker(Protocol):
    """Something that keeps metrics while a run goes on."""

    def log(self, lane: Mapping[str, Any], ticks: int, values: Mapping[str, float]) -> None:
        """Keep one evaluation of one lane.

        Args:
          lane: The system's name, the values of the swept settings and the seed, by name: the same
            in all calls for one lane.
          ticks: Server actions before the evaluation.
          values: The metrics that are single numbers, and `evaluation` and `virtual_time`.
        """

    def close(self) -> None:
        """Write everything that is not written yet. The caller of `sweep` closes its trackers."""


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
