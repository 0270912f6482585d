"""Clients' examples as positions in shared arrays, from partitions or from an id per example.

Examples lie on the device once, whatever the number of clients, seeds and problems. A client's
examples are positions in them, padded so that all clients, and all partitions of a sweep, have the
same number of places.

Problems that are given by their losses may measure one loss for every client (`ClientLosses`).

Dimension letters: `N` clients, `M` places for examples of a client (the rest is padding).
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.checking import Count, Seed, checked, hints_of, kind_of, shape
from fedjax_sim.core.lifecycle import free_on_host, write_bytes
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.trees import as_array
from fedjax_sim.core.types import Array, Leaf, Params
from fedjax_sim.partition import Partition, parts

CHECKED = "_is_checked"
"""The mark of a problem with checked fields, as JAX's arrays do not change."""
Index = Annotated[Array, shape("N M")]
"""Positions of clients' examples, `i32[N, M]`, padded."""
Counts = Annotated[Array, shape("N")]
"""Clients' numbers of examples, `i32[N]`, without padding."""
LOOKED_AT = 10**8
"""Bytes from which on an array is compared with the memory that is free."""


def check_range(name: str, values: Leaf, least: float, most: float = math.inf) -> None:
    """Check limits of numbers; those of a program that is being traced are not known.

    Raises:
      ConfigError: If a number is below `least` or above `most`.
    """
    if isinstance(values, jax.core.Tracer) or not values.size:
        return
    if (smallest := values.min().item()) < least:
        raise ConfigError(f"smallest number in {name}", smallest, f"at least {least}")
    if (largest := values.max().item()) > most:
        raise ConfigError(f"largest number in {name}", largest, f"at most {most}")


@checked
def check_partition(partition: Partition, num_examples: Count) -> None:
    """Check that every client has an example and that every position exists.

        check_partition(iid(data.train_labels, num_clients=5, seed=0), len(data.train_labels))

    Args:
      partition: Positions `[N, M]` and counts `[N]`, as the functions of `fedjax_sim.partition`
        return them.
      num_examples: Number of examples that the positions refer to.

    Raises:
      ConfigError: If it is no partition, a client has no example or more than M, or a position is
        out of range.
    """
    _check_positions("partition.", Partition(*partition), num_examples)  # Checks replaced arrays.


def _check_positions(prefix: str, partition: Partition, num_examples: int) -> None:
    """Check the ranges of positions and counts; their names in errors begin with the prefix."""
    index, counts = map(np.asarray, partition)
    if not counts.size:
        raise ConfigError("number of clients in partition", 0, "at least 1")
    for count in (counts.min(), counts.max()):
        if not 1 <= count <= index.shape[1]:
            allowed = f"from 1 to {index.shape[1]}, the places that a client has for examples"
            raise ConfigError(f"{prefix}counts", int(count), allowed)
    for position in (index.min(), index.max()):
        if not 0 <= position < num_examples:
            allowed = f"from 0 to {num_examples - 1}, a position of one of the examples"
            raise ConfigError(f"{prefix}index", int(position), allowed)


def check_tests(partitions: Sequence[Partition], tests: Sequence[Partition]) -> None:
    """Check that test examples are partitioned once or as often, among the same clients.

    Args:
      partitions: Partitions of the training examples.
      tests: Partitions of the test examples.

    Raises:
      ConfigError: If there is another number of partitions, or of clients in one of them.
    """
    if len(tests) not in (1, len(partitions)):
        allowed = "1, or as many as of the training examples"
        raise ConfigError("number of partitions in test_partition", len(tests), allowed)
    times = len(partitions) // len(tests)
    for partition, test in zip(partitions, list(tests) * times, strict=True):
        num, found = len(partition.counts), len(test.counts)
        if found != num:
            allowed = f"{num}, as in the partition of the training examples"
            raise ConfigError("clients of test_partition", found, allowed)


