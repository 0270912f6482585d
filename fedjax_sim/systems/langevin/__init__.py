"""FA-LD (arXiv 2112.05120), and the methods that share its kernel.

- `langevin`: Algorithms 1 to 4 and the settings of all methods.
- `control_variates`: corrects clients' gradients by whole gradients at an anchor.
- `model_memories`: compressed models, with the clients' memories that messages are relative to.
- `preconditioning`: scales steps and noise by a diagonal that all clients share for a round.
"""

from fedjax_sim.systems.langevin.control_variates import (
    Anchor,
    Controls,
    ControlVariates,
    count_control_bits,
)
from fedjax_sim.systems.langevin.langevin import (
    Dynamics,
    Hyper,
    State,
    algorithm,
    paper,
    system,
)
from fedjax_sim.systems.langevin.model_memories import ModelMemories, decode_mean
from fedjax_sim.systems.langevin.preconditioning import (
    Preconditioner,
    Preconditioning,
    Square,
    count_precondition_bits,
)

__all__ = [
    "Anchor",
    "ControlVariates",
    "Controls",
    "Dynamics",
    "Hyper",
    "ModelMemories",
    "Preconditioner",
    "Preconditioning",
    "Square",
    "State",
    "algorithm",
    "count_control_bits",
    "count_precondition_bits",
    "decode_mean",
    "paper",
    "system",
]
