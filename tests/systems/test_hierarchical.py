"""Hierarchical learning: a group's step as one batch, and quadratics in closed form.

Dimension letters: `N` clients, `P` parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.clients.mini_batches import batch_gradient
from fedjax_sim.core.settings import check
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.edges import group_gradient
from fedjax_sim.systems.hierarchical import Hyper

SYSTEM = fedjax_sim.SYSTEMS["hierarchical"]
WHOLE = Layout(2, False, 1)
CERTAIN = {
    **dict.fromkeys(
        ("shift_per_client", "mean_per_client", "mean", "exchange_shift_per_group"), 0.0
    ),
    "batch_size": 1,
}
CERTAIN |= {"exchange_mean_per_group": 0.0, "exchange_mean": 0.0, "exchange_shift": 3.0}
"""Delays that are not random: `shift` for an iteration, and 3 for the exchange."""


@struct.dataclass
class Located(Quadratic):
    """Quadratics that report the first two coordinates of the model as metrics."""

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        return {f"w{i}": params[i] for i in range(min(params.shape[0], 2))}


KEY, GROUP_OF = 3, (1, 0, 1, -1, 1, 0, 1)


@pytest.fixture(scope="module")
def least_squares(regression: Callable) -> Any:
    with jax.enable_x64(True):
        return regression(7, dtype="float64", noise=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weighting", "sampling"),
    [
        pytest.param("equal", "with_replacement", marks=pytest.mark.slow),
        ("examples", "shuffled_epochs"),
    ],
)
def test_a_groups_gradient_is_the_mean_of_its_clients(
    least_squares: Any, weighting: str, sampling: str
) -> None:
    """Every client uses its batch and its noise, whether all are in one batch or three at a time.

    Three do not divide the groups, so the last batch is padded.
    """
    settings = {
        "num_clients": 7,
        "association": GROUP_OF,
        "batch_size": 2,
        "sampling": sampling,
        "weighting": weighting,
    }
    with jax.enable_x64(True):
        key, model, offset, q = (
            jax.random.key(KEY),
            jnp.array([0.3, -0.2, 1.0]),
            jnp.asarray(5),
            jnp.asarray(2),
        )
        hyper = Hyper(**settings)
        one = jax.jit(
            lambda client: batch_gradient(least_squares, hyper, key, client, offset)(model, q)
        )
        each = np.stack([one(jnp.asarray(i)) for i in range(7)])
        for group in range(2):
            in_group = np.flatnonzero(np.asarray(GROUP_OF) == group)
            weight = (
                np.asarray(least_squares.counts)[in_group]
                if weighting == "examples"
                else np.ones(len(in_group))
            )
            for at_once in (1000, 3):
                chunked = hyper.replace(clients_at_once=at_once)
                gradient = group_gradient(
                    least_squares,
                    chunked,
                    key,
                    jnp.asarray(group),
                    offset,
                    jnp.asarray(0),
                )
                np.testing.assert_allclose(
                    jax.jit(gradient)(model, q), weight @ each[in_group] / weight.sum(), rtol=1e-10
                )
    assert len(set(np.asarray(least_squares.counts)[[1, 5]].tolist())) == 2


def test_a_model_per_group_and_none_per_client(least_squares: Any) -> None:
    """The state holds the global model and two groups' models."""
    with jax.enable_x64(True):
        hyper = Hyper(num_clients=7, num_groups=2)
        state = jax.eval_shape(
            SYSTEM.algorithm(least_squares, hyper, fedjax_sim.Plan()).init, jax.random.key(0)
        )
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [(3,), (2, 3)]


def test_clients_active_in_a_round() -> None:
    """Two of four clients, and both of two, are active: drawn for a round, not for an iteration.

    The centers are powers of two, so a sum of centers tells who is active. All pairs are equally
    frequent.
    """
    powers = 2.0 ** np.arange(6)[:, None]
    with jax.enable_x64(True):
        problem = Quadratic.of(powers, start=0.0)
        hyper = Hyper(num_clients=6, group_sizes=(4, 2), active_per_group=2, batch_size=1)

        def centers(number: jax.Array, group: jax.Array, q: jax.Array) -> jax.Array:
            gradient = group_gradient(
                problem, hyper, jax.random.key(KEY), group, jnp.asarray(0), number
            )
            return -2 * gradient(problem.start, q)[0]

        table = jax.jit(
            jax.vmap(jax.vmap(jax.vmap(centers, (None, None, 0)), (None, 0, None)), (0, None, None))
        )
        sums = np.asarray(table(jnp.arange(600), jnp.arange(2), jnp.arange(2)))
    np.testing.assert_array_equal(sums[..., 0], sums[..., 1])
    np.testing.assert_allclose(sums[:, 1], 16 + 32)
    pairs, often = np.unique(sums[:, 0, 0].round(9), return_counts=True)
    np.testing.assert_allclose(pairs, [1 + 2, 1 + 4, 2 + 4, 1 + 8, 2 + 8, 4 + 8])
    assert np.abs(often - 100).max() < 5 * np.sqrt(600 * 1 / 6 * 5 / 6)


