"""FedBuff with M clients at work, and Generalized AsyncSGD, against their slow event loops.

Schedules are equal bit for bit. Models agree to 1e-6 of their size, because the weights of slots
are passed in float32.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.streams import stream
from fedjax_sim.timelines import draw_client_rates
from tests.reference import replaced_loop
from tests.reference.draws import LR, TICKS, Clock, Gradient, K, N, assert_same, simulate

AT_WORK = 4


@pytest.mark.slow
def test_fedbuff_with_clients_that_are_replaced(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray
) -> None:
    """With discount and momentum; running times are whole, so that many updates arrive together."""
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = small(
        system,
        lr=LR,
        server_lr=0.7,
        server_momentum=0.4,
        concurrency=AT_WORK,
        slow_fraction=0.5,
        rate_fast=0.9,
        rate_slow=0.4,
    )
    clock = Clock(hyper)
    key = stream(clock.key, "replacements")
    places = jax.vmap(
        lambda event: jax.random.randint(
            jax.random.fold_in(jax.random.fold_in(key, event), 0), (), 0, N - AT_WORK + 1, "int32"
        )
    )(jnp.arange(200))
    records = replaced_loop.run_fedbuff(
        start=start,
        order=jax.random.permutation(stream(key, "first tasks"), N).tolist(),
        num_at_work=AT_WORK,
        num_actions=TICKS,
        buffer_size=4,
        num_steps=K,
        lr=LR,
        server_lr=0.7,
        momentum=0.4,
        discount=lambda tau: (1 + tau) ** -0.5,
        duration=clock.updates(),
        tie=clock.lots(),
        successor=lambda event: int(places[event]),
        gradient=gradient,
    )
    staleness = [action - v for action, record in enumerate(records) for v in record.versions]
    assert {0, 1, 2} <= set(staleness)
    assert any(len(set(record.clients)) < 4 for record in records)
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-6)


def test_generalized_asyncsgd(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray
) -> None:
    """Six tasks of seven clients, which wait in queues; slow clients get more of them."""
    system = fedjax_sim.SYSTEMS["gen_async"]
    hyper = small(system, lr=LR, num_tasks=6, routing_exponent=-0.5, rate_fast=0.9, rate_slow=0.4)
    clock = Clock(hyper)
    with jax.enable_x64(True):
        share = np.asarray(draw_client_rates(clock.key, hyper)) ** -0.5
        routing = stream(clock.key, "routing")
        lots = stream(clock.key, "ties")
        places = np.asarray(
            jax.vmap(lambda e: jax.random.uniform(jax.random.fold_in(routing, e), dtype=float))(
                jnp.arange(200)
            )
        )
        clients, numbers = jnp.divmod(jnp.arange(N * 80), 80)
        ties = np.asarray(
            jax.vmap(
                lambda i, u: jax.random.uniform(
                    jax.random.fold_in(jax.random.fold_in(lots, i), u), dtype=float
                )
            )(clients, numbers)
        ).reshape(N, 80)
    share = share / share.sum()
    records = replaced_loop.run_gen_async(
        start=start,
        num_clients=N,
        num_tasks=6,
        num_actions=TICKS,
        num_steps=K,
        lr=LR,
        share=share,
        duration=clock.updates(),
        tie=lambda client, number: float(ties[client, number]),
        route=lambda number: int(np.searchsorted(np.cumsum(share), places[number], side="right")),
        gradient=gradient,
    )
    staleness = [action - record.versions[0] for action, record in enumerate(records)]
    assert max(staleness) > 6
    assert len(set(np.round([record.weights[0] for record in records], 6))) == 2
    assert_same(simulate(system, problem, hyper), records, tolerance=1e-6)
