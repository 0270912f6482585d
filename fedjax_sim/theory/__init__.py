"""Answers that need no run: privacy, fair weights, lengths of rounds, step sizes that are safe.

One package or module per paper has them as functions of numbers, in float64; in NumPy, but for
`gen_async`. No module here imports the engine, so that they can be read and used alone.

- `favano`: FAVANO, arXiv 2305.16099. The largest step size, and the time of a server step of FedAvg
  and FedBuff.
- `fedem`: FedEM and VR-FedEM, arXiv 2111.02083. The largest step sizes.
- `fedstaleweight`: FedStaleWeight, arXiv 2406.02877. Staleness, the weights that equalise clients'
  influence, and the influence that they have.
- `gen_async`: Generalized AsyncSGD, arXiv 2405.00017. Throughput, relative delays and energy as a
  closed queueing network, in JAX; the routing and the number of tasks with the least time.
- `hierarchical`: delay-sensitive hierarchical federated learning, arXiv 2302.04851. Iterations,
  lengths of rounds, idle time and the number of rounds.
- `langevin`: FA-LD, arXiv 2112.05120. Differential privacy of a run.

Words that all of them use: "derived" marks what the paper does not state, and a comment that begins
with "Deviation:" marks where the code departs from the paper and why.

Importing this package imports none of them: write `from fedjax_sim.theory import favano`.
"""

__all__ = ["favano", "fedem", "fedstaleweight", "gen_async", "hierarchical", "langevin"]
