"""Check the arguments of public calls against the types that their signatures declare.

`calls` has the decorator `checked`, which every public function and constructor carries, and
`unchecked`, by which one checked function calls another. `kinds` has annotations
that say more than a type: ranges of numbers and shapes of arrays.
A signature such as

    @checked
    def flip(labels: Annotated[Array, shape("n")], share: Probability, *, seed: Seed) -> Array:

is then all that a function needs: a call with `share=5` is refused with one sentence. Settings
structs among the arguments are checked too, see `fedjax_sim.settings.check`.

JAX rebuilds pytrees from leaves of any kind, so of those only static fields are checked when they
are made. This room loads neither JAX nor NumPy before a call is checked.
"""

from fedjax_sim.checking.calls import checked, unchecked
from fedjax_sim.checking.kinds import (
    Above0,
    AtLeast0,
    Count,
    Finite,
    FloatType,
    Fraction,
    LaneSeed,
    Limit,
    OneOf,
    Probability,
    Seed,
    Shape,
    Share,
    Whole,
    shape,
)

__all__ = [
    "Above0",
    "AtLeast0",
    "Count",
    "Finite",
    "FloatType",
    "Fraction",
    "LaneSeed",
    "Limit",
    "OneOf",
    "Probability",
    "Seed",
    "Shape",
    "Share",
    "Whole",
    "checked",
    "shape",
    "unchecked",
]
