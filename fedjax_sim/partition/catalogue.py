"""Partitions by name: which names there are, and how a partition is made by its name."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_sim.core.checking import Count, Seed, checked
from fedjax_sim.core.settings import ConfigError, Named
from fedjax_sim.partition import by_label, schemes
from fedjax_sim.partition.parts import Partition
from fedjax_sim.partition.schemes import iid

PARTITIONS: Named[tuple[Callable[..., Partition], str]] = Named(
    "partition",
    {
        "iid": (iid, "random equal parts"),
        "classes": (
            by_label.classes_per_client,
            "equal parts of a few distinct classes each (option classes, 2 by default)",
        ),
        "dirichlet": (
            schemes.dirichlet,
            "each class in Dirichlet proportions over clients (options alpha, min_examples)",
        ),
        "shards": (
            schemes.shards,
            "equal shards of the data sorted by label (option shards_per_client, 2 by default)",
        ),
        "label_groups": (
            by_label.label_groups,
            "the first few labels for the last clients, all other labels for the first clients "
            "(options slow_fraction, slow_labels, held_out)",
        ),
        "dirichlet_groups": (
            by_label.dirichlet_groups,
            "each class in Dirichlet proportions over groups of clients, evenly within a group "
            "(options group_sizes, alpha, min_examples)",
        ),
        "disjoint_groups": (
            by_label.disjoint_groups,
            "groups of clients that share no label, a few labels per client "
            "(options group_sizes, classes)",
        ),
        "pachinko": (
            by_label.pachinko,
            "a superclass, then a class in it, in Dirichlet proportions of each client, for "
            "CIFAR-100 (options alpha, 0.1 by default, and in Python beta and superclasses)",
        ),
        "natural": (
            schemes.natural,
            "the clients that the data came with, if any (in Python: option client_ids, an array)",
        ),
    },
)
"""A function and a description of one line for each name."""


@checked
def make(
    name: str, labels: np.ndarray, *, num_clients: Count, seed: Seed, **options: Any
) -> Partition:
    """Make a partition by name.

        labels = data.train_labels
        clients = make("dirichlet", labels, num_clients=5, alpha=0.5, seed=0)
        same = dirichlet(labels, num_clients=5, alpha=0.5, seed=0)
        assert (clients.counts == same.counts).all()

    Args:
      name: A name in `PARTITIONS`.
      labels: Class of each training example, integers `[n]` of at least 0.
      num_clients: Number of clients, N.
      seed: Whole number of at least 0.
      **options: Further arguments of the function of that name.

    Returns:
      The partition.

    Raises:
      ConfigError: If the name or an option is unknown, if a required option is missing, or if the
        function refuses a value.
    """
    function = PARTITIONS[name][0]
    known = {
        option: parameter
        for option, parameter in inspect.signature(function).parameters.items()
        if option not in ("labels", "num_clients", "seed")
    }
    for option in options:
        if option not in known:
            raise ConfigError(
                f"option of partition {name}",
                option,
                "one of " + ", ".join(known) if known else "left out, because it has no options",
            )
    for option, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ConfigError(f"option {option} of partition {name}", None, "given")
    return function(labels, num_clients=num_clients, seed=seed, **options)
