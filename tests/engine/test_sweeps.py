"""Sweeps: the grid, grouping by static part, budgets, problems per seed, bits, staleness and lanes that diverge."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.engine.lanes import stack_problems
from fedjax_sim.types import EMPTY, LatentProblem

FAVANO, FEDBUFF, FEDAVG = (fedjax_sim.SYSTEMS[name] for name in ("favano", "fedbuff", "fedavg"))
LAYOUT = Layout(4, False, 1)


@pytest.fixture(scope="module")
def grid(regression: Callable, small: Callable) -> fedjax_sim.Run:
    """Two settings, the first of which needs programs of its own, and two seeds that are no range."""
    settings = {"reweight": ["none", "stochastic"], "lr": [0.02, 0.05, 0.1]}
    options: dict[str, Any] = {
        "num_ticks": 6,
        "num_evals": 4,
        "layout": LAYOUT,
        "keep_models": True,
    }
    return fedjax_sim.sweep(
        FAVANO, regression(), small(FAVANO), seeds=[5, 2], settings=settings, **options
    )


def test_the_grid_is_labelled(grid: fedjax_sim.Run) -> None:
    assert dict(grid.curves.sizes) == {"reweight": 2, "lr": 3, "seed": 2, "eval": 4}
    assert grid.curves.loss.dims == ("reweight", "lr", "seed", "eval")
    assert grid.curves.reweight.values.tolist() == ["none", "stochastic"]
    assert grid.curves.lr.values.tolist() == [0.02, 0.05, 0.1]
    assert grid.curves.seed.values.tolist() == [5, 2]
    assert grid.curves.failed.dims == ("reweight", "lr", "seed")
    assert grid.curves.attrs["system"] == "favano"
    assert {"seconds_compile", "seconds_run", "programs_compiled"} <= set(grid.curves.attrs)


def test_lanes_stand_where_their_labels_say(
    grid: fedjax_sim.Run, regression: Callable, small: Callable
) -> None:
    """Against runs of one lane; models to float32 rounding."""
    for reweight, lr, seed in ((0, 2, 0), (1, 0, 1), (1, 2, 0)):
        hyper = small(FAVANO, reweight=["none", "stochastic"][reweight], lr=[0.02, 0.05, 0.1][lr])
        alone = fedjax_sim.simulate(
            FAVANO, regression(), hyper, seed=[5, 2][seed], num_ticks=6, num_evals=4, layout=LAYOUT
        )
        lane = (reweight * 3 + lr) * 2 + seed
        np.testing.assert_array_equal(alone.timelines[0].steps, grid.timelines[lane].steps)
        np.testing.assert_allclose(alone.models, grid.models[lane], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            alone.curves.loss, grid.curves.loss[reweight, lr, seed], rtol=1e-5
        )
        assert alone.curves.loss.dims == ("eval",)


def test_the_first_evaluation_is_of_the_start(grid: fedjax_sim.Run, regression: Callable) -> None:
    """Besides the initial one, at most as many evaluations as asked for, each after equally many ticks: of four, three."""
    assert grid.curves.ticks[0, 0, 0].values.tolist() == [0, 2, 4, 6]
    first = grid.curves.isel(eval=0)
    assert (first.time == 0).all()
    assert (first.local_steps == 0).all()
    # Everyone holds the start, to the rounding of a number computed twice.
    assert (first.client_variance < 1e-12).all()
    # The start depends on the seed alone.
    assert len(np.unique(first.loss)) == 2


def test_curves_agree_with_schedules(grid: fedjax_sim.Run) -> None:
    """Times, steps delivered, bits sent and staleness, counted anew from the timelines."""
    flat = grid.curves.stack(lane=("reweight", "lr", "seed")).transpose("lane", ...)
    for lane, timeline in enumerate(grid.timelines):
        one = flat.isel(lane=lane)
        for v, ticks in enumerate(one.ticks.values):
            assert one.time[v] == (timeline.time[ticks - 1] if ticks else 0)
            assert one.local_steps[v] == timeline.steps[:ticks].sum()
            # A model of three float32 numbers goes up and down for each of the four slots.
            assert one.uplink_bits[v] == ticks * 4 * 3 * 32
            assert one.downlink_bits[v] == ticks * 4 * 3 * 32
        staleness = np.arange(len(timeline.time))[:, None] - timeline.version
        np.testing.assert_allclose(one.staleness_mean, staleness.mean())
        assert one.staleness_max == staleness.max()
        assert one.needed == timeline.steps.sum()
        assert (timeline.clients != EMPTY).all()


def test_models_of_all_evaluations_are_kept(grid: fedjax_sim.Run) -> None:
    """The problem's metrics tell the model's coordinates."""
    for i in range(3):
        np.testing.assert_array_equal(
            grid.samples[:, :, i], grid.curves[f"w{i}"].values.reshape(12, 4)
        )
    np.testing.assert_array_equal(grid.samples[:, -1], grid.models)


def test_few_lanes_at_a_time_are_the_same_lanes(
    grid: fedjax_sim.Run, regression: Callable, small: Callable
) -> None:
    """Three of six lanes in memory at once, to float32 rounding."""
    options: dict[str, Any] = {
        "num_ticks": 6,
        "num_evals": 4,
        "layout": LAYOUT,
        "max_lanes": 3,
        "keep_models": True,
    }
    few = fedjax_sim.sweep(
        FAVANO,
        regression(),
        small(FAVANO),
        seeds=[5, 2],
        settings={"lr": [0.02, 0.05, 0.1]},
        **options,
    )
    np.testing.assert_allclose(few.models, grid.models[6:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(few.samples, grid.samples[6:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(few.curves.loss, grid.curves.loss[1], rtol=1e-5)
    for own, other in zip(few.timelines, grid.timelines[6:], strict=True):
        np.testing.assert_array_equal(own.clients, other.clients)


def test_a_time_budget_cuts_each_lane_by_itself(regression: Callable, small: Callable) -> None:
    """Lanes of other clocks do other numbers of ticks; shorter ones repeat their last evaluation, and equal those run alone."""
    options: dict[str, Any] = {
        "time_budget": 60.0,
        "num_evals": 5,
        "layout": LAYOUT,
        "keep_models": True,
        "max_lanes": 2,
    }
    run = fedjax_sim.sweep(
        FEDBUFF,
        regression(),
        small(FEDBUFF),
        settings={"server_interact": [1.0, 12.0]},
        seeds=2,
        **options,
    )
    ticks = run.curves.ticks.values[..., -1]
    assert (ticks[0] > ticks[1]).all()
    for i in range(2):
        for seed in range(2):
            time = run.timelines[2 * i + seed].time
            assert len(time) == ticks[i, seed]
            assert time[-1] >= 60 > time[-2]
            assert run.curves.time[i, seed, -1] == time[-1]
    alone = fedjax_sim.simulate(
        FEDBUFF, regression(), small(FEDBUFF, server_interact=12.0), seed=1, **options
    )
    np.testing.assert_array_equal(alone.timelines[0].time, run.timelines[3].time)
    np.testing.assert_allclose(alone.models, run.models[3], rtol=1e-5, atol=1e-6)
    # Lanes in fewer ticks may have fewer evaluations of their own; the last one is repeated.
    assert run.samples.shape == (4, run.curves.sizes["eval"], 3)
    np.testing.assert_array_equal(run.samples[:, -1], run.models)
    np.testing.assert_allclose(alone.samples[-1], run.samples[3, -1], rtol=1e-5, atol=1e-6)


def test_free_running_lanes_of_different_speeds_are_as_alone(
    regression: Callable, small: Callable
) -> None:
    """How many ticks are asked for together must not decide how ties between geometric times are broken."""
    hyper = small(FEDBUFF, restart="free", slow_fraction=0.0, local_steps=2)
    options: dict[str, Any] = {"time_budget": 40.0, "num_evals": 2, "layout": LAYOUT}
    run = fedjax_sim.sweep(
        FEDBUFF, regression(), hyper, settings={"rate_fast": [0.1, 0.9]}, **options
    )
    alone = fedjax_sim.simulate(FEDBUFF, regression(), hyper.replace(rate_fast=0.1), **options)
    for own, other in zip(alone.timelines[0], run.timelines[0], strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(4, False, 1),
        Layout(4, False, 1, settings_at_once=2),
        Layout(4, True, 1),
        Layout(1, False, 4),
        Layout(2, False, 8),
        Layout(4, False, 2, client_devices=2),
        Layout(4, True, 2, lane_batches=2),
    ],
)
def test_lanes_that_differ_in_settings_alone_run_together(
    layout: Layout, regression: Callable, small: Callable
) -> None:
    """As alone, to float32 rounding: three step sizes together, or two and one, for two clocks, which differ in their schedules."""
    settings = {"lr": [0.02, 0.05, 0.1], "server_interact": [1.0, 12.0]}
    options: dict[str, Any] = {
        "seeds": [5, 2],
        "settings": settings,
        "time_budget": 60.0,
        "num_evals": 3,
        "keep_models": True,
    }
    run = fedjax_sim.sweep(FEDBUFF, regression(), small(FEDBUFF), layout=layout, **options)
    alone = fedjax_sim.sweep(
        FEDBUFF,
        regression(),
        small(FEDBUFF),
        layout=Layout(4, False, 1, settings_at_once=1),
        **options,
    )
    assert len(np.unique(run.models[:, 0])) == 12
    np.testing.assert_allclose(run.models, alone.models, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.samples, alone.samples, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.curves.loss, alone.curves.loss, rtol=1e-5)
    np.testing.assert_array_equal(run.curves.time, alone.curves.time)
    np.testing.assert_array_equal(run.curves.staleness_mean, alone.curves.staleness_mean)
    for own, other in zip(run.timelines, alone.timelines, strict=True):
        np.testing.assert_array_equal(own.clients, other.clients)


def test_lanes_that_differ_in_settings_alone_stand_where_their_labels_say(
    regression: Callable, small: Callable
) -> None:
    """Against runs of one lane: two settings of two schedules each, two seeds."""
    settings = {"lr": [0.02, 0.1], "server_interact": [1.0, 12.0]}
    options: dict[str, Any] = {
        "time_budget": 60.0,
        "num_evals": 3,
        "keep_models": True,
        "layout": Layout(4, False, 1),
    }
    run = fedjax_sim.sweep(
        FEDBUFF, regression(), small(FEDBUFF), settings=settings, seeds=[5, 2], **options
    )
    for i, k, s in ((0, 1, 0), (1, 0, 1), (1, 1, 0)):
        hyper = small(FEDBUFF, lr=settings["lr"][i], server_interact=settings["server_interact"][k])
        alone = fedjax_sim.simulate(FEDBUFF, regression(), hyper, seed=[5, 2][s], **options)
        lane, own = (i * 2 + k) * 2 + s, run.curves.isel(lr=i, server_interact=k, seed=s)
        np.testing.assert_array_equal(run.timelines[lane].time, alone.timelines[0].time)
        np.testing.assert_array_equal(run.timelines[lane].clients, alone.timelines[0].clients)
        for name in (
            "time",
            "ticks",
            "uplink_bits",
            "local_steps",
        ):  # evaluations in between are after other numbers of ticks
            np.testing.assert_array_equal(own[name][[0, -1]], alone.curves[name][[0, -1]])
        np.testing.assert_allclose(own.loss[[0, -1]], alone.curves.loss[[0, -1]], rtol=1e-5)
        np.testing.assert_allclose(
            run.samples[lane, [0, -1]], alone.samples[[0, -1]], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(run.models[lane], alone.models, rtol=1e-5, atol=1e-6)


def test_turns_that_depend_on_a_setting_are_those_of_all(noisy_mean: Callable) -> None:
    """VR-FedEM's full passes come at other ticks; what is executed is counted as it is run, for the longest."""
    system = fedjax_sim.SYSTEMS["vr_fedem"]
    hyper = system.Hyper(num_clients=7, batch_size=2)
    options: dict[str, Any] = {"settings": {"inner_steps": [2, 3]}, "num_ticks": 6, "num_evals": 2}
    alone, run = (
        fedjax_sim.sweep(
            system,
            noisy_mean(),
            hyper,
            layout=Layout(7, False, 1, settings_at_once=size),
            **options,
        )
        for size in (1, None)
    )
    np.testing.assert_allclose(run.models, alone.models, rtol=1e-5, atol=1e-6)
    assert run.curves.executed[0, 0] == run.curves.executed[1, 0] >= alone.curves.executed.max()


