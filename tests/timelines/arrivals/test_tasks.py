"""A fixed number of tasks at work: clients that are replaced, and queues of clients.

Staleness and occupancy are compared with exact laws, schedules with another way to draw them.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

from fedjax_sim import Timeline
from fedjax_sim.core.settings import check
from fedjax_sim.timelines import (
    Arrivals,
    ClientQueues,
    ClientTable,
    arrivals_within,
    client_queues_within,
    presets,
    schedule_arrivals,
    schedule_client_queues,
)
from tests.timelines.arrivals.test_held_arrivals import FEW_TICKS, MANY, whole_array_operations

ARRIVALS = presets.preset(Arrivals, presets.FAVANO)
CLIENT_QUEUES = presets.preset(ClientQueues, presets.FAVANO)


def replaced(**changes: Any) -> Any:
    """Return settings of clients that are replaced, of exponential times unless changed."""
    law = {"runtime_law": "runtime_exp", "time_of": "update", "rate_fast": 1.0, "rate_slow": 0.25}
    return ARRIVALS(restart="replaced", **({"local_steps": 3} | law | changes))


def staleness_of(schedule: Timeline) -> np.ndarray:
    """Return the staleness of every update: `i[L, T, S]`."""
    return np.arange(schedule.version.shape[1])[None, :, None] - schedule.version


def test_as_many_at_work_as_fill_the_buffer_are_never_stale_at_equal_speeds(draw: Callable) -> None:
    """All finish together, and their successors take the model that is made of their updates."""
    hyper = replaced(
        num_clients=20,
        concurrency=5,
        buffer_size=5,
        runtime_law="runtime_constant",
        rate_fast=0.3,
        rate_slow=0.3,
    )
    schedule = draw(schedule_arrivals, hyper, num_ticks=12, seeds=1)
    assert (staleness_of(schedule) == 0).all()
    np.testing.assert_allclose(schedule.time[0], np.arange(1, 13) / 0.3)
    assert all(len(set(row.tolist())) == 5 for row in schedule.clients[0])
    assert len(set(schedule.clients.ravel().tolist())) > 12


def test_mean_staleness_is_set_by_the_clients_at_work(draw: Callable) -> None:
    """Each server step makes the M - 1 clients that go on with their work older by one.

    So staleness adds up to (M - 1) times the server steps, except for the work still going on. The
    speeds of the clients do not matter.
    """
    hyper = replaced(num_clients=40, concurrency=7, buffer_size=3)
    schedule = draw(schedule_arrivals, hyper, num_ticks=2000, seeds=1)
    tau = staleness_of(schedule)
    assert 0 <= 6 * 2000 - tau.sum() <= 6 * tau.max()
    assert tau.max() > 10
    # The estimate that sizes schedules is Little's law.
    within = arrivals_within(hyper, float(schedule.time[0, -1]))
    assert within == pytest.approx(2000, rel=0.1)


def test_successors_are_drawn_uniformly(draw: Callable) -> None:
    """With one client at work, the next is any of the seven, however slow it is."""
    hyper = replaced(num_clients=7, concurrency=1, buffer_size=1)
    clients = draw(schedule_arrivals, hyper, num_ticks=3500, seeds=1).clients.ravel()
    assert stats.chisquare(np.bincount(clients, minlength=7)).pvalue > 1e-3
    pairs = np.bincount(7 * clients[:-1] + clients[1:], minlength=49)
    assert stats.chisquare(pairs).pvalue > 1e-3


def test_successors_are_available(draw: Callable) -> None:
    """Half of the clients work in the first half of each cycle, the others in the second.

    Fifty updates fit into a half, so that nobody is interrupted and somebody is always available.
    """
    windows = [[(0.0, 50.0)]] * 10 + [[(50.0, 100.0)]] * 10
    table = ClientTable(np.full(20, 1.0), available=windows, period=100.0)
    hyper = replaced(
        num_clients=20,
        concurrency=2,
        buffer_size=1,
        client_table=table,
        runtime_law="runtime_constant",
    )
    schedule = draw(schedule_arrivals, hyper, num_ticks=1000, seeds=1)
    # At time 0 clients are drawn whether they are available or not.
    time, client = schedule.time[0, 200:], schedule.clients[0, 200:, 0]
    in_first_half = (time - 0.5) % 100 < 50
    assert (client[in_first_half] < 10).all() and (client[~in_first_half] >= 10).all()
    np.testing.assert_allclose(np.diff(time[::2]), 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("schedule", "hyper", "trips"),
    [
        (schedule_arrivals, replaced(num_clients=MANY, concurrency=MANY // 2, buffer_size=5), 85),
        (schedule_client_queues, CLIENT_QUEUES(num_clients=MANY, num_tasks=MANY // 2), FEW_TICKS),
    ],
    ids=["replaced", "queues"],
)
def test_an_arrival_touches_no_array_of_all_clients(
    schedule: Callable, hyper: Any, trips: int
) -> None:
    """No arrival sorts, draws for, or copies as many numbers as there are clients or tasks."""
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
        drawn = jax.jit(lambda key: schedule(key, exact, FEW_TICKS))
        program = drawn.lower(jax.random.key(0)).compile().as_text()
    assert program is not None
    assert whole_array_operations(program, MANY // 2, trips) == []


RATES, SHARES, TASKS, STEPS = np.array([1.0, 2.0, 0.5]), np.array([0.4, 0.35, 0.25]), 4, 20_000


@pytest.fixture(scope="module")
def network(draw: Callable) -> Timeline:
    """A closed network of three exponential servers, with leaves `[T, ...]`."""
    hyper = CLIENT_QUEUES(
        num_clients=3,
        num_tasks=TASKS,
        routing=3 * SHARES,
        runtime_law="runtime_exp",
        time_of="update",
        client_table=ClientTable(RATES),
    )
    check(hyper)
    drawn = draw(schedule_client_queues, hyper, num_ticks=STEPS)
    time = float(drawn.time[0, -1])
    assert 1 < client_queues_within(hyper, time) / STEPS < 2.5
    return jax.tree.map(lambda leaf: leaf[0], drawn)


def product_form(tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """List the states of a network, and their stationary weights, not divided by their sum."""
    states = np.array([x for x in itertools.product(range(tasks + 1), repeat=3) if sum(x) == tasks])
    return states, np.prod((SHARES / RATES) ** states, axis=1)


def assert_mean(values: np.ndarray, expected: float) -> None:
    """Check a mean within five standard errors, which come from the means of 40 batches."""
    batches = values[: len(values) // 40 * 40].reshape(40, -1).mean(axis=1)
    error = batches.std(ddof=1) / np.sqrt(40)
    assert error < 0.08 * max(expected, 0.1)
    assert abs(values.mean() - expected) < 5 * error


def test_delays_of_a_closed_network(network: Timeline) -> None:
    """A task of client i waits E[X_i] / p_i server steps, in the network of one task less.

    On average over all tasks that is C - 1.
    """
    states, weight = product_form(TASKS - 1)
    mean = weight @ states / weight.sum() / SHARES
    tau, client = np.arange(STEPS) - network.version[:, 0], network.clients[:, 0]
    for i in range(3):
        assert_mean(tau[client == i].astype(float), mean[i])
    assert_mean(tau.astype(float), TASKS - 1)
    assert mean.max() > 4 * mean.min()


def test_occupancy_and_speed_of_a_closed_network(network: Timeline) -> None:
    """A server step sees the other tasks in the product form of the network of one task less.

    Server steps come at the rate G(C - 1) / G(C), where G is the sum of the weights.
    """
    sent, done, client = network.version[:, 0], np.arange(STEPS), network.clients[:, 0]
    waiting = np.zeros((STEPS + 1, 3), int)
    np.add.at(waiting, (sent, client), 1)
    np.add.at(waiting, (done, client), -1)
    others = waiting.cumsum(axis=0)[10 : STEPS - 200]
    assert (others.sum(axis=1) == TASKS - 1).all()
    states, weight = product_form(TASKS - 1)
    for state, share in zip(states, weight / weight.sum(), strict=True):
        assert_mean((others == state).all(axis=1).astype(float), share)
    rate = weight.sum() / product_form(TASKS)[1].sum()
    assert_mean(np.diff(network.time), 1 / rate)


def test_clients_count_equally_in_queues(network: Timeline) -> None:
    """Client i sends the share p_i of the tasks, with the weight 1 / (n p_i), whatever its rate."""
    client = network.clients[:, 0]
    for i, share in enumerate(SHARES):
        assert abs((client == i).mean() - share) < 5 * np.sqrt(share * (1 - share) / STEPS)
    np.testing.assert_allclose(network.weight[:, 0], 1 / (3 * SHARES[client]), rtol=1e-12)
    assert (np.diff(network.time) >= 0).all()


def test_lost_tasks_are_sent_again(draw: Callable) -> None:
    """The network keeps its tasks; a lost one takes time and makes no server step."""
    hyper = CLIENT_QUEUES(
        num_clients=1,
        num_tasks=2,
        runtime_law="runtime_constant",
        time_of="update",
        drop_rate=0.5,
    )
    schedule = draw(
        schedule_client_queues, hyper.replace(rate_fast=1.0, rate_slow=1.0), num_ticks=400
    )
    gaps = np.diff(schedule.time[0])
    np.testing.assert_array_equal(gaps, np.round(gaps))
    counts = np.bincount(np.minimum(gaps, 6).astype(int), minlength=7)
    expected = 399 * np.append(0.5 ** np.arange(1, 6), 0.5**5)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:], expected).pvalue > 1e-3
