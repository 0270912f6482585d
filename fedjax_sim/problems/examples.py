"""Read a user's examples, and their clients: arrays, data sets or a DataFrame.

Dimension letters: those of `supervision`; `F` features, `D` numbers that are predicted.
"""

import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.tree_util import PyTreeDef

from fedjax_sim.core import trees
from fedjax_sim.core.lifecycle import free_on_host, write_bytes
from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.core.types import Array, Params
from fedjax_sim.partition import Partition
from fedjax_sim.partition.parts import gather_by_owner
from fedjax_sim.problems import client_data
from fedjax_sim.problems.checking import first_line, form_of
from fedjax_sim.problems.client_data import check_partition, check_range, on_device

if TYPE_CHECKING:
    import pandas as pd


class Examples(NamedTuple):
    """Examples, and the client of each.

        examples = Examples(inputs, targets, clients=names)
        problem = problems.supervised(models.MLP((4,), 1), problems.squared_error, examples)

    Attributes:
      inputs: What the network is given: a pytree of arrays `[n, ...]`.
      targets: What the loss compares its outputs with: a pytree of arrays `[n, ...]`.
      clients: The client of each example, n ids of any hashable kind; None if that is not known.
    """

    inputs: object
    targets: object
    clients: Sequence[Hashable] | None = None


