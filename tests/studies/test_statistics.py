"""Statistics of studies: against SciPy, by hand, and by simulated studies.

`python -m tests.studies.test_statistics` simulates more studies and prints the shares.
"""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.studies import Criterion, compare, statistics
from fedjax_sim.studies.statistics import Sample

STUDIES = 2000


def studies_of(seed: int, shape: tuple[int, ...], spread: float = 1.0) -> np.ndarray:
    """Draw results of seeds `[studies, systems, seeds]`, of which a part is shared by a seed."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(shape[0], 1, shape[-1]))
    return shared + spread * rng.normal(size=shape)


def curves_of(final: np.ndarray, seeds: list[int] | None = None) -> xr.Dataset:
    """Make curves of a system that ends at these accuracies, `[seeds]`."""
    num = len(final)
    return xr.Dataset(
        {
            "accuracy": (
                ("seed", "eval"),
                np.stack([np.zeros(num), final], axis=1),
                {"has_chance": 1},
            ),
            "failed": ("seed", np.zeros(num, bool)),
            "collapsed_at": ("seed", np.full(num, -1)),
        },
        {
            "seed": list(range(num)) if seeds is None else seeds,
            "time": (("seed", "eval"), np.broadcast_to([0.0, 1.0], (num, 2))),
        },
    )


def covered(num: int, *, is_paired: bool) -> float:
    """Return the share of studies of ten seeds whose interval has the true difference in it."""
    first, second = np.moveaxis(studies_of(1, (num, 2, 10)), 1, 0)
    if not is_paired:  # Other seeds, and another spread.
        second = 3 * studies_of(2, (num, 1, 10))[:, 0]
    samples = ((Sample.of(one), Sample.of(two)) for one, two in zip(first, second, strict=True))
    if not is_paired:
        samples = ((x._replace(values=None), y._replace(values=None)) for x, y in samples)
    found = (statistics.lead(*each) for each in samples)
    return float(np.mean([abs(each.mean) <= each.half for each in found]))


def covered_times(num: int, seeds: int) -> tuple[float, float, float]:
    """Measure the coverage of 95 % intervals of censored times.

    Times to the level are exponential, with a part that pairs share; runs end between 2 and 6, and
    the horizon is 3.

    Returns:
      Of the t and the bootstrap intervals of differences of equal systems, and of the t intervals
      of one system's restricted mean.
    """
    rng, hits = np.random.default_rng(2), np.zeros(3)
    # The mean of min(X, 3), where X is a sum of two exponential times with mean 1.
    true = 2 - np.exp(-3.0) * 5
    for _ in range(num):
        shared, values = rng.exponential(size=seeds), []
        while len(values) < 2:
            times = shared + rng.exponential(size=seeds)
            ends = rng.uniform(2, 6, seeds)
            seen, reached = np.minimum(times, ends), times <= ends
            if statistics.known_until(seen, reached) >= 3:  # Hardly ever false.
                values.append(statistics.pseudo_values(seen, reached, 3.0))
        apart = values[0] - values[1]
        lead, mean = statistics.interval(apart), statistics.interval(values[0])
        drawn = statistics.bootstrap(apart)
        hits += [
            abs(lead.mean) <= lead.half,
            abs(drawn.mean) <= drawn.half,
            abs(mean.mean - true) <= mean.half,
        ]
    return tuple((hits / num).tolist())


def false_positives(num: int, systems: int) -> float:
    """Return the share of studies of equal systems in which some pair is said to differ."""
    wrong = 0
    for each in studies_of(3, (num, systems, 8)):
        curves = {f"system {i}": curves_of(values) for i, values in enumerate(each)}
        wrong += any(pair.better for pair in compare(curves, Criterion()).pairs)
    return wrong / num


def censored_mean(num: int, seeds: int) -> tuple[float, float, float]:
    """Return the true restricted mean, and the mean and standard error of its estimates.

    Times to the level are exponential with mean 2; runs end between 2 and 6; the horizon is 4, so
    that a sixth of all runs ends before it without reaching the level.
    """
    rng, found = np.random.default_rng(4), []
    while len(found) < num:
        times, ends = rng.exponential(2.0, seeds), rng.uniform(2, 6, seeds)
        seen = np.minimum(times, ends)
        if seen.max() >= 4:  # Hardly ever false with 100 seeds.
            found.append(statistics.restricted_mean(seen, times <= ends, 4.0))
            if len(found) == 1:
                values = statistics.pseudo_values(seen, times <= ends, 4.0)
                assert values.mean() == pytest.approx(found[0])
    error = float(np.std(found, ddof=1) / np.sqrt(num))
    return 2 * (1 - np.exp(-2.0)), float(np.mean(found)), error


def test_intervals_cover_the_truth() -> None:
    """Paired ones, and Welch's of unequal spreads: between 93 and 97 of 100 have it in them."""

    assert 0.93 <= covered(STUDIES, is_paired=True) <= 0.97
    assert 0.93 <= covered(STUDIES, is_paired=False) <= 0.97


@pytest.mark.parametrize("seeds", [5, 10])
def test_intervals_of_censored_times_cover_the_truth(seeds: int) -> None:
    """Within four standard errors of 300 studies; of 2,000 see the end of this file."""
    t, bootstrap, mean = covered_times(300, seeds)
    assert 0.9 <= bootstrap < 1 and 0.9 <= t < 1 and 0.87 <= mean < 1


