"""Simulate federated learning as one array program: the schedule first, learning second.

Start with `sweep`, which runs a system (see `SYSTEMS`) on a problem for many settings and seeds,
or with `simulate`, which runs one. `bind` hands out the program of a run, for a loop of one's own
and for gradients through it. Where to look for the rest:

    types            the words used here (tick, slot, lane), and what the parts agree on
    events           the event of one tick, and what is known of it beforehand
    settings         typed, documented and checked settings of systems
    streams          named streams of random numbers
    trees            parts of models, chosen by the paths of their leaves
    batching         one function for every slot of a tick or every lane, batched or in turn
    timelines        when the server acts and whose work it receives
    clients, server  what happens on each side; compression: what they send to each other;
                     privacy: clipped updates, noise, and epsilon
    systems          one algorithm per file
    engine           draws schedules, places lanes on devices, and replays schedules
    binding          the program of a run, for one's own loop
    results          what a sweep returns: labelled curves, models and schedules, and their files
    problems         what is learnt, from models, datasets and a partition among clients
    diagnostics      fairness, averaged predictions, samples
    theory           privacy, fair weights, lengths of rounds and step sizes, as functions
    reporting        results folders and pictures
    cli              the command line
    checking         declared types of arguments, checked at every public call
    lifecycle        exit codes, stops, and folders that stay readable

Everything is loaded when it is first used. `import fedjax_sim` loads none of it, nor JAX. It keeps
XLA from printing warnings, unless the variable `TF_CPP_MIN_LOG_LEVEL` has another level than 1.
"""

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedjax_sim import batching as batching
    from fedjax_sim import binding as binding
    from fedjax_sim import checking as checking
    from fedjax_sim import cli as cli
    from fedjax_sim import clients as clients
    from fedjax_sim import compression as compression
    from fedjax_sim import datasets as datasets
    from fedjax_sim import diagnostics as diagnostics
    from fedjax_sim import engine as engine
    from fedjax_sim import events as events
    from fedjax_sim import launch as launch
    from fedjax_sim import lifecycle as lifecycle
    from fedjax_sim import linear as linear
    from fedjax_sim import models as models
    from fedjax_sim import partition as partition
    from fedjax_sim import privacy as privacy
    from fedjax_sim import problems as problems
    from fedjax_sim import reporting as reporting
    from fedjax_sim import results as results
    from fedjax_sim import server as server
    from fedjax_sim import settings as settings
    from fedjax_sim import streams as streams
    from fedjax_sim import systems as systems
    from fedjax_sim import targets as targets
    from fedjax_sim import theory as theory
    from fedjax_sim import timelines as timelines
    from fedjax_sim import trees as trees
    from fedjax_sim import types as types
    from fedjax_sim.binding import Bound, bind, bind_together
    from fedjax_sim.engine.machine.compiling import keep_compiled, use_cores
    from fedjax_sim.engine.request import Checkpoints
    from fedjax_sim.engine.shares import Part
    from fedjax_sim.engine.sweeps import simulate, sweep
    from fedjax_sim.engine.watching import Progress, Watch
    from fedjax_sim.results.runs import CollapsedWarning, DivergedWarning, LaneWarning, Run, load
    from fedjax_sim.settings import ConfigError
    from fedjax_sim.systems import SYSTEMS
    from fedjax_sim.types import (
        Algorithm,
        Energy,
        Event,
        Keep,
        Layout,
        Plan,
        Problem,
        System,
        Ticks,
        Time,
        Timeline,
    )

# A GPU's compiler warns line by line of memory that it cannot get, while the engine fits the number
# of lanes to the memory. It reads this when JAX first looks for devices. 1 is what JAX sets itself.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

__all__ = [
    "SYSTEMS",
    "Algorithm",
    "Bound",
    "Checkpoints",
    "CollapsedWarning",
    "ConfigError",
    "DivergedWarning",
    "Energy",
    "Event",
    "Keep",
    "LaneWarning",
    "Layout",
    "Part",
    "Plan",
    "Problem",
    "Progress",
    "Run",
    "System",
    "Ticks",
    "Time",
    "Timeline",
    "Watch",
    "__version__",
    "bind",
    "bind_together",
    "keep_compiled",
    "load",
    "simulate",
    "sweep",
    "use_cores",
]

__version__ = "0.1.0"
"""The version, for people and for the package index."""

_ROOMS = (
    "batching",
    "binding",
    "checking",
    "cli",
    "clients",
    "compression",
    "datasets",
    "diagnostics",
    "engine",
    "events",
    "launch",
    "lifecycle",
    "linear",
    "models",
    "partition",
    "privacy",
    "problems",
    "reporting",
    "results",
    "server",
    "settings",
    "streams",
    "systems",
    "targets",
    "theory",
    "timelines",
    "trees",
    "types",
)
_HOMES = {
    "fedjax_sim.binding": ("Bound", "bind", "bind_together"),
    "fedjax_sim.engine.machine.compiling": ("keep_compiled", "use_cores"),
    "fedjax_sim.results.runs": (
        "CollapsedWarning",
        "DivergedWarning",
        "LaneWarning",
        "Run",
        "load",
    ),
    "fedjax_sim.engine.sweeps": ("simulate", "sweep"),
    "fedjax_sim.engine.request": ("Checkpoints",),
    "fedjax_sim.engine.shares": ("Part",),
    "fedjax_sim.engine.watching": ("Progress", "Watch"),
    "fedjax_sim.settings": ("ConfigError",),
    "fedjax_sim.systems": ("SYSTEMS",),
    "fedjax_sim.types": (
        *("Algorithm", "Energy", "Event", "Keep", "Layout", "Plan", "Problem", "System"),
        *("Ticks", "Time", "Timeline"),
    ),
}
"""The module of each public name."""

# A type checker that saw `__getattr__` would accept every name, misspelt ones too.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Load a room, or the module of a public name, when it is first asked for."""
        if name in _ROOMS:
            return importlib.import_module(f"fedjax_sim.{name}")
        for home, names in _HOMES.items():
            if name in names:
                value = getattr(importlib.import_module(home), name)
                globals()[name] = value
                return value
        from fedjax_sim.settings import UnknownAttributeError

        sentence = f"module 'fedjax_sim' has no attribute {name!r}"
        raise UnknownAttributeError(sentence, name, (*__all__, *_ROOMS))

    def __dir__():
        """List the public names and the rooms, loaded or not."""
        return sorted({*globals(), *__all__, *_ROOMS})
