"""Arrivals of clients that never wait, against an event queue in plain Python.

Covers order, ties, losses and breaks.
"""

import heapq
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim import Timeline
from fedjax_sim.core.streams import stream
from fedjax_sim.timelines import (
    Arrivals,
    ClientTable,
    arrivals_within,
    draw_client_speeds,
    presets,
    schedule_arrivals,
)
from fedjax_sim.timelines.delays.laws import update_time
from tests.conftest import slow_but

ARRIVALS = presets.preset(Arrivals, presets.FAVANO)

ARRIVES, IS_LOST, BEGINS = range(3)
"""Kinds of events, in their order at the same time.

A client that only takes a model does so after all arrivals of that time.
"""


class Event(NamedTuple):
    time: Any
    kind: int
    lot: int
    client: int
    attempt: int


class One(NamedTuple):
    """One arrival of the reference simulation.

    Attributes:
      time: Time of the arrival.
      client: Client whose update arrives.
      attempt: Number of the update, counting lost ones.
      before: Arrivals that the update's model contained.
      at_own: Whether that model was taken at the client's own previous arrival.
    """

    time: Any
    client: int
    attempt: int
    before: int
    at_own: bool


def one_by_one(
    num: int,
    taken: Sequence,
    *,
    lots: Sequence | None = None,
    lost: Sequence | None = None,
    phases: Sequence = (),
    on: Any = 1,
    off: Any = 0,
) -> list[One]:
    """Process events one by one, in order of time, until `num` updates have arrived.

    Args:
      num: Number of arrivals.
      taken: Running times, by client and attempt.
      lots: Lots that order simultaneous arrivals, by client and attempt; None for client numbers.
      lost: Whether an update is lost, by client and attempt.
      phases: Place in the cycle of work and break at time 0, by client, as a share of the cycle.
      on: Length of a working window.
      off: Length of a break.
    """
    queue: list[Event] = []
    found: list[One] = []
    before, at_own = [0] * len(taken), [False] * len(taken)

    def place(client: int, time: Any) -> Any:
        return (time + phases[client] * (on + off)) % (on + off) if off else 0

    def work(client: int, attempt: int, time: Any, left: Any) -> None:
        before[client] = len(found)
        rest = taken[client][attempt]
        while off and rest > left:
            rest, time, left = rest - left, time + left + off, on
        kind = IS_LOST if lost is not None and lost[client][attempt] else ARRIVES
        lot = client if lots is None or kind == IS_LOST else lots[client][attempt]
        heapq.heappush(queue, Event(time + rest, kind, lot, client, attempt))

    def go_on(client: int, attempt: int, time: Any, *, is_own: bool) -> None:
        at = place(client, time)
        at_own[client] = is_own and at < on
        if at < on:
            work(client, attempt, time, on - at)
        else:
            heapq.heappush(queue, Event(time + on + off - at, BEGINS, client, client, attempt))

    for client in range(len(taken)):
        go_on(client, 0, 0 * on, is_own=False)
    while len(found) < num:
        time, kind, _, client, attempt = heapq.heappop(queue)
        if kind == BEGINS:
            work(client, attempt, time, on)
        elif kind == IS_LOST:
            go_on(client, attempt + 1, time, is_own=False)
        else:
            found.append(One(time, client, attempt, before[client], at_own[client]))
            go_on(client, attempt + 1, time, is_own=True)
    return found


class Draws(NamedTuple):
    """All random numbers behind the attempts of every client."""

    taken: np.ndarray  # f64[N, A]
    lots: np.ndarray  # u32[N, A]
    loss: np.ndarray  # f64[N, A]  lost if below the share
    phases: np.ndarray  # f64[N]


@partial(jax.jit, static_argnames="num")
def _draws(key: jax.Array, hyper: Arrivals, num: int) -> Draws:
    client, attempt = (x.ravel() for x in jnp.indices((hyper.num_clients, num)))

    def per_attempt(name: str, draw: Callable) -> jax.Array:
        fold = jax.random.fold_in
        return jax.vmap(lambda i, u: draw(fold(fold(stream(key, name), i), u)))(
            client, attempt
        ).reshape(-1, num)

    return Draws(
        update_time(
            stream(key, "runtimes"), client, attempt, draw_client_speeds(key, hyper), hyper
        ).reshape(-1, num),
        per_attempt("ties", lambda update_key: jax.random.bits(update_key, (), "uint32")),
        per_attempt("losses", lambda update_key: jax.random.uniform(update_key, dtype=float)),
        jax.vmap(
            lambda i: jax.random.uniform(jax.random.fold_in(stream(key, "phases"), i), dtype=float)
        )(jnp.arange(hyper.num_clients)),
    )


def draws_of(hyper: Arrivals, seed: int, num: int) -> Draws:
    with jax.enable_x64(True):
        hyper = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
        return jax.tree.map(
            np.asarray, _draws(stream(jax.random.key(seed), "timeline"), hyper, num)
        )


