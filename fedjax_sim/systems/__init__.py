"""The systems, by name. Each file reads like its paper's algorithm box."""

from fedjax_sim.systems import (
    em,
    favano,
    fedasync,
    fedavg,
    fedbuff,
    fedem,
    fedstaleweight,
    hierarchical,
    langevin,
    quafl,
    vr_fedem,
)
from fedjax_sim.types import System

_MODULES = (
    fedavg,
    quafl,
    fedbuff,
    favano,
    fedstaleweight,
    fedasync,
    hierarchical,
    langevin,
    em,
    fedem,
    vr_fedem,
)
SYSTEMS: dict[str, System] = {module.system.name: module.system for module in _MODULES}
