"""What happens at a tick, as algorithms receive it.

- `event`: the event of one tick, and the facts of it that are known before tracing.
- `clocks`: the contract of live clocks, which make events from what was learnt.
"""

from fedjax_sim.events.event import (
    DRAWN,
    EMPTY,
    HAPPENED,
    Event,
    Facts,
    Leaf,
    PackedRows,
    check_fixed,
    fixing_loops,
    next_trace,
    noting_changes,
)

__all__ = [
    "DRAWN",
    "EMPTY",
    "HAPPENED",
    "Event",
    "Facts",
    "Leaf",
    "PackedRows",
    "check_fixed",
    "fixing_loops",
    "next_trace",
    "noting_changes",
]
