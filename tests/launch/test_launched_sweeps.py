"""`launch.sweep`: a sweep in parts from Python, in processes of this machine."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout, launch
from fedjax_sim.engine.division import Unit
from fedjax_sim.launch import sweeps, worker
from fedjax_sim.launch.jobs import Job
from fedjax_sim.launch.parts import LANES, keep_lanes
from fedjax_sim.launch.sweeps import SWITCHES
from fedjax_sim.lifecycle import InputError, read_json
from fedjax_sim.problems import Quadratic
from fedjax_sim.settings import ConfigError
from tests.engine.test_division import assert_equal_runs
from tests.kept_files import NUM_FLIPS, Touch, count_refusals, flipped

ROOT = Path(fedjax_sim.__file__).parents[1]
FAVANO = fedjax_sim.SYSTEMS["favano"]
RESUMED: dict[str, Any] = {"resume": True, "trust": True}


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Set JAX's switches back, which a worker in this process sets for good."""
    before = {name: getattr(jax.config, name) for name in SWITCHES}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@dataclasses.dataclass
class Here:
    """A launcher that runs jobs in this process, and notes their names."""

    usual: int
    names: list[str] = dataclasses.field(default_factory=list)

    def start(self, jobs: Sequence[Job], folder: Path) -> "Here":
        self.names += [job.name for job in jobs]
        words = [job.words() for job in jobs]
        self.codes = [worker.main(each[each.index(worker.__name__) + 1 :]) for each in words]
        return self

    def poll(self) -> Sequence[int | None]:
        return self.codes

    def stop(self) -> None:
        """Nothing runs any more."""

    def check(self) -> None:
        pass

    def count(self) -> int:
        return self.usual


