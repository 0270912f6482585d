"""Which systems meet a costly contract by default: one of each kind.

A contract test marked `of_each_kind(number)` runs for one system of each kind below, and is slow
for the others: for the systems of that number in their lists, counted around. The dearest leave out
kinds too, `but=(...)`, whose code other contracts run. Contracts that share fixtures have the same
number. Contracts without the mark are cheap and run for all systems.
"""

from collections.abc import Container

KINDS = {
    "synchronous": (
        "fedavg",
        "scaffold",
        "feddyn",
        "fedprox",
        "fednova",
        "mimelite",
        "fedavgm",
        "qfedavg",
    ),
    "live": ("oort", "pisces", "fedat", "safa", "asyncfeded_adaptive"),
    "personal": ("ditto", "fedper", "apfl", "ifca"),
    "adapted": ("pfedme", "perfedavg"),
    "periodic": ("favano", "quafl"),
    "buffered": ("fedbuff", "fedasync", "fedstaleweight", "gen_async", "ca2fl", "asyncfeded"),
    "hierarchical": ("hierarchical", "async_hierarchical"),
    "langevin": ("langevin", "fedpa"),
    "expectation maximisation": ("fedem", "vr_fedem", "em", "async_fedem"),
    "compressed gradients": ("diana", "vr_diana"),
}


def systems_of(number: int, but: Container[str] = ()) -> set[str]:
    """Return the names of the systems that meet the contracts of this number."""
    return {names[number % len(names)] for kind, names in KINDS.items() if kind not in but}
