"""DIANA and VR-DIANA as slow loops in plain NumPy, from Algorithms 1 and 3 of arXiv 1904.05115."""

from collections.abc import Callable

import numpy as np

Slope = Callable[[int, int, np.ndarray], np.ndarray]
"""From a client, the number of its mini-batch and a model to a gradient."""
Whole = Callable[[int, np.ndarray], np.ndarray]
"""From a client and a model to the gradient of all its examples."""
Quantize = Callable[[int, int, np.ndarray], np.ndarray]
"""From a tick, a client and a vector to the vector compressed with their random numbers."""


def diana(
    start: np.ndarray,
    first: np.ndarray,
    *,
    active: np.ndarray,
    slope: Slope,
    quantize: Quantize,
    alpha: float,
    gamma: float,
    p: float,
    whole: Whole | None = None,
    coins: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Return the model after each round.

    Memories begin with `first`, `f[n, q]`; `active`, `bool[T, n]`, says who takes part. With
    `whole` it is VR-DIANA, whose coins of the rounds are `coins`.
    """
    x, h = start.copy(), [row.copy() for row in first]
    n, drawn = len(h), [0] * len(h)
    anchor, models = start.copy(), []
    for k, takes_part in enumerate(active):
        mean, total = sum(h) / n, np.zeros_like(x)
        for i in np.flatnonzero(takes_part):
            g = slope(i, drawn[i], x)
            if whole is not None:
                g = g - slope(i, drawn[i], anchor) + whole(i, anchor)
            drawn[i] += 1
            message = quantize(k, i, g - h[i])
            h[i] = h[i] + alpha * message
            total = total + message
        before, x = x, x - gamma * (mean + total / (n * p))
        if coins is not None and coins[k]:
            anchor = before
        models.append(x)
    return models
