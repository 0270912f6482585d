"""Fairness measures: a schedule by hand, and special cases of the indices."""

import numpy as np
import pytest

from fedjax_sim.core.types import EMPTY, Timeline
from fedjax_sim.results.diagnostics import (
    deviation,
    entropy,
    fairness_report,
    group_accuracy,
    influence,
    jain_index,
    summarise_clients,
    time_to_first,
    update_share,
    worst_decile,
)


def timeline(time: list, clients: list, version: list, weight: list) -> Timeline:
    """Make a timeline of which only these four fields matter."""
    integers = [np.array(each, "int32") for each in (clients, version)]
    return Timeline(
        np.array(time, float),
        integers[0],
        integers[0] * 0 + 1,
        integers[1],
        np.array(weight, float),
        integers[1],
    )


# Client 2 never reports. The empty slot has a version and a weight that must not be read. The first
# update of client 1 has weight 0.
SMALL = timeline(
    time=[2, 3, 7, 8],
    clients=[[1, 0], [0, EMPTY], [0, 0], [1, 0]],
    version=[[0, 0], [1, -9], [0, 2], [1, 3]],
    weight=[[0, 1], [1, 0.9], [0.5, 0.5], [0.6, 0.2]],
)
GROUPS = np.array([0, 1, 1])


def test_measures_of_clients_by_hand() -> None:
    """All measures of the whole schedule."""
    np.testing.assert_allclose(influence(SMALL, 3), [3.2 / 4, 0.6 / 4, 0])
    np.testing.assert_allclose(update_share(SMALL, 3), [5 / 7, 2 / 7, 0])
    np.testing.assert_array_equal(time_to_first(SMALL, 3), [2, 8, np.inf])
    report = fairness_report(SMALL, 3, GROUPS)
    np.testing.assert_allclose(report.mean_staleness, [2 / 5, (0 + 2) / 2, np.nan])
    np.testing.assert_array_equal(report.largest_staleness, [2, 2, np.nan])
    np.testing.assert_allclose(report.group_influence, [3.2 / 4, 0.6 / 4])


def test_a_leading_share_of_ticks_is_skipped() -> None:
    """Two ticks of four are skipped.

    Time begins at 3, and versions still count from the first tick of the schedule.
    """
    np.testing.assert_allclose(influence(SMALL, 3, skip=0.5), [1.2 / 2, 0.6 / 2, 0])
    np.testing.assert_allclose(update_share(SMALL, 3, skip=0.5), [3 / 4, 1 / 4, 0])
    # 0.29 * 100 is below 29 in floating point.
    ticks = np.arange(100)[:, None]
    long = timeline(ticks[:, 0], np.where(ticks < 29, 2, 0), ticks, np.ones((100, 1)))
    np.testing.assert_array_equal(update_share(long, 3, skip=0.29), [1, 0, 0])


def test_the_report_has_all_measures() -> None:
    """Every field equals the value by hand; without groups their fields are empty."""
    report = fairness_report(SMALL, 3, GROUPS, skip=0.5)
    np.testing.assert_allclose(report.influence, [0.6, 0.3, 0])
    np.testing.assert_allclose(report.update_share, [3 / 4, 1 / 4, 0])
    np.testing.assert_array_equal(report.time_to_first, [2, 8, np.inf])
    np.testing.assert_allclose(report.mean_staleness, [2 / 3, 2, np.nan])
    np.testing.assert_array_equal(report.largest_staleness, [2, 2, np.nan])
    assert report.jain_index == pytest.approx(0.9**2 / (3 * 0.45))
    assert report.entropy == pytest.approx(np.log(3) - 2 / 3 * np.log(2))
    assert report.deviation == pytest.approx(0.6 - 1 / 3 + 1 / 3 - 0.3 + 1 / 3)
    np.testing.assert_allclose(report.group_influence, [0.6, 0.3])
    np.testing.assert_allclose(report.group_update_share, [3 / 4, 1 / 4])


def test_indices_of_equal_and_of_unequal_parts() -> None:
    """k equal parts of ten have Jain's index k / 10 and entropy log k, in any unit."""
    for k in (1, 3, 10):
        parts = np.where(np.arange(10) < k, 0.2, 0.0)
        for unit in (1, 50):
            assert jain_index(unit * parts) == pytest.approx(k / 10)
            assert entropy(unit * parts) == pytest.approx(np.log(k), abs=1e-12)
    assert jain_index(np.array([1.0, 2.0, 3.0])) == pytest.approx(36 / (3 * 14))
    assert entropy(np.array([1.0, 3.0])) == pytest.approx(np.log(4) - 0.75 * np.log(3))
    assert np.isnan([jain_index(np.zeros(3)), entropy(np.zeros(3))]).all()


def test_deviation_of_shares_of_arrivals() -> None:
    """The deviation in FedStaleWeight's experiment, and deviations from a given target.

    Ten clients have delays of 1.5 time units and five have delays of 10.
    """
    share = np.array([1 / 1.5] * 10 + [1 / 10] * 5) / (10 / 1.5 + 5 / 10)
    assert deviation(share) == pytest.approx(0.5271, abs=5e-5)
    assert deviation(share, share) == 0
    assert deviation(np.array([0.5, 0.5]), np.array([0.2, 0.8])) == pytest.approx(0.6)


def test_accuracy_of_groups() -> None:
    """A class without test examples gives nan only for groups that have it."""
    shares = np.array([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5]])
    np.testing.assert_allclose(group_accuracy(np.array([1.0, 0.2, 0.6]), shares), [0.4, 0.4])
    per_class = np.array([[0.0, 1.0, np.nan], [1.0, 0.0, 1.0]])
    np.testing.assert_allclose(group_accuracy(per_class, shares), [[0.75, np.nan], [0.25, 0.5]])


def test_the_worst_decile_is_the_mean_of_a_tenth_rounded_up() -> None:
    """Clients without a value do not count; less may be better."""
    values = np.arange(12.0)
    assert worst_decile(values) == pytest.approx(0.5)
    assert worst_decile(values, less_is_better=True) == pytest.approx(10.5)
    gaps = np.array([[3.0, np.nan, 1.0, 2.0], [np.nan] * 4])
    np.testing.assert_allclose(worst_decile(gaps), [1.0, np.nan])
    mean, worst, spread = summarise_clients(gaps[:1], less_is_better=True)
    np.testing.assert_allclose([mean, worst, spread], [[2.0], [3.0], [np.sqrt(2 / 3)]])
