"""Forms in which examples come: tensors, map-style data sets, and what is refused in a sentence.

The tensors and data sets are written here in the likeness of PyTorch's, which need not be there.
"""

import sys
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, partition, problems
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.partition.parts import gather_by_owner
from fedjax_sim.problems import latent
from fedjax_sim.problems.client_data import read_arrays
from tests.problems.test_supervised import INPUTS, MODEL, NAMES, TARGETS


class Tensor:
    """A tensor of another library, whose type is none of NumPy's."""

    dtype = "torch.float32"

    def __init__(self, values: Any, *, requires_grad: bool = False):
        self.values, self.requires_grad = values, requires_grad

    def detach(self) -> "Tensor":
        return Tensor(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return np.asarray(self.values, dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> "Tensor":
        return Tensor(self.values[number], requires_grad=self.requires_grad)

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))


class Narrow:
    """A tensor of bfloat16: NumPy cannot read it, JAX can."""

    def __init__(self, values: jax.Array):
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class Elsewhere:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy.\nUse Tensor.cpu()")


class DataSet:
    """A map-style data set, which never says that it has no example of a number.

    Attributes:
      read: Numbers of the examples that were asked for.
    """

    def __init__(self, example_of: Any, num: int = 10):
        self.example_of, self.num = example_of, num
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, number: int) -> Any:
        assert number < self.num, "it was read beyond its end"
        self.read.append(number)
        return self.example_of(number)


def pair(number: int) -> tuple[Any, Any]:
    return Tensor(INPUTS[number]), float(TARGETS[number])


def make(data: Any, **options: Any) -> Any:
    return problems.supervised(
        MODEL, problems.squared_error, data, **({"clients": NAMES} | options)
    )


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ((Tensor(INPUTS), Tensor(TARGETS, requires_grad=True)), {}),
        (DataSet(pair), {}),
        (DataSet(lambda i: [*pair(i)]), {}),
        ((DataSet(lambda i: INPUTS[i].tolist()), TARGETS), {}),
        (
            DataSet(lambda i: {"x": INPUTS[i].tolist(), "y": TARGETS[i]}),
            {"prepare": lambda batch: (batch["x"], batch["y"])},
        ),
        (
            DataSet(lambda i: UserDict(x=INPUTS[i], y=TARGETS[i])),
            {"prepare": lambda batch: (batch["x"], batch["y"])},
        ),
    ],
    ids=["tensors", "data set", "lists", "inputs", "dicts", "mappings"],
)
def test_tensors_and_data_sets_are_read_as_arrays(data: Any, options: Any) -> None:
    expected, found = make((INPUTS, TARGETS)), make(data, **options)
    for a, b in zip(jax.tree.leaves(found.data), jax.tree.leaves(expected.data), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    np.testing.assert_array_equal(found.held.index, expected.held.index)


def test_a_data_set_is_read_once_and_for_tests_too() -> None:
    data, test = DataSet(pair), DataSet(pair, 4)
    problem = make(data, test=test, test_clients=Tensor(np.array([3, 3, 5, 5])), clients=[3, 5] * 5)
    assert problem.test_data[0].shape == (4, 3)
    for each in (data, test):
        assert sorted(set(each.read)) == [*range(each.num)] and len(each.read) <= each.num + 1
    np.testing.assert_array_equal(problem.test_held.counts, [2, 2])


def test_numbers_that_are_whole_in_some_examples_only() -> None:
    data, num = read_arrays("data", DataSet(lambda i: i if i < 5 else i + 0.5))
    assert num == 10
    np.testing.assert_array_equal(data, [0, 1, 2, 3, 4, 5.5, 6.5, 7.5, 8.5, 9.5])


def test_bfloat16_is_taken_by_dlpack() -> None:
    inputs = jnp.asarray(INPUTS, "bfloat16")
    (found, _), _ = read_arrays("data", (Narrow(inputs), TARGETS))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, inputs)


