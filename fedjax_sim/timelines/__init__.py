"""Schedules: when the server acts, whose work it receives, and from which of its models that work started."""

from fedjax_sim.timelines.arrivals import Arrivals, arrivals
from fedjax_sim.timelines.contacts import Contacts, contacts
from fedjax_sim.timelines.laws import RUNTIME_LAWS, Clients, client_rates, runtimes
from fedjax_sim.timelines.rounds import Rounds, rounds
from fedjax_sim.timelines.trace import Trace, read_trace

__all__ = [
    "RUNTIME_LAWS",
    "Arrivals",
    "Clients",
    "Contacts",
    "Rounds",
    "Trace",
    "arrivals",
    "client_rates",
    "contacts",
    "read_trace",
    "rounds",
    "runtimes",
]
