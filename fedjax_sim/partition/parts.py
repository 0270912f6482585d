"""Shared by all partitions: their result, their random numbers and the checks of their arguments.

Letters: `n` training examples, `N` clients, `P` examples of all clients, `C` classes.
"""

import zlib
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedjax_sim.core.settings import ConfigError, Count, Limit, checked, shape

WHOLE = Limit(least=0, most=2**31 - 1, is_whole=True)
ROUNDING = 1e-9
"""Rounding error that is forgiven before a product is rounded down: 0.29 * 100 is below 29."""
DIRICHLET_TRIES = 1000
"""Draws of Dirichlet proportions before it is an error that an owner has too few examples."""
TRIES = 100
"""Draws of `dirichlet` with `top_up` before examples are moved to the clients that lack them."""


@checked
class Partition(NamedTuple):
    """The training examples of each client, one client after another.

        halves = Partition(index=np.array([0, 1, 2, 3, 4]), counts=np.array([3, 2]))
        assert [each.tolist() for each in halves.rows()] == [[0, 1, 2], [3, 4]]

    Attributes:
      index: `i32[P]`, positions in the training set: those of client 0, then of client 1 and so on.
      counts: `i32[N]`, number of examples of each client; their sum is P.
    """

    index: Annotated[np.ndarray, shape("P"), WHOLE]  # type: ignore[assignment]
    counts: Annotated[np.ndarray, shape("N"), WHOLE]

    @property
    def offsets(self) -> np.ndarray:
        """Place in `index` at which each client begins: `i32[N]`.

        Raises:
          ConfigError: If the counts do not add up to the length of `index`.
        """
        ends = np.cumsum(self.counts, dtype=np.int64)
        if (total := int(ends[-1]) if len(ends) else 0) != len(self.index):
            allowed = f"{len(self.index)}, the length of partition.index"
            raise ConfigError("sum of partition.counts", total, allowed)
        return (ends - self.counts).astype(np.int32)

    def rows(self) -> list[np.ndarray]:
        """List the positions of each client: N arrays of integers."""
        return np.split(np.asarray(self.index), self.offsets[1:]) if len(self.counts) else []


def label_histogram(partition: Partition, labels: np.ndarray, num_classes: Count) -> np.ndarray:
    """Count each client's examples of each class.

        clients = dirichlet(data.train_labels, num_clients=8, alpha=0.3, seed=0)
        label_histogram(clients, data.train_labels, 10)  # [8, 10]

    Args:
      partition: The clients' examples.
      labels: Class of each training example, integers `[n]`.
      num_classes: Number of classes, C, above the largest label.

    Returns:
      `i32[N, C]`, numbers of examples.

    Raises:
      ConfigError: If a label is no whole number from 0 to below `num_classes`, if an example has
        no label, or if the counts do not add up.
    """
    labels, _ = begin(labels, 0)
    if np.max(labels) >= num_classes:
        allowed = f"below the number of classes, {num_classes}"
        raise ConfigError("largest label", int(np.max(labels)), allowed)
    if (last := int(partition.index.max(initial=-1))) >= len(labels):
        allowed = f"below the number of labels, {len(labels)}"
        raise ConfigError("largest of partition.index", last, allowed)
    found = np.zeros((len(partition.counts), num_classes), np.int32)
    for client, row in enumerate(partition.rows()):
        found[client] = np.bincount(labels[row], minlength=num_classes)
    return found


def make_generator(seed: int, name: str = "partition") -> np.random.Generator:
    """Make the generator of a partition's random numbers, from a stream used for nothing else.

    Args:
      seed: Whole number of at least 0.
      name: Name of the stream.

    Returns:
      The generator. Equal seeds give equal draws.
    """
    return np.random.default_rng([int(seed), zlib.crc32(name.encode())])


