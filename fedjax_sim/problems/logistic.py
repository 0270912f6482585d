"""Bayesian logistic regression of two classes, with a Gaussian prior."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Key, Params


@struct.dataclass
class Logistic:
    """Clients with parts of the examples of a logistic regression; the last coefficient is the intercept, under the same prior.

    The energy is the sum of all examples' losses and of the prior's, prior_precision / 2 ||w||^2; so much of the latter belongs to a
    client as it has of the examples.
    """

    inputs: Array  # f[examples, P]  the last column 1
    labels: Array  # f[examples]  0 or 1
    test_inputs: Array
    test_labels: Array  # i32[test examples]
    index: Array  # i32[N, M]  positions of the clients' examples, padded
    counts: Array  # i32[N]  true numbers of examples
    prior_precision: Array  # f[]
    start: Array  # f[P]  initial model

    def init(self, key: Key) -> Params:
        """Start from `start`, whatever the key."""
        return self.start

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Mean loss in nats of a client's examples `i32[B]`, and the prior's part of an example."""
        return self._losses(params, self.index[client, examples]).mean() + self._penalty(params)

    def client_loss(self, params: Params, client: Array, key: Key | None) -> Array:
        """The same of all of a client's examples."""
        places = jnp.arange(self.index.shape[1])
        losses = self._losses(
            params, self.index[client, jnp.minimum(places, self.counts[client] - 1)]
        )
        return jnp.where(places < self.counts[client], losses, 0).sum() / self.counts[
            client
        ] + self._penalty(params)

    def energy(self, params: Params) -> Array:
        """Minus the logarithm of the posterior's density, but for a constant."""
        losses = jax.vmap(lambda client: self.client_loss(params, client, None))(
            jnp.arange(self.counts.shape[0])
        )
        return self.counts @ losses

    def predict(self, params: Params) -> Array:
        """Probabilities of the classes of the test examples: `f[test examples, 2]`."""
        one = jax.nn.sigmoid(self.test_inputs @ params)
        return jnp.stack([1 - one, one], axis=-1)

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Accuracy (a share, 0 to 1) and loss (nats) on the test set."""
        logits = self.test_inputs @ params
        loss = jnp.mean(jax.nn.softplus(logits) - self.test_labels * logits)
        return {
            "accuracy": jnp.mean(((logits > 0) == (self.test_labels == 1)).astype(logits.dtype)),
            "loss": loss,
        }

    def _losses(self, params: Params, rows: Array) -> Array:
        logits = self.inputs[rows] @ params
        return jax.nn.softplus(logits) - self.labels[rows] * logits

    def _penalty(self, params: Params) -> Array:
        return self.prior_precision / (2 * self.counts.sum()) * jnp.sum(jnp.square(params))


def make_logistic(
    dataset: Any, partition: Any, *, prior_precision: float = 1.0, dtype: str = "float32"
) -> Logistic:
    """Build a logistic regression; starts from 0. dataset, partition: as `datasets.load` and the functions of `partition` return them."""
    if dataset.num_classes != 2:
        raise ConfigError(
            "num_classes of the data set",
            dataset.num_classes,
            "2 for a logistic regression of two classes",
        )
    if not (np.isfinite(prior_precision) and prior_precision >= 0):
        raise ConfigError("prior_precision", prior_precision, "a finite number from 0")

    def with_intercept(images: Any) -> Array:
        flat = np.asarray(images, dtype).reshape(len(images), -1) / (
            255 if np.asarray(images).dtype == np.uint8 else 1
        )
        return jnp.asarray(np.concatenate([flat, np.ones((len(flat), 1))], axis=1), dtype)

    inputs = with_intercept(dataset.train_images)
    return Logistic(
        inputs,
        jnp.asarray(dataset.train_labels, dtype),
        with_intercept(dataset.test_images),
        jnp.asarray(dataset.test_labels, "int32"),
        jnp.asarray(partition.index, "int32"),
        jnp.asarray(partition.counts, "int32"),
        jnp.asarray(prior_precision, dtype),
        jnp.zeros(inputs.shape[1], dtype),
    )
