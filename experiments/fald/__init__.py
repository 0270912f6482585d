"""Experiments on FA-LD (arXiv 2112.05120).

`claims` has the paper's claims and `gaussian` the Gaussian problems. Modules ending in `_unequal`
repeat a figure with unequal Hessians.
"""

EXPERIMENTS = (
    "asynchronous",
    "bounds",
    "fig1",
    "fig1_unequal",
    "fig2",
    "fig2_unequal",
    "fig3_4",
    "laws",
    "logistic",
    "privacy",
    "unequal",
)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
