"""Users' examples as arrays, and clients' examples as positions in them.

Examples are read from arrays, tensors, data sets or a DataFrame; who holds which is a partition, or
follows from an id per example.

Examples lie on the device once, whatever the number of clients, seeds and problems. All clients'
examples are one list of positions in them, and each client has a range of this list (`Held`), so
that a client with many examples makes the others no larger.

Problems that are given by their losses may measure one loss for every client (`ClientLosses`).

Dimension letters: `N` clients, `P` positions of all clients' examples, `M` examples of the client
with the most, `n` examples, `F` features, `D` numbers that are predicted.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from flax import struct

from fedjax_sim.core import lifecycle, settings, trees
from fedjax_sim.core.settings import ConfigError, Count, Seed, checked, shape
from fedjax_sim.core.targets import TreeT
from fedjax_sim.core.types import Array, Key, Leaf, Params
from fedjax_sim.datasets import Stored, files
from fedjax_sim.partition import Partition, parts

if TYPE_CHECKING:
    import pandas as pd

CHECKED = "_is_checked"
"""The mark of a problem with checked fields, as arrays of JAX do not change."""
Counts = Annotated[Array, shape("N")]
"""One whole number for each client, `i32[N]`."""
PADDING = 4
"""All of a client's examples are taken at once if this makes that many times as much work as there
are examples, at most; otherwise they are taken in blocks."""
LOOKED_AT = 10**8
"""Bytes from which on an array is compared with the memory that is free."""


def check_range(name: str, values: Leaf, least: float, most: float = math.inf) -> None:
    """Check limits of numbers; those of a program that is being traced are not known.

    Raises:
      ConfigError: If a number is below `least` or above `most`.
    """
    if isinstance(values, jax.core.Tracer) or not values.size:
        return
    with jax.ensure_compile_time_eval():  # A constant of a traced program is known.
        smallest, largest = values.min().item(), values.max().item()
    if smallest < least:
        raise ConfigError(f"smallest number in {name}", smallest, f"at least {least}")
    if largest > most:
        raise ConfigError(f"largest number in {name}", largest, f"at most {most}")


@checked
def check_partition(partition: Partition, num_examples: Count) -> None:
    """Check that every client has an example and that every position exists.

        check_partition(iid(data.train_labels, num_clients=5, seed=0), len(data.train_labels))

    Args:
      partition: Positions `[P]` and counts `[N]`, as the functions of `fedjax_sim.partition`
        return them.
      num_examples: Number of examples that the positions refer to.

    Raises:
      ConfigError: If it is no partition, a client has no example, the counts do not add up to the
        number of positions, or a position is out of range.
    """
    partition = Partition(*partition)  # Checks replaced arrays.
    _check_positions("partition.", *partition, partition.offsets, num_examples)


def _check_positions(
    prefix: str, index: np.ndarray, counts: np.ndarray, offsets: np.ndarray, num_examples: int
) -> None:
    """Check the ranges of positions and counts; their names in errors begin with the prefix."""
    if not counts.size:
        raise ConfigError("number of clients in partition", 0, "at least 1")
    if (fewest := int(counts.min())) < 1:
        raise ConfigError(f"{prefix}counts", fewest, "at least 1")
    order = np.argsort(offsets, kind="stable")
    past = (offsets + counts.astype(int))[order] > np.append(offsets[order][1:], len(index))
    if offsets.min() < 0 or past.any():
        at = int(order[np.argmax(past | (offsets[order] < 0))])
        found = f"{offsets[at]} of client {at}, which has {counts[at]} examples"
        allowed = f"such that ranges of {prefix}index do not overlap and end by {len(index)}"
        raise ConfigError(f"{prefix}offsets", found, allowed)
    for position in (index.min(), index.max()):
        if not 0 <= position < num_examples:
            allowed = f"from 0 to {num_examples - 1}, a position of one of the examples"
            raise ConfigError(f"{prefix}index", int(position), allowed)


BlockSums = Callable[[Array, Array, Array | int], Params]
"""From positions `i32[B]`, flags of those that are there, and the block's number to sums."""


