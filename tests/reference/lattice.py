"""Lattice quantization in plain NumPy: a search among the points of a color."""

import functools
from collections.abc import Callable

import jax
import numpy as np
from scipy.linalg import hadamard

from fedjax_sim.core.streams import stream


def decode(
    vector: np.ndarray,
    reference: np.ndarray,
    signs: np.ndarray,
    offset: np.ndarray,
    *,
    colors: int,
    distance: float,
) -> np.ndarray:
    """Decode a vector by the point of its color that is the nearest to the reference."""
    size, num = len(vector), len(signs)
    rotation = hadamard(num) @ np.diag(signs) / np.sqrt(num)
    side = 2 * distance / (colors - 1)
    turned, near = (rotation @ np.pad(x, (0, num - size)) for x in (vector, reference))
    result = np.empty(num)
    for j in range(num):
        whole = np.rint(turned[j] / side - offset[j])
        center = np.rint(near[j] / side - offset[j])
        window = np.arange(center - colors, center + colors + 1)
        points = window[(window - whole) % colors == 0]
        entries = (points + offset[j]) * side
        result[j] = entries[np.argmin(np.abs(entries - near[j]))]
    return (rotation.T @ result)[:size]


def draws(key: jax.Array, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Signs and offset of a key."""
    with jax.enable_x64(True):
        sign_key, offset_key = jax.random.split(key)
        signs = jax.random.rademacher(sign_key, (num,), "float64")
        return np.asarray(signs), np.asarray(
            jax.random.uniform(offset_key, (num,), "float64", -0.5, 0.5)
        )


def coder(key: jax.Array, num: int, colors: int, distance: float) -> Callable[..., np.ndarray]:
    """Code of messages with the draws of an action, a client and a direction. key: of learning."""

    @functools.cache
    def of_message(action: int, client: int, way: str) -> tuple[np.ndarray, np.ndarray]:
        tick_key = jax.random.fold_in(stream(key, f"compression {way}"), action)
        return draws(jax.random.fold_in(tick_key, client), num)

    return lambda model, reference, *message: decode(
        model, reference, *of_message(*message), colors=colors, distance=distance
    )
