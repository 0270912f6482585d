"""The closed network of Generalized AsyncSGD, against an event loop, the clock and a grid."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, timelines
from fedjax_sim.theory import gen_async

RATE = np.array([1.0, 2.0, 0.3, 4.0])
SHARE = np.array([0.2, 0.3, 0.1, 0.4])
TASKS = 5
TABLE = timelines.ClientTable(rate=RATE)
LEARNING = gen_async.Learning(target=0.1)


@pytest.fixture(autouse=True)
def doubles():
    """Compute in float64."""
    with jax.enable_x64(True):
        yield


def event_loop(steps: int, seed: int) -> tuple[np.ndarray, float, np.ndarray]:
    """Work on tasks one by one; return delays by client, throughput and mean tasks by client."""
    rng = np.random.default_rng(seed)
    queues: list[list[int]] = [[] for _ in RATE]
    for client in rng.choice(4, TASKS, p=SHARE):
        queues[client].append(0)
    now, begin, delays, tasks = 0.0, 0.0, [[] for _ in RATE], np.zeros(4)
    for step in range(steps):
        if step == steps // 10:
            begin, delays, tasks = now, [[] for _ in RATE], np.zeros(4)
        lengths = np.array([len(queue) for queue in queues])
        speeds = RATE * (lengths > 0)
        took = rng.exponential() / speeds.sum()
        now += took
        tasks += took * lengths
        client = rng.choice(4, p=speeds / speeds.sum())
        delays[client].append(step - queues[client].pop(0))
        queues[rng.choice(4, p=SHARE)].append(step + 1)
    counted = sum(map(len, delays))
    return np.array([np.mean(x) for x in delays]), counted / (now - begin), tasks / (now - begin)


def test_sums_are_those_over_all_states() -> None:
    """Buzen's recursion has the sums of the product form, state by state."""
    load = SHARE / RATE
    for total, found in enumerate(gen_async.log_constants(jnp.log(load), TASKS)):
        states = [x for x in itertools.product(range(total + 1), repeat=4) if sum(x) == total]
        assert found == pytest.approx(math.log(sum(np.prod(load ** np.array(x)) for x in states)))


def test_means_are_those_of_an_event_loop() -> None:
    """Delays, throughput and queues are those of eight loops within four standard errors."""
    found = gen_async.predict(TABLE, TASKS, SHARE)
    loops = [event_loop(8000, seed) for seed in range(8)]
    pairs = (found.delay, found.throughput, found.queue)
    for measured, exact in zip(zip(*loops, strict=True), pairs, strict=True):
        error = np.std(measured, axis=0, ddof=1) / len(loops) ** 0.5
        assert np.all(np.abs(np.mean(measured, axis=0) - exact) < 4 * error)
        assert np.all(error < 0.05 * np.asarray(exact))


@pytest.mark.slow
def test_means_are_those_of_the_clock() -> None:
    """The package's exact clock has the same delays and throughput within four standard errors."""
    hyper = timelines.ClientQueues(
        num_clients=4,
        num_tasks=TASKS,
        routing=SHARE,
        delays=timelines.ClientDelays(client_table=TABLE),
    )
    found, delays, throughput = gen_async.predict(TABLE, TASKS, SHARE), [], []
    for seed in range(8):
        timeline = timelines.schedule_client_queues(jax.random.key(seed), hyper, 8000)
        time = np.asarray(timeline.time)
        client, version = (np.asarray(x)[800:, 0] for x in (timeline.clients, timeline.version))
        late = np.arange(800, 8000) - version
        delays.append([late[client == i].mean() for i in range(4)])
        throughput.append(7200 / (time[-1] - time[799]))
    for measured, exact in ((delays, found.delay), (throughput, found.throughput)):
        error = np.std(measured, axis=0, ddof=1) / 8**0.5
        assert np.all(np.abs(np.mean(measured, axis=0) - exact) < 4 * error)


def test_laws_of_the_network() -> None:
    """Delays average to C - 1, queues add up to C, and clients' work to the throughput."""
    found = gen_async.predict(TABLE, TASKS, 7 * SHARE)
    assert SHARE @ found.delay == pytest.approx(TASKS - 1)
    assert found.queue.sum() == pytest.approx(TASKS)
    assert np.asarray(found.busy) * RATE == pytest.approx(SHARE * found.throughput)
    many = gen_async.predict(TABLE, 2000, SHARE)  # The slowest relative to its share decides.
    assert many.throughput == pytest.approx(3.0) and np.isfinite(many.delay).all()


