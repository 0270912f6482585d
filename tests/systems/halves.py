"""The half of the systems that meets a costly contract by default.

A contract test marked `half("first")` runs for the first half of each kind of system below,
`half("second")` for the second half; for the others it is slow. Contracts that share fixtures have
the same half. Contracts without the mark are cheap and run for all systems.
"""

from typing import NamedTuple


class Halves(NamedTuple):
    """The systems of one kind, in two halves. The only system of a kind is in both."""

    first: tuple[str, ...]
    second: tuple[str, ...]


KINDS = {
    "synchronous": Halves(
        ("fedavg", "scaffold", "fednova", "mimelite"),
        ("fedprox", "fedavgm", "feddyn", "powerofchoice"),
    ),
    "personal": Halves(("ditto",), ("fedper",)),
    "periodic": Halves(("favano",), ("quafl",)),
    "buffered": Halves(("fedbuff", "gen_async"), ("fedasync", "fedstaleweight")),
    "hierarchical": Halves(("hierarchical",), ("async_hierarchical",)),
    "langevin": Halves(("langevin",), ("langevin",)),
    "expectation maximisation": Halves(("fedem", "em"), ("vr_fedem",)),
}


def systems_of(half: str) -> set[str]:
    """Return the names of the systems in the half "first" or "second"."""
    return {name for halves in KINDS.values() for name in halves._asdict()[half]}
