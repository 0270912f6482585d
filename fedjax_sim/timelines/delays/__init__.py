"""How long clients' work takes, and when clients can work at all.

- `laws`: the settings of the clients (`Clients`) and of their delays (`ClientDelays`), their
  speeds, and the laws of running times.
- `client_table`: single clients, with their own speeds, bandwidths, losses and hours
  (`ClientTable`).
- `trace`: recorded work, which replaces the laws (`Trace`).
- `devices`: turns work, messages and hours of availability into times, and draws which updates are
  lost. All clocks of clients ask there.
"""

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

__all__ = [
    "RUNTIME_LAWS",
    "STEP_COUNT_LAWS",
    "ClientDelays",
    "ClientTable",
    "Clients",
    "Speeds",
    "Trace",
    "draw_client_rates",
    "draw_client_speeds",
    "draw_losses",
    "draw_runtimes",
    "loss_shares",
    "read_client_table",
    "read_trace",
]
