"""Experiments on FA-LD (arXiv 2112.05120).

`claims` has the paper's claims, `gaussian` the Gaussian problems and `images` the study on images
that several figures share. Modules ending in `_unequal` repeat a figure with unequal Hessians.
"""

EXPERIMENTS = (
    "asynchronous",
    "bounds",
    "fig1",
    "fig1_unequal",
    "fig2",
    "fig2_unequal",
    "fig3",
    "fig4",
    "laws",
    "logistic",
    "privacy",
    "unequal",
)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
