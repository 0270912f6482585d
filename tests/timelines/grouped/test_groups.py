"""Rounds of groups: moments of the paper's settings, clocks by hand, and membership.

Dimension letters: `L` lanes, `U` rounds, `M` groups.
"""

import itertools
import operator
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.core.settings import ConfigError, check, parse
from fedjax_sim.core.streams import stream
from fedjax_sim.engine.planning.budgets import ticks_in_budget
from fedjax_sim.server import EdgeTraining
from fedjax_sim.timelines import (
    ClientTable,
    Groups,
    complete_groups,
    group_rounds_within,
    list_members,
    loss_shares,
    presets,
    schedule_group_rounds,
)
from fedjax_sim.timelines.grouped import (
    AGGREGATIONS,
    aggregation_weights,
    delay_sizes,
    exchange_times,
    group_work,
    iteration_times,
    sync_times,
)

GROUPS = presets.preset(Groups, presets.GROUPS)

EXACT = {
    "shift_per_client": 0.0,
    "mean_per_client": 0.0,
    "exchange_shift_per_group": 0.0,
    "exchange_mean_per_group": 0.0,
}
"""Settings that make delays independent of the groups' sizes."""
CERTAIN = {**EXACT, "mean": 0.0, "exchange_mean": 0.0}
"""The same without randomness."""
COEFFICIENTS = (
    *("shift_per_client", "shift", "mean_per_client", "mean"),
    *("exchange_shift_per_group", "exchange_shift"),
    *("exchange_mean_per_group", "exchange_mean"),
)
"""Settings of the paper's delay coefficients d, b, e, f, d_g, b_g, e_g and f_g."""

FIG3, FIG6 = (0.09, 0.1, 0.009, 0.01, 1, 3, 0.05, 0.1), (1e-3, 0.5, 1e-3, 0.05, 5, 10, 1e-3, 0.05)
FIG7, FIG8 = (0.01, 0.85, 1e-3, 0.085, 4, 2, 0.4, 0.2), (0.1, 1.4, 0.01, 0.14, 4, 2, 0.5, 1)
FIG9, FIG11 = (0.1, 1.4, 0.01, 0.14, 0.5, 5, 0.05, 0.5), (0.1, 0.7, 0.001, 0.13, 3, 3, 0.01, 0.2)

# The paper's settings: delay coefficients, sizes of the groups, active clients (0 for all), and the
# resulting c_i, 1 / lambda_i, c_g, 1 / lambda_g.
LAWS: dict[str, Any] = {
    "fig 3": (FIG3, (10, 10), 0, (1.0, 1.0), (0.1, 0.1), 5.0, 0.2),
    "fig 6": (FIG6, (500, 500), 0, (1.0, 1.0), (0.55, 0.55), 20.0, 0.052),
    "fig 7a": (FIG7, (15, 15), 0, (1.0, 1.0), (0.1, 0.1), 10.0, 1.0),
    "fig 8": (FIG8, (850,) * 4, 0, (86.4,) * 4, (8.64,) * 4, 18.0, 3.0),
    "fig 8, 16 active": (FIG8, (850,) * 4, 16, (3.0,) * 4, (0.3,) * 4, 18.0, 3.0),
    "fig 9, 2 groups": (FIG9, (32,) * 2, 0, (4.6,) * 2, (0.46,) * 2, 6.0, 0.6),
    "fig 9, 4 groups": (FIG9, (16,) * 4, 0, (3.0,) * 4, (0.30,) * 4, 7.0, 0.7),
    "fig 9, 8 groups": (FIG9, (8,) * 8, 0, (2.2,) * 8, (0.22,) * 8, 9.0, 0.9),
    "fig 11, equal": (FIG11, (20, 20), 0, (2.7, 2.7), (0.15, 0.15), 9.0, 0.22),
    "fig 11, unequal": (FIG11, (30, 10), 0, (3.7, 1.7), (0.16, 0.14), 9.0, 0.22),
}
LAWS["fig 7b"] = (*LAWS["fig 7a"][:5], 30.0, 1.0)

