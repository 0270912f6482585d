"""Sweeps: labels of the grid, budgets, problems per seed, bits, staleness, lanes that diverge."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from flax import struct

import fedjax_sim
from fedjax_sim import Layout, datasets, models, partition, problems
from fedjax_sim.core.types import EMPTY, LatentProblem
from fedjax_sim.engine.planning.lanes import Lane, stack_problems
from fedjax_sim.engine.program.prepare import Planned
from fedjax_sim.engine.request import Options
from fedjax_sim.results.curves import NEVER, collapsed_at
from tests.conftest import slow_but
from tests.systems.hand_made import ONE_BY_ONE

FAVANO, FEDBUFF, FEDAVG = (fedjax_sim.SYSTEMS[name] for name in ("favano", "fedbuff", "fedavg"))
LAYOUT = Layout(4, False, 1)


@pytest.fixture(scope="module")
def grid(regression: Callable, small: Callable) -> fedjax_sim.Run:
    """Sweep two settings, the first of which is static, and two seeds that are no range."""
    settings = {"reweight": ["none", "stochastic"], "lr": [0.02, 0.05, 0.1]}
    options: dict[str, Any] = {
        "budget": fedjax_sim.Ticks(6),
        "num_evals": 4,
        "layout": LAYOUT,
        "keep": fedjax_sim.Keep(models=True, client_variance=True),
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
    """Compared with runs of one lane; models are equal up to float32 rounding."""
    for reweight, lr, seed in ((0, 2, 0), (1, 0, 1), (1, 2, 0)):
        hyper = small(FAVANO, reweight=["none", "stochastic"][reweight], lr=[0.02, 0.05, 0.1][lr])
        alone = fedjax_sim.simulate(
            FAVANO,
            regression(),
            hyper,
            seed=[5, 2][seed],
            budget=fedjax_sim.Ticks(6),
            num_evals=4,
            layout=LAYOUT,
        )
        lane = (reweight * 3 + lr) * 2 + seed
        np.testing.assert_array_equal(alone.timelines[0].steps, grid.timelines[lane].steps)
        np.testing.assert_allclose(alone.models, grid.models[lane], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            alone.curves.loss, grid.curves.loss[reweight, lr, seed], rtol=1e-5
        )
        assert alone.curves.loss.dims == ("eval",)
        assert alone.hypers == [grid.hypers[lane]]


def test_the_first_evaluation_is_of_the_initial_model(grid: fedjax_sim.Run) -> None:
    """At most four more evaluations follow, after equal numbers of ticks: of six ticks, three."""
    assert grid.curves.ticks[0, 0, 0].values.tolist() == [0, 2, 4, 6]
    first = grid.curves.isel(eval=0)
    assert (first.time == 0).all()
    assert (first.local_steps == 0).all()
    # All clients hold the initial model; a number computed twice may differ by rounding.
    assert (first.client_variance < 1e-12).all()
    # The initial model depends on the seed alone.
    assert len(np.unique(first.loss)) == 2


def test_curves_agree_with_schedules(grid: fedjax_sim.Run) -> None:
    """Times, steps, bits and staleness are counted again from the timelines."""
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
    """The problem's metrics are the coordinates of the model."""
    for i in range(3):
        np.testing.assert_array_equal(
            grid.samples[:, :, i], grid.curves[f"w{i}"].values.reshape(12, 4)
        )
    np.testing.assert_array_equal(grid.samples[:, -1], grid.models)


