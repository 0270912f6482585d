"""Who holds which training examples: seeded partitions as index arrays, worked out on the host.

Every function gives each example to one client at most, and every client at least one example. The draws are those of a stream of their
own, so they are independent of anything else that is drawn from the same seed. Letters: `n` training examples, `N` clients, `M` examples
of the best-endowed client, `C` classes.
"""

import inspect
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIRICHLET_TRIES = 1000


class Partition(NamedTuple):
    """The clients' examples."""

    index: np.ndarray  # type: ignore[assignment]  # i32[N, M]  positions in the training set; 0 from `counts` on
    counts: np.ndarray  # i32[N]  true number of examples of each client


def iid(labels: np.ndarray, *, num_clients: int, seed: int) -> Partition:
    """Split at random into equal parts; the remainder is left out.

    labels: integers `[n]`. Raises ConfigError for more clients than examples.
    """
    labels, rng = _checked_labels(labels), _generator(seed)
    _check_whole("num_clients", num_clients, most=len(labels))
    size = len(labels) // num_clients
    return _partition(rng.permutation(len(labels))[: num_clients * size].reshape(num_clients, size))


def classes_per_client(labels: np.ndarray, *, num_clients: int, classes: int = 2, seed: int) -> Partition:
    """Give each client an equal number of examples of `classes` distinct classes, drawn at random.

    The classes have `classes * N / C` slots each; where that is not whole, some classes drawn at random have one more. The shuffled slots
    are dealt to the clients, then clashing ones are swapped at random until no client holds a class twice. Each class is split
    evenly over its slots, and all slots are truncated to the size of the smallest. FAVANO (arXiv 2305.16099), section 5.

    labels: integers `[n]`. Raises ConfigError for more classes than there are, or for a slot without an example.
    """
    labels, rng = _checked_labels(labels), _generator(seed)
    _check_whole("num_clients", num_clients)
    present, class_of = np.unique(labels, return_inverse=True)
    _check_whole("classes", classes, most=len(present))
    each, more = divmod(classes * num_clients, len(present))
    num_slots = np.full(len(present), each)
    num_slots[rng.choice(len(present), more, replace=False)] += 1
    size = min(np.bincount(class_of)[num_slots > 0] // num_slots[num_slots > 0])
    if size == 0:
        raise ConfigError("num_clients", num_clients, f"small enough for each of the {classes * num_clients} slots to get an example")

    slots = rng.permutation(np.repeat(np.arange(len(present)), num_slots)).reshape(num_clients, classes)
    _swap_until_distinct(slots, rng)
    index = np.empty((num_clients, classes, size), np.int32)
    for c in range(len(present)):
        examples = rng.permutation(np.flatnonzero(class_of == c))
        index[slots == c] = examples[: num_slots[c] * size].reshape(-1, size)
    return _partition(index.reshape(num_clients, -1))


def dirichlet(labels: np.ndarray, *, num_clients: int, alpha: float, seed: int, min_examples: int = 1) -> Partition:
    """Split each class in proportions from a symmetric Dirichlet distribution over clients; every example is given away.

    alpha: concentration; small is heterogeneous, infinity would be equal shares. Proportions are drawn again until every client has
    `min_examples`; ConfigError if `DIRICHLET_TRIES` draws do not give them. Yurochkin et al. (arXiv 1905.12022); Li et al. (2102.02079).
    """
    labels, rng = _checked_labels(labels), _generator(seed)
    _check_whole("num_clients", num_clients, most=len(labels))
    _check_whole("min_examples", min_examples, most=len(labels) // num_clients)
    if not isinstance(alpha, (int, float, np.integer, np.floating)) or not (np.isfinite(alpha) and alpha > 0):
        raise ConfigError("alpha", alpha, "a finite number above 0")
    sizes = np.unique(labels, return_counts=True)[1]
    for _ in range(DIRICHLET_TRIES):
        per_class = _shares(rng, num_clients, float(alpha), sizes)
        if per_class.sum(axis=0).min() >= min_examples:
            break
    else:
        raise ConfigError("alpha", alpha, f"larger, or min_examples smaller: {DIRICHLET_TRIES} draws left a client with too few examples")
    by_class = _sorted_by(labels, rng.permutation(len(labels)))
    owner = np.concatenate([np.repeat(np.arange(num_clients), row) for row in per_class])
    return _grouped(by_class, owner, num_clients)


def shards(labels: np.ndarray, *, num_clients: int, shards_per_client: int = 2, seed: int) -> Partition:
    """Sort by label, cut into equal shards and deal them at random; examples that do not fill a shard are left out at random.

    labels: integers `[n]`. McMahan et al. (arXiv 1602.05629), section 3. A client has about `shards_per_client` classes, possibly fewer.
    """
    labels, rng = _checked_labels(labels), _generator(seed)
    _check_whole("shards_per_client", shards_per_client, most=len(labels))
    _check_whole("num_clients", num_clients, most=len(labels) // shards_per_client)
    num_shards = num_clients * shards_per_client
    size = len(labels) // num_shards
    kept = rng.permutation(len(labels))[: num_shards * size]
    dealt = rng.permutation(_sorted_by(labels, kept).reshape(num_shards, size))
    return _partition(dealt.reshape(num_clients, -1))


def label_groups(
    labels: np.ndarray, *, num_clients: int, slow_fraction: float = 1 / 3, slow_labels: int = 4, held_out: float = 0.0, seed: int
) -> Partition:
    """Give the first few labels to the last clients and the others to the rest, each label in equal parts within its group.

    labels: integers `[n]`, taken in order of size. slow_fraction: share of the clients in the last group, rounded up, which are the slow
    ones of `slow_clients="last"`. slow_labels: labels they have. held_out: share of each client's examples that is left out, rounded
    down. What does not divide evenly is left out too. FedStaleWeight's experiments (arXiv 2406.02877, Sec. 6, and the public bench).
    """
    labels, rng = _checked_labels(labels), _generator(seed)
    present = np.unique(labels)
    _check_whole("num_clients", num_clients, least=2)
    _check_whole("slow_labels", slow_labels, most=len(present) - 1)
    for name, value, most in (("slow_fraction", slow_fraction, 1), ("held_out", held_out, 1)):
        if not isinstance(value, (int, float)) or not 0 <= value < most:
            raise ConfigError(name, value, "at least 0 and below 1")
    num_slow = int(np.ceil(slow_fraction * num_clients - 1e-6))
    _check_whole("clients in the last group, of slow_fraction", num_slow, most=num_clients - 1)
    rows: list[np.ndarray] = []
    for own, num in ((present[slow_labels:], num_clients - num_slow), (present[:slow_labels], num_slow)):
        parts = []
        for label in own:
            examples = rng.permutation(np.flatnonzero(labels == label))
            size = len(examples) // num
            if size == 0:
                raise ConfigError(
                    "num_clients", num_clients, f"small enough for each of a group's clients to have an example of label {label}"
                )
            parts.append(examples[: num * size].reshape(num, size))
        rows += [rng.permutation(row) for row in np.concatenate(parts, axis=1)]
    kept = [row[int(held_out * len(row)) :] for row in rows]
    return _grouped(np.concatenate(kept), np.repeat(np.arange(num_clients), [len(row) for row in kept]), num_clients)


def natural(labels: np.ndarray, *, client_ids: np.ndarray, num_clients: int, seed: int) -> Partition:
    """Keep the clients that the data came with; if there are more than `num_clients`, a random choice of them.

    labels: integers `[n]`. client_ids: `[n]` of integers or strings, whose example each is. Rows are in the order of the ids.
    """
    labels, rng = _checked_labels(labels), _generator(seed)
    client_ids = np.asarray(client_ids)
    if client_ids.shape != labels.shape:
        raise ConfigError("shape of client_ids", client_ids.shape, f"that of the labels, {labels.shape}")
    if client_ids.dtype.kind not in "iuUS":
        raise ConfigError("dtype of client_ids", str(client_ids.dtype), "integers or strings")
    ids, client_of = np.unique(client_ids, return_inverse=True)
    _check_whole("num_clients", num_clients, most=len(ids))
    chosen = np.sort(rng.choice(len(ids), num_clients, replace=False))
    row_of = np.full(len(ids), -1)
    row_of[chosen] = np.arange(num_clients)
    examples = np.flatnonzero(row_of[client_of] >= 0)
    return _grouped(examples, row_of[client_of[examples]], num_clients)


PARTITIONS: dict[str, tuple[Callable[..., Partition], str]] = {
    "iid": (iid, "random equal parts"),
    "classes": (classes_per_client, "equal parts of a few distinct classes each (option classes, 2 unless given)"),
    "dirichlet": (dirichlet, "each class in Dirichlet proportions over clients (options alpha, min_examples)"),
    "shards": (shards, "equal shards of the data sorted by label (option shards_per_client, 2 unless given)"),
    "label_groups": (
        label_groups,
        "few labels for the last clients, the others for the rest (options slow_fraction, slow_labels, held_out)",
    ),
    "natural": (natural, "the clients that the data came with (option client_ids, an array)"),
}


def make(name: str, labels: np.ndarray, *, num_clients: int, seed: int, **options: Any) -> Partition:
    """Partition by a name of `PARTITIONS`; raises ConfigError for an unknown name, and unknown, missing or bad options."""
    if name not in PARTITIONS:
        raise ConfigError("partition", name, "one of " + ", ".join(PARTITIONS))
    function = PARTITIONS[name][0]
    known = {k: p for k, p in inspect.signature(function).parameters.items() if k not in ("labels", "num_clients", "seed")}
    for option in options:
        if option not in known:
            raise ConfigError(f"option of partition {name}", option, "one of " + ", ".join(known) if known else "left out: it has none")
    for option, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ConfigError(f"option {option} of partition {name}", None, "given")
    return function(labels, num_clients=num_clients, seed=seed, **options)


def label_histogram(partition: Partition, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Count each client's examples of each class: `i32[N, C]`."""
    if np.max(labels) >= num_classes:
        raise ConfigError("largest label", int(np.max(labels)), f"below the number of classes, {num_classes}")
    num_clients, capacity = partition.index.shape
    is_real = np.arange(capacity) < partition.counts[:, None]
    cell = np.arange(num_clients)[:, None] * num_classes + np.asarray(labels)[partition.index]
    return np.bincount(cell[is_real], minlength=num_clients * num_classes).reshape(num_clients, num_classes).astype(np.int32)


def plot_histogram(
    partition: Partition, labels: np.ndarray, num_classes: int, *, class_names: Sequence[str] | None = None, title: str = ""
) -> "Figure":
    """Draw how many examples of each class each client holds: a column per client, a row per class, darker for more."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 1.5 + 0.25 * min(num_classes, 40)), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(label_histogram(partition, labels, num_classes).T, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    figure.colorbar(picture, label="examples")
    axes.set(xlabel="client", ylabel="class", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if class_names is not None:
        axes.set_yticks(range(num_classes), class_names)
    elif num_classes <= 20:
        axes.set_yticks(range(num_classes))
    return figure


def _shares(rng: np.random.Generator, num_clients: int, alpha: float, sizes: np.ndarray) -> np.ndarray:
    """Cut classes of `sizes`, `i[C]`, in Dirichlet proportions into whole numbers of examples, `i[C, N]`."""
    cuts = np.cumsum(rng.dirichlet(np.full(num_clients, alpha), len(sizes)), axis=1) * sizes[:, None]
    cuts = np.minimum(cuts.astype(int), sizes[:, None])
    cuts[:, -1] = sizes
    return np.diff(cuts, axis=1, prepend=0)


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
            helps = (held[clients, mine] == 0) & ((held[client, theirs] == 0) | (held[clients, theirs] > 1))
            for i in np.flatnonzero(helps)[:1]:
                slots[client, place], slots[clients[i], places[i]] = theirs[i], mine
                held[client, [mine, theirs[i]]] += -1, 1
                held[clients[i], [mine, theirs[i]]] += 1, -1
                mine = theirs[i]


def _checked_labels(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0:
        raise ConfigError("shape of labels", labels.shape, "[n] with at least one example")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError("dtype of labels", str(labels.dtype), "an integer type")
    if labels.min() < 0:
        raise ConfigError("smallest label", int(labels.min()), "at least 0")
    return labels


def _check_whole(field: str, value: int, *, least: int = 1, most: int | None = None) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        raise ConfigError(field, value, f"a whole number of at least {least}" + ("" if most is None else f" and at most {most}"))


def _generator(seed: int) -> np.random.Generator:
    _check_whole("seed", seed, least=0)
    return np.random.default_rng([int(seed), zlib.crc32(b"partition")])


def _sorted_by(labels: np.ndarray, examples: np.ndarray) -> np.ndarray:
    return examples[np.argsort(labels[examples], kind="stable")]


def _partition(index: np.ndarray) -> Partition:
    return Partition(index.astype(np.int32), np.full(len(index), index.shape[1], np.int32))


def _grouped(examples: np.ndarray, owner: np.ndarray, num_clients: int) -> Partition:
    """Gather each client's examples into a row. examples, owner: integers of one length; owner below num_clients."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=num_clients)
    index = np.zeros((num_clients, counts.max()), np.int32)
    index[np.arange(counts.max()) < counts[:, None]] = examples[order]
    return Partition(index, counts.astype(np.int32))