# Law and S, with E[t_i], E[max_i Sigma_i], E[D], and E[U] for T = 1000. The last three come from a
# separate simulation.
MOMENTS: dict[tuple[str, float], Any] = {
    ("fig 3", 0): (1, 1.150, 6.35, 158.0),
    ("fig 3", 5): (4.990, 5.608, 10.81, 93.0),
    ("fig 6", 0): (1, 1.825, 21.88, 46.1),
    ("fig 6", 5): (3.787, 6.215, 26.27, 38.7),
    ("fig 7a", 0): (1, 1.150, 12.15, 82.8),
    ("fig 7a", 5): (4.990, 5.608, 16.61, 60.7),
    ("fig 7a", 20): (18.706, 20.761, 31.76, 32.0),
    ("fig 7b", 0): (1, 1.150, 32.15, 31.7),
    ("fig 7b", 5): (4.990, 5.608, 36.61, 28.0),
    ("fig 7b", 20): (18.706, 20.761, 51.76, 20.0),
    ("fig 8", 0): (1, 104.40, 125.40, 8.5),
    ("fig 8", 12): (1, 104.40, 125.40, 8.5),
    ("fig 8", 24): (1, 104.40, 125.40, 8.5),
    ("fig 8, 16 active", 0): (1, 3.625, 24.63, 41.1),
    ("fig 8, 16 active", 12): (3.997, 13.83, 34.83, 29.2),
    ("fig 8, 16 active", 24): (7.870, 26.79, 47.78, 21.4),
    ("fig 9, 2 groups", 6): (1.952, 10.32, 16.92, 59.6),
    ("fig 9, 4 groups", 6): (2.000, 7.065, 14.76, 68.2),
    ("fig 9, 8 groups", 6): (2.994, 7.845, 17.74, 56.9),
    ("fig 11, equal", 12): (4.958, 14.36, 23.58, 43.0),
    ("fig 11, unequal", 12): ((3.919, 6.988), 15.18, 24.40, 41.4),
}
# Rounds for one round of S = 0: E[D at S = 0] / E[D at S], from the same simulation, to three
# digits.
RELATIVE_ROUNDS: dict[tuple[str, float], float] = {
    ("fig 3", 5): 0.588,
    ("fig 6", 5): 0.833,
    ("fig 7a", 5): 0.732,
    ("fig 7a", 20): 0.383,
    ("fig 7b", 5): 0.878,
    ("fig 7b", 20): 0.621,
    ("fig 8", 12): 1,
    ("fig 8", 24): 1,
    ("fig 8, 16 active", 12): 0.707,
    ("fig 8, 16 active", 24): 0.516,
    ("fig 9, 2 groups", 6): 0.703,
    ("fig 9, 4 groups", 6): 0.767,
    ("fig 9, 8 groups", 6): 0.716,
}
LANES, ROUNDS = 60, 190


@pytest.mark.parametrize("name", [name for name in LAWS if name != "fig 7b"])
def test_delays_follow_from_sizes(name: str) -> None:
    """The paper's linear model, with coefficients in the order in which the paper lists them."""
    vector, sizes, active, shift, mean, exchange_shift, exchange_mean = LAWS[name]
    groups = GROUPS(
        num_clients=sum(sizes),
        num_groups=len(sizes),
        group_sizes=sizes,
        active_per_group=active,
        **dict(zip(COEFFICIENTS, vector, strict=True)),
    )
    check(groups)
    with jax.enable_x64(True):
        np.testing.assert_allclose(groups.iteration_law(), (shift, mean), rtol=1e-12)
        np.testing.assert_allclose(
            groups.exchange_law(), (exchange_shift, exchange_mean), rtol=1e-12
        )


