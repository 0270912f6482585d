"""Check the arguments of public calls against the types that their signatures declare.

`calls` has the decorator `checked`, for the functions and constructors that users call,
and `checked_all`, for all public functions of a module. The types here say more than `int` or
`float` do, by the conditions in `kinds`: ranges of numbers and shapes of arrays. Settings are
declared with the same types. A signature such as

    @checked
    def flip(labels: Annotated[Array, shape("n")], share: Probability, *, seed: Seed) -> Array:

is then all that a function needs: a call with `share=5` is refused with one sentence. Settings
structs among the arguments are checked too, see `fedjax_sim.core.settings.check`.

JAX rebuilds pytrees from leaves of any kind, so of those only static fields are checked when they
are made. This room loads neither JAX nor NumPy before a call is checked.
"""

from typing import Annotated

from fedjax_sim.core.checking.calls import CHECK as CHECK
from fedjax_sim.core.checking.calls import checked as checked
from fedjax_sim.core.checking.calls import checked_all as checked_all
from fedjax_sim.core.checking.calls import hints_of as hints_of
from fedjax_sim.core.checking.calls import kind_of as kind_of
from fedjax_sim.core.checking.calls import unchecked as unchecked
from fedjax_sim.core.checking.kinds import Limit as Limit
from fedjax_sim.core.checking.kinds import OneOf as OneOf
from fedjax_sim.core.checking.kinds import shape as shape

Count = Annotated[int, Limit(least=1)]
"""How many there are of something that must be there."""
Whole = Annotated[int, Limit(least=0)]
"""A whole number that may be 0."""
Seed = Annotated[int, Limit(least=0)]
"""A seed of random numbers."""
LaneSeed = Annotated[int, Limit(least=0, most=2**31 - 1)]
"""A seed of a run, which lanes hold in 32 bits."""
Above0 = Annotated[float, Limit(above=0)]
"""A finite number above 0, such as a time, a rate or a scale."""
AtLeast0 = Annotated[float, Limit(least=0)]
"""A finite number of at least 0, such as a standard deviation."""
AtLeast1 = Annotated[float, Limit(least=1)]
"""A finite number of at least 1, such as a factor that lengthens."""
Portion = Annotated[float, Limit(above=0, most=1)]
"""A number above 0 and of at most 1, such as the share that is kept."""
Probability = Annotated[float, Limit(least=0, most=1)]
"""A number from 0 to 1."""
Finite = Annotated[float, Limit()]
"""A number that is neither infinite nor nan."""
FloatType = Annotated[str, OneOf(("float16", "bfloat16", "float32", "float64"))]
"""The name of a type of real numbers."""
Share = Annotated[float, Limit(least=0, below=1)]
"""A share of a whole that may be nothing, but not all."""
Fraction = Annotated[float, Limit(above=0, below=1)]
"""A share of a whole that is neither nothing nor all."""
