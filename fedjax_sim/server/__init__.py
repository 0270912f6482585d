"""The server's use of reports.

`aggregation` averages models and moves the server's model along clients' progress, `rules` and
`attacks` are parts with settings, `stages` is what happens to a message in which order, `reports`
binds the stages (`report_settings` says how, and counts their bits) and keeps old server models for
clients that still work from them, `staleness` weights stale updates, `edges` are local servers
between clients and the global one, and `memories` belong to expectation maximisation.
What a single system needs is in its file (`systems.fedavg`, `systems.langevin`). All of it runs
inside the compiled program, except for the weights, which depend on the schedule alone and are part
of the timeline.
"""

from fedjax_sim.server.aggregation import ServerMomentum as ServerMomentum
from fedjax_sim.server.aggregation import ServerRate as ServerRate
from fedjax_sim.server.aggregation import ServerStep as ServerStep
from fedjax_sim.server.aggregation import expand as expand
from fedjax_sim.server.aggregation import keep_if_empty as keep_if_empty
from fedjax_sim.server.aggregation import mean_of as mean_of
from fedjax_sim.server.aggregation import scaled_progress as scaled_progress
from fedjax_sim.server.aggregation import weighted_sum as weighted_sum
from fedjax_sim.server.edges import EdgeMessages as EdgeMessages
from fedjax_sim.server.edges import EdgeTraining as EdgeTraining
from fedjax_sim.server.edges import EdgeWire as EdgeWire
from fedjax_sim.server.edges import EdgeWork as EdgeWork
from fedjax_sim.server.edges import edge_training as edge_training
from fedjax_sim.server.edges import iteration_examples as iteration_examples
from fedjax_sim.server.memories import Approximation as Approximation
from fedjax_sim.server.memories import Memories as Memories
from fedjax_sim.server.memories import Memory as Memory
from fedjax_sim.server.memories import broadcast_bits as broadcast_bits
from fedjax_sim.server.memories import exchange as exchange
from fedjax_sim.server.memories import first_memory as first_memory
from fedjax_sim.server.memories import keep_random as keep_random
from fedjax_sim.server.memories import memory_messages as memory_messages
from fedjax_sim.server.report_settings import ClientMessages as ClientMessages
from fedjax_sim.server.report_settings import PrivateReports as PrivateReports
from fedjax_sim.server.report_settings import ReportMessages as ReportMessages
from fedjax_sim.server.report_settings import Reports as Reports
from fedjax_sim.server.report_settings import Robust as Robust
from fedjax_sim.server.report_settings import ScheduledReports as ScheduledReports
from fedjax_sim.server.report_settings import count_downlink as count_downlink
from fedjax_sim.server.reports import Memo as Memo
from fedjax_sim.server.reports import Rounds as Rounds
from fedjax_sim.server.reports import RoundState as RoundState
from fedjax_sim.server.reports import Versioned as Versioned
from fedjax_sim.server.reports import Wire as Wire
from fedjax_sim.server.reports import first_version as first_version
from fedjax_sim.server.reports import next_version as next_version
from fedjax_sim.server.reports import stale_models as stale_models
from fedjax_sim.server.stages import COMBINED as COMBINED
from fedjax_sim.server.staleness import StalenessWeights as StalenessWeights
from fedjax_sim.server.staleness import WeightedArrivals as WeightedArrivals
from fedjax_sim.server.staleness import schedule_stale_arrivals as schedule_stale_arrivals
from fedjax_sim.server.staleness import staleness_weights as staleness_weights
from fedjax_sim.server.staleness import weigh_arrivals as weigh_arrivals
