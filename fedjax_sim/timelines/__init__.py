"""Schedules: when the server acts, whose work it receives, and from which model that work started.

A schedule is drawn from a random key and settings, before any learning. The rule that decides it is
a clock: a settings struct, and a function that draws its `fedjax_sim.types.Timeline`. The clocks,
by what the server waits for:

- `rounds`: for the clients that it selected (`CohortRounds`, `WeightedRounds`, `CoinRounds`).
- `contacts`: for nobody; it interrupts clients periodically (`Contacts`).
- `arrivals`: for finished work, until its buffer is full (`Arrivals`) or for each task
  (`ClientQueues`).
- `grouped`: for groups of clients behind local servers, all of them (`Groups`) or some
  (`GroupArrivals`).

Where who takes part, and when, follows from what is learnt, the clock is a state instead: `live`.

What clocks are made of:

- `delays`: how long work and messages take, when clients are available and what is lost: laws
  (`ClientDelays`), single clients (`ClientTable`), recorded work (`Trace`).
- `presets`: values of papers for these, and for training, in place of the defaults.
- `cohorts`: draws of the clients that take part, and how often they took part before.

The four kinds of clocks do not import each other. To write a clock, start from `contacts.py`.
"""

from fedjax_sim.timelines.arrivals.buffered import (
    ArrivalClock,
    Arrivals,
    arrivals_within,
    schedule_arrivals,
)
from fedjax_sim.timelines.arrivals.client_queues import (
    ClientQueues,
    client_queues_within,
    routing_shares,
    schedule_client_queues,
)
from fedjax_sim.timelines.contacts import ContactClock, Contacts, schedule_contacts
from fedjax_sim.timelines.delays.client_table import ClientTable, read_client_table
from fedjax_sim.timelines.delays.devices import draw_losses, loss_shares
from fedjax_sim.timelines.delays.laws import (
    RUNTIME_LAWS,
    STEP_COUNT_LAWS,
    ClientDelays,
    Clients,
    Speeds,
    draw_client_rates,
    draw_client_speeds,
    draw_runtimes,
)
from fedjax_sim.timelines.delays.trace import Trace, read_trace
from fedjax_sim.timelines.grouped.arrivals import (
    GroupArrivals,
    group_arrivals_within,
    schedule_group_arrivals,
)
from fedjax_sim.timelines.grouped.groups import (
    ExchangeDelays,
    GroupClock,
    Grouping,
    Groups,
    IterationDelays,
    Members,
    complete_groups,
    delay_sizes,
    list_members,
    paper_delays,
)
from fedjax_sim.timelines.grouped.rounds import (
    aggregation_weights,
    group_rounds_within,
    schedule_group_rounds,
)
from fedjax_sim.timelines.rounds.coins import CoinRounds, schedule_coin_rounds
from fedjax_sim.timelines.rounds.sampled import (
    Cohort,
    CohortRounds,
    cohort_system,
    schedule_cohort_rounds,
)
from fedjax_sim.timelines.rounds.synchronous import CohortClock, rounds_within
from fedjax_sim.timelines.rounds.weighted import WeightedRounds, schedule_weighted_rounds

__all__ = [
    "RUNTIME_LAWS",
    "STEP_COUNT_LAWS",
    "ArrivalClock",
    "Arrivals",
    "ClientDelays",
    "ClientQueues",
    "ClientTable",
    "Clients",
    "Cohort",
    "CohortClock",
    "CohortRounds",
    "CoinRounds",
    "ContactClock",
    "Contacts",
    "ExchangeDelays",
    "GroupArrivals",
    "GroupClock",
    "Grouping",
    "Groups",
    "IterationDelays",
    "Members",
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
    "schedule_weighted_rounds",
]
