"""Partitions: which client holds which training examples, as index arrays computed on the host.

A partition gives each example to at most one client, and at least one example to each client. Its
random numbers come from a stream used for nothing else, so they are independent of all other draws
from the same seed. Where to look:

- `catalogue`: the names of all partitions, and `make`, which makes one by name.
- `schemes`: the usual ways to split data (random, Dirichlet, shards, natural clients).
- `by_label`: ways that give a client few classes, or groups of clients different classes;
  Pachinko allocation.
- `parts`: `Partition`, the result of all of them, and what they share.

`fedjax_sim.reporting.plots.holdings_figure` draws who holds what.
"""

from fedjax_sim.partition.by_label import (
    classes_per_client,
    dirichlet_groups,
    disjoint_groups,
    label_groups,
    pachinko,
)
from fedjax_sim.partition.catalogue import PARTITIONS, make
from fedjax_sim.partition.parts import Partition, label_histogram
from fedjax_sim.partition.schemes import dirichlet, iid, natural, shards

__all__ = [
    "PARTITIONS",
    "Partition",
    "classes_per_client",
    "dirichlet",
    "dirichlet_groups",
    "disjoint_groups",
    "iid",
    "label_groups",
    "label_histogram",
    "make",
    "natural",
    "pachinko",
    "shards",
]
