"""Examples in files, read by their numbers."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.problems.client_data import read_arrays

NUM = 23
IMAGES = np.arange(NUM * 6, dtype="uint8").reshape(NUM, 6)
LABELS = (np.arange(NUM) % 3).astype("int32")


class Items:
    """Examples by their numbers, as a data set of PyTorch gives them."""

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        if not 0 <= number < NUM:
            raise IndexError(number)
        return IMAGES[number], int(LABELS[number])


def in_folder(folder: Path) -> Any:
    np.save(folder / "inputs.npy", IMAGES)
    np.save(folder / "targets.npy", LABELS)
    return folder


def in_files(folder: Path) -> Any:
    in_folder(folder)
    return folder / "inputs.npy", str(folder / "targets.npy")


def in_maps(folder: Path) -> Any:
    return tuple(np.load(path, mmap_mode="r") for path in in_files(folder))


def in_items(folder: Path) -> Any:
    return Items()


def in_array_records(folder: Path) -> Any:
    """Prepare a data set of tensorflow-datasets."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_builders.adhoc_builder import AdhocBuilder

    features = {"image": tfds.features.Tensor(shape=(6,), dtype=np.uint8)}
    features |= {"label": tfds.features.Scalar(np.int32)}

    class Builder(AdhocBuilder, skip_registration=True):  # type: ignore[call-arg]
        def _split_generators(self, dl_manager: object) -> dict[str, Any]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for i in range(NUM):
                yield i, {"image": IMAGES[i], "label": LABELS[i]}

    builder = Builder(
        name="few",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={},
        data_dir=folder,
    )
    builder.download_and_prepare(file_format="array_record")
    return builder.data_path