def with_law(name: str, sync_time: float) -> Groups:
    """Make settings of a law in the table that depend statically only on the number of groups.

    One program then draws all laws with that number.
    """
    _, sizes, _, shift, mean, exchange_shift, exchange_mean = LAWS[name]
    given = {
        "shift": shift,
        "mean": mean,
        "exchange_shift": exchange_shift,
        "exchange_mean": exchange_mean,
    }
    return GROUPS(
        num_clients=8, num_groups=len(sizes), sync_time=float(sync_time), **(EXACT | given)
    )


@partial(jax.jit, static_argnums=0)
def _works(num_rounds: int, keys: jax.Array, groups: Groups) -> Any:
    """Draw work `[L, ...]`, exchanges `[L, U]` and the clock `[L, U]` of many lanes."""

    def lane(key: jax.Array, groups: Groups) -> Any:
        clock = schedule_group_rounds(key, groups, num_rounds * groups.clock.ticks_per_round).time
        exchange = exchange_times(key, groups, num_rounds)[:, 0]
        return group_work(key, groups, num_rounds), exchange, clock

    return jax.vmap(lane)(keys, groups)


def works(settings: list[Groups], *, seeds: int, num_rounds: int) -> list[Any]:
    """Draw rounds for settings of one structure, with the same seeds for each.

    Leaves of each result are `[seeds, U, ...]`.
    """
    with jax.enable_x64(True):
        numbers = np.tile(np.arange(seeds, dtype="int32"), len(settings))
        keys = jax.vmap(lambda seed: stream(jax.random.key(seed), "timeline"))(numbers)
        stacked = jax.tree.map(
            lambda *leaves: np.repeat(np.asarray(leaves, float), seeds), *settings
        )
        drawn = jax.tree.map(np.asarray, _works(num_rounds, keys, stacked))
    parts = [slice(i * seeds, (i + 1) * seeds) for i in range(len(settings))]
    return [jax.tree.map(operator.itemgetter(part), drawn) for part in parts]


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, float], Any]:
    """Draw every row of `MOMENTS`, and the baselines S = 0 of `RELATIVE_ROUNDS`."""
    found = {}
    for num in (2, 4, 8):
        rows = [
            row
            for row in {**MOMENTS, **{(name, 0.0): None for name, _ in RELATIVE_ROUNDS}}
            if len(LAWS[row[0]][1]) == num
        ]
        found |= dict(
            zip(
                rows,
                works([with_law(*row) for row in rows], seeds=LANES, num_rounds=ROUNDS),
                strict=True,
            )
        )
    return found


def assert_mean(values: np.ndarray, expected: float, rounding: float) -> None:
    """Check a mean of independent values within 5 standard errors plus the given rounding.

    The standard error must be at most 1 % of the expected value.
    """
    error = values.std(ddof=1) / np.sqrt(values.size)
    assert error < 0.01 * expected
    assert abs(values.mean() - expected) < 5 * error + rounding


