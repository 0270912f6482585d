"""Experiments on clocks: schedules against measured clusters, and settings that are computed."""

EXPERIMENTS = ("rack", "machines", "routing", "coverage")
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
