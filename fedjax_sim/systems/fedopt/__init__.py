"""FedOpt (arXiv 2003.00295): federated averaging whose server applies an optimizer.

- `fedopt`: Algorithm 1, and the five systems that differ in the server's optimizer.
- `adaptive`: the optimizers of Algorithm 2, and SGD with momentum, with their settings.
"""

from fedjax_sim.systems.fedopt.fedopt import (
    Adaptive,
    Hyper,
    WithMomentum,
    WithoutMomentum,
    Yogi,
    algorithm,
    paper,
    system,
    systems,
)

__all__ = [
    "Adaptive",
    "Hyper",
    "WithMomentum",
    "WithoutMomentum",
    "Yogi",
    "algorithm",
    "paper",
    "system",
    "systems",
]
