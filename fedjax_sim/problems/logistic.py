"""Bayesian logistic regression of two classes, with a Gaussian prior.

Dimension letters: `N` clients, `M` places for examples of a client (the rest is padding), `B`
examples of a mini-batch, `n` training and `m` test examples, `P` coefficients.
"""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core.checking import AtLeast0, FloatType, checked
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.trees import as_array, in_32_bits
from fedjax_sim.core.types import Array, Key
from fedjax_sim.datasets.arrays import Dataset
from fedjax_sim.partition import Partition
from fedjax_sim.problems.classification import check_data
from fedjax_sim.problems.client_data import check_tests, pad_partitions


@struct.dataclass
class Logistic:
    """A logistic regression on examples that clients hold.

    The last of the P coefficients w is the intercept; it has the same prior as the others. The
    energy is the sum of the losses of all training examples plus prior_precision / 2 ||w||^2. The
    prior's term is divided evenly among the examples, so a client's part of it is proportional to
    its number of examples.

    Attributes:
      inputs: `f[n, P]`, training examples; the last column is 1.
      labels: `f[n]`, 0 or 1.
      test_inputs: `f[m, P]`, like `inputs`.
      test_labels: `i32[m]`, 0 or 1.
      index: `i32[N, M]`, positions of the clients' examples in `inputs`, padded.
      counts: `i32[N]`, number of examples of each client, without padding.
      prior_precision: `f[]`, precision of the Gaussian prior.
      start: `f[P]`, the initial model.
      test_index: `i32[N, U]`, positions in `test_inputs` of each client's own test examples,
        padded; None if clients have none.
      test_counts: `i32[N]`, numbers of these.
    """

    inputs: Array
    labels: Array
    test_inputs: Array
    test_labels: Array
    index: Array
    counts: Array
    prior_precision: Array
    start: Array
    test_index: Array | None = None
    test_counts: Array | None = None

    def init(self, key: Key) -> Array:
        """Return `start`, `f[P]`; the key is ignored."""
        return self.start

    def loss(self, params: Array, client: Array, examples: Array, key: Key) -> Array:
        """Compute the mean loss of some of a client's examples, in nats.

        Args:
          params: `f[P]`, the coefficients.
          client: `i32[]`, the client's number.
          examples: `i32[B]`, positions below `counts[client]`.
          key: Ignored.

        Returns:
          `f[]`, mean cross-entropy plus the prior's part of one example.
        """
        chex.assert_rank([client, examples], [0, 1])
        return self._losses(params, self.index[client, examples]).mean() + self._penalty(params)

    def client_loss(self, params: Array, client: Array, key: Key | None) -> Array:
        """Compute the mean loss of all of a client's examples, in nats.

        Args:
          params: `f[P]`, the coefficients.
          client: `i32[]`, the client's number.
          key: Ignored.

        Returns:
          `f[]`, as `loss` gives it for all examples of the client.
        """
        chex.assert_rank(client, 0)
        places = jnp.arange(self.index.shape[1])
        rows = self.index[client, jnp.minimum(places, self.counts[client] - 1)]
        total = jnp.where(places < self.counts[client], self._losses(params, rows), 0).sum()
        return total / self.counts[client] + self._penalty(params)

    def energy(self, params: Array) -> Array:
        """Compute minus the logarithm of the posterior density, up to a constant.

        Args:
          params: `f[P]`, the coefficients.

        Returns:
          `f[]`, in nats.
        """
        losses = jax.vmap(lambda client: self.client_loss(params, client, None))(
            jnp.arange(self.counts.shape[0])
        )
        return self.counts @ losses

    def predict(self, params: Array) -> Array:
        """Compute the class probabilities of all test examples: `f[m, 2]`."""
        chex.assert_shape(params, self.inputs.shape[1:])
        one = jax.nn.sigmoid(self.test_inputs @ params)
        return jnp.stack([1 - one, one], axis=-1)

    def evaluate(self, params: Array) -> Mapping[str, Array]:
        """Measure a model on the test set.

        Args:
          params: `f[P]`, the coefficients.

        Returns:
          "accuracy" (a share, 0 to 1) and "loss" (mean cross-entropy in nats, without the prior);
          if every client has test examples, also "client_accuracy[client]" and
          "client_loss[client]": `f[N]`.
        """
        chex.assert_shape(params, self.inputs.shape[1:])
        logits = in_32_bits(self.test_inputs @ params)
        is_right = (logits > 0) == (self.test_labels == 1)
        values = {
            "accuracy": is_right.astype(logits.dtype),
            "loss": jax.nn.softplus(logits) - self.test_labels * logits,
        }
        metrics = {name: jnp.mean(value) for name, value in values.items()}
        if self.test_index is None or self.test_counts is None:
            return metrics
        is_there = jnp.arange(self.test_index.shape[1])[None] < self.test_counts[:, None]
        return metrics | {
            f"client_{name}[client]": jnp.where(is_there, value[self.test_index], 0).sum(axis=1)
            / self.test_counts
            for name, value in values.items()
        }

    def _losses(self, params: Array, rows: Array) -> Array:
        """Compute the cross-entropy of training examples `i32[B]`: `f[B]`."""
        chex.assert_shape(params, self.inputs.shape[1:])
        logits = in_32_bits(self.inputs[rows] @ params)
        return jax.nn.softplus(logits) - self.labels[rows] * logits

    def _penalty(self, params: Array) -> Array:
        """Compute the prior's part of one example's loss."""
        per_example = in_32_bits(self.prior_precision) / (2 * self.counts.sum())
        return per_example * jnp.sum(jnp.square(in_32_bits(params)))


