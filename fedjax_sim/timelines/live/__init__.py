"""Live clocks: participants, numbers of steps and times may follow from learning.

- `frames`: gives any system a live clock (`with_clock`), such as that of a planned schedule, taken
  through the same steps (`replayed`), or one that ends a lane once it has learnt enough (`until`).
- `rounds`: synchronous rounds whose clients are chosen as they begin (`live_rounds`), for any
  system of rounds (`Selection`).
- `tasks`: a number of tasks in flight, of which the server waits for some (`live_tasks`).

The contract is in `core.clocks`: a clock makes what the server receives next from its
own state and that of learning (`Received`), and notes what the tick has shown.
"""

from fedjax_sim.core.types import Clock as Clock
from fedjax_sim.core.types import Instant as Instant
from fedjax_sim.core.types import Live as Live
from fedjax_sim.core.types import Received as Received
from fedjax_sim.core.types import Sizes as Sizes
from fedjax_sim.timelines.delays.devices import Drawn as Drawn
from fedjax_sim.timelines.live.frames import replayed as replayed
from fedjax_sim.timelines.live.frames import until as until
from fedjax_sim.timelines.live.frames import with_clock as with_clock
from fedjax_sim.timelines.live.rounds import Asked as Asked
from fedjax_sim.timelines.live.rounds import Choosing as Choosing
from fedjax_sim.timelines.live.rounds import LiveCohorts as LiveCohorts
from fedjax_sim.timelines.live.rounds import Round as Round
from fedjax_sim.timelines.live.rounds import Selection as Selection
from fedjax_sim.timelines.live.rounds import Selector as Selector
from fedjax_sim.timelines.live.rounds import Shown as Shown
from fedjax_sim.timelines.live.rounds import live_rounds as live_rounds
from fedjax_sim.timelines.live.rounds import uniform_cohort as uniform_cohort
from fedjax_sim.timelines.live.tasks import Flights as Flights
from fedjax_sim.timelines.live.tasks import Replacing as Replacing
from fedjax_sim.timelines.live.tasks import Tasks as Tasks
from fedjax_sim.timelines.live.tasks import begin_work as begin_work
from fedjax_sim.timelines.live.tasks import live_tasks as live_tasks
from fedjax_sim.timelines.live.tasks import uniformly as uniformly
