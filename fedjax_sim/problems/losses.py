"""Losses and metrics of single examples, as `supervised` takes them.

Each is a function of what a network computes for some examples and of their targets, and returns
one number per example; for sequences whose targets are masked, one per entry. `Metric` is for
numbers along further dimensions, such as one accuracy per class.

Dimension letters: `B` examples, `K` classes, `D` numbers that are predicted for an example.
"""

import functools
from collections.abc import Callable, Hashable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.core.settings import ConfigError, Count, checked
from fedjax_sim.core.types import Array, Params
from fedjax_sim.problems.client_data import check_range

PerExample = Callable[[Params, Params], Array]
"""From outputs and targets of B examples to one number for each, `[B]` or `[B, ...]`."""


@checked
class Metric(NamedTuple):
    """A mean over examples, or several along named dimensions.

        metrics = {"error": Metric(absolute_error, less_is_better=True)}
        network = models.MLP((4,), 1)
        problem = problems.supervised(
            network, squared_error, (inputs, targets), clients=names, metrics=metrics
        )

    Attributes:
      values: From outputs and targets to numbers, one per example (per entry, if there is a mask)
        and per place along the dimensions: `[B, *dims]`.
      among: From the same to bools of the same shape: over which entries a mean is taken. By
        default all.
      dims: Names of the dimensions.
      labels: For each dimension the labels of its places; by default they are numbered.
      less_is_better: Whether small values are good ones, as they are of a loss.
    """

    values: PerExample
    among: PerExample | None = None
    dims: tuple[str, ...] = ()
    labels: tuple[tuple[Hashable, ...], ...] = ()
    less_is_better: bool = False


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Compute the cross-entropy of classes.

        losses = cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3]))
        assert jnp.allclose(losses, jnp.log(4))  # of four classes

    Args:
      logits: `f[B, ..., K]`.
      labels: `i[B, ...]`, classes from 0.

    Returns:
      `f[B, ...]`, in nats.

    Raises:
      ConfigError: If the labels are no whole numbers, or the shapes do not match.
    """
    _check_classes(logits, labels)
    # Not with integer labels: the gradient of a look-up is a scatter, slow on accelerators.
    hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return optax.softmax_cross_entropy(logits, hot)


def is_right(logits: Array, labels: Array) -> Array:
    """Tell whether the largest logit is that of the right class; its mean is the accuracy.

        logits = jnp.array([[0.0, 1.0], [0.0, 1.0]])
        assert is_right(logits, jnp.array([1, 0])).tolist() == [True, False]

    Args:
      logits: `f[B, ..., K]`.
      labels: `i[B, ...]`, classes from 0.

    Returns:
      `bool[B, ...]`.

    Raises:
      ConfigError: As `cross_entropy`.
    """
    _check_classes(logits, labels)
    return jnp.argmax(logits, axis=-1) == labels


@functools.cache
@checked
def accuracy_of_classes(num_classes: Count) -> Metric:
    """Make a metric of the accuracy on the examples of each class.

        metrics = {"accuracy": is_right, "accuracy_of": accuracy_of_classes(10)}
        assert metrics["accuracy_of"].dims == ("class",)

    Args:
      num_classes: K.

    Returns:
      A metric with the dimension `class`, of which the accuracy is nan for a class without test
      examples.
    """

    def values(logits: Array, labels: Array) -> Array:
        right = is_right(logits, labels)[..., None]
        return jnp.broadcast_to(right, (*labels.shape, num_classes))

    def among(logits: Array, labels: Array) -> Array:
        classes = jnp.arange(num_classes).reshape((1,) * labels.ndim + (-1,))
        return labels[..., None] == classes

    return Metric(values, among, ("class",), (tuple(range(num_classes)),))


def squared_error(outputs: Array, targets: Array) -> Array:
    """Compute the squared error of predicted numbers, the mean over an example's numbers.

        assert squared_error(jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 5.0]])) == (0**2 + 3**2) / 2

    Args:
      outputs: `f[B, ...]`; of one number per example also `f[B, 1]`.
      targets: `f[B, ...]`.

    Returns:
      `f[B]`.

    Raises:
      ConfigError: If the shapes do not match.
    """
    return _mean_of_example(jnp.square(_difference(outputs, targets)))


def absolute_error(outputs: Array, targets: Array) -> Array:
    """Compute the absolute error of predicted numbers, the mean over an example's numbers.

    `outputs` and `targets` are those of `squared_error`.

        assert absolute_error(jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 5.0]])) == (0 + 3) / 2

    Returns:
      `f[B]`.

    Raises:
      ConfigError: If the shapes do not match.
    """
    return _mean_of_example(jnp.abs(_difference(outputs, targets)))


def binary_cross_entropy(logits: Array, labels: Array) -> Array:
    """Compute the cross-entropy of labels that are there or not, the mean over an example's labels.

        loss = binary_cross_entropy(jnp.zeros((1, 2)), jnp.array([[0, 1]]))
        assert jnp.allclose(loss, jnp.log(2))

    Args:
      logits: `f[B, K]`, one for each label.
      labels: `[B, K]`, 0 or 1.

    Returns:
      `f[B]`, in nats.

    Raises:
      ConfigError: If the shapes do not match.
    """
    if logits.shape != labels.shape:
        allowed = f"that of the targets, {labels.shape}"
        raise ConfigError("shape of the outputs", logits.shape, allowed)
    check_range("the targets", labels, 0, 1)
    return _mean_of_example(optax.sigmoid_binary_cross_entropy(logits, labels))


def _check_classes(logits: Array, labels: Array) -> None:
    """Check that there are logits for each label, and that labels are classes of theirs."""
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        allowed = "whole numbers, the classes from 0"
        raise ConfigError("dtype of the targets", str(labels.dtype), allowed)
    if logits.shape[:-1] != labels.shape:
        allowed = f"({', '.join(map(str, labels.shape))}, K), K logits for each of the targets"
        raise ConfigError("shape of the outputs", logits.shape, allowed)
    check_range("the targets", labels, 0, logits.shape[-1] - 1)


def _difference(outputs: Array, targets: Array) -> Array:
    """Subtract targets without broadcasting. Outputs of one number may have an axis for it."""
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.reshape(targets.shape)
    if outputs.shape != targets.shape:
        allowed = f"that of the targets, {targets.shape}"
        raise ConfigError("shape of the outputs", outputs.shape, allowed)
    return outputs - targets


def _mean_of_example(values: Array) -> Array:
    """Average over all axes but the first."""
    return values.reshape(values.shape[0], -1).mean(axis=1)
