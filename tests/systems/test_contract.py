"""What sweeps of every system have in common: one program, equal lanes, layouts and chunks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout, System
from fedjax_sim.core.types import LatentProblem
from tests.systems.conftest import Kind, skip_if_like_another

RATES = [0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35]
OTHER_RATES = [0.03, 0.04, 0.07, 0.08, 0.11, 0.12, 0.13, 0.14]
RUN = {"budget": fedjax_sim.Ticks(6), "num_evals": 3}
WHOLE = Layout(slots_at_once=4, lanes_at_once=False, lane_devices=1)
WIDE = "all slots, lanes batched, both over two devices, 64-bit types enabled"
"""The layout that all systems run, in which problems in float32 must stay so."""
DEALT = "a slot at a time, lanes over four devices and slots over two"
LAYOUTS = {
    "a slot at a time, lanes batched": Layout(1, True, 1),
    "blocks that do not divide the slots, two devices": Layout(3, False, 2),
    WIDE: Layout(4, True, 2, 2),
    DEALT: Layout(1, False, 4, 2),
}
ONE_OF_EACH_KIND = ("fedavg", "fedem")
"""Systems that run the first layout, whose parts the other layouts test for all systems."""
IN_BLOCKS = ("fedavg", "favano", "scaffold", "langevin", "hierarchical", "fedem")
"""Systems that run the second layout: one for each way to map local work over slots."""
ROUNDED = "vr_fedem"
"""The system whose results for several devices differ in the last bit."""


class Grid(NamedTuple):
    """A sweep over 8 settings and 4 seeds.

    Attributes:
      run: Its result.
      compiled: Names of the programs that were compiled for it.
    """

    run: fedjax_sim.Run
    compiled: list[str]


@pytest.fixture(scope="module")
def swept(system: System, kind: Kind, chosen: Callable) -> Callable[..., fedjax_sim.Run]:
    """Return a function that runs the sweep, with options that may be changed."""

    def run(**changes: object) -> fedjax_sim.Run:
        options = {
            "seeds": 4,
            "settings": kind.sweep(RATES),
            "layout": WHOLE,
            "keep": fedjax_sim.Keep(client_variance=kind.client_variance),
            **RUN,
        }
        return fedjax_sim.sweep(system, kind.make(), chosen(), **(options | changes))

    return run


@pytest.fixture(scope="module")
def grid(swept: Callable, compiled_in_module: list[str]) -> Grid:
    """The sweep that the tests compare others with."""
    before = len(compiled_in_module)
    return Grid(swept(), compiled_in_module[before:])


@pytest.fixture(scope="module")
def in_pieces(system: System, swept: Callable) -> dict[str, fedjax_sim.Run]:
    """The sweep over three devices, and in chunks: for most systems one run that is both.

    Three devices do not divide 32 lanes, and the second of two chunks is padded with empty ticks.
    """
    skip_if_like_another(system)
    devices, chunked = Layout(4, False, 3), WHOLE._replace(evals_per_chunk=2)
    if system.name == ROUNDED:
        return {"devices": swept(layout=devices), "chunks": swept(layout=chunked)}
    return dict.fromkeys(("devices", "chunks"), swept(layout=devices._replace(evals_per_chunk=2)))


@pytest.mark.few(2)
@pytest.mark.of_each_kind(0, but=("personal", "adapted", "langevin", "periodic"))
def test_one_compilation_for_a_sweep_and_none_for_the_next(
    system: System, grid: Grid, kind: Kind, chosen: Callable, compiled: list[str]
) -> None:
    """32 lanes are one program, which is used again with other numbers, seeds and data."""
    assert grid.compiled.count("jit(_advance)") == 1
    # Systems that have the clock in common share the program that draws.
    assert grid.compiled.count("jit(_draw)") <= 1
    fedjax_sim.sweep(
        system,
        kind.make(seed=3),
        chosen(**kind.changed),
        seeds=[7, 8, 9, 11],
        settings=kind.sweep(OTHER_RATES),
        layout=WHOLE,
        keep=fedjax_sim.Keep(client_variance=kind.client_variance),
        **RUN,
    )
    assert compiled == []


@pytest.mark.few(3)
@pytest.mark.of_each_kind(0, but=("personal", "adapted", "langevin", "periodic"))
def test_a_lane_alone_equals_it_in_a_batch(
    system: System, grid: Grid, kind: Kind, chosen: Callable
) -> None:
    """Schedules are equal bit for bit, models to float32 rounding.

    The program of one lane may add in another order.
    """
    skip_if_like_another(system)
    alone = fedjax_sim.simulate(
        system,
        kind.make(),
        chosen(**{kind.swept: kind.scale * RATES[5]}),
        seed=2,
        layout=WHOLE,
        keep=fedjax_sim.Keep(client_variance=kind.client_variance),
        **RUN,
    )
    lane = 5 * 4 + 2
    for leaf, batched in zip(alone.timelines[0], grid.run.timelines[lane], strict=True):
        np.testing.assert_array_equal(leaf, batched)
    of_lane = jax.tree.map(lambda leaf: leaf[lane], grid.run.models)
    assert_close(alone.models, of_lane, rtol=1e-6, atol=1e-7)
    together = grid.run.curves.isel({kind.swept: 5, "seed": 2})
    for name in alone.curves.data_vars:
        np.testing.assert_allclose(alone.curves[name], together[name], rtol=1e-5, err_msg=name)
    for name in ("time", "ticks", "local_steps", "uplink_bits", "downlink_bits"):
        np.testing.assert_array_equal(alone.curves[name], together[name])


def assert_close(found: Any, expected: Any, **tolerance: float) -> None:
    """Compare models leaf by leaf."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


