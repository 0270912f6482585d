"""The systems, one algorithm per file. Each file reads like its paper's algorithm box.

A file defines its settings (`Hyper`), what it carries from tick to tick (`State`), the algorithm's
`init` and `step`, and the `system` that combines them with a timeline. To write a new one, start
from `fedbuff.py` (asynchronous) or `fedavg.py` (synchronous). A system with parts that no other one
needs is a folder, with the algorithm in the file of its name: `favano`, `fedopt`, `langevin`.
Systems do not import each other: what two of them need lives in `fedjax_sim.clients`,
`fedjax_sim.server`, `fedjax_sim.compression` or `fedjax_sim.timelines`. Only a system that is the
algorithm of another one on a live clock, such as `oort`, imports that.
"""

from typing import TYPE_CHECKING

from fedjax_sim.settings import Named, UnknownAttributeError
from fedjax_sim.systems import (
    adacomm,
    async_hierarchical,
    ditto,
    em,
    favano,
    fedasync,
    fedat,
    fedavg,
    fedbuff,
    fedcs,
    feddyn,
    fedem,
    fednova,
    fedopt,
    fedper,
    fedprox,
    fedstaleweight,
    gen_async,
    hierarchical,
    langevin,
    mimelite,
    oort,
    pisces,
    powerofchoice,
    quafl,
    safa,
    scaffold,
    tifl,
    vr_fedem,
)
from fedjax_sim.types import System

__all__ = [
    "SYSTEMS",
    "adacomm",
    "async_hierarchical",
    "ditto",
    "em",
    "favano",
    "fedasync",
    "fedat",
    "fedavg",
    "fedbuff",
    "fedcs",
    "feddyn",
    "fedem",
    "fednova",
    "fedopt",
    "fedper",
    "fedprox",
    "fedstaleweight",
    "gen_async",
    "hierarchical",
    "langevin",
    "mimelite",
    "oort",
    "pisces",
    "powerofchoice",
    "quafl",
    "safa",
    "scaffold",
    "tifl",
    "vr_fedem",
]

_SYSTEMS = (
    fedavg.system,
    fedprox.system,
    scaffold.system,
    fednova.system,
    *fedopt.systems,
    feddyn.system,
    mimelite.system,
    ditto.system,
    fedper.system,
    powerofchoice.system,
    oort.system,
    tifl.system,
    fedcs.system,
    adacomm.system,
    safa.system,
    quafl.system,
    fedbuff.system,
    favano.system,
    fedstaleweight.system,
    fedasync.system,
    gen_async.system,
    pisces.system,
    fedat.system,
    hierarchical.system,
    async_hierarchical.system,
    langevin.system,
    em.system,
    fedem.system,
    vr_fedem.system,
)
SYSTEMS: Named[System] = Named("system", {system.name: system for system in _SYSTEMS})
"""The systems by name, in the order in which they are listed."""

# A type checker that saw `__getattr__` would accept every name, misspelt ones too.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Refuse a system that there is not, with the nearest."""
        raise UnknownAttributeError(f"module {__name__!r} has no attribute {name!r}", name, __all__)