@struct.dataclass
class Held:
    """Clients' examples: each client has a range of one list of positions.

        clients, _ = partition_by_ids(["a", "a", "b"])
        [held] = hold([clients], 3)
        assert held.at(jnp.int32(0), jnp.arange(2)).tolist() == [0, 1]

    Attributes:
      index: `i32[P]`, positions of examples; places that are in no client's range mean nothing.
      offsets: `i32[N]`, the place in `index` at which each client's range begins.
      counts: `i32[N]`, the length of each client's range. Ranges do not overlap.
      most: Length of the longest range, or above that; part of the program.
      stored: The files in which the examples lie; None if they are in memory.
      where: `i32[n]`, where in a window of these files each example is; None if there is no window.
    """

    index: Annotated[Array, shape("P")]
    offsets: Counts
    counts: Counts
    most: Count = struct.field(pytree_node=False)
    stored: Stored | None = struct.field(pytree_node=False, default=None)
    where: Annotated[Array, shape("n")] | None = None

    def at(self, client: Array, places: Array) -> Array:
        """Look up positions of a client's examples.

        Args:
          client: `i32[]`.
          places: `i32[...]`, below the client's count.

        Returns:
          `i32[...]`.

        Raises:
          ConfigError: If the examples lie in files.
        """
        if self.stored is not None and self.where is None:
            allowed = "in memory: only `simulate` and `sweep` read files"
            raise ConfigError("data", str(self.stored), allowed)
        found = self.index[self.offsets[client] + places]
        return found if self.where is None else self.where[found]

    def block(self, client: Array, first: Array | int, size: int) -> tuple[Array, Array]:
        """List some of a client's examples.

        Args:
          client: `i32[]`.
          first: `i32[]`, the number of the first of them.
          size: How many there are, B.

        Returns:
          `i32[B]`, their positions, with the client's last one after its end; and `bool[B]`, which
          of them are there.
        """
        chex.assert_rank(client, 0)
        places = first + jnp.arange(size, dtype="int32")
        count = self.counts[client]
        return self.at(client, jnp.minimum(places, count - 1)), places < count

    def owners(self) -> tuple[Array, Array]:
        """Compute the client of each place in `index`, and if there is one.

        Returns:
          `i32[P]` and `bool[P]`.
        """
        order, places = jnp.argsort(self.offsets), jnp.arange(self.index.shape[0])
        owner = order[jnp.searchsorted(self.offsets[order], places, "right") - 1]
        past = places - self.offsets[owner]
        return owner, (past >= 0) & (past < self.counts[owner])

    def block_size(self) -> int:
        """Examples of a client that are taken at once: M, or twice a client's mean number.

        M is taken for all clients if they are alike: see `PADDING`.
        """
        num_clients, length = self.counts.shape[0], self.index.shape[0]
        is_alike = num_clients * self.most <= PADDING * length
        return self.most if is_alike else min(self.most, -(-2 * length // num_clients))

    def total(
        self, client: Array, sums: BlockSums, size: int | None = None, *, has_slope: bool = False
    ) -> Params:
        """Add up sums over all of a client's examples.

        Args:
          client: `i32[]`.
          sums: Sums over some examples, from their positions `i32[B]`, the flags `bool[B]` of those
            that are there, and the number of the block.
          size: B; by default as many as `block_size`, in which case M of them make no loop.
          has_slope: Whether the result may be differentiated in reverse: all blocks of the longest
            range are then tried.

        Returns:
          The sums of all blocks.
        """
        count, at_once = self.counts[client], size or self.block_size()

        def of_block(number: Array | int) -> Params:
            return sums(*self.block(client, number * at_once, at_once), number)

        def add(number: Array, totals: Params) -> Params:
            return jax.tree.map(jnp.add, totals, of_block(number))

        if size is None and at_once == self.most:
            return of_block(0)
        nothing = optax.tree.zeros_like(jax.eval_shape(of_block, client))
        if not has_slope:
            num_blocks = (count + at_once - 1) // at_once
            return jax.lax.fori_loop(0, num_blocks, add, nothing)

        @jax.checkpoint
        def step(totals: Params, number: Array) -> tuple[Params, None]:
            is_any = number * at_once < count
            return jax.lax.cond(is_any, add, lambda _, so_far: so_far, number, totals), None

        numbers = jnp.arange(-(-self.most // at_once), dtype="int32")
        return jax.lax.scan(step, nothing, numbers)[0]

    def check(self, data: Params, of: str = "") -> None:
        """Check that clients' examples are in arrays.

        Args:
          data: A pytree of arrays that should have leaves `[n, ...]`.
          of: How the names of these fields begin, such as "test_".

        Raises:
          ConfigError: If arrays differ in length, or a position, a range or a count is not allowed.
        """
        check_fields(self)
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
        if self.stored is not None:
            lengths = {(self.stored.num,)}
        if len(lengths) != 1 or () in lengths:
            found = sorted(length[0] if length else 0 for length in lengths)
            raise ConfigError(f"examples in the arrays of {of}data", found, "equally many")
        for field in ("index", "offsets", "counts"):
            kind = getattr(self, field).dtype
            if not jnp.issubdtype(kind, np.integer):
                raise ConfigError(f"type of {of}{field}", str(kind), "a kind of whole numbers")
        index, counts, offsets = map(np.asarray, (self.index, self.counts, self.offsets))
        _check_positions(of, index, counts, offsets, lengths.pop()[0])
        if (most := int(counts.max())) > self.most:
            raise ConfigError(f"{of}most", self.most, f"at least {most}, the most of a client")


def hold(
    partitions: Sequence[Partition], num_examples: Count, stored: Stored | None = None
) -> list[Held]:
    """Check partitions, and put them on the device in one form, so that problems share a program.

        first, _ = partition_by_ids(["a", "a", "b"])  # two examples and one
        second, _ = partition_by_ids(["a", "a", "a"])
        two, one = hold([first, second], 3)
        assert two.counts.tolist() == [2, 1] and two.most == one.most == 3

    Args:
      partitions: Partitions of the same examples, such as one per seed.
      num_examples: Number of examples that the positions refer to.
      stored: The files in which these lie; None if they are in memory.

    Returns:
      The clients' examples of each partition. Equal partitions have the same arrays.

    Raises:
      ConfigError: If a client has no example, or a position is out of range.
    """
    for partition in partitions:
        check_partition(partition, num_examples)
    if len(partitions) == 0:
        raise ConfigError("number of partitions", 0, "at least 1")
    length = max(len(partition.index) for partition in partitions)
    most = max(int(np.max(partition.counts)) for partition in partitions)
    known: dict[tuple[bytes, ...], Array] = {}

    def put(array: np.ndarray) -> Array:
        array = np.asarray(array, "int32")
        key = hashlib.sha256(array.tobytes()).digest(), repr(array.shape).encode()
        if key not in known:
            known[key] = on_device("list of the clients' examples", array)
        return known[key]

    held = []
    for partition in partitions:
        index = put(np.pad(partition.index, (0, length - len(partition.index))))
        held.append(Held(index, put(partition.offsets), put(partition.counts), most, stored))
    return held


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
    for row in partition.rows():
        mixed, count = random.permutation(row), len(row)
        num = min(max(1, int(share * count + parts.ROUNDING)), count - 1)
        owner["test"].append(np.sort(mixed[:num]))
        owner["train"].append(np.sort(mixed[num:]))
    if not any(len(rows) for rows in owner["test"]):
        raise ConfigError("examples of the largest client", 1, "at least 2, for one to test on")
    return parts.pack_rows(owner["train"]), parts.pack_rows(owner["test"])


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
    needed = np.size(array) * jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("=")).itemsize
    device = jax.local_devices()[0]
    try:
        # A CPU would take memory until the process is killed.
        if device.platform == "cpu" and needed > LOOKED_AT and needed > lifecycle.free_on_host():
            raise MemoryError
        return trees.as_array(array).block_until_ready()
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        allowed = "such that it fits in the free memory of the device"
        if device.platform == "cpu":
            allowed += f", {lifecycle.write_bytes(lifecycle.free_on_host())}"
        raise ConfigError(f"size of {name}", lifecycle.write_bytes(needed), allowed) from error


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
      ConfigError: If a column does not exist, or is there twice, is no number where one is needed,
        lacks a value, or has a whole number of more than 32 bits.
    """
    targets = [target] if isinstance(target, str) else list(target)
    taken = {*targets, client}
    given = [] if features is None else list(features)
    columns = given or [name for name in table.columns if name not in taken]
    for name in [*columns, *targets, *([] if client is None else [client])]:
        if name not in table.columns:
            raise ConfigError("column", name, "one of " + ", ".join(map(str, table.columns)))
        if list(table.columns).count(name) > 1:
            raise ConfigError("column", name, "in the table once")
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


def read_examples(data: Any) -> tuple[Params, int, Stored | None]:
    """Put clients' examples on the device, as `read_arrays`; of files only example 0.

    Returns:
      The arrays, the number of examples, and the files in which they lie, if they do.
    """
    if isinstance(data, Stored):
        return read_arrays("data", data.first)[0], data.num, data
    return *read_arrays("data", data), None


def read_arrays(name: str, data: Any) -> tuple[Params, int]:
    """Put a user's data on the device.

    Args:
      name: What error messages call it.
      data: A pytree with leaves `[n, ...]`: arrays, tensors (what has `__array__` or
        `__dlpack__`), or data sets of n examples (what has `__len__` and `__getitem__`). The
        examples of a data set are pytrees; they are read once, one after another. Examples in files
        (`datasets.Stored`) are all read too.

    Returns:
      A pytree of arrays, and the number of examples.

    Raises:
      ConfigError: If something cannot be read as numbers, an array is not of finite numbers, has
        whole numbers that do not fit 32 bits where 64 are not enabled, does not fit the device's
        memory, or lengths differ.
    """
    data = data.whole if isinstance(data, Stored) else data
    # JAX would warn of iterators.
    read_leaf = functools.partial(files.read_leaf, name)
    read = jax.tree.map(read_leaf, data, is_leaf=lambda x: isinstance(x, Iterator))
    leaves, structure = jax.tree.flatten(read)
    for leaf in leaves:
        if np.ndim(leaf) < 1 or not files.is_real(leaf):
            allowed = "numbers, with examples first; numpy.stack makes an array of a list"
            raise ConfigError(f"an array of {name}", files.form_of(leaf), allowed)
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


def _check_length(name: str, found: int, num: int) -> None:
    if found != num:
        raise ConfigError(f"length of {name}", found, f"{num}, the number of examples")


def _ids_of(name: str, clients: Iterable[Hashable]) -> list[Hashable]:
    """List the clients of examples, of which a tensor has tensors."""
    with files.refusing(name, type(clients).__name__, "the client of each example", TypeError):
        ids: list[Any] = list(clients)
    is_tensor = any(hasattr(each, "__array__") and np.ndim(each) == 0 for each in ids[:1])
    if is_tensor and not isinstance(ids[0], np.generic):
        return np.asarray(files.read_tensor(name, clients)).tolist()
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
    unknown = [name for name in partition_by_ids(ids)[1] if name not in number]
    if unknown:
        raise ConfigError("client in test_clients", unknown[0], "one that has training examples")
    owner = np.array([number[name] for name in ids])
    return parts.gather_by_owner(np.arange(num), owner, len(names))


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
        partition, names = partition_by_ids(ids)
        return [partition], names
    if split is None or clients is not None:
        raise ConfigError("split", split, "a partition, or else left out and `clients` given")
    partitions = [split] if isinstance(split, Partition) else list(split)
    for partition in partitions:
        check_partition(partition, num)
    return partitions, None


class Checked:
    """Base of problems with fields that are checked before a run.

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
            if all(isinstance(leaf, jax.Array | int | float) for leaf in jax.tree.leaves(self)):
                vars(self)[CHECKED] = True

    def _check_together(self) -> None:
        """Check conditions on several fields, and those that no type expresses."""


class ClientExamples(Checked):
    """Base of problems of clients with examples in common arrays."""

    data: Params
    held: Held

    def _check_together(self) -> None:
        self.held.check(self.data)

    @property
    def counts(self) -> Array:
        """Number of examples of each client: `i32[N]`."""
        return self.held.counts

    def with_examples(self, data: Params, where: Array | None) -> Self:
        """Return the problem with some of the examples of its files in memory, or with all.

        Args:
          data: The examples that are there.
          where: `i32[n]`, where in `data` each example is; None if all are there.
        """
        stored = None if where is None else self.held.stored
        held = dataclasses.replace(self.held, stored=stored, where=where)
        return dataclasses.replace(self, data=data, held=held)  # type: ignore[type-var]


class ExampleLosses(ClientExamples):
    """Base of problems with a loss for each example: their mean, and a part of a prior.

    Attributes:
      state: Names of what is averaged but not trained; () if there is nothing.
    """

    state: tuple[str, ...] = ()

    def _losses(
        self, params: Params, rows: Array, key: Key, *, train: bool = True
    ) -> tuple[Array, Array | None, Params]:
        """Compute losses of examples `i32[B]`, the mask of their entries, and the next state."""
        raise NotImplementedError

    def _penalty(self, params: Params) -> Array | float:
        """Compute the prior's part of one example's loss; 0 without a prior."""
        raise NotImplementedError

    def _mean(self, params: Params, losses: Array, mask: Array | None) -> Array:
        """Average losses over the entries that count, and add the prior's part of one example."""
        if mask is None:
            return losses.mean() + self._penalty(params)
        total = jnp.where(mask, losses, 0).sum()
        return total / mask.sum().astype(losses.dtype) + self._penalty(params)

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Compute the mean loss of some of a client's examples.

        Args:
          params: The model.
          client: `i32[]`, the client's number.
          examples: `i32[B]`, positions below `counts[client]`.
          key: For random changes of examples, and for a network's random streams.

        Returns:
          `f[]`, the mean over the entries that count, plus the prior's part of one example. A
          network with state is in evaluation mode; local steps train it by `local_loss`.
        """
        chex.assert_rank([client, examples], [0, 1])
        rows = self.held.at(client, examples)
        losses, mask, _ = self._losses(params, rows, key, train=not self.state)
        return self._mean(params, losses, mask)

    def client_loss(self, params: Params, client: Array, key: Key) -> Array:
        """Compute the mean loss of all of a client's examples.

        Args:
          params: The model.
          client: `i32[]`, the client's number.
          key: As in `loss`.

        Returns:
          `f[]`, as `loss` gives it for all examples of the client; a network with state is in
          evaluation mode.
        """
        return self._client_loss(params, client, key, has_slope=True)

    def _client_loss(
        self, params: Params, client: Array, key: Key, *, has_slope: bool = False
    ) -> Array:
        """Compute `client_loss`, which has a gradient only if asked for."""

        def sums(rows: Array, is_there: Array, block: Array | int) -> tuple[Array, Array | None]:
            noise = jax.random.fold_in(key, block) if isinstance(block, Array) else key
            # Statistics of a mini-batch would count the padding.
            losses, mask, _ = self._losses(params, rows, noise, train=not self.state)
            if mask is None:
                return jnp.where(is_there, losses, 0).sum(), None
            mask = mask & along(is_there, mask)
            return jnp.where(mask, losses, 0).sum(), mask.sum()

        total, number = self.held.total(client, sums, has_slope=has_slope)
        number = self.counts[client] if number is None else number.astype(total.dtype)
        return total / number + self._penalty(params)


def along(flags: Array, like: Array) -> Array:
    """Give flags `[B, ...]` further axes of length 1, as many as `like` has more."""
    return flags.reshape(flags.shape + (1,) * (like.ndim - flags.ndim))


def rows_of(data: TreeT, rows: Array) -> TreeT:
    """Look up examples `i32[...]` of a pytree with leaves `[n, ...]`.

    A CPU reads rows of numbers faster than rows of matrices.
    """

    def look_up(leaf: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0], -1) if leaf.ndim > 1 else leaf
        found = flat.at[rows].get(mode="promise_in_bounds")
        return found.reshape(*rows.shape, *leaf.shape[1:])

    return jax.tree.map(look_up, data)


def described(problem: Any) -> tuple[trees.TypedStructure, tuple[jax.ShapeDtypeStruct, ...]]:
    """Describe a problem without its values, by its structure and the forms of its leaves."""
    forms = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.result_type(leaf)), problem
    )
    return trees.typed_structure(forms), tuple(jax.tree.leaves(forms))


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
        if isinstance(value, Held):
            lengths.update(zip("N", np.shape(value.counts), strict=False))


@functools.cache
def _kinds_of(struct: type) -> dict[str, Any]:
    """Read the declared types of a struct's fields."""
    hints = settings.hints_of(struct)
    return {field.name: settings.kind_of(hints[field.name]) for field in dataclasses.fields(struct)}


CLIENTS_AT_ONCE = 50
"""Number of clients for which losses are computed together."""


def losses_of_all(problem: "ClientLosses | ExampleLosses", params: Params) -> Array:
    """Compute the loss of every client, which has no gradient: `f[N]`."""
    loss_of = getattr(problem, "_client_loss", problem.client_loss)

    def of_client(client: Array) -> Array:
        return loss_of(params, client, jax.random.key(0))

    clients = jnp.arange(problem.counts.shape[0])
    return jax.lax.map(of_client, clients, batch_size=CLIENTS_AT_ONCE)


class ClientLosses(Checked):
    """Shared by problems with the method `client_loss` and the option `per_client`.

    Their clients have no test examples, so that a client's loss is that of its training data.
    """

    per_client: bool
    client_loss: Callable[..., Array]
    less_is_better: ClassVar[Sequence[str]] = ("loss", "client_loss")
    if TYPE_CHECKING:

        @property
        def counts(self) -> Array:
            """Number of examples of each client: `i32[N]`."""

    @property
    def metric_labels(self) -> Mapping[str, Sequence[Hashable]]:
        """Names of the clients, if they have some."""
        names = getattr(self, "client_ids", None)
        return {} if names is None else {"client": names}

    def losses_of_clients(self, params: Params) -> dict[str, Array]:
        """Compute the loss of every client, if `per_client` asks for it.

        Args:
          params: The model, which is the same for all.

        Returns:
          "client_loss[client]": `f[N]`, `client_loss` of each client; otherwise nothing.
        """
        return {"client_loss[client]": losses_of_all(self, params)} if self.per_client else {}