def begin(
    labels: np.ndarray, seed: int, num_clients: int = 1
) -> tuple[np.ndarray, np.random.Generator]:
    """Check labels, integers `[n]`, and begin the random numbers of a partition.

    Args:
      labels: Class of each training example.
      seed: As in `make_generator`.
      num_clients: A number that must be at most n.

    Returns:
      The labels as an array, and the generator.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0:
        raise ConfigError("shape of labels", labels.shape, "[n] with at least one example")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError("dtype of labels", str(labels.dtype), "an integer type")
    if labels.min() < 0:
        raise ConfigError("smallest label", int(labels.min()), "at least 0")
    check_most("num_clients", num_clients, len(labels))
    return labels, make_generator(seed)


def check_most(field: str, value: int, most: int) -> None:
    """Raise ConfigError unless a number is at most `most`."""
    if value > most:
        raise ConfigError(field, value, f"a whole number of at least 1 and at most {most}")


def cut_classes(
    rng: np.random.Generator,
    num_owners: int,
    alpha: float,
    sizes: np.ndarray,
    *,
    least: Any,
    top_up: bool = False,
) -> np.ndarray:
    """Cut each class into whole numbers of examples, in Dirichlet proportions over owners.

    Args:
      rng: Source of random numbers.
      num_owners: Number of owners: clients, or groups of clients.
      alpha: Concentration of the Dirichlet distribution.
      sizes: `i[C]`, number of examples of each class.
      least: Least number of examples of an owner, one number or one for each owner.
      top_up: Whether to stop after `TRIES` draws and move examples to owners with too few.

    Returns:
      `i[C, owners]`, numbers of examples. Each row sums to the size of its class.

    Raises:
      ConfigError: If none of `DIRICHLET_TRIES` draws gives every owner enough.
    """
    for _ in range(TRIES if top_up else DIRICHLET_TRIES):
        shares = np.stack([draw_shares(rng, num_owners, float(alpha)) for _ in sizes])
        cuts = np.cumsum(shares, axis=1) * sizes[:, None]
        cuts = np.minimum(cuts.astype(int), sizes[:, None])
        cuts[:, -1] = sizes
        per_class = np.diff(cuts, axis=1, prepend=0)
        if np.all(per_class.sum(axis=0) >= least):
            return per_class
    if top_up:
        return _top_up(per_class, least)
    allowed = (
        f"larger, or min_examples smaller: each of {DIRICHLET_TRIES} draws left a client with "
        "too few examples"
    )
    raise ConfigError("alpha", alpha, allowed)


def _top_up(per_class: np.ndarray, least: int) -> np.ndarray:
    """Move examples to the smallest clients until all have enough.

    They come from the largest client's largest class. per_class: `i[C, N]` numbers of examples.
    """
    held = per_class.copy()
    total = held.sum(axis=0)
    while total.min() < least:
        poor, rich = int(np.argmin(total)), int(np.argmax(total))
        label = int(np.argmax(held[:, rich]))
        given = min(least - total[poor], held[label, rich], total[rich] - least)
        held[label, [poor, rich]] += given, -given
        total[[poor, rich]] += given, -given
    return held


def draw_shares(rng: np.random.Generator, num: int, alpha: float) -> np.ndarray:
    """Draw shares from a symmetric Dirichlet distribution of concentration alpha: `f64[num]`."""
    # Sums of larger numbers would be infinite, and the shares nan.
    return rng.dirichlet(np.full(num, min(alpha, 1e300)))


def sort_by_label(labels: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Sort examples by their labels.

    Args:
      labels: Class of each training example, integers `[n]`.
      examples: Positions in the training set, integers `[k]`.

    Returns:
      The positions, `[k]`, ordered by label. Examples of one label keep their order.
    """
    return examples[np.argsort(labels[examples], kind="stable")]


def pack_rows(rows: Sequence[np.ndarray] | np.ndarray) -> Partition:
    """Make a partition of the positions of each client, N arrays of integers or a matrix."""
    counts = np.array([len(row) for row in rows], np.int32)
    return Partition(np.concatenate(rows).astype(np.int32), counts)


def gather_by_owner(examples: np.ndarray, owner: np.ndarray, num_clients: int) -> Partition:
    """Make a partition from the owner of each example.

    Args:
      examples: Positions in the training set, integers `[k]`.
      owner: Client of each of these examples, integers `[k]` below `num_clients`.
      num_clients: Number of clients, N.

    Returns:
      The partition. A client's examples keep their order.
    """
    counts = np.bincount(owner, minlength=num_clients)
    order = np.argsort(owner, kind="stable")
    return Partition(examples[order].astype(np.int32), counts.astype(np.int32))
