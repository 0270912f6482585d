"""Experiments on FedEM and VR-FedEM (arXiv 2111.02083).

`claims` has the paper's claims, `setup` the problems that several studies share, `counts` the
made-up counts behind `fig2`.
"""

EXPERIMENTS = (
    "ablations",
    "clocks",
    "extensions",
    "fig1",
    "fig2",
    "fig2_shape",
    "fig3",
    "headlines",
    "reduction",
    "theory",
)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
