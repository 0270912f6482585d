"""Schedules: when the server acts, whose work it receives, and from which of its models that work started."""

from fedjax_sim.timelines.arrivals import Arrivals, arrivals_within, schedule_arrivals
from fedjax_sim.timelines.coin_rounds import CoinRounds, schedule_coin_rounds
from fedjax_sim.timelines.contacts import Contacts, schedule_contacts
from fedjax_sim.timelines.group_rounds import group_rounds_within, schedule_group_rounds
from fedjax_sim.timelines.groups import Groups, Members, members, paper_delays
from fedjax_sim.timelines.laws import (
    RUNTIME_LAWS,
    STEP_COUNT_LAWS,
    ClientDelays,
    ClientTable,
    Speeds,
    client_rates,
    client_speeds,
    runtimes,
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
    "ClientTable",
    "ClientDelays",
    "Contacts",
    "Groups",
    "Members",
    "CoinRounds",
    "Rounds",
    "Speeds",
    "Trace",
    "WeightedRounds",
    "schedule_arrivals",
    "arrivals_within",
    "client_rates",
    "client_speeds",
    "schedule_contacts",
    "schedule_group_rounds",
    "group_rounds_within",
    "members",
    "paper_delays",
    "schedule_coin_rounds",
    "read_trace",
    "schedule_rounds",
    "runtimes",
    "schedule_weighted_rounds",
]
