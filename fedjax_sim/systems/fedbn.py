"""FedBN (Li et al. 2021, arXiv 2102.07623), Algorithm 1: local batch normalisation.

    w_t -> the shared leaves of `state.server`    w_{k, BN} -> `state.clients`
    E -> `hyper.local_steps`    eta -> `hyper.lr`

Every client keeps the parameters and the running statistics of its normalisation layers, and the
server averages all other leaves. It is FedPer with other personal leaves: those of layers whose
name has "norm", such as BatchNorm_0, or begins with "bn".

Deviation: in Algorithm 1 all clients take part in every round, which is `num_selected` equal to
`num_clients`.
"""

from collections.abc import Callable

from fedjax_sim.core.settings import redefault, struct
from fedjax_sim.server import ReportMessages
from fedjax_sim.systems import fedper
from fedjax_sim.timelines import cohort_system

NORMS = r"(?i)norm|(^|/)bn"
"""Paths of the leaves of normalisation layers, their running statistics included."""


@struct
class Hyper(fedper.Hyper):
    """Settings of FedBN: those of FedPer, with normalisation layers as personal leaves."""

    personal: str | Callable[[str], bool] = redefault(fedper.Hyper, "personal", NORMS)


SUMMARY = "federated averaging in which every client keeps its own normalisation layers"
system = cohort_system(
    "fedbn",
    Hyper,
    fedper.algorithm,
    SUMMARY,
    messages=ReportMessages(lambda params, hyper: hyper.split(params)[0]),
)
paper = system.paper
