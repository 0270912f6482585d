"""Differential privacy of training: clipped updates, Gaussian noise on their sum, and accounting.

The server is trusted, except with `local` noise. Whoever sees the models that it makes, all of
them, learns little about any one client: its update in a round has a bounded norm, and noise of a
size in proportion to the bound is added once to the sum. The guarantee is for whole clients, not
for single examples.

- `kinds`: the settings, by the names of the command line, adaptive bounds, and noise.
- `clipping`: clipping.
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

from fedjax_sim.clients.clipping import clip_sums as clip_sums
from fedjax_sim.clients.clipping import clip_updates as clip_updates
from fedjax_sim.server.privacy.accounting import NoisySteps as NoisySteps
from fedjax_sim.server.privacy.accounting import epsilon_after as epsilon_after
from fedjax_sim.server.privacy.accounting import find_noise as find_noise
from fedjax_sim.server.privacy.auditing import Audit as Audit
from fedjax_sim.server.privacy.auditing import audit_canaries as audit_canaries
from fedjax_sim.server.privacy.auditing import one_run_bound as one_run_bound
from fedjax_sim.server.privacy.kinds import PRIVACY as PRIVACY
from fedjax_sim.server.privacy.kinds import AdaptiveClipping as AdaptiveClipping
from fedjax_sim.server.privacy.kinds import Clipping as Clipping
from fedjax_sim.server.privacy.kinds import CorrelatedNoise as CorrelatedNoise
from fedjax_sim.server.privacy.kinds import ExampleClipping as ExampleClipping
from fedjax_sim.server.privacy.kinds import FixedClipping as FixedClipping
from fedjax_sim.server.privacy.kinds import NoPrivacy as NoPrivacy
from fedjax_sim.server.privacy.kinds import gaussian_like as gaussian_like
from fedjax_sim.server.privacy.kinds import next_bound as next_bound
from fedjax_sim.server.privacy.kinds import parse_privacy as parse_privacy
from fedjax_sim.server.privacy.local import LOCAL_PRIVACY as LOCAL_PRIVACY
from fedjax_sim.server.privacy.local import LocalGaussian as LocalGaussian
from fedjax_sim.server.privacy.local import LocalLaplace as LocalLaplace
from fedjax_sim.server.privacy.local import LocalPrivacy as LocalPrivacy
from fedjax_sim.server.privacy.local import NoLocalPrivacy as NoLocalPrivacy
from fedjax_sim.server.privacy.local import OwnNoise as OwnNoise
from fedjax_sim.server.privacy.local import local_epsilon as local_epsilon
from fedjax_sim.server.privacy.local import parse_local_privacy as parse_local_privacy
from fedjax_sim.server.privacy.local import privatise as privatise
from fedjax_sim.server.privacy.participation import Participations as Participations
from fedjax_sim.server.privacy.participation import gaussian_epsilon as gaussian_epsilon
from fedjax_sim.server.privacy.participation import most_participations as most_participations
from fedjax_sim.server.privacy.participation import most_sent as most_sent
from fedjax_sim.server.privacy.participation import participations_of as participations_of
from fedjax_sim.server.privacy.participation import sensitivities as sensitivities
from fedjax_sim.server.privacy.participation import separated_sensitivity as separated_sensitivity
from fedjax_sim.server.privacy.participation import square_root_bands as square_root_bands
