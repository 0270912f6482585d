"""Families: lanes that differ only in numeric settings run as one batch.

Families of every size, mapped or batched and on several devices, equal lanes alone up to float32
rounding, and what the members share is computed once.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.engine.planning.placement import Placement
from fedjax_sim.engine.program import prepare

FEDBUFF, FEDAVG = fedjax_sim.SYSTEMS["fedbuff"], fedjax_sim.SYSTEMS["fedavg"]
BLOCKED = {"restart": "after_interaction"}
"""Clients wait for the exchange, so that its length changes the schedule."""
SETTINGS = {"lr": [0.02, 0.05, 0.1], "server_interact": [1.0, 12.0]}
OPTIONS: dict[str, Any] = {
    "seeds": [5, 2],
    "settings": SETTINGS,
    "budget": fedjax_sim.Time(60.0),
    "num_evals": 3,
    "keep": fedjax_sim.Keep(models=True),
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes sweeps use this placement, whatever the layout."""

    def placed(*placement: Any, **sizes: Any) -> None:
        def choose(_: Layout, *, members: int, **facts: Any) -> Placement:
            return Placement(*placement, **sizes, members=members)

        monkeypatch.setattr(prepare, "choose", choose)

    return placed


@pytest.fixture(scope="module")
def alone(regression: Callable, small: Callable) -> fedjax_sim.Run:
    """Run three step sizes with two clocks, one lane after another and without families."""
    layout = Layout(4, False, 1)
    return fedjax_sim.sweep(
        FEDBUFF, regression(), small(FEDBUFF, **BLOCKED), layout=layout, **OPTIONS
    )


def assert_same_lanes(run: fedjax_sim.Run, alone: fedjax_sim.Run) -> None:
    """Assert that lanes are equal up to float32 rounding, and their schedules exactly."""
    assert len(np.unique(run.models[:, 0])) == 12
    np.testing.assert_allclose(run.models, alone.models, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.samples, alone.samples, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.curves.loss, alone.curves.loss, rtol=1e-5)
    np.testing.assert_array_equal(run.curves.time, alone.curves.time)
    np.testing.assert_array_equal(run.curves.staleness_mean, alone.curves.staleness_mean)
    for ours, theirs in zip(run.timelines, alone.timelines, strict=True):
        np.testing.assert_array_equal(ours.clients, theirs.clients)
    assert run.hypers == alone.hypers


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("placement", "sizes"),
    [
        ((2, False, 8, 1), {"family_size": 2}),
        ((4, True, 2, 1), {"family_size": 3, "lane_batches": 2}),
        *(
            pytest.param(placement, {"family_size": size}, marks=pytest.mark.slow)
            for placement, size in (
                ((4, False, 2, 2), 3),
                ((4, False, 1, 1), 3),
                ((4, False, 1, 1), 2),
                ((4, True, 1, 1), 3),
                ((1, False, 4, 1), 3),
            )
        ),
    ],
)
def test_members_of_a_family_equal_lanes_alone(
    placement: tuple,
    sizes: dict[str, int],
    place: Callable,
    alone: fedjax_sim.Run,
    regression: Callable,
    small: Callable,
) -> None:
    """Three step sizes are a family, batched together or as two and one.

    There are four families, two seeds times two clocks, whose schedules differ.
    """
    place(*placement, **sizes)
    assert_same_lanes(
        fedjax_sim.sweep(FEDBUFF, regression(), small(FEDBUFF, **BLOCKED), **OPTIONS),
        alone,
    )


