"""Round times of hierarchical FL: against a table worked out separately, and against draws."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from experiments.hierarchical.formulas.delays import linear_delays
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.theory import hierarchical as theory
from fedjax_sim.theory.hierarchical import Delays
from tests.theory.hierarchical_delays import FIG3, FIG6, FIG7, FIG8, FIG9, FIG11, draw_rounds


class Row(NamedTuple):
    """A row of a table that was worked out separately, for a setting of one of the figures.

    Attributes:
        sizes: Number of clients of each group.
        coefficients: Coefficients of the linear delay model.
        global_shift: Shift of the global server's delay, which some figures set directly.
        sync_time: S.
        most: Largest number of iterations of the first group.
        iterations: E[t] of the first groups; exact.
        longest: E[max_i Sigma_i]; drawn, with an error of 0.005.
        mean: E[D]; drawn, with an error of 0.005.
        std: Standard deviation of D; drawn.
        rounds: E[U] for T = 1000; drawn, with an error of 0.2.
    """

    sizes: tuple[int, ...]
    coefficients: tuple[float, ...]
    global_shift: float
    sync_time: float
    most: int
    iterations: tuple[float, ...]
    longest: float
    mean: float
    std: float
    rounds: float


TABLE = [
    Row((10, 10), FIG3, 5, 0, 1, (1,), 1.150, 6.35, 0.23, 158.0),
    Row((10, 10), FIG3, 5, 5, 5, (4.990,), 5.608, 10.81, 0.28, 93.0),
    Row((500, 500), FIG6, 20, 0, 1, (1,), 1.825, 21.88, 0.62, 46.1),
    Row((500, 500), FIG6, 20, 5, 5, (3.787,), 6.215, 26.27, 0.66, 38.7),
    Row((15, 15), FIG7, 10, 20, 20, (18.706,), 20.761, 31.76, 1.04, 32.0),
    Row((15, 15), FIG7, 30, 20, 20, (18.706,), 20.761, 51.76, 1.03, 20.0),
    Row((850,) * 4, FIG8, 18, 24, 1, (1,), 86.4 + 8.64 * 25 / 12, 125.40, 10.7, 8.5),
    Row((16,) * 4, FIG8, 18, 12, 4, (3.997,), 13.83, 34.83, 3.04, 29.2),
    Row((16,) * 4, FIG8, 18, 24, 8, (7.870,), 26.79, 47.78, 3.03, 21.4),
    Row((32,) * 2, FIG9, 6, 6, 2, (1.952,), 10.32, 16.92, 0.86, 59.6),
    Row((16,) * 4, FIG9, 7, 6, 2, (2.000,), 7.065, 14.76, 0.83, 68.2),
    Row((8,) * 8, FIG9, 9, 6, 3, (2.994,), 7.845, 17.74, 0.96, 56.9),
    Row((20, 20), FIG11, 9, 12, 5, (4.958,), 14.36, 23.58, 0.36, 43.0),
    Row((30, 10), FIG11, 9, 12, 4, (3.919, 6.988), 15.18, 24.40, 0.77, 41.4),
]


@pytest.mark.parametrize("row", TABLE)
def test_the_table_of_round_times(row: Row) -> None:
    """Iterations agree to all printed digits, the other columns within the error of their draws."""
    delays = linear_delays(row.sizes, row.coefficients)._replace(global_shift=row.global_shift)
    for group, stated in enumerate(row.iterations):
        law = {
            "shift": float(delays.shift[group]),
            "mean_exp": float(delays.mean_exp[group]),
        }
        assert theory.expected_iterations(row.sync_time, **law) == pytest.approx(
            stated, abs=5.01e-4
        )
    assert theory.max_iterations(row.sync_time, float(delays.shift[0])) == row.most
    found = theory.round_time(row.sync_time, delays)
    assert found.longest == pytest.approx(row.longest, abs=7e-3)
    assert found.mean == pytest.approx(row.mean, abs=1e-2)
    assert found.std == pytest.approx(row.std, abs=4e-2)
    assert theory.expected_rounds(row.sync_time, delays, system_time=1000) == pytest.approx(
        row.rounds, abs=0.1
    )


def test_rounds_saved_by_the_delays_of_figure_7() -> None:
    """The text has 37 % for S = 20 with c_g = 10; that is the value for c_g = 30."""
    saved = {}
    for shift in (10.0, 30.0):
        delays = linear_delays((15, 15), FIG7)._replace(global_shift=shift)
        some, none = (theory.expected_rounds(s, delays, system_time=1000) for s in (20.0, 0.0))
        saved[shift] = 100 * (1 - some / none)
    assert saved[10.0] == pytest.approx(61.3, abs=0.3)
    assert saved[30.0] == pytest.approx(36.9, abs=0.3)


def test_linear_delays_of_the_first_settings() -> None:
    delays = linear_delays([10, 30], FIG3)
    np.testing.assert_allclose(delays.shift, [1.0, 2.8])
    np.testing.assert_allclose(delays.mean_exp, [0.1, 0.28])
    assert delays[2:] == pytest.approx((5.0, 0.2))
    assert linear_delays([15, 15], FIG7)[2:] == pytest.approx((10.0, 1.0))


@pytest.mark.parametrize("sync_time", [0.0, 4.0, 6.5])
def test_times_of_unequal_groups_drawn(sync_time: float) -> None:
    """One group is deterministic, one has no shift, one has both. Within 5 standard errors."""
    delays = Delays(np.array([1.5, 0.0, 0.7]), np.array([0.0, 1.2, 0.4]), 2.0, 0.5)
    random, num = np.random.default_rng(int(10 * sync_time)), 40_000
    iterations, times = draw_rounds(random, delays, sync_time, num)
    laws = [
        {"shift": float(c), "mean_exp": float(m)}
        for c, m in zip(delays.shift, delays.mean_exp, strict=True)
    ]

    def close(drawn: npt.NDArray[Any], expected: npt.ArrayLike) -> None:
        # At least 1 / draws, because a rare event may not be drawn even once.
        error = np.maximum(drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn)), 1 / len(drawn))
        assert np.all(np.abs(drawn.mean(axis=0) - expected) <= 5 * error)

    close(iterations, [theory.expected_iterations(sync_time, **law) for law in laws])
    close(times, [theory.expected_group_time(sync_time, **law) for law in laws])
    for i, law in enumerate(laws):
        for n, chance in enumerate(theory.iteration_law(sync_time, **law)[:8], start=1):
            close(iterations[:, i] == n, chance)
        for x in (0.3, 1.0, 1.6, 4.1, 4.6, 6.6, 7.4, 9.0):
            close(times[:, i] > x, theory.group_time_tail(x, sync_time, **law))
    longest = times.max(axis=1)
    found = theory.round_time(sync_time, delays)
    close(longest, found.longest)
    close(longest[:, None] - times, theory.expected_idle(sync_time, delays))
    whole = longest + delays.global_shift + random.exponential(size=num) * delays.global_mean_exp
    close(whole, found.mean)
    close((whole - found.mean) ** 2, found.std**2)
    crossed = (whole.reshape(-1, 40).cumsum(axis=1) < 60.0).sum(axis=1) + 1
    assert crossed.max() < 40
    assert crossed.mean() == pytest.approx(
        theory.expected_rounds(sync_time, delays, system_time=60.0), abs=0.1
    )


def test_deterministic_clock() -> None:
    """Iterations of 1 and 2 units fill S = 5 with 5 and 3 of them, in 5 and 6 units of time.

    With 3 units for the global server, a round lasts 9.
    """
    delays = Delays(np.array([1.0, 2.0]), np.zeros(2), 3.0)
    assert [theory.expected_iterations(5.0, shift=c, mean_exp=0.0) for c in (1.0, 2.0)] == [5, 3]
    assert [theory.max_iterations(5.0, c) for c in (1.0, 2.0)] == [5, 3]
    assert theory.round_time(5.0, delays) == pytest.approx((6.0, 9.0, 0.0), abs=1e-9)
    np.testing.assert_allclose(theory.expected_idle(5.0, delays), [1.0, 0.0], atol=1e-9)
    assert [
        theory.expected_rounds(5.0, delays, system_time=t) for t in (0.5, 9.0, 18.0, 20.0, 27.0)
    ] == [1, 1, 2, 3, 3]


def test_limits_of_the_number_of_iterations() -> None:
    assert theory.max_iterations(0.0, 1.0) == theory.max_iterations(0.0, 0.0) == 1
    assert theory.max_iterations(5.0, 0.09 * 10 + 0.1) == 5
    assert theory.max_iterations(5.01, 1.0) == 6
    assert np.isinf(theory.max_iterations(5.0, 0.0))
    # Without a shift iterations are a Poisson process.
    assert theory.expected_iterations(7.0, shift=0.0, mean_exp=2.0) == pytest.approx(4.5, abs=1e-12)
    assert theory.iteration_law(7.0, shift=0.3, mean_exp=2.0).sum() == pytest.approx(1, abs=1e-12)
    assert theory.iteration_law(0.0, shift=0.3, mean_exp=2.0).tolist() == [1.0]


@pytest.mark.parametrize(
    ("shift", "mean_exp", "sync_time"),
    [(1.0, 5.0, 5.3), (0.3, 1.0, 5.0), (0.001, 0.0001, 50.0), (0.0099, 0.0, 1000.0)],
)
def test_one_group_lasts_as_wald_says(shift: float, mean_exp: float, sync_time: float) -> None:
    """To the last digits, also where tens of thousands of shifts fit into the sync time."""
    expected = theory.expected_group_time(sync_time, shift=shift, mean_exp=mean_exp)
    found = theory.round_time(sync_time, Delays(np.array([shift]), np.array([mean_exp])))
    assert found.longest == pytest.approx(expected, rel=1e-14)


def test_a_narrow_law_keeps_its_deviation() -> None:
    """One iteration of 1000 units and an exponential part of 1e-5, far below the square's grain."""
    found = theory.round_time(0.0, Delays(np.array([1e3]), np.array([1e-5])))
    assert found.std == pytest.approx(1e-5, rel=1e-6)


def test_laws_that_are_none_are_refused() -> None:
    for shift, mean_exp in (([-1.0], [1.0]), ([1.0, 1.0], [0.1]), (1.0, 1.0)):
        with pytest.raises(ConfigError, match=r"(shift|mean_exp) is .* of shape \[M\]"):
            Delays(np.array(shift), np.array(mean_exp))
    nothing = Delays(np.zeros(1), np.zeros(1))
    for function in (theory.round_time, theory.expected_idle):
        with pytest.raises(ConfigError, match=r"shift is 0\.0, but must be above 0 where mean_exp"):
            function(5.0, nothing)
