"""Federated-learning simulation as one array program: the schedule first, learning second."""

from fedjax_sim.engine.placement import Layout, keep_compiled, use_cores
from fedjax_sim.engine.sweeps import Run, simulate, sweep
from fedjax_sim.settings import ConfigError
from fedjax_sim.systems import SYSTEMS
from fedjax_sim.types import Algorithm, Event, Plan, Problem, System, Timeline
from fedjax_sim.version import __version__

__all__ = [
    "SYSTEMS",
    "Algorithm",
    "ConfigError",
    "Event",
    "Layout",
    "Plan",
    "Problem",
    "Run",
    "System",
    "Timeline",
    "__version__",
    "keep_compiled",
    "simulate",
    "sweep",
    "use_cores",
]
