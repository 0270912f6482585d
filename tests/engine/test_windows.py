"""Data in files: windows of what chunks read, with the bits of data in memory."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Layout, datasets, models, problems
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.engine.machine import memory
from fedjax_sim.engine.program import reads, windows
from fedjax_sim.engine.running import chunks
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent

NUM_CLIENTS, FEATURES = 12, 5
ROW = 4 * FEATURES + 4
SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {"local_steps": 2, "batch_size": 3, "num_selected": 2},
    "scaffold": {"local_steps": 2, "batch_size": 3, "num_selected": 2},
    "fedbuff": {"local_steps": 2, "batch_size": 3, "buffer_size": 2},
    "favano": {"local_steps": 3, "batch_size": 3, "num_selected": 2},
    "ditto": {"local_steps": 2, "batch_size": 3, "num_selected": 2},
}
FEDEM = {"batch_size": 3, "participation": 0.2}


@pytest.fixture(scope="module")
def arrays() -> tuple[np.ndarray, np.ndarray, Partition]:
    """Examples of unequal clients, in another order than the clients'."""
    random = np.random.default_rng(0)
    counts = random.integers(3, 40, NUM_CLIENTS)
    num = int(counts.sum())
    inputs = random.normal(size=(num, FEATURES)).astype("float32")
    targets = inputs @ random.normal(size=(FEATURES,)) + random.normal(size=num) * 0.1
    index = random.permutation(num).astype("int32")
    return inputs, targets.astype("float32")[:, None], Partition(index, counts.astype("int32"))


@pytest.fixture
def folder(arrays: tuple, tmp_path: Path) -> Path:
    """A folder with the examples in files of NumPy."""
    np.save(tmp_path / "inputs.npy", arrays[0])
    np.save(tmp_path / "targets.npy", arrays[1])
    return tmp_path


def problem_of(data: Any, split: Any, **options: Any) -> Any:
    """Make a linear regression."""
    return problems.supervised(models.MLP((), 1), problems.squared_error, data, split, **options)


def run_of(name: str, problem: Any, layout: Layout, **options: Any) -> Any:
    """Run a system for 6 ticks, evaluated three times."""
    system = fedjax_sim.SYSTEMS[name]
    hyper = system.Hyper(num_clients=NUM_CLIENTS, **SETTINGS.get(name, FEDEM))
    given = {"seeds": 2, "budget": fedjax_sim.Ticks(6), "num_evals": 3} | options
    return fedjax_sim.sweep(system, problem, hyper, layout=layout, **given)


