"""FAVANO (arXiv 2305.16099): the algorithm, and the closed forms of its reweighting.

- `favano`: Algorithm 1, its settings and its schedule.
- `step_counts`: laws and moments of the number of local steps between two contacts, from which
  alpha follows.
"""

from fedjax_sim.systems.favano import step_counts
from fedjax_sim.systems.favano.favano import (
    Hyper,
    algorithm,
    inverse_alpha,
    paper,
    system,
    timeline,
)

__all__ = ["Hyper", "algorithm", "inverse_alpha", "paper", "step_counts", "system", "timeline"]