def test_without_a_fixed_layout_families_are_batched(
    alone: fedjax_sim.Run,
    regression: Callable,
    small: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On eight devices, families of three are batched as two and one."""
    chosen: list[Placement] = []

    def choose(*inputs: Any, **facts: Any) -> Placement:
        chosen.append(whole(*inputs, **facts))
        return chosen[-1]

    whole = prepare.choose
    monkeypatch.setattr(prepare, "choose", choose)
    run = fedjax_sim.sweep(FEDBUFF, regression(), small(FEDBUFF, **BLOCKED), **OPTIONS)
    assert [(each.family_size, each.members) for each in chosen] == [(2, 3)]
    assert_same_lanes(run, alone)


@pytest.mark.slow
def test_members_of_a_family_stand_where_their_labels_say(
    place: Callable, regression: Callable, small: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with runs of one lane."""
    place(4, False, 1, 1, family_size=3)
    run = fedjax_sim.sweep(FEDBUFF, regression(), small(FEDBUFF, **BLOCKED), **OPTIONS)
    monkeypatch.undo()
    options: dict[str, Any] = {
        "budget": fedjax_sim.Time(60.0),
        "num_evals": 3,
        "keep": fedjax_sim.Keep(models=True),
        "layout": Layout(4, False, 1),
    }
    for i, k, s in ((0, 1, 0), (2, 0, 1), (2, 1, 0)):
        changes = {"lr": SETTINGS["lr"][i], "server_interact": SETTINGS["server_interact"][k]}
        hyper = small(FEDBUFF, **BLOCKED, **changes)
        alone = fedjax_sim.simulate(FEDBUFF, regression(), hyper, seed=[5, 2][s], **options)
        lane, curves = (i * 2 + k) * 2 + s, run.curves.isel(lr=i, server_interact=k, seed=s)
        np.testing.assert_array_equal(run.timelines[lane].time, alone.timelines[0].time)
        np.testing.assert_array_equal(run.timelines[lane].clients, alone.timelines[0].clients)
        # Evaluations in between follow other numbers of ticks.
        for name in ("time", "ticks", "uplink_bits", "local_steps"):
            np.testing.assert_array_equal(curves[name][[0, -1]], alone.curves[name][[0, -1]])
        np.testing.assert_allclose(curves.loss[[0, -1]], alone.curves.loss[[0, -1]], rtol=1e-5)
        np.testing.assert_allclose(
            run.samples[lane, [0, -1]], alone.samples[[0, -1]], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(run.models[lane], alone.models, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_trips_that_depend_on_a_setting_are_those_of_the_longest_member(
    place: Callable, noisy_mean: Callable
) -> None:
    """The ticks of VR-FedEM's full passes depend on a setting.

    Evaluations are counted as they are run, for the longest member.
    """
    system = fedjax_sim.SYSTEMS["vr_fedem"]
    hyper = system.paper(num_clients=7, batch_size=2)
    options: dict[str, Any] = {
        "settings": {"inner_steps": [2, 3]},
        "budget": fedjax_sim.Ticks(6),
        "num_evals": 2,
        "layout": Layout(7, False, 1),
    }
    alone = fedjax_sim.sweep(system, noisy_mean(), hyper, **options)
    place(7, False, 1, 1, family_size=2)
    run = fedjax_sim.sweep(system, noisy_mean(), hyper, **options)
    np.testing.assert_allclose(run.models, alone.models, rtol=1e-5, atol=1e-6)
    assert run.curves.executed[0, 0] == run.curves.executed[1, 0] >= alone.curves.executed.max()


@pytest.mark.slow
def test_mini_batches_of_a_family_are_drawn_once(
    place: Callable,
    regression: Callable,
    small: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three step sizes, batched in ones, in two and one, all together, and as the engine chooses.

    Each of the local updates of a tick runs alone, so that every draw is one call of the loss.
    """
    seen: list[np.ndarray] = []

    @struct.dataclass
    class Watched(type(regression())):  # type: ignore[misc]
        def loss(
            self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
        ) -> jax.Array:
            jax.debug.callback(seen.append, examples)
            return super().loss(params, client, examples, key)

    problem = Watched(**vars(regression()))
    settings, counts = {"lr": [0.02, 0.05, 0.1]}, []
    for family_size in (1, 2, 3, None):
        monkeypatch.undo()
        if family_size is not None:
            place(1, False, 1, 1, family_size=family_size)
        run = fedjax_sim.sweep(
            FEDAVG,
            problem,
            small(FEDAVG),
            settings=settings,
            budget=fedjax_sim.Ticks(3),
            num_evals=1,
            layout=Layout(1, None, 1),
        )
        jax.effects_barrier()
        counts.append(len(seen))
        assert {len(examples) for examples in seen} == {small(FEDAVG).batch_size}
        seen.clear()
    steps = int(run.curves.needed[0, 0])
    assert counts == [3 * steps, 2 * steps, steps, steps]
