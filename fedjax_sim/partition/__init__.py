"""Who holds which training examples: seeded partitions as index arrays, worked out on the host.

Every function gives each example to one client at most, and every client at least one example. The draws are those of a stream of their
own, so they are independent of anything else that is drawn from the same seed. Letters: `n` training examples, `N` clients, `M` examples
of the best-endowed client, `C` classes.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_sim.partition.by_label import (
    classes_per_client,
    dirichlet_groups,
    disjoint_groups,
    label_groups,
)
from fedjax_sim.partition.parts import (
    Partition,
    check_alpha,
    check_whole,
    checked_labels,
    dirichlet_shares,
    equal_parts,
    generator,
    grouped,
    shares,
    sorted_by,
)
from fedjax_sim.settings import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRIES_BEFORE_TOP_UP = 100


def iid(labels: np.ndarray, *, num_clients: int, seed: int) -> Partition:
    """Split at random into equal parts; the remainder is left out.

    labels: integers `[n]`. Raises ConfigError for more clients than examples.
    """
    labels, rng = checked_labels(labels), generator(seed)
    check_whole("num_clients", num_clients, most=len(labels))
    size = len(labels) // num_clients
    return equal_parts(
        rng.permutation(len(labels))[: num_clients * size].reshape(num_clients, size)
    )


def dirichlet(
    labels: np.ndarray,
    *,
    num_clients: int,
    alpha: float,
    seed: int,
    min_examples: int = 1,
    top_up: bool = False,
) -> Partition:
    """Split each class in proportions from a symmetric Dirichlet distribution over clients; every example is given away.

    alpha: concentration; small is heterogeneous, infinity would be equal shares. Proportions are drawn again until every client has
    `min_examples`; ConfigError if `DIRICHLET_TRIES` draws do not give them. Yurochkin et al. (arXiv 1905.12022); Li et al. (2102.02079).
    top_up: whether to stop after `TRIES_BEFORE_TOP_UP` draws, and to give clients with too few examples some of the largest client's most
    frequent class: of a thousand clients some are always poor.
    """
    labels, rng = checked_labels(labels), generator(seed)
    check_whole("num_clients", num_clients, most=len(labels))
    check_whole("min_examples", min_examples, most=len(labels) // num_clients)
    check_alpha(alpha)
    sizes = np.unique(labels, return_counts=True)[1]
    if top_up:
        for _ in range(TRIES_BEFORE_TOP_UP):
            per_class = shares(rng, num_clients, float(alpha), sizes)
            if per_class.sum(axis=0).min() >= min_examples:
                break
        per_class = _topped_up(per_class, min_examples)
    else:
        per_class = dirichlet_shares(rng, num_clients, alpha, sizes, least=min_examples)
    by_class = sorted_by(labels, rng.permutation(len(labels)))
    owner = np.concatenate([np.repeat(np.arange(num_clients), row) for row in per_class])
    return grouped(by_class, owner, num_clients)


def shards(
    labels: np.ndarray, *, num_clients: int, shards_per_client: int = 2, seed: int
) -> Partition:
    """Sort by label, cut into equal shards and deal them at random; examples that do not fill a shard are left out at random.

    labels: integers `[n]`. McMahan et al. (arXiv 1602.05629), section 3. A client has about `shards_per_client` classes, possibly fewer.
    """
    labels, rng = checked_labels(labels), generator(seed)
    check_whole("shards_per_client", shards_per_client, most=len(labels))
    check_whole("num_clients", num_clients, most=len(labels) // shards_per_client)
    num_shards = num_clients * shards_per_client
    size = len(labels) // num_shards
    kept = rng.permutation(len(labels))[: num_shards * size]
    dealt = rng.permutation(sorted_by(labels, kept).reshape(num_shards, size))
    return equal_parts(dealt.reshape(num_clients, -1))


def natural(
    labels: np.ndarray, *, client_ids: np.ndarray, num_clients: int, seed: int
) -> Partition:
    """Keep the clients that the data came with; if there are more than `num_clients`, a random choice of them.

    labels: integers `[n]`. client_ids: `[n]` of integers or strings, whose example each is. Rows are in the order of the ids.
    """
    labels, rng = checked_labels(labels), generator(seed)
    client_ids = np.asarray(client_ids)
    if client_ids.shape != labels.shape:
        raise ConfigError(
            "shape of client_ids", client_ids.shape, f"that of the labels, {labels.shape}"
        )
    if client_ids.dtype.kind not in "iuUS":
        raise ConfigError("dtype of client_ids", str(client_ids.dtype), "integers or strings")
    ids, client_of = np.unique(client_ids, return_inverse=True)
    check_whole("num_clients", num_clients, most=len(ids))
    chosen = np.sort(rng.choice(len(ids), num_clients, replace=False))
    row_of = np.full(len(ids), -1)
    row_of[chosen] = np.arange(num_clients)
    examples = np.flatnonzero(row_of[client_of] >= 0)
    return grouped(examples, row_of[client_of[examples]], num_clients)


PARTITIONS: dict[str, tuple[Callable[..., Partition], str]] = {
    "iid": (iid, "random equal parts"),
    "classes": (
        classes_per_client,
        "equal parts of a few distinct classes each (option classes, 2 unless given)",
    ),
    "dirichlet": (
        dirichlet,
        "each class in Dirichlet proportions over clients (options alpha, min_examples)",
    ),
    "shards": (
        shards,
        "equal shards of the data sorted by label (option shards_per_client, 2 unless given)",
    ),
    "label_groups": (
        label_groups,
        "few labels for the last clients, the others for the rest (options slow_fraction, slow_labels, held_out)",
    ),
    "dirichlet_groups": (
        dirichlet_groups,
        "each class in Dirichlet proportions over groups of clients, evenly within (options group_sizes, alpha, min_examples)",
    ),
    "disjoint_groups": (
        disjoint_groups,
        "groups of clients with labels of their own, a few of them per client (options group_sizes, classes)",
    ),
    "natural": (
        natural,
        "the clients that the data came with, if they did (in Python: option client_ids, an array)",
    ),
}


def make(
    name: str, labels: np.ndarray, *, num_clients: int, seed: int, **options: Any
) -> Partition:
    """Partition by a name of `PARTITIONS`; raises ConfigError for an unknown name, and unknown, missing or bad options."""
    if name not in PARTITIONS:
        raise ConfigError("partition", name, "one of " + ", ".join(PARTITIONS))
    function = PARTITIONS[name][0]
    known = {
        k: p
        for k, p in inspect.signature(function).parameters.items()
        if k not in ("labels", "num_clients", "seed")
    }
    for option in options:
        if option not in known:
            raise ConfigError(
                f"option of partition {name}",
                option,
                "one of " + ", ".join(known) if known else "left out: it has none",
            )
    for option, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ConfigError(f"option {option} of partition {name}", None, "given")
    return function(labels, num_clients=num_clients, seed=seed, **options)


def label_histogram(partition: Partition, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Count each client's examples of each class: `i32[N, C]`."""
    if np.max(labels) >= num_classes:
        raise ConfigError(
            "largest label", int(np.max(labels)), f"below the number of classes, {num_classes}"
        )
    num_clients, capacity = partition.index.shape
    is_real = np.arange(capacity) < partition.counts[:, None]
    cell = np.arange(num_clients)[:, None] * num_classes + np.asarray(labels)[partition.index]
    return (
        np.bincount(cell[is_real], minlength=num_clients * num_classes)
        .reshape(num_clients, num_classes)
        .astype(np.int32)
    )


def plot_histogram(
    partition: Partition,
    labels: np.ndarray,
    num_classes: int,
    *,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> "Figure":
    """Draw how many examples of each class each client holds: a column per client, a row per class, darker for more."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 1.5 + 0.25 * min(num_classes, 40)), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(
        label_histogram(partition, labels, num_classes).T,
        aspect="auto",
        cmap="Blues",
        interpolation="nearest",
        vmin=0,
    )
    figure.colorbar(picture, label="examples")
    axes.set(xlabel="client", ylabel="class", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if class_names is not None:
        axes.set_yticks(range(num_classes), class_names)
    elif num_classes <= 20:
        axes.set_yticks(range(num_classes))
    return figure


def _topped_up(per_class: np.ndarray, least: int) -> np.ndarray:
    """Move examples from the largest client, out of its largest class, to the smallest until all have enough. per_class: `i[C, N]`."""
    held = per_class.copy()
    total = held.sum(axis=0)
    while total.min() < least:
        poor, rich = int(np.argmin(total)), int(np.argmax(total))
        label = int(np.argmax(held[:, rich]))
        given = min(least - total[poor], held[label, rich], total[rich] - least)
        held[label, [poor, rich]] += given, -given
        total[[poor, rich]] += given, -given
    return held
