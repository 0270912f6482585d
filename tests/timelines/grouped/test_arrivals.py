"""Groups that do not wait for each other: the clock by hand, and one group alone."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from fedjax_sim.core.settings import ConfigError, check, value_of
from fedjax_sim.timelines import (
    ExchangeDelays,
    GroupArrivals,
    GroupClock,
    Groups,
    group_arrivals_within,
    presets,
    schedule_group_arrivals,
    schedule_group_rounds,
)

GROUPS = presets.preset(Groups, presets.GROUPS)
GROUP_ARRIVALS = presets.preset(GroupArrivals, presets.GROUPS)

CERTAIN = {
    **dict.fromkeys(("shift_per_client", "mean_per_client", "mean"), 0.0),
    **dict.fromkeys(("exchange_shift_per_group", "exchange_mean_per_group"), 0.0),
    "exchange_mean": 0.0,
    "num_clients": 4,
}
"""Delays that are not random."""


def test_the_clock_by_hand(draw: Callable) -> None:
    """Rounds take 5 + 3 and 6 + 1 units of time, so groups report at 7, 8, 14, 16, 21, 24, ...

    Every second report fills the buffer. The group that fills it continues from the new model, the
    other from the one before.
    """
    hyper = GROUP_ARRIVALS(
        group_sizes=(1, 3),
        num_reports=2,
        sync_time=5.0,
        **(CERTAIN | {"shift": (1.0, 2.0), "exchange_shift": (3.0, 1.0)}),
    )
    check(hyper)
    schedule = draw(schedule_group_arrivals, hyper, num_ticks=3)
    np.testing.assert_array_equal(schedule.time[0], [8, 16, 24])
    np.testing.assert_array_equal(schedule.clients[0], [[1, 0]] * 3)
    np.testing.assert_array_equal(schedule.steps[0], [[3, 5]] * 3)
    np.testing.assert_array_equal(schedule.version[0], [[0, 0], [0, 1], [1, 2]])
    np.testing.assert_array_equal(schedule.holds[0], [[0, 1], [1, 2], [2, 3]])
    np.testing.assert_allclose(schedule.weight[0], [[0.75, 0.25]] * 3, rtol=1e-12)
    assert group_arrivals_within(hyper, 1000.0) == pytest.approx(1000 * (1 / 8 + 1 / 6) / 2)


def test_reports_at_the_same_time_are_in_order_of_groups(draw: Callable) -> None:
    """Rounds take 2 and 4, so the second group reports together with every second of the first.

    The first group may fill a buffer alone.
    """
    hyper = GROUP_ARRIVALS(
        num_reports=2, sync_time=0.0, **(CERTAIN | {"shift": (1.0, 3.0), "exchange_shift": 1.0})
    )
    schedule = draw(schedule_group_arrivals, hyper, num_ticks=3)
    np.testing.assert_array_equal(schedule.clients[0], [[0, 0], [1, 0], [0, 1]])
    np.testing.assert_array_equal(schedule.time[0], [4, 6, 8])
    np.testing.assert_array_equal(schedule.version[0], [[0, 0], [0, 1], [2, 1]])


def test_one_group_alone_has_the_same_schedule_in_both(draw: Callable) -> None:
    """Bit for bit, with random delays; and first ticks do not depend on how many are drawn."""
    one = {"num_groups": 1, "mean": 1.0, "aggregation": "average"}
    apart = draw(schedule_group_arrivals, GROUP_ARRIVALS(**one), num_ticks=20)
    together = draw(schedule_group_rounds, GROUPS(exchanges="group", **one), num_ticks=9)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:, :9], b), apart, together)
    assert len(set(apart.steps.ravel().tolist())) > 2


def test_settings_of_rounds_are_not_settings_of_arrivals() -> None:
    """They cannot be named, and a group that has another value is refused."""
    for name, given in (
        ("clock.ticks_per_round", GROUP_ARRIVALS(clock=GroupClock(ticks_per_round=2))),
        ("exchange.exchanges", GROUP_ARRIVALS(exchange=ExchangeDelays(exchanges="round"))),
    ):
        with pytest.raises(ConfigError, match=f"^{name} is .*, but must be left at"):
            check(given)
        with pytest.raises(ConfigError, match="setting name is"):
            GROUP_ARRIVALS(**{name: value_of(given, name)})