def assert_same(first: Any, second: Any) -> None:
    """Check that two runs have equal bits."""
    pairs = zip(jax.tree.leaves(first.models), jax.tree.leaves(second.models), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    for name in first.curves:
        np.testing.assert_array_equal(first.curves[name].values, second.curves[name].values)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Note the begin, the end and the examples of each window."""
    made: list[tuple[int, int, int]] = []
    make = windows.Windows.make

    def noting(self: windows.Windows, begin: int, limit: int) -> Any:
        end, arrays = make(self, begin, limit)
        where = list(arrays.values())[-1]
        made.append((begin, end, int((where < self._size).sum())))
        return end, arrays

    monkeypatch.setattr(windows.Windows, "make", noting)
    return made


def test_seeds_whose_data_are_in_no_files_have_their_own(arrays: tuple) -> None:
    """Also if the data are equal in all places that are read to tell files from each other."""
    inputs, targets, split = arrays
    sampled = np.linspace(0, len(inputs) - 1, datasets.files.SAMPLED).astype(int)
    other = np.where(np.isin(np.arange(len(inputs)), sampled)[:, None], targets, targets + 1)
    both = [(inputs, targets), (inputs, other.astype("float32"))]
    of_seeds = [
        run_of("fedavg", [problem_of(make(each), split) for each in both], Layout())
        for make in (datasets.stored, lambda data: data)
    ]
    assert_same(*of_seeds)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "devices"), [(name, devices) for name in SETTINGS for devices in (1, 8)]
)
def test_windows_have_the_bits_of_memory(
    name: str, devices: int, arrays: tuple, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, targets, split = arrays
    options: dict[str, Any] = {"settings": {"lr": [0.01, 0.02, 0.03, 0.04]}} if devices > 1 else {}
    layout = Layout(lanes_at_once=False, lane_devices=devices, client_devices=1)
    expected = run_of(name, problem_of((inputs, targets), split), layout, **options)
    made, num = noted(monkeypatch), len(inputs)
    files = problem_of(datasets.stored(folder), split)
    # Windows of a few ticks, and of nearly everything.
    for part in (0.45, 0.95):
        made.clear()
        asked = layout._replace(window=int(part * num) * ROW)
        assert_same(run_of(name, files, asked, **options), expected)
        assert max(read for _, _, read in made) < num
        ends = [end for begin, end, _ in made if end > begin]
        assert ends[-1] == 6 and len(ends) >= 3


def mixtures(tmp_path: Path) -> tuple[Any, Any, Any, Callable[..., Any]]:
    """A sample, bytes in memory and in a file, and a function that joins them to a problem."""
    random = np.random.default_rng(1)
    counts = random.integers(4, 30, NUM_CLIENTS).astype("int32")
    split = Partition(random.permutation(int(counts.sum())).astype("int32"), counts)
    centers = 3 * random.integers(-1, 2, (int(counts.sum()), 1))
    data = np.clip(128 + 10 * (centers + random.normal(size=(len(centers), 2))), 0, 255)
    data, few = data.astype("uint8"), Partition(np.arange(24), np.full(NUM_CLIENTS, 2))
    np.save(tmp_path / "examples.npy", data)
    model = latent.GaussianMixture(components=2, prior=0.1)
    sample = latent.make_estimation(model, data[:24], few)
    files = datasets.stored(tmp_path / "examples.npy")
    return sample, data, files, lambda data: latent.WithSample.of(sample, data, split)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 8])
def test_fedem_in_windows_has_the_bits_of_memory(devices: int, tmp_path: Path) -> None:
    _, data, files, made = mixtures(tmp_path)
    options: dict[str, Any] = {"settings": {"gamma": [0.1, 0.2, 0.3, 0.4]}} if devices > 1 else {}
    layout = Layout(lanes_at_once=False, lane_devices=devices, client_devices=1)
    expected = run_of("fedem", made(data), layout, **options)
    assert not np.array_equal(expected.curves.objective[..., 0], expected.curves.objective[..., -1])
    for part in (0.5, 0.95):
        asked = layout._replace(window=int(part * len(data)) * files.row_bytes)
        assert_same(run_of("fedem", made(files), asked, **options), expected)


@pytest.mark.slow
def test_a_problem_with_a_sample_is_the_estimation_if_this_is_all_data(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(36, 2)).astype("float32")
    split = Partition(np.arange(36), np.full(NUM_CLIENTS, 3))
    whole = latent.make_estimation(latent.GaussianMixture(components=2), data, split)
    with_sample = latent.WithSample.of(whole, data, split)
    assert_same(run_of("fedem", with_sample, Layout()), run_of("fedem", whole, Layout()))


def test_what_a_problem_with_a_sample_refuses(tmp_path: Path) -> None:
    sample, data, _, made = mixtures(tmp_path)
    with pytest.raises(ConfigError, match=r"an example of data is .*, but must be .*, as in the"):
        made(data[:, :1])
    with pytest.raises(ConfigError, match=r"number of clients is 1, but must be 12, as in the"):
        latent.WithSample.of(sample, data, Partition(np.arange(24), np.full(1, 24)))
    few = Partition(np.arange(24), np.full(NUM_CLIENTS, 2))
    with pytest.raises(ConfigError, match="weighting is 'both'"):
        latent.WithSample.of(sample, data, few, weighting="both")
    for name in ("em", "vr_fedem"):
        with pytest.raises(ConfigError, match="problem is 'WithSample', but must be one with all"):
            system = fedjax_sim.SYSTEMS[name]
            hyper = system.Hyper(num_clients=NUM_CLIENTS)
            fedjax_sim.simulate(system, made(data), hyper, budget=fedjax_sim.Ticks(3))
    # What the model refuses of the examples in files, it refuses before a run.
    np.save(tmp_path / "examples.npy", np.linspace(0, 2, 48).reshape(24, 2).astype("float32"))
    files, zeros = datasets.stored(tmp_path / "examples.npy"), np.zeros((24, 2), "float32")
    sample = latent.make_estimation(latent.BernoulliMixture(components=2), zeros, few)
    with pytest.raises(ConfigError, match=r"data is .*, but must be"):
        latent.WithSample.of(sample, files, few)


def test_lanes_that_are_batched_have_their_own_partitions(arrays: tuple, folder: Path) -> None:
    inputs, targets, split = arrays
    other = Partition(split.index[::-1].copy(), split.counts)
    layout = Layout(lanes_at_once=True, lane_devices=1, client_devices=1)
    expected = run_of("fedavg", problem_of((inputs, targets), [split, other]), layout)
    files = problem_of(datasets.stored(folder), [split, other])
    asked = layout._replace(window=int(0.5 * len(inputs)) * ROW)
    assert_same(run_of("fedavg", files, asked), expected)


def test_a_window_holds_what_is_read_and_nothing_else(
    arrays: tuple, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, _, split = arrays
    made = noted(monkeypatch)
    layout = Layout(1, False, 1, 1, window=int(0.45 * len(inputs)) * ROW)
    files = problem_of(datasets.stored(folder), split)
    run_of("fedavg", files, layout, seeds=1, budget=fedjax_sim.Ticks(1), num_evals=1)
    # Two clients, two steps with three examples each, and perhaps example 0.
    assert 1 <= next(read for begin, end, read in made if end > begin) <= 2 * 2 * 3 + 1


def test_data_that_fit_are_read_once(arrays: tuple, folder: Path) -> None:
    inputs, targets, split = arrays
    expected = run_of("fedavg", problem_of((inputs, targets), split), Layout())
    assert_same(run_of("fedavg", problem_of(datasets.stored(folder), split), Layout()), expected)


def test_a_window_too_small_for_a_tick_is_one_sentence(arrays: tuple, folder: Path) -> None:
    files = problem_of(datasets.stored(folder), arrays[2])
    with pytest.raises(ConfigError, match=r"layout.window is .*, but must be at least .* tick"):
        run_of("fedavg", files, Layout(window=2 * 4 * ROW))
    with pytest.raises(ConfigError, match=r"layout.window is .*, but must be at least"):
        run_of("fedavg", files, Layout(window=ROW))


def test_live_clocks_and_bound_programs_need_data_in_memory(
    arrays: tuple, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = problem_of(datasets.stored(folder), arrays[2])
    layout = Layout(window=int(0.9 * len(arrays[0])) * ROW)
    system = fedjax_sim.SYSTEMS["oort"]
    hyper = system.Hyper(num_clients=NUM_CLIENTS)
    with pytest.raises(ConfigError, match=r"data is .*, but must be in memory .*is learnt decides"):
        fedjax_sim.simulate(system, files, hyper, budget=fedjax_sim.Ticks(3), layout=layout)
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper = system.Hyper(num_clients=NUM_CLIENTS)
    monkeypatch.setattr(windows, "SHARE", 0.9 * len(arrays[0]) * ROW / memory.free_here())
    with pytest.raises(ConfigError, match=r"data is .*, but must be small enough to be in memory"):
        fedjax_sim.bind(system, files, hyper, budget=fedjax_sim.Ticks(3))
    with pytest.raises(ConfigError, match=r"data is .*, but must be in memory: only"):
        files.loss(files.init(jax.random.key(0)), jnp.int32(0), jnp.arange(2), jax.random.key(0))
    with pytest.raises(ConfigError, match=r"data is .*, but must be in memory"):
        problems.poison(files, [0], problems.LabelFlip())


def test_a_read_outside_of_the_window_is_one_sentence_and_never_another_row(
    arrays: tuple, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = problem_of(datasets.stored(folder), arrays[2])
    layout = Layout(lanes_at_once=False, lane_devices=1, window=int(0.9 * len(arrays[0])) * ROW)
    found = windows._reads

    def forgetful(*given: Any) -> Callable[..., np.ndarray]:
        read = found(*given)

        def less(*place: int) -> np.ndarray:
            flags = np.array(read(*place))
            if place == (2, 0):  # tick 4
                flags[np.flatnonzero(flags)[-1]] = False
            return flags

        return less

    monkeypatch.setattr(windows, "_reads", forgetful)
    kept: list[Any] = []
    final = chunks.Replay.advance

    def keeping(self: Any, *given: Any) -> Any:
        carries, returned = final(self, *given)
        kept.append((given[1:3], jax.tree.map(np.asarray, carries.state)))
        return carries, returned

    monkeypatch.setattr(chunks.Replay, "advance", keeping)
    with pytest.raises(InputError, match=r"ticks .* read examples that are not in their window"):
        run_of("fedavg", files, layout, seeds=1)
    (place, state), good = kept[-1], kept[0][1]
    assert place[0] <= 4 < place[1]
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(state) if leaf.dtype.kind == "f")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(good))


def test_follow_marks_look_ups_in_every_kind_of_control_flow() -> None:
    data, model = jnp.ones((7, 2)), jnp.ones(2)

    def loss(model: Any, data: Any, row: Any) -> Any:
        return (data[row] @ model) ** 2

    def run(data: Any, model: Any, rows: Any, flag: Any) -> Any:
        def step(model: Any, row: Any) -> tuple[Any, Any]:
            return model - jax.grad(loss)(model, data, row), row

        scanned, _ = jax.lax.scan(step, model, rows[:2])
        looped = jax.lax.fori_loop(
            0, rows[2], lambda i, model: step(model, rows[3] + i)[0], scanned
        )
        return jax.lax.cond(
            flag, lambda model: step(model, rows[4])[0], lambda model: model, looped
        )

    def marked(rows: Any, flag: Any, run: Callable[..., Any] = run) -> list[int]:
        closed = jax.make_jaxpr(run)(data, model, jnp.zeros(5, int), jnp.bool_(True))
        found = jax.jit(lambda given: reads.find(closed, given, 7))
        return np.flatnonzero(found([reads.Rows(None), None, rows, flag])).tolist()

    rows = jnp.array([0, 2, 2, 4, 6])
    assert marked(rows, jnp.bool_(True)) == [0, 2, 4, 5, 6]
    assert marked(rows, jnp.bool_(False)) == [0, 2, 4, 5]
    for given in ((None, jnp.bool_(True)), (rows, None)):
        with pytest.raises(ConfigError, match="what is learnt decides which examples are read"):
            marked(*given)

    def scanned(data: Any, *_: Any) -> Any:
        return jax.lax.scan(lambda total, row: (total + row, None), jnp.zeros(2), data)[0]

    def tested(data: Any, *_: Any) -> Any:
        return jax.lax.while_loop(lambda i: data[i, 0] > 0, lambda i: i + 1, 0)

    for all_read in (scanned, tested, lambda data, *_: data.sum()):
        with pytest.raises(ConfigError, match=r"in memory .*(all examples are|examples decide)"):
            marked(rows, jnp.bool_(True), all_read)
    for last, expected in ((6, True), (5, False)):
        given = model, rows.at[4].set(last), jnp.bool_(True)
        found, outside = reads.check(run, data, *given)
        np.testing.assert_array_equal(found, run(data, *given))
        assert bool(outside) == expected


def test_a_file_that_changes_is_one_sentence_and_nothing_is_lost(
    arrays: tuple, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, targets, split = arrays
    layout = Layout(lanes_at_once=False, lane_devices=1, window=int(0.45 * len(inputs)) * ROW)
    expected = run_of("fedavg", problem_of((inputs, targets), split), layout._replace(window=None))
    files = problem_of(datasets.stored(folder), split)
    read, states = datasets.Stored.read, tmp_path / "states"
    calls: list[int] = []

    def failing(self: Any, numbers: np.ndarray, *given: Any, **options: Any) -> Any:
        calls.append(len(numbers))
        if len(calls) == 4:
            os.utime(folder / "inputs.npy", ns=(1, 1))
        return read(self, numbers, *given, **options)

    state = (folder / "inputs.npy").stat()
    monkeypatch.setattr(datasets.Stored, "read", failing)
    saved = fedjax_sim.Checkpoints(states, every=1000)
    again = fedjax_sim.Checkpoints(states, resume=True)
    with pytest.raises(InputError, match=r"inputs.npy has changed since the run opened it"):
        run_of("fedavg", files, layout, checkpoints=saved)
    assert not [each for each in threading.enumerate() if "window" in each.name]
    assert list(states.rglob("state-*.npz")), (calls, list(states.rglob("*")))
    monkeypatch.setattr(datasets.Stored, "read", read)
    with pytest.raises(ConfigError, match=r"checkpoint is .*problems"):
        other = problem_of(datasets.stored(folder), split)
        run_of("fedavg", other, layout, checkpoints=again)
    os.utime(folder / "inputs.npy", ns=(state.st_atime_ns, state.st_mtime_ns))
    resumed = run_of("fedavg", files, layout, checkpoints=again)
    assert_same(resumed, expected)
    (folder / "targets.npy").unlink()
    with pytest.raises(InputError, match=r"targets.npy could not be read \(No such file"):
        run_of("fedavg", files, layout)
