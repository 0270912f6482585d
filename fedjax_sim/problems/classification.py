"""Cases of `fedjax_sim.problems.Supervised` with classes: images, characters of texts, and two.

Training images may be cropped and mirrored at random. Each mini-batch is changed anew inside the
compiled program, so no changed image is ever stored. The clients of a play are its speakers. Two
classes may have a Bayesian logistic regression, with a Gaussian prior.

Dimension letters: `N` clients, `B` examples of a mini-batch, `n` training and `m` test examples,
`K` classes or character codes, `H`, `W`, `C` height, width and channels of an image, `L` characters
that are predicted in a sequence, `P` coefficients.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.tree_util import Partial

from fedjax_sim.core import settings, streams, trees
from fedjax_sim.core.settings import AtLeast0, ConfigError, Whole, checked
from fedjax_sim.core.targets import is_for_cpu
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.datasets.arrays import Dataset
from fedjax_sim.datasets.text import PADDING, UNKNOWN, Text
from fedjax_sim.models.calls import Model, outputs_of
from fedjax_sim.partition import Partition
from fedjax_sim.problems import building, client_data
from fedjax_sim.problems.client_data import on_device
from fedjax_sim.problems.losses import Metric, accuracy_of_classes, cross_entropy, is_right
from fedjax_sim.problems.supervision import Supervised, check_shapes, inf_for_nan


@checked
@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random crop of a padded image, then mirroring left to right with probability 1/2.

        images = jnp.full((2, 4, 4, 1), 7, "uint8")
        assert (Augmentation(pad=0, flip=True)(key, images) == images).all()  # mirrored, all alike
        clients = iid(data.train_labels, num_clients=5, seed=0)
        crops = Augmentation(pad=1)
        problem = make_classification(MLP((16,), 10), data, clients, augmentation=crops)

    Attributes:
      pad: Number of rows and columns added on each side before a crop of the image's size is taken,
        at least 0; 0 means no crop.
      flip: Whether images are mirrored.
      border: What is added: "black", or the image beyond its edge, "reflect".
    """

    pad: Whole = 4
    flip: bool = True
    border: Literal["black", "reflect"] = "black"

    def __call__(self, key: Key, images: Array) -> Array:
        """Crop and mirror each image at random.

        Args:
          key: Random key of the mini-batch.
          images: `u8[B, H, W, C]` or `f[B, H, W, C]`, before normalisation: black is 0.

        Returns:
          Images of the same shape and dtype.
        """
        chex.assert_rank(images, 4)
        if self.pad:
            images = _crop(streams.stream(key, "crop"), images, self.pad, self.border)
        if self.flip:
            half = jnp.float32(0.5)
            mirrored = jax.random.bernoulli(streams.stream(key, "flip"), half, images.shape[:1])
            images = jnp.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
        return images


def _crop(key: Key, images: Array, pad: int, border: str) -> Array:
    """Shift every image by up to `pad` pixels in each direction and fill the border."""
    num, *shape = images.shape
    corners = jax.random.randint(key, (num, 2), -pad, pad + 1, "int32") + pad
    mode = "constant" if border == "black" else "reflect"
    bordered = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode=mode)

    def cut(image: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(image, (*corner, 0), shape)

    return jax.vmap(cut)(bordered, corners)


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "flip": Augmentation(pad=0),
    "crop": Augmentation(flip=False),
    "crop_flip": Augmentation(),
}
"""Augmentations by the name that the command line uses."""


CLIENT_TESTS = 200
"""Test examples on which each client's own model is evaluated."""


def normalised(batch: tuple[Array, Array], *, mean: Array, std: Array) -> tuple[Array, Array]:
    """Scale bytes to [0, 1] and normalise: (x / 255 - mean) / std, in one multiplication.

    Args:
      batch: Images `[B, H, W, C]` or `[B, D]`, with their labels.
      mean: `f32[]` or `f32[C]`, subtracted from the scaled images.
      std: `f32[]` or `f32[C]`, by which the result is then divided.
    """
    images, labels = batch
    scale = 255.0 if images.dtype == jnp.uint8 else 1.0
    mean, std = (x.reshape((1,) * (images.ndim - 1) + (-1,)) for x in (mean, std))
    return images.astype("float32") * (1 / (scale * std)) - mean / std, labels


@dataclasses.dataclass(frozen=True)
class OfImages:
    """Changes images at random and leaves their labels as they are.

    Attributes:
      change: From a key and images to images.
    """

    change: Augmentation

    def __call__(self, key: Key, batch: tuple[Array, Array]) -> tuple[Array, Array]:
        """Change the images of a mini-batch."""
        images, labels = batch
        return self.change(key, images), labels


