"""Numbers that others printed, repeated with this simulator: source, number, ours, verdict.

`rows` has the criterion. `flute` is logistic regression on MNIST of 1,000 clients, `niid_bench`
unequal labels on MNIST, `two_repositories` FedAvg on MNIST, `tf_privacy` DP-SGD on MNIST, `nvflare`
eight clients with CIFAR-10, and `nanogpt` a small transformer on Shakespeare's plays.
"""

EXPERIMENTS = ("flute", "nanogpt", "niid_bench", "nvflare", "tf_privacy", "two_repositories")
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