def assert_is_schedule(
    schedule: Timeline, seed: int, expected: list[One], *, rtol: float = 0
) -> None:
    """Check a whole schedule of one lane: arrivals, versions, held models and times.

    Times are exact unless `rtol` is given.
    """
    num_ticks, size = schedule.clients[seed].shape
    assert len(expected) == num_ticks * size
    np.testing.assert_array_equal(schedule.clients[seed].ravel(), [one.client for one in expected])
    np.testing.assert_array_equal(
        schedule.version[seed].ravel(), [one.before // size for one in expected]
    )
    np.testing.assert_array_equal(
        schedule.holds[seed].ravel(), (np.arange(num_ticks * size) + 1) // size
    )
    np.testing.assert_allclose(
        schedule.time[seed], [float(one.time) for one in expected[size - 1 :: size]], rtol=rtol
    )


SIZE, NUM_TICKS, SEEDS = 8, 750, 2
LOSSY = ARRIVALS(
    num_clients=6,
    buffer_size=SIZE,
    local_steps=3,
    time_of="update",
    runtime_law="runtime_shifted_exp",
    restart="free",
    ties="random",
    slow_fraction=1 / 3,
    rate_fast=1.0,
    rate_slow=1 / 8,
)
"""Two of six clients are slow, and a buffer holds more updates than there are clients.

A spread of 0 makes times constant, and a spread of 1 exponential. Losses and breaks are traced
settings and need no new compilation.
"""
RANDOM = {"spread_fast": 1.0, "spread_slow": 1.0}
LOST = {"drop_rate": 0.3}
BREAKS = {"on_time": 2.0, "off_time": 1.5}
KINDS: dict[str, dict[str, Any]] = {
    "equal and constant": {"rate_slow": 1.0},
    "exponential": RANDOM,
    "lost": RANDOM | LOST,
    "breaks": RANDOM | BREAKS,
    "lost and breaks": {"spread_fast": 0.5, "spread_slow": 0.9} | LOST | BREAKS,
    "throttled": {"client_table": ClientTable([0.5, 1.0, 1 / 8, 1.0, 1 / 8, 1.0], 0.5)},
    "close times after long": {
        "spread_fast": 1e-9,
        "spread_slow": 1e-9,
        "rate_fast": 1 / 11_000,
        "rate_slow": 1 / 11_000,
    },
}
ATTEMPTS = 2200


@pytest.fixture(scope="module")
def lossy(draw: Callable) -> Callable[[str], tuple[Arrivals, Timeline, list[Draws]]]:
    """Return settings, schedules of two lanes, and all draws behind them."""
    known: dict[str, tuple[Arrivals, Timeline, list[Draws]]] = {}

    def get(kind: str) -> tuple[Arrivals, Timeline, list[Draws]]:
        if kind not in known:
            hyper = LOSSY.replace(**KINDS[kind])
            drawn = [draws_of(hyper, seed, ATTEMPTS) for seed in range(SEEDS)]
            known[kind] = (
                hyper,
                draw(schedule_arrivals, hyper, num_ticks=NUM_TICKS, seeds=SEEDS),
                drawn,
            )
        return known[kind]

    return get


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", slow_but(set(KINDS) - {"lost", "breaks"}, KINDS))
def test_schedules_are_those_of_a_queue_of_events(lossy: Callable, kind: str) -> None:
    """Schedules equal the event queue on the same draws, in every lane."""
    hyper, schedule, drawn = lossy(kind)
    has_breaks = hyper.delays.off_time > 0
    for seed, (taken, lots, loss, phases) in enumerate(drawn):
        lost = loss < hyper.delays.drop_rate
        expected = one_by_one(
            NUM_TICKS * SIZE,
            taken.tolist(),
            lots=lots.tolist(),
            lost=lost.tolist(),
            phases=phases.tolist(),
            on=hyper.delays.on_time,
            off=hyper.delays.off_time,
        )
        # The reference adds the parts of a running time in successive windows one by one.
        assert_is_schedule(schedule, seed, expected, rtol=1e-12 if has_breaks else 0)
        if hyper.delays.drop_rate > 0:
            assert np.mean([not one.at_own and one.before > 0 for one in expected]) > 0.2
        if kind == "close times after long":
            assert (
                len({np.float32(one.time) for one in expected[:6]})
                < len({one.time for one in expected[:6]})
                == 6
            )


def test_lanes_differ(lossy: Callable) -> None:
    _, schedule, _ = lossy("exponential")
    assert (schedule.clients[0] != schedule.clients[1]).any()


def test_ties_are_uniform_over_clients(lossy: Callable) -> None:
    """All six arrive at every whole time; the first two of them are uniform over pairs."""
    _, schedule, _ = lossy("equal and constant")
    np.testing.assert_array_equal(schedule.time[0], np.ceil(SIZE * np.arange(1, NUM_TICKS + 1) / 6))
    by_time = schedule.clients.reshape(-1, 6)
    assert (np.sort(by_time, axis=1) == np.arange(6)).all()
    counts = np.bincount(by_time[:, 0] * 6 + by_time[:, 1], minlength=36).reshape(6, 6)
    assert stats.chisquare(counts[~np.eye(6, dtype=bool)]).pvalue > 1e-3


@pytest.mark.slow
def test_scaling_all_times_by_a_power_of_two_changes_nothing_else(
    lossy: Callable, draw: Callable
) -> None:
    hyper, schedule, _ = lossy("lost")
    scaled = draw(
        schedule_arrivals,
        hyper.replace(rate_fast=hyper.delays.rate_fast / 4, rate_slow=hyper.delays.rate_slow / 4),
        num_ticks=NUM_TICKS,
        seeds=SEEDS,
    )
    np.testing.assert_array_equal(scaled.time, 4 * schedule.time)
    for name in ("clients", "version", "holds", "weight", "steps"):
        np.testing.assert_array_equal(getattr(scaled, name), getattr(schedule, name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "share"), [("exponential", 1.0), ("lost", 0.7), ("breaks", 2 / 3.5)]
)
def test_how_many_get_through(lossy: Callable, kind: str, share: float) -> None:
    """With exponential times, arrivals are Poisson.

    Their rate is that of the clients, times the share of updates that are not lost, or the
    share of time that clients work. In whole cycles clients work the same time whatever their
    phases, so with breaks the count is Poisson too.
    """
    hyper, schedule, drawn = lossy(kind)
    rate = (4 + 2 / 8) * share
    cycles = 3.5 * np.floor(schedule.time[:, -1].min() / 3.5)
    counts = SIZE * (schedule.time <= cycles).sum(axis=1)
    # Updates in the buffer at the end are not counted; on average these are half a buffer.
    error = np.sqrt(counts.sum())
    assert error < 0.015 * counts.sum()
    assert abs(counts.sum() + SEEDS * (SIZE - 1) / 2 - SEEDS * rate * cycles) < 4 * error
    assert abs(arrivals_within(hyper, cycles) - rate * cycles / SIZE) < 1e-9 * cycles
    if kind == "lost":
        lost = np.stack([each.loss for each in drawn]) < hyper.delays.drop_rate
        assert abs(lost.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / lost.size)


def test_clients_work_in_their_windows_alone(lossy: Callable) -> None:
    """A client fills the buffer only within one of its working windows.

    With exponential times, the place in the window is uniform.
    """
    hyper, schedule, drawn = lossy("breaks")
    places = [
        (schedule.time[seed] + drawn[seed].phases[schedule.clients[seed, :, -1]] * 3.5) % 3.5
        for seed in range(SEEDS)
    ]
    later = np.concatenate(places)
    assert later.max() < hyper.delays.on_time
    assert stats.kstest(later, stats.uniform(0, hyper.delays.on_time).cdf).pvalue > 1e-3
    # Without breaks the place can be anywhere in the cycle.
    _, free, drawn = lossy("exponential")
    assert ((free.time[0] + drawn[0].phases[free.clients[0, :, -1]] * 3.5) % 3.5).max() > 3.4


EQUAL = ARRIVALS(
    num_clients=5,
    buffer_size=5,
    local_steps=3,
    time_of="update",
    runtime_law="runtime_shifted_exp",
    restart="free",
    ties="client",
    slow_fraction=2 / 5,
    slow_clients="last",
    rate_fast=1.0,
    rate_slow=1.0,
)


def test_equal_constant_times_lock_the_phases(draw: Callable) -> None:
    """A buffer for everyone does not make synchronous rounds.

    The client that fills the buffer has the new model; the others are one version behind.
    """
    schedule = draw(schedule_arrivals, EQUAL, num_ticks=40, seeds=8)
    np.testing.assert_array_equal(schedule.time, np.tile(np.arange(1.0, 41), (8, 1)))
    np.testing.assert_array_equal(schedule.clients, np.broadcast_to(np.arange(5), (8, 40, 5)))
    staleness = np.arange(40)[:, None] - schedule.version[0]
    np.testing.assert_array_equal(staleness[0], 0)
    np.testing.assert_array_equal(staleness[1:], np.tile([1, 1, 1, 1, 0], (39, 1)))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("on", "off", "fast", "slow"),
    [(2, 1, 1, 2), (3, 2, 1, 3), (2, 2, 2, 4), (3, 1, 6, 3), (5, 3, 1, 2)],
    ids=lambda number: str(number),
)
def test_times_that_fill_windows_end_with_them(
    draw: Callable, on: int, off: int, fast: int, slow: int
) -> None:
    """Schedules with whole constant times equal exact arithmetic.

    Clients that start in a break fill each window to its end, and then take the model of the
    start of the next window.
    """
    hyper = EQUAL.replace(
        rate_fast=1 / fast, rate_slow=1 / slow, on_time=float(on), off_time=float(off)
    )
    schedule = draw(schedule_arrivals, hyper, num_ticks=40, seeds=8)
    taken = [[Fraction(fast)] * 300] * 3 + [[Fraction(slow)] * 300] * 2
    start_off = 0
    for seed in range(8):
        phases = [Fraction(float(phase)) for phase in draws_of(hyper, seed, 1).phases]
        start_off += sum(phase * (on + off) >= on for phase in phases)
        expected = one_by_one(200, taken, phases=phases, on=Fraction(on), off=Fraction(off))
        assert_is_schedule(schedule, seed, expected, rtol=1e-12)
    assert 5 < start_off < 30
