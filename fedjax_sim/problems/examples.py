"""Read a user's examples: arrays or a DataFrame, and the clients whose they are.

Dimension letters: those of `supervision`; `F` features, `D` numbers that are predicted.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import trees
from fedjax_sim.checking import checked
from fedjax_sim.partition import Partition
from fedjax_sim.problems.checking import form_of
from fedjax_sim.problems.client_data import check_partition, partition_by_ids
from fedjax_sim.settings import ConfigError


@checked
class Examples(NamedTuple):
    """Examples and whose they are.

    Attributes:
      inputs: What the network is given: a pytree of arrays `[n, ...]`.
      targets: What the loss compares its outputs with: a pytree of arrays `[n, ...]`.
      clients: The client of each example, n ids of any hashable kind; None if that is not known.
    """

    inputs: Any
    targets: Any
    clients: Sequence[Hashable] | None = None


@checked
def from_dataframe(
    table: Any,
    *,
    target: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
) -> Examples:
    """Take examples from the rows of a pandas DataFrame.

    Args:
      table: The DataFrame, of n rows.
      target: Column to predict, or several columns.
      client: Column that names each row's client, by text or anything else hashable.
      features: Columns that the network is given; by default all others.

    Returns:
      Inputs `f32[n, F]`, targets `[n]`, or `[n, D]` for a list of columns, and the clients. Targets
      are float32, and int32 if all of them are whole numbers or bools.

    Raises:
      ConfigError: If a column does not exist, is no number where one is needed, lacks a value, or
        has a whole number of more than 32 bits.
    """
    targets = [target] if isinstance(target, str) else list(target)
    taken = {*targets, client}
    given = [] if features is None else list(features)
    columns = given or [name for name in table.columns if name not in taken]
    for name in [*columns, *targets, *([] if client is None else [client])]:
        if name not in table.columns:
            raise ConfigError("column", name, "one of " + ", ".join(map(str, table.columns)))
    if not columns:
        raise ConfigError("features", columns, "at least one column")
    inputs = np.stack([_numbers(table, name) for name in columns], axis=1).astype(np.float32)
    values = np.stack([_numbers(table, name) for name in targets], axis=1)
    kind = np.int32 if values.dtype.kind in "biu" else np.float32
    if kind is np.int32:
        for name, column in zip(targets, values.T, strict=True):
            _check_range(f"column {name}", column, kind)
    found = values.astype(kind) if not isinstance(target, str) else values[:, 0].astype(kind)
    return Examples(inputs, found, None if client is None else table[client].tolist())


def _check_range(name: str, values: Any, kind: Any) -> None:
    """Check that whole numbers fit a type of whole numbers; others would be cut to its bits."""
    limits, values = np.iinfo(kind), np.asarray(values)
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    if least < limits.min:
        raise ConfigError(f"smallest number in {name}", least, f"at least {limits.min}")
    if most > limits.max:
        raise ConfigError(f"largest number in {name}", most, f"at most {limits.max}")


def _numbers(table: Any, name: str) -> np.ndarray:
    """Return a column of finite numbers."""
    values = np.asarray(table[name])
    if values.dtype.kind not in "biuf":
        raise ConfigError(f"type of column {name}", str(table[name].dtype), "a kind of number")
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(f"row {at} of column {name}", float(values[at]), "a finite number")
    return values


def read_arrays(name: str, data: Any) -> tuple[Any, int]:
    """Put a user's pytree of arrays on the device.

    Args:
      name: What error messages call it.
      data: The pytree, leaves `[n, ...]`.

    Returns:
      The pytree, and the number of examples.

    Raises:
      ConfigError: If an array is not of finite numbers, has whole numbers that do not fit 32 bits
        where 64 are not enabled, or lengths differ.
    """
    given, structure = jax.tree.flatten(data)
    leaves = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in given]
    for leaf in leaves:
        if np.ndim(leaf) < 1 or np.dtype(leaf.dtype).kind not in "biuf":
            raise ConfigError(f"an array of {name}", form_of(leaf), "numbers, with examples first")
    lengths = {leaf.shape[0] for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise ConfigError(f"examples in the arrays of {name}", sorted(lengths), "equally many")
    arrays = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])
    for path, leaf, found in zip(
        trees.paths_of(arrays), leaves, jax.tree.leaves(arrays), strict=True
    ):
        if found.dtype != leaf.dtype and jnp.issubdtype(found.dtype, jnp.integer):
            _check_range(f"{name}/{path}", leaf, found.dtype)
        if jnp.issubdtype(found.dtype, jnp.floating) and not bool(jnp.isfinite(found).all()):
            raise ConfigError(f"{name}/{path}", "an array with nan or inf", "finite")
    return arrays, lengths.pop()


def _check_length(name: str, found: int, num: int) -> None:
    if found != num:
        raise ConfigError(f"length of {name}", found, f"{num}, the number of examples")


def owners_of_tests(
    names: tuple[Hashable, ...] | None, ids: Sequence[Hashable], num: int
) -> Partition:
    """Give test examples to the clients that they name.

    Args:
      names: The clients, in the order of their numbers; None if they have no names.
      ids: The client of each test example.
      num: Number of test examples.

    Raises:
      ConfigError: If a client has no training examples.
    """
    if names is None:
        raise ConfigError("test_clients", "given", "left out, unless `clients` names the clients")
    _check_length("test_clients", len(ids), num)
    own, found = partition_by_ids(ids)
    unknown = [name for name in found if name not in set(names)]
    if unknown:
        raise ConfigError("client in test_clients", unknown[0], "one that has training examples")
    place = {name: row for row, name in enumerate(found)}
    index = np.zeros((len(names), own.index.shape[1]), "int32")
    counts = np.zeros(len(names), "int32")
    for number, name in enumerate(names):
        if name in place:
            index[number], counts[number] = own.index[place[name]], own.counts[place[name]]
    return Partition(index, counts)


def read_owners(
    split: Partition | list[Partition] | None, clients: Iterable[Hashable] | None, num: int
) -> tuple[list[Partition], tuple[Hashable, ...] | None]:
    """Find out who holds which example.

    Args:
      split: One partition, or several; None if clients are named.
      clients: The client of each example; None if partitions are given.
      num: Number of examples.

    Returns:
      The partitions, and what the clients are called, if they have names.

    Raises:
      ConfigError: If not exactly one of both is given, or it does not fit the examples.
    """
    if clients is not None and split is None:
        ids = list(clients)
        _check_length("clients", len(ids), num)
        partition, names = partition_by_ids(ids)
        return [partition], names
    if split is None or clients is not None:
        raise ConfigError("split", split, "a partition, or else left out and `clients` given")
    partitions = split if isinstance(split, list) else [split]
    for partition in partitions:
        check_partition(partition, num)
    return partitions, None
