"""Partitions: which client holds which training examples, as index arrays computed on the host.

A partition gives each example to at most one client, and at least one example to each client. Its
random numbers come from a stream used for nothing else, so they are independent of all other draws
from the same seed. Where to look:

- `schemes`: the ways to split data (random, Dirichlet, shards, natural clients, few classes for
  each client, groups of clients with different classes, Pachinko allocation), their names, and
  `make`, which makes one by name.
- `parts`: `Partition`, the result of all of them, and what they share.

`fedjax_sim.results.plots.holdings_figure` draws who holds what.
"""

from fedjax_sim.partition.parts import Partition as Partition
from fedjax_sim.partition.parts import label_histogram as label_histogram
from fedjax_sim.partition.schemes import PARTITIONS as PARTITIONS
from fedjax_sim.partition.schemes import classes_per_client as classes_per_client
from fedjax_sim.partition.schemes import dirichlet as dirichlet
from fedjax_sim.partition.schemes import dirichlet_groups as dirichlet_groups
from fedjax_sim.partition.schemes import disjoint_groups as disjoint_groups
from fedjax_sim.partition.schemes import iid as iid
from fedjax_sim.partition.schemes import label_groups as label_groups
from fedjax_sim.partition.schemes import make as make
from fedjax_sim.partition.schemes import natural as natural
from fedjax_sim.partition.schemes import pachinko as pachinko
from fedjax_sim.partition.schemes import shards as shards
from fedjax_sim.partition.schemes import summary as summary
