"""The field's standard algorithms against each other, each at its best learning rate.

`setup` says who takes part and how; `digits`, `mnist` and `cifar10` are the comparisons, and
`rotations` compares FedBN with FedAvg, and `personalisation` eleven methods with personal models.
"""

EXPERIMENTS = ("cifar10", "digits", "mnist", "personalisation", "rotations")
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
