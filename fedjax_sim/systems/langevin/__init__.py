"""FA-LD (arXiv 2112.05120), and the methods that share its kernel.

- `langevin`: Algorithms 1 to 4 and the settings of all methods.
- `methods`: control variates, which correct clients' gradients by whole gradients at an anchor;
  compressed models, with the clients' memories that messages are relative to; and a diagonal that
  scales steps and noise, which all clients share for a round.
"""

from fedjax_sim.systems.langevin.langevin import Dynamics as Dynamics
from fedjax_sim.systems.langevin.langevin import Hyper as Hyper
from fedjax_sim.systems.langevin.langevin import algorithm as algorithm
from fedjax_sim.systems.langevin.langevin import paper as paper
from fedjax_sim.systems.langevin.langevin import system as system
from fedjax_sim.systems.langevin.methods import Controls as Controls
from fedjax_sim.systems.langevin.methods import ModelMemories as ModelMemories
from fedjax_sim.systems.langevin.methods import Preconditioning as Preconditioning
