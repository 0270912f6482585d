"""Noise on sums, accounted for by the schedule alone, and correlated over ticks (DP-FTRL).

In tick t the server moves by the sum of clipped updates with the weights of the schedule, x_t, plus
noise y_t. The y_t are made of independent Gaussian z_t so that B y = z for a lower triangular
Toeplitz matrix B with the coefficients b_0 = 1, b_1, ...: y_t = z_t - sum_{j > 0} b_j y_{t-j}. The
noises of neighbouring ticks then partly cancel in the model, which is their sum. With one band,
B = 1 and the noises are independent.

- Coefficients are those of (1 - x)^(-1/2) (Fichtenberger, Henzinger and Upadhyay 2023, arXiv
  2202.11205), cut off after some bands (Kalinin and Lampert 2024, arXiv 2405.13763, banded
  square root factorization).
- The whole course of x + y = B^-1 (B x + z) is post-processing of one Gaussian mechanism on B x,
  also if updates depend on earlier models, because B is lower triangular (Denisov et al. 2022,
  arXiv 2202.08312, Theorem 2.1).
- Neighbours: all updates of one client are 0, whenever it takes part ("zero-out", Kairouz et al.
  2021, arXiv 2103.00039). The schedule with its weights is public and the same.
- Sensitivity: then x_t changes by at most C a_t, where a_t is the weight of the client in tick t.
  As no coefficient is negative, B x changes by at most C ||B a||, which is attained (Choquette-Choo
  et al. 2023, arXiv 2306.08153; they maximise over all patterns of participation with a
  least separation). Here a is known, so that the norm is computed for every client.

No sampling is used, so that the schedule may be of any kind, asynchronous as well. A client may
remember its earlier rounds: once its random draws are fixed, its update is a function of its data
and of earlier models, and its norm is bounded.

Dimension letters: those of `fedjax_sim.server.privacy.participation`.
"""

from typing import Annotated

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.checking import AtLeast0, Count, Fraction, Limit, checked
from fedjax_sim.core.types import Timeline
from fedjax_sim.server.privacy.accounting import check_package, once_each
from fedjax_sim.server.privacy.participation import largest_sums, reports_of


@checked
def square_root_bands(bands: Count) -> npt.NDArray[np.float64]:
    """Compute the first coefficients of (1 - x)^(-1/2): b_j = b_{j-1} (2 j - 1) / (2 j), b_0 = 1.

        assert square_root_bands(3).tolist() == [1, 1 / 2, (1 * 3) / (2 * 4)]

    Args:
      bands: Their number, b.

    Returns:
      `f64[b]`, positive and decreasing.
    """
    place = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * place - 1) / (2 * place))])


@checked
def sensitivities(
    timeline: Timeline,
    num_clients: Count,
    coefficients: npt.NDArray[np.float64],
    ticks: Annotated[npt.ArrayLike, Limit(least=0, is_whole=True)],
) -> npt.NDArray[np.float64]:
    """Compute the largest ||B a|| of a client within first ticks.

    Ticks in which nobody reports have no noise and do not count for B.

        # Client 0 reports with weight 1/2, then with weight 1.
        found = sensitivities(timeline, 3, square_root_bands(1), [0, 1, 2])
        assert np.allclose(found, [0, 1 / 2, np.hypot(1 / 2, 1)])

    Args:
      timeline: One lane's schedule, whose weights are those of the sum.
      num_clients: Number of clients, N.
      coefficients: b_0, b_1, ..., at least 0, `f64[b]`.
      ticks: Numbers of first ticks, integers `[V]`.

    Returns:
      `f64[V]`. With one band and weight 1 / m it is sqrt(k) / m for k participations.
    """
    when, slot, of = reports_of(timeline, num_clients)
    is_tick = np.isin(np.arange(len(timeline.time)), when)
    share, place = np.asarray(timeline.weight, float)[when, slot], np.cumsum(is_tick)[when] - 1
    # Entries of B a of every client: rows from its participation on.
    total = int(is_tick.sum())
    bands = min(len(coefficients), max(total, 1))
    rows = place[:, None] + np.arange(bands)
    entries = np.abs(share)[:, None] * np.asarray(coefficients, float)[:bands]
    inside = rows < total
    # One number for each row and client, sorted by rows.
    names, where = np.unique((rows * num_clients + of[:, None])[inside], return_inverse=True)
    squares = np.bincount(where.ravel(), entries[inside], len(names)) ** 2
    ends = np.concatenate([[0], np.cumsum(is_tick)])[np.asarray(ticks, np.int64)]
    row, client = np.divmod(names, num_clients)
    return np.sqrt(largest_sums(row, client, squares, ends, num_clients))


@checked
def gaussian_epsilon(
    sensitivity: Annotated[npt.ArrayLike, Limit(least=0)], deviation: AtLeast0, delta: Fraction
) -> npt.NDArray[np.float64]:
    """Compute epsilon of one Gaussian mechanism, exactly, by dp-accounting.

    Balle and Wang 2018, arXiv 1805.06530, Theorem 8.

        assert gaussian_epsilon([0.0, 1.0], 0.0, 1e-6).tolist() == [0, np.inf]  # without noise
        weak, strong = gaussian_epsilon([1.0, 0.5], 4.0, 1e-6)
        assert strong < weak

    Args:
      sensitivity: Largest L2 change, `f[...]`.
      deviation: Standard deviation of the noise in each number.
      delta: delta.

    Returns:
      `f64[...]`: 0 where nothing can change, infinity elsewhere without noise.
    """
    check_package("gaussian")
    from dp_accounting import get_epsilon_gaussian

    changes = np.asarray(sensitivity, float)
    if deviation == 0:
        return np.where(changes > 0, np.inf, 0.0)
    return once_each(lambda x: get_epsilon_gaussian(float(deviation) / x, float(delta)), changes)


@checked
def separated_sensitivity(
    coefficients: npt.NDArray[np.float64], num_ticks: Count, *, separation: Count, most: Count
) -> float:
    """Compute the largest ||B a|| over all schedules with a separation, for planning.

    The columns at 0, s, 2 s, ... of B, as many as there are participations (Kalinin and Lampert
    2024, Theorem 2, for coefficients that decrease).

        independent = square_root_bands(1)
        assert separated_sensitivity(independent, 100, separation=10, most=4) == 4**0.5

    Args:
      coefficients: b_0, b_1, ..., at least 0 and not increasing, `f64[b]`.
      num_ticks: Number of ticks, T.
      separation: Fewest ticks from one participation of a client to its next one, s.
      most: Largest number of participations of a client, each with weight 1.

    Returns:
      The norm.
    """
    of_client = np.zeros(num_ticks)
    of_client[: separation * most : separation] = 1
    return float(np.linalg.norm(np.convolve(of_client, coefficients)[:num_ticks]))