def located(
    centers: Any,
    *,
    num_ticks: int,
    noise: float = 0.0,
    start: Any = 0.0,
    swept: Mapping[str, Any] | None = None,
    **settings: Any,
) -> fedjax_sim.Run:
    """Run two groups of equally many clients with f_i(w) = ||w - center_i||^2 / 2, in float64."""
    with jax.enable_x64(True):
        problem = Located.of(np.asarray(centers, float), noise=noise, start=start)
        hyper = Hyper(num_clients=len(centers), num_groups=2, **(CERTAIN | settings))
        check(hyper)
        return fedjax_sim.sweep(
            SYSTEM,
            problem,
            hyper,
            settings=swept,
            budget=fedjax_sim.Ticks(num_ticks),
            num_evals=num_ticks,
            layout=WHOLE,
            keep=fedjax_sim.Keep(client_variance=True),
        )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("aggregation", "point", "limit"),
    [("divide_by_steps", -0.0224, 0.0), ("average", 0.811, 9 / 11)],
)
def test_objective_consistency(aggregation: str, point: float, limit: float) -> None:
    """The fixed point is where the weighted progress of the groups cancels.

    The optima of the groups are -1 and 1, with 1 and 10 iterations. For a small learning rate the
    point tends to the optimum 0 only if progress is divided by the iterations.
    """
    optima, steps = np.array([-1.0, 1.0]), np.array([1, 10])

    def fixed_point(lr: float) -> float:
        pull = 1 - (1 - lr) ** steps
        weight = pull if aggregation == "average" else pull / steps
        return float(weight @ optima / weight.sum())

    settings = {"aggregation": aggregation, "shift": (10.0, 1.0), "sync_time": 10.0}
    run = located(optima[:, None], num_ticks=2500, swept={"lr": [0.01, 0.1]}, **settings)
    np.testing.assert_array_equal(run.timelines[0].steps[0], steps)
    np.testing.assert_allclose(run.models[:, 0], [fixed_point(0.01), fixed_point(0.1)], atol=2e-6)
    assert fixed_point(0.01) == pytest.approx(point, abs=5e-4)
    assert fixed_point(1e-4) == pytest.approx(limit, abs=1e-3)


@pytest.mark.slow
def test_contraction_and_noise_floor() -> None:
    """A round with lr 1/2 multiplies the distance to the optimum by rho = 1 - (1 - 2^-t) / t.

    The remaining noise has variance 4/3 lr^2 s^2 / N for t = 1 and 0.15225 lr^2 s^2 / N for t = 5.
    Over 20,000 independent coordinates, within 5 standard errors.
    """
    settings = {"lr": 0.5, "shift": 1.0, "swept": {"sync_time": [1.0, 5.0]}}
    path = located(np.zeros((4, 1)), start=1.0, num_ticks=6, **settings).curves.w0.values[:, 0]
    num = 20_000
    settled = located(np.zeros((4, num)), noise=np.sqrt(num), num_ticks=60, **settings)
    for lane, (rho, floor) in enumerate([(0.5, 1.3333), (0.80625, 0.15225)]):
        np.testing.assert_allclose(path[lane, 1:] / path[lane, :-1], rho, rtol=1e-6)
        assert rho**60 < 1e-5
        expected = floor * 0.25 / 4
        assert np.var(settled.models[lane]) == pytest.approx(expected, rel=5 * np.sqrt(2 / num))
        assert abs(np.mean(settled.models[lane])) < 5 * np.sqrt(expected / num)


