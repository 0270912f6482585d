"""Programs on the devices of several processes: two real processes, connected on this machine."""

import os

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout
from scripts.compare_processes import TOLERANCE, differences, run_processes, run_systems

ONE_DEVICE = Layout(lane_devices=1, client_devices=1)


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new processes find what earlier ones compiled, as tests do."""
    import jax

    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", folder)
    assert "XLA_FLAGS" in os.environ


@pytest.mark.slow
@pytest.mark.usefixtures("cached")
def test_two_processes_agree_with_one() -> None:
    """The slots of a system are split over 2 x 2 devices.

    They agree with one device of this process to some roundings, see `TOLERANCE`.
    """
    expected = run_systems(["favano"], [1], layout=ONE_DEVICE)
    table = differences(expected, run_processes(["favano"], [1], 2, 2))
    assert set(table) == {"favano, 1"}
    assert max(table.values()) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("lanes", [1, 4])
def test_two_processes_agree_with_one_in_every_system(lanes: int) -> None:
    """One lane is split by slots, four are split by lanes."""
    expected = run_systems([], [lanes], layout=ONE_DEVICE)
    table = differences(expected, run_processes([], [lanes], 2, 2))
    assert set(table) == {f"{name}, {lanes}" for name in fedjax_sim.SYSTEMS}
    assert max(table.values()) <= TOLERANCE


def test_a_difference_is_found() -> None:
    expected = {"favano, 1/models.0": np.array([3.0, -4.0]), "em, 1/curves.loss": np.zeros(2)}
    assert differences(expected, expected) == {"favano, 1": 0.0, "em, 1": 0.0}
    other = expected | {"favano, 1/models.0": np.array([3.0, -4.1])}
    assert differences(expected, other) == pytest.approx({"favano, 1": 0.025, "em, 1": 0.0})
