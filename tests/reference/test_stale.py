"""FedStaleWeight and FedAsync against their slow event loop with the same random draws."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.server.staleness import staleness_weights
from tests.conftest import slow_but
from tests.reference import fedstaleweight_loop
from tests.reference.draws import LR, TICKS, Clock, Gradient, K, N, assert_same, simulate


def of_stale_clients(
    clock: Clock, gradients: Callable[..., Gradient], start: np.ndarray, **options: Any
) -> list[Any]:
    """Run the loop of FedStaleWeight and FedAsync with the clients of a clock."""
    loop = {
        "num_clients": N,
        "num_actions": TICKS,
        "num_steps": K,
        "lr": LR,
        "duration": clock.updates(),
        "pull": clock.hyper.clock.restart,
    }
    return fedstaleweight_loop.run(
        start=start, gradient=gradients(reshuffled=True), **(loop | options)
    )


def has_duplicates(records: list[Any]) -> bool:
    """Return whether some buffer holds several updates of one client."""
    return any(len(set(record.clients)) < len(record.clients) for record in records)


STALE = {"slow_fraction": 0.7, "server_lr": 0.7}
"""Five of seven clients are slow, so two fast ones send most of the updates."""


@pytest.fixture(scope="module")
def stale_run(small: Callable, problem: Any) -> fedjax_sim.Run:
    """A run of FedStaleWeight with its default weights."""
    system = fedjax_sim.SYSTEMS["fedstaleweight"]
    return simulate(system, problem, small(system, lr=LR, **STALE))


def weighted_anew(system: fedjax_sim.System, run: fedjax_sim.Run) -> fedjax_sim.System:
    """Return the system with the arrivals of a run, which do not depend on its weights.

    Drawing the arrivals again would compile a program for each weighting.
    """

    def timeline(key: jax.Array, hyper: Any, num_ticks: int) -> fedjax_sim.Timeline:
        known = fedjax_sim.Timeline(*map(jnp.asarray, run.timelines[0]))
        num_known, tick = len(known.time), jnp.arange(num_ticks)
        staleness = jnp.arange(num_known)[:, None] - known.version
        known = known._replace(
            weight=staleness_weights(known.clients, staleness, hyper.staleness, num_clients=N)
        )
        asked = jax.tree.map(lambda leaf: leaf[jnp.minimum(tick, num_known - 1)], known)
        return asked._replace(time=jnp.where(tick < num_known, asked.time, jnp.inf))

    return system._replace(timeline=timeline)


def test_fedstaleweight(
    small: Callable, gradients: Callable, start: np.ndarray, stale_run: fedjax_sim.Run
) -> None:
    """With the paper's weights, and several updates of one client in one buffer."""
    clock = Clock(small(fedjax_sim.SYSTEMS["fedstaleweight"], lr=LR, **STALE))
    server_step = fedstaleweight_loop.reweighted(
        fedstaleweight_loop.Weigher("eq8", num_clients=N), server_lr=0.7
    )
    records = of_stale_clients(clock, gradients, start, buffer_size=4, server_step=server_step)
    assert has_duplicates(records)
    assert_same(stale_run, records, tolerance=1e-6)


WEIGHTS = [
    {"rule": "eq8", "average": "cumulative"},
    {"rule": "eq8", "normalised": False},
    {"rule": "alg1", "window": 3},
    {"rule": "code_exact"},
    {"rule": "mean"},
    {"rule": "polynomial", "normalised": False, "exponent": 0.8},
]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "rule", WEIGHTS, ids=lambda rule: "-".join(str(value) for value in rule.values())
)
def test_fedstaleweight_with_other_weights(
    small: Callable,
    problem: Any,
    gradients: Callable,
    start: np.ndarray,
    stale_run: fedjax_sim.Run,
    rule: dict[str, Any],
) -> None:
    system = fedjax_sim.SYSTEMS["fedstaleweight"]
    hyper = small(system, lr=LR, **STALE, **rule)
    server_step = fedstaleweight_loop.reweighted(
        fedstaleweight_loop.Weigher(num_clients=N, **rule), server_lr=0.7
    )
    records = of_stale_clients(
        Clock(hyper), gradients, start, buffer_size=4, server_step=server_step
    )
    run = simulate(weighted_anew(system, stale_run), problem, hyper)
    assert np.abs(run.models - stale_run.models).max() > 1e-4
    assert_same(run, records, tolerance=1e-6)


GEOMETRIC = {
    "runtime_law": "runtime_geom",
    "time_of": "step",
    "rate_fast": 0.9,
    "rate_slow": 0.3,
    "spread_fast": 0.0,
    "spread_slow": 0.0,
}
"""A law of whole numbers, with which many updates arrive at the same time.

Ties are broken by the clients' numbers.
"""
READINGS = {
    "free, with ties": ("free", GEOMETRIC),
    "before aggregation": ("before_aggregation", {}),
    "after interaction, with ties": ("after_interaction", GEOMETRIC),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", slow_but(["before aggregation", "new version, with ties"], READINGS)
)
def test_fedstaleweight_with_other_pulls(
    small: Callable, problem: Any, gradients: Callable, start: np.ndarray, name: str
) -> None:
    """Readings of when a client continues, and from which model.

    Without an exchange time, "after_interaction" allows one update of each client in a buffer.
    """
    restart, law = READINGS[name]
    system = fedjax_sim.SYSTEMS["fedstaleweight"]
    hyper = small(system, lr=LR, restart=restart, **STALE, **law)
    clock = Clock(hyper)

    def reference(**options: Any) -> list[Any]:
        server_step = fedstaleweight_loop.reweighted(
            fedstaleweight_loop.Weigher("eq8", num_clients=N), server_lr=0.7
        )
        return of_stale_clients(
            clock, gradients, start, buffer_size=4, server_step=server_step, **options
        )

    records = reference()
    assert has_duplicates(records) == (restart != "after_interaction")
    # Breaking ties the other way round shows that there are some.
    turned = reference(tie=lambda client, number: -client)
    assert ([each.clients for each in turned] != [each.clients for each in records]) == (
        "ties" in name
    )
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-6)


def test_fedasync(small: Callable, problem: Any, gradients: Callable, start: np.ndarray) -> None:
    """Models are mixed in as they arrive, discounted by their staleness.

    Local training has a proximal term.
    """
    system = fedjax_sim.SYSTEMS["fedasync"]
    hyper = small(system, lr=LR, slow_fraction=0.7, mixing=0.7, proximal=0.3)
    clock = Clock(hyper)
    polynomial = fedstaleweight_loop.mixed(lambda tau: (1 + tau) ** -0.5, mixing=0.7)
    records = of_stale_clients(
        clock, gradients, start, buffer_size=1, proximal=0.3, server_step=polynomial
    )
    assert max(action - record.versions[0] for action, record in enumerate(records)) > 2
    run = simulate(system, problem, hyper)
    assert_same(run, records, tolerance=1e-6)
    hinge = fedstaleweight_loop.mixed(
        lambda tau: 1.0 if tau <= 1 else 1 / (3 * (tau - 1) + 1), mixing=0.7
    )
    records = of_stale_clients(
        clock, gradients, start, buffer_size=1, proximal=0.3, server_step=hinge
    )
    changed = hyper.replace(rule="hinge", hinge_start=1.0, hinge_slope=3.0)
    other = simulate(weighted_anew(system, run), problem, changed)
    assert np.abs(other.models - run.models).max() > 1e-4
    assert_same(other, records, tolerance=1e-6)
