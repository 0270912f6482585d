"""A resumed run notices what has changed since it began, also if it had ended."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.core.lifecycle import read_record, write_record
from fedjax_sim.engine.planning import schedule
from fedjax_sim.engine.resuming.checkpoint import CONFIGURATION, Checkpoint
from fedjax_sim.results import records
from tests.engine.test_checkpoint import QUAFL, assert_same_bits


def resumed(folder: Path, *what: Any, resume: Any = False, **options: Any) -> fedjax_sim.Run:
    """Run a small sweep of QuAFL from the checkpoints in a folder."""
    return fedjax_sim.sweep(
        *what,
        checkpoints=fedjax_sim.Checkpoints(folder, resume=resume),
        **{"seeds": 2, "budget": fedjax_sim.Ticks(4), "num_evals": 2} | options,
    )


def changed(function: Callable, change: Callable[[Any], Any]) -> Callable:
    """Return the function that another version of its source would define."""

    def other(*arguments: Any) -> Any:
        return change(function(*arguments))

    other.__qualname__ = function.__qualname__
    return other


def with_method(problem: Any, name: str, change: Callable[[Any], Any]) -> Any:
    """Return a problem whose class has the same name and another method."""
    kind = type(problem)
    # A class with the same fields has the same structure for JAX.
    namespace = {name: changed(getattr(kind, name), change), "__qualname__": kind.__qualname__}
    other = dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), namespace))
    names = [field.name for field in dataclasses.fields(kind)]
    jax.tree_util.register_dataclass(other, names, [])
    return other(*(getattr(problem, each) for each in names))


def descent(momentum: float | None = None) -> Callable[[Any], Any]:
    """Return an optimizer without a name."""
    return lambda lr: optax.sgd(lr, momentum)


def doubled(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: 2 * leaf, tree)


def later(timeline: Any) -> Any:
    return timeline._replace(time=2 * timeline.time)


def more_steps(timeline: Any) -> Any:
    return timeline._replace(steps=timeline.steps + 1)


def longer_step(algorithm: Any) -> Any:
    def step(key: Any, state: Any, event: Any) -> Any:
        state, info = algorithm.step(key, state, event)
        return state._replace(server=doubled(state.server)), info

    return algorithm._replace(step=step)


CHANGES: dict[str, tuple[str, Callable[[Any, Any, Any], tuple]]] = {
    "loss": ("program", lambda s, p, h: (s, with_method(p, "loss", doubled), h)),
    "first model": ("program", lambda s, p, h: (s, with_method(p, "init", doubled), h)),
    "metrics": ("program", lambda s, p, h: (s, with_method(p, "evaluate", doubled), h)),
    "optimizer": (
        "program",
        lambda s, p, h: (s, p, dataclasses.replace(h, optimizer=descent(0.5))),
    ),
    "step of the system": (
        "program",
        lambda s, p, h: (s._replace(algorithm=changed(s.algorithm, longer_step)), p, h),
    ),
    "times": (
        "program of the schedule",
        lambda s, p, h: (s._replace(timeline=changed(s.timeline, later)), p, h),
    ),
    "local steps": (
        "program of the schedule",
        lambda s, p, h: (s._replace(timeline=changed(s.timeline, more_steps)), p, h),
    ),
    "last tick": ("overshoot", lambda s, p, h: (s._replace(overshoot=not s.overshoot), p, h)),
}
"""Changes of what a run is called with, and what is named when it is resumed."""


@pytest.fixture(
    scope="module", params=["finished", pytest.param("unfinished", marks=pytest.mark.slow)]
)
def checkpoints(
    request: pytest.FixtureRequest,
    regression: Callable,
    small: Callable,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, tuple, fedjax_sim.Run]:
    """Return a folder of checkpoints, what was run, and what it returned or would have."""
    folder = tmp_path_factory.mktemp(request.param)
    what = QUAFL, regression(), small(QUAFL, optimizer=descent())
    whole = resumed(folder, *what)
    if request.param == "unfinished":
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Checkpoint, "finish", interrupt)
            resumed(folder, *what)
    return folder, what, whole


def interrupt(*_: Any) -> None:
    """Stand in for the last thing that a run does."""
    raise KeyboardInterrupt


def content_of(folder: Path) -> dict[Path, bytes]:
    """Read all files in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_changed_code_is_noticed(checkpoints: tuple[Path, tuple, fedjax_sim.Run]) -> None:
    """Nothing in the folder changes, and the same code still finds its result afterwards."""
    folder, what, whole = checkpoints
    before = content_of(folder)
    # A run that had not ended takes the same way.
    some = CHANGES if folder.name.startswith("finished") else ("first model", "times")
    for name in some:
        named, change = CHANGES[name]
        with pytest.raises(ConfigError) as refused:
            resumed(folder, *change(*what), resume=True)
        words = re.search(r"differs in (.*), or removed to start anew", str(refused.value))
        assert words is not None, name
        # Of some entries both values are told, in brackets.
        assert named in re.sub(r" \([^)]*\)", "", words[1]).split(", "), name
    assert content_of(folder) == before
    # Equal code is another object in memory.
    again = dataclasses.replace(what[2], optimizer=descent())
    assert_same_bits(resumed(folder, what[0], what[1], again, resume=True), whole)


