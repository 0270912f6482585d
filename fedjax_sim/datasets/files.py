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
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from fedjax_sim.core import lifecycle
from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.core.types import Params

SAMPLED = 64
"""Examples that are read to tell one set of files from another."""
READ_AT_ONCE = 2**26
"""Bytes of files that are read at a time where all are read once."""
ALIGNED = 64
"""Bytes to which arrays are aligned that a CPU takes over without a copy."""
PAIR = {"inputs", "targets"}
"""Names of the files of a folder of examples that are pairs."""


class _Source(Protocol):
    """Something that examples are read from.

    Attributes:
      num: Number of examples, n.
      files: The files in which they lie.
    """

    num: int
    files: tuple[Path, ...]

    def read(self, numbers: np.ndarray, room: int) -> Params:
        """Read examples `i64[R]`, sorted, into the first rows of leaves `[room, ...]`."""


class _File:
    """A file of NumPy with one array `[n, ...]`."""

    def __init__(self, path: Path):
        with _reported(path):
            like = np.load(path, mmap_mode="r")
        self._shape, self._kind, self._begin = like.shape[1:], like.dtype, like.offset
        if not like.ndim or not like.flags.c_contiguous:
            raise ConfigError("data", str(path), "a file with an array of numbers, examples first")
        self.num, self.files = len(like), (path,)

    def read(self, numbers: np.ndarray, room: int) -> np.ndarray:
        found = _blank(room, self._shape, self._kind)
        size = self._kind.itemsize * math.prod(self._shape)
        if not found.size:
            return found
        view = memoryview(found.reshape(-1).view("uint8"))  # type: ignore[arg-type]
        # Neighbours are read together.
        firsts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()
        path = self.files[0]
        with _reported(path), path.open("rb", buffering=0) as opened:
            for first, last in zip(firsts, [*firsts[1:], len(numbers)], strict=True):
                opened.seek(self._begin + int(numbers[first]) * size)
                at, end = first * size, last * size
                while at < end:
                    if not (got := opened.readinto(view[at:end])):
                        raise OSError("it is shorter than it was")
                    at += got
        return found


class _Array:
    """An array `[n, ...]`, such as a memory map."""

    def __init__(self, array: np.ndarray):
        if array.ndim < 1 or array.dtype.hasobject:
            allowed = "an array of numbers, with examples first"
            raise ConfigError("data", f"{array.dtype}{list(array.shape)}", allowed)
        self._array, self.num = array, len(array)
        name = getattr(array, "filename", None)
        self.files = () if name is None else (Path(name),)

    def read(self, numbers: np.ndarray, room: int) -> np.ndarray:
        found = _blank(room, self._array.shape[1:], self._array.dtype)
        return _put(found, np.asarray(self._array[numbers]))


class _Columns:
    """A pytree of files and arrays of equal length."""

    def __init__(self, tree: Any):
        kinds = (str, os.PathLike)

        def column(leaf: Any) -> _File | _Array:
            return _File(Path(leaf)) if isinstance(leaf, kinds) else _Array(np.asanyarray(leaf))

        self.tree, self._columns = tree, jax.tree.map(column, tree)
        leaves = jax.tree.leaves(self._columns)
        lengths = {leaf.num for leaf in leaves}
        if len(lengths) != 1:
            raise ConfigError("examples in the arrays of data", sorted(lengths), "equally many")
        self.num = lengths.pop()
        self.files = tuple(path for leaf in leaves for path in leaf.files)

    def read(self, numbers: np.ndarray, room: int) -> Params:
        return jax.tree.map(lambda leaf: leaf.read(numbers, room), self._columns)


