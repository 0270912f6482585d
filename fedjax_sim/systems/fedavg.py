"""FedAvg (McMahan et al. 2017, arXiv 1602.05629, Algorithm 1), in rounds with a clock.

    w_t -> `state.server`    S_t -> `event.clients`    K -> `hyper.local_steps`    eta -> `hyper.lr`
    E -> `hyper.local_epochs`    n_k / sum n_k over S_t -> `event.weight`

By default everyone has the same weight and does K local steps, as in FAVANO's paper, whose values
`paper` has. The original has `weighting="examples"` and `local_epochs`. Other ways to sample
clients, over-selection with a deadline, and drop-outs are settings of `timelines.CohortRounds`.

Deviation: Algorithm 1 cuts every epoch into batches of B, the last of which may be shorter, and so
takes E ceil(n_k / B) steps. Here batches run on from one epoch into the next, ceil(E n_k / B) full
ones, because arrays have one size: every example still counts E times, up to the last batch.

Readings (FAVANO, arXiv 2305.16099, App. C.2). The server waits for the slowest client of its
cohort, but the text leaves open how long that takes. By default the K running times of a client
are summed, as in QuAFL's public simulator; `round_time` offers the other two readings. None of
these papers compresses messages here, or makes them private; `fedjax_sim.server.reports` says what
these options do.
"""

from fedjax_sim.clients import LastingTraining, first_optimizers, lasting_training, local_training
from fedjax_sim.core.settings import struct
from fedjax_sim.core.types import Algorithm, Event, Key, Plan, Problem, Work
from fedjax_sim.server import PrivateReports, RoundState, Wire
from fedjax_sim.timelines import CohortRounds, cohort_system


@struct
class Hyper(CohortRounds, LastingTraining, PrivateReports):
    """Settings of FedAvg: its rounds, local training, compression and privacy of messages."""


def algorithm(problem: Problem, hyper: LastingTraining, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind FedAvg to a problem. Clients' optimizers may last, and are kept for every client.

    Args:
      problem: Data and loss.
      hyper: Settings, or those of a system that is FedAvg on another clock.
      plan: How the machine is used.
    """
    train = lasting_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, train=local_training)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        optimizers = first_optimizers(problem, hyper, server)
        return RoundState(server, clients=optimizers, memo=wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)  # w_t, as far as clients know it
        total = wire.total(event)  # local is a sum then, where that is enough
        local, optimizers, work = train(key, event, state.clients, start=start, total=total)
        server, memo = wire.average(key, event, state, local, total=total)
        return RoundState(server, clients=optimizers, memo=memo), work

    return wire.algorithm(init, step)


SUMMARY = "synchronous federated averaging: the server waits for the slowest client of its cohort"
system = cohort_system("fedavg", Hyper, algorithm, SUMMARY)
paper = system.paper