def test_few_lanes_at_a_time_are_the_same_lanes(
    grid: fedjax_sim.Run, regression: Callable, small: Callable
) -> None:
    """With three of six lanes in memory at one time, equal up to float32 rounding."""
    options: dict[str, Any] = {
        "budget": fedjax_sim.Ticks(6),
        "num_evals": 4,
        "layout": LAYOUT._replace(max_lanes=3),
        "keep": fedjax_sim.Keep(models=True),
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
    for ours, theirs in zip(few.timelines, grid.timelines[6:], strict=True):
        np.testing.assert_array_equal(ours.clients, theirs.clients)


def test_a_time_budget_cuts_each_lane_separately(regression: Callable, small: Callable) -> None:
    """Lanes with different clocks have different numbers of ticks, and equal lanes run alone.

    Shorter lanes repeat their last evaluation.
    """
    blocked = {"restart": "after_interaction"}
    options: dict[str, Any] = {
        "budget": fedjax_sim.Time(60.0),
        "num_evals": 5,
        "keep": fedjax_sim.Keep(models=True),
    }
    run = fedjax_sim.sweep(
        FEDBUFF,
        regression(),
        small(FEDBUFF, **blocked),
        settings={"server_interact": [1.0, 12.0]},
        seeds=2,
        layout=LAYOUT._replace(max_lanes=2),
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
    slow = small(FEDBUFF, server_interact=12.0, **blocked)
    alone = fedjax_sim.simulate(FEDBUFF, regression(), slow, seed=1, layout=LAYOUT, **options)
    np.testing.assert_array_equal(alone.timelines[0].time, run.timelines[3].time)
    np.testing.assert_allclose(alone.models, run.models[3], rtol=1e-5, atol=1e-6)
    # The last evaluation of shorter lanes is repeated.
    assert run.samples.shape == (4, run.curves.sizes["eval"], 3)
    np.testing.assert_array_equal(run.samples[:, -1], run.models)
    np.testing.assert_allclose(alone.samples[-1], run.samples[3, -1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_free_running_lanes_of_different_speeds_equal_lanes_alone(
    regression: Callable, small: Callable
) -> None:
    """Ties between geometric times are broken in the same way however many ticks are drawn."""
    hyper = small(FEDBUFF, restart="free", slow_fraction=0.0, local_steps=2)
    options: dict[str, Any] = {"budget": fedjax_sim.Time(40.0), "num_evals": 2, "layout": LAYOUT}
    run = fedjax_sim.sweep(
        FEDBUFF, regression(), hyper, settings={"rate_fast": [0.1, 0.9]}, **options
    )
    alone = fedjax_sim.simulate(FEDBUFF, regression(), hyper.replace(rate_fast=0.1), **options)
    for ours, theirs in zip(alone.timelines[0], run.timelines[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_each_seed_may_have_its_problem(regression: Callable, small: Callable) -> None:
    """Problems are given as a function of the seed or a list; what they share is held once."""
    problems = [regression(seed=3), regression(seed=4).replace(counts=regression(seed=3).counts)]
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(4), "num_evals": 2, "layout": LAYOUT}
    listed = fedjax_sim.sweep(FEDAVG, problems, small(FEDAVG), seeds=[8, 9], **options)
    called = fedjax_sim.sweep(
        FEDAVG, lambda seed: problems[seed - 8], small(FEDAVG), seeds=[8, 9], **options
    )
    np.testing.assert_array_equal(listed.models, called.models)
    for i in range(2):
        alone = fedjax_sim.simulate(FEDAVG, problems[i], small(FEDAVG), seed=8 + i, **options)
        np.testing.assert_allclose(listed.models[i], alone.models, rtol=1e-5, atol=1e-6)
    shared = problems[0].replace(targets=problems[0].targets + 1)
    assert [leaf is None for leaf in stack_problems([problems[0], shared]).varying] == [
        True,
        False,
        True,
        True,
    ]


def quadratic_with(value: float) -> type[problems.Quadratic]:
    """Define a class of problems anew, as a notebook does; it pulls towards a value."""

    @struct.dataclass
    class Mine(problems.Quadratic):
        def loss(
            self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
        ) -> jax.Array:
            return ((params - value) ** 2).sum()

        def evaluate(self, params: jax.Array) -> dict[str, jax.Array]:
            return {"value": jnp.float32(value), "distance": jnp.abs(params - value).max()}

    return Mine


@pytest.mark.slow
def test_a_class_that_is_defined_again_is_another_program(small: Callable) -> None:
    """Its fields and shapes are those of the former class. Also in one call, for two seeds."""
    centers = np.zeros((small(FEDAVG).num_clients, 3), "float32")
    first, second = (quadratic_with(value).of(centers) for value in (1.0, 2.0))
    hyper = small(FEDAVG, lr=0.5, local_steps=1)
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(2), "num_evals": 2, "layout": LAYOUT}
    for problem, value in ((first, 1.0), (second, 2.0)):
        run = fedjax_sim.simulate(FEDAVG, problem, hyper, seed=8, **options)
        assert (run.curves.value == value).all()
        np.testing.assert_allclose(run.models, value)
    both = fedjax_sim.sweep(FEDAVG, [first, second], hyper, seeds=2, **options)
    assert both.curves.value.isel(eval=-1).values.tolist() == [1.0, 2.0]
    np.testing.assert_allclose(both.models, [[1.0] * 3, [2.0] * 3])


def test_a_group_of_settings_is_swept_as_a_whole(
    regression: Callable, small: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Labelled by what was changed; a run is read again, and others start from it."""
    slow = small(FAVANO).delays.replace(rate_slow=0.2)
    laws = [slow, slow.replace(runtime_law="runtime_exp")]
    made = (FAVANO, regression(), small(FAVANO))
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(3), "num_evals": 1, "layout": LAYOUT}
    run = fedjax_sim.sweep(*made, settings={"delays": laws, "lr": [0.05, 0.2]}, **options)
    assert "each of the 2 values of delays compiles" in capsys.readouterr().err
    assert run.curves.loss.dims == ("delays", "lr", "seed", "eval")
    assert "runtime_law=Geometric()" in run.curves.delays.values[0]
    by_name = fedjax_sim.sweep(
        *made,
        settings={"rate_slow": [0.2], "runtime_law": [law.runtime_law for law in laws]},
        **options,
    )
    found = run.curves.loss.isel(lr=0)
    np.testing.assert_array_equal(found, by_name.curves.loss.isel(rate_slow=0))
    run.save(tmp_path / "run")
    again = fedjax_sim.load(tmp_path / "run")
    xr.testing.assert_identical(again.curves, run.curves)
    assert [hyper.delays for hyper in again.hypers] == [laws[0], laws[0], laws[1], laws[1]]
    later = fedjax_sim.sweep(
        *made, settings={"delays": laws[1:], "lr": [0.2]}, start=again, **options
    )
    np.testing.assert_allclose(
        later.curves.loss.values[0, 0, 0, 0], run.curves.loss.values[1, 1, 0, -1], rtol=1e-6
    )
    with pytest.raises(fedjax_sim.ConfigError, match="delays is 'uniform', but must be"):
        fedjax_sim.sweep(*made, settings={"delays": ["uniform"]}, **options)


def test_a_lane_that_diverges_is_reported_and_does_not_disturb_others(
    regression: Callable, small: Callable
) -> None:
    run = fedjax_sim.sweep(
        FEDAVG,
        regression(),
        small(FEDAVG),
        settings={"lr": [0.05, 1e30]},
        seeds=2,
        budget=fedjax_sim.Ticks(4),
        num_evals=2,
        layout=LAYOUT,
    )
    assert run.curves.failed.values.tolist() == [[False, False], [True, True]]
    assert run.curves.failed_at.values.tolist() == [[NEVER, NEVER], [1, 1]]
    assert (run.curves.collapsed_at == NEVER).all(), "a regression knows no chance"
    assert np.isfinite(run.curves.loss.isel(lr=0)).all()
    assert np.isfinite(run.models[:2]).all()
    assert not np.isfinite(run.models[2:]).any()


def test_a_lane_has_collapsed_from_when_on_it_stays_at_chance() -> None:
    """The initial evaluation does not count, because nothing is learnt then."""
    accuracy = {
        "learns": ([0.1, 0.1, 0.5, 0.9], NEVER),
        "collapses": ([0.1, 0.5, 0.1, 0.08], 2),
        "recovers": ([0.1, 0.5, 0.1, 0.5], NEVER),
        "never learns": ([0.1, 0.1, 0.1, 0.1], 1),
        "collapses at the end": ([0.1, 0.5, 0.5, 0.1], 3),
        "diverges": ([0.1, 0.5, np.nan, np.nan], NEVER),
    }
    values = np.array([values for values, _ in accuracy.values()])
    metrics = {"accuracy": values, "finite": np.isfinite(values)}
    expected = [at for _, at in accuracy.values()]
    assert collapsed_at(metrics, {"accuracy": 0.1}).tolist() == expected
    assert (collapsed_at(metrics, {}) == NEVER).all()


@pytest.mark.slow
def test_a_classification_names_lanes_that_collapse(small: Callable) -> None:
    """With a huge step size the perceptron names one class for ever, and is finite."""
    digits = datasets.load("digits")
    split = partition.make("iid", digits.train_labels, num_clients=7, seed=0)
    problem = problems.make_classification(models.MLP((4,), 10), digits, split)
    run = fedjax_sim.sweep(
        FEDAVG,
        problem,
        small(FEDAVG, batch_size=8),
        settings={"lr": [0.1, 1e4]},
        budget=fedjax_sim.Ticks(20),
        num_evals=2,
    )
    assert not run.curves.failed.any()
    assert run.curves.collapsed_at.values.tolist() == [[NEVER], [1]]


@pytest.mark.slow
def test_optimizers_are_swept_by_name(regression: Callable, small: Callable) -> None:
    momentum = partial(optax.sgd, momentum=0.9)
    values = [optax.sgd, optax.adam, momentum]
    run = fedjax_sim.sweep(
        FEDAVG,
        regression(),
        small(FEDAVG),
        settings={"optimizer": values},
        budget=fedjax_sim.Ticks(3),
        layout=LAYOUT,
    )
    assert run.curves.optimizer.values.tolist()[:2] == ["sgd", "adam"]
    assert len(np.unique(run.models[:, 0])) == 3


@pytest.mark.slow
@pytest.mark.parametrize("system", slow_but([FEDBUFF], [FEDAVG, FEDBUFF, FAVANO]))
def test_client_variance_is_measured_only_on_request(
    system: Any, regression: Callable, small: Callable
) -> None:
    """It changes nothing that is learnt, and equals a sum in plain NumPy.

    With an evaluation after every tick the samples are all server versions, so that the model of
    every client can be looked up by the version that the timeline says it holds.
    """
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(30), "num_evals": 30, "layout": LAYOUT}
    problem, hyper = regression(40), small(system, num_clients=40)
    whole = fedjax_sim.simulate(
        system, problem, hyper, keep=fedjax_sim.Keep(client_variance=True), **options
    )
    bare = fedjax_sim.simulate(system, problem, hyper, keep=fedjax_sim.Keep(models=True), **options)
    assert whole.samples is None
    assert "client_variance" in whole.curves
    assert "client_variance" not in bare.curves
    np.testing.assert_array_equal(bare.models, whole.models)
    np.testing.assert_array_equal(bare.curves.loss, whole.curves.loss)
    versions = bare.samples
    timeline, held = whole.timelines[0], np.zeros(40, int)
    expected = [0.0]
    for tick in range(30):
        present = timeline.clients[tick] != EMPTY
        held[timeline.clients[tick][present]] = timeline.holds[tick][present]
        distance = versions[held].astype(float) - versions[tick + 1]
        expected.append(float(np.sum(distance**2)))
    np.testing.assert_allclose(whole.curves.client_variance, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.slow
def test_settings_are_returned_as_completed(regression: Callable, small: Callable) -> None:
    """FA-LD takes its clients' weights from the problem; lanes are in the order of the grid."""
    langevin = fedjax_sim.SYSTEMS["langevin"]
    problems = [regression(), regression(seed=1)]
    run = fedjax_sim.sweep(
        langevin,
        problems,
        small(langevin),
        settings={"rho": [0.0, 0.5]},
        seeds=2,
        budget=fedjax_sim.Ticks(1),
        layout=LAYOUT,
    )
    assert [hyper.rho for hyper in run.hypers] == [0.0, 0.0, 0.5, 0.5]
    for i, hyper in enumerate(run.hypers):
        complete = langevin.fit.complete(small(langevin), problems[i % 2])
        np.testing.assert_array_equal(hyper.client_weights, complete.client_weights)
    assert small(langevin).client_weights is None


def test_a_run_cannot_be_changed(grid: fedjax_sim.Run) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        grid.models = None  # type: ignore[misc]


def test_a_loss_that_is_not_finite_is_a_failure(regression: Callable, small: Callable) -> None:
    """The model is finite, but the squares of its residuals overflow."""
    run = fedjax_sim.simulate(
        FEDAVG,
        regression().replace(targets=regression().targets.at[0, 0].set(1e30)),
        small(FEDAVG),
        budget=fedjax_sim.Ticks(1),
    )
    assert np.isfinite(run.models).all()
    assert not np.isfinite(run.curves.loss).all()
    assert run.curves.failed


DIFFERENT = {each.algorithm: name for name, each in fedjax_sim.SYSTEMS.items()}
"""Systems that differ in their settings alone run the same code, so that one of them is enough."""


@pytest.mark.parametrize(
    "name",
    slow_but(
        ["fedavg", "favano"],
        [
            name
            for name in DIFFERENT.values()
            # FedPer wants to know which leaves are personal.
            if fedjax_sim.SYSTEMS[name].fit.learns is not LatentProblem
            and name not in ("fedper", "fedbn")
        ],
    ),
)
def test_a_users_problem_needs_no_base_class(name: str, small: Callable) -> None:
    """It is any pytree with counts, init, loss and evaluate; here the model has two leaves."""

    @jax.tree_util.register_pytree_node_class
    class UsersProblem:
        def __init__(self, centers: jax.Array):
            self.centers = centers

        def tree_flatten(self) -> tuple[tuple, None]:
            return (self.centers,), None

        @classmethod
        def tree_unflatten(cls, _: None, leaves: tuple) -> "UsersProblem":
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

    system = fedjax_sim.SYSTEMS[name]
    run = fedjax_sim.simulate(
        system,
        UsersProblem(jnp.ones((7, 2))),
        small(system),
        budget=fedjax_sim.Ticks(6),
        num_evals=2,
        layout=LAYOUT,
    )
    assert 0 < abs(float(run.curves.b[-1]) - 1) < 1
    assert run.models["a"].shape == (2,)
    # A model is three numbers of 32 bits; some send a control variate or a gradient with it.
    slots = dict.fromkeys(ONE_BY_ONE, 1).get(name, 7 if name == "langevin" else 4)
    sent = {"scaffold": 2, "mimelite": 2}.get(name, 1)
    # In Power-of-Choice four clients send a loss, and three of them a model.
    bits = 3 * 96 + 4 * 32 if name == "powerofchoice" else slots * sent * 96
    # q-FedAvg's clients also send a loss, and IFCA's the number of one of two models.
    bits += slots * {"qfedavg": 32, "ifca": 1}.get(name, 0)
    if name in ("fedcs", "safa", "pisces", "fedat"):  # Their ticks have unequal numbers of reports.
        (timeline,) = run.timelines
        assert run.curves.uplink_bits[-1] == 96 * (timeline.clients != EMPTY).sum() > 0
        return
    assert run.curves.uplink_bits[-1] == 6 * bits


def test_devices_of_a_cpu_read_one_copy_of_what_lanes_share(
    regression: Callable, small: Callable
) -> None:
    """A large data set lies in memory once, however many cores take lanes."""
    options = Options(fedjax_sim.Ticks(2), 1, Layout(lane_devices=4))
    problem = regression()
    lanes = [Lane(place, small(FEDAVG), problem, place) for place in range(4)]
    replay = Planned(FEDAVG, lanes, options).on_devices()
    given = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(problem)}
    shared = [leaf for leaf in replay.placed.lanes.problem.shared if leaf is not None]
    for leaf in shared:
        assert len(leaf.addressable_shards) == 4
        pointers = {shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards}
        assert len(pointers) == 1 and pointers <= given
    assert len(shared) == len(given) > 2