def test_bootstrap_intervals_of_few_and_many_seeds() -> None:
    """As a t interval of many normal values; not known where many draws have one value."""
    values = np.random.default_rng(7).normal(size=200)
    found = statistics.bootstrap(values)
    assert found.mean == values.mean()
    assert found.half == pytest.approx(statistics.interval(values).half, rel=0.1)
    assert statistics.bootstrap(np.array([0.0, 1, 2])).half == np.inf
    assert statistics.bootstrap(np.full(4, 2.0)) == (2.0, 0.0)


@pytest.mark.few(1)
@pytest.mark.parametrize("systems", [2, 3])
def test_equal_systems_are_seldom_told_apart(systems: int) -> None:
    """Within three standard errors of 500 studies; of 2,000 see the end of this file."""
    assert 0.02 <= false_positives(500, systems) <= 0.08


def test_censored_means_are_unbiased() -> None:
    """The mean of the times that were reached alone would be far too small."""
    true, mean, error = censored_mean(STUDIES, 100)
    assert abs(mean - true) < 4 * error and error < 0.01
    rng = np.random.default_rng(5)
    times, ends = rng.exponential(2.0, 1000), rng.uniform(2, 6, 1000)
    assert times[times <= np.minimum(ends, 4)].mean() < true - 0.4


def test_the_same_numbers_as_scipy() -> None:
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(2, 9))
    samples = Sample.of(first), Sample.of(second)
    theirs = stats.ttest_rel(first, second)
    low, high = theirs.confidence_interval(0.95)
    found = statistics.lead(*samples)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert statistics.p_value(*samples) == pytest.approx(theirs.pvalue)
    apart = [each._replace(values=None) for each in samples]
    theirs = stats.ttest_ind(first, second, equal_var=False)
    assert statistics.p_value(*apart) == pytest.approx(theirs.pvalue)
    low, high = theirs.confidence_interval(0.95)
    found = statistics.lead(*apart)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    times, there = rng.exponential(size=30), rng.random(30) < 0.6
    data = stats.CensoredData(uncensored=times[there], right=times[~there])
    known = stats.ecdf(data).sf
    at, share = statistics.survival(times, there)
    np.testing.assert_allclose(share[1:], known.evaluate(at[1:]))
    horizon = float(times.max())
    grid = np.linspace(0, horizon, 200_001)
    area = float(known.evaluate(grid[:-1]).sum() * (grid[1] - grid[0]))
    assert statistics.restricted_mean(times, there, horizon) == pytest.approx(area, abs=1e-3)
    rng, far = np.random.default_rng(1), []
    for rows in rng.integers(9, size=(statistics.RESAMPLES, 9)):
        drawn = first[rows]
        far.append(abs(drawn.mean() - first.mean()) / stats.tstd(drawn))
    half = np.sort(far)[round(0.95 * (len(far) - 1))] * stats.tstd(first)
    assert statistics.bootstrap(first, seed=1) == pytest.approx((first.mean(), half))


def test_corrected_p_values() -> None:
    """Holm's own steps: 0.01 of three, 0.02 of two, 0.04 of one; an unknown one counts as 1."""
    assert statistics.holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert statistics.holm([float("nan"), 0.02]) == pytest.approx([1.0, 0.04])
    assert statistics.holm([]) == []


def test_seeds_that_a_difference_needs() -> None:
    """34 pairs for half a standard deviation with power 0.8, as in tables; simulated too."""
    assert statistics.seeds_needed(1.0, 0.5) == 34
    assert statistics.seeds_needed(1.0, -0.5) == 34
    assert statistics.seeds_needed(1.0, 0.5, power=0.9) == 44
    assert statistics.seeds_needed(1.0, 0.0) is None
    assert statistics.seeds_needed(0.0, 0.5) == 2
    drawn = np.random.default_rng(7).normal(0.5, 1.0, size=(4000, 34))
    shown = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    assert shown.mean() == pytest.approx(0.8, abs=0.025)
    with pytest.raises(ConfigError, match="power is 1"):
        statistics.seeds_needed(1.0, 0.5, power=1)


def test_times_beyond_all_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="horizon is 5"):
        statistics.restricted_mean(np.array([1.0, 4.0]), np.array([True, False]), 5)


def test_differences_without_spread() -> None:
    """All seeds alike: a difference is certain, and no difference is none."""
    same = Sample.of([1.0, 1.0])
    assert statistics.p_value(same, same) == 1.0
    assert statistics.p_value(same, Sample.of([0.0, 0.0])) == 0.0
    assert statistics.lead(same, Sample.of([0.0, 0.0])) == (1.0, 0.0)
    assert np.isnan(statistics.p_value(Sample.of([1.0]), Sample.of([0.0])))


if __name__ == "__main__":
    print(f"paired t intervals cover {covered(10 * STUDIES, is_paired=True):.4f}")
    print(f"Welch's intervals cover {covered(10 * STUDIES, is_paired=False):.4f}")
    for seeds_ in (5, 8, 10, 20):
        t_, bootstrap_, own_ = covered_times(STUDIES, seeds_)
        print(
            f"censored times of {seeds_} seeds: t intervals of differences cover {t_:.4f}, "
            f"bootstrap intervals {bootstrap_:.4f}, t intervals of a mean {own_:.4f}"
        )
    for systems_ in (2, 3):
        share_ = false_positives(STUDIES, systems_)
        print(f"false positives among {systems_} systems {share_:.4f}")
    true_, mean_, error_ = censored_mean(10 * STUDIES, 100)
    print(f"restricted mean {true_:.4f}, estimates {mean_:.4f} ± {error_:.4f}")
