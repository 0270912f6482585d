"""Differential privacy of FA-LD (arXiv 2112.05120, Theorems 6.1 and G.3), in float64.

Two data sets are neighbours if they differ in one data point of one client (substitution, so their
sizes are equal). The training data is protected from whoever sees the aggregates. The shared noise
is treated as known, so it protects nothing: privacy needs rho < 1.

The guarantee is built in five steps, each with its (epsilon, delta): the Gaussian mechanism of one
local step; the mini-batch drawn without replacement; K local steps; the draw of clients; and all
rounds.

- `theorem`: the settings on which privacy depends, the guarantee, stage by stage, and the largest
  rho within a budget.
- `accounts`: `privacy_of` computes this bound for a run, and next to it the epsilon of the package
  dp-accounting, which composes the local steps tightly instead of one stage after the other.

Symbols of the paper and their names in `PrivacySetup`:

    N, S                        `num_clients`, `num_selected`
    K, E                        `local_steps`, `num_rounds` (T / K, with T steps in all)
    eta, tau                    `step_size`, `temperature`
    q (the paper's gamma)       `batch_fraction`
    Delta_l                     `sensitivity`
    delta_0, delta_1, delta_2   `delta_step`, `delta_round`, `delta_total`

Equation numbers are the paper's; "derived" marks what it does not state.

How the paper is read:
- The random draw of clients protects only against an adversary who does not know who took part.
  The server knows. With the adversary "server", the default, this step is left out; with
  "outsider", the paper's, it is included, and a warning says what it needs.
- That step needs an assumption that the paper does not state: that the aggregates show whether a
  client took part no better than they show a changed data point. If clients' models lie far apart,
  the aggregates show who took part. The draw then multiplies delta by the probability of taking
  part, but does not reduce epsilon. The guarantee against "server" is an upper bound in that case
  too.
- All local steps count as released, although only the last one is. This is an upper bound.
- Scheme I (with replacement) is stated for draws of probability 1 / N, although clients are drawn
  with probabilities equal to their weights. For a guarantee to every client, pass the largest
  weight as `draw_probability`.
- Under scheme I, delta treats the data point of a client drawn s times as a group of s data points,
  although the client's noise is multiplied by s as well. This is an upper bound.
- Scheme II (without replacement) needs equal weights, as in the simulated system.
"""

from fedjax_sim.theory.langevin.accounts import Accounts as Accounts
from fedjax_sim.theory.langevin.accounts import privacy_of as privacy_of
from fedjax_sim.theory.langevin.theorem import ADVERSARIES as ADVERSARIES
from fedjax_sim.theory.langevin.theorem import SCHEMES as SCHEMES
from fedjax_sim.theory.langevin.theorem import Guarantee as Guarantee
from fedjax_sim.theory.langevin.theorem import OutsiderWarning as OutsiderWarning
from fedjax_sim.theory.langevin.theorem import PrivacySetup as PrivacySetup
from fedjax_sim.theory.langevin.theorem import guarantee as guarantee
from fedjax_sim.theory.langevin.theorem import largest_rho as largest_rho
from fedjax_sim.theory.langevin.theorem import softmax_sensitivity as softmax_sensitivity
