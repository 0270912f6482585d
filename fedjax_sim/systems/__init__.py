"""The systems, by name. Each file reads like its paper's algorithm box."""

from fedjax_sim.systems import favano, fedasync, fedavg, fedbuff, fedstaleweight, hierarchical, quafl
from fedjax_sim.types import System

SYSTEMS: dict[str, System] = {
    module.system.name: module.system for module in (fedavg, quafl, fedbuff, favano, fedstaleweight, fedasync, hierarchical)
}
