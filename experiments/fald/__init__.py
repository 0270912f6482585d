"""Experiments on FA-LD (arXiv 2112.05120).

`claims` has the paper's claims and `gaussian` the Gaussian problems.
"""

EXPERIMENTS = (
    "bounds",
    "extensions",
    "fig1",
    "fig2",
    "fig3_4",
    "headlines",
    "laws",
    "logistic",
    "privacy",
    "unequal",
)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
