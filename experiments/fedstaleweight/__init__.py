"""Experiments on FedStaleWeight (arXiv 2406.02877): claims, `fig2`, and the study of influence."""

EXPERIMENTS = ("disturbed", "fig2", "headlines", "influence", "rates")
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
