"""`launch.sweep`: a sweep in parts from Python, in processes of this machine."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout, launch
from fedjax_sim.core.lifecycle import write_sealed
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.launch import parts
from fedjax_sim.launch.jobs import Job, Launcher, Started
from fedjax_sim.launch.parts import SWITCHES
from fedjax_sim.problems import Quadratic
from fedjax_sim.results.trackers import CSV
from tests.engine.test_division import assert_equal_runs
from tests.kept_files import NUM_FLIPS, Touch, count_refusals
from tests.launch.conftest import ended

ROOT = Path(fedjax_sim.__file__).parents[1]
LAYOUT = Layout(slots_at_once=4, lanes_at_once=False, client_devices=1, lane_devices=1)
FAVANO, FEDAVG = (fedjax_sim.SYSTEMS[name] for name in ("favano", "fedavg"))


def saved(folder: Path, resume: bool = False) -> dict[str, Any]:
    """Return the argument by which a sweep is written to the folder "study", or resumed."""
    return {"checkpoints": fedjax_sim.Checkpoints(folder / "study", resume=resume)}


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Set JAX's switches back, which a worker in this process sets for good."""
    before = {name: getattr(jax.config, name) for name in SWITCHES}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@dataclasses.dataclass
class Here(Launcher):
    """A launcher that runs jobs in this process, and notes their names."""

    usual: int
    names: list[str] = dataclasses.field(default_factory=list)

    def start(self, jobs: Sequence[Job], folder: Path) -> Started:
        self.names += [job.name for job in jobs]
        words = [job.words() for job in jobs]
        codes = [parts.run_part(each[each.index(launch.__name__) + 1 :]) for each in words]
        return list(map(ended, codes)), list

    def count(self) -> int:
        return self.usual


