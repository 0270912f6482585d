"""What ways of splitting data share: the form of a split, its random numbers, and checks of what is asked for.

Letters: `n` training examples, `N` clients, `M` examples of the best-endowed client, `C` classes.
"""

import zlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError

DIRICHLET_TRIES = 1000


class Partition(NamedTuple):
    """The clients' examples."""

    index: np.ndarray  # type: ignore[assignment]  # i32[N, M]  positions in the training set; 0 from `counts` on
    counts: np.ndarray  # i32[N]  true number of examples of each client


def checked_labels(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0:
        raise ConfigError("shape of labels", labels.shape, "[n] with at least one example")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError("dtype of labels", str(labels.dtype), "an integer type")
    if labels.min() < 0:
        raise ConfigError("smallest label", int(labels.min()), "at least 0")
    return labels


def check_whole(field: str, value: int, *, least: int = 1, most: int | None = None) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        raise ConfigError(
            field,
            value,
            f"a whole number of at least {least}"
            + ("" if most is None else f" and at most {most}"),
        )


def generator(seed: int) -> np.random.Generator:
    check_whole("seed", seed, least=0)
    return np.random.default_rng([int(seed), zlib.crc32(b"partition")])


def sorted_by(labels: np.ndarray, examples: np.ndarray) -> np.ndarray:
    return examples[np.argsort(labels[examples], kind="stable")]


def equal_parts(index: np.ndarray) -> Partition:
    return Partition(index.astype(np.int32), np.full(len(index), index.shape[1], np.int32))


def grouped(examples: np.ndarray, owner: np.ndarray, num_clients: int) -> Partition:
    """Gather each client's examples into a row. examples, owner: integers of one length; owner below num_clients."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=num_clients)
    index = np.zeros((num_clients, counts.max()), np.int32)
    index[np.arange(counts.max()) < counts[:, None]] = examples[order]
    return Partition(index, counts.astype(np.int32))


def check_alpha(alpha: Any) -> None:
    """Raise ConfigError unless a Dirichlet distribution can have this concentration."""
    if not isinstance(alpha, (int, float, np.integer, np.floating)) or not (
        np.isfinite(alpha) and alpha > 0
    ):
        raise ConfigError("alpha", alpha, "a finite number above 0")


def dirichlet_shares(
    rng: np.random.Generator, num_owners: int, alpha: float, sizes: np.ndarray, *, least: Any
) -> np.ndarray:
    """Cut classes of `sizes`, `i[C]`, in Dirichlet proportions over owners with at least `least` examples each: `i[C, owners]`.

    least: a number, or one per owner. Draws again until it is so; raises ConfigError if `DIRICHLET_TRIES` draws do not give it.
    """
    for _ in range(DIRICHLET_TRIES):
        per_class = shares(rng, num_owners, float(alpha), sizes)
        if np.all(per_class.sum(axis=0) >= least):
            return per_class
    raise ConfigError(
        "alpha",
        alpha,
        f"larger, or min_examples smaller: {DIRICHLET_TRIES} draws left a client with too few examples",
    )


def shares(
    rng: np.random.Generator, num_clients: int, alpha: float, sizes: np.ndarray
) -> np.ndarray:
    """Cut classes of `sizes`, `i[C]`, in Dirichlet proportions into whole numbers of examples, `i[C, N]`."""
    cuts = (
        np.cumsum(rng.dirichlet(np.full(num_clients, alpha), len(sizes)), axis=1) * sizes[:, None]
    )
    cuts = np.minimum(cuts.astype(int), sizes[:, None])
    cuts[:, -1] = sizes
    return np.diff(cuts, axis=1, prepend=0)
