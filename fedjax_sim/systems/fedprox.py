"""FedProx (Li et al. 2020, arXiv 1812.06127), Algorithm 2.

    w^t -> `state.server`    S_t -> `event.clients`    mu -> `hyper.proximal`    eta -> `hyper.lr`

Client k minimises h_k(w) = F_k(w) + mu / 2 ||w - w^t||^2 inexactly, here by local steps, and the
server takes the mean. With mu = 0 this is FedAvg; the step is that of `fedavg`.

Deviation: Algorithm 2 draws clients with probability n_k / n and takes the plain mean, which is
`selection="by_examples"` with `with_replacement`. By default cohorts are uniform, so that systems
are compared on the same schedules.

Deviation: the paper's stragglers report what they have when a round's time is over, after fewer
than E epochs. Here a client that misses the `deadline` is left out, because a slot's work is whole
or empty in all synchronous systems; steps differ between clients under `local_epochs` only.

Readings. The local optimizer of the paper is SGD; the state of another one may be kept.
"""

from fedjax_sim.clients import LastingTraining
from fedjax_sim.core.settings import redefault, struct
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import cohort_system


@struct
class Hyper(fedavg.Hyper):
    """Settings of FedProx: its rounds, local training, messages, and the proximal term."""

    proximal: float = redefault(LastingTraining, "proximal", 0.01)


SUMMARY = "federated averaging with a pull of local models to the server's"
system = cohort_system("fedprox", Hyper, fedavg.algorithm, SUMMARY)
paper = system.paper
