"""Every system against its slow event loop with the same random draws.

Schedules are equal bit for bit, and models to rounding. Everything runs in float64. Models agree to
1e-6 of their size, because the weights of slots are passed in float32; where these are exact (a
quarter, or one), to 1e-11. FedStaleWeight and FedAsync are in `test_stale.py`, systems with groups
in `test_hierarchical.py`.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim.core.streams import stream
from fedjax_sim.server.compression import Lattice
from tests.reference import favano_loop, fedavg_loop, fedbuff_loop, lattice, quafl_loop
from tests.reference.draws import LR, SEED, TICKS, Clock, Gradient, K, N, assert_same, simulate

CONTACTS = {"server_wait": 3.0, "server_interact": 1.0, "rate_slow": 0.2}


def law_of_steps(rate: float) -> tuple[float, float]:
    """Compute P(E > 0) and E[E ^ K] over windows of 4 R units, R geometric with parameter 4/7."""
    rounds, counts = np.arange(1, 200), np.arange(900)[:, None]
    pmf = stats.binom.pmf(counts, 4 * rounds, rate) @ stats.geom.pmf(rounds, 4 / 7)
    return 1 - pmf[0], float(np.minimum(counts[:, 0], K) @ pmf)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("reweight", "tolerance"),
    [
        ("none", 1e-11),
        ("stochastic", 1e-6),
        pytest.param("deterministic", 1e-6, marks=pytest.mark.slow),
    ],
)
def test_favano(
    small: Callable,
    problem: Any,
    gradient: Gradient,
    start: np.ndarray,
    reweight: str,
    tolerance: float,
) -> None:
    system = fedjax_sim.SYSTEMS["favano"]
    hyper = small(system, lr=LR, reweight=reweight, **CONTACTS)
    clock = Clock(hyper)
    rates = np.asarray(clock.speeds.rate).tolist()
    law = {rate: law_of_steps(rate) for rate in rates}

    def alpha(action: int, client: int, steps: int) -> float:
        any_step, mean = law[rates[client]]
        return {"none": 1.0, "stochastic": any_step * steps, "deterministic": mean}[reweight]

    records = favano_loop.run(
        start=start,
        cohorts=clock.cohorts,
        period=4.0,
        max_steps=K,
        lr=LR,
        runtime=clock.by_visit(),
        gradient=gradient,
        alpha=alpha,
    )
    assert 0 in {steps for record in records for steps in record.steps}
    assert K in {steps for record in records for steps in record.steps}
    assert_same(simulate(system, problem, hyper), records, tolerance=tolerance)


@pytest.mark.parametrize("has_lattice", [False, True], ids=["plain", "lattice"])
def test_quafl(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray, has_lattice: bool
) -> None:
    """Without compression, and with a lattice that is decoded by a search."""
    system, code = fedjax_sim.SYSTEMS["quafl"], {}
    hyper = small(system, lr=LR, **CONTACTS)
    if has_lattice:
        hyper = hyper.replace(compression=Lattice(colors=16, distance=3.0))
        code = {"code": lattice.coder(stream(jax.random.key(SEED), "learning"), 4, 16, 3.0)}
    clock = Clock(hyper)
    records = quafl_loop.run(
        start=start,
        cohorts=clock.cohorts,
        period=4.0,
        max_steps=K,
        lr=LR,
        runtime=clock.by_visit(),
        gradient=gradient,
        **code,
    )
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


def test_fedavg(small: Callable, problem: Any, gradient: Gradient, start: np.ndarray) -> None:
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper = small(system, lr=LR, server_interact=2.0)
    clock = Clock(hyper)
    records = fedavg_loop.run(
        start=start,
        num_clients=N,
        cohorts=clock.cohorts,
        interact=2.0,
        num_steps=K,
        lr=LR,
        runtime=clock.by_round(),
        gradient=gradient,
    )
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("restart", "send_old_model"),
    [
        ("after_interaction", False),
        pytest.param("after_interaction", True, marks=pytest.mark.slow),
        ("own_finish", True),
        pytest.param("fresh", False, marks=pytest.mark.slow),
    ],
)
def test_fedbuff(
    small: Callable,
    problem: Any,
    gradient: Gradient,
    start: np.ndarray,
    restart: str,
    send_old_model: bool,
) -> None:
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = small(
        system,
        lr=LR,
        server_lr=0.7,
        rate_slow=0.2,
        restart=restart,
        send_old_model=send_old_model,
        rule="mean",
    )
    clock = Clock(hyper)
    records = fedbuff_loop.run(
        start=start,
        num_clients=N,
        num_actions=TICKS,
        buffer_size=4,
        interact=3.0,
        num_steps=K,
        lr=LR,
        server_lr=0.7,
        restart=restart,
        send_old_model=send_old_model,
        duration=clock.updates(),
        tie=clock.ties(),
        gradient=gradient,
    )
    assert any(len(set(record.versions)) > 1 for record in records)
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)


@pytest.mark.slow
def test_fedbuff_with_free_clients(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray
) -> None:
    """Fast clients fill several slots of one buffer.

    Each of their updates starts from the newest model at the time.
    """
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = small(system, lr=LR, server_lr=0.7, restart="free", slow_fraction=0.7, rule="mean")
    clock = Clock(hyper)
    records = fedbuff_loop.run_free(
        start=start,
        num_clients=N,
        num_actions=TICKS,
        buffer_size=4,
        num_steps=K,
        lr=LR,
        server_lr=0.7,
        duration=clock.updates(),
        tie=clock.lots(),
        gradient=gradient,
    )
    assert any(len(set(record.clients)) < 4 for record in records)
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-11)
