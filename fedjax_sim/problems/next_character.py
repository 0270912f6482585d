"""Next-character prediction on a play; its speakers are the clients.

It is a case of `fedjax_sim.problems.Supervised`.

Dimension letters: `N` clients, `B` sequences of a mini-batch, `n` training and `m` test sequences,
`L` characters that are predicted in a sequence, `K` character codes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from flax import struct

from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.core.types import Array, Params
from fedjax_sim.datasets.text import PADDING, UNKNOWN, Text
from fedjax_sim.models.calls import Model
from fedjax_sim.partition import Partition
from fedjax_sim.problems import building, losses
from fedjax_sim.problems.checking import check_shapes
from fedjax_sim.problems.client_data import on_device
from fedjax_sim.problems.losses import Metric, cross_entropy
from fedjax_sim.problems.supervision import Preparation, Supervised

EVALUATED_AT_ONCE = 100
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
        targets = np.asarray(self.test_data)[:, 1:]
        targets = targets[targets != PADDING]
        known = np.bincount(targets[targets != UNKNOWN], minlength=1)
        return {"accuracy": (float(known.max()) + 0.5) / targets.size}


def inputs_and_targets(sequences: Array) -> tuple[Array, Array]:
    """Return the first and the last L codes of sequences `u8[B, L + 1]`: `i32[B, L]` each."""
    return sequences[:, :-1].astype("int32"), sequences[:, 1:].astype("int32")


def is_right(logits: Array, targets: Array) -> Array:
    """Tell which characters are predicted: `bool[B, L]`, never those without a code."""
    return losses.is_right(logits, targets) & (targets != UNKNOWN)


def is_character(targets: Array) -> Array:
    """Tell which targets are no padding: `bool[B, L]`."""
    return targets != PADDING


@checked
def make_next_characters(
    model: Model,
    dataset: Text,
    partitions: Sequence[Partition],
    *,
    per_client: bool = False,
    test_partition: Partition | list[Partition] | None = None,
    start: Params | None = None,
    frozen: str | Callable[[str], bool] | None = None,
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
      per_client: Whether accuracy and loss are evaluated for each client too.
      test_partition: The clients' own test sequences, for example those of the speakers in
        `dataset.test_speakers`, once or for each of the partitions; None if these belong to nobody.
      start: Parameters to start from, or some of them, as in `fedjax_sim.problems.supervised`.
      frozen: Which parameters are not trained, as in `fedjax_sim.problems.supervised`.

    Returns:
      One problem per partition, in the same order. "accuracy" is a share of characters, and "loss"
      is in nats per character. A character without a code always counts as wrong, whatever was
      predicted; its loss still counts.

    Raises:
      ConfigError: If a partition does not fit the data set, or the model's logits have the wrong
        shape.
    """
    tests = [test_partition] if isinstance(test_partition, Partition) else test_partition
    make = partial(
        NextCharacter,
        data=on_device("train_sequences", dataset.train_sequences),
        test_data=on_device("test_sequences", dataset.test_sequences),
        model=model,
        loss_of=cross_entropy,
        metrics=(("accuracy", Metric(is_right)),),
        mask_of=is_character,
        prepare=Preparation(inputs_and_targets),
        per_client=per_client,
        test_block=EVALUATED_AT_ONCE,
    )
    made = building.build(make, partitions, tests, start, frozen)
    length = dataset.train_sequences.shape[1] - 1
    if check_shapes(made[0])[1:] != (length, dataset.num_classes):
        allowed = f"one with {dataset.num_classes} logits for each character, as many as codes"
        raise ConfigError("model", type(model).__name__, allowed)
    return made
