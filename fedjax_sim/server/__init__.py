"""The server's use of reports.

`aggregation` averages models, `rules` and `attacks` are parts that `robustness` puts together,
`reports` decodes clients' messages and makes their sum private
(`report_settings` says how, `report_counts` counts their bits),
`steps` moves the server's model along their progress, `versions` keeps old server models for
clients that still work from them, `staleness` and `buffer` weight stale updates, `edges` are local
servers between clients and the global one, and `memories` and `approximation` belong to expectation
maximisation. What a single system needs is in its folder (`systems.fedopt`, `systems.langevin`).
All of it runs inside the compiled program, except for the weights, which depend on the schedule
alone and are part of the timeline.
"""

from fedjax_sim.server.aggregation import (
    expand,
    keep_if_empty,
    mean_of,
    scaled_progress,
    weighted_sum,
)
from fedjax_sim.server.approximation import Approximation, broadcast_bits, keep_random
from fedjax_sim.server.buffer import (
    WeightedArrivals,
    schedule_stale_arrivals,
    weigh_arrivals,
)
from fedjax_sim.server.edges import (
    EdgeMessages,
    EdgeTraining,
    EdgeWork,
    count_client_bits,
    edge_training,
    edge_wire,
    first_memo,
    iteration_examples,
    member_bits,
)
from fedjax_sim.server.memories import (
    Memories,
    Memory,
    exchange,
    first_memory,
    memory_messages,
)
from fedjax_sim.server.report_counts import count_downlink, report_messages
from fedjax_sim.server.report_settings import (
    ClientMessages,
    PrivateReports,
    Reports,
    ScheduledReports,
)
from fedjax_sim.server.reports import Memo, RoundState, Wire
from fedjax_sim.server.robustness import (
    COMBINED,
    Robust,
    check_edges,
    check_numbers,
    combination_of,
)
from fedjax_sim.server.staleness import StalenessWeights, staleness_weights
from fedjax_sim.server.steps import ServerStep
from fedjax_sim.server.versions import Versioned, first_version, next_version, stale_models

__all__ = [
    "COMBINED",
    "Approximation",
    "ClientMessages",
    "EdgeMessages",
    "EdgeTraining",
    "EdgeWork",
    "Memo",
    "Memories",
    "Memory",
    "PrivateReports",
    "Reports",
    "Robust",
    "RoundState",
    "ScheduledReports",
    "ServerStep",
    "StalenessWeights",
    "Versioned",
    "WeightedArrivals",
    "Wire",
    "broadcast_bits",
    "check_edges",
    "check_numbers",
    "combination_of",
    "count_client_bits",
    "count_downlink",
    "edge_training",
    "edge_wire",
    "exchange",
    "expand",
    "first_memo",
    "first_memory",
    "first_version",
    "iteration_examples",
    "keep_if_empty",
    "keep_random",
    "mean_of",
    "member_bits",
    "memory_messages",
    "next_version",
    "report_messages",
    "scaled_progress",
    "schedule_stale_arrivals",
    "stale_models",
    "staleness_weights",
    "weigh_arrivals",
    "weighted_sum",
]
