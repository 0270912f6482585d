"""The systems, one algorithm per file. Each file reads like its paper's algorithm box.

A file defines its settings (`Hyper`), what it carries from tick to tick (`State`), the algorithm's
`init` and `step`, and the `system` that combines them with a timeline. To write a new one, start
from `fedbuff.py` (asynchronous) or `fedavg.py` (synchronous). A system with parts that no other one
needs is a folder, with the algorithm in the file of its name: `favano`, `langevin`.
Systems do not import each other: what two of them need lives in `fedjax_sim.clients`,
`fedjax_sim.server`, `fedjax_sim.compression` or `fedjax_sim.timelines`. Only a system that is the
algorithm of another one on a live clock, such as `oort`, imports that.

A system is loaded when it is first used, and all of them with `SYSTEMS`.
"""

import importlib
from typing import TYPE_CHECKING

from fedjax_sim.settings import Named, UnknownAttributeError

if TYPE_CHECKING:
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

    SYSTEMS: Named[System]
    """The systems by name, in the order in which they are listed."""

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

_LISTED = (
    "fedavg",
    "fedprox",
    "scaffold",
    "fednova",
    "fedopt",
    "feddyn",
    "mimelite",
    "ditto",
    "fedper",
    "powerofchoice",
    "oort",
    "tifl",
    "fedcs",
    "adacomm",
    "safa",
    "quafl",
    "fedbuff",
    "favano",
    "fedstaleweight",
    "fedasync",
    "gen_async",
    "pisces",
    "fedat",
    "hierarchical",
    "async_hierarchical",
    "langevin",
    "em",
    "fedem",
    "vr_fedem",
)
"""The modules, in the order in which their systems are listed."""

# A type checker that saw `__getattr__` would accept every name, misspelt ones too.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Load a system, or all; refuse one that there is not, with the nearest."""
        if name in _LISTED:
            return importlib.import_module(f"{__name__}.{name}")
        if name != "SYSTEMS":
            sentence = f"module {__name__!r} has no attribute {name!r}"
            raise UnknownAttributeError(sentence, name, __all__)
        modules = [importlib.import_module(f"{__name__}.{each}") for each in _LISTED]
        listed = [s for each in modules for s in getattr(each, "systems", None) or [each.system]]
        return globals().setdefault(name, Named.of("system", *listed))

    def __dir__():
        """List the systems, loaded or not."""
        return sorted({*globals(), *__all__})
