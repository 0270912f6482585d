"""Special cases in which a system equals another system, or gradient descent.

Every comparison is between different code.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.settings import fields, value_of
from fedjax_sim.timelines import Arrivals
from tests.systems.hand_made import Located

SYSTEMS = fedjax_sim.SYSTEMS
WHOLE = Layout(7, False, 1)
FIXED = {"rate_fast": 1.0, "rate_slow": 1.0}
"""A local step takes one unit of time, for everyone."""
BLOCKED = {"restart": "after_interaction", "rule": "mean"}
"""FedBuff with all clients at work, who wait for the server, and without discount."""


def quadratics(*, curvature: Any = 1.0, seed: int = 0, num_clients: int = 7) -> Located:
    """Make quadratics with two coordinates and random centers."""
    random = np.random.default_rng(seed)
    return Located.of(
        random.normal(size=(num_clients, 2)), curvature=curvature, start=np.array([2.0, -1.0])
    )


def trajectory(system: str, problem: Any, **settings: Any) -> np.ndarray:
    """Return the server's model after every tick, and the initial one: `f64[9, 2]`."""
    with jax.enable_x64(True):
        hyper = SYSTEMS[system].paper(num_clients=7, batch_size=1, **settings)
        run = fedjax_sim.simulate(
            SYSTEMS[system], problem, hyper, budget=fedjax_sim.Ticks(8), num_evals=8, layout=WHOLE
        )
    return np.stack([run.curves.w0, run.curves.w1], axis=-1)


@pytest.fixture
def uneven() -> Located:
    with jax.enable_x64(True):
        return quadratics(curvature=np.linspace(0.2, 2.0, 7))


def test_fedavg_of_everyone_with_one_step_is_gradient_descent(uneven: Located) -> None:
    """To the float32 precision of a slot's weight of 1/7."""
    centers, curvature = np.asarray(uneven.centers), np.asarray(uneven.curvature)
    model, expected = np.array([2.0, -1.0]), []
    for _ in range(9):
        expected.append(model)
        model = model - 0.3 * np.mean(curvature[:, None] * (model - centers), axis=0)
    found = trajectory("fedavg", uneven, num_selected=7, local_steps=1, lr=0.3)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_fedbuff_of_everyone_with_fixed_durations_is_fedavg(uneven: Located) -> None:
    """All clients wait for each other and start from the same model.

    To float32's rounding of 1/7: FedAvg averages models, FedBuff changes of models.
    """
    fedavg = trajectory("fedavg", uneven, num_selected=7, local_steps=4, lr=0.3)
    fedbuff = trajectory(
        "fedbuff", uneven, buffer_size=7, local_steps=4, lr=0.3, **BLOCKED, **FIXED
    )
    np.testing.assert_allclose(fedbuff, fedavg, atol=1e-6)
    assert np.abs(np.diff(fedavg, axis=0)).min() > 1e-4


@pytest.mark.slow
def test_fedbuff_with_free_clients_and_fixed_durations_is_fedavg(uneven: Located) -> None:
    """Only the first tick is the same.

    All clients arrive together. The last of a buffer restarts from the new model, the others from
    the old one.
    """
    fedavg = trajectory("fedavg", uneven, num_selected=7, local_steps=4, lr=0.3)
    free = trajectory(
        "fedbuff", uneven, buffer_size=7, local_steps=4, lr=0.3, restart="free", **FIXED
    )
    np.testing.assert_allclose(free[:2], fedavg[:2], atol=1e-6)
    assert np.abs(free[2] - fedavg[2]).max() > 1e-3


