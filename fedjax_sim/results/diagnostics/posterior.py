"""Scores of class probabilities, and averaged predictions of a sampler's samples.

For whole runs, start with `results.diagnostics.to_arviz`, which keeps settings apart; the
functions here take plain arrays. Each lane of a run is one chain. Samples are `Run.samples` of
`sweep(..., keep=Keep(models=True))`: a model whose leaves are `[L, V, ...]`, one for each
evaluation, with the initial model first.

Dimension letters: `L` lanes (chains), `V` evaluations of a lane, `s` samples of a lane that are
kept, `m` examples, `K` classes, `b` bins of confidence. The *confidence* of a prediction is the
probability of its most probable class.
"""

from typing import Annotated, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import ConfigError, Count, Limit, Whole, checked_all, shape
from fedjax_sim.core.types import Array, Params

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


class Predictor(Protocol):
    """A problem with models that predict classes of test examples.

    Attributes:
      test_labels: `i32[m]`, the right classes.
    """

    test_labels: Array

    def predict(self, params: Params) -> Array:
        """Compute the class probabilities of all test examples: `f[m, K]`.

        Args:
          params: A model.
        """


class Predictive(NamedTuple):
    """Predictions averaged over samples.

    Attributes:
      curves: "accuracy", "nll", "brier" and "ece" of the running average after each sample, each
        `f[L, s]`.
      probabilities: `f[L, m, K]`, class probabilities averaged over all samples.
    """

    curves: dict[str, np.ndarray]
    probabilities: np.ndarray


def thin_samples(samples: Params, *, burn_in: Whole = 1, thin: Count = 1) -> Params:
    """Drop the first evaluations of each lane and keep every `thin`-th of the rest.

        samples = np.arange(10).reshape(1, 10)  # of one chain
        assert thin_samples(samples, burn_in=2, thin=3).tolist() == [[2, 5, 8]]

    Args:
      samples: A pytree of leaves `[L, V, ...]`.
      burn_in: Number of evaluations dropped, from 0 to V - 1. The default drops the initial model.
      thin: Distance between evaluations that are kept, from 1 to V. The first one after the burn-in
        is kept.

    Returns:
      The samples kept, a pytree of leaves `[L, s, ...]`.

    Raises:
      ConfigError: If `burn_in` or `thin` is out of range, or leaves differ in their first two
        dimensions.
    """
    shapes = {np.shape(leaf)[:2] for leaf in jax.tree.leaves(samples)}
    if len(shapes) != 1 or len(num_lanes_and_evals := shapes.pop()) != 2:
        found = [np.shape(leaf) for leaf in jax.tree.leaves(samples)]
        raise ConfigError("shapes of samples", found, "[L, V, ...] with one L and one V")
    check_kept(num_lanes_and_evals[1], burn_in, thin)
    return jax.tree.map(lambda leaf: leaf[:, burn_in::thin], samples)


def check_kept(num: int, burn_in: int, thin: int) -> None:
    """Check that some of so many evaluations are kept."""
    for name, value, least, most in (("burn_in", burn_in, 0, num - 1), ("thin", thin, 1, num)):
        if value > most:
            allowed = f"a whole number from {least} to {most}, as there are {num} evaluations"
            raise ConfigError(name, value, allowed)


def average_predictions(
    problem: Predictor, samples: Params, *, burn_in: Whole = 1, thin: Count = 1
) -> Predictive:
    """Average the predictions of each lane's samples, and score the average after each sample.

        samples = np.zeros((1, 3, 17), "float32")  # one chain of a logistic regression, all w = 0
        found = average_predictions(logistic, samples, burn_in=1)
        assert (found.probabilities == 1 / 2).all() and found.curves["accuracy"].shape == (1, 2)

    Args:
      problem: The problem whose test set is predicted.
      samples: A pytree of leaves `[L, V, ...]`.
      burn_in: Number of evaluations dropped, from 0 to V - 1. The default drops the initial model.
      thin: Distance between evaluations that are kept, from 1 to V.

    Returns:
      Scores of the running average, and the average over all samples kept.

    Raises:
      ConfigError: If `burn_in` or `thin` is out of range.
    """
    curves, probabilities = _predictive(problem, thin_samples(samples, burn_in=burn_in, thin=thin))
    return Predictive(
        {name: np.asarray(values) for name, values in curves.items()}, np.asarray(probabilities)
    )


@jax.jit
def _predictive(problem: Predictor, samples: Params) -> tuple[dict[str, Array], Array]:
    """Average and score the predictions of samples `[L, s, ...]`, lane after lane."""

    def average(samples: Params) -> tuple[dict[str, Array], Array]:
        def add(
            total: tuple[Array, Array], params: Params
        ) -> tuple[tuple[Array, Array], dict[str, Array]]:
            summed, num = total[0] + problem.predict(params), total[1] + 1
            return (summed, num), score_predictions(summed / num, problem.test_labels)

        first = jax.tree.map(lambda leaf: leaf[0], samples)
        one = jax.eval_shape(problem.predict, first)
        # Long sums are kept in at least 32 bits.
        zeros = jnp.zeros(one.shape, jnp.promote_types(one.dtype, "float32"))
        (summed, num), curves = jax.lax.scan(add, (zeros, jnp.zeros((), zeros.dtype)), samples)
        return curves, summed / num

    return jax.lax.map(average, samples)


checked_all(__name__)
