"""Experiments on FedAvg: a benchmark of speed on many clients (`cifar10`)."""

EXPERIMENTS = ("cifar10",)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