def test_mixtures_take_them_in_32_bits() -> None:
    """Their decompositions are of 32 bits at least."""
    split = partition.iid(np.zeros(10, "int32"), num_clients=2, seed=0)
    problem = latent.make_estimation(
        latent.GaussianMixture(2), DataSet(lambda i: jnp.asarray(INPUTS[i], "bfloat16")), split
    )
    assert problem.data.dtype == jnp.float32
    np.testing.assert_array_equal(problem.data, jnp.asarray(INPUTS, "bfloat16"))


def test_a_tensor_may_name_the_clients() -> None:
    ids = np.array([7, 9] * 5)
    assert make((INPUTS, TARGETS), clients=Tensor(ids)).client_ids == (7, 9)
    assert make((INPUTS, TARGETS), clients=jnp.asarray(ids)).client_ids == (7, 9)


class Terminal:
    """Standard error that somebody looks at."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_shown", [True, False])
def test_progress_is_shown_on_a_terminal(is_shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal if is_shown else None)
    monkeypatch.setenv("TERM", "xterm")
    read_arrays("the digits", DataSet(pair))
    assert ("reading the digits" in terminal.text) == is_shown


class Iterable:
    """A data set that can only be read from its beginning, as PyTorch's `IterableDataset`."""

    def __iter__(self) -> Iterator[Any]:
        return iter([pair(0)])


class Loader(Iterable):
    def __len__(self) -> int:
        return 3


HUGE = np.broadcast_to(np.float32(1), (10**7, 10**7))
RAGGED = ([[1.0, 2.0], [3.0]], TARGETS)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Iterable(), "data is 'Iterable', but must be arrays, tensors, or a data set with __len__"),
        (Loader(), "data is 'Loader', but must be arrays, tensors, or a data set with __len__ and"),
        (iter([pair(0)]), "data is 'list_iterator', but must be arrays, tensors, or a data set"),
        (RAGGED, "numbers, with examples first; numpy.stack makes an array of a list"),
        (
            (INPUTS, Elsewhere()),
            "data is 'Elsewhere', but must be a tensor that NumPy can read",
        ),
        (DataSet(pair, 0), "data is 'DataSet', but must be"),
        (
            DataSet(lambda i: (INPUTS[i][: 3 - i // 5], 1.0)),
            r"example 5 of data is '.float32\[2\], float64\[\].', but must be .float32\[3\], ",
        ),
        (
            DataSet(lambda i: pair(i) if i < 5 else pair(i)[:1]),
            r"example 5 of data is '.float32\[3\],.', but must be .float32\[3\], float64",
        ),
        (
            DataSet(lambda i: pair({}[i] if i == 7 else i)),
            "example 7 of data could not be read .KeyError: 7",
        ),
        (DataSet(lambda i: "text"), r"example 0 of data is '<U4\[\]', but must be numbers"),
        (DataSet(lambda i: {"x": [[1], [1, 2]]}), "example 0 of data is 'dict', but must be numb"),
        (DataSet(pair, 10**15), "size of data is '2e.07 GB', but must be at most .*, what is free"),
        ((HUGE, np.ones(10**7)), "size of data/0 is '4e.05 GB', but must be such that it fits"),
    ],
)
def test_what_cannot_be_read_is_refused(data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as refusal:
        make(data)
    assert "\n" not in str(refusal.value)


def test_clients_that_are_no_list_are_refused() -> None:
    with pytest.raises(ConfigError, match="clients is 3, but must be a list or None"):
        make((INPUTS, TARGETS), clients=3)


def test_a_client_with_all_examples_takes_no_room_of_a_million_others() -> None:
    """A matrix with as many places for each client would have 10^12 of them."""
    clients = gather_by_owner(np.arange(10**6), np.zeros(10**6, "int32"), 10**6)
    assert clients.index.shape == clients.counts.shape == (10**6,)
    assert clients.counts[0] == 10**6 and clients.offsets[1:].min() == 10**6
