"""The systems, one algorithm per file. Each file reads like its paper's algorithm box.

A file defines its settings (`Hyper`), what it carries from tick to tick (`State`), the algorithm's
`init` and `step`, and the `system` that combines them with a timeline. To write a new one, start
from `fedbuff.py` (asynchronous) or `fedavg.py` (synchronous). A system with parts that no other one
needs is a folder, with the algorithm in the file of its name: `favano`, `langevin`.
Systems do not import each other: what two of them need lives in `fedjax_sim.clients`,
`fedjax_sim.server`, `server.compression` or `fedjax_sim.timelines`. Only a system that is the
algorithm of another one with a clock or a setting more, such as `oort`, `fedprox` or `fedbn`,
imports that.

A system is loaded when it is first used, and all of them with `SYSTEMS`.
"""

import importlib
from typing import TYPE_CHECKING

from fedjax_sim.core.settings import Named, UnknownAttributeError

if TYPE_CHECKING:
    from fedjax_sim.core.types import System
    from fedjax_sim.systems import adacomm as adacomm
    from fedjax_sim.systems import apfl as apfl
    from fedjax_sim.systems import async_hierarchical as async_hierarchical
    from fedjax_sim.systems import asyncfeded as asyncfeded
    from fedjax_sim.systems import ca2fl as ca2fl
    from fedjax_sim.systems import ditto as ditto
    from fedjax_sim.systems import em as em
    from fedjax_sim.systems import favano as favano
    from fedjax_sim.systems import fedasync as fedasync
    from fedjax_sim.systems import fedat as fedat
    from fedjax_sim.systems import fedavg as fedavg
    from fedjax_sim.systems import fedbn as fedbn
    from fedjax_sim.systems import fedbuff as fedbuff
    from fedjax_sim.systems import fedcs as fedcs
    from fedjax_sim.systems import feddyn as feddyn
    from fedjax_sim.systems import fedem as fedem
    from fedjax_sim.systems import fednova as fednova
    from fedjax_sim.systems import fedopt as fedopt
    from fedjax_sim.systems import fedper as fedper
    from fedjax_sim.systems import fedprox as fedprox
    from fedjax_sim.systems import fedstaleweight as fedstaleweight
    from fedjax_sim.systems import gen_async as gen_async
    from fedjax_sim.systems import hierarchical as hierarchical
    from fedjax_sim.systems import ifca as ifca
    from fedjax_sim.systems import langevin as langevin
    from fedjax_sim.systems import mimelite as mimelite
    from fedjax_sim.systems import oort as oort
    from fedjax_sim.systems import perfedavg as perfedavg
    from fedjax_sim.systems import pfedme as pfedme
    from fedjax_sim.systems import pisces as pisces
    from fedjax_sim.systems import powerofchoice as powerofchoice
    from fedjax_sim.systems import qfedavg as qfedavg
    from fedjax_sim.systems import quafl as quafl
    from fedjax_sim.systems import safa as safa
    from fedjax_sim.systems import scaffold as scaffold
    from fedjax_sim.systems import tifl as tifl
    from fedjax_sim.systems import vr_fedem as vr_fedem

    SYSTEMS: Named[System]
    """The systems by name, in the order in which they are listed."""


_LISTED = (
    # Rounds on planned clocks, and on live ones; no rounds; groups; sampling; statistics.
    *("fedavg", "fedprox", "scaffold", "fednova", "fedopt", "feddyn", "mimelite"),
    *("qfedavg", "ditto", "apfl", "pfedme", "perfedavg", "fedper", "fedbn", "ifca"),
    *("powerofchoice", "oort", "tifl", "fedcs", "adacomm", "safa"),
    *("quafl", "fedbuff", "ca2fl", "favano", "fedstaleweight", "fedasync", "asyncfeded"),
    *("gen_async", "pisces", "fedat"),
    *("hierarchical", "async_hierarchical", "langevin", "em", "fedem", "vr_fedem"),
)
"""The modules, in the order in which their systems are listed."""

__all__ = ["SYSTEMS", *sorted(_LISTED)]

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
