"""Experiments on hierarchical federated learning (arXiv 2302.04851).

`claims` has the paper's claims, `setup` the runs and comparisons that the figures share, `tuning`
the choice of each run's own learning rate. `bounds`, `clock` and `quadratics` check the theory;
`own_rates` runs the figures whose runs have rates of their own;
the rest are the figure that they are named after.
"""

EXPERIMENTS = (
    "bounds",
    "clock",
    "fig3",
    "fig4_5",
    "fig11",
    "fig13",
    "headlines",
    "own_rates",
    "quadratics",
)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