@checked
def from_dataframe(
    table: "pd.DataFrame",
    *,
    target: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
) -> Examples:
    """Take examples from the rows of a pandas DataFrame.

        table = pd.DataFrame({"who": ["a", "a", "b"], "size": [1.0, 2.0, 3.0], "price": [5, 6, 7]})
        examples = from_dataframe(table, target="price", client="who")
        assert examples.inputs.tolist() == [[1.0], [2.0], [3.0]]

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
    if not targets:
        raise ConfigError("target", targets, "at least one column")
    inputs = np.stack([_numbers(table, name) for name in columns], axis=1).astype(np.float32)
    values = np.stack([_numbers(table, name) for name in targets], axis=1)
    kind = np.int32 if values.dtype.kind in "biu" else np.float32
    if kind is np.int32:
        for name, column in zip(targets, values.T, strict=True):
            _check_fits(f"column {name}", column, kind)
    found = values.astype(kind) if not isinstance(target, str) else values[:, 0].astype(kind)
    return Examples(inputs, found, None if client is None else table[client].tolist())


def _check_fits(name: str, values: npt.ArrayLike, kind: npt.DTypeLike) -> None:
    """Check that whole numbers fit a type of whole numbers; others would be cut to its bits."""
    check_range(name, np.asarray(values), np.iinfo(kind).min, np.iinfo(kind).max)


def _numbers(table: "pd.DataFrame", name: str) -> np.ndarray:
    """Return a column of finite numbers."""
    values = np.asarray(table[name])
    if values.dtype.kind not in "biuf":
        raise ConfigError(f"type of column {name}", str(table[name].dtype), "a kind of number")
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(f"row {at} of column {name}", float(values[at]), "a finite number")
    return values


def read_arrays(name: str, data: Any) -> tuple[Params, int]:
    """Put a user's data on the device.

    Args:
      name: What error messages call it.
      data: A pytree with leaves `[n, ...]`: arrays, tensors (what has `__array__` or
        `__dlpack__`), or data sets of n examples (what has `__len__` and `__getitem__`). The
        examples of a data set are pytrees; they are read once, one after another.

    Returns:
      A pytree of arrays, and the number of examples.

    Raises:
      ConfigError: If something cannot be read as numbers, an array is not of finite numbers, has
        whole numbers that do not fit 32 bits where 64 are not enabled, does not fit the device's
        memory, or lengths differ.
    """
    # JAX would warn of iterators.
    read = jax.tree.map(partial(_read, name), data, is_leaf=lambda x: isinstance(x, Iterator))
    leaves, structure = jax.tree.flatten(read)
    for leaf in leaves:
        if np.ndim(leaf) < 1 or not _is_real(leaf):
            allowed = "numbers, with examples first; numpy.stack makes an array of a list"
            raise ConfigError(f"an array of {name}", form_of(leaf), allowed)
    lengths = {leaf.shape[0] for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise ConfigError(f"examples in the arrays of {name}", sorted(lengths), "equally many")
    names = [f"{name}/{path}" if path else name for path in trees.paths_of(read)]
    arrays = [on_device(place, leaf) for place, leaf in zip(names, leaves, strict=True)]
    for place, leaf, found in zip(names, leaves, arrays, strict=True):
        if found.dtype != leaf.dtype and jnp.issubdtype(found.dtype, jnp.integer):
            _check_fits(place, leaf, found.dtype)
        if jnp.issubdtype(found.dtype, jnp.floating) and not bool(_is_finite(found)):
            raise ConfigError(place, "an array with nan or inf", "finite")
    return jax.tree.unflatten(structure, arrays), lengths.pop()


@jax.jit
def _is_finite(array: Array) -> Array:
    """Tell whether all numbers of an array are finite, without another array of its size."""
    return jnp.isfinite(array).all()


def _is_real(array: np.ndarray | Array) -> bool:
    """Tell whether an array is of real numbers or bools."""
    return any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def _read(name: str, leaf: Any) -> Params:
    """Read an array, a tensor or a number as an array, and a data set as a pytree of arrays."""
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return leaf
    if isinstance(leaf, bool | int | float | complex | str | bytes):
        return np.asarray(leaf)
    if any(hasattr(leaf, form) for form in ("__array__", "__array_interface__", "__dlpack__")):
        return _read_tensor(name, leaf)
    try:
        num, first = len(leaf), leaf[0]
    except Exception as error:  # Whatever a user's class raises.
        allowed = "arrays, tensors, or a data set with __len__ and __getitem__"
        raise ConfigError(name, type(leaf).__name__, f"{allowed} ({first_line(error)})") from error
    return _read_data_set(name, leaf, num, first)


def _read_tensor(name: str, tensor: Any) -> np.ndarray | Array:
    """Read a tensor of another library, detached from its gradients."""
    tensor, reasons = tensor.detach() if hasattr(tensor, "detach") else tensor, []
    for convert in (np.asarray, jnp.from_dlpack):  # NumPy knows no bfloat16 and no accelerator.
        try:
            return convert(tensor)
        except Exception as error:  # Whatever a library raises.
            reasons.append(first_line(error))
    allowed = f"a tensor that NumPy can read ({reasons[0]})"
    raise ConfigError(name, type(tensor).__name__, allowed)


def _read_data_set(name: str, data: Any, num: int, first: object) -> Params:
    """Read the examples of a data set, with a progress bar on a terminal.

    Args:
      name: What error messages call it.
      data: From a number below n to a pytree of numbers, arrays, tensors, and lists of numbers.
      num: Number of examples, n.
      first: Example 0.

    Returns:
      A pytree of arrays `[n, ...]`.
    """
    like, structure = _read_example(f"example 0 of {name}", first)
    form = form_of(jax.tree.unflatten(structure, like))
    if not like or not all(map(_is_real, like)):
        raise ConfigError(f"example 0 of {name}", form, "numbers")
    needed, free = num * sum(leaf.nbytes for leaf in like), free_on_host()
    if needed > free:
        allowed = f"at most {write_bytes(free)}, what is free"
        raise ConfigError(f"size of {name}", write_bytes(needed), allowed)
    rows = [np.empty((num, *leaf.shape), leaf.dtype) for leaf in like]
    numbers: Iterable[int] = range(num)
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        console = Console(file=sys.stderr)
        numbers = track(numbers, f"reading {name}", console=console, transient=True)
    for number in numbers:
        place = f"example {number} of {name}"
        try:
            example = data[number]
        except Exception as error:  # Whatever a user's class raises.
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ConfigError(place, "missing", f"there, as there are {num} ({reason})") from error
        leaves, found = _read_example(place, example)
        if found != structure or any(
            leaf.shape != row.shape[1:] for leaf, row in zip(leaves, rows, strict=True)
        ):
            other = form_of(jax.tree.unflatten(found, leaves))
            raise ConfigError(place, other, f"{form}, as example 0")
        for i, leaf in enumerate(leaves):
            if leaf.dtype != rows[i].dtype:  # A number may be whole in some examples only.
                rows[i] = rows[i].astype(np.result_type(rows[i].dtype, leaf.dtype), copy=False)
            rows[i][number] = leaf
    return jax.tree.unflatten(structure, rows)


def _read_example(place: str, example: object) -> tuple[list[np.ndarray], PyTreeDef]:
    """Read one example of a data set: its arrays, and the structure that they have."""
    if isinstance(example, Mapping):
        example = dict(example)
    elif isinstance(example, list) and not all(isinstance(x, int | float) for x in example):
        example = tuple(example)  # As of inputs and targets.
    leaves, structure = jax.tree.flatten(example, is_leaf=lambda leaf: isinstance(leaf, list))
    try:
        read = [leaf if isinstance(leaf, list) else _read(place, leaf) for leaf in leaves]
        return [np.asarray(leaf) for leaf in read], structure
    except ValueError as error:  # Lists of different lengths in a list.
        raise ConfigError(place, type(example).__name__, f"numbers ({error})") from error


def _check_length(name: str, found: int, num: int) -> None:
    if found != num:
        raise ConfigError(f"length of {name}", found, f"{num}, the number of examples")


def _ids_of(name: str, clients: Iterable[Hashable]) -> list[Hashable]:
    """List the clients of examples, of which a tensor has tensors."""
    try:
        ids: list[Any] = list(clients)
    except TypeError as error:
        allowed = f"the client of each example ({first_line(error)})"
        raise ConfigError(name, type(clients).__name__, allowed) from error
    is_tensor = any(hasattr(each, "__array__") and np.ndim(each) == 0 for each in ids[:1])
    if is_tensor and not isinstance(ids[0], np.generic):
        return np.asarray(_read_tensor(name, clients)).tolist()
    return ids


def owners_of_tests(
    names: tuple[Hashable, ...] | None, clients: Iterable[Hashable], num: int
) -> Partition:
    """Give test examples to the clients that they name.

    Args:
      names: The clients, in the order of their numbers; None if they have no names.
      clients: The client of each test example.
      num: Number of test examples.

    Raises:
      ConfigError: If a client has no training examples.
    """
    if names is None:
        raise ConfigError("test_clients", "given", "left out, unless `clients` names the clients")
    ids = _ids_of("test_clients", clients)
    _check_length("test_clients", len(ids), num)
    number = {name: i for i, name in enumerate(names)}
    unknown = [name for name in client_data.partition_by_ids(ids)[1] if name not in number]
    if unknown:
        raise ConfigError("client in test_clients", unknown[0], "one that has training examples")
    return gather_by_owner(np.arange(num), np.array([number[name] for name in ids]), len(names))


def read_owners(
    split: Partition | list[Partition] | None,
    clients: Iterable[Hashable] | None,
    num: int,
    field: str = "clients",
) -> tuple[list[Partition], tuple[Hashable, ...] | None]:
    """Find out who holds which example.

    Args:
      split: One partition, or several; None if clients are named.
      clients: The client of each example; None if partitions are given.
      num: Number of examples.
      field: What errors call `clients`.

    Returns:
      The partitions, and what the clients are called, if they have names.

    Raises:
      ConfigError: If not exactly one of both is given, or it does not fit the examples.
    """
    if clients is not None and split is None:
        ids = _ids_of(field, clients)
        _check_length(field, len(ids), num)
        partition, names = client_data.partition_by_ids(ids)
        return [partition], names
    if split is None or clients is not None:
        raise ConfigError("split", split, "a partition, or else left out and `clients` given")
    partitions = [split] if isinstance(split, Partition) else list(split)
    for partition in partitions:
        check_partition(partition, num)
    return partitions, None
