"""Schedules: when the server acts, whose work it receives, and from which of its models that work started."""

from fedjax_sim.timelines.arrivals import Arrivals, arrivals, arrivals_within
from fedjax_sim.timelines.contacts import Contacts, contacts
from fedjax_sim.timelines.group_rounds import group_rounds, group_rounds_within
from fedjax_sim.timelines.groups import Groups, Members, members, paper_delays
from fedjax_sim.timelines.laws import RUNTIME_LAWS, STEP_COUNT_LAWS, Clients, ClientTable, Speeds, client_rates, client_speeds, runtimes
from fedjax_sim.timelines.participants import Participants, participants
from fedjax_sim.timelines.rounds import Rounds, WeightedRounds, rounds, weighted_rounds
from fedjax_sim.timelines.trace import Trace, read_trace

__all__ = [
    "RUNTIME_LAWS",
    "STEP_COUNT_LAWS",
    "Arrivals",
    "ClientTable",
    "Clients",
    "Contacts",
    "Groups",
    "Members",
    "Participants",
    "Rounds",
    "Speeds",
    "Trace",
    "WeightedRounds",
    "arrivals",
    "arrivals_within",
    "client_rates",
    "client_speeds",
    "contacts",
    "group_rounds",
    "group_rounds_within",
    "members",
    "paper_delays",
    "participants",
    "read_trace",
    "rounds",
    "runtimes",
    "weighted_rounds",
]