def test_what_settings_share_is_computed_once(regression: Callable, small: Callable) -> None:
    """The mini-batches of three step sizes; each of the two local updates of a tick by itself."""
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
    for settings_at_once in (1, 2, 3, None):
        layout = Layout(1, False, 1, settings_at_once=settings_at_once)
        run = fedjax_sim.sweep(
            FEDAVG,
            problem,
            small(FEDAVG),
            settings=settings,
            num_ticks=3,
            num_evals=1,
            layout=layout,
        )
        jax.effects_barrier()
        counts.append(len(seen))
        assert {len(examples) for examples in seen} == {small(FEDAVG).batch_size}
        seen.clear()
    steps = int(run.curves.needed[0, 0])
    assert counts == [3 * steps, 2 * steps, steps, steps]


def test_problems_of_their_own_for_seeds(regression: Callable, small: Callable) -> None:
    """As a function of the seed or a list; what they share is held once."""
    problems = [regression(seed=3), regression(seed=4).replace(counts=regression(seed=3).counts)]
    options: dict[str, Any] = {"num_ticks": 4, "num_evals": 2, "layout": LAYOUT}
    listed = fedjax_sim.sweep(FEDAVG, problems, small(FEDAVG), seeds=[8, 9], **options)
    called = fedjax_sim.sweep(
        FEDAVG, lambda seed: problems[seed - 8], small(FEDAVG), seeds=[8, 9], **options
    )
    np.testing.assert_array_equal(listed.models, called.models)
    for i in range(2):
        alone = fedjax_sim.simulate(FEDAVG, problems[i], small(FEDAVG), seed=8 + i, **options)
        np.testing.assert_allclose(listed.models[i], alone.models, rtol=1e-5, atol=1e-6)
    shared = problems[0].replace(targets=problems[0].targets + 1)
    assert [leaf is None for leaf in stack_problems([problems[0], shared]).own] == [
        True,
        False,
        True,
        True,
    ]