@checked
def pad_partitions(
    partitions: Sequence[Partition], num_examples: Count
) -> list[tuple[Array, Array]]:
    """Check partitions, and pad them to one width so that their problems share a program.

        first, _ = partition_by_ids(["a", "a", "b"])  # two examples and one
        second, _ = partition_by_ids(["a", "a", "a"])
        (index, counts), (wide, _) = pad_partitions([first, second], 3)
        assert counts.tolist() == [2, 1] and index.shape == (2, 3) and wide.shape == (1, 3)

    Args:
      partitions: Partitions of the same examples, such as one per seed.
      num_examples: Number of examples that the positions refer to.

    Returns:
      For each partition its positions `i32[N, M]` and counts `i32[N]`, with the same M for all.

    Raises:
      ConfigError: If a client has no example, or a position is out of range.
    """
    for partition in partitions:
        check_partition(partition, num_examples)
    if len(partitions) == 0:
        raise ConfigError("number of partitions", 0, "at least 1")
    width = max(partition.index.shape[1] for partition in partitions)
    padded = []
    for partition in partitions:
        padding = ((0, 0), (0, width - partition.index.shape[1]))
        index = np.pad(np.asarray(partition.index, "int32"), padding)
        counts = as_array(partition.counts, "int32")
        padded.append((on_device("table of the clients' examples", index), counts))
    return padded


@checked
def partition_by_ids(ids: Iterable[Hashable]) -> tuple[Partition, tuple[Hashable, ...]]:
    """Give every example to the client that it names.

        clients, names = partition_by_ids(["watch", "phone", "watch"])
        assert names == ("phone", "watch") and clients.counts.tolist() == [1, 2]

    Clients are numbered in the order of their sorted ids. So ids that are the numbers 0 to N - 1
    are the clients' numbers, and another order of the examples gives nobody another number.

    Args:
      ids: The client of each of n examples: strings, numbers, tuples, or anything else that can be
        a key of a dict and be sorted.

    Returns:
      The partition, and the names of its clients, sorted.

    Raises:
      ConfigError: If an id cannot be a key, is missing (None, nan or pandas.NA), or cannot be
        compared with another one.
    """
    number: dict[Hashable, int] = {}
    owners = []
    for place, name in enumerate(ids):
        # pandas.NA is neither equal to itself nor different.
        is_equal = isinstance(name, Hashable) and name == name
        if name is None or not isinstance(is_equal, bool | np.bool_) or not is_equal:
            allowed = "given, as something that can be a key of a dict"
            raise ConfigError(f"client of example {place}", name, allowed)
        owners.append(number.setdefault(name, len(number)))
    if not owners:
        raise ConfigError("number of clients' ids", 0, "the number of examples")
    try:
        names = sorted(number)  # type: ignore[type-var]
        # Sets can be compared, and have no order.
        are_sorted = all(a < b for a, b in itertools.pairwise(names))  # type: ignore[operator]
    except TypeError:
        are_sorted = False
    if not are_sorted:
        kinds = ", ".join(sorted({type(name).__name__ for name in number}))
        raise ConfigError("clients' ids", kinds, "of one kind that can be sorted")
    place_of = np.empty(len(number), int)
    place_of[[number[name] for name in names]] = np.arange(len(names))
    owner = place_of[owners]
    return parts.gather_by_owner(np.arange(len(owner)), owner, len(number)), tuple(names)


@checked
def hold_out(partition: Partition, share: float, seed: Seed) -> tuple[Partition, Partition]:
    """Keep a share of every client's examples for testing.

        train, test = hold_out(iid(data.train_labels, num_clients=8, seed=0), share=0.2, seed=1)

    Args:
      partition: Every client's examples.
      share: The share, rounded down for each client to a whole number, but to at least 1.
      seed: Seed of the choice, a whole number of at least 0.

    Returns:
      The examples to train on, and those to test on. Clients with one example keep it for training.

    Raises:
      ConfigError: If the share is not between 0 and 1, or nothing is left to test on.
    """
    if not 0 < share < 1:
        raise ConfigError("test", share, "data, or a share above 0 and below 1")
    random = parts.make_generator(seed, "hold_out")
    owner: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for row, count in zip(np.asarray(partition.index), np.asarray(partition.counts), strict=True):
        mixed = random.permutation(row[:count])
        num = min(max(1, int(share * count + parts.ROUNDING)), count - 1)
        owner["test"].append(np.sort(mixed[:num]))
        owner["train"].append(np.sort(mixed[num:]))
    if not any(len(rows) for rows in owner["test"]):
        raise ConfigError("examples of the largest client", 1, "at least 2, for one to test on")
    return _padded(owner["train"]), _padded(owner["test"])


def _padded(rows: Sequence[np.ndarray]) -> Partition:
    """Make a partition of the examples of each client."""
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return parts.gather_by_owner(np.concatenate(rows), owner, len(rows))


