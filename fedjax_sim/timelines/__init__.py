"""Schedules: when the server acts, and by which clients and from which models the work is.

A schedule is drawn from a random key and settings, before any learning. The rule that decides it is
a clock: a settings struct, and a function that draws its `core.types.Timeline`. The clocks,
by what the server waits for:

- `rounds`: for the clients that it selected (`CohortRounds`, `WeightedRounds`, `CoinRounds`).
- `contacts`: for no client; it interrupts clients periodically (`Contacts`).
- `arrivals`: for finished work, until its buffer is full (`Arrivals`) or for each task
  (`ClientQueues`).
- `grouped`: for groups of clients behind local servers, all of them (`Groups`) or some
  (`GroupArrivals`).

If learning decides who takes part, or when, the clock is a state that goes along: `live`.

What clocks are made of:

- `delays`: how long work and messages take, when clients are available and what is lost: laws
  (`ClientDelays`), single clients (`ClientTable`), recorded work (`Trace`).
- `calibration`: clients and a delay law (`calibrate`) from a log of a cluster.
- `presets`: values of papers for these, and for training, in place of the defaults.
- `cohorts`: draws of the clients that take part, and how often they took part before.

The four kinds of clocks do not import each other. To write a clock, start from `contacts.py`.
"""

from fedjax_sim.timelines.arrivals.clocks import ArrivalClock as ArrivalClock
from fedjax_sim.timelines.arrivals.clocks import Arrivals as Arrivals
from fedjax_sim.timelines.arrivals.clocks import ClientQueues as ClientQueues
from fedjax_sim.timelines.arrivals.clocks import arrivals_within as arrivals_within
from fedjax_sim.timelines.arrivals.clocks import client_queues_within as client_queues_within
from fedjax_sim.timelines.arrivals.clocks import routing_shares as routing_shares
from fedjax_sim.timelines.arrivals.clocks import schedule_arrivals as schedule_arrivals
from fedjax_sim.timelines.arrivals.clocks import schedule_client_queues as schedule_client_queues
from fedjax_sim.timelines.calibration import Calibration as Calibration
from fedjax_sim.timelines.calibration import calibrate as calibrate
from fedjax_sim.timelines.calibration import read_log as read_log
from fedjax_sim.timelines.contacts import ContactClock as ContactClock
from fedjax_sim.timelines.contacts import Contacts as Contacts
from fedjax_sim.timelines.contacts import schedule_contacts as schedule_contacts
from fedjax_sim.timelines.delays.client_table import ClientTable as ClientTable
from fedjax_sim.timelines.delays.client_table import Trace as Trace
from fedjax_sim.timelines.delays.client_table import read_client_table as read_client_table
from fedjax_sim.timelines.delays.client_table import read_trace as read_trace
from fedjax_sim.timelines.delays.devices import draw_losses as draw_losses
from fedjax_sim.timelines.delays.devices import loss_shares as loss_shares
from fedjax_sim.timelines.delays.laws import LAWS as LAWS
from fedjax_sim.timelines.delays.laws import STEP_COUNT_LAWS as STEP_COUNT_LAWS
from fedjax_sim.timelines.delays.laws import ClientDelays as ClientDelays
from fedjax_sim.timelines.delays.laws import Clients as Clients
from fedjax_sim.timelines.delays.laws import Law as Law
from fedjax_sim.timelines.delays.laws import Speeds as Speeds
from fedjax_sim.timelines.delays.laws import draw_client_rates as draw_client_rates
from fedjax_sim.timelines.delays.laws import draw_client_speeds as draw_client_speeds
from fedjax_sim.timelines.delays.laws import draw_runtimes as draw_runtimes
from fedjax_sim.timelines.grouped import ExchangeDelays as ExchangeDelays
from fedjax_sim.timelines.grouped import GroupArrivals as GroupArrivals
from fedjax_sim.timelines.grouped import GroupClock as GroupClock
from fedjax_sim.timelines.grouped import Grouping as Grouping
from fedjax_sim.timelines.grouped import Groups as Groups
from fedjax_sim.timelines.grouped import IterationDelays as IterationDelays
from fedjax_sim.timelines.grouped import aggregation_weights as aggregation_weights
from fedjax_sim.timelines.grouped import complete_groups as complete_groups
from fedjax_sim.timelines.grouped import delay_sizes as delay_sizes
from fedjax_sim.timelines.grouped import group_arrivals_within as group_arrivals_within
from fedjax_sim.timelines.grouped import group_rounds_within as group_rounds_within
from fedjax_sim.timelines.grouped import list_members as list_members
from fedjax_sim.timelines.grouped import schedule_group_arrivals as schedule_group_arrivals
from fedjax_sim.timelines.grouped import schedule_group_rounds as schedule_group_rounds
from fedjax_sim.timelines.rounds import Cohort as Cohort
from fedjax_sim.timelines.rounds import CohortClock as CohortClock
from fedjax_sim.timelines.rounds import CohortRounds as CohortRounds
from fedjax_sim.timelines.rounds import CoinRounds as CoinRounds
from fedjax_sim.timelines.rounds import WeightedRounds as WeightedRounds
from fedjax_sim.timelines.rounds import cohort_system as cohort_system
from fedjax_sim.timelines.rounds import rounds_within as rounds_within
from fedjax_sim.timelines.rounds import schedule_cohort_rounds as schedule_cohort_rounds
from fedjax_sim.timelines.rounds import schedule_coin_rounds as schedule_coin_rounds
from fedjax_sim.timelines.rounds import schedule_weighted_rounds as schedule_weighted_rounds
