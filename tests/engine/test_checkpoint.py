"""Checkpoints: a killed run is continued and ends with the same bits.

A checkpoint of another run is refused.
"""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import chex
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.engine import checkpoint
from fedjax_sim.engine.checkpoint import Checkpoint
from fedjax_sim.engine.groups import _text_of

QUAFL, FAVANO = fedjax_sim.SYSTEMS["quafl"], fedjax_sim.SYSTEMS["favano"]
OPTIONS: dict[str, Any] = {
    "seeds": 3,
    "num_ticks": 8,
    "num_evals": 4,
    "layout": Layout(4, False, 2),
    "keep_models": True,
    "client_variance": True,
}


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write checkpoints between all chunks, however little time has passed."""
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: float(next(clock)))


def kill_after(saves: int, monkeypatch: pytest.MonkeyPatch, *, during: bool = False) -> None:
    """Interrupt the run right after a number of checkpoints, or while the next one is written."""
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
    """Assert that models, samples and curves of two runs are equal."""
    chex.assert_trees_all_equal((a.models, a.samples), (b.models, b.samples))
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
    """Kill a run after two of four chunks, or while the third chunk's checkpoint is written.

    In the second case the checkpoint of the second chunk must still be there.
    """
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
    assert done == [3, 4], "two of the four chunks had been done"
    assert_same_bits(resumed, unbroken)
    done.clear()
    again = fedjax_sim.sweep(
        system, regression(), small(system), checkpoint=tmp_path / "run", resume=True, **OPTIONS
    )
    assert done == [], "a finished run is loaded and not run again"
    assert_same_bits(again, unbroken)


def test_a_checkpoint_of_another_configuration_is_refused(
    regression: Callable, small: Callable, tmp_path: Path
) -> None:
    """It is still there afterwards."""
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
        ("client_variance", small(QUAFL), other | {"client_variance": False}),
        ("keep_models", small(QUAFL), other | {"keep_models": False}),
    ):
        allowed = "of the same configuration as this run, which differs in"
        with pytest.raises(ConfigError, match=f"{allowed} .*{differs}.*, or removed"):
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


def test_resuming_without_a_checkpoint_starts_the_run(
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


def test_functions_among_the_settings_have_lasting_names() -> None:
    """A setting's text has no address in memory, because a run is resumed by another process."""

    for value in (
        optax.sgd,
        partial(optax.sgd, momentum=0.9),
        lambda lr: optax.sgd(lr),
        0.5,
        "text",
        None,
    ):
        assert " at 0x" not in _text_of(value)
