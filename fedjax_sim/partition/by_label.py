"""Splits of training examples that go by their labels: few classes per client, and groups of clients with labels of their own.

Groups are of clients in order of their numbers, `group_sizes` of them, as in `timelines.Groups`. Letters: `n` training examples, `N`
clients, `C` classes.
"""

import numpy as np

from fedjax_sim.partition.parts import (
    Partition,
    check_alpha,
    check_whole,
    checked_labels,
    dirichlet_shares,
    equal_parts,
    generator,
    grouped,
    sorted_by,
)
from fedjax_sim.settings import ConfigError


def classes_per_client(
    labels: np.ndarray, *, num_clients: int, classes: int = 2, seed: int
) -> Partition:
    """Give each client an equal number of examples of `classes` distinct classes, drawn at random.

    The classes have `classes * N / C` slots each; where that is not whole, some classes drawn at random have one more. The shuffled slots
    are dealt to the clients, then clashing ones are swapped at random until no client holds a class twice. Each class is split
    evenly over its slots, and all slots are truncated to the size of the smallest. FAVANO (arXiv 2305.16099), section 5.

    labels: integers `[n]`. Raises ConfigError for more classes than there are, or for a slot without an example.
    """
    labels, rng = checked_labels(labels), generator(seed)
    check_whole("num_clients", num_clients)
    present, class_of = np.unique(labels, return_inverse=True)
    check_whole("classes", classes, most=len(present))
    each, more = divmod(classes * num_clients, len(present))
    num_slots = np.full(len(present), each)
    num_slots[rng.choice(len(present), more, replace=False)] += 1
    size = min(np.bincount(class_of)[num_slots > 0] // num_slots[num_slots > 0])
    if size == 0:
        raise ConfigError(
            "num_clients",
            num_clients,
            f"small enough for each of the {classes * num_clients} slots to get an example",
        )

    slots = rng.permutation(np.repeat(np.arange(len(present)), num_slots)).reshape(
        num_clients, classes
    )
    _swap_until_distinct(slots, rng)
    index = np.empty((num_clients, classes, size), np.int32)
    for c in range(len(present)):
        examples = rng.permutation(np.flatnonzero(class_of == c))
        index[slots == c] = examples[: num_slots[c] * size].reshape(-1, size)
    return equal_parts(index.reshape(num_clients, -1))


def label_groups(
    labels: np.ndarray,
    *,
    num_clients: int,
    slow_fraction: float = 1 / 3,
    slow_labels: int = 4,
    held_out: float = 0.0,
    seed: int,
) -> Partition:
    """Give the first few labels to the last clients and the others to the rest, each label in equal parts within its group.

    labels: integers `[n]`, taken in order of size. slow_fraction: share of the clients in the last group, rounded up, which are the slow
    ones of `slow_clients="last"`. slow_labels: labels they have. held_out: share of each client's examples that is left out, rounded
    down. What does not divide evenly is left out too. FedStaleWeight's experiments (arXiv 2406.02877, Sec. 6, and the public bench).
    """
    labels, rng = checked_labels(labels), generator(seed)
    present = np.unique(labels)
    check_whole("num_clients", num_clients, least=2)
    check_whole("slow_labels", slow_labels, most=len(present) - 1)
    for name, value, most in (("slow_fraction", slow_fraction, 1), ("held_out", held_out, 1)):
        if not isinstance(value, (int, float)) or not 0 <= value < most:
            raise ConfigError(name, value, "at least 0 and below 1")
    num_slow = int(np.ceil(slow_fraction * num_clients - 1e-6))
    check_whole("clients in the last group, of slow_fraction", num_slow, most=num_clients - 1)
    rows: list[np.ndarray] = []
    for own, num in (
        (present[slow_labels:], num_clients - num_slow),
        (present[:slow_labels], num_slow),
    ):
        parts = []
        for label in own:
            examples = rng.permutation(np.flatnonzero(labels == label))
            size = len(examples) // num
            if size == 0:
                raise ConfigError(
                    "num_clients",
                    num_clients,
                    f"small enough for each of a group's clients to have an example of label {label}",
                )
            parts.append(examples[: num * size].reshape(num, size))
        rows += [rng.permutation(row) for row in np.concatenate(parts, axis=1)]
    kept = [row[int(held_out * len(row)) :] for row in rows]
    return grouped(
        np.concatenate(kept),
        np.repeat(np.arange(num_clients), [len(row) for row in kept]),
        num_clients,
    )


def dirichlet_groups(
    labels: np.ndarray,
    *,
    num_clients: int,
    group_sizes: tuple[int, ...],
    alpha: float,
    seed: int,
    min_examples: int = 1,
) -> Partition:
    """Split each class in Dirichlet proportions over groups, and a group's examples at random and evenly over its clients.

    labels: integers `[n]`. Proportions are drawn again until every group has `min_examples` for each of its clients. Every example is
    given away; clients of a group differ by one example at most. Hierarchical FL's Figs. 4 and 5b (arXiv 2302.04851).
    """
    labels, rng = checked_labels(labels), generator(seed)
    check_whole("num_clients", num_clients, most=len(labels))
    _check_groups(group_sizes, num_clients)
    check_whole("min_examples", min_examples, most=len(labels) // num_clients)
    check_alpha(alpha)
    per_class = dirichlet_shares(
        rng,
        len(group_sizes),
        alpha,
        np.unique(labels, return_counts=True)[1],
        least=min_examples * np.asarray(group_sizes),
    )
    by_class = sorted_by(labels, rng.permutation(len(labels)))
    group_of = np.concatenate([np.repeat(np.arange(len(group_sizes)), row) for row in per_class])
    examples, owner = [], []
    first = 0
    for group, size in enumerate(group_sizes):
        own = rng.permutation(by_class[group_of == group])
        examples.append(own)
        owner.append(first + np.arange(len(own)) % size)
        first += size
    return grouped(np.concatenate(examples), np.concatenate(owner), num_clients)


def disjoint_groups(
    labels: np.ndarray,
    *,
    num_clients: int,
    group_sizes: tuple[int, ...],
    classes: int = 2,
    seed: int,
) -> Partition:
    """Deal the labels to groups that share none, and to each client `classes` of its group's, as `classes_per_client` does.

    labels: integers `[n]`. Groups have equally many labels, the first ones one more if need be. Hierarchical FL's Fig. 5a (arXiv
    2302.04851). Raises ConfigError for groups with fewer labels than a client is to have.
    """
    labels, rng = checked_labels(labels), generator(seed)
    check_whole("num_clients", num_clients, most=len(labels))
    _check_groups(group_sizes, num_clients)
    present = rng.permutation(np.unique(labels))
    check_whole("classes", classes, most=len(present) // len(group_sizes))
    examples, owner = [], []
    first = 0
    for own_labels, size in zip(
        np.array_split(present, len(group_sizes)), group_sizes, strict=True
    ):
        mine = np.flatnonzero(np.isin(labels, own_labels))
        index, counts = classes_per_client(
            labels[mine], num_clients=size, classes=classes, seed=int(rng.integers(2**31))
        )
        examples.append(mine[index].ravel())
        owner.append(first + np.repeat(np.arange(size), counts))
        first += size
    return grouped(np.concatenate(examples), np.concatenate(owner), num_clients)


def _check_groups(group_sizes: tuple[int, ...], num_clients: int) -> None:
    if (
        not isinstance(group_sizes, tuple)
        or not group_sizes
        or sum(group_sizes) != num_clients
        or min(group_sizes) < 1
    ):
        raise ConfigError(
            "group_sizes",
            group_sizes,
            f"whole numbers of at least 1 with the sum num_clients = {num_clients}",
        )


def _swap_until_distinct(slots: np.ndarray, rng: np.random.Generator) -> None:
    """Swap entries of `slots`, `i[N, classes]` of classes, in place until every row is distinct.

    A duplicate goes to a row without that class, for a class that is new in its own row or a duplicate in the other: each swap
    adds to the rows' distinct classes, and as no class has more than N slots there always is one.
    """
    num_clients, classes = slots.shape
    held = np.zeros((num_clients, slots.max() + 1), int)
    np.add.at(held, (np.arange(num_clients)[:, None], slots), 1)
    for client, place in np.argwhere(held[np.arange(num_clients)[:, None], slots] > 1):
        mine = slots[client, place]
        while held[client, mine] > 1:
            clients, places = rng.integers(num_clients, size=64), rng.integers(classes, size=64)
            theirs = slots[clients, places]
            helps = (held[clients, mine] == 0) & (
                (held[client, theirs] == 0) | (held[clients, theirs] > 1)
            )
            for i in np.flatnonzero(helps)[:1]:
                slots[client, place], slots[clients[i], places[i]] = theirs[i], mine
                held[client, [mine, theirs[i]]] += -1, 1
                held[clients[i], [mine, theirs[i]]] += 1, -1
                mine = theirs[i]
