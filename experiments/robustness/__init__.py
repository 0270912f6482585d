"""Experiments on robust aggregation: `attacks`, rules against attacks, waiting and not waiting."""

EXPERIMENTS = ("attacks",)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
