"""Differential privacy of training: clipped updates, Gaussian noise on their sum, and accounting.

The server is trusted, except with `local` noise. Whoever sees the models that it makes, all of
them, learns little about any one client: its update in a round has a bounded norm, and noise of a
size in proportion to the bound is added once to the sum. The guarantee is for whole clients, not
for single examples.

- `kinds`: the settings, by the names of the command line.
- `clipping`: clipping, adaptive bounds, and noise.
- `accounting`: epsilon after a number of rounds, and the noise for a wanted epsilon, by the
  package dp-accounting. Runs of FA-LD are accounted for in `fedjax_sim.theory.langevin`.
- `correlated`: noise that is accounted for by the schedule, without sampling: DP-FTRL, and
  asynchronous servers.
- `local`: clients' own noise, for which nobody is trusted.
- `auditing`: a lower bound of epsilon from one run with canaries.
- `participation`: how often and how closely clients take part in a schedule.

What the guarantee of `fixed`, `adaptive` and `examples` needs. Updates are summed with one weight
that is fixed before any round: 1 / m for cohorts of m expected clients. A mean over those who
happen to report would divide by a number that depends on a client's presence. An update may depend
on the client's data, on the models sent so far and on fresh random draws, but not on what the
client did in earlier rounds; memories of clients are therefore refused, and so are mini-batches
from epochs that last from one round to the next. Which clients take part must stay secret, and with
it how long a round takes.

Two samplings are covered by them. Each client takes part in a round independently with probability
q = m / N (Poisson sampling): data sets are neighbours if one has one client more, and the sum
changes by at most the bound C. Or the cohort is a uniform set of m clients: neighbours differ in
one client's data, and the sum changes by at most 2 C, so that noise of the same size protects half
as well before the sampling is taken into account. Everything else is refused, not approximated.

`correlated` and local noise use no sampling, and need less: their modules say what. Epsilons of
different neighbours cannot be compared; each module names its own.

Numbers are floats. A clipped norm may exceed C by rounding, and Gaussian noise on floats is not
exactly Gaussian (Mironov 2012): this is for studying learning under privacy, not for release.
"""

from fedjax_sim.privacy.accounting import NoisySteps, epsilon_after, find_noise
from fedjax_sim.privacy.auditing import Audit, audit_canaries, one_run_bound
from fedjax_sim.privacy.clipping import clip_sums, clip_updates, gaussian_like, next_bound
from fedjax_sim.privacy.correlated import (
    gaussian_epsilon,
    sensitivities,
    separated_sensitivity,
    square_root_bands,
)
from fedjax_sim.privacy.kinds import (
    PRIVACY,
    AdaptiveClipping,
    Clipping,
    CorrelatedNoise,
    ExampleClipping,
    FixedClipping,
    NoPrivacy,
    parse_privacy,
)
from fedjax_sim.privacy.local import (
    LOCAL_PRIVACY,
    LocalGaussian,
    LocalLaplace,
    LocalPrivacy,
    NoLocalPrivacy,
    OwnNoise,
    local_epsilon,
    parse_local_privacy,
    privatise,
)
from fedjax_sim.privacy.participation import (
    Participations,
    most_participations,
    most_sent,
    participations_of,
)

__all__ = [
    "LOCAL_PRIVACY",
    "PRIVACY",
    "AdaptiveClipping",
    "Audit",
    "Clipping",
    "CorrelatedNoise",
    "ExampleClipping",
    "FixedClipping",
    "LocalGaussian",
    "LocalLaplace",
    "LocalPrivacy",
    "NoLocalPrivacy",
    "NoPrivacy",
    "NoisySteps",
    "OwnNoise",
    "Participations",
    "audit_canaries",
    "clip_sums",
    "clip_updates",
    "epsilon_after",
    "find_noise",
    "gaussian_epsilon",
    "gaussian_like",
    "local_epsilon",
    "most_participations",
    "most_sent",
    "next_bound",
    "one_run_bound",
    "parse_local_privacy",
    "parse_privacy",
    "participations_of",
    "privatise",
    "sensitivities",
    "separated_sensitivity",
    "square_root_bands",
]
