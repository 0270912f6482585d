"""Numbers that others printed, repeated with this simulator: source, number, ours, verdict.

`rows` has the criterion. `flute` is logistic regression on MNIST of 1,000 clients, `niid_bench`
unequal labels on MNIST, `two_repositories` FedAvg on MNIST, `tf_privacy` DP-SGD on MNIST, `nanogpt`
a small transformer on Shakespeare's plays, and `fednova` VGG-11 on CIFAR-10 with unequal labels.
"""

EXPERIMENTS = ("fednova", "flute", "nanogpt", "niid_bench", "tf_privacy", "two_repositories")
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
