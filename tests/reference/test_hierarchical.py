"""Hierarchical systems against their slow event loops with the same random draws.

In the loops every client trains a separate model; here a group's single step is one batch.
Schedules are equal bit for bit, and models to 1e-6, because the groups' weights are passed in
float32.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.streams import stream
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.timelines import complete_groups, draw_losses
from fedjax_sim.timelines.grouped import exchange_times, iteration_times
from tests.reference import hierarchical_loop as loop
from tests.reference.cohort_loops import PLAIN, Compressed
from tests.reference.draws import LR, SEED, Gradient, assert_same, simulate

SYNC, ASYNC = (fedjax_sim.SYSTEMS[name] for name in ("hierarchical", "async_hierarchical"))
MEMBERS = [[0], [1, 2, 3], [4, 5], [6]]
SIZES = {"group_sizes": (1, 3, 2, 1), "sampling": "shuffled_epochs"}
ROUNDS = 12
MODEL_BITS = 3 * 64


class Delays(NamedTuple):
    """Drawn delays, in units of virtual time.

    Attributes:
      iterations: `f64[U, 40, M]`.
      exchanges: `f64[U, 1 or M]`.
    """

    iterations: np.ndarray
    exchanges: np.ndarray

    def delay(self, number: int, group: int, iteration: int) -> float:
        return float(self.iterations[number, iteration, group])

    def exchange(self, number: int, group: int) -> float:
        return float(self.exchanges[number, group % self.exchanges.shape[1]])


def delays_of(hyper: Any, num_rounds: int = ROUNDS) -> Delays:
    """Draw the delays of a run."""
    with jax.enable_x64(True):
        key = stream(jax.random.key(SEED), "timeline")
        one = jax.vmap(
            jax.vmap(lambda u, i: iteration_times(key, hyper, u, i), (None, 0)), (0, None)
        )
        draw = jax.jit(
            lambda: (
                one(jnp.arange(num_rounds), jnp.arange(40)),
                exchange_times(key, hyper, num_rounds),
            )
        )
        return Delays(*map(np.asarray, draw()))


def groups_of(gradient: Gradient, **how: Any) -> list[loop.Group]:
    """Make the groups, on which nothing else depends."""
    return [loop.Group(clients, lr=LR, gradient=gradient, **how) for clients in MEMBERS]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("aggregation", "delays"),
    [("divide_by_steps", "group"), ("fednova", "group"), ("average", "client")],
)
def test_one_local_step(
    small: Callable,
    problem: Any,
    gradient: Gradient,
    start: np.ndarray,
    aggregation: str,
    delays: str,
) -> None:
    """Iterations take 2.4 units of time on average, and sync times grow to 7.

    A round has one to about five iterations.
    """
    clock = (
        {"runtime_law": "runtime_exp", "mean": SYNC.paper().iteration.mean}
        if delays == "client"
        else {"mean": 1.5}
    )
    growing = {"sync_time": 7.0, "sync_growth": 1.5}
    hyper = small(
        SYNC, lr=LR, aggregation=aggregation, delays_of=delays, **clock, **growing, **SIZES
    )
    drawn = delays_of(hyper)
    records = loop.run(
        start=start,
        groups=groups_of(gradient),
        shares=[1 / 7, 3 / 7, 2 / 7, 1 / 7],
        num_rounds=ROUNDS,
        sync_time=lambda number: min(7.0, 1.5 * (number + 1)),
        delay=drawn.delay,
        exchange=drawn.exchange,
        combine={
            "divide_by_steps": loop.divided_by_steps,
            "average": loop.averaged,
            "fednova": loop.fednova,
        }[aggregation],
    )
    assert len({tuple(record.steps) for record in records}) > 5
    assert_same(simulate(SYNC, problem, hyper, ticks=ROUNDS), records, tolerance=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_of_clients",
    [pytest.param(False, id="steps", marks=pytest.mark.slow), pytest.param(True, id="clients")],
)
def test_several_local_steps(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray, is_of_clients: bool
) -> None:
    """FedProx's steps, means by examples, and an exchange of each group in its own time.

    A group does at least two iterations in a round, or an iteration takes as long as the steps of
    its slowest client.
    """
    counts = np.asarray(problem.counts)
    totals = [counts[clients].sum() for clients in MEMBERS]
    if is_of_clients:
        clock = {"delays_of": "client", "runtime_law": "runtime_exp", "sync_time": 12.0}
        clock["mean"] = SYNC.paper().iteration.mean
        hyper = small(SYNC, lr=LR, client_steps=2, aggregation="average", **clock, **SIZES)
        least, combine, mu, sizes = 1, loop.averaged, 0.0, np.ones(7)
        steps = np.full(7, 2)
        shares = [1 / 7, 3 / 7, 2 / 7, 1 / 7]
    else:
        weights = {"weighting": "examples", "group_weights": "examples"}
        clock = {"exchanges": "group", "exchange_shift": (1.0, 4.0, 2.0, 6.0), "sync_time": 4.0}
        how = {"client_steps": 3, "proximal": 0.8, "min_iterations": 2, "aggregation": "fednova"}
        hyper = small(SYNC, lr=LR, **(SIZES | weights | clock | how | {"mean": 1.5}))
        least, combine, mu, sizes = 2, loop.fednova, 0.8, counts
        steps = np.full(7, 3)
        shares = [float(total / counts.sum()) for total in totals]
    drawn = delays_of(complete_groups(hyper, problem))
    groups = groups_of(gradient, steps=lambda i: int(steps[i]), mu=mu, size=lambda i: sizes[i])
    records = loop.run(
        start=start,
        groups=groups,
        shares=shares,
        num_rounds=ROUNDS,
        sync_time=lambda number: hyper.sync_time,
        delay=drawn.delay,
        exchange=drawn.exchange,
        combine=combine,
        least=least,
    )
    assert len({count for record in records for count in record.steps}) > 2
    run = simulate(SYNC, problem, hyper, ticks=ROUNDS)
    assert_same(run, records, tolerance=1e-6)
    # A client receives and sends a model in every iteration, a group in every round.
    last = run.curves.isel(eval=-1)
    sent = sum(group.messages for group in groups) * MODEL_BITS
    assert last.client_uplink_bits == last.client_downlink_bits == sent
    assert last.uplink_bits == last.downlink_bits == ROUNDS * 4 * MODEL_BITS


LOSSY = {
    "error_feedback": True,
    "edge_compression": parse_compressor("top_k:kept=2"),
    "downlink": parse_compressor("sign"),
}
"""Messages between groups and the global server. They have the bits of two entries with places up,
and those of three signs and a scale down."""
LOSSY_BITS = 2 * (64 + 2), 64 + 3


def test_compressed_and_lost_messages(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray
) -> None:
    """Clients do one local step, and send one entry of three with error feedback; some are lost.

    Then both sides keep their estimate. A group whose models are all lost stays where it is.
    """
    clock = {"sync_time": 4.0, "mean": 1.5, "drop_rate": 0.4, "aggregation": "average"}
    compression = {"compression": parse_compressor("top_k:kept=1"), **LOSSY}
    hyper = small(SYNC, lr=LR, **SIZES, **clock, **compression)
    drawn = delays_of(hyper)
    with jax.enable_x64(True):
        key = stream(stream(jax.random.key(SEED), "learning"), "members")
        client, number = jnp.divmod(jnp.arange(7 * 200), 200)
        share = jnp.asarray(0.4)
        lost = np.asarray(jax.jit(draw_losses)(key, share, client, number)).reshape(7, 200)
    members, wire = Compressed(start, 7, kept=1), Compressed(start, 4, kept=2)
    records = loop.run(
        start=start,
        groups=groups_of(gradient, send=members.report, is_lost=lambda i, n: lost[i, n]),
        shares=[1 / 7, 3 / 7, 2 / 7, 1 / 7],
        num_rounds=ROUNDS,
        sync_time=lambda number: 4.0,
        delay=drawn.delay,
        exchange=drawn.exchange,
        combine=loop.averaged,
        wire=wire,
    )
    run = simulate(SYNC, problem, hyper, ticks=ROUNDS)
    assert_same(run, records, tolerance=1e-6)
    assert lost[[0, 6], :ROUNDS].any() and not lost[[0, 6], :ROUNDS].all()
    last, messages = run.curves.isel(eval=-1), ROUNDS * 4
    assert (last.uplink_bits, last.downlink_bits) == tuple(messages * bits for bits in LOSSY_BITS)
    iterations = np.array([record.steps for record in records]).sum(axis=0)
    assert last.client_uplink_bits == iterations @ [1, 3, 2, 1] * (64 + 2)
    assert last.client_downlink_bits == iterations @ [1, 3, 2, 1] * MODEL_BITS


@pytest.mark.parametrize(
    "messages",
    [pytest.param({}, id="whole", marks=pytest.mark.slow), pytest.param(LOSSY, id="compressed")],
)
def test_asynchronous_groups(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray, messages: dict[str, Any]
) -> None:
    """Two local steps, a buffer of three, a discount of staleness, and division by iterations."""
    how = {"client_steps": 2, "num_reports": 3, "aggregation": "divide_by_steps", "server_lr": 0.7}
    how |= messages
    clock = {"sync_time": 1.0, "shift": (0.3, 2.0, 1.0, 5.0), "mean": 0.3}
    clock |= {"exchange_shift": 0.5, "exchange_shift_per_group": 0.0}
    hyper = small(ASYNC, lr=LR, rule="polynomial", **(SIZES | how | clock))
    drawn = delays_of(hyper, 3 * ROUNDS)
    groups = groups_of(gradient, steps=lambda client: 2)
    records = loop.run_async(
        start=start,
        groups=groups,
        shares=[1 / 7, 3 / 7, 2 / 7, 1 / 7],
        num_actions=ROUNDS,
        buffer_size=3,
        sync_time=1.0,
        delay=drawn.delay,
        exchange=drawn.exchange,
        discount=lambda staleness: (1 + staleness) ** -0.5,
        server_lr=0.7,
        is_divided=True,
        wire=Compressed(start, 4, kept=2) if messages else PLAIN,
    )
    assert any(len(set(record.clients)) < 3 for record in records)
    assert len({action - v for action, each in enumerate(records) for v in each.versions}) > 2
    run = simulate(ASYNC, problem, hyper, ticks=ROUNDS)
    assert_same(run, records, tolerance=1e-6)
    iterations = np.bincount(
        np.concatenate([record.clients for record in records]),
        np.concatenate([record.steps for record in records]),
    )
    last = run.curves.isel(eval=-1)
    assert last.client_uplink_bits == iterations @ [1, 3, 2, 1] * MODEL_BITS
    up, down = LOSSY_BITS if messages else (MODEL_BITS, MODEL_BITS)
    assert last.uplink_bits == ROUNDS * 3 * up
    if not messages:
        assert last.downlink_bits == ROUNDS * 3 * down
    else:
        assert ROUNDS * 3 * down <= last.downlink_bits < ROUNDS * 3 * MODEL_BITS
