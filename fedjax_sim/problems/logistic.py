"""Bayesian logistic regression of two classes, with a Gaussian prior.

Dimension letters: `N` clients, `n` training and `m` test examples, `P` coefficients.
"""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core.settings import AtLeast0, ConfigError, FloatType, checked
from fedjax_sim.core.trees import as_array
from fedjax_sim.core.types import Array, Key
from fedjax_sim.datasets.arrays import Dataset
from fedjax_sim.partition import Partition
from fedjax_sim.problems import building
from fedjax_sim.problems.classification import check_data
from fedjax_sim.problems.losses import Metric
from fedjax_sim.problems.supervision import Supervised


class _Linear:
    """The network: logits `f[B]` of inputs `f[B, P]`, from coefficients that begin at 0."""

    def init(self, key: Key, x: Array, /) -> Array:
        return jnp.zeros(x.shape[1:], x.dtype)

    def apply(self, params: Array, x: Array, /) -> Array:
        chex.assert_shape(params, x.shape[1:])
        return x @ params


def _cross_entropy(logits: Array, labels: Array) -> Array:
    return jax.nn.softplus(logits) - labels * logits


def _is_right(logits: Array, labels: Array) -> Array:
    return (logits > 0) == (labels == 1)


_LINEAR = _Linear()


@struct.dataclass(repr=False)
class Logistic(Supervised):
    """A logistic regression on examples that clients hold.

    The last of the P coefficients w is the intercept; it has the same prior as the others. The
    energy is the sum of the losses of all training examples plus prior_precision / 2 ||w||^2. The
    prior's term is divided evenly among the examples, so a client's part of it is proportional to
    its number of examples.

    The data are inputs `f[n, P]`, whose last column is 1, and labels `f[n]`, 0 or 1.
    """

    @property
    def test_labels(self) -> Array:
        """Classes of the test examples: `i32[m]`."""
        return self.test_data[1].astype("int32")

    def energy(self, params: Array) -> Array:
        """Compute minus the logarithm of the posterior density, up to a constant.

        Args:
          params: `f[P]`, the coefficients.

        Returns:
          `f[]`, in nats.
        """
        losses = jax.vmap(lambda client: self.client_loss(params, client, jax.random.key(0)))(
            jnp.arange(self.counts.shape[0])
        )
        return self.counts @ losses

    def predict(self, params: Array) -> Array:
        """Compute the class probabilities of all test examples: `f[m, 2]`."""
        one = jax.nn.sigmoid(self.outputs(params))
        return jnp.stack([1 - one, one], axis=-1)


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

    def examples(images: np.ndarray, labels: np.ndarray) -> tuple[Array, Array]:
        scale = 255 if np.asarray(images).dtype == np.uint8 else 1
        flat = np.asarray(images, dtype).reshape(len(images), -1) / scale
        inputs = as_array(np.concatenate([flat, np.ones((len(flat), 1))], axis=1), dtype)
        return inputs, as_array(labels, dtype)

    data = examples(dataset.train_images, dataset.train_labels)
    tests = None if test_partition is None else [test_partition]
    make = partial(
        Logistic,
        data=data,
        test_data=examples(dataset.test_images, dataset.test_labels),
        model=_LINEAR,
        loss_of=_cross_entropy,
        metrics=(("accuracy", Metric(_is_right)),),
        prior_precision=as_array(prior_precision, dtype),
        start=jnp.zeros(data[0].shape[1], dtype),
        per_client=test_partition is not None,
        test_block=len(dataset.test_labels),
    )
    [problem] = building.build(make, [partition], tests)
    return problem