def on_device(name: str, array: Leaf) -> Array:
    """Put an array on the device that computes.

    Args:
      name: What error messages call it.
      array: The array.

    Returns:
      The array, in a type of JAX.

    Raises:
      ConfigError: If it does not fit in the memory that is free.
    """
    needed = np.size(array) * jax.dtypes.canonicalize_dtype(array.dtype).itemsize
    device = jax.local_devices()[0]
    try:
        # A CPU would take memory until the process is killed.
        if device.platform == "cpu" and needed > LOOKED_AT and needed > free_on_host():
            raise MemoryError
        return as_array(array).block_until_ready()
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        allowed = "such that it fits in the free memory of the device"
        if device.platform == "cpu":
            allowed += f", {write_bytes(free_on_host())}"
        raise ConfigError(f"size of {name}", write_bytes(needed), allowed) from error


class Checked:
    """The checks of a problem's fields before a run, shared by problems.

    Nothing is checked where a problem is made, because JAX makes problems of leaves of any kind.
    """

    def check_values(self) -> None:
        """Check all fields, once for each problem of JAX's arrays.

        Raises:
          ConfigError: If a field is not of its declared type, shape or range.
        """
        if CHECKED not in vars(self):
            check_fields(self)
            self._check_together()
            if all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self)):
                vars(self)[CHECKED] = True

    def _check_together(self) -> None:
        """Check conditions between fields, which the types of single fields cannot say."""


def check_fields(struct: Any) -> None:
    """Check the fields of a struct against their declared types.

    Raises:
      ConfigError: If a field is of another type, shape or range.
    """
    lengths: dict[str, int] = {}
    owner: Any = type(struct)
    for name, kind in _kinds_of(owner).items():
        value = getattr(struct, name)
        # A list could stand for an array in arguments, but is a pytree here.
        if isinstance(value, list) or not kind.accepts(value, lengths):
            dims = re.findall(r"[^\[\], ]+", " ".join(re.findall(r"\[.*?\]", kind.words)))
            known = [f"{dim} = {length}" for dim, length in lengths.items() if dim in dims]
            allowed = kind.words + f" with {', '.join(known)}" * bool(known)
            raise ConfigError(name, value, allowed)


@functools.cache
def _kinds_of(struct: Any) -> dict[str, Any]:
    """Read the declared types of a struct's fields."""
    hints = hints_of(struct)
    return {field.name: kind_of(hints[field.name]) for field in dataclasses.fields(struct)}


def check_examples(data: Params, index: Array, counts: Array, of: str = "") -> None:
    """Check the positions of clients' examples in arrays.

    Args:
      data: A pytree of arrays that should have leaves `[n, ...]`.
      index: Positions in them, `i32[N, M]`.
      counts: Numbers of examples, `i32[N]`.
      of: How the names of these fields begin, such as "test_".

    Raises:
      ConfigError: If arrays differ in length, or as `check_partition`.
    """
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
    if len(lengths) != 1 or () in lengths:
        found = sorted(length[0] if length else 0 for length in lengths)
        raise ConfigError(f"examples in the arrays of {of}data", found, "equally many")
    for field, array in (("index", index), ("counts", counts)):
        if not jnp.issubdtype(array.dtype, np.integer):
            raise ConfigError(f"type of {of}{field}", str(array.dtype), "a kind of whole numbers")
    _check_positions(of, Partition(np.asarray(index), np.asarray(counts)), lengths.pop()[0])


CLIENTS_AT_ONCE = 50
"""Number of clients for which losses are computed together."""


class ClientLosses(Checked):
    """Shared by problems with the method `client_loss` and the option `per_client`.

    Their clients have no test examples, so that a client's loss is that of its training data.
    """

    per_client: bool
    client_loss: Callable[..., Array]
    less_is_better: ClassVar[Sequence[str]] = ("loss", "client_loss")

    @property
    def metric_labels(self) -> Mapping[str, Sequence[Hashable]]:
        """Names of the clients, if they have some."""
        names = getattr(self, "client_ids", None)
        return {} if names is None else {"client": names}

    def losses_of_clients(self, params: Params, num_clients: int) -> dict[str, Array]:
        """Compute the loss of every client, if `per_client` asks for it.

        Args:
          params: The model, which is the same for all.
          num_clients: N.

        Returns:
          "client_loss[client]": `f[N]`, `client_loss` of each client; otherwise nothing.
        """
        if not self.per_client:
            return {}
        losses = jax.lax.map(
            lambda client: self.client_loss(params, client, jax.random.key(0)),
            jnp.arange(num_clients),
            batch_size=CLIENTS_AT_ONCE,
        )
        return {"client_loss[client]": losses}