def test_a_lane_that_diverges_is_reported_and_the_others_go_on(
    regression: Callable, small: Callable
) -> None:
    run = fedjax_sim.sweep(
        FEDAVG,
        regression(),
        small(FEDAVG),
        settings={"lr": [0.05, 1e30]},
        seeds=2,
        num_ticks=4,
        num_evals=2,
        layout=LAYOUT,
    )
    assert run.curves.failed.values.tolist() == [[False, False], [True, True]]
    assert np.isfinite(run.curves.loss.isel(lr=0)).all()
    assert np.isfinite(run.models[:2]).all()
    assert not np.isfinite(run.models[2:]).any()


def test_optimizers_are_swept_by_name(regression: Callable, small: Callable) -> None:
    momentum = partial(optax.sgd, momentum=0.9)
    values = [optax.sgd, optax.adam, momentum]
    run = fedjax_sim.sweep(
        FEDAVG,
        regression(),
        small(FEDAVG),
        settings={"optimizer": values},
        num_ticks=3,
        layout=LAYOUT,
    )
    assert run.curves.optimizer.values.tolist()[:2] == ["sgd", "adam"]
    assert len(np.unique(run.models[:, 0])) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"num_ticks": 2, "time_budget": 3.0},
            "time_budget is 3.0, but must be given, or else num_ticks, but not both",
        ),
        ({}, "time_budget is None"),
        ({"time_budget": -1.0}, "time_budget is -1.0"),
        ({"time_budget": float("nan")}, "time_budget is nan"),
        ({"num_ticks": 0}, "num_ticks is 0"),
        ({"num_ticks": 2, "num_evals": 0}, "num_evals is 0"),
        ({"num_ticks": 2, "seeds": []}, "seeds is"),
        ({"num_ticks": 2, "seeds": [1, 1]}, "different whole numbers"),
        ({"num_ticks": 2, "seeds": [-1]}, "from 0 to 2147483647"),
        ({"num_ticks": 2, "seeds": [2**31]}, "from 0 to 2147483647"),
        ({"num_ticks": 2, "seeds": [1.5]}, "different whole numbers"),
        ({"num_ticks": 2.5}, "num_ticks is 2.5, but must be a whole number of at least 1"),
        ({"num_ticks": 2, "max_lanes": 1.5}, "max_lanes is 1.5"),
        (
            {"num_ticks": 2, "settings": {"optimizer": [abs]}},
            "optimizer is .*gradient transformation",
        ),
        (
            {"num_ticks": 2, "settings": {"learning_rate": [1.0]}},
            "setting name is 'learning_rate', but must be one of batch_size",
        ),
        ({"num_ticks": 2, "settings": {"lr": [0.1, 0.1]}}, "values of lr"),
        ({"num_ticks": 2, "settings": {"lr": []}}, "values of lr"),
        (
            {"num_ticks": 2, "settings": {"lr": [0.1, -0.1]}},
            "lr is -0.1, but must be a finite number above 0",
        ),
        (
            {"num_ticks": 2, "settings": {"num_clients": [7, 8]}},
            "num_clients is 8, but must be 7, as in the problem",
        ),
        ({"num_ticks": 2, "chunks": 3}, "option is 'chunks'"),
        ({"num_ticks": 2, "layout": Layout(lane_devices=99)}, "at most the 8"),
    ],
)
def test_what_is_not_allowed_is_said_before_anything_is_compiled(
    regression: Callable, small: Callable, compiled: list[str], options: dict[str, Any], words: str
) -> None:
    problem, hyper = regression(), small(FEDAVG)
    compiled.clear()
    with pytest.raises(ConfigError, match=words):
        fedjax_sim.sweep(FEDAVG, problem, hyper, **options)
    assert compiled == []