def test_energy_and_gradients() -> None:
    """Energy counts steps and bytes; a gradient is that of differences."""
    energies = {"energy_step": [1, 2, 3, 4], "energy_byte": [0, 0, 0, 1]}
    table = timelines.ClientTable(rate=RATE, **energies, time_of="update")
    found = gen_async.predict(table, TASKS, SHARE, local_steps=2, num_bytes=10)
    assert found.energy == pytest.approx(SHARE @ np.array([2.0, 4.0, 6.0, 18.0]))

    def late(share: jax.Array) -> jax.Array:
        return gen_async.predict(TABLE, TASKS, share).delay[2]

    way = np.array([0.5, -0.5, 1.0, -1.0])
    difference = (late(SHARE + 1e-5 * way) - late(SHARE - 1e-5 * way)) / 2e-5
    slope = float(way @ jax.grad(late)(jnp.asarray(SHARE)))
    assert slope == pytest.approx(float(difference), rel=1e-6)


@pytest.mark.slow
def test_optimum_is_that_of_a_grid() -> None:
    """No point of a grid of routings and concurrencies is better, and the best is close."""
    rate = np.array([1.0, 4.0])
    table = timelines.ClientTable(rate=rate, energy_step=[1.0, 2.0])
    shares = jnp.linspace(0.02, 0.98, 97)

    def cost(share: jax.Array, tasks: int) -> jax.Array:
        routing = jnp.stack([1 - share, share])
        found = gen_async.predict(table, tasks, routing)
        return gen_async.learning_steps(routing, found.delay, LEARNING) / found.throughput

    grid = {c: np.asarray(jax.jit(jax.vmap(lambda x, c=c: cost(x, c)))(shares)) for c in (1, 3, 6)}
    best = gen_async.optimise(table, [1, 3, 6], LEARNING)
    tasks = min(grid, key=lambda c: grid[c].min())
    assert best.concurrency == tasks
    assert 0.999 * grid[tasks].min() < best.time <= grid[tasks].min()
    assert abs(best.routing[1] - shares[grid[tasks].argmin()]) <= 0.01
    for each in grid:
        assert best.of_concurrency[each][0] <= grid[each].min()
    frugal = gen_async.optimise(table, [1, 3, 6], LEARNING, least="energy")
    assert frugal.energy < best.energy and frugal.time > best.time


def test_bad_input() -> None:
    """Tables that are no exponential servers, and routings of another length, are refused."""
    spread = timelines.ClientTable(rate=[1.0, 2.0], spread=0.5)
    with pytest.raises(ConfigError, match="table is 'with spread above 0', but must be without it"):
        gen_async.predict(spread, 2, [1.0, 1.0])
    with pytest.raises(ConfigError, match="table is 'without rate', but must be with the clients"):
        gen_async.predict(timelines.ClientTable(names=["a"]), 2, [1.0])
    # A task of several steps takes a sum of exponential times, which is not exponential.
    for time_of in ("step", None):
        steps = timelines.ClientTable(rate=[1.0, 2.0], energy_step=[1.0, 2.0], time_of=time_of)
        gen_async.predict(steps, 2, [1.0, 1.0])
        words = f'table.time_of is {time_of!r}, but must be "update" if local_steps is above 1'
        with pytest.raises(ConfigError, match=words):
            gen_async.predict(steps, 2, [1.0, 1.0], local_steps=5)
        with pytest.raises(ConfigError, match=words):
            gen_async.optimise(steps, [1], LEARNING, local_steps=5)
    with pytest.raises(ConfigError, match="routing is "):
        gen_async.predict(TABLE, 2, [1.0, 1.0])
    for routing in ([0.5, 0.5, 0.0, 0.0], [2.0, 1.0, 1.0, -1.0]):
        with pytest.raises(ConfigError, match=r"routing is .* above 0"):
            gen_async.predict(TABLE, 2, routing)
        with pytest.raises(ConfigError, match=r"routing is .* above 0"):
            gen_async.learning_steps(routing, np.ones(4), LEARNING)
    with pytest.raises(
        ConfigError, match="least is 'energy', but must be time for clients without"
    ):
        gen_async.optimise(TABLE, [1], LEARNING, least="energy")
    with pytest.raises(ConfigError, match=r"concurrencies is \[\], but must be at least one"):
        gen_async.optimise(TABLE, [], LEARNING)
