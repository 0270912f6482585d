"""Rounds with Bernoulli participation: the law of the coins, the slots, and a stable beginning."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from fedjax_sim.timelines import CoinRounds, schedule_coin_rounds


def test_coins_are_independent_with_the_chance_asked_for(draw: Callable) -> None:
    schedule = draw(
        schedule_coin_rounds, CoinRounds(num_clients=6, participation=0.3), num_ticks=500, seeds=4
    )
    coins = schedule.weight
    assert stats.binomtest(int(coins.sum()), coins.size, 0.3).pvalue > 1e-3
    np.testing.assert_array_equal(coins, schedule.steps)
    sizes = np.bincount(coins.sum(axis=2).astype(int).ravel(), minlength=7)
    expected = stats.binom.pmf(np.arange(7), 6, 0.3) * sizes.sum()
    assert (
        stats.chisquare([*sizes[:5], sizes[5:].sum()], [*expected[:5], expected[5:].sum()]).pvalue
        > 1e-3
    )
    one, next_one = coins[:, :-1].ravel(), coins[:, 1:].ravel()
    assert abs(np.corrcoef(one, next_one)[0, 1]) < 5 / np.sqrt(one.size)
    assert (coins[0] != coins[1]).any()


def test_slots_are_clients_and_rounds_take_their_time(draw: Callable) -> None:
    schedule = draw(schedule_coin_rounds, CoinRounds(num_clients=6, round_length=2.5), num_ticks=5)
    np.testing.assert_array_equal(schedule.time[0], 2.5 * np.arange(1, 6))
    np.testing.assert_array_equal(schedule.clients[0], np.tile(np.arange(6), (5, 1)))
    np.testing.assert_array_equal(schedule.version[0], np.tile(np.arange(5)[:, None], (1, 6)))
    assert (schedule.weight == 1).all()


def test_more_rounds_begin_with_the_same(draw: Callable) -> None:
    hyper = CoinRounds(num_clients=6, participation=0.5)
    few, many = (draw(schedule_coin_rounds, hyper, num_ticks=num) for num in (5, 9))
    for short, long in zip(few, many, strict=True):
        np.testing.assert_array_equal(short, long[:, :5])