def test_a_budget_of_too_many_ticks(regression: Callable, small: Callable) -> None:
    with pytest.raises(
        ConfigError, match=r"time_budget is 1000000000000000.0, but must be short enough"
    ):
        fedjax_sim.sweep(FEDAVG, regression(), small(FEDAVG), time_budget=1e15)


def test_one_lane_takes_no_lists(regression: Callable, small: Callable) -> None:
    for name, value in (("seeds", [1]), ("settings", {"lr": [0.1]})):
        with pytest.raises(ConfigError, match=f"option is '{name}', but must be left out"):
            fedjax_sim.simulate(FEDAVG, regression(), small(FEDAVG), num_ticks=2, **{name: value})


@pytest.mark.parametrize("system", [FEDAVG, FEDBUFF, FAVANO])
def test_without_reports_only_models_that_somebody_works_from_are_kept(
    system: Any, regression: Callable, small: Callable
) -> None:
    """The store is of a static size: what is learnt must not depend on it. FedAvg's clients all start from the newest model."""
    options: dict[str, Any] = {"num_ticks": 30, "num_evals": 3, "layout": LAYOUT}
    whole = fedjax_sim.simulate(system, regression(40), small(system, num_clients=40), **options)
    bare = fedjax_sim.simulate(
        system, regression(40), small(system, num_clients=40), reports=False, **options
    )
    assert whole.samples is None
    assert "client_variance" in whole.curves
    assert "client_variance" not in bare.curves
    np.testing.assert_array_equal(bare.models, whole.models)
    np.testing.assert_array_equal(bare.curves.loss, whole.curves.loss)