def test_constants_are_a_part_of_the_program(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """Also arrays that a function of the problem takes from around it."""

    def scaled(scales: np.ndarray) -> Any:
        known = jnp.asarray(scales)
        return with_method(regression(), "init", lambda model: model * known)

    run = partial(resumed, tmp_path, QUAFL, hyper=small(QUAFL))
    run(problem=scaled(np.arange(3.0, dtype="float32")))
    with pytest.raises(ConfigError, match="differs in program, or"):
        run(problem=scaled(np.ones(3, "float32")), resume=True)


def test_another_layout_of_the_schedule_is_noticed(
    checkpoints: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How timelines become a schedule is code of this package that runs on the host."""
    folder, what, _ = checkpoints
    whole = schedule.lay_out

    def other(*args: Any, **options: Any) -> schedule.Schedule:
        found = whole(*args, **options)
        turned = found.stored._replace(clients=found.stored.clients[..., ::-1])
        return found._replace(stored=turned)

    monkeypatch.setattr(schedule, "lay_out", other)
    with pytest.raises(ConfigError, match=r"differs in .*schedule"):
        resumed(folder, *what, resume=True)


def test_versions_are_compared(
    checkpoints: tuple, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another version of JAX is accepted with a word, and then writes programs in another way."""
    folder, what, whole = checkpoints
    before = content_of(folder)
    versions = records.versions()
    with monkeypatch.context() as patch:
        patch.setattr(fedjax_sim, "__version__", "9.9")
        for word in (True, "any_jax"):
            with pytest.raises(ConfigError) as refused:
                resumed(folder, *what, resume=word)
            own = f"versions (fedjax_sim {versions['fedjax_sim']}, not 9.9), or removed"
            assert own in str(refused.value)
    monkeypatch.setattr(jax, "__version__", "9.9")
    text = jax.stages.Lowered.as_text
    monkeypatch.setattr(jax.stages.Lowered, "as_text", lambda self: text(self) + "//")
    with pytest.raises(ConfigError) as refused:
        resumed(folder, *what, resume=True)
    named = f"versions (jax {versions['jax']}, not 9.9), of which resume="
    assert f'{named}"any_jax" (--any-jax) accepts any, or removed' in str(refused.value)
    other = what[0], what[1], dataclasses.replace(what[2], lr=0.5)
    with pytest.raises(
        ConfigError, match=r"differs in settings \(lr .* there, 0.5 here\), versions"
    ):
        resumed(folder, *other, resume=True)
    with pytest.raises(ConfigError, match=r"differs in settings \(lr .* there, 0.5 here\), or"):
        resumed(folder, *other, resume="any_jax")
    assert content_of(folder) == before
    for _ in range(2):
        assert_same_bits(resumed(folder, *what, resume="any_jax"), whole)


def test_a_checkpoint_without_versions_is_refused(
    checkpoints: tuple[Path, tuple, fedjax_sim.Run], tmp_path: Path
) -> None:
    """Such are those of versions of this package that did not compare programs."""
    folder, what, _ = checkpoints
    path = folder / "part_0" / CONFIGURATION
    known = read_record(path)
    assert known is not None
    older = {name: value for name, value in known["asked"].items() if name != "versions"}
    text = path.read_text()
    write_record(path, {**known, "asked": older})
    for word in (True, "any_jax"):
        with pytest.raises(ConfigError, match=r"versions \(fedjax_sim unknown, not "):
            resumed(folder, *what, resume=word)
    path.write_text(text)


SOURCE = """
import sys
from pathlib import Path
import jax, optax
import fedjax_sim
from fedjax_sim.problems import Quadratic

def run(folder, resume=False):
    system = fedjax_sim.SYSTEMS["fedavg"]
    problem = Quadratic.of([[0.0, 1.0], [2.0, 3.0], [4.0, 7.0]], noise=0.1)
    hyper = system.paper(
        num_clients=3, num_selected=2, local_steps=2, optimizer=lambda lr: optax.adam(lr)
    )
    return fedjax_sim.sweep(
        system, problem, hyper, seeds=2, budget=fedjax_sim.Ticks(3), num_evals=1,
        checkpoints=fedjax_sim.Checkpoints(folder, resume=resume),
        layout=fedjax_sim.Layout(1, False, 1, 1),
    )
"""


@pytest.mark.slow
def test_equal_code_has_equal_digests_in_two_processes(tmp_path: Path) -> None:
    """Their hashes of text differ, and so do their devices and what they have run before."""
    source = f"{SOURCE}\nrun(sys.argv[1])\n"
    environment = os.environ | {"PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"}
    root = Path(fedjax_sim.__file__).parents[1]
    subprocess.run([sys.executable, "-c", source, tmp_path], env=environment, cwd=root, check=True)
    before = content_of(tmp_path)
    namespace: dict[str, Any] = {}
    exec(SOURCE, namespace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "open", interrupt)
        run = namespace["run"](tmp_path, resume=True)
    assert_same_bits(run, namespace["run"](tmp_path / "here"))
    assert content_of(tmp_path / "part_0") == {
        path: content for path, content in before.items() if path.parent.name == "part_0"
    }
    ours, theirs = (
        read_record(folder / "part_0" / CONFIGURATION) for folder in (tmp_path / "here", tmp_path)
    )
    assert ours == theirs
