"""The quantizers of low-bit training, compiled, and two of them written in NumPy."""

import jax
import numpy as np

from fedjax_sim import compression
from fedjax_sim.kernels import rounding

# Compiled, because one operation after the other would take seconds.
luq = jax.jit(compression.luq, static_argnames=("bits", "top"))

uniform, sawb, max_abs = (
    jax.jit(q, static_argnames=("bits", "levels"))
    for q in (rounding.uniform, rounding.sawb, rounding.max_abs)
)


def uniform_in_numpy(x: np.ndarray, low: int, high: int, half_width: float) -> np.ndarray:
    step = 2 * half_width / (high - low)
    return step * np.clip(np.round(x / step), low, high)


def sawb_in_numpy(x: np.ndarray, bits: int, *, signed: bool = True) -> np.ndarray:
    """Round with SAWB's range and the levels of LUQ's code."""
    first, second = {3: (7.4, 6.66), 4: (12.1, 12.2)}[bits]
    clip = first * np.sqrt(np.mean(x**2)) - second * np.mean(np.abs(x))
    return uniform_in_numpy(
        x, *((-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits - 1)), clip
    )