@pytest.mark.few(2)
@pytest.mark.of_each_kind(0, but=("personal", "adapted", "langevin", "periodic"))
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_agree(system: System, grid: Grid, kind: Kind, swept: Callable, name: str) -> None:
    """Layouts are different programs of the same arithmetic: they agree to float32 rounding.

    So do programs where JAX has 64-bit types, as the problem is in float32: they draw the same.

    Slot by slot and lane by lane, only the gradients or E-steps that are needed are executed;
    batched, at least these.
    """
    if name == "a slot at a time, lanes batched" and system.name not in ONE_OF_EACH_KIND:
        pytest.skip("one system of each kind is enough")
    if name == "blocks that do not divide the slots, two devices" and system.name not in IN_BLOCKS:
        pytest.skip("one system for each way to map local work is enough")
    if name == DEALT and system.name in IN_BLOCKS and system.name not in ONE_OF_EACH_KIND:
        pytest.skip("of these one system of each kind is enough")
    if name != WIDE:
        skip_if_like_another(system)
    # A live clock draws in the precision that is enabled.
    with jax.enable_x64(name == WIDE and system.live is None):
        other = swept(layout=LAYOUTS[name])
    assert {leaf.dtype for leaf in jax.tree.leaves(other.models)} == {np.dtype("float32")}
    assert_close(other.models, grid.run.models, rtol=1e-5, atol=1e-6)
    of_model, of_clients = kind.metrics
    np.testing.assert_allclose(other.curves[of_model], grid.run.curves[of_model], rtol=1e-5)
    np.testing.assert_allclose(
        other.curves[of_clients], grid.run.curves[of_clients], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(other.curves.needed, grid.run.curves.needed)
    # VR-DIANA's whole gradients are counted too.
    if system.fit.learns is not LatentProblem and system.name != "vr_diana":
        per_step, per_report = kind.evaluations
        filled = [(timeline.clients >= 0).sum() for timeline in grid.run.timelines]
        reports = np.reshape(filled, grid.run.curves.needed.shape)
        expected = per_step * grid.run.curves.local_steps[..., -1] + per_report * reports
        np.testing.assert_array_equal(other.curves.needed, expected)
    # Pisces has empty slots, whose losses are computed too.
    is_exact = LAYOUTS[name].slots_at_once == 1 and not LAYOUTS[name].lanes_at_once
    if is_exact and system.name != "pisces":
        np.testing.assert_array_equal(other.curves.executed, other.curves.needed)
    else:
        assert (other.curves.executed >= other.curves.needed).all()
    assert not other.curves.failed.any()


@pytest.mark.few(3)
@pytest.mark.of_each_kind(0, but=("personal", "adapted", "langevin", "periodic"))
def test_the_number_of_devices_changes_nothing(
    system: System, grid: Grid, in_pieces: dict[str, fedjax_sim.Run]
) -> None:
    """Every device runs the same program on its lanes, so results are equal bit for bit.

    Those of `ROUNDED` agree to rounding: for several devices the compiler fuses its products and
    sums in another way.
    """
    other = in_pieces["devices"]
    rounding = {"rtol": 1e-5, "atol": 1e-6} if system.name == ROUNDED else {"rtol": 0}
    assert_close(other.models, grid.run.models, **rounding)
    for name in grid.run.curves.data_vars:
        np.testing.assert_allclose(
            other.curves[name], grid.run.curves[name], **rounding, err_msg=name
        )


@pytest.mark.of_each_kind(0, but=("personal", "adapted", "langevin", "periodic"))
def test_chunks_equal_the_whole(grid: Grid, in_pieces: dict[str, fedjax_sim.Run]) -> None:
    """The same steps run in the same order, so results are equal bit for bit."""
    chunked = in_pieces["chunks"]
    assert_close(chunked.models, grid.run.models, rtol=0)
    for name in grid.run.curves.data_vars:
        np.testing.assert_array_equal(chunked.curves[name], grid.run.curves[name], err_msg=name)


@pytest.mark.of_each_kind(0, but=("personal", "adapted", "langevin", "periodic"))
def test_measuring_client_variance_changes_no_other_metric(
    system: System, kind: Kind, grid: Grid, swept: Callable
) -> None:
    """Models and all other metrics are equal bit for bit."""
    skip_if_like_another(system)
    if not kind.client_variance:
        pytest.skip("clients hold statistics and no models")
    without = swept(keep=fedjax_sim.Keep())
    assert set(grid.run.curves.data_vars) == {*without.curves.data_vars, "client_variance"}
    assert_close(without.models, grid.run.models, rtol=0)
    for name in without.curves.data_vars:
        np.testing.assert_array_equal(without.curves[name], grid.run.curves[name], err_msg=name)
    # Initially every client holds the server's model, which the compiler may compute twice. That of
    # IFCA is the mean of several models, of which clients hold one.
    if system.name != "ifca":
        np.testing.assert_allclose(grid.run.curves.client_variance[..., 0], 0, atol=1e-12)
    assert (grid.run.curves.client_variance[..., 1:] > 0).any()
