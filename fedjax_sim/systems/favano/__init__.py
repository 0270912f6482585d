"""FAVANO (arXiv 2305.16099): the algorithm, and the closed forms of its reweighting.

- `favano`: Algorithm 1, its settings and its schedule.
- `step_counts`: laws and moments of the number of local steps between two contacts, from which
  alpha follows.
"""

from fedjax_sim.systems.favano import step_counts as step_counts
from fedjax_sim.systems.favano.favano import Hyper as Hyper
from fedjax_sim.systems.favano.favano import algorithm as algorithm
from fedjax_sim.systems.favano.favano import inverse_alpha as inverse_alpha
from fedjax_sim.systems.favano.favano import paper as paper
from fedjax_sim.systems.favano.favano import system as system
from fedjax_sim.systems.favano.favano import timeline as timeline
