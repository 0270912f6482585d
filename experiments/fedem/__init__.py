"""Experiments on FedEM and VR-FedEM (arXiv 2111.02083).

`claims` has the paper's claims, `setup` the problems that several studies share, `counts` the
counts behind `fig2` and `observed`, made up or read from a file.
"""

EXPERIMENTS = ("ablations", "fig1", "fig2", "fig2_shape", "fig3", "observed", "theory")
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
