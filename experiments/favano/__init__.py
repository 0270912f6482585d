"""Experiments on FAVANO (arXiv 2305.16099).

`claims` has the paper's claims, `setup` the runs on images that several figures share. `lemmas`,
`theory`, `clock` and `mean_model` check the theory; the rest are the figure or table that they are
named after.
"""

EXPERIMENTS = (
    "clock",
    "fig3a",
    "fig3b",
    "fig7",
    "fig7_own_rates",
    "headlines",
    "lattice",
    "lemmas",
    "mean_model",
    "table2",
    "table2_grid",
    "theory",
)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
