"""How good predicted probabilities of classes are. Letters: `n` examples, `C` classes, `B` bins of confidence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.types import Array

BINS = 15


class Reliability(NamedTuple):
    """How often predictions of a confidence are right; bins without a prediction have zeros."""

    confidence: Array  # f[B]  mean of the bin
    accuracy: Array  # f[B]  share of the bin that is right
    examples: Array  # i32[B]


def accuracy(probabilities: Array, labels: Array) -> Array:
    """Share of examples whose most probable class is right. probabilities: `f[n, C]`; labels: `i32[n]`."""
    return jnp.mean((jnp.argmax(probabilities, axis=-1) == labels).astype(probabilities.dtype))


def negative_log_likelihood(probabilities: Array, labels: Array) -> Array:
    """Mean of -log p(label), in nats; a probability of 0 counts as the smallest number above it."""
    right = jnp.take_along_axis(probabilities, labels[:, None], axis=-1)
    return -jnp.mean(jnp.log(jnp.maximum(right, jnp.finfo(right.dtype).tiny)))


def brier_score(probabilities: Array, labels: Array) -> Array:
    """Mean over examples of sum_y (p(y) - 1[y is right])^2: 0 is perfect, 2 the worst, 1 - 1/C that of a uniform guess."""
    return jnp.mean(
        jnp.sum(
            jnp.square(probabilities - jax.nn.one_hot(labels, probabilities.shape[-1])), axis=-1
        )
    )


def reliability(probabilities: Array, labels: Array, *, bins: int = BINS) -> Reliability:
    """Group predictions by the probability of their class, in bins ((b - 1) / B, b / B] (Guo et al. 2017)."""
    confidence = jnp.max(probabilities, axis=-1)
    is_right = (jnp.argmax(probabilities, axis=-1) == labels).astype(confidence.dtype)
    place = jnp.clip(jnp.ceil(confidence * bins).astype("int32") - 1, 0, bins - 1)
    count = jnp.zeros(bins, "int32").at[place].add(1)
    some = jnp.maximum(count, 1)
    return Reliability(
        jnp.zeros(bins).at[place].add(confidence) / some,
        jnp.zeros(bins).at[place].add(is_right) / some,
        count,
    )


def expected_calibration_error(probabilities: Array, labels: Array, *, bins: int = BINS) -> Array:
    """Mean distance between confidence and accuracy of the bins, weighted by their counts."""
    confidence, right, examples = reliability(probabilities, labels, bins=bins)
    return jnp.sum(examples * jnp.abs(right - confidence)) / labels.shape[0]


def of_predictions(probabilities: Array, labels: Array) -> dict[str, Array]:
    """All of the above by name: accuracy, nll, brier and ece, each a number."""
    return {
        "accuracy": accuracy(probabilities, labels),
        "nll": negative_log_likelihood(probabilities, labels),
        "brier": brier_score(probabilities, labels),
        "ece": expected_calibration_error(probabilities, labels),
    }
