"""Examples that stay in files and are read by their numbers.

Files of NumPy, memory maps, data sets of tensorflow-datasets and everything else that has a length
and gives an example by its number are read through one interface, `Stored`. Nothing is read before
it is needed, and nothing is read whole.

Dimension letters: `n` examples, `R` numbers of examples.
"""

import contextlib
import functools
import hashlib
import math
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.core.types import Params

SAMPLED = 64
"""Examples that are read to tell one set of files from another."""
READ_AT_ONCE = 2**24
"""Bytes of examples that are read, checked and converted at a time."""


class _Column:
    """An array `[n, ...]`, or a file of NumPy with one.

    A memory map of a whole file is read as the file, unless it keeps changes to itself (mode "c").
    Through the map, pages that were touched would count as memory of the process, and a file that
    is cut short would end it without a sentence.

    Attributes:
      num: Number of examples, n.
      files: The file in which they lie, if there is one.
      origin: What is read, unless it is a whole file.
    """

    def __init__(self, given: np.ndarray | str | os.PathLike):
        array: Any = given
        if not isinstance(given, np.ndarray):
            with _reported(Path(given)):
                array = np.load(given, mmap_mode="r")
        if not hasattr(array, "ndim"):  # Such as the arrays of an .npz file.
            raise ConfigError("data", str(given), "an .npy file or a folder of them")
        if not array.ndim or array.dtype.hasobject:
            raise ConfigError("data", form_of(array), "an array of numbers, with examples first")
        name, self.num = getattr(array, "filename", None), len(array)
        self.files = [] if name is None else [Path(name)]
        is_map = bool(self.files) and isinstance(array.base, mmap.mmap) and array.flags.c_contiguous
        is_map = is_map and array.mode != "c"  # What was changed in it is not in its file.
        self._begin: int | None = array.offset if is_map else None
        # Of a file nothing but the form of its examples is kept.
        self._array = np.array(array[:0]) if is_map else array
        self.origin = None if is_map else array

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Read examples `i64[R]`, sorted: `[R, ...]`."""
        if self._begin is None:
            return self._array[numbers]
        found = np.empty((len(numbers), *self._array.shape[1:]), self._array.dtype)
        size, view = found[:1].nbytes, memoryview(found.reshape(-1).view("uint8"))  # type: ignore
        # Neighbours are read together.
        firsts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        with _reported(self.files[0]), self.files[0].open("rb") as opened:
            for first, last in zip(firsts, [*firsts[1:], len(numbers)], strict=True):
                opened.seek(self._begin + int(numbers[first]) * size)
                part = view[first * size : last * size]
                if opened.readinto(part) < len(part):
                    raise OSError(0, "it is shorter than it was")
        return found


class Items:
    """A data set that gives examples by their numbers: pytrees of numbers, arrays and tensors.

    Attributes:
      num: Number of examples, n.
      files: The files in which they lie, as far as these are known.
      origin: The data set, if its files are not known.
      row_bytes: Bytes of example 0.
    """

    def __init__(self, name: str, items: Any, files: Sequence[Path] = ()):
        """Read example 0.

        Args:
          name: What error messages call the data set.
          items: Has `__len__` and `__getitem__`.
          files: The files in which the examples lie.

        Raises:
          ConfigError: If it is no data set, or not one of numbers.
        """
        allowed = "arrays, tensors, or a data set with __len__ and __getitem__"
        with refusing(name, type(items).__name__, allowed):
            self.num, first = len(items), items[0]
        self._name, self._items, self.files = name, items, files
        self.origin = None if files else items
        self._first, self._structure = _read_example(f"example 0 of {name}", first)
        self._form = form_of(jax.tree.unflatten(self._structure, self._first))
        if not self._first or not all(map(is_real, self._first)):
            raise ConfigError(f"example 0 of {name}", self._form, "numbers")
        self.row_bytes = sum(leaf.nbytes for leaf in self._first)

    def read(self, numbers: Iterable[int], num: int = 0) -> Params:
        """Read examples: leaves `[R, ...]`, of floats if some examples have floats.

        Args:
          numbers: Their numbers.
          num: How many they are, R, if `numbers` has no length.
        """
        num = num or len(numbers)  # type: ignore[arg-type]
        rows = [np.empty((num, *leaf.shape), leaf.dtype) for leaf in self._first]
        for row, number in enumerate(map(int, numbers)):
            place = f"example {number} of {self._name}"
            with _reported(place, Exception):  # Whatever a user's class raises.
                example = self._items[number]
            leaves, found = _read_example(place, example)
            shapes = [[leaf.shape for leaf in each] for each in (leaves, self._first)]
            if found != self._structure or shapes[0] != shapes[1]:
                other = form_of(jax.tree.unflatten(found, leaves))
                raise ConfigError(place, other, f"{self._form}, as example 0")
            for i, leaf in enumerate(leaves):
                if not np.can_cast(leaf.dtype, rows[i].dtype):
                    rows[i] = rows[i].astype(np.result_type(rows[i].dtype, leaf.dtype))
                rows[i][row] = leaf
        return jax.tree.unflatten(self._structure, rows)


def _read_example(place: str, example: object) -> tuple[list[np.ndarray], Any]:
    """Read one example of a data set: its arrays, and the structure that they have."""
    if isinstance(example, Mapping):
        example = dict(example)
    elif isinstance(example, list) and not all(isinstance(x, int | float) for x in example):
        example = tuple(example)  # As of inputs and targets.
    leaves, structure = jax.tree.flatten(example, is_leaf=lambda leaf: isinstance(leaf, list))
    with refusing(place, type(example).__name__, "numbers", ValueError):  # Of unequal lists.
        read = [leaf if isinstance(leaf, list) else read_leaf(place, leaf) for leaf in leaves]
        return [np.asarray(leaf) for leaf in read], structure


def read_leaf(name: str, leaf: Any) -> Params:
    """Read an array, a tensor or a number as an array, and a data set as a pytree of arrays.

    Args:
      name: What error messages call it.
      leaf: What a user gave. A data set is read with a progress bar on a terminal.

    Raises:
      ConfigError: If it cannot be read, or takes more memory than is free.
    """
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return leaf
    if isinstance(leaf, bool | int | float | complex | str | bytes):
        return np.asarray(leaf)
    if any(hasattr(leaf, form) for form in ("__array__", "__array_interface__", "__dlpack__")):
        return read_tensor(name, leaf)
    items = Items(name, leaf)
    needed, free = items.num * items.row_bytes, lifecycle.free_on_host()
    if needed > free:
        allowed = f"at most {lifecycle.write_bytes(free)}, what is free"
        raise ConfigError(f"size of {name}", lifecycle.write_bytes(needed), allowed)
    numbers: Iterable[int] = range(items.num)
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        console = Console(file=sys.stderr)
        numbers = track(numbers, f"reading {name}", console=console, transient=True)
    return items.read(numbers, items.num)


def read_tensor(name: str, tensor: Any) -> Any:
    """Read a tensor of another library, detached from its gradients, as an array.

    Args:
      name: What error messages call it.
      tensor: The tensor.

    Raises:
      ConfigError: If neither NumPy nor JAX can read it.
    """
    tensor, reasons = tensor.detach() if hasattr(tensor, "detach") else tensor, []
    for convert in (np.asarray, jax.numpy.from_dlpack):  # NumPy knows no bfloat16.
        try:
            return convert(tensor)
        except Exception as error:  # Whatever a library raises.
            reasons.append(first_line(error))
    allowed = f"a tensor that NumPy can read ({reasons[0]})"
    raise ConfigError(name, type(tensor).__name__, allowed)


def is_real(array: Any) -> bool:
    """Tell whether an array is of real numbers or bools."""
    kinds = np.floating, np.integer, np.bool_
    return any(jax.numpy.issubdtype(array.dtype, kind) for kind in kinds)


def form_of(tree: Params) -> str:
    """Write the types and shapes of a pytree, such as "float32[2, 5]"."""
    return str(jax.tree.map(lambda leaf: _Text(f"{leaf.dtype}{list(leaf.shape)}"), tree))


class _Text(str):
    """Text that is written without quotation marks."""

    __repr__ = str.__str__


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or else its type."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:200]


@contextlib.contextmanager
def refusing(
    field: str, value: object, allowed: str, *kinds: type[Exception], where: str = ""
) -> Iterator[None]:
    """Refuse a value, with the reason, if the code under `with` raises an error about it.

    Args:
      field: What is refused.
      value: Its value, or a word for it.
      allowed: What would be allowed.
      *kinds: Kinds of errors that mean it; all of them, if none are given, as those of a user's
        function may be of any kind. The first line of the error is the reason.
      where: What stands before the reason.

    Raises:
      ConfigError: The sentence. One that is raised inside is passed on as it is.
    """
    caught = kinds or (Exception,)
    try:
        yield
    except lifecycle.InputError:
        raise
    except caught as error:
        raise ConfigError(field, value, f"{allowed} ({where}{first_line(error)})") from error


class Stored:
    """Examples in files, which are read by their numbers.

    Two of the same files are equal: of equal names, sizes and times, with equal examples in
    `SAMPLED` places. What is no whole file must be the same object.

    Attributes:
      num: Number of examples, n.
      first: Example 0, leaves `[1, ...]`.
      row_bytes: Bytes of an example.
    """

    def __init__(self, readers: Any):
        """Open the files, and read a few examples.

        Args:
          readers: A pytree of readers of equally many examples.
        """
        self._readers, leaves = readers, jax.tree.leaves(readers)
        lengths = {each.num for each in leaves}
        if len(lengths) != 1 or 0 in lengths:
            allowed = "equally many, and at least 1"
            raise ConfigError("examples in the arrays of data", sorted(lengths), allowed)
        [self.num] = lengths
        self._known = {path: _state_of(path) for each in leaves for path in each.files}
        sampled = self._raw(np.unique(np.linspace(0, self.num - 1, SAMPLED).astype(np.int64)))
        digest = hashlib.sha256(repr((self.num, self._known)).encode())
        for leaf in jax.tree.leaves(sampled):
            if not is_real(leaf):
                raise ConfigError("type of examples in data", str(leaf.dtype), "a kind of number")
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        self._identity = digest.hexdigest()[:16]
        native = jax.tree.map(lambda leaf: leaf.dtype.newbyteorder("="), sampled)
        kinds = jax.tree.map(jax.dtypes.canonicalize_dtype, native)
        self.first = jax.tree.map(lambda leaf, kind: _converted(leaf[:1], kind), sampled, kinds)
        self.row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.first))

    def __len__(self) -> int:
        return self.num

    def __repr__(self) -> str:
        return f"Stored({self.num} examples, {self._identity})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stored) or self._identity != other._identity:
            return False
        origins = ([each.origin for each in jax.tree.leaves(x._readers)] for x in (self, other))
        return [*map(id, next(origins))] == [*map(id, next(origins))]

    def __hash__(self) -> int:
        return hash(self._identity)

    def _raw(self, numbers: np.ndarray) -> Params:
        """Read examples as they are in the files."""
        return jax.tree.map(lambda reader: reader.read(numbers), self._readers)

    def blocks(self, numbers: Sequence[int] | np.ndarray) -> Iterator[Params]:
        """Read examples, some at a time.

        Args:
          numbers: Their numbers, which rise.

        Returns:
          Blocks of them, leaves `[R, ...]` of types of JAX.

        Raises:
          InputError: If a file is missing, has changed, or cannot be read, or if a number is not
            finite or does not fit its type.
        """
        at_once = max(1, READ_AT_ONCE // self.row_bytes)
        for begin in range(0, len(numbers), at_once):
            for path, known in self._known.items():
                if _state_of(path) != known:
                    reason = "has changed since the run opened it; it must stay as it is"
                    raise lifecycle.InputError(f"{path} {reason}")
            raw = self._raw(np.asarray(numbers[begin : begin + at_once]))
            yield jax.tree.map(lambda leaf, like: _converted(leaf, like.dtype), raw, self.first)

    def read(self, numbers: Sequence[int] | np.ndarray, room: int = 0) -> Params:
        """Read examples at once, with the errors of `blocks`.

        Args:
          numbers: Their numbers, which rise.
          room: Rows of the arrays; R if it is less.

        Returns:
          Leaves `[R or room, ...]`; rows after the first R mean nothing.
        """
        rows, begin = max(room, len(numbers)), 0
        found = jax.tree.map(lambda like: _blank((rows, *like.shape[1:]), like.dtype), self.first)
        for block in self.blocks(numbers):
            for into, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(block), strict=True):
                into[begin : begin + len(leaf)] = leaf
            begin += len(leaf)
        return found

    @property
    def targets(self) -> "Stored | None":
        """The second parts of examples that are pairs and lie apart; otherwise None."""
        is_pair = isinstance(self._readers, tuple) and len(self._readers) == 2
        return Stored(self._readers[1]) if is_pair else None

    @functools.cached_property
    def whole(self) -> Params:
        """All examples, in memory: leaves `[n, ...]`."""
        return jax.device_put(self.read(range(self.num)), may_alias=True)


def _blank(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Make an array at the beginning of a page, which a CPU may so read without a copy."""
    size = max(1, kind.itemsize * math.prod(shape))
    return np.ndarray(shape, kind, mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


@np.errstate(over="ignore")
def _converted(rows: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Convert numbers to a type of JAX, if they are finite and fit."""
    with refusing("type of examples in data", str(rows.dtype), f"{kind}, as of others"):
        found = rows.astype(kind, casting="same_kind", copy=False)
    if kind.kind in "biu":
        if found is not rows and (found != rows).any():
            raise lifecycle.InputError(f"data have whole numbers that do not fit {kind}")
    elif not np.isfinite(found).all():
        raise lifecycle.InputError("data have nan or inf among them")
    return found


@contextlib.contextmanager
def _reported(
    source: object, kinds: type[Exception] | tuple = (OSError, ValueError, KeyError)
) -> Iterator[None]:
    """Say in one sentence that a file or an example cannot be read."""
    try:
        yield
    except kinds as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {first_line(error)}"
        raise lifecycle.InputError(f"{source} could not be read ({reason})") from error


def _state_of(path: Path) -> tuple[int, int]:
    """Return the size of a file, and the time at which it was written."""
    with _reported(path):
        found = path.stat()
    return found.st_size, found.st_mtime_ns


@checked
def stored(data: Any, *, split: str = "train") -> Stored:
    """Open examples in files, which are read when they are needed.

        examples = stored((np.ones((5, 2), "float32"), np.arange(5)))  # or paths of two files
        assert examples.num == 5 and examples.read(np.array([3]))[1] == [3]

    Args:
      data: A file of NumPy; a pytree of such files, of memory maps or of arrays; a folder of such
        files, whose examples are pairs if they are called inputs.npy and targets.npy, and otherwise
        dicts with the names of the files; a folder in which tensorflow-datasets has prepared a
        data set as ArrayRecord; or anything with `__len__` and `__getitem__`, such as a data set of
        PyTorch, whose examples are pytrees of numbers and arrays.
      split: Which part of a data set of tensorflow-datasets.

    Returns:
      The examples.

    Raises:
      ConfigError: If the data are none of these, or not of numbers.
      InputError: If a file cannot be read.
    """
    if isinstance(data, str | os.PathLike) and (path := Path(data)).is_dir():
        files = {each.stem: each for each in sorted(path.glob("*.npy"))}
        if not files:
            import tensorflow_datasets as tfds

            allowed = "a folder of .npy files or of tensorflow-datasets as ArrayRecord"
            with refusing("data", str(path), allowed):
                source = tfds.builder_from_directory(path).as_data_source(split=split)
            of_set = sorted(each for each in path.iterdir() if each.is_file())
            return Stored(Items("data", source, of_set))
        is_pair = files.keys() == {"inputs", "targets"}
        data = (files["inputs"], files["targets"]) if is_pair else files
    if split != "train":
        raise ConfigError("split", split, "train, unless data are of tensorflow-datasets")
    leaves = jax.tree.leaves(data)
    if leaves and all(isinstance(leaf, str | os.PathLike | np.ndarray) for leaf in leaves):
        return Stored(jax.tree.map(_Column, data))
    return Stored(Items("data", data))