@pytest.mark.slow
def test_fedbuff_of_one_client_is_fedavg_of_one_client() -> None:
    """With one client and server learning rate 1, both are gradient descent with K steps a tick."""
    with jax.enable_x64(True):
        problem = quadratics(curvature=0.7)
        centers = np.asarray(problem.centers)[:1]
        single = Located.of(centers, curvature=0.7, start=np.array([2.0, -1.0]))
        settings = {"num_clients": 1, "local_steps": 3, "lr": 0.2, "batch_size": 1}
        runs = []
        for name, slots in (("fedavg", {"num_selected": 1}), ("fedbuff", {"buffer_size": 1})):
            hyper = SYSTEMS[name].paper(**settings, **slots)
            run = fedjax_sim.simulate(
                SYSTEMS[name],
                single,
                hyper,
                budget=fedjax_sim.Ticks(5),
                num_evals=5,
                layout=Layout(1, False, 1),
            )
            runs.append(np.stack([run.curves.w0, run.curves.w1], axis=-1))
    expected = centers + (1 - 0.7 * 0.2) ** (3 * np.arange(6))[:, None] * (
        np.array([2.0, -1.0]) - centers
    )
    for found in runs:
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_favano_of_everyone_is_a_damped_fedavg(uneven: Located) -> None:
    """FAVANO's server moves n / (n + 1) as far as FedAvg's, if all are contacted and all are done.

    Every base model is then the server's, so (w + sum of reports) / (n + 1) equals
    w + (mean - w) n / (n + 1).
    """
    settings = {"local_steps": 4, "lr": 0.3}
    favano = trajectory("favano", uneven, num_selected=7, reweight="none", **FIXED, **settings)
    model = favano[0]
    for t in range(3):
        # One round of FedAvg from FAVANO's server model.
        fedavg = trajectory("fedavg", uneven.replace(start=model), num_selected=7, **settings)
        model = model + (fedavg[1] - fedavg[0]) * 7 / 8
        np.testing.assert_allclose(favano[t + 1], model, atol=1e-6)


@pytest.mark.slow
def test_reweighting_by_the_steps_done_is_an_average_gradient() -> None:
    """If all K steps are done in every window, both reweightings divide the progress by K.

    To first order this replaces lr by lr / K.
    """
    with jax.enable_x64(True):
        problem = quadratics(curvature=np.linspace(0.2, 2.0, 7))
    settings = {"num_selected": 7, "local_steps": 4, "lr": 1e-6, **FIXED}
    stochastic = trajectory("favano", problem, reweight="stochastic", **settings)
    deterministic = trajectory("favano", problem, reweight="deterministic", **settings)
    np.testing.assert_allclose(stochastic, deterministic, rtol=1e-9)
    plain = trajectory("favano", problem, reweight="none", **(settings | {"lr": 1e-6 / 4}))
    # Second-order terms have relative size lr; the weight 1/4 is exact in float32.
    np.testing.assert_allclose(np.diff(stochastic, axis=0), np.diff(plain, axis=0), rtol=1e-4)


def test_quafl_and_favano_of_everyone_see_the_same_first_tick(uneven: Located) -> None:
    """Without reweighting they differ only in the models from which clients continue."""
    settings = {"num_selected": 7, "local_steps": 4, "lr": 0.3, **FIXED}
    favano = trajectory("favano", uneven, reweight="none", **settings)
    quafl = trajectory("quafl", uneven, **settings)
    np.testing.assert_allclose(quafl[1], favano[1], atol=1e-12)
    assert np.abs(quafl[2] - favano[2]).max() > 1e-3


def test_quafl_of_one_client_is_linear_in_two_models() -> None:
    """With n = s = 1, server w and client x both become (w + y) / 2, where y is K steps from x.

    The iteration is linear, and is computed here with a matrix.
    """
    with jax.enable_x64(True):
        single = Located.of(np.array([[1.0, -2.0]]), curvature=0.7, start=np.array([2.0, -1.0]))
        hyper = SYSTEMS["quafl"].paper(
            num_clients=1, num_selected=1, local_steps=3, lr=0.2, batch_size=1, **FIXED
        )
        run = fedjax_sim.simulate(
            SYSTEMS["quafl"],
            single,
            hyper,
            budget=fedjax_sim.Ticks(6),
            num_evals=6,
            layout=Layout(1, False, 1),
        )
    shrink = (1 - 0.7 * 0.2) ** 3
    step = np.array([[0.5, 0.5 * shrink], [0.5, 0.5 * shrink]])
    both = np.ones(2)
    for t in range(7):
        for i, center in enumerate((1.0, -2.0)):
            expected = center + both[0] * ((2.0, -1.0)[i] - center)
            np.testing.assert_allclose(run.curves[f"w{i}"][t], expected, rtol=1e-12)
        both = step @ both


def test_no_client_contacted_with_steps_leaves_all_models_where_they_are() -> None:
    """Clients that are too slow to finish a step report their start, so nothing moves."""
    with jax.enable_x64(True):
        problem = quadratics()
    for name in ("favano", "quafl"):
        found = trajectory(
            name,
            problem,
            num_selected=7,
            local_steps=4,
            rate_fast=1e-9,
            rate_slow=1e-9,
        )
        np.testing.assert_allclose(found, np.broadcast_to([2.0, -1.0], found.shape), rtol=1e-14)