@checked
def make_logistic(
    dataset: Dataset,
    partition: Partition,
    *,
    prior_precision: AtLeast0 = 1.0,
    dtype: FloatType = "float32",
    test_partition: Partition | None = None,
) -> Logistic:
    """Build a logistic regression that starts from zero coefficients.

        two = data._replace(train_labels=data.train_labels % 2, test_labels=data.test_labels % 2)
        two = two._replace(num_classes=2)
        problem = make_logistic(two, iid(two.train_labels, num_clients=5, seed=0))
        assert problem.init(key).shape == (4 * 4 * 1 + 1,)  # a coefficient for each pixel, and 1

    Args:
      dataset: Training and test set with two classes, as `fedjax_sim.datasets.load` returns them.
      partition: Who holds which training example, from a function of `fedjax_sim.partition`.
      prior_precision: Precision of the Gaussian prior on all coefficients, at least 0.
      dtype: Floating type of the problem. "float64" needs `jax.enable_x64`.
      test_partition: The clients' own test examples, on which the model is evaluated for each
        client too; None for none.

    Returns:
      The problem. Bytes are scaled to [0, 1]; other inputs are used as they are.

    Raises:
      ConfigError: If the data are not allowed or have other classes than 0 and 1,
        `prior_precision` is not allowed, or a partition does not fit the data set.
    """
    if dataset.num_classes != 2:
        allowed = "2 for a logistic regression of two classes"
        raise ConfigError("num_classes of the data set", dataset.num_classes, allowed)
    check_data(dataset)
    for name in ("train_labels", "test_labels"):
        if (largest := int(np.max(getattr(dataset, name), initial=0))) > 1:
            raise ConfigError(f"largest of {name}", largest, "at most 1")
    [(index, counts)] = pad_partitions([partition], len(dataset.train_labels))
    test_index = test_counts = None
    if test_partition is not None:
        check_tests([partition], [test_partition])
        [(test_index, test_counts)] = pad_partitions([test_partition], len(dataset.test_labels))

    def with_intercept(images: np.ndarray) -> Array:
        scale = 255 if np.asarray(images).dtype == np.uint8 else 1
        flat = np.asarray(images, dtype).reshape(len(images), -1) / scale
        return as_array(np.concatenate([flat, np.ones((len(flat), 1))], axis=1), dtype)

    inputs, test_inputs = with_intercept(dataset.train_images), with_intercept(dataset.test_images)
    labels = as_array(dataset.train_labels, dtype)
    test_labels = as_array(dataset.test_labels, "int32")
    return Logistic(
        inputs=inputs,
        labels=labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        index=index,
        counts=counts,
        prior_precision=as_array(prior_precision, dtype),
        start=jnp.zeros(inputs.shape[1], dtype),
        test_index=test_index,
        test_counts=test_counts,
    )
