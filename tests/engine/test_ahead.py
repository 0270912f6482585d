"""Programs that are compiled ahead are those that the sweep asks for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.engine.machine.compiling import CompileMeter
from fedjax_sim.engine.planning.placement import Layout
from fedjax_sim.engine.program import ahead
from fedjax_sim.engine.program.ahead import compiling_ahead
from fedjax_sim.engine.program.replay import _advance, _begin_soon
from fedjax_sim.engine.request import Options

SYSTEMS = fedjax_sim.SYSTEMS


def grids(regression: Callable, small: Callable) -> dict[str, Any]:
    """Two sweeps on one problem."""
    problem = regression()
    return {
        name: {
            "system": SYSTEMS[name],
            "problem": problem,
            "hyper": small(SYSTEMS[name]),
            "seeds": 2,
            "settings": {"lr": [0.03, 0.07]},
        }
        for name in ("fedavg", "fedbuff")
    }


def options(**changes: Any) -> Options:
    """Options that no other test has, so that no program is known yet."""
    return Options(None, 6, 3, Layout(), **changes)


def test_a_sweep_finds_its_programs_compiled(regression: Callable, small: Callable) -> None:
    sweeps = grids(regression, small)
    alone = {
        name: fedjax_sim.sweep(**grid, num_ticks=6, num_evals=3) for name, grid in sweeps.items()
    }
    programs: Any = _advance, _begin_soon
    for program in programs:
        program.clear_cache()
    with compiling_ahead({name: (grid, options()) for name, grid in sweeps.items()}) as wait_for:
        for name, grid in sweeps.items():
            seconds, count = wait_for(name)
            assert seconds >= 0
            assert count >= 2  # The beginning and a chunk.
            run = fedjax_sim.sweep(**grid, num_ticks=6, num_evals=3)
            assert run.curves.attrs["programs_compiled"] <= 1  # The final models.
            for metric in run.curves.data_vars:
                np.testing.assert_array_equal(run.curves[metric], alone[name].curves[metric])


def test_what_is_wrong_is_left_to_the_sweep(regression: Callable, small: Callable) -> None:
    grid = grids(regression, small)["fedavg"] | {"settings": {"no": [1, 2]}}
    with compiling_ahead({"fedavg": (grid, options())}) as wait_for:
        assert wait_for("fedavg") == (0.0, 0)
        assert wait_for("another") == (0.0, 0)
        with pytest.raises(fedjax_sim.ConfigError, match="setting name is 'no'"):
            fedjax_sim.sweep(**grid, num_ticks=6, num_evals=3)


def test_a_large_sweep_is_not_compiled_ahead(
    regression: Callable, small: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "MOST_BYTES", 0)
    grid = grids(regression, small)["fedavg"]
    with CompileMeter() as meter, compiling_ahead({"one": (grid, options())}) as wait_for:
        assert wait_for("one")[1] <= 1
    assert meter.count == 0