@pytest.mark.slow
@pytest.mark.parametrize("row", MOMENTS, ids=lambda row: f"{row[0]}, S = {row[1]}")
def test_moments_of_the_paper_settings(table: dict, row: tuple[str, float]) -> None:
    """Moments of iterations and lengths of rounds, which are independent between rounds.

    The number of rounds is one value per lane.
    """
    steps, longest, length, num_rounds = MOMENTS[row]
    work, exchange, clock = table[row]
    total = work.steps[:, :, -1]
    for group, expected in enumerate(np.broadcast_to(steps, total.shape[-1])):
        assert_mean(total[..., group].ravel(), expected, 0.0005)
    assert_mean(work.busy.max(axis=-1).ravel(), longest, 0.01)
    assert_mean((work.busy.max(axis=-1) + exchange).ravel(), length, 0.01)
    counts = [ticks_in_budget(time, 1000.0, overshoot=True) for time in clock]
    assert_mean(np.asarray(counts, float), num_rounds, 0.05 + 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("row", RELATIVE_ROUNDS, ids=lambda row: f"{row[0]}, S = {row[1]}")
def test_rounds_for_one_of_the_baseline(table: dict, row: tuple[str, float]) -> None:
    """A ratio of mean lengths over pairs of independent rounds with the same delays.

    Where S is shorter than any iteration, the ratio is exactly 1. Beyond 5 standard errors the
    expected ratio may be off by its rounding, 0.0005, and by the errors of its mean lengths,
    0.005 each.
    """
    length, other = (
        table[key][0].busy.max(axis=-1).ravel() + table[key][1].ravel()
        for key in (row, (row[0], 0))
    )
    ratio = other.mean() / length.mean()
    if RELATIVE_ROUNDS[row] == 1:
        assert ratio == 1
        return
    error = (other - ratio * length).std(ddof=1) / np.sqrt(length.size) / length.mean()
    rounding = 0.0005 + 0.005 * np.hypot(1, ratio) / length.mean()
    assert 5 * error + rounding < 0.01 * ratio
    assert abs(ratio - RELATIVE_ROUNDS[row]) < 5 * error + rounding


@pytest.mark.slow
def test_there_is_an_iteration_in_every_round_and_never_more_than_shifts_allow(table: dict) -> None:
    for (name, sync_time), (work, _, _) in table.items():
        most = np.maximum(1, np.ceil(sync_time / np.asarray(LAWS[name][3]) - 1e-9))
        assert work.steps.min() >= 1, name
        assert (work.steps <= most).all(), name


def test_an_iterations_law(table: dict) -> None:
    """The slowest of 4 groups with 86.4 + Exp(mean 8.64) takes 86.4 + 8.64 H_4 on average.

    Sums of iterations obey Wald's identity. Both within 5 standard errors.
    """
    assert_mean(
        table["fig 8", 0][0].busy.max(axis=-1).ravel(),
        86.4 + 8.64 * (1 + 1 / 2 + 1 / 3 + 1 / 4),
        0.0,
    )
    work = table["fig 6", 5][0]
    assert_mean((work.busy / (1.0 + 0.55) - work.steps[:, :, -1] + 1).ravel(), 1.0, 0.0)


SYNC_TIMES = (0.0, 0.5, 2.0, 5.0, 5.5, 12.0, 24.0)


def test_everything_grows_with_the_sync_time_on_every_path() -> None:
    """Iterations and their time grow with S, round by round.

    The number of rounds in a budget falls with S and with c_g, and grows with T.
    """
    base = with_law("fig 6", 0.0)
    drawn = works([base.replace(sync_time=s) for s in SYNC_TIMES], seeds=20, num_rounds=60)
    for (less, _, early), (more, _, late) in itertools.pairwise(drawn):
        assert (np.diff([less.steps, more.steps], axis=0) >= 0).all()
        assert (np.diff([less.busy, more.busy], axis=0) >= 0).all()
        assert (early <= late).all()
    assert (drawn[-1][0].steps > drawn[0][0].steps).all()
    counts = np.array(
        [[ticks_in_budget(time, 600.0, overshoot=True) for time in clock] for _, _, clock in drawn]
    )
    assert (np.diff(counts, axis=0) <= 0).all()
    assert (counts[-1] < counts[0]).all()
    dear = works(
        [base.replace(sync_time=s, exchange_shift=30.0) for s in SYNC_TIMES],
        seeds=20,
        num_rounds=60,
    )
    by_cost = np.array(
        [[ticks_in_budget(time, 600.0, overshoot=True) for time in clock] for _, _, clock in dear]
    )
    assert (by_cost < counts).all()
    longer = np.array(
        [[ticks_in_budget(time, 900.0, overshoot=True) for time in clock] for _, _, clock in drawn]
    )
    assert (longer > counts).all()


@pytest.fixture(scope="module")
def delays() -> np.ndarray:
    """Draw all delays that Fig. 6's groups might need in 20 rounds of one seed: `f64[U, 30, M]`."""
    with jax.enable_x64(True):
        key = stream(jax.random.key(0), "timeline")
        one = partial(iteration_times, key, with_law("fig 6", 0.0))
        return np.asarray(
            jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(jnp.arange(20), jnp.arange(30))
        )


def test_iterations_are_counted_until_the_sync_time_has_passed(delays: np.ndarray) -> None:
    """A group does one iteration more than the number of iterations that end before S.

    Its time exceeds S by less than the last iteration.
    """
    drawn = works([with_law("fig 6", s) for s in SYNC_TIMES], seeds=20, num_rounds=60)
    passed = np.cumsum(delays, axis=1)
    for sync_time, (work, _, _) in zip(SYNC_TIMES, drawn, strict=True):
        expected = 1 + (passed < sync_time).sum(axis=1)
        np.testing.assert_array_equal(work.steps[0, :20, -1], expected)
        last = np.take_along_axis(delays, expected[:, None] - 1, axis=1)[:, 0]
        over = work.busy[0, :20] - sync_time
        assert (over >= 0).all()
        assert (over < last + 1e-12).all()
        np.testing.assert_allclose(
            work.busy[0, :20],
            np.take_along_axis(passed, expected[:, None] - 1, axis=1)[:, 0],
            rtol=1e-12,
        )


def test_rounds_cut_into_ticks(delays: np.ndarray, draw: Callable) -> None:
    """A tick has the iterations that end within its part of the sync time.

    The last tick has the remaining iterations and the exchange.
    """
    whole = draw(schedule_group_rounds, with_law("fig 6", 5.0), num_ticks=20)
    cut = draw(
        schedule_group_rounds, with_law("fig 6", 5.0).replace(ticks_per_round=4), num_ticks=79
    )
    done = np.stack(
        [(np.cumsum(delays, axis=1) <= mark).sum(axis=1) for mark in (0.0, 1.25, 2.5, 3.75)], axis=1
    )
    steps = np.diff(np.concatenate([done, whole.steps[0][:, None]], axis=1), axis=1).reshape(80, 2)
    np.testing.assert_array_equal(cut.steps[0], steps[:79])
    ends = np.concatenate([[0.0], whole.time[0]])
    time = np.concatenate(
        [ends[:-1, None] + np.array([1.25, 2.5, 3.75]), ends[1:, None]], axis=1
    ).ravel()
    np.testing.assert_allclose(cut.time[0], time[:79], rtol=1e-12)
    is_last = np.arange(79) % 4 == 3
    np.testing.assert_array_equal(cut.weight[0][is_last], whole.weight[0][:19])
    assert (cut.weight[0][~is_last] == 0).all()
    np.testing.assert_array_equal(cut.version[0, :, 0], np.arange(79) // 4 * 4)
    np.testing.assert_array_equal(cut.holds[0, :, 1], np.arange(1, 80) // 4 * 4)


def test_the_clock_by_hand(draw: Callable) -> None:
    """A round takes 9: three iterations of 2, which pass S = 5, and an exchange of 3.

    The first group does five iterations of 1. The last of them ends exactly at S.
    """
    hyper = GROUPS(num_clients=4, **(CERTAIN | {"shift": (1.0, 2.0), "exchange_shift": 3.0}))
    schedule = draw(schedule_group_rounds, hyper, num_ticks=4)
    np.testing.assert_array_equal(schedule.steps[0], [[5, 3]] * 4)
    np.testing.assert_array_equal(schedule.time[0], [9.0, 18.0, 27.0, 36.0])
    assert ticks_in_budget(schedule.time[0], 20.0, overshoot=True) == 3
    assert ticks_in_budget(schedule.time[0], 18.0, overshoot=True) == 2
    np.testing.assert_array_equal(schedule.clients[0], [[0, 1]] * 4)
    np.testing.assert_array_equal(schedule.version[0], [[t, t] for t in range(4)])
    np.testing.assert_array_equal(schedule.holds[0], [[t + 1, t + 1] for t in range(4)])
    np.testing.assert_allclose(schedule.weight[0], [[1 / 10, 1 / 6]] * 4, rtol=1e-15)


def test_exchanges_of_groups_and_least_iterations(draw: Callable) -> None:
    """A group's exchange begins when it is done, and a round ends with the last exchange.

    With S = 5 these are at 5 + 3 and 6 + 1. With S = 0 and four iterations they are at 4 + 3 and
    8 + 1: HierFAVG's rounds, with a straggler.
    """
    shifts = {"shift": (1.0, 2.0), "exchange_shift": (3.0, 1.0)}
    hyper = GROUPS(num_clients=4, exchanges="group", **(CERTAIN | shifts))
    check(hyper)
    schedule = draw(schedule_group_rounds, hyper, num_ticks=2)
    np.testing.assert_array_equal(schedule.time[0], [8.0, 16.0])
    fixed = hyper.replace(sync_time=0.0, min_iterations=4)
    schedule = draw(schedule_group_rounds, fixed, num_ticks=2)
    np.testing.assert_array_equal(schedule.steps[0], [[4, 4]] * 2)
    np.testing.assert_array_equal(schedule.time[0], [9.0, 18.0])
    assert group_rounds_within(fixed, 900.0) == pytest.approx(900 / 11)


def test_every_group_draws_its_exchange() -> None:
    """From its own law: independent exponential parts, means within 5 standard errors."""
    laws = {"exchange_shift": (1.0, 2.0), "exchange_mean": (0.5, 3.0)}
    hyper = GROUPS(exchanges="group", **(EXACT | laws))
    with jax.enable_x64(True):
        times = np.asarray(exchange_times(jax.random.key(0), hyper, 4000))
    parts = (times - laws["exchange_shift"]) / laws["exchange_mean"]
    assert (parts > 0).all()
    assert np.abs(parts.mean(axis=0) - 1).max() < 5 / np.sqrt(4000)
    assert abs(np.corrcoef(parts.T)[0, 1]) < 5 / np.sqrt(4000)


def test_the_sync_time_grows(draw: Callable) -> None:
    """The sync time grows by one per round from 1 to 5 and stays there; iterations take 1 and 2."""
    hyper = GROUPS(
        num_clients=4, sync_growth=1.0, **(CERTAIN | {"shift": (1.0, 2.0), "exchange_shift": 3.0})
    )
    with jax.enable_x64(True):
        np.testing.assert_array_equal(sync_times(hyper, 7), [1, 2, 3, 4, 5, 5, 5])
        np.testing.assert_array_equal(sync_times(hyper.replace(sync_growth=0.0), 3), [5, 5, 5])
    schedule = draw(schedule_group_rounds, hyper, num_ticks=7)
    np.testing.assert_array_equal(
        schedule.steps[0], [[1, 1], [2, 1], [3, 2], [4, 2], [5, 3], [5, 3], [5, 3]]
    )
    np.testing.assert_array_equal(np.diff(schedule.time[0]), np.array([2, 4, 4, 6, 6, 6]) + 3.0)


def test_groups_isolated_until_the_end(draw: Callable) -> None:
    """S = T is a single round, whose ticks show what every group has done so far."""
    hyper = GROUPS(
        num_clients=4,
        sync_time=100.0,
        ticks_per_round=4,
        **(CERTAIN | {"shift": (1.0, 7.0), "exchange_shift": 3.0}),
    )
    schedule = draw(schedule_group_rounds, hyper, num_ticks=4)
    np.testing.assert_array_equal(
        np.cumsum(schedule.steps[0], axis=0), [[25, 3], [50, 7], [75, 10], [100, 15]]
    )
    np.testing.assert_array_equal(schedule.time[0], [25, 50, 75, 108])
    assert ticks_in_budget(schedule.time[0], 100.0, overshoot=True) is None


# Two and three clients behind one server each, and a slow client that does not take part.
ASSOCIATION = (1, 0, 1, -1, 0, 1)


@pytest.mark.parametrize(("shift", "sync_time"), [(0.1, 0.3), (0.1, 1.0), (0.7, 4.2), (0.01, 5.0)])
def test_iterations_that_exactly_fill_the_sync_time(
    draw: Callable, shift: float, sync_time: float
) -> None:
    """t_i = S / c of Eq. 7 without random parts; ten times 0.1 is less than 1 in floats."""
    none = dict.fromkeys(("shift_per_client", "mean", "mean_per_client"), 0.0)
    num = round(sync_time / shift)
    hyper = Groups(num_clients=2, sync_time=sync_time, shift=shift, ticks_per_round=num, **none)
    schedule = draw(schedule_group_rounds, hyper, num_ticks=2 * num)
    assert (schedule.steps == 1).all()
    np.testing.assert_allclose(schedule.time[0], shift * np.arange(1, 2 * num + 1), rtol=1e-9)


OF_CLIENTS = {
    "num_clients": 6,
    "association": ASSOCIATION,
    "delays_of": "client",
    "exchange_shift": 3.0,
    "exchange_mean": 0.0,
}
OF_CLIENTS |= {"exchange_shift_per_group": 0.0, "exchange_mean_per_group": 0.0}


def test_delays_of_clients_wait_for_the_slowest_of_the_group(draw: Callable) -> None:
    """Constant times of 1, 2, 3, 100, 1/2 and 1 by client make times of 2 and 3 by group."""
    table = ClientTable(1 / np.array([1.0, 2.0, 3.0, 100.0, 0.5, 1.0]))
    hyper = GROUPS(client_table=table, runtime_law="runtime_constant", sync_time=6.5, **OF_CLIENTS)
    check(hyper)
    schedule = draw(schedule_group_rounds, hyper, num_ticks=3)
    np.testing.assert_array_equal(schedule.steps[0], [[4, 3]] * 3)
    np.testing.assert_allclose(schedule.time[0], [12, 24, 36], rtol=1e-12)
    np.testing.assert_allclose(schedule.weight[0], [[2 / 5 / 4, 3 / 5 / 3]] * 3, rtol=1e-12)


def test_the_longest_of_exponential_delays(draw: Callable) -> None:
    """The longest of n exponential delays is H_n means on average, within 5 standard errors.

    Here n is 5 for both groups together, and 2 for the first group alone.
    """
    hyper = GROUPS(
        rate_fast=0.5, slow_fraction=0.0, runtime_law="runtime_exp", sync_time=0.0, **OF_CLIENTS
    )
    length = (
        np.diff(
            draw(schedule_group_rounds, hyper, num_ticks=500, seeds=40).time, axis=1, prepend=0.0
        )
        - 3.0
    )
    assert_mean(length.ravel(), 2 * (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5), 0.0)
    apart = hyper.replace(num_groups=1, association=(0, 0, -1, -1, -1, -1))
    length = (
        np.diff(
            draw(schedule_group_rounds, apart, num_ticks=500, seeds=40).time, axis=1, prepend=0.0
        )
        - 3.0
    )
    assert_mean(length.ravel(), 2 * (1 + 1 / 2), 0.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_clients": 7, "num_groups": 3}, [[0, 1, 2], [3, 4], [5, 6]]),
        ({"num_clients": 6, "num_groups": 2, "group_sizes": (1, 5)}, [[0], [1, 2, 3, 4, 5]]),
        ({"num_clients": 6, "num_groups": 2, "association": ASSOCIATION}, [[1, 4], [0, 2, 5]]),
    ],
    ids=["equal", "sizes", "association"],
)
def test_who_is_in_which_group(settings: dict, expected: list[list[int]]) -> None:
    """Padding repeats a member of the same group, so that other clients' values are never read."""
    groups = GROUPS(**settings)
    check(groups)
    found = list_members(groups)
    assert [
        row[mask].tolist() for row, mask in zip(found.clients, found.is_there, strict=True)
    ] == expected
    assert [set(row.tolist()) for row in found.clients] == [set(row) for row in expected]
    sizes = np.array([len(row) for row in expected])
    np.testing.assert_array_equal(found.size, sizes)
    np.testing.assert_allclose(groups.shares(), sizes / sizes.sum(), rtol=1e-15)
    np.testing.assert_allclose(
        groups.replace(group_weights="equal").shares(),
        np.full(len(sizes), 1 / len(sizes)),
        rtol=1e-15,
    )
    given = tuple(float(i) for i in range(len(sizes)))
    np.testing.assert_allclose(
        groups.replace(group_weights=given).shares(),
        np.asarray(given) / sum(given),
        rtol=1e-15,
    )
    np.testing.assert_array_equal(
        delay_sizes(groups.replace(active_per_group=2)), np.minimum(sizes, 2)
    )


def test_what_follows_from_the_clients_examples() -> None:
    """Weights of groups need a problem's numbers of examples."""
    problem = SimpleNamespace(counts=np.array([6, 1, 4, 3, 25]))
    groups = EdgeTraining(num_clients=5, group_sizes=(2, 3), group_weights="examples", batch_size=5)
    known = complete_groups(groups, problem)
    np.testing.assert_allclose(known.shares(), [7 / 39, 32 / 39], rtol=1e-6)
    np.testing.assert_allclose(complete_groups(groups, None).shares(), [0.4, 0.6], rtol=1e-6)
    assert complete_groups(groups.replace(group_weights="equal"), problem).examples is None


def test_weights_of_the_aggregations() -> None:
    """Weights by hand.

    With equal iterations the rules differ only by a common factor, or not at all.
    """
    shares, steps = jnp.array([0.25, 0.75]), jnp.array([[1, 3], [4, 4]])
    weights = {rule: np.asarray(aggregation_weights(shares, steps, rule)) for rule in AGGREGATIONS}
    np.testing.assert_allclose(
        weights["divide_by_steps"], [[0.25, 0.25], [0.0625, 0.1875]], rtol=1e-6
    )
    np.testing.assert_allclose(weights["average"], [[0.25, 0.75], [0.25, 0.75]], rtol=1e-6)
    np.testing.assert_allclose(weights["fednova"], [[0.625, 0.625], [0.25, 0.75]], rtol=1e-6)


def test_first_ticks_do_not_depend_on_how_many_are_asked_for(draw: Callable) -> None:
    hyper = with_law("fig 6", 5.0).replace(ticks_per_round=4)
    short, long = (draw(schedule_group_rounds, hyper, num_ticks=num, seeds=3) for num in (41, 200))
    for few, many in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        np.testing.assert_array_equal(few, many[:, :41])
    assert short.time.dtype == np.float64


def test_ticks_in_a_time_are_about_right(table: dict) -> None:
    for row in MOMENTS:
        assert (
            0.9 * MOMENTS[row][3]
            < group_rounds_within(with_law(*row), 1000.0)
            < 1.4 * MOMENTS[row][3]
        ), row


def test_a_table_that_loses_models_has_an_effect_with_delays_of_groups() -> None:
    """Also without speeds of clients, which such delays do not read."""
    shares = np.linspace(0.1, 0.5, 30)
    hyper = GROUPS(client_table=ClientTable(drop_rate=shares))
    assert hyper.clock.delays_of == "group"
    check(hyper)
    np.testing.assert_allclose(loss_shares(hyper), shares)
    with pytest.raises(ConfigError, match=r"^delays\.client_table is .*left at None with"):
        check(GROUPS(client_table=ClientTable(energy_step=shares)))


def test_settings_as_text() -> None:
    assert parse(Groups, "shift", "1+7.5") == (1.0, 7.5)
    assert parse(Groups, "shift", "1e+1") == 10.0
    assert parse(Groups, "group_sizes", "5+15") == (5, 15)
    assert parse(Groups, "association", "0+-1+1") == (0, -1, 1)
    assert parse(Groups, "group_weights", "equal") == "equal"
    assert parse(Groups, "group_weights", "1+2") == (1.0, 2.0)
    for name, text in (("shift", "1+x"), ("group_sizes", "5+1.5"), ("group_weights", "heavy")):
        with pytest.raises(ConfigError, match=f"{name} is '{re.escape(text)}'"):
            parse(Groups, name, text)