def test_a_launched_sweep_returns_what_the_sweep_returns(
    small: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 64 bits, as here, with a problem that is a function of this test.

    The parts are other processes, and go on to a longer budget in this one.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    centers = np.arange(21.0).reshape(7, 3)
    options: dict[str, Any] = {
        "seeds": [4, 1],
        "settings": {"lr": [0.1, 0.2, 0.3]},
        "num_ticks": 6,
        "num_evals": 3,
        "layout": Layout(slots_at_once=4, lanes_at_once=False, client_devices=1, lane_devices=1),
        "keep_models": True,
        "start": np.full(3, 0.5),
        "on_evaluation": lambda progress: [seed == 1 for seed in progress.seeds],
    }
    given: dict[str, Any] = {"folder": tmp_path / "study", "parts": 2, "progress": False}

    def problem(seed: int) -> Quadratic:
        return Quadratic.of(centers + seed, noise=0.1)

    with jax.enable_x64(True):
        whole = fedjax_sim.sweep(FAVANO, problem, small(FAVANO), **options)
        run = launch.sweep(FAVANO, problem, small(FAVANO), **options, **given)
        again = launch.sweep(FAVANO, problem, small(FAVANO), **options, **given, **RESUMED)
        longer = options | {"num_ticks": 10}
        here: dict[str, Any] = given | {"launcher": Here(2), **RESUMED}
        further = launch.sweep(FAVANO, problem, small(FAVANO), **longer, **here)
        with pytest.raises(ConfigError, match="num_ticks is 6, but must be at least 10, as in "):
            launch.sweep(FAVANO, problem, small(FAVANO), **options, **given, **RESUMED)
        whole_longer = fedjax_sim.sweep(FAVANO, problem, small(FAVANO), **longer | {"num_evals": 5})
    assert run.models.dtype == np.float64
    assert (run.samples[:, 0] == 0.5).all()
    assert run.curves.stopped_at.values.tolist() == [[-1, 1]] * 3
    assert_equal_runs(run, whole)
    assert_equal_runs(again, whole)
    assert_equal_runs(further, whole_longer)
    with pytest.raises(ConfigError, match="new or empty, or else resumed"):
        launch.sweep(FAVANO, problem, small(FAVANO), **options, **given)


def test_a_resumed_sweep_keeps_its_parts(small: Callable, tmp_path: Path) -> None:
    """On a machine with more cores too, and whatever seeds the second call names."""
    problem, first, second = Quadratic.of(np.arange(21.0).reshape(7, 3)), Here(2), Here(3)
    what: dict[str, Any] = {"hyper": small(FAVANO), "folder": tmp_path / "study", "num_ticks": 2}
    what |= {"num_evals": 1, "progress": False}
    run = launch.sweep(FAVANO, problem, **what, seeds=3, launcher=first)
    assert first.names == ["part 0/2", "part 1/2"]
    (tmp_path / "study" / "1-of-2" / "run.pkl").unlink()
    again = launch.sweep(FAVANO, problem, **what, launcher=second, **RESUMED)
    assert second.names == ["part 1/2"]
    assert_equal_runs(again, run)
    with pytest.raises(ConfigError, match="parts is 4, but must be from 1 to 3"):
        launch.sweep(FAVANO, problem, **what, parts=4, launcher=second, **RESUMED)


@pytest.fixture
def study(small: Callable, tmp_path: Path) -> Callable[..., fedjax_sim.Run]:
    """Return a function that launches a small sweep of three lanes in two parts."""
    problem = Quadratic.of(np.arange(21.0).reshape(7, 3))

    def launched(launcher: Here, **further: Any) -> fedjax_sim.Run:
        what: dict[str, Any] = {"folder": tmp_path / "study", "launcher": launcher, "num_ticks": 2}
        what |= {"num_evals": 1, "progress": False, "seeds": 3, **further}
        return launch.sweep(FAVANO, problem, small(FAVANO), **what)

    return launched


def test_a_part_whose_result_is_damaged_runs_again(
    study: Callable[..., fedjax_sim.Run], tmp_path: Path
) -> None:
    run, again = study(Here(2)), Here(2)
    damaged = tmp_path / "study" / "0-of-2" / "run.pkl"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert_equal_runs(study(again, **RESUMED), run)
    assert again.names == ["part 0/2"]


def test_a_longer_budget_that_is_refused_leaves_the_sweep(
    study: Callable[..., fedjax_sim.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that did go on is not joined with what another returned before."""
    refusing, go_on = ["0-of-2", "1-of-2"], worker.sweep

    def refuse(*, checkpoint: Path, **options: Any) -> fedjax_sim.Run:
        if checkpoint.parent.name in refusing:
            raise ConfigError("num_ticks", 4, "2")
        return go_on(checkpoint=checkpoint, **options)

    run, again, longer = study(Here(2)), Here(2), Here(2)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "sweep", refuse)
        with pytest.raises(launch.PartError, match="part 0/2 failed with exit code 2"):
            study(Here(2), **RESUMED, num_ticks=4)
        assert_equal_runs(study(again, **RESUMED), run)
        assert not again.names
        refusing.remove("0-of-2")
        with pytest.raises(launch.PartError, match=r"^part 1/2 failed with exit code 2"):
            study(Here(2), **RESUMED, num_ticks=4)
    with pytest.raises(launch.PartError, match=r"^part 0/2 failed with exit code 2"):
        study(again, **RESUMED)
    assert again.names == ["part 0/2"]
    assert study(longer, **RESUMED, num_ticks=4).curves.ticks.max() == 4
    assert longer.names == ["part 1/2"]
    study(longer, **RESUMED, num_ticks=None)
    assert longer.names == ["part 1/2"]


def test_what_cannot_be_launched_is_refused(small: Callable, tmp_path: Path) -> None:
    """Before any process is started, and no folder is left."""
    lock, options = threading.Lock(), {"folder": tmp_path / "study", "num_ticks": 2}
    for problem, further, words in (
        (lambda seed: lock, {"parts": 1}, "something that can be carried to another process"),
        (None, {"parts": 3, "seeds": 2}, "parts is 3, but must be from 1 to 2"),
        (None, {"resume": True}, "one with an unfinished sweep"),
        (None, RESUMED, "one with an unfinished sweep"),
    ):
        with pytest.raises(ConfigError, match=words):
            launch.sweep(FAVANO, problem, small(FAVANO), **options, **further)  # type: ignore
    assert not (tmp_path / "study").exists()


def test_a_folder_is_resumed_with_trust_alone(
    study: Callable[..., fedjax_sim.Run], tmp_path: Path
) -> None:
    """Nothing in it runs code before; and what is no call of a sweep is one sentence."""
    call, marker = tmp_path / "study" / "call.pkl", tmp_path / "marker"
    call.parent.mkdir()
    call.write_bytes(cloudpickle.dumps((Touch(marker), {})))
    with pytest.raises(ConfigError, match="trust is False, but must be True to resume from"):
        study(Here(2), resume=True)
    assert not marker.exists()
    others = (3, (1, 2, 3), ({"seeds": 1}, {}), ([], 3))
    for content in (b"", b"x", *map(cloudpickle.dumps, others)):
        call.write_bytes(content)
        with pytest.raises(InputError, match=r"call\.pkl (cannot be read here|does not hold)"):
            study(Here(2), **RESUMED)


def test_damage_in_a_launched_sweep_shows(
    study: Callable[..., fedjax_sim.Run], tmp_path: Path
) -> None:
    """A damaged call is refused, and damaged results and lanes are worked out again."""
    folder = tmp_path / "study"
    study(Here(2))

    def read_result() -> bool:
        return sweeps._is_done(folder / "0-of-2", {"time_budget": None, "num_ticks": 2})

    call = folder / "call.pkl"
    sound = cloudpickle.dumps(sweeps.read_call(call))
    is_sound = lambda found: cloudpickle.dumps(found) == sound  # noqa: E731
    assert count_refusals(call, lambda: sweeps.read_call(call), is_sound) == NUM_FLIPS
    assert read_result()
    assert not any(read_result() for _ in flipped(folder / "0-of-2" / "run.pkl"))
    lanes = folder / "0-of-2" / "checkpoint" / LANES
    assert keep_lanes(lanes, (0, 2), dict) == read_json(lanes)["lanes"]
    surveyed = {"sweep": [Unit((0,), 1), Unit((1,), 1)]}
    for _ in flipped(lanes):
        assert keep_lanes(lanes, (0, 2), lambda: surveyed) == {"sweep": [0]}
    for content in ("", "[]", "3", '"x"', "null", "{}", '{"part": 3}', '{"part": [0, 2]}'):
        lanes.write_text(content)
        assert keep_lanes(lanes, (0, 2), lambda: surveyed) == {"sweep": [0]}