@struct.dataclass(repr=False)
class Classification(Supervised):
    """Cross-entropy of a model's logits.

    The data are images, `u8` or `f32`, `[n, H, W, C]` or `[n, D]`, usually bytes, and labels
    `i32[n]`. Each mini-batch is gathered, augmented (in local steps only), scaled from bytes to
    [0, 1] and then normalised.
    """

    @property
    def test_labels(self) -> Array:
        """Classes of the test examples: `i32[m]`."""
        return self.test_data[1]

    @property
    def has_tests_of_clients(self) -> bool:
        """True, see `evaluate_clients`."""
        return True

    def predict(self, params: Params) -> Array:
        """Compute the class probabilities of all test examples: `f32[m, K]`."""
        return jax.nn.softmax(self.outputs(params))

    def chance(self) -> Mapping[str, float]:
        """Return the accuracy of always naming the most frequent class, and half an example more.

        The half keeps rounding out of comparisons.
        """
        labels = np.asarray(self.test_labels)
        return {"accuracy": (float(np.bincount(labels).max()) + 0.5) / len(labels)}

    def evaluate_clients(self, model_of: Callable[[Array], Params]) -> Mapping[str, Array]:
        """Measure every client's model on its own test examples, or on test examples like its own.

        Where test examples belong to no client, for each of `CLIENT_TESTS` places in the client's
        training examples, equally far apart, a test example with the same label is taken.

        Args:
          model_of: From the number of a client, `i32[]`, to the parameters of its model.

        Returns:
          "accuracy" and "loss" as in `evaluate`, of every client: `f32[N]`; nan if none of the
          client's classes is tested. A loss that became nan is inf.
        """
        if self.test_held is not None:
            return super().evaluate_clients(model_of)
        order = jnp.argsort(self.test_labels).astype("int32")
        sorted_labels = self.test_labels[order]
        places = jnp.arange(CLIENT_TESTS)
        method = "scan" if is_for_cpu() else "scan_unrolled"  # one launch

        def of_client(client: Array) -> dict[str, Array]:
            own = self.held.at(client, places * self.counts[client] // CLIENT_TESTS)
            labels = self.data[1][own]
            first = jnp.searchsorted(sorted_labels, labels, method=method)
            number = jnp.searchsorted(sorted_labels, labels, "right", method=method) - first
            # A label that no test example has does not count.
            rows = order[first + (client * CLIENT_TESTS + places) % jnp.maximum(number, 1)]
            is_tested = (number > 0).any()
            weight = (number > 0) / jnp.maximum((number > 0).sum(), 1)
            whole = self.parameters(model_of(client))
            logits = outputs_of(self.model, whole, self._tested(rows)[0])
            right = is_right(logits, labels).astype(weight.dtype)
            losses = jnp.where(number > 0, inf_for_nan(cross_entropy(logits, labels)), 0)
            # Not products of matrices, whose precision may be lower.
            means = {"accuracy": (weight * right).sum(), "loss": (weight * losses).sum()}
            return {name: jnp.where(is_tested, mean, jnp.nan) for name, mean in means.items()}

        return self._map_clients(of_client)


@checked
def make_classification(
    model: Model, dataset: Dataset, partition: Partition, **options: Any
) -> Classification:
    """Build a classification problem.

        clients = iid(data.train_labels, num_clients=8, seed=0)
        problem = make_classification(MLP((16,), 10), data, clients)

    Args:
      model: A network whose logits are `[B, K]` for images `[B, H, W, C]`.
      dataset: Training and test set, as `fedjax_sim.datasets.load` returns them.
      partition: Who holds which training example, from a function of `fedjax_sim.partition`.
      **options: `mean`, `std`, `augmentation`, `per_class`, `test_partition`, and those of
        `fedjax_sim.problems.supervised`, as in `make_classifications`.

    Returns:
      The problem.

    Raises:
      ConfigError: If an option, the data or the partition is not allowed.
    """
    return make_classifications(model, dataset, [partition], **options)[0]


@checked
def make_classifications(
    model: Model,
    dataset: Dataset,
    partitions: Sequence[Partition],
    *,
    mean: settings.Finite | Sequence[settings.Finite] = 0.0,
    std: settings.Above0 | Sequence[settings.Above0] = 1.0,
    augmentation: Augmentation | None = None,
    per_class: bool = False,
    test_partition: Partition | None = None,
    **options: Unpack[building.Options],
) -> list[Classification]:
    """Build one classification problem per partition, for a sweep with a partition per seed.

    All problems share one copy of the images.

        clients = [iid(data.train_labels, num_clients=5, seed=seed) for seed in range(3)]
        problems = make_classifications(MLP((16,), 10), data, clients)
        assert len(problems) == 3

    Args:
      model: A network whose logits are `[B, K]` for images `[B, H, W, C]`.
      dataset: Training and test set, as `fedjax_sim.datasets.load` returns them.
      partitions: Partitions of the training examples, from the functions of
        `fedjax_sim.partition`.
      mean: Subtracted from the scaled images: one number, or one per channel.
      std: Divisor of the result, above 0: one number, or one per channel.
      augmentation: Random changes of the images in local steps; None for none.
      per_class: Whether the accuracy on each class is evaluated too, "class_accuracy".
      test_partition: The clients' own test examples; None if these belong to nobody.
      **options: As in `fedjax_sim.problems.supervised`. With `per_client` accuracy and loss are
        evaluated for each client too, "client_accuracy" and "client_loss", on test examples as in
        `Classification.evaluate_clients`.

    Returns:
      One problem per partition, in the same order.

    Raises:
      ConfigError: If an option, the data or a partition is not allowed.
    """
    channels = dataset.train_images.shape[-1]
    for name, value in (("mean", mean), ("std", std)):
        if np.shape(value) not in ((), (channels,)):
            raise ConfigError(name, value, f"one number, or {channels}: one per channel")
    side = min(dataset.train_images.shape[1:-1], default=0)
    if augmentation is not None and augmentation.pad >= side:
        allowed = f"None, or of a pad below {side}, the smaller side of an image: crops keep a part"
        raise ConfigError("augmentation", augmentation, allowed)
    check_data(dataset)
    classes = [("class_accuracy", accuracy_of_classes(dataset.num_classes))] if per_class else []
    # Every problem below holds the same arrays, so the images lie on the device once.
    tests = None if test_partition is None else [test_partition]
    made = building.build(
        Classification,
        partitions,
        tests,
        options,
        data=(on_device("train_images", dataset.train_images), _labels(dataset.train_labels)),
        test_data=(on_device("test_images", dataset.test_images), _labels(dataset.test_labels)),
        model=model,
        loss_of=cross_entropy,
        metrics=(("accuracy", Metric(is_right)), *classes),
        prepare=Partial(
            normalised, mean=trees.as_array(mean, "float32"), std=trees.as_array(std, "float32")
        ),
        augmentation=None if augmentation is None else OfImages(augmentation),
    )
    for name in ("train_labels", "test_labels"):
        building.check_classes(made[0], name, np.asarray(getattr(dataset, name)))
    return made


def _labels(labels: np.ndarray) -> Array:
    return trees.as_array(labels, "int32")


def check_data(dataset: Dataset) -> None:
    """Check a data set of images, or of other arrays with examples first.

    Args:
      dataset: The data set.

    Raises:
      ConfigError: If images are not finite, labels are no whole numbers from 0, or there are no
        examples to test on, or if shapes do not match.
    """
    Dataset(*dataset)  # Checks arrays that have been replaced.
    found, wanted = dataset.test_images.shape[1:], dataset.train_images.shape[1:]
    if found != wanted:
        raise ConfigError("shape of each of test_images", found, f"{wanted}, as of train_images")
    if not len(dataset.test_labels):
        raise ConfigError("number of test examples", 0, "at least 1")
    for part in ("train", "test"):
        images = np.asarray(getattr(dataset, f"{part}_images"))
        labels = np.asarray(getattr(dataset, f"{part}_labels"))
        if images.dtype != np.uint8 and not np.isfinite(images).all():
            raise ConfigError(f"{part}_images", "an array with nan or inf", "finite")
        if labels.dtype.kind not in "iu":
            raise ConfigError(f"dtype of {part}_labels", str(labels.dtype), "an integer type")
        if labels.min(initial=0) < 0:
            raise ConfigError(f"{part}_labels", "an array with negative labels", "at least 0")


SEQUENCES_AT_ONCE = 100
"""Test sequences that are evaluated together: a limit on the memory for activations."""


@struct.dataclass(repr=False)
class NextCharacter(Supervised):
    """Cross-entropy of each character of a sequence, given the characters before it.

    Means are over characters, not over sequences, and padding does not count. The data are
    sequences of character codes, `u8[n, L + 1]`, and stay on the device as bytes.
    """

    def chance(self) -> Mapping[str, float]:
        """Return the accuracy of always naming the most frequent character, and half of one more.

        The half keeps rounding out of comparisons.
        """
        codes = np.asarray(self.test_data)[:, 1:]
        codes = codes[codes != PADDING]
        known = np.bincount(codes[codes != UNKNOWN], minlength=1)
        return {"accuracy": (float(known.max()) + 0.5) / codes.size}


def inputs_and_targets(sequences: Array) -> tuple[Array, Array]:
    """Return the first and the last L codes of sequences `u8[B, L + 1]`: `i32[B, L]` each."""
    return sequences[:, :-1].astype("int32"), sequences[:, 1:].astype("int32")


def is_right_character(logits: Array, targets: Array) -> Array:
    """Tell which characters are predicted: `bool[B, L]`, never those without a code."""
    return is_right(logits, targets) & (targets != UNKNOWN)


def is_character(targets: Array) -> Array:
    """Tell which targets are no padding: `bool[B, L]`."""
    return targets != PADDING


@checked
def make_next_characters(
    model: Model,
    dataset: Text,
    partitions: Sequence[Partition],
    *,
    test_partition: Partition | list[Partition] | None = None,
    **options: Unpack[building.Options],
) -> list[NextCharacter]:
    """Build one problem per partition, for a sweep with a partition per seed.

    All problems share one copy of the sequences.

        play = "ANNA:\\nHello.\\n\\nBEN:\\nGoodbye.\\n\\n" * 20
        text = from_text(play, sequence_length=10, name="play")
        who = text.train_speakers
        clients = natural(who, client_ids=who, num_clients=2, seed=0)
        network = CharacterRNN(text.num_classes, hidden=(8,))
        [problem] = make_next_characters(network, text, [clients])

    Args:
      model: A network with logits `[B, L, K]` for codes `i32[B, L]`, such as
        `fedjax_sim.models.CharacterRNN`; K is `dataset.num_classes`.
      dataset: Training and test sequences, as `fedjax_sim.datasets.load_text` returns them.
      partitions: Partitions of `dataset.train_sequences`, for example from
        `fedjax_sim.partition.natural` with `dataset.train_speakers` as clients.
      test_partition: The clients' own test sequences, for example those of the speakers in
        `dataset.test_speakers`, once or for each of the partitions; None if these belong to nobody.
      **options: As in `fedjax_sim.problems.supervised`.

    Returns:
      One problem per partition, in the same order. "accuracy" is a share of characters, and "loss"
      is in nats per character. A character without a code always counts as wrong, whatever was
      predicted; its loss still counts.

    Raises:
      ConfigError: If a partition does not fit the data set, or the model's logits have the wrong
        shape.
    """
    tests = [test_partition] if isinstance(test_partition, Partition) else test_partition
    made = building.build(
        NextCharacter,
        partitions,
        tests,
        options,
        data=on_device("train_sequences", dataset.train_sequences),
        test_data=on_device("test_sequences", dataset.test_sequences),
        model=model,
        loss_of=cross_entropy,
        metrics=(("accuracy", Metric(is_right_character)),),
        mask_of=is_character,
        prepare=Partial(inputs_and_targets),
        test_block=SEQUENCES_AT_ONCE,
    )
    length = dataset.train_sequences.shape[1] - 1
    if check_shapes(made[0])[1:] != (length, dataset.num_classes):
        allowed = f"one with {dataset.num_classes} logits for each character, as many as codes"
        raise ConfigError("model", type(model).__name__, allowed)
    return made


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
        return self.counts @ client_data.losses_of_all(self, params)

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
    dtype: settings.FloatType = "float32",
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
        inputs = trees.as_array(np.concatenate([flat, np.ones((len(flat), 1))], axis=1), dtype)
        return inputs, trees.as_array(labels, dtype)

    data = examples(dataset.train_images, dataset.train_labels)
    tests = None if test_partition is None else [test_partition]
    [problem] = building.build(
        Logistic,
        [partition],
        tests,
        {"per_client": test_partition is not None},
        data=data,
        test_data=examples(dataset.test_images, dataset.test_labels),
        model=_LINEAR,
        loss_of=_cross_entropy,
        metrics=(("accuracy", Metric(_is_right)),),
        prior_precision=trees.as_array(prior_precision, dtype),
        start=jnp.zeros(data[0].shape[1], dtype),
        test_block=len(dataset.test_labels),
    )
    return problem
