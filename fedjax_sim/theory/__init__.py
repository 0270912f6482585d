"""What is known about the published algorithms, apart from running them.

One package or module per paper holds its constants, bounds and laws as functions of numbers, in
float64. The tests and experiments compare runs with them. No module here imports a system or the
engine, so theory can be read and used alone. The module docstrings map the paper's symbols to names
and list what is corrected.

- `favano`: FAVANO, arXiv 2305.16099. Reweighting, contraction, the bound of Theorem 1, complexity
  and time per server step.
- `fedem`: FedEM and VR-FedEM, arXiv 2111.02083. Step sizes, bounds, regimes, variance reduction,
  and exact moments on a model where everything is known.
- `fedstaleweight`: FedStaleWeight, arXiv 2406.02877. Staleness, weights, incentives, influence and
  the convergence bound.
- `hierarchical`: delay-sensitive hierarchical federated learning, arXiv 2302.04851. Round times,
  bounds, and exact results on quadratics.
- `langevin`: FA-LD, arXiv 2112.05120. Bounds, exact laws for Gaussian clients, rounds to an
  accuracy, and differential privacy.

Words that all of them use: "derived" marks what the paper does not state, and a comment that begins
with "Deviation:" marks where the code departs from the paper and why. Functions whose name ends in
`_printed` give the paper's formula with its slips, for comparison.

Importing this package imports none of them: write `from fedjax_sim.theory import favano`.
"""

__all__ = ["favano", "fedem", "fedstaleweight", "hierarchical", "langevin"]