@pytest.fixture
def least_squares(regression: Callable) -> Any:
    """Ragged clients with mini-batches and gradient noise."""
    with jax.enable_x64(True):
        return regression(dtype="float64")


def learnt(system: str, problem: Any, **settings: Any) -> tuple[np.ndarray, fedjax_sim.Timeline]:
    """Return the server's model after every tick, and the initial one: `f64[13, 3]`.

    Also return the schedule.
    """
    defaults = {
        "num_clients": 7,
        "local_steps": 3,
        "batch_size": 2,
        "lr": 0.05,
        "sampling": "reshuffled",
    }
    with jax.enable_x64(True):
        hyper = SYSTEMS[system].paper(**(defaults | settings))
        run = fedjax_sim.simulate(
            SYSTEMS[system], problem, hyper, budget=fedjax_sim.Ticks(12), num_evals=12, layout=WHOLE
        )
    return np.stack([run.curves[f"w{i}"] for i in range(3)], axis=-1), run.timelines[0]


def clock_of_fedstaleweight(**changes: Any) -> dict[str, Any]:
    """Return FedStaleWeight's settings of clients, buffer and restarts, for an equal mean."""
    hyper = SYSTEMS["fedstaleweight"].paper(**({"num_clients": 7, "local_steps": 3} | changes))
    return {name: value_of(hyper, name) for name in fields(Arrivals)} | {"rule": "mean"}


@pytest.mark.slow
def test_fedstaleweight_of_everyone_who_waits_is_fedavg(
    least_squares: Any,
) -> None:
    """Whatever the clients' speeds, nobody is ever stale, and all weights are 1 / n.

    Batches are the same. To float32's rounding of 1 / 7.
    """
    fedavg, _ = learnt("fedavg", least_squares, num_selected=7)
    waiting, schedule = learnt(
        "fedstaleweight", least_squares, buffer_size=7, restart="after_interaction"
    )
    np.testing.assert_allclose(waiting, fedavg, rtol=0, atol=1e-6)
    assert np.abs(np.diff(fedavg, axis=0)).max(axis=1).min() > 1e-3
    np.testing.assert_array_equal(
        schedule.version, np.broadcast_to(np.arange(12)[:, None], (12, 7))
    )
    np.testing.assert_array_equal(np.sort(schedule.clients), np.broadcast_to(np.arange(7), (12, 7)))
    np.testing.assert_allclose(schedule.weight, 1 / 7, rtol=1e-12)


# The buffer is as large as the number of clients, who have two speeds.
FREE = {"buffer_size": 7, "restart": "free", "rule": "mean"}
TOGETHER = {"rate_fast": 1.0, "rate_slow": 1.0, "spread_fast": 0.0, "spread_slow": 0.0}
"""One speed without spread: all updates arrive at the same time."""


@pytest.mark.slow
def test_fedstaleweight_with_equal_weights_is_fedbuff_with_free_clients(least_squares: Any) -> None:
    """On the same clients, schedules and models are equal bit for bit."""
    mean, schedule = learnt("fedstaleweight", least_squares, **FREE)
    fedbuff, other = learnt("fedbuff", least_squares, **clock_of_fedstaleweight(**FREE))
    np.testing.assert_array_equal(mean, fedbuff)
    jax.tree.map(np.testing.assert_array_equal, schedule, other)
    assert len(set((np.arange(12)[:, None] - schedule.version).ravel())) > 2


@pytest.mark.slow
def test_free_clients_of_fedstaleweight_are_not_fedavg_even_if_they_arrive_together(
    least_squares: Any,
) -> None:
    """Only the last client of a buffer restarts from the new model.

    So the first two models are FedAvg's, and the third is not.
    """
    fedavg, _ = learnt("fedavg", least_squares, num_selected=7)
    free, schedule = learnt("fedstaleweight", least_squares, **FREE, **TOGETHER)
    staleness = np.arange(12)[:, None] - schedule.version
    np.testing.assert_array_equal(schedule.clients, np.broadcast_to(np.arange(7), (12, 7)))
    np.testing.assert_array_equal(staleness[1:], np.broadcast_to([1] * 6 + [0], (11, 7)))
    np.testing.assert_allclose(free[:2], fedavg[:2], rtol=0, atol=1e-6)
    assert np.abs(free[2] - fedavg[2]).max() > 1e-3


