"""Clocks of groups of clients, each behind a local server (Ali and Arafa, arXiv 2302.04851).

- `groups`: the settings of groups (`Groups`), their members, delays and weights.
- `rounds`: the global server waits for all groups.
- `arrivals`: groups do not wait for each other, and the global server acts when its buffer of
  their reports is full (`GroupArrivals`).
"""

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

__all__ = [
    "ExchangeDelays",
    "GroupArrivals",
    "GroupClock",
    "Grouping",
    "Groups",
    "IterationDelays",
    "Members",
    "aggregation_weights",
    "complete_groups",
    "delay_sizes",
    "group_arrivals_within",
    "group_rounds_within",
    "list_members",
    "paper_delays",
    "schedule_group_arrivals",
    "schedule_group_rounds",
]