class Items:
    """A data set that gives examples by their numbers: pytrees of numbers, arrays and tensors.

    The examples of the first reading decide how numbers are kept: as floats if some are.

    Attributes:
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
        self._name, self._items, self.files = name, items, tuple(files)
        self._first, self._structure = _read_example(f"example 0 of {name}", first)
        self._form = form_of(jax.tree.unflatten(self._structure, self._first))
        if not self._first or not all(map(is_real, self._first)):
            raise ConfigError(f"example 0 of {name}", self._form, "numbers")
        self.row_bytes = sum(leaf.nbytes for leaf in self._first)
        self._kinds: list[np.dtype] = []

    def read(self, numbers: Iterable[int], room: int) -> Params:
        """Read examples into the first rows of leaves `[room, ...]`."""
        kinds = self._kinds or [leaf.dtype for leaf in self._first]
        rows = [_blank(room, x.shape, kind) for x, kind in zip(self._first, kinds, strict=True)]
        for row, number in enumerate(map(int, numbers)):
            place = f"example {number} of {self._name}"
            try:
                example = self._items[number]
            except Exception as error:  # Whatever a user's class raises.
                reason = f"{type(error).__name__}: {first_line(error)}"
                raise lifecycle.InputError(f"{place} could not be read ({reason})") from error
            leaves, found = _read_example(place, example)
            is_same = found == self._structure and all(
                leaf.shape == like.shape for leaf, like in zip(leaves, self._first, strict=True)
            )
            for i, leaf in enumerate(leaves if is_same else ()):
                if not np.can_cast(leaf.dtype, rows[i].dtype):
                    is_same = is_same and not self._kinds
                    rows[i] = rows[i].astype(np.result_type(rows[i].dtype, leaf.dtype))
                rows[i][row] = leaf
            if not is_same:
                other = form_of(jax.tree.unflatten(found, leaves))
                raise ConfigError(place, other, f"{self._form}, as example 0")
        self._kinds = [leaf.dtype for leaf in rows]
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
    `SAMPLED` places.

    Attributes:
      num: Number of examples, n.
      first: Example 0, leaves `[1, ...]`.
      row_bytes: Bytes of an example.
    """

    def __init__(self, source: _Source):
        """Open the files, and read a few examples."""
        self._source, self.num = source, source.num
        if self.num == 0:
            raise ConfigError("number of examples in data", 0, "at least 1")
        self._known = {path: _state_of(path) for path in source.files}
        places = np.unique(np.linspace(0, self.num - 1, SAMPLED).astype(np.int64))
        sampled = source.read(places, len(places))
        for leaf in jax.tree.leaves(sampled):
            if leaf.dtype.kind not in "biuf":
                raise ConfigError("type of examples in data", str(leaf.dtype), "a kind of number")
        kinds = {leaf.dtype for leaf in jax.tree.leaves(sampled)}
        self._kinds = {kind: np.dtype(jax.dtypes.canonicalize_dtype(kind)) for kind in kinds}
        self.first = self._checked(jax.tree.map(lambda leaf: leaf[:1], sampled), 1)
        self.row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.first))
        digest = hashlib.sha256(repr((self.num, self._known)).encode())
        for leaf in jax.tree.leaves(sampled):
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        self._identity = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return self.num

    def __repr__(self) -> str:
        return f"Stored({self.num} examples, {self._identity})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def read(self, numbers: np.ndarray, room: int = 0) -> Params:
        """Read some examples.

        Args:
          numbers: `i64[R]`, their numbers, which rise.
          room: Rows of the arrays; R if it is less.

        Returns:
          Leaves `[R or room, ...]`; rows after the first R mean nothing.

        Raises:
          InputError: If a file is missing, has changed, or cannot be read.
        """
        self._check_files()
        read = self._source.read(numbers, max(room, len(numbers)))
        return self._checked(read, len(numbers))

    def blocks(self) -> Iterator[Params]:
        """Read all examples, some at a time: leaves `[R, ...]`."""
        at_once = max(1, READ_AT_ONCE // self.row_bytes)
        for first in range(0, self.num, at_once):
            yield self.read(np.arange(first, min(first + at_once, self.num)))

    @property
    def targets(self) -> "Stored | None":
        """The second parts of examples that are pairs and lie apart; otherwise None."""
        tree = getattr(self._source, "tree", None)
        return Stored(_Columns(tree[1])) if isinstance(tree, tuple) and len(tree) == 2 else None

    def alone(self, room: int) -> Params:
        """Put example 0 into the first row of arrays, without reading it again.

        Args:
          room: Rows of the arrays.

        Returns:
          Leaves `[room, ...]`; the other rows mean nothing.
        """

        def first(leaf: np.ndarray) -> np.ndarray:
            return _put(_blank(room, leaf.shape[1:], leaf.dtype), leaf)

        return jax.tree.map(first, self.first)

    def _check_files(self) -> None:
        """Check that the files are those that were opened."""
        for path, known in self._known.items():
            if _state_of(path) != known:
                raise lifecycle.InputError(
                    f"{path} has changed since the run opened it; it must stay as it is"
                )

    def _checked(self, read: Params, num: int) -> Params:
        """Convert the first examples to types of JAX, if these are finite and fit."""

        def converted(leaf: np.ndarray) -> np.ndarray:
            kind = self._kinds[leaf.dtype]
            if kind.kind == "f" and not np.isfinite(leaf[:num]).all():
                raise lifecycle.InputError("data have nan or inf among them")
            if kind == leaf.dtype:
                return leaf
            found = _put(_blank(len(leaf), leaf.shape[1:], kind), leaf[:num])
            if kind.kind in "iu" and (found[:num] != leaf[:num]).any():
                raise lifecycle.InputError(
                    f"its {self.num} examples have whole numbers that do not fit {kind}"
                )
            return found

        return jax.tree.map(converted, read)

    @functools.cached_property
    def whole(self) -> Params:
        """All examples, in memory: leaves `[n, ...]`."""
        return jax.tree.map(jax.numpy.asarray, self.read(np.arange(self.num)))


def _blank(num: int, shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Make an array `[num, ...]` that a CPU takes over without a copy, with any numbers."""
    size = num * kind.itemsize * math.prod(shape)
    raw = np.empty(size + ALIGNED, np.uint8)
    first = -raw.ctypes.data % ALIGNED
    return raw[first : first + size].view(kind).reshape(num, *shape)


def _put(into: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Write examples into the first rows of an array, and return it."""
    into[: len(rows)] = rows
    return into


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Say in one sentence that a file cannot be read."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise lifecycle.InputError(f"{path} could not be read as data ({reason})") from error


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
    if not isinstance(data, str | os.PathLike):
        leaves = jax.tree.leaves(data)
        if leaves and all(isinstance(x, str | os.PathLike | np.ndarray) for x in leaves):
            return Stored(_Columns(data))
        if hasattr(type(data), "__getitem__") and hasattr(type(data), "__len__"):
            return Stored(Items("data", data))
        allowed = "files, memory maps, or something with __len__ and __getitem__"
        raise ConfigError("data", type(data).__name__, allowed)
    path = Path(data)
    if not path.is_dir():
        return Stored(_Columns(path))
    files = {each.stem: each for each in sorted(path.glob("*.npy"))}
    if files:
        is_pair = files.keys() == PAIR
        return Stored(_Columns((files["inputs"], files["targets"]) if is_pair else files))
    import tensorflow_datasets as tfds

    allowed = "a folder of .npy files or of tensorflow-datasets as ArrayRecord"
    with refusing("data", str(path), allowed):
        source = tfds.builder_from_directory(path).as_data_source(split=split)
    files_of_set = sorted(each for each in path.iterdir() if each.is_file())
    return Stored(Items("data", source, files_of_set))