@pytest.mark.slow
def test_fedstaleweight_with_a_buffer_of_one_is_fedbuff(least_squares: Any) -> None:
    """The weight of every update is 1, however stale it is, to float64's rounding."""
    fedstaleweight, schedule = learnt("fedstaleweight", least_squares, buffer_size=1)
    fedbuff, other = learnt("fedbuff", least_squares, **clock_of_fedstaleweight(buffer_size=1))
    np.testing.assert_allclose(fedstaleweight, fedbuff, rtol=1e-14)
    # The compiler's flags change how it rounds while it adds up times.
    np.testing.assert_array_max_ulp(schedule.time, other.time, maxulp=4)
    for name in ("clients", "version", "holds"):
        np.testing.assert_array_equal(getattr(schedule, name), getattr(other, name), err_msg=name)
    assert (np.arange(12) - schedule.version[:, 0]).max() > 2


GROUPED = {"local_steps": 1, "sampling": "with_replacement", "shift": 0.5, "mean": 1.0}


def grouped(problem: Any, **settings: Any) -> tuple[np.ndarray, fedjax_sim.Timeline]:
    """Run hierarchical learning; return what `learnt` returns."""
    return learnt("hierarchical", problem, **(GROUPED | settings))


@pytest.fixture
def flat(least_squares: Any) -> np.ndarray:
    """FedAvg of everyone with one local step a round, on the same batches: `f64[61, 3]`."""
    settings = {
        "num_selected": 7,
        "local_steps": 1,
        "sampling": "with_replacement",
        "batch_size": 2,
        "lr": 0.05,
    }
    with jax.enable_x64(True):
        hyper = SYSTEMS["fedavg"].paper(num_clients=7, **settings)
        run = fedjax_sim.simulate(
            SYSTEMS["fedavg"],
            least_squares,
            hyper,
            budget=fedjax_sim.Ticks(60),
            num_evals=60,
            layout=WHOLE,
        )
    return np.stack([run.curves[f"w{i}"] for i in range(3)], axis=-1)


@pytest.mark.slow
def test_groups_without_a_sync_time_are_fedavg_of_everyone(
    least_squares: Any, flat: np.ndarray
) -> None:
    """One local iteration of each group is one global step, whatever the groups are.

    To float32's rounding of weights.
    """
    for grouping in ({"num_groups": 3}, {"group_sizes": (1, 6)}):
        models, schedule = grouped(least_squares, sync_time=0.0, **grouping)
        assert (schedule.steps == 1).all()
        np.testing.assert_allclose(models, flat[:13], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_one_group_that_averages_is_fedavg_of_everyone(
    least_squares: Any, flat: np.ndarray
) -> None:
    """A round of the group is several rounds of FedAvg, whatever the sync time is.

    If progress is divided by the number of iterations, models differ.
    """
    models, schedule = grouped(least_squares, sync_time=4.0, num_groups=1, aggregation="average")
    done = np.concatenate([[0], np.cumsum(schedule.steps)])
    assert len(set(schedule.steps.ravel().tolist())) > 2
    np.testing.assert_allclose(models, flat[done], rtol=0, atol=1e-6)
    divided, _ = grouped(least_squares, sync_time=4.0, num_groups=1)
    steps = schedule.steps[0, 0]
    np.testing.assert_allclose(divided[1] - divided[0], (models[1] - models[0]) / steps, rtol=1e-6)
    assert np.abs(divided[2] - models[2]).max() > 1e-3


@pytest.mark.slow
def test_equal_iterations_make_aggregations_differ_by_their_number(least_squares: Any) -> None:
    """With four iterations each, FedNova equals the average.

    The first step of the paper's rule is a quarter as long.
    """
    settings = {
        "sync_time": 4.0,
        "shift": 1.0,
        "mean": 0.0,
        "mean_per_client": 0.0,
        "shift_per_client": 0.0,
        "num_groups": 2,
    }
    models = {
        rule: grouped(least_squares, aggregation=rule, **settings)
        for rule in ("divide_by_steps", "average", "fednova")
    }
    assert (models["average"][1].steps == 4).all()
    first = {rule: path[1] - path[0] for rule, (path, _) in models.items()}
    np.testing.assert_allclose(models["fednova"][0], models["average"][0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(first["divide_by_steps"], first["average"] / 4, rtol=1e-6)
    assert np.abs(models["divide_by_steps"][0][2:] - models["average"][0][2:]).max() > 1e-2
