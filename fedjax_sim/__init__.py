"""Simulate federated learning as one array program: the schedule first, learning second.

Start with `sweep`, which runs a system (see `SYSTEMS`) on a problem for many settings and seeds,
or with `simulate`, which runs one. `bind` hands out the program of a run, for a loop of one's own
and for gradients through it. Where to look for the rest:

    systems          the algorithms, each like its paper's box
    problems         models, datasets and a partition among clients, made into a loss
    timelines        when the server acts and whose work it receives
    clients, server  local work; messages with their compression, privacy, attacks and rules
    engine           draws schedules, places lanes on devices, replays schedules, binds programs
    results          labelled curves, models and schedules; their files, pictures, diagnostics
    studies          tuning on validation data, comparisons with intervals, tables for papers
    theory           privacy, fair weights, lengths of rounds and step sizes, as functions
    kernels          products and convolutions, arrays in and arrays out
    launch, cli      many machines; the command line
    core             what all of these share: types (the words used here), events, settings,
                     streams, trees, batching, targets, lifecycle

Everything is loaded when it is first used. `import fedjax_sim` loads none of it, nor JAX. It keeps
XLA from printing warnings, unless the variable `TF_CPP_MIN_LOG_LEVEL` has another level than 1.
"""

import importlib.abc
import os
import sys
from typing import Any

import lazy_loader

from fedjax_sim.version import __version__ as __version__

# A GPU's compiler warns line by line of memory that it cannot get, while the engine fits the number
# of lanes to the memory. It reads this when JAX first looks for devices. 1 is what JAX sets itself.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

CORE = ("batching", "events", "lifecycle", "settings", "streams", "targets", "trees")
MOVED = {
    **{name: f"core.{name}" for name in (*CORE, "types")},
    "checking": "core.settings",
    "compression": "server.compression",
    "privacy": "server.privacy",
    "diagnostics": "results.diagnostics",
    "reporting": "results.reports",
    "binding": "engine.binding",
    "linear": "kernels.linear",
}
"""New addresses of modules by their old ones."""


class _Moved(importlib.abc.MetaPathFinder):
    """The last finder that Python asks: it refuses an old address with the new one."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Refuse the old addresses in `MOVED`; find nothing else."""
        root, _, name = fullname.partition(".")
        if root == __name__ and name in MOVED:
            sentence = f"No module named {fullname!r}: it is '{root}.{MOVED[name]}' now"
            raise ModuleNotFoundError(sentence, name=fullname)


sys.meta_path.append(_Moved())
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Load a room, or the module of a public name, when it is first asked for."""
    if name in __all__:
        return _load(name)
    from fedjax_sim.core.settings import UnknownAttributeError

    sentence = f"module 'fedjax_sim' has no attribute {name!r}"
    raise UnknownAttributeError(sentence, name, __all__)
