"""Ways to split training examples over clients, and their names.

Groups of clients are runs of clients with consecutive numbers; `group_sizes` gives the length of
each run, as in `fedjax_sim.timelines`. Letters: `n` training examples, `N` clients, `C` classes.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_sim.core import settings
from fedjax_sim.core.settings import Above0, ConfigError, Count, Named, Seed, Share, Whole
from fedjax_sim.partition import parts

CIFAR100_SUPERCLASSES = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
    *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
    *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
    *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
    *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)
"""Superclass of each class of CIFAR-100, both in alphabetical order."""


def iid(labels: np.ndarray, *, num_clients: Count, seed: Seed) -> parts.Partition:
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
    labels, rng = parts.begin(labels, seed, num_clients)
    size = len(labels) // num_clients
    kept = rng.permutation(len(labels))[: num_clients * size]
    return parts.pack_rows(kept.reshape(num_clients, size))


def dirichlet(
    labels: np.ndarray,
    *,
    num_clients: Count,
    alpha: Above0,
    seed: Seed,
    min_examples: Count = 1,
    top_up: bool = False,
) -> parts.Partition:
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
    labels, rng = parts.begin(labels, seed, num_clients)
    parts.check_most("min_examples", min_examples, len(labels) // num_clients)
    sizes = np.unique(labels, return_counts=True)[1]
    per_class = parts.cut_classes(rng, num_clients, alpha, sizes, least=min_examples, top_up=top_up)
    by_class = parts.sort_by_label(labels, rng.permutation(len(labels)))
    owner = np.concatenate([np.repeat(np.arange(num_clients), row) for row in per_class])
    return parts.gather_by_owner(by_class, owner, num_clients)


def shards(
    labels: np.ndarray, *, num_clients: Count, shards_per_client: Count = 2, seed: Seed
) -> parts.Partition:
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
    labels, rng = parts.begin(labels, seed)
    parts.check_most("shards_per_client", shards_per_client, len(labels))
    parts.check_most("num_clients", num_clients, len(labels) // shards_per_client)
    num_shards = num_clients * shards_per_client
    size = len(labels) // num_shards
    kept = rng.permutation(len(labels))[: num_shards * size]
    dealt = rng.permutation(parts.sort_by_label(labels, kept).reshape(num_shards, size))
    return parts.pack_rows(dealt.reshape(num_clients, -1))


def natural(
    labels: np.ndarray, *, client_ids: np.ndarray, num_clients: Count, seed: Seed
) -> parts.Partition:
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
    labels, rng = parts.begin(labels, seed)
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


def classes_per_client(
    labels: np.ndarray, *, num_clients: Count, classes: Count = 2, seed: Seed
) -> parts.Partition:
    """Give each client equally many examples of a few distinct classes, drawn at random.

    Each class gets `classes * N / C` slots; if that is not whole, some classes drawn at random get
    one more. The shuffled slots are dealt to the clients, and slots are then swapped at random
    until no client has a class twice. Each class is split evenly over its slots, and every slot is
    cut to the size of the smallest one. Source: FAVANO (arXiv 2305.16099), section 5.

        clients = classes_per_client(data.train_labels, num_clients=10, classes=2, seed=0)
        held = label_histogram(clients, data.train_labels, 10) > 0
        assert (held.sum(axis=1) == 2).all()

    Args:
      labels: Class of each training example, integers `[n]` of at least 0.
      num_clients: Number of clients, N.
      classes: Number of classes of each client, from 1 to C.
      seed: Whole number of at least 0.

    Returns:
      The partition.

    Raises:
      ConfigError: If an argument is not allowed, or if a slot would have no example.
    """
    labels, rng = parts.begin(labels, seed)
    present, class_of = np.unique(labels, return_inverse=True)
    parts.check_most("classes", classes, len(present))
    slots_of_all, num_with_one_more = divmod(classes * num_clients, len(present))
    num_slots = np.full(len(present), slots_of_all)
    num_slots[rng.choice(len(present), num_with_one_more, replace=False)] += 1
    size = min(np.bincount(class_of)[num_slots > 0] // num_slots[num_slots > 0])
    if size == 0:
        allowed = f"small enough for each of the {classes * num_clients} slots to get an example"
        raise ConfigError("num_clients", num_clients, allowed)

    dealt = rng.permutation(np.repeat(np.arange(len(present)), num_slots))
    slots = dealt.reshape(num_clients, classes)
    _swap_until_distinct(slots, rng)
    index = np.empty((num_clients, classes, size), np.int32)
    for c in range(len(present)):
        examples = rng.permutation(np.flatnonzero(class_of == c))
        index[slots == c] = examples[: num_slots[c] * size].reshape(-1, size)
    return parts.pack_rows(index.reshape(num_clients, -1))


def label_groups(
    labels: np.ndarray,
    *,
    num_clients: Count,
    slow_fraction: Share = 1 / 3,
    slow_labels: Count = 4,
    held_out: Share = 0.0,
    seed: Seed,
) -> parts.Partition:
    """Give the first few labels to the last clients and all other labels to the first clients.

    Within a group each label is split into equal parts; examples that do not divide evenly are left
    out. The last clients are the slow ones of the setting `slow_clients="last"`. Source:
    FedStaleWeight's experiments (arXiv 2406.02877, Sec. 6, and its public benchmark).

        labels = np.arange(100) % 10
        clients = label_groups(labels, num_clients=6, slow_fraction=1 / 3, slow_labels=4, seed=0)
        slow = label_histogram(clients, labels, 10)[4:]  # the last two clients
        assert slow[:, 4:].sum() == 0  # have labels 0 to 3 only

    Args:
      labels: Class of each training example, integers `[n]` of at least 0. Labels count as first
        in order of their numbers.
      num_clients: Number of clients, N, at least 2.
      slow_fraction: Share of the clients in the last group, from 0 up to but not including 1. Their
        number is rounded up and must leave at least one client in each group.
      slow_labels: Number of labels of the last group, from 1 to C - 1.
      held_out: Share of each client's examples that is left out, from 0 up to but not including 1.
        Their number is rounded down.
      seed: Whole number of at least 0.

    Returns:
      The partition.

    Raises:
      ConfigError: If an argument is not allowed, or if a label has fewer examples than its group
        has clients.
    """
    labels, rng = parts.begin(labels, seed)
    present = np.unique(labels)
    if num_clients < 2:
        raise ConfigError("num_clients", num_clients, "at least 2, one in each group")
    parts.check_most("slow_labels", slow_labels, len(present) - 1)
    num_slow = int(np.ceil(slow_fraction * num_clients - 1e-6))
    if not 1 <= num_slow < num_clients:
        raise ConfigError("slow_fraction", slow_fraction, "such that each group has a client")
    rows: list[np.ndarray] = []
    for group_labels, group_size in (
        (present[slow_labels:], num_clients - num_slow),
        (present[:slow_labels], num_slow),
    ):
        blocks = []
        for label in group_labels:
            examples = rng.permutation(np.flatnonzero(labels == label))
            size = len(examples) // group_size
            if size == 0:
                allowed = "small enough for each client of a group to have an example of "
                raise ConfigError("num_clients", num_clients, f"{allowed}label {label}")
            blocks.append(examples[: group_size * size].reshape(group_size, size))
        rows += [rng.permutation(row) for row in np.concatenate(blocks, axis=1)]
    kept = [row[int(held_out * len(row) + parts.ROUNDING) :] for row in rows]
    owner = np.repeat(np.arange(num_clients), [len(row) for row in kept])
    return parts.gather_by_owner(np.concatenate(kept), owner, num_clients)


def dirichlet_groups(
    labels: np.ndarray,
    *,
    num_clients: Count,
    group_sizes: tuple[Count, ...],
    alpha: Above0,
    seed: Seed,
    min_examples: Count = 1,
) -> parts.Partition:
    """Split each class over groups in Dirichlet proportions, and a group's examples evenly.

    A group's examples are dealt to its clients at random, so clients of a group differ by at most
    one example. Every example is given to a client. Proportions are drawn again until every group
    has `min_examples` for each of its clients. Source: hierarchical FL (arXiv 2302.04851), Figs. 4
    and 5b.

        clients = dirichlet_groups(
            data.train_labels, num_clients=5, group_sizes=(2, 3), alpha=1.0, seed=0
        )
        assert clients.counts.sum() == len(data.train_labels)

    Args:
      labels: Class of each training example, integers `[n]` of at least 0.
      num_clients: Number of clients, N, at most n.
      group_sizes: Number of clients in each group, with the sum N.
      alpha: Concentration of the Dirichlet distribution, above 0.
      seed: Whole number of at least 0.
      min_examples: Least number of examples of a client, from 1 to n / N.

    Returns:
      The partition.

    Raises:
      ConfigError: If an argument is not allowed, or if no draw out of `DIRICHLET_TRIES` gives every
        group enough examples.
    """
    labels, rng = parts.begin(labels, seed, num_clients)
    _check_groups(group_sizes, num_clients)
    parts.check_most("min_examples", min_examples, len(labels) // num_clients)
    sizes, least = np.unique(labels, return_counts=True)[1], min_examples * np.asarray(group_sizes)
    per_class = parts.cut_classes(rng, len(group_sizes), alpha, sizes, least=least)
    by_class = parts.sort_by_label(labels, rng.permutation(len(labels)))
    group_of = np.concatenate([np.repeat(np.arange(len(group_sizes)), row) for row in per_class])
    examples, owner = [], []
    first_clients = np.cumsum(group_sizes) - group_sizes
    for group, (first, size) in enumerate(zip(first_clients, group_sizes, strict=True)):
        examples.append(rng.permutation(by_class[group_of == group]))
        owner.append(first + np.arange(len(examples[-1])) % size)
    return parts.gather_by_owner(np.concatenate(examples), np.concatenate(owner), num_clients)


def disjoint_groups(
    labels: np.ndarray,
    *,
    num_clients: Count,
    group_sizes: tuple[Count, ...],
    classes: Count = 2,
    seed: Seed,
) -> parts.Partition:
    """Deal the labels to groups that share none, then split each group by `classes_per_client`.

    Groups get equally many labels; if these do not divide evenly, the first groups get one more.
    Source: hierarchical FL (arXiv 2302.04851), Fig. 5a.

        labels = np.arange(100) % 10
        clients = disjoint_groups(labels, num_clients=4, group_sizes=(2, 2), classes=2, seed=0)
        held = label_histogram(clients, labels, 10).reshape(2, 2, 10).sum(axis=1) > 0
        assert not (held[0] & held[1]).any()  # no label is in both groups

    Args:
      labels: Class of each training example, integers `[n]` of at least 0.
      num_clients: Number of clients, N, at most n.
      group_sizes: Number of clients in each group, with the sum N.
      classes: Number of classes of each client, at least 1 and at most the labels of a group.
      seed: Whole number of at least 0.

    Returns:
      The partition.

    Raises:
      ConfigError: If an argument is not allowed, or if a client of a group would have no example of
        a class.
    """
    labels, rng = parts.begin(labels, seed, num_clients)
    _check_groups(group_sizes, num_clients)
    present = rng.permutation(np.unique(labels))
    parts.check_most("classes", classes, len(present) // len(group_sizes))
    examples, owner = [], []
    first_clients = np.cumsum(group_sizes) - group_sizes
    labels_of = np.array_split(present, len(group_sizes))
    for group_labels, first, size in zip(labels_of, first_clients, group_sizes, strict=True):
        of_group = np.flatnonzero(np.isin(labels, group_labels))
        index, counts = classes_per_client(
            labels[of_group], num_clients=size, classes=classes, seed=int(rng.integers(2**31))
        )
        examples.append(of_group[index])
        owner.append(first + np.repeat(np.arange(size), counts))
    return parts.gather_by_owner(np.concatenate(examples), np.concatenate(owner), num_clients)


def pachinko(
    labels: np.ndarray,
    *,
    num_clients: Count,
    alpha: Above0 = 0.1,
    beta: Above0 = 10.0,
    superclasses: tuple[Whole, ...] = CIFAR100_SUPERCLASSES,
    seed: Seed,
) -> parts.Partition:
    """Give clients equally many examples by Pachinko allocation: a superclass, then a class in it.

    A client draws its shares of the superclasses from a Dirichlet distribution with concentration
    alpha and, within each superclass, shares of the classes with concentration beta. It then draws
    its examples one by one without replacement. A class without examples leaves the shares, and so
    does a superclass without classes. The remainder of n / N is left out. Source: adaptive
    federated optimisation (arXiv 2003.00295), appendix C.1, for CIFAR-100 with N = 500.

        clients = pachinko(
            data.train_labels, num_clients=5, superclasses=(0, 0, 0, 0, 0, 1, 1, 1, 1, 1), seed=0
        )
        assert (clients.counts == 50 // 5).all()

    Args:
      labels: Class of each training example, integers `[n]` of at least 0.
      num_clients: Number of clients, N, at most n.
      alpha: Concentration over superclasses, above 0; 0.1 in the source.
      beta: Concentration over the classes of a superclass, above 0; 10 in the source.
      superclasses: Superclass of each class, by default those of CIFAR-100.
      seed: Whole number of at least 0.

    Returns:
      The partition.

    Raises:
      ConfigError: If an argument is not allowed, or if a label has no superclass.
    """
    labels, rng = parts.begin(labels, seed, num_clients)
    num_classes = int(labels.max()) + 1
    if superclasses is CIFAR100_SUPERCLASSES and num_classes != len(superclasses):
        allowed = f"given for data with {num_classes} classes; the default is that of CIFAR-100"
        raise ConfigError("superclasses", None, allowed)
    if len(superclasses) < num_classes:
        raise ConfigError("superclasses", superclasses, f"{num_classes} numbers, one per class")
    coarse = np.unique(superclasses, return_inverse=True)[1]
    children = [np.flatnonzero(coarse == group) for group in range(coarse.max() + 1)]
    examples = [list(rng.permutation(np.flatnonzero(labels == c))) for c in range(len(coarse))]
    size = len(labels) // num_clients
    index = np.empty((num_clients, size), np.int32)
    left = np.array([len(each) for each in examples])
    for client in range(num_clients):
        shares = parts.draw_shares(rng, len(children), alpha)
        within = [parts.draw_shares(rng, len(each), beta) for each in children]
        for place in range(size):
            group = _draw(rng, shares, np.bincount(coarse, weights=left) > 0)
            c = children[group][_draw(rng, within[group], left[children[group]] > 0)]
            index[client, place] = examples[c].pop()
            left[c] -= 1
    return parts.pack_rows(index)


def _draw(rng: np.random.Generator, shares: np.ndarray, is_left: np.ndarray) -> int:
    """Draw a position with probabilities in proportion to shares, of those that are left."""
    # Shares of a small alpha can all vanish in 64 bits; all that is left is then equally likely.
    sums = np.cumsum(np.maximum(shares, np.finfo(float).tiny) * is_left)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


def _check_groups(group_sizes: tuple[int, ...], num_clients: int) -> None:
    """Raise ConfigError unless the groups have at least one client each, and all clients."""
    if sum(group_sizes) != num_clients:
        allowed = f"whole numbers of at least 1 with the sum num_clients = {num_clients}"
        raise ConfigError("group_sizes", group_sizes, allowed)


def _swap_until_distinct(slots: np.ndarray, rng: np.random.Generator) -> None:
    """Swap entries of `slots`, `i[N, classes]`, in place until no row has a class twice.

    A duplicate class goes to a row that does not have it. In return comes a class that is new to
    the first row, or one that the other row has twice. Each swap therefore adds to the number of
    distinct classes of the rows, and a swap always exists, because no class has more than N slots.
    """
    num_clients, classes = slots.shape
    held = np.zeros((num_clients, slots.max() + 1), int)
    np.add.at(held, (np.arange(num_clients)[:, None], slots), 1)
    for client, place in np.argwhere(held[np.arange(num_clients)[:, None], slots] > 1):
        duplicate = slots[client, place]
        while held[client, duplicate] > 1:
            clients, places = rng.integers(num_clients, size=64), rng.integers(classes, size=64)
            offered = slots[clients, places]
            is_welcome = (held[client, offered] == 0) | (held[clients, offered] > 1)
            helps = (held[clients, duplicate] == 0) & is_welcome
            for i in np.flatnonzero(helps)[:1]:
                slots[client, place], slots[clients[i], places[i]] = offered[i], duplicate
                held[client, [duplicate, offered[i]]] += -1, 1
                held[clients[i], [duplicate, offered[i]]] += 1, -1
                duplicate = offered[i]


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
) -> parts.Partition:
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
            allowed = (
                "one of " + ", ".join(known) if known else "left out, because it has no options"
            )
            raise ConfigError(f"option of partition {name}", option, allowed)
    for option, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ConfigError(f"option {option} of partition {name}", None, "given")
    return function(labels, num_clients=num_clients, seed=seed, **options)


settings.checked_all(__name__)
PARTITIONS: Named[Callable[..., parts.Partition]] = Named(
    "partition",
    {
        "iid": iid,
        "classes": classes_per_client,
        "dirichlet": dirichlet,
        "shards": shards,
        "label_groups": label_groups,
        "dirichlet_groups": dirichlet_groups,
        "disjoint_groups": disjoint_groups,
        "pachinko": pachinko,
        "natural": natural,
    },
)
"""The functions that draw partitions, by name."""
