"""Experiments on clocks: simulated schedules against public measurements of real clusters."""

EXPERIMENTS = ("rack", "machines")
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
