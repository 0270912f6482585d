"""Next-character prediction: a problem whose clients are the speakers of a play."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from fedjax_sim.datasets.text import PADDING, UNKNOWN, Text
from fedjax_sim.models.calls import takes_train
from fedjax_sim.problems.classification import check_partition
from fedjax_sim.settings import ConfigError
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Key, Model, Params

EVALUATED_AT_ONCE = 100
"""Test sequences whose activations are in memory together."""


@struct.dataclass
class NextCharacter:
    """Cross-entropy of each character of a sequence given those before it. All sequences lie on the device once, as bytes.

    Means are over characters, not sequences; padding counts for nothing.
    """

    sequences: Array  # u8[examples, L + 1]
    test_sequences: Array
    index: Array  # i32[N, M]  positions of the clients' sequences, padded
    counts: Array  # i32[N]  true numbers of sequences
    model: Model = struct.field(pytree_node=False)

    def init(self, key: Key) -> Params:
        """Draw the model's initial parameters."""
        return self.model.init(key, self.sequences[:1, :-1].astype("int32"))

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Mean cross-entropy, in nats a character, of a client's sequences `i32[B]`."""
        rngs = {"dropout": stream(key, "dropout"), "quantize": stream(key, "quantize")}
        options = {"train": True, "rngs": rngs} if takes_train(self.model) else {}
        total, _, num = self._sums(params, self.sequences[self.index[client, examples]], **options)
        return total / num

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Loss, and accuracy (a share, 0 to 1), per character of the test sequences. A character without a code is never right."""
        num = self.test_sequences.shape[0]
        at_once = min(num, EVALUATED_AT_ONCE)
        num_batches = -(-num // at_once)
        padded = jnp.pad(
            self.test_sequences, ((0, num_batches * at_once - num), (0, 0)), constant_values=PADDING
        )
        sums = jax.lax.map(
            lambda sequences: self._sums(params, sequences),
            padded.reshape(num_batches, at_once, -1),
        )
        loss, right, characters = (each.sum() for each in sums)
        return {"accuracy": right / characters, "loss": loss / characters}

    def _sums(self, params: Params, sequences: Array, **options: Any) -> tuple[Array, Array, Array]:
        """Summed cross-entropy, characters predicted right, and characters, of sequences `u8[B, L + 1]`."""
        inputs, targets = sequences[:, :-1].astype("int32"), sequences[:, 1:].astype("int32")
        logits = self.model.apply(params, inputs, **options)
        is_there = targets != PADDING
        losses = jnp.where(
            is_there, optax.softmax_cross_entropy_with_integer_labels(logits, targets), 0
        )
        is_right = (jnp.argmax(logits, axis=-1) == targets) & is_there & (targets != UNKNOWN)
        return (
            losses.sum(),
            is_right.sum().astype(losses.dtype),
            is_there.sum().astype(losses.dtype),
        )


def make_next_characters(
    model: Model, dataset: Text, partitions: Sequence[Any]
) -> list[NextCharacter]:
    """Build one problem per partition over the same sequences, which are held once; for a sweep with a partition per seed.

    model: gives logits `[B, L, dataset.num_classes]` of codes `i32[B, L]`, such as `models.CharacterRNN`. partitions: of
    `dataset.train_sequences`, as by `partition.natural` with the clients `dataset.train_speakers`.
    """
    for partition in partitions:
        check_partition(partition, len(dataset.train_sequences))
    length = dataset.train_sequences.shape[1] - 1
    wanted = (1, length, dataset.num_classes)
    codes = jax.ShapeDtypeStruct((1, length), "int32")
    try:
        shape = jax.eval_shape(
            lambda key, x: model.apply(model.init(key, x), x), jax.random.key(0), codes
        ).shape
    except (TypeError, ValueError):
        shape = None
    if shape != wanted:
        raise ConfigError(
            "model",
            type(model).__name__,
            f"one with logits of shape {wanted} for codes of shape {(1, length)}",
        )
    sequences, test_sequences = (
        jnp.asarray(dataset.train_sequences),
        jnp.asarray(dataset.test_sequences),
    )
    capacity = max(partition.index.shape[1] for partition in partitions)
    problems = []
    for partition in partitions:
        index = np.pad(
            np.asarray(partition.index, "int32"), ((0, 0), (0, capacity - partition.index.shape[1]))
        )
        problems.append(
            NextCharacter(
                sequences,
                test_sequences,
                jnp.asarray(index),
                jnp.asarray(partition.counts, "int32"),
                model,
            )
        )
    return problems
