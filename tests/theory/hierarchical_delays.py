"""Delays of the hierarchical paper's figures, and draws of rounds, for tests."""

import numpy as np
import numpy.typing as npt

from fedjax_sim.theory.hierarchical import Delays

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# Coefficients d, b, e, f, d_g, b_g, e_g, f_g of the linear delay model, by figure.
FIG3 = (0.09, 0.1, 0.009, 0.01, 1, 3, 0.05, 0.1)
FIG6 = (1e-3, 0.5, 1e-3, 0.05, 5, 10, 1e-3, 0.05)
FIG7 = (0.01, 0.85, 1e-3, 0.085, 4, 2, 0.4, 0.2)
FIG8 = (0.1, 1.4, 0.01, 0.14, 4, 2, 0.5, 1)
FIG9 = (0.1, 1.4, 0.01, 0.14, 0.5, 5, 0.05, 0.5)
FIG11 = (0.1, 0.7, 0.001, 0.13, 3, 3, 0.01, 0.2)

UNEQUAL = Delays(np.array([1.0, 0.6]), np.array([0.2, 0.3]), 4.0, 0.5)
"""Two groups of unequal speed."""


def draw_rounds(
    random: np.random.Generator, delays: Delays, sync_time: float, num: int
) -> tuple[Integers, Numbers]:
    """Draw the groups' iterations and times in many rounds by adding up iterations one by one.

    Args:
        random: Source of random numbers.
        delays: Laws of the delays of M groups.
        sync_time: S, in units of time.
        num: Number of rounds.

    Returns:
        Iterations `i64[num, M]` and times `f64[num, M]`.
    """
    iterations, times = np.zeros((2, num, len(delays.shift)))
    running = np.ones_like(times, bool)
    while running.any():
        step = delays.shift + random.exponential(size=times.shape) * delays.mean_exp
        times, iterations = times + running * step, iterations + running
        running = times < sync_time
    return iterations.astype(np.int64), times
