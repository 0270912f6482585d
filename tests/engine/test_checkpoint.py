"""Checkpoints: a killed run goes on and ends with the same bits, and a checkpoint of another run is refused."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.engine import checkpoint
from fedjax_sim.engine.checkpoint import Checkpoint

QUAFL, FAVANO = fedjax_sim.SYSTEMS["quafl"], fedjax_sim.SYSTEMS["favano"]
OPTIONS: dict[str, Any] = {
    "seeds": 3,
    "num_ticks": 8,
    "num_evals": 4,
    "layout": Layout(4, False, 2),
    "keep_models": True,
}


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints between all chunks, however little time has gone by."""
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: float(next(clock)))


def kill_after(saves: int, monkeypatch: pytest.MonkeyPatch, *, during: bool = False) -> None:
    """Interrupt the run right after a number of checkpoints, or within the writing of the next one."""
    import orbax.checkpoint as ocp

    written = itertools.count(1)
    owner, name = (ocp.CheckpointManager, "save") if during else (Checkpoint, "save")
    whole = getattr(owner, name)

    def save(*arguments: Any, **options: Any) -> Any:
        number = next(written)
        if during and number > saves:
            raise KeyboardInterrupt
        result = whole(*arguments, **options)
        if not during and number == saves:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, save)


def assert_same_bits(a: fedjax_sim.Run, b: fedjax_sim.Run) -> None:
    jax.tree.map(np.testing.assert_array_equal, a.models, b.models)
    jax.tree.map(np.testing.assert_array_equal, a.samples, b.samples)
    assert set(a.curves.data_vars) == set(b.curves.data_vars)
    for name in (*a.curves.data_vars, *a.curves.coords):
        np.testing.assert_array_equal(a.curves[name], b.curves[name], err_msg=name)


@pytest.mark.parametrize(("system", "during"), [(QUAFL, False), (FAVANO, True)])
def test_a_killed_run_ends_with_the_same_bits(
    system: fedjax_sim.System,
    during: bool,
    regression: Callable,
    small: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_pause: None,
) -> None:
    """Killed after two of four chunks, or while the third one's checkpoint is written, which must leave the second one's."""
    unbroken = fedjax_sim.sweep(system, regression(), small(system), evals_per_chunk=1, **OPTIONS)
    with monkeypatch.context() as patch:
        kill_after(2, patch, during=during)
        with pytest.raises(KeyboardInterrupt):
            fedjax_sim.sweep(
                system, regression(), small(system), checkpoint=tmp_path / "run", **OPTIONS
            )
    done: list[int] = []
    whole = Checkpoint.save

    def note(self: Checkpoint, number: int, *arguments: Any, **options: Any) -> None:
        done.append(number)
        whole(self, number, *arguments, **options)

    monkeypatch.setattr(Checkpoint, "save", note)
    resumed = fedjax_sim.sweep(
        system, regression(), small(system), checkpoint=tmp_path / "run", resume=True, **OPTIONS
    )
    assert done == [3, 4], "two of the four chunks were done before"
    assert_same_bits(resumed, unbroken)
    done.clear()
    again = fedjax_sim.sweep(
        system, regression(), small(system), checkpoint=tmp_path / "run", resume=True, **OPTIONS
    )
    assert done == [], "a finished run is read, not run"
    assert_same_bits(again, unbroken)


def test_a_checkpoint_of_another_configuration_is_refused(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """And is still there afterwards."""
    run = partial(fedjax_sim.sweep, QUAFL, regression(), checkpoint=tmp_path / "run")
    run(small(QUAFL), **OPTIONS)
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    other = {**OPTIONS, "resume": True}
    for differs, hyper, options in (
        ("settings", small(QUAFL, lr=0.06), other),
        ("settings", small(QUAFL, batch_size=3), other),
        ("settings", small(QUAFL, rate_slow=0.3), other),
        ("settings", small(QUAFL, optimizer=optax.adam), other),
        ("program", small(QUAFL, optimizer=partial(optax.sgd, momentum=0.5)), other),
        ("seeds", small(QUAFL), other | {"seeds": [0, 1, 3]}),
        ("num_ticks", small(QUAFL), other | {"num_ticks": 9}),
        ("num_evals", small(QUAFL), other | {"num_evals": 2}),
        ("layout", small(QUAFL), other | {"layout": Layout(1, False, 2)}),
        ("layout", small(QUAFL), other | {"layout": Layout(4, False, 3)}),
        ("evals_per_chunk", small(QUAFL), other | {"evals_per_chunk": 3}),
        ("program", small(QUAFL), other | {"reports": False}),
        ("keep_models", small(QUAFL), other | {"keep_models": False}),
    ):
        with pytest.raises(
            ConfigError,
            match=f"of the same configuration as this run, which differs in .*{differs}.*, or removed",
        ):
            run(hyper, **options)
    with pytest.raises(ConfigError, match="same configuration"):
        fedjax_sim.sweep(FAVANO, regression(), small(FAVANO), checkpoint=tmp_path / "run", **other)
    for problem in (regression(dim=4), regression(seed=1)):
        with pytest.raises(ConfigError, match="differs in inputs"):
            fedjax_sim.sweep(QUAFL, problem, small(QUAFL), checkpoint=tmp_path / "run", **other)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_without_resume_a_run_starts_anew(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    first = fedjax_sim.sweep(
        QUAFL, regression(), small(QUAFL), checkpoint=tmp_path / "run", **OPTIONS
    )
    other = fedjax_sim.sweep(
        QUAFL, regression(seed=5), small(QUAFL), checkpoint=tmp_path / "run", **OPTIONS
    )
    assert not np.array_equal(first.models, other.models)


def test_to_resume_from_nothing_is_to_start(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    started = fedjax_sim.sweep(
        QUAFL, regression(), small(QUAFL), checkpoint=tmp_path / "none", resume=True, **OPTIONS
    )
    assert_same_bits(
        started, fedjax_sim.sweep(QUAFL, regression(), small(QUAFL), evals_per_chunk=1, **OPTIONS)
    )


def test_a_folder_that_cannot_be_written(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="a folder that can be written"):
        fedjax_sim.sweep(QUAFL, regression(), small(QUAFL), checkpoint=tmp_path / "file", **OPTIONS)
    assert (tmp_path / "file").read_text() == "not a folder"


def test_functions_among_the_settings_have_names_that_last() -> None:
    """A resumed run is another process: what a setting is called must not hold an address in memory."""
    from fedjax_sim.engine.sweeps import _named

    for value in (
        optax.sgd,
        partial(optax.sgd, momentum=0.9),
        lambda lr: optax.sgd(lr),
        0.5,
        "text",
        None,
    ):
        assert " at 0x" not in _named(value)
