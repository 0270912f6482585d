"""The systems, each of which reads like its paper's algorithm box.

A file defines a system's settings (`Hyper`), what it carries from tick to tick (`State`), its
`init` and `step` (`algorithm`), and the `system` that combines them with a timeline. Systems that
are another one with a part more, or share most of their step with it, are in its file: their
settings have the paper's name, such as `FedProx`, whose docstring is theirs, and the system has the
name in the list, such as `fedprox`. To write a new one, start from `fedbuff.py` (asynchronous) or
`fedavg.py` (synchronous). What systems of several files need lives in `fedjax_sim.clients`,
`fedjax_sim.server` or `fedjax_sim.timelines`.

`fedjax_sim.systems.NAME` has `Hyper`, `algorithm`, `paper` and `system` of each. A system is loaded
when it is first used, and all of them with `SYSTEMS`.
"""

from typing import Any

import lazy_loader

from fedjax_sim.core.settings import Named, UnknownAttributeError

_LISTED = (
    # Rounds on planned clocks, and on live ones; no rounds; groups; sampling; statistics;
    # compressed gradients.
    *("fedavg", "fedprox", "scaffold", "fednova"),
    *("fedopt", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "feddyn", "mimelite"),
    *("qfedavg", "ditto", "apfl", "pfedme", "perfedavg", "fedper", "fedbn", "ifca"),
    *("powerofchoice", "oort", "tifl", "fedcs", "adacomm", "safa"),
    *("quafl", "fedbuff", "ca2fl", "favano", "fedstaleweight", "fedasync", "asyncfeded"),
    *("asyncfeded_adaptive", "gen_async", "pisces", "fedat"),
    *("hierarchical", "async_hierarchical", "langevin", "fedpa"),
    *("em", "fedem", "vr_fedem", "async_fedem"),
    *("diana", "vr_diana"),
)
"""The systems, in the order in which they are listed."""

_load, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = ["SYSTEMS", *_names]


def __getattr__(name: str) -> Any:
    """Load a system, or all; refuse one that there is not, with the nearest."""
    if name in _names:
        return _load(name)
    if name != "SYSTEMS":
        sentence = f"module {__name__!r} has no attribute {name!r}"
        raise UnknownAttributeError(sentence, name, __all__)
    listed = (_load(each).system for each in _LISTED)
    return globals().setdefault(name, Named.of("system", *listed))


def __dir__() -> list[str]:
    """List the systems, loaded or not."""
    return sorted({*globals(), *__all__})
