"""Check the arguments of public calls against the types that their signatures declare.

`calls` has the decorator `checked`, for the functions and constructors that users call,
`checked_all`, for all public functions of a module, and `unchecked`, by which one checked function
calls another. `kinds` has annotations that say more than
a type: ranges of numbers and shapes of arrays. Settings are declared with the same types. A
signature such as

    @checked
    def flip(labels: Annotated[Array, shape("n")], share: Probability, *, seed: Seed) -> Array:

is then all that a function needs: a call with `share=5` is refused with one sentence. Settings
structs among the arguments are checked too, see `fedjax_sim.core.settings.check`.

JAX rebuilds pytrees from leaves of any kind, so of those only static fields are checked when they
are made. This room loads neither JAX nor NumPy before a call is checked.
"""

from fedjax_sim.core.checking.calls import CHECK as CHECK
from fedjax_sim.core.checking.calls import checked as checked
from fedjax_sim.core.checking.calls import checked_all as checked_all
from fedjax_sim.core.checking.calls import hints_of as hints_of
from fedjax_sim.core.checking.calls import kind_of as kind_of
from fedjax_sim.core.checking.calls import unchecked as unchecked
from fedjax_sim.core.checking.kinds import Above0 as Above0
from fedjax_sim.core.checking.kinds import AtLeast0 as AtLeast0
from fedjax_sim.core.checking.kinds import AtLeast1 as AtLeast1
from fedjax_sim.core.checking.kinds import Count as Count
from fedjax_sim.core.checking.kinds import Finite as Finite
from fedjax_sim.core.checking.kinds import FloatType as FloatType
from fedjax_sim.core.checking.kinds import Fraction as Fraction
from fedjax_sim.core.checking.kinds import LaneSeed as LaneSeed
from fedjax_sim.core.checking.kinds import Limit as Limit
from fedjax_sim.core.checking.kinds import OneOf as OneOf
from fedjax_sim.core.checking.kinds import Portion as Portion
from fedjax_sim.core.checking.kinds import Probability as Probability
from fedjax_sim.core.checking.kinds import Seed as Seed
from fedjax_sim.core.checking.kinds import Shape as Shape
from fedjax_sim.core.checking.kinds import Share as Share
from fedjax_sim.core.checking.kinds import Whole as Whole
from fedjax_sim.core.checking.kinds import shape as shape
