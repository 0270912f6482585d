"""Experiments on choosing clients: what is gained by it in virtual time."""

EXPERIMENTS = ("rules",)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
