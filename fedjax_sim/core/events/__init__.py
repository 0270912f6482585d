"""The events of ticks, as algorithms receive them.

- `event`: the event of one tick, and the facts of it that are known before tracing.
- `clocks`: the contract of live clocks, which make events from what was learnt.
"""

from fedjax_sim.core.events.event import DRAWN as DRAWN
from fedjax_sim.core.events.event import EMPTY as EMPTY
from fedjax_sim.core.events.event import HAPPENED as HAPPENED
from fedjax_sim.core.events.event import Event as Event
from fedjax_sim.core.events.event import Facts as Facts
from fedjax_sim.core.events.event import Leaf as Leaf
from fedjax_sim.core.events.event import PackedRows as PackedRows
from fedjax_sim.core.events.event import Trace as Trace
from fedjax_sim.core.events.event import check_fixed as check_fixed
