"""Classification over a model."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from fedjax_sim.models.calls import takes_train
from fedjax_sim.problems.augmentation import Augmentation
from fedjax_sim.settings import ConfigError
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Key, Model, Params

EVALUATED_AT_ONCE = 500
"""Test examples whose activations are in memory together."""


@struct.dataclass
class Classification:
    """Cross-entropy of a model's logits. All images lie on the device once, as they come; a partition is an index array.

    Byte images are scaled to [0, 1] as they are gathered (and augmented, for local steps), then normalised by `mean` and `std`. A model
    whose calls take `train` is called with `train=True` and random streams named "dropout" and "quantize" in local steps. With
    `prior_precision` the parameters have a Gaussian prior: prior_precision / 2 ||w||^2 is shared out evenly over all examples' losses.
    """

    images: Array  # u8 or f32 [examples, H, W, C] or [examples, D]
    labels: Array  # i32[examples]
    test_images: Array
    test_labels: Array
    index: Array  # i32[N, M]  positions of the clients' examples, padded
    counts: Array  # i32[N]  true numbers of examples
    mean: Array  # f32[] or f32[C]
    std: Array  # f32[] or f32[C]
    model: Model = struct.field(pytree_node=False)
    augmentation: Augmentation | None = struct.field(pytree_node=False, default=None)
    classes: int = struct.field(pytree_node=False, default=0)
    """Classes whose own accuracy is evaluated too."""
    prior_precision: Array | None = None  # f32[]

    def init(self, key: Key) -> Params:
        """Draw the model's initial parameters."""
        return self.model.init(key, self._inputs(self.images[:1]))

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Mean cross-entropy in nats of a client's examples `i32[B]`."""
        return self._losses(params, self.index[client, examples], key).mean() + self._penalty(
            params
        )

    def client_loss(self, params: Params, client: Array, key: Key) -> Array:
        """The same of all of a client's examples."""
        places = jnp.arange(self.index.shape[1])
        losses = self._losses(
            params, self.index[client, jnp.minimum(places, self.counts[client] - 1)], key
        )
        return jnp.where(places < self.counts[client], losses, 0).sum() / self.counts[
            client
        ] + self._penalty(params)

    def predict(self, params: Params) -> Array:
        """Probabilities of the classes of the test examples, a few hundred examples at once: `f32[test examples, classes]`."""
        num = self.test_labels.shape[0]
        at_once = min(num, EVALUATED_AT_ONCE)
        rows = jnp.minimum(jnp.arange(-(-num // at_once) * at_once), num - 1).reshape(-1, at_once)
        logits = jax.lax.map(
            lambda rows: self.model.apply(params, self._inputs(self.test_images[rows])), rows
        )
        return jax.nn.softmax(logits.reshape(-1, logits.shape[-1])[:num])

    def _losses(self, params: Params, rows: Array, key: Key) -> Array:
        images = self.images[rows]
        if self.augmentation is not None:
            images = self.augmentation(stream(key, "augmentation"), images)
        rngs = {"dropout": stream(key, "dropout"), "quantize": stream(key, "quantize")}
        options = {"train": True, "rngs": rngs} if takes_train(self.model) else {}
        return self._cross_entropy(
            self.model.apply(params, self._inputs(images), **options), self.labels[rows]
        )

    def _penalty(self, params: Params) -> Array | float:
        if self.prior_precision is None:
            return 0.0
        return (
            self.prior_precision / (2 * self.counts.sum()) * optax.tree.norm(params, squared=True)
        )

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Accuracy (a share, 0 to 1) and loss (nats) on the test set, a few hundred examples at once.

        With `classes` also the accuracy on each class alone, "accuracy_0" and so on.
        """
        num = self.test_labels.shape[0]
        at_once = min(num, EVALUATED_AT_ONCE)

        def sums(rows: Array) -> tuple[Array, Array, Array]:
            is_there, rows = rows < num, jnp.minimum(rows, num - 1)
            logits, labels = (
                self.model.apply(params, self._inputs(self.test_images[rows])),
                self.test_labels[rows],
            )
            is_right = (jnp.argmax(logits, axis=-1) == labels) & is_there
            by_class = (
                is_right[:, None] & (labels[:, None] == jnp.arange(self.classes)[None])
            ).sum(axis=0)
            return (
                jnp.sum(is_right),
                jnp.sum(jnp.where(is_there, self._cross_entropy(logits, labels), 0)),
                by_class,
            )

        num_batches = -(-num // at_once)
        right, loss, by_class = jax.lax.map(
            sums, jnp.arange(num_batches * at_once).reshape(num_batches, at_once)
        )
        metrics = {"accuracy": right.sum().astype("float32") / num, "loss": loss.sum() / num}
        shares = by_class.sum(axis=0) / (
            self.test_labels[:, None] == jnp.arange(self.classes)[None]
        ).sum(axis=0)
        return metrics | {f"accuracy_{c}": shares[c] for c in range(self.classes)}

    def _inputs(self, images: Array) -> Array:
        scale = 255.0 if images.dtype == jnp.uint8 else 1.0
        mean, std = (x.reshape((1,) * (images.ndim - 1) + (-1,)) for x in (self.mean, self.std))
        return (images.astype("float32") / scale - mean) / std

    @staticmethod
    def _cross_entropy(logits: Array, labels: Array) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def make_classification(
    model: Model, dataset: Any, partition: Any, **options: Any
) -> Classification:
    """Build a classification problem. dataset, partition: as `datasets.load` and the functions of `partition` return them.

    Options: those of `classifications`.
    """
    return make_classifications(model, dataset, [partition], **options)[0]


def make_classifications(
    model: Model,
    dataset: Any,
    partitions: Sequence[Any],
    *,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    augmentation: Augmentation | None = None,
    per_class: bool = False,
    prior_precision: float | None = None,
) -> list[Classification]:
    """Build one problem per partition over the same images, which are held once; for a sweep with a partition per seed.

    mean, std: of the scaled images, one number or one per channel. per_class: whether accuracy is evaluated for each class too.
    prior_precision: of a Gaussian prior on the parameters; None is a flat one.
    """
    if prior_precision is not None and not (np.isfinite(prior_precision) and prior_precision >= 0):
        raise ConfigError("prior_precision", prior_precision, "None, or a finite number from 0")
    if np.min(std) <= 0:
        raise ConfigError("std", std, "above 0")
    channels = dataset.train_images.shape[-1]
    for name, value in (("mean", mean), ("std", std)):
        if np.shape(value) not in ((), (channels,)):
            raise ConfigError(name, value, f"one number, or {channels}: one per channel")
    capacity = max(partition.index.shape[1] for partition in partitions)
    _check_data(dataset, partitions)
    images, test_images = jnp.asarray(dataset.train_images), jnp.asarray(dataset.test_images)
    labels, test_labels = (
        jnp.asarray(np.asarray(x, "int32")) for x in (dataset.train_labels, dataset.test_labels)
    )
    middle, scale = jnp.asarray(mean, "float32"), jnp.asarray(std, "float32")
    prior = None if prior_precision is None else jnp.asarray(prior_precision, "float32")
    problems = []
    for partition in partitions:
        padding = ((0, 0), (0, capacity - partition.index.shape[1]))
        index = jnp.asarray(np.pad(np.asarray(partition.index, "int32"), padding))
        counts = jnp.asarray(partition.counts, "int32")
        arrays = (images, labels, test_images, test_labels, index, counts, middle, scale)
        classes = dataset.num_classes if per_class else 0
        problems.append(Classification(*arrays, model, augmentation, classes, prior))
    return problems


def _check_data(dataset: Any, partitions: Sequence[Any]) -> None:
    for name in ("train_images", "test_images"):
        images = np.asarray(getattr(dataset, name))
        if images.dtype != np.uint8 and not np.isfinite(images).all():
            raise ConfigError(name, "an array with nan or inf", "finite")
    for name in ("train_labels", "test_labels"):
        if np.asarray(getattr(dataset, name)).min(initial=0) < 0:
            raise ConfigError(name, "an array with negative labels", "at least 0")
    for partition in partitions:
        check_partition(partition, len(dataset.train_labels))


def check_partition(partition: Any, num_examples: int) -> None:
    """Raise ConfigError unless every client has an example, and all of them are there."""
    counts, index = np.asarray(partition.counts), np.asarray(partition.index)
    if counts.min() < 1 or counts.max() > index.shape[1]:
        raise ConfigError(
            "partition.counts",
            int(counts.min()),
            f"from 1 to the {index.shape[1]} places of a client",
        )
    if index.min() < 0 or index.max() >= num_examples:
        raise ConfigError(
            "partition.index",
            int(index.max()),
            f"positions of the {num_examples} training examples",
        )
