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

import os
from typing import Any

import lazy_loader

# A GPU's compiler warns line by line of memory that it cannot get, while the engine fits the number
# of lanes to the memory. It reads this when JAX first looks for devices. 1 is what JAX sets itself.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"


__version__ = "0.1.0"
"""The version, for people and for the package index."""

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Load a room, or the module of a public name, when it is first asked for."""
    if name in __all__:
        return _load(name)
    from fedjax_sim.settings import UnknownAttributeError

    sentence = f"module 'fedjax_sim' has no attribute {name!r}"
    raise UnknownAttributeError(sentence, name, __all__)
