"""Live clocks: who takes part, for how long and when may follow from what was learnt.

- `frames`: gives any system a live clock (`with_clock`).
- `devices`: the laws of delay, availability, transfers and losses, one draw at a time.
- `rounds`: synchronous rounds whose clients are chosen as they begin (`live_rounds`).
- `tasks`: a number of tasks in flight, of which the server waits for some (`live_tasks`).
- `stopping`: ends a lane once it has learnt enough (`until`).
- `replay`: a planned schedule, taken through the same steps as a live one.

The contract is in `fedjax_sim.events.clocks`: a clock makes what the server receives next from its
own state and that of learning (`Received`), and notes what the tick has shown.
"""

from fedjax_sim.timelines.live.devices import Drawn
from fedjax_sim.timelines.live.frames import with_clock
from fedjax_sim.timelines.live.replay import replayed
from fedjax_sim.timelines.live.rounds import (
    Asked,
    Choosing,
    LiveCohorts,
    Round,
    Shown,
    live_rounds,
    uniform_cohort,
)
from fedjax_sim.timelines.live.stopping import until
from fedjax_sim.timelines.live.tasks import (
    Flights,
    Landed,
    Replacing,
    Tasks,
    begin_work,
    live_tasks,
    uniformly,
)
from fedjax_sim.types import Clock, Instant, Live, Received, Sizes

__all__ = [
    "Asked",
    "Choosing",
    "Clock",
    "Drawn",
    "Flights",
    "Instant",
    "Landed",
    "Live",
    "LiveCohorts",
    "Received",
    "Replacing",
    "Round",
    "Shown",
    "Sizes",
    "Tasks",
    "begin_work",
    "live_rounds",
    "live_tasks",
    "replayed",
    "uniform_cohort",
    "uniformly",
    "until",
    "with_clock",
]