def read_pair(examples: datasets.Stored, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Read images and labels, whatever they are called."""
    images, labels = jax.tree.leaves(examples.read(np.array(numbers)))
    return images, labels


@pytest.mark.parametrize("make", [in_folder, in_files, in_maps, in_items, in_array_records])
def test_examples_are_read_by_their_numbers(make: Callable[[Path], Any], tmp_path: Path) -> None:
    given = make(tmp_path)
    examples = datasets.stored(given)
    assert examples.num == NUM and "23 examples" in repr(examples)
    if make is in_array_records:  # They are shuffled when they are written.
        order = read_pair(examples, list(range(NUM)))[0][:, 0] // 6
    else:
        order = np.arange(NUM)
    for numbers in ([0], [3, 4, 5, 9, 22], list(range(NUM))):
        images, labels = read_pair(examples, numbers)
        np.testing.assert_array_equal(images, IMAGES[order[numbers]])
        np.testing.assert_array_equal(labels, LABELS[order[numbers]])
    first = jax.tree.leaves(examples.first)[0]
    np.testing.assert_array_equal(first, IMAGES[order[:1]])
    again = datasets.stored(given)
    assert examples == again and hash(examples) == hash(again)


def test_names_of_files_are_names_of_examples(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", IMAGES)
    np.save(tmp_path / "label.npy", LABELS)
    assert datasets.stored(tmp_path).first.keys() == {"image", "label"}
    np.save(tmp_path / "label.npy", LABELS[:3])
    with pytest.raises(ConfigError, match=r"examples in the arrays of data is \[3, 23\]"):
        datasets.stored(tmp_path)


def test_changed_files_are_other_files(tmp_path: Path) -> None:
    first = datasets.stored(in_folder(tmp_path))
    changed = IMAGES.copy()
    changed[7] += 1
    np.save(tmp_path / "inputs.npy", changed)
    assert first != datasets.stored(tmp_path)
    with pytest.raises(InputError, match=r"inputs.npy has changed since the run opened it"):
        first.read(np.array([0]))


@pytest.mark.parametrize("make", [in_folder, in_maps])
def test_a_file_that_is_cut_short_is_one_sentence(make: Callable, tmp_path: Path) -> None:
    examples = datasets.stored(make(tmp_path))
    path = tmp_path / "inputs.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(InputError, match="has changed"):
        examples.read(np.array([22]))
    # Between the look at the file and the reading of it.
    examples._known.clear()
    with pytest.raises(InputError, match=r"inputs.npy could not be read .*shorter than it was"):
        examples.read(np.array([22]))


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.npy could not be read \(No such file"):
        datasets.stored(tmp_path / "nothing.npy")
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(InputError, match=r"text.npy could not be read \(ValueError"):
        datasets.stored(tmp_path / "text.npy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"data is .*empty'?, but must be a folder of .npy"):
        datasets.stored(tmp_path / "empty")
    np.savez(tmp_path / "several.npz", images=IMAGES, labels=LABELS)
    with pytest.raises(ConfigError, match=r"data is .*several.npz', but must be an .npy file"):
        datasets.stored(tmp_path / "several.npz")
    with pytest.raises(ConfigError, match="split is 'test', but must be train, unless data are of"):
        datasets.stored(in_folder(tmp_path), split="test")
    with pytest.raises(ConfigError, match="data is 'int', but must be arrays, tensors, or a"):
        datasets.stored(3)
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    with pytest.raises(ConfigError, match=r"type of examples in data is .*a kind of number"):
        datasets.stored(tmp_path / "words.npy")
    np.save(tmp_path / "wrong.npy", np.array([1.0, np.nan]))
    with pytest.raises(InputError, match="nan or inf"):
        datasets.stored(tmp_path / "wrong.npy").read(np.arange(2))
    np.save(tmp_path / "large.npy", np.array([1, 2**40]))
    with pytest.raises(InputError, match="whole numbers that do not fit int32"):
        datasets.stored(tmp_path / "large.npy").read(np.arange(2))

    def failing(wrong: int) -> Items:
        class Failing(Items):
            def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
                if number == wrong == 5:
                    raise OSError("the disk is gone")
                return (IMAGES[0, :3], 0) if number == wrong else super().__getitem__(number)

        return Failing()

    for number, words in (
        (5, r"could not be read \(OSError: the disk is gone\)"),
        (6, "as example 0"),
    ):
        with pytest.raises(InputError, match=rf"example {number} of data .*{words}"):
            datasets.stored(failing(number))


def test_types_are_those_of_the_sampled_examples(tmp_path: Path) -> None:
    numbers: list[float] = [*range(200)]
    numbers[1] = 1.5
    with pytest.raises(ConfigError, match="type of examples in data is 'float64', but must be int"):
        datasets.stored(numbers).read(np.array([0, 1]))
    np.save(tmp_path / "huge.npy", np.array([1.0, 1e300]))
    with pytest.raises(InputError, match="nan or inf"):
        datasets.stored(tmp_path / "huge.npy").read(np.arange(2))


def test_a_part_of_a_memory_map_is_no_file_and_a_map_is_not_pickled_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.arange(2**18).reshape(-1, 2))
    whole = np.load(tmp_path / "many.npy", mmap_mode="r")
    for given, first in ((whole, 0), (whole[5:], 5), (whole[::3], 0)):
        examples = datasets.stored(given)
        assert examples.read(np.array([0, 2])).tolist() == given[[0, 2]].tolist()
        assert examples.first[0, 0] == 2 * first
    examples = datasets.stored(whole)
    content = pickle.dumps(examples)
    assert len(content) < 2**12 and pickle.loads(content) == examples


def test_changes_that_a_memory_map_keeps_to_itself_are_read(tmp_path: Path) -> None:
    """Of such a map (mode "c") the file has the old numbers."""
    np.save(tmp_path / "few.npy", np.arange(6.0))
    changed = np.load(tmp_path / "few.npy", mmap_mode="c")
    changed[3] = 7.0
    assert datasets.stored(changed).read(np.arange(2, 5)).tolist() == [2.0, 7.0, 4.0]


@pytest.mark.parametrize("kind", [">f4", ">i8", ">u2"])
def test_numbers_in_the_other_order_of_bytes_are_read(kind: str, tmp_path: Path) -> None:
    """Such as those of files of astronomy, which JAX refuses."""
    numbers = np.arange(12).reshape(6, 2).astype(kind)
    np.save(tmp_path / "other.npy", numbers)
    in_memory, _ = read_arrays("data", numbers)
    for found in (datasets.stored(tmp_path / "other.npy").whole, in_memory):
        np.testing.assert_array_equal(found, np.arange(12).reshape(6, 2))


def test_a_cpu_reads_a_window_where_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.arange(2**18, dtype="float32").reshape(-1, 2))
    examples = datasets.stored(tmp_path / "many.npy")
    # Smaller arrays of NumPy may begin where a CPU needs them by chance.
    window = examples.read(np.arange(5, 100), room=2**23)
    on_device = jax.device_put(window, may_alias=True)
    assert on_device.unsafe_buffer_pointer() == window.ctypes.data
    np.testing.assert_array_equal(on_device[:95], np.load(tmp_path / "many.npy")[5:100])


def test_classes_are_checked_in_files_too(tmp_path: Path) -> None:
    files = datasets.stored(in_folder(tmp_path))
    split = partition.iid(LABELS, num_clients=3, seed=0)
    prepare = lambda batch: (batch[0].astype("float32"), batch[1])  # noqa: E731
    for given in (None, prepare):
        with pytest.raises(ConfigError, match="largest class in data is 2"):
            problems.supervised(
                models.MLP((), 2), problems.cross_entropy, files, split, prepare=given
            )
    for test in (0.3, files):
        problem = problems.supervised(
            models.MLP((), 3), problems.cross_entropy, files, split, prepare=prepare, test=test
        )
        other = problems.supervised(
            models.MLP((), 3),
            problems.cross_entropy,
            (IMAGES, LABELS),
            split,
            prepare=prepare,
            test=test if test == 0.3 else (IMAGES, LABELS),
        )
        model = problem.init(jax.random.key(0))
        assert problem.evaluate(model) == other.evaluate(model)
