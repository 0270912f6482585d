"""A system with only the four required fields, as a user would write it, runs in a sweep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Algorithm, ConfigError, Event, Plan, System, Timeline
from fedjax_sim.core.settings import Above0, Count, setting, struct
from fedjax_sim.core.types import Messages


@struct
class Hyper:
    """Settings of gradient descent on one client after another."""

    num_clients: Count = setting(7, "Number of clients.")
    lr: Above0 = setting(0.1, "Learning rate.")


def timeline(key: jax.Array, hyper: Hyper, num_ticks: int) -> Timeline:
    """Visit the clients in the order of their numbers, one per unit of time."""
    tick = jnp.arange(num_ticks)
    slots = tick[:, None].astype("int32")
    one = jnp.ones_like(slots)
    return Timeline(tick + 1.0, slots % hyper.num_clients, one, slots, one.astype(float), slots + 1)


class Info(NamedTuple):
    """What a step reports: visits that are not padding."""

    visits: jax.Array


def algorithm(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm[jax.Array, Info]:
    """Bind gradient descent, w <- w - lr (w - center of the client), to a problem."""

    def step(key: jax.Array, model: jax.Array, event: Event) -> tuple[jax.Array, Info]:
        client = event.clients[0]
        pull = jnp.where(client >= 0, hyper.lr, 0) * (model - problem.centers[client])
        return model - pull, Info((client >= 0).astype("int32"))

    return Algorithm(problem.init, step, model=lambda model: model)


MINIMAL = System("visits", Hyper, timeline, algorithm)


@pytest.fixture(scope="module")
def centers() -> np.ndarray:
    """`f32[7, 2]`."""
    return np.random.default_rng(0).normal(size=(7, 2)).astype("float32")


def descend(centers: np.ndarray, *, lr: float, ticks: int) -> np.ndarray:
    """Compute the models after 0, 1, ... ticks from 1: `f64[ticks + 1, 2]`."""
    models = [np.ones(2)]
    for tick in range(ticks):
        models.append(models[-1] - lr * (models[-1] - centers[tick % 7]))
    return np.array(models)


def test_four_fields_are_enough(centers: np.ndarray) -> None:
    """Models, time, work and messages; whole models are sent both ways."""
    problem = fedjax_sim.problems.Quadratic.of(centers, start=1.0)
    run = fedjax_sim.sweep(
        MINIMAL,
        problem,
        settings={"lr": [0.1, 0.4]},
        seeds=2,
        budget=fedjax_sim.Ticks(9),
        num_evals=9,
        keep=fedjax_sim.Keep(client_variance=True, models=True),
    )
    ticks = np.arange(10)
    for lane, lr in enumerate([0.1, 0.1, 0.4, 0.4]):
        expected = descend(centers, lr=lr, ticks=9)
        np.testing.assert_allclose(run.samples[lane], expected, rtol=1e-5)
        np.testing.assert_array_equal(run.models[lane], run.samples[lane, -1])
        # Client i holds the version made by its last visit; initially all hold the first model.
        held = np.array([[max(0, t - (t - 1 - i) % 7) for i in range(7)] for t in ticks])
        distance = np.square(expected[held] - expected[:, None]).sum(axis=(1, 2))
        variance = run.curves.client_variance.values.reshape(4, 10)[lane]
        np.testing.assert_allclose(variance, distance, rtol=1e-4, atol=1e-6)
    curves = run.curves.isel(seed=0, lr=0)
    np.testing.assert_array_equal(curves.time, ticks)
    np.testing.assert_array_equal(curves.local_steps, ticks)
    np.testing.assert_array_equal(curves.visits, 9)
    np.testing.assert_array_equal(curves.uplink_bits, ticks * 2 * 32)
    np.testing.assert_array_equal(curves.downlink_bits, ticks * 2 * 32)


def test_groups_of_optional_fields(centers: np.ndarray) -> None:
    """Each hook can be given alone: other messages are counted, and training stays the same."""
    problem = fedjax_sim.problems.Quadratic.of(centers, start=1.0)

    class Counted(Messages):
        def bits(self, params: Any, hyper: Any) -> tuple[int, int]:
            return 5, 7

    system = MINIMAL._replace(messages=Counted())
    run = fedjax_sim.simulate(system, problem, budget=fedjax_sim.Ticks(9), num_evals=9)
    np.testing.assert_array_equal(run.curves.uplink_bits, 5 * np.arange(10))
    np.testing.assert_array_equal(run.curves.downlink_bits, 7 * np.arange(10))
    np.testing.assert_allclose(run.models, descend(centers, lr=0.1, ticks=9)[-1], rtol=1e-5)


@pytest.mark.parametrize("is_saved", [False, True])
def test_sums_of_counts_need_not_fit_in_32_bits(
    is_saved: bool, centers: np.ndarray, tmp_path: Path
) -> None:
    """Neither those of one evaluation nor of all, in whole evaluations or in stretches of ticks."""

    class Counts(NamedTuple):
        many: jax.Array
        less: jax.Array
        odd: jax.Array
        mean: jax.Array

    def counting(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm:
        bound = algorithm(problem, hyper, plan)

        def step(key: jax.Array, model: jax.Array, event: Event) -> Any:
            model, _ = bound.step(key, model, event)
            many = jnp.int32(2**31 - 1) - event.tick
            return model, Counts(many, -many, event.tick % 2 == 1, 0.25 * event.tick)

        return bound._replace(step=step)

    problem = fedjax_sim.problems.Quadratic.of(centers, start=1.0)
    saved = (
        {
            "checkpoints": fedjax_sim.Checkpoints(tmp_path, every=0.0),
        }
        if is_saved
        else {}
    )
    run = fedjax_sim.simulate(
        MINIMAL._replace(algorithm=counting),
        problem,
        budget=fedjax_sim.Ticks(9),
        num_evals=1,
        **saved,
    )
    many = 9 * (2**31 - 1) - sum(range(9))
    assert (int(run.curves.many), int(run.curves.less), int(run.curves.odd)) == (many, -many, 4)
    assert run.curves["mean"] == 9.0


def test_the_minimal_system_learns_problems_with_a_loss(noisy_mean: Callable) -> None:
    """That is the default; a latent problem is refused before anything is compiled."""
    with pytest.raises(ConfigError, match=r"problem is 'Estimation', but must be a Problem"):
        fedjax_sim.simulate(MINIMAL, noisy_mean(), budget=fedjax_sim.Ticks(1))
