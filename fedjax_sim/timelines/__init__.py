"""Schedules: when the server acts, whose work it receives, and from which model that work started.

A schedule is drawn from a random key and settings, before any learning. Each kind has a settings
struct and a function that draws its `fedjax_sim.types.Timeline`:

- `rounds`: synchronous rounds (`Rounds`, `WeightedRounds`).
- `cohort_rounds`: the same with weights, epochs, over-selection and drop-outs (`CohortRounds`).
- `coin_rounds`: synchronous rounds with Bernoulli participation (`CoinRounds`).
- `contacts`: a server that interrupts clients periodically (`Contacts`).
- `arrivals`: a server that acts when its buffer is full (`Arrivals`), with the search for arrivals
  of clients that never wait in `free_arrivals`, the queue of clients that wait in `queue`, and
  tasks of which a fixed number is at work in `tasks`.
- `client_queues`: clients with queues, to whom the server sends tasks at random (`ClientQueues`).
- `groups` and `group_rounds`: groups of clients behind local servers (`Groups`), in rounds of all
  groups; `group_arrivals`: groups that do not wait for each other (`GroupArrivals`).

The clients' delays are in `laws` (`ClientDelays`), single clients in `client_table`
(`ClientTable`), recorded work in `trace`. `devices` turns work, messages and windows of
availability into times. Draws of participants are in `cohorts`, closed forms of FAVANO's step
counts in `step_counts`.
"""

from fedjax_sim.timelines.arrivals import Arrivals, arrivals_within, schedule_arrivals
from fedjax_sim.timelines.client_queues import (
    ClientQueues,
    client_queues_within,
    routing_shares,
    schedule_client_queues,
)
from fedjax_sim.timelines.client_table import ClientTable, read_client_table
from fedjax_sim.timelines.cohort_rounds import (
    CohortRounds,
    cohort_system,
    rounds_within,
    schedule_cohort_rounds,
)
from fedjax_sim.timelines.coin_rounds import CoinRounds, schedule_coin_rounds
from fedjax_sim.timelines.contacts import Contacts, schedule_contacts
from fedjax_sim.timelines.devices import draw_losses, loss_shares
from fedjax_sim.timelines.group_arrivals import (
    GroupArrivals,
    group_arrivals_within,
    schedule_group_arrivals,
)
from fedjax_sim.timelines.group_rounds import (
    aggregation_weights,
    group_rounds_within,
    schedule_group_rounds,
)
from fedjax_sim.timelines.groups import (
    Groups,
    Members,
    complete_groups,
    delay_sizes,
    list_members,
    paper_delays,
)
from fedjax_sim.timelines.laws import (
    RUNTIME_LAWS,
    STEP_COUNT_LAWS,
    ClientDelays,
    Speeds,
    draw_client_rates,
    draw_client_speeds,
    draw_runtimes,
)
from fedjax_sim.timelines.rounds import (
    Rounds,
    WeightedRounds,
    schedule_rounds,
    schedule_weighted_rounds,
)
from fedjax_sim.timelines.trace import Trace, read_trace

__all__ = [
    "RUNTIME_LAWS",
    "STEP_COUNT_LAWS",
    "Arrivals",
    "ClientDelays",
    "ClientQueues",
    "ClientTable",
    "CohortRounds",
    "CoinRounds",
    "Contacts",
    "GroupArrivals",
    "Groups",
    "Members",
    "Rounds",
    "Speeds",
    "Trace",
    "WeightedRounds",
    "aggregation_weights",
    "arrivals_within",
    "client_queues_within",
    "cohort_system",
    "complete_groups",
    "delay_sizes",
    "draw_client_rates",
    "draw_client_speeds",
    "draw_losses",
    "draw_runtimes",
    "group_arrivals_within",
    "group_rounds_within",
    "list_members",
    "loss_shares",
    "paper_delays",
    "read_client_table",
    "read_trace",
    "rounds_within",
    "routing_shares",
    "schedule_arrivals",
    "schedule_client_queues",
    "schedule_cohort_rounds",
    "schedule_coin_rounds",
    "schedule_contacts",
    "schedule_group_arrivals",
    "schedule_group_rounds",
    "schedule_rounds",
    "schedule_weighted_rounds",
]
