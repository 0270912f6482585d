"""Partitions by name, and the usual ways to split training examples over clients.

Letters: `n` training examples, `N` clients, `C` classes.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_sim.core.settings import Above0, ConfigError, Count, Named, Seed, checked_all
from fedjax_sim.partition import by_label, parts
from fedjax_sim.partition.parts import Partition


def iid(labels: np.ndarray, *, num_clients: Count, seed: Seed) -> Partition:
    """Split the examples at random into equal parts.

    The remainder of n / N is left out.

        clients = iid(data.train_labels, num_clients=8, seed=0)
        assert (clients.counts == len(data.train_labels) // 8).all()  # the rest is left out

    Args:
      labels: Class of each training example, integers `[n]` of at least 0.
      num_clients: Number of clients, N, at most n.
      seed: Whole number of at least 0.

    Returns:
      The partition.

    Raises:
      ConfigError: If an argument is not allowed.
    """
    labels, rng = parts.check_labels(labels), parts.make_generator(seed)
    parts.check_most("num_clients", num_clients, len(labels))
    size = len(labels) // num_clients
    return parts.pack_rows(
        rng.permutation(len(labels))[: num_clients * size].reshape(num_clients, size)
    )


def dirichlet(
    labels: np.ndarray,
    *,
    num_clients: Count,
    alpha: Above0,
    seed: Seed,
    min_examples: Count = 1,
    top_up: bool = False,
) -> Partition:
    """Split each class over the clients in proportions from a symmetric Dirichlet distribution.

    Every example is given to a client. Proportions are drawn again until every client has
    `min_examples`. Source: Yurochkin et al. (arXiv 1905.12022); Li et al. (arXiv 2102.02079).

        clients = dirichlet(data.train_labels, num_clients=8, alpha=0.3, seed=0)

    Args:
      labels: Class of each training example, integers `[n]` of at least 0.
      num_clients: Number of clients, N, at most n.
      alpha: Concentration, above 0. Small values make clients heterogeneous; in the limit of
        infinity all shares are equal.
      seed: Whole number of at least 0.
      min_examples: Least number of examples of a client, from 1 to n / N.
      top_up: Whether to stop after 100 draws and move examples to clients that
        have too few, from the largest client's most frequent class. With many clients (a thousand,
        say) every draw leaves some with too few.

    Returns:
      The partition.

    Raises:
      ConfigError: If an argument is not allowed or if, without `top_up`, no draw out of
        `DIRICHLET_TRIES` gives every client enough examples.
    """
    labels, rng = parts.check_labels(labels), parts.make_generator(seed)
    parts.check_most("num_clients", num_clients, len(labels))
    parts.check_most("min_examples", min_examples, len(labels) // num_clients)
    sizes = np.unique(labels, return_counts=True)[1]
    per_class = parts.cut_classes(rng, num_clients, alpha, sizes, least=min_examples, top_up=top_up)
    by_class = parts.sort_by_label(labels, rng.permutation(len(labels)))
    owner = np.concatenate([np.repeat(np.arange(num_clients), row) for row in per_class])
    return parts.gather_by_owner(by_class, owner, num_clients)


def shards(
    labels: np.ndarray, *, num_clients: Count, shards_per_client: Count = 2, seed: Seed
) -> Partition:
    """Sort the examples by label, cut them into equal shards and deal the shards at random.

    A client has about `shards_per_client` classes, possibly fewer. Examples that do not fill a
    shard are left out at random. Source: McMahan et al. (arXiv 1602.05629), section 3.

        clients = shards(data.train_labels, num_clients=8, shards_per_client=2, seed=0)

    Args:
      labels: Class of each training example, integers `[n]` of at least 0.
      num_clients: Number of clients, N.
      shards_per_client: Number of shards of a client, at least 1; N times this is at most n.
      seed: Whole number of at least 0.

    Returns:
      The partition.

    Raises:
      ConfigError: If an argument is not allowed.
    """
    labels, rng = parts.check_labels(labels), parts.make_generator(seed)
    parts.check_most("shards_per_client", shards_per_client, len(labels))
    parts.check_most("num_clients", num_clients, len(labels) // shards_per_client)
    num_shards = num_clients * shards_per_client
    size = len(labels) // num_shards
    kept = rng.permutation(len(labels))[: num_shards * size]
    dealt = rng.permutation(parts.sort_by_label(labels, kept).reshape(num_shards, size))
    return parts.pack_rows(dealt.reshape(num_clients, -1))


def natural(
    labels: np.ndarray, *, client_ids: np.ndarray, num_clients: Count, seed: Seed
) -> Partition:
    """Keep the clients that the data came with.

    If the data has more clients than `num_clients`, a random choice of them is kept. A partition
    has no names: those of its clients are `client_ids[partition.index[partition.offsets]]`, and the
    method `with_client_names(names)` of settings puts the rows of a `client_table` in their order.
    The command line does both.

        labels, writers = np.array([3, 7, 3, 1]), np.array(["ann", "bob", "ann", "ann"])
        clients = natural(labels, client_ids=writers, num_clients=2, seed=0)
        assert clients.counts.tolist() == [3, 1]
        assert writers[clients.index[clients.offsets]].tolist() == ["ann", "bob"]

    Args:
      labels: Class of each training example, integers `[n]` of at least 0.
      client_ids: Client to which each example belongs, integers or strings `[n]`.
      num_clients: Number of clients to keep, N.
      seed: Whole number of at least 0.

    Returns:
      The partition, with clients in the order of their ids.

    Raises:
      ConfigError: If an argument is not allowed, or if the data has fewer clients.
    """
    labels, rng = parts.check_labels(labels), parts.make_generator(seed)
    client_ids = np.asarray(client_ids)
    if client_ids.shape != labels.shape:
        allowed = f"that of the labels, {labels.shape}"
        raise ConfigError("shape of client_ids", client_ids.shape, allowed)
    if client_ids.dtype.kind not in "iuUS":
        raise ConfigError("dtype of client_ids", str(client_ids.dtype), "integers or strings")
    ids, client_of = np.unique(client_ids, return_inverse=True)
    parts.check_most("num_clients", num_clients, len(ids))
    chosen = np.sort(rng.choice(len(ids), num_clients, replace=False))
    row_of = np.full(len(ids), -1)
    row_of[chosen] = np.arange(num_clients)
    examples = np.flatnonzero(row_of[client_of] >= 0)
    return parts.gather_by_owner(examples, row_of[client_of[examples]], num_clients)


def _options(name: str) -> dict[str, inspect.Parameter]:
    """List the arguments of a partition besides labels, number of clients and seed, by name."""
    known = inspect.signature(PARTITIONS[name]).parameters
    return {each: known[each] for each in known if each not in ("labels", "num_clients", "seed")}


def summary(name: str) -> str:
    """Describe a partition in one line, with its options.

        assert summary("iid") == "Split the examples at random into equal parts"

    Args:
      name: A name in `PARTITIONS`.

    Returns:
      The first line of its documentation, with the names of its options.
    """
    line = str(PARTITIONS[name].__doc__).partition(".\n")[0]
    return line + (f" (options {', '.join(options)})" if (options := _options(name)) else "")


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
    function, known = PARTITIONS[name], _options(name)
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


checked_all(__name__)
PARTITIONS: Named[Callable[..., Partition]] = Named(
    "partition",
    {
        "iid": iid,
        "classes": by_label.classes_per_client,
        "dirichlet": dirichlet,
        "shards": shards,
        "label_groups": by_label.label_groups,
        "dirichlet_groups": by_label.dirichlet_groups,
        "disjoint_groups": by_label.disjoint_groups,
        "pachinko": by_label.pachinko,
        "natural": natural,
    },
)
"""The function of each name."""