def test_a_loss_that_is_not_finite_is_a_failure(regression: Callable, small: Callable) -> None:
    """Though the model is: its squares overflow."""
    run = fedjax_sim.simulate(
        FEDAVG,
        regression().replace(targets=regression().targets.at[0, 0].set(1e30)),
        small(FEDAVG),
        num_ticks=1,
    )
    assert np.isfinite(run.models).all()
    assert not np.isfinite(run.curves.loss).all()
    assert run.curves.failed


def test_a_users_own_problem_needs_no_base_class(small: Callable) -> None:
    """Anything with counts, init, loss and evaluate; here a plain registered class with a pytree of two leaves for a model."""

    @jax.tree_util.register_pytree_node_class
    class Own:
        def __init__(self, centers: jax.Array):
            self.centers = centers

        def tree_flatten(self) -> tuple[tuple, None]:
            return (self.centers,), None

        @classmethod
        def tree_unflatten(cls, _: None, leaves: tuple) -> "Own":
            return cls(*leaves)

        @property
        def counts(self) -> jax.Array:
            return jnp.ones(7, "int32")

        def init(self, key: jax.Array) -> dict[str, jax.Array]:
            return {"a": jnp.zeros(2), "b": jnp.zeros(())}

        def loss(
            self, params: Any, client: jax.Array, examples: jax.Array, key: jax.Array
        ) -> jax.Array:
            return jnp.sum(jnp.square(params["a"] - self.centers[client])) + jnp.square(
                params["b"] - 1
            )

        def evaluate(self, params: Any) -> dict[str, jax.Array]:
            return {"b": params["b"]}

    for system in fedjax_sim.SYSTEMS.values():
        if system.learns is LatentProblem:
            continue
        run = fedjax_sim.simulate(
            system, Own(jnp.ones((7, 2))), small(system), num_ticks=6, num_evals=2, layout=LAYOUT
        )
        assert 0 < abs(float(run.curves.b[-1]) - 1) < 1
        assert run.models["a"].shape == (2,)
        # Three numbers of 32 bits.
        slots = {"fedasync": 1, "langevin": 7}.get(system.name, 4)
        assert run.curves.uplink_bits[-1] == 6 * slots * 96
