"""FedProx (Li et al. 2020, arXiv 1812.06127), Algorithm 2.

    w^t -> `state.server`    S_t -> `event.clients`    mu -> `hyper.proximal`    eta -> `hyper.lr`

Client k minimises h_k(w) = F_k(w) + mu / 2 ||w - w^t||^2 inexactly, here by local steps, and the
server takes the mean. With mu = 0 this is FedAvg.

Deviation: Algorithm 2 draws clients with probability n_k / n and takes the plain mean, which is
`selection="by_examples"` with `with_replacement`. By default cohorts are uniform, so that systems
are compared on the same schedules.

Deviation: the paper's stragglers report what they have when a round's time is over, after fewer
than E epochs. Here a client that misses the `deadline` is left out, because a slot's work is whole
or empty in all synchronous systems; steps differ between clients under `local_epochs` only.

Readings. The local optimizer of the paper is SGD; the state of another one may be kept.
"""

from functools import partial

from fedjax_sim.checking import AtLeast0
from fedjax_sim.clients import LastingTraining, first_optimizers, lasting_training, local_training
from fedjax_sim.server import PrivateReports, RoundState, Wire, report_messages
from fedjax_sim.settings import setting, struct
from fedjax_sim.timelines import CohortRounds, cohort_system
from fedjax_sim.types import Algorithm, Event, Key, Plan, Problem, Work


@struct
class Hyper(CohortRounds, LastingTraining, PrivateReports):
    """Settings of FedProx: its rounds, local training, messages, and the proximal term."""

    proximal: AtLeast0 = setting(0.01, "Strength of the pull to where local training started, mu.")


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[RoundState, Work]:
    """Bind FedProx to a problem. Clients' optimizers may last, and are kept for every client."""
    train = lasting_training(problem, hyper, plan, proximal=hyper.proximal)
    own = partial(local_training, proximal=hyper.proximal)
    wire = Wire(problem, hyper, plan, train=own)

    def init(key: Key) -> RoundState:
        server = problem.init(key)
        optimizers = first_optimizers(problem, hyper, server)
        return RoundState(server, clients=optimizers, memo=wire.first(server))

    def step(key: Key, state: RoundState, event: Event) -> tuple[RoundState, Work]:
        start = wire.received(state)  # w^t
        total = wire.total(event)
        # The w_k^{t+1}, or a weighted sum where that is enough.
        local, optimizers, work = train(key, event, state.clients, start=start, total=total)
        server, memo = wire.average(key, event, state, local, total=total)
        return RoundState(server, clients=optimizers, memo=memo), work

    return wire.algorithm(init, step)


system = cohort_system(
    "fedprox",
    Hyper,
    algorithm,
    "federated averaging with a pull of local models to the server's",
    messages=report_messages(),
)
paper = system.paper