def test_a_groups_models_on_the_way() -> None:
    """Groups are isolated until the end, so the global model does not move before it.

    n iterations multiply the distance to a group's optimum by (1 - lr)^n.
    """
    run = located(
        [[0.0], [2.0]],
        num_ticks=4,
        lr=0.1,
        start=1.0,
        shift=(1.0, 3.0),
        sync_time=40.0,
        ticks_per_round=4,
        group_metrics=True,
    )
    done = np.cumsum(run.timelines[0].steps, axis=0)
    np.testing.assert_array_equal(done, [[10, 3], [20, 6], [30, 10], [40, 14]])
    curves = run.curves.isel(seed=0)
    for group, center in enumerate((0.0, 2.0)):
        np.testing.assert_allclose(
            curves[f"w0_group_{group}"][1:],
            center + 0.9 ** done[:, group] * (1 - center),
            rtol=1e-12,
        )
    np.testing.assert_array_equal(curves.w0[:4], np.ones(4))
    step = 0.5 * (0.9**40 - 1) / 40 + 0.5 * (1 - 0.9**14) / 14
    np.testing.assert_allclose(curves.w0[4], 1 + step, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "active",
    [
        pytest.param(0, id="all clients"),
        pytest.param(1, id="one of two active", marks=pytest.mark.slow),
    ],
)
def test_ticks_of_a_round_do_not_change_what_is_learnt(active: int) -> None:
    """Rounds of three ticks end with the same models as rounds of one.

    There is gradient noise, so batches matter, and delays are random.
    """
    centers = [[0.0, 1.0], [2.0, -1.0], [4.0, 0.0], [1.0, 0.0]]
    settings = {
        "lr": 0.1,
        "noise": 0.5,
        "start": 1.0,
        "sync_time": 5.0,
        "mean": 0.4,
        "shift": (0.5, 1.0),
        "active_per_group": active,
    }
    whole = located(centers, num_ticks=8, **settings)
    cut = located(centers, num_ticks=24, ticks_per_round=3, **settings)
    for name in ("w0", "w1", "client_variance", "time", "local_steps", "uplink_bits"):
        np.testing.assert_allclose(cut.curves[name][:, ::3], whole.curves[name], rtol=1e-9)
    # Two models of two numbers, sent at the last of three ticks.
    for name in ("uplink_bits", "downlink_bits"):
        np.testing.assert_array_equal(
            np.diff(cut.curves[name]).reshape(-1, 3), np.outer(np.ones(8), [0, 0, 2 * 2 * 64])
        )
    assert np.abs(np.diff(whole.curves.w0)).min() > 1e-4
    assert len(set(whole.timelines[0].steps.ravel().tolist())) > 2


@struct.dataclass
class Pulled:
    """Clients with constant gradients.

    Attributes:
      gradients: `f[N, P]`.
    """

    gradients: jax.Array

    @property
    def counts(self) -> jax.Array:
        return jnp.ones(self.gradients.shape[0], "int32")

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.zeros(self.gradients.shape[1], self.gradients.dtype)

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return self.gradients[client] @ params

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        return {"norm": jnp.sum(jnp.square(params))}


def test_the_deviation_of_groups_from_the_global_model_attains_its_bound() -> None:
    """With opposing gradients of length G the deviation is alpha G (t_i + 1 - 2 w_i).

    Groups have 1 and 3 clients. Client variance is the sum of squared deviations over clients.
    """
    with jax.enable_x64(True):
        problem = Pulled(jnp.array([[3.0, 4.0], *[[-3.0, -4.0]] * 3]))
        hyper = Hyper(
            num_clients=4,
            group_sizes=(1, 3),
            lr=0.1,
            sync_time=10.0,
            **(CERTAIN | {"shift": (1.0, 4.0)}),
        )
        run = fedjax_sim.simulate(
            SYSTEM,
            problem,
            hyper,
            budget=fedjax_sim.Ticks(2),
            num_evals=2,
            layout=WHOLE,
            keep=fedjax_sim.Keep(client_variance=True),
        )
    np.testing.assert_array_equal(run.timelines[0].steps, [[10, 3]] * 2)
    deviation = 0.1 * 5 * (np.array([10, 3]) + 1 - 2 * np.array([0.25, 0.75]))
    np.testing.assert_allclose(
        run.curves.client_variance[1:], np.array([1, 3]) @ deviation**2, rtol=1e-6
    )


def test_examples_of_a_groups_step() -> None:
    """Counts the largest group, at most those active and those in memory together.

    Layouts are chosen by this number.
    """
    sizes = {"num_clients": 9, "num_groups": 2, "group_sizes": (3, 6), "batch_size": 4}
    assert SYSTEM.hints.step_examples(SYSTEM.paper(**sizes)) == 24
    assert SYSTEM.hints.step_examples(SYSTEM.paper(**sizes, clients_at_once=5)) == 20
    assert (
        SYSTEM.hints.step_examples(
            SYSTEM.paper(**sizes, active_per_group=2, sampling="with_replacement")
        )
        == 8
    )