def test_a_launched_sweep_returns_what_the_sweep_returns(
    small: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 64 bits, as here, with a problem that is a function of this test.

    The parts are other processes, and are resumed in this one.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    centers = np.arange(21.0).reshape(7, 3)
    options: dict[str, Any] = {
        "seeds": [4, 1],
        "settings": {"lr": [0.1, 0.2, 0.3]},
        "budget": fedjax_sim.Ticks(6),
        "num_evals": 3,
        "layout": LAYOUT,
        "keep": fedjax_sim.Keep(models=True),
        "start": np.full(3, 0.5),
        "watch": fedjax_sim.Watch(
            progress=False,
            on_evaluation=lambda progress: [seed == 1 for seed in progress.seeds],
        ),
    }
    given: dict[str, Any] = {"parts": 2, **saved(tmp_path)}

    def problem(seed: int) -> Quadratic:
        return Quadratic.of(centers + seed, noise=0.1)

    with jax.enable_x64(True):
        whole = fedjax_sim.sweep(FEDAVG, problem, small(FEDAVG), **options)
        run = launch.sweep(FEDAVG, problem, small(FEDAVG), **options, **given)
        here: dict[str, Any] = given | {"launcher": Here(2), **saved(tmp_path, resume=True)}
        again = launch.sweep(FEDAVG, problem, small(FEDAVG), **options, **here)
        longer = options | {"budget": fedjax_sim.Ticks(10)}
        with pytest.raises(launch.PartError, match="failed with exit code 2"):
            launch.sweep(FEDAVG, problem, small(FEDAVG), **longer, **here)
    assert run.models.dtype == np.float64
    assert (run.samples[:, 0] == 0.5).all()
    assert run.curves.stopped_at.values.tolist() == [[-1, 1]] * 3
    assert_equal_runs(run, whole)
    assert_equal_runs(again, whole)
    with pytest.raises(ConfigError, match="new or empty, or else resumed"):
        launch.sweep(FEDAVG, problem, small(FEDAVG), **options, **given)


def test_a_resumed_sweep_keeps_its_parts(small: Callable, tmp_path: Path) -> None:
    """On a machine with more cores too. A part without its result finds it again.

    With a further seed, only the part that gets it runs anew.
    """
    problem, first, second = Quadratic.of(np.arange(21.0).reshape(7, 3)), Here(2), Here(3)
    what: dict[str, Any] = {
        "hyper": small(FAVANO),
        **saved(tmp_path),
        "budget": fedjax_sim.Ticks(2),
    }
    what |= {"num_evals": 1, "watch": fedjax_sim.Watch(progress=False), "layout": LAYOUT}
    run = launch.sweep(FAVANO, problem, **what, seeds=3, launcher=first)
    assert first.names == ["part 0/2", "part 1/2"]
    (tmp_path / "study" / "1-of-2" / "run.pkl").unlink()
    what |= {"seeds": 3, "launcher": second, **saved(tmp_path, resume=True)}
    again = launch.sweep(FAVANO, problem, **what)
    assert second.names == ["part 0/2", "part 1/2"]
    assert_equal_runs(again, run)
    with pytest.raises(ConfigError, match="but must be from 1 to 3"):
        launch.sweep(FAVANO, problem, **what | {"parts": 4})
    wider = launch.sweep(FAVANO, problem, **what | {"seeds": 4})
    del what["checkpoints"], what["launcher"]
    assert_equal_runs(wider, fedjax_sim.sweep(FAVANO, problem, **what | {"seeds": 4}))


@pytest.mark.slow
def test_a_resumed_sweep_notices_what_has_changed(
    study: Callable[..., fedjax_sim.Run], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Though both parts had ended. The kept results are as before."""
    run = study(Here(2))

    def frozen(*what: Any) -> fedjax_sim.Algorithm:
        bound = FAVANO.algorithm(*what)
        return bound._replace(
            step=lambda key, state, event: (state, bound.step(key, state, event)[1])
        )

    for change, words in (
        ({"system": FAVANO._replace(algorithm=frozen)}, "differs in program"),
        ({"seeds": [0, 1, 3]}, "differs in seeds"),
        ({"budget": fedjax_sim.Ticks(4)}, "differs in num_ticks (2 there, 4 here)"),
        ({"budget": fedjax_sim.Ticks(1)}, "differs in num_ticks (2 there, 1 here)"),
    ):
        with pytest.raises(launch.PartError, match="failed with exit code 2"):
            study(Here(2), resume=True, **change)
        assert words in capfd.readouterr().err
    assert_equal_runs(study(Here(2), resume=True), run)


@pytest.fixture
def study(small: Callable, tmp_path: Path) -> Callable[..., fedjax_sim.Run]:
    """Return a function that launches a small sweep of three lanes in two parts."""
    problem = Quadratic.of(np.arange(21.0).reshape(7, 3))

    def launched(launcher: Here, resume: bool = False, **further: Any) -> fedjax_sim.Run:
        what: dict[str, Any] = {
            **saved(tmp_path, resume),
            "launcher": launcher,
            "budget": fedjax_sim.Ticks(2),
        }
        what |= {
            "num_evals": 1,
            "watch": fedjax_sim.Watch(progress=False),
            "seeds": 3,
            "system": FAVANO,
            **further,
        }
        return launch.sweep(problem=problem, hyper=small(FAVANO), **what)

    return launched


@pytest.mark.slow
def test_a_part_whose_result_is_damaged_runs_again(
    study: Callable[..., fedjax_sim.Run], tmp_path: Path
) -> None:
    run, again = study(Here(2)), Here(2)
    damaged = tmp_path / "study" / "0-of-2" / "run.pkl"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert_equal_runs(study(again, resume=True), run)
    assert damaged.stat().st_size > 9


def test_what_cannot_be_launched_is_refused(small: Callable, tmp_path: Path) -> None:
    """Before any process is started, and no folder is left."""
    lock, options = threading.Lock(), {**saved(tmp_path), "budget": fedjax_sim.Ticks(2)}
    for problem, further, words in (
        (lambda seed: lock, {"parts": 1}, "something that can be carried to another process"),
        (None, {"parts": 3, "seeds": 2}, "number of parts is 3, but must be from 1 to 2"),
        (None, saved(tmp_path, resume=True), "one with an unfinished sweep"),
        (None, {"budget": None}, "must be a Ticks, a Time or an Energy"),
        (None, {"watch": fedjax_sim.Watch(progress="file")}, "progress is 'file', but must be tru"),
        (
            None,
            {"watch": fedjax_sim.Watch(trackers=[CSV(tmp_path / "log.csv")])},
            "trackers is .* left out in a swe",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            launch.sweep(FAVANO, problem, small(FAVANO), **options | further)  # type: ignore
    assert not (tmp_path / "study").exists()


def test_a_resumed_folder_runs_no_code_of_others(
    study: Callable[..., fedjax_sim.Run], tmp_path: Path
) -> None:
    """The pickles in it are written anew before they are read."""
    run, marker = study(Here(2)), tmp_path / "marker"
    for name in ("call.pkl", "0-of-2/run.pkl", "1-of-2/run.pkl"):
        path = tmp_path / "study" / name
        write_sealed(path, lambda scratch: scratch.write_bytes(cloudpickle.dumps(Touch(marker))))
    assert_equal_runs(study(Here(2), resume=True), run)
    assert not marker.exists()


def test_damage_in_a_launched_sweep_shows(
    study: Callable[..., fedjax_sim.Run], tmp_path: Path
) -> None:
    """A damaged call or result is refused."""
    folder = tmp_path / "study"
    study(Here(2))

    for path in (folder / "call.pkl", folder / "0-of-2" / "run.pkl"):
        sound = cloudpickle.dumps(parts.read_pickle(path))
        is_sound = lambda found, sound=sound: cloudpickle.dumps(found) == sound  # noqa: E731
        read = partial(parts.read_pickle, path)
        assert count_refusals(path, read, is_sound) == NUM_FLIPS
