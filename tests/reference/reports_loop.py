"""FedAvg with private messages as a slow loop in plain NumPy."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Gradient = Callable[[int, int, np.ndarray], np.ndarray]


class Adaptive(NamedTuple):
    """Andrew et al. 2021, Algorithm 1.

    Attributes:
      clip: C_0.
      quantile: gamma.
      rate: eta_C.
      noise: Noise multiplier of the sum of updates, z_Delta.
      count_noise: Standard deviation of the noise on the count, sigma_b.
      draw: From the round to standard normal draws for the model and for the count.
    """

    clip: float
    quantile: float
    rate: float
    noise: float
    count_noise: float
    draw: Callable[[int], tuple[np.ndarray, float]]


def run_private(
    *,
    start: np.ndarray,
    num_clients: int,
    cohorts: list[list[int]],
    expected: int,
    num_steps: int,
    lr: float,
    gradient: Gradient,
    privacy: Adaptive,
) -> tuple[list[np.ndarray], list[float]]:
    """Run rounds of Poisson cohorts with adaptive clipping and noise.

    Returns:
      The server's model and the bound of norms after each round.
    """
    server, bound, ever = start.copy(), privacy.clip, [0] * num_clients
    models, bounds = [], []
    for number, cohort in enumerate(cohorts):
        total, excess = np.zeros_like(start), 0.0
        for i in cohort:
            model = server.copy()
            for _ in range(num_steps):
                model = model - lr * gradient(i, ever[i], model)
                ever[i] += 1
            update = model - server
            norm = float(np.sqrt(np.sum(update**2)))
            total += update * min(1.0, bound / norm)
            excess += (1.0 if norm <= bound else 0.0) - 0.5
        noise, count = privacy.draw(number)
        server = server + (total + privacy.noise * bound * noise) / expected
        share = 0.5 + (excess + privacy.count_noise * count) / expected
        bound *= float(np.exp(-privacy.rate * (share - privacy.quantile)))
        models.append(server)
        bounds.append(bound)
    return models, bounds
