"""Scores of predicted class probabilities.

Dimension letters: `m` examples, `K` classes, `b` bins of confidence. The *confidence* of a
prediction is the probability of its most probable class.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.checking import Count, Limit, checked, shape
from fedjax_sim.core.types import Array

BINS = 15
"""Default number of bins of confidence."""

Probabilities = Annotated[Array, shape("m K"), Limit(least=0, most=1, may_be_nan=True)]
"""`f[m, K]`, those of models that diverged are nan."""
Labels = Annotated[Array, shape("m"), Limit(least=0, below="K", is_whole=True)]


class Reliability(NamedTuple):
    """How often predictions are right, by their confidence. Empty bins have zeros.

    Attributes:
      confidence: `f[b]`, mean confidence of the predictions in each bin.
      accuracy: `f[b]`, share of the predictions in each bin that are right.
      examples: `i32[b]`, number of predictions in each bin.
    """

    confidence: Array
    accuracy: Array
    examples: Array


@checked
def accuracy(probabilities: Probabilities, labels: Labels) -> Array:
    """Compute the accuracy: the share of examples with the right class as the most probable one.

        probabilities, labels = jnp.array([[0.9, 0.1], [0.4, 0.6]]), jnp.array([0, 0])
        assert accuracy(probabilities, labels) == 1 / 2

    Args:
      probabilities: `f[m, K]`, probability of each class.
      labels: `i32[m]`, the right classes.

    Returns:
      `f[]`, from 0 to 1; nan if a probability is.
    """
    is_right = (jnp.argmax(probabilities, axis=-1) == labels).astype(probabilities.dtype)
    # The largest of numbers with a nan is the nan.
    return jnp.mean(jnp.where(jnp.isnan(probabilities.max(axis=-1)), jnp.nan, is_right))


@checked
def negative_log_likelihood(probabilities: Probabilities, labels: Labels) -> Array:
    """Compute the mean of -log p(right class).

        probabilities, labels = jnp.array([[0.9, 0.1], [0.4, 0.6]]), jnp.array([0, 0])
        found = negative_log_likelihood(probabilities, labels)
        assert np.isclose(found, -(np.log(0.9) + np.log(0.4)) / 2)

    Args:
      probabilities: `f[m, K]`, probability of each class. A probability of 0 counts as the smallest
        positive number of the dtype.
      labels: `i32[m]`, the right classes.

    Returns:
      `f[]`, in nats.
    """
    right = jnp.take_along_axis(probabilities, labels[:, None], axis=-1)
    return -jnp.mean(jnp.log(jnp.maximum(right, jnp.finfo(right.dtype).tiny)))


@checked
def brier_score(probabilities: Probabilities, labels: Labels) -> Array:
    """Compute the mean over examples of sum_y (p(y) - 1[y is right])^2.

        probabilities, labels = jnp.array([[0.9, 0.1], [0.4, 0.6]]), jnp.array([0, 0])
        assert np.isclose(brier_score(probabilities, labels), (2 * 0.1**2 + 2 * 0.6**2) / 2)

    Args:
      probabilities: `f[m, K]`, probability of each class.
      labels: `i32[m]`, the right classes.

    Returns:
      `f[]`: 0 is perfect, 2 is the worst, and a uniform guess has 1 - 1/K.
    """
    right = jax.nn.one_hot(labels, probabilities.shape[-1])
    return jnp.mean(jnp.sum(jnp.square(probabilities - right), axis=-1))


@checked
def reliability(probabilities: Probabilities, labels: Labels, *, bins: Count = BINS) -> Reliability:
    """Group predictions by confidence, in the bins ((i - 1) / b, i / b] (Guo et al. 2017).

        probabilities, labels = jnp.array([[0.9, 0.1], [0.4, 0.6]]), jnp.array([0, 0])
        found = reliability(probabilities, labels, bins=2)  # both are in the upper bin
        assert found.examples.tolist() == [0, 2] and found.accuracy[1] == 1 / 2

    Args:
      probabilities: `f[m, K]`, probability of each class.
      labels: `i32[m]`, the right classes.
      bins: b, the number of bins.

    Returns:
      Confidence, accuracy and number of predictions of every bin.
    """
    confidence = jnp.max(probabilities, axis=-1)
    is_right = (jnp.argmax(probabilities, axis=-1) == labels).astype(confidence.dtype)
    place = jnp.clip(jnp.ceil(confidence * bins).astype("int32") - 1, 0, bins - 1)
    count = jnp.zeros(bins, "int32").at[place].add(1)
    divisor = jnp.maximum(count, 1)
    return Reliability(
        jnp.zeros(bins).at[place].add(confidence) / divisor,
        jnp.zeros(bins).at[place].add(is_right) / divisor,
        count,
    )


@checked
def expected_calibration_error(
    probabilities: Probabilities, labels: Labels, *, bins: Count = BINS
) -> Array:
    """Compute the mean distance between confidence and accuracy of the bins.

        probabilities, labels = jnp.array([[0.9, 0.1], [0.4, 0.6]]), jnp.array([0, 0])
        error = expected_calibration_error(probabilities, labels, bins=2)
        assert np.isclose(error, abs(1 / 2 - (0.9 + 0.6) / 2))  # both are in the upper bin

    Args:
      probabilities: `f[m, K]`, probability of each class.
      labels: `i32[m]`, the right classes.
      bins: b, the number of bins.

    Returns:
      `f[]`, from 0 to 1; bins are weighted by their number of predictions.
    """
    confidence, right, examples = reliability(probabilities, labels, bins=bins)
    return jnp.sum(examples * jnp.abs(right - confidence)) / labels.shape[0]


@checked
def score_predictions(probabilities: Probabilities, labels: Labels) -> dict[str, Array]:
    """Compute all scores of predictions.

        probabilities, labels = jnp.array([[0.9, 0.1], [0.4, 0.6]]), jnp.array([0, 0])
        scores = score_predictions(probabilities, labels)
        assert scores["accuracy"] == 1 / 2 and set(scores) == {"accuracy", "nll", "brier", "ece"}

    Args:
      probabilities: `f[m, K]`, probability of each class.
      labels: `i32[m]`, the right classes.

    Returns:
      "accuracy", "nll", "brier" and "ece" (expected calibration error), each `f[]`.
    """
    return {
        "accuracy": accuracy(probabilities, labels),
        "nll": negative_log_likelihood(probabilities, labels),
        "brier": brier_score(probabilities, labels),
        "ece": expected_calibration_error(probabilities, labels),
    }
