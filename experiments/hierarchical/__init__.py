"""Experiments on hierarchical federated learning (arXiv 2302.04851).

`claims` has the paper's claims, `setup` the runs and comparisons that the figures share, `tuning`
the choice of each run's own learning rate. `bounds`, `clock` and `quadratics` check the theory;
`map` finds where the paper's order of sync times holds, and `own_rates` runs other figures there;
the rest are the figure that they are named after.
"""

EXPERIMENTS = (
    "bounds",
    "clock",
    "fig3",
    "fig4_5",
    "fig6",
    "fig7",
    "fig8",
    "fig9",
    "fig10",
    "fig11",
    "fig13",
    "map",
    "own_rates",
    "quadratics",
)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
