"""Live clocks: who takes part, for how long and when may follow from what was learnt.

- `frames`: gives any system a live clock (`with_clock`).
- `devices`: the laws of delay, availability, transfers and losses, one draw at a time.
- `rounds`: synchronous rounds whose clients are chosen as they begin (`LiveRounds`).
- `tasks`: a number of tasks in flight, of which the server waits for some (`LiveTasks`).
- `replayed`: a planned schedule, taken through the same steps as a live one.

The contract is in `fedjax_sim.clocks`: a clock makes what the server receives next (`Received`)
from its own state and that of learning, and notes what the tick has shown.
"""

from fedjax_sim.timelines.live.frames import with_clock
from fedjax_sim.types import Clock, Instant, Live, Received, Sizes

__all__ = ["Clock", "Instant", "Live", "Received", "Sizes", "with_clock"]
