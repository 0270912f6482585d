"""Numbers that others printed, repeated with this simulator: source, number, ours, verdict.

`rows` has the criterion. On MNIST `flute` is logistic regression of 1,000 clients, `niid_bench`
unequal labels, `two_repositories` FedAvg and `tf_privacy` DP-SGD. `pfllib` is personal models on
Fashion-MNIST, `fedprox` stragglers on synthetic data, and `nanogpt` a small transformer on
Shakespeare's plays. `nvflare` and `fednova` are on CIFAR-10, for a GPU as `pfllib` is.
"""

EXPERIMENTS = (
    "fednova",
    "fedprox",
    "flute",
    "nanogpt",
    "niid_bench",
    "nvflare",
    "pfllib",
    "tf_privacy",
    "two_repositories",
)
"""The modules that can be run."""

__all__ = ["EXPERIMENTS"]
