"""What clients learn: images, split by label, or the next characters of a speaker's speeches."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from experiments.harness import Arguments, Sizes
from experiments.harness.images import dirichlet_problems, pooled
from experiments.hierarchical.fig11 import made_up_play
from fedjax_sim import datasets, partition, problems, studies
from fedjax_sim.core.types import Array
from fedjax_sim.datasets import Text
from fedjax_sim.models.networks import dense

HELD_OUT = 0.1
"""Share of the training examples on which rates are chosen."""
MOST_TESTED = 300
"""Test sequences at most; more of them would take longer than learning does."""


class Task(NamedTuple):
    """What is learnt: for tuning on held-out examples, and for the results; chance in percent."""

    tuning: Any
    test: Any
    chance: float
    name: str
    title: str


def of_images(sizes: Sizes, arguments: Arguments, tuning_seeds: Sequence[int]) -> Task:
    """Split small images by label over clients, anew for every seed."""
    data = pooled(datasets.load(sizes.dataset, data_dir=arguments.data_dir), sizes.side)
    make = partial(dirichlet_problems, sizes.network, num_clients=sizes.clients, alpha=sizes.alpha)
    return Task(
        make(studies.hold_out(data, HELD_OUT), seeds=tuning_seeds),
        make(data, seeds=range(sizes.seeds)),
        100 / data.num_classes,
        data.name,
        f"{data.name}, {sizes.clients} clients, Dirichlet({sizes.alpha:g})",
    )


def of_speakers(sizes: Sizes, arguments: Arguments, tuning_seeds: Sequence[int]) -> Task:
    """Give each of those speakers of a play who say most to a client, the same for every seed."""
    whole = (
        made_up_play()
        if arguments.smoke
        else datasets.load_text(sizes.dataset, data_dir=arguments.data_dir)
    )
    data = who_say_most(whole, sizes.clients)

    def make(data: Text) -> Any:
        speakers = data.train_speakers
        of_clients = partition.natural(
            speakers, client_ids=speakers, num_clients=sizes.clients, seed=0
        )
        network = sizes.network(data.num_classes)
        return problems.make_next_characters(network, thinned(data, MOST_TESTED), [of_clients])[0]

    test = make(data)
    return Task(
        make(hold_out_ends(data, HELD_OUT)),
        test,
        100 * test.chance()["accuracy"],
        data.name,
        f"{data.name}, {sizes.clients} speakers",
    )


def who_say_most(data: Text, number: int) -> Text:
    """Keep the speakers with the most training sequences."""
    counts = np.bincount(data.train_speakers, minlength=len(data.speakers))
    kept = np.sort(np.argsort(-counts, kind="stable")[:number])
    # One place more, for the number -1 of test sequences whose speaker has no training sequences.
    new = np.full(len(counts) + 1, -1, np.int32)
    new[kept] = np.arange(len(kept))
    train, test = new[data.train_speakers], new[data.test_speakers]
    return data._replace(
        train_sequences=data.train_sequences[train >= 0],
        train_speakers=train[train >= 0],
        test_sequences=data.test_sequences[test >= 0],
        test_speakers=test[test >= 0],
        speakers=tuple(data.speakers[each] for each in kept),
    )


def hold_out_ends(data: Text, share: float) -> Text:
    """Replace the test set by the last training sequences of each speaker, a share of them.

    The text's training sequences are in the order of their speakers.
    """
    speakers = data.train_speakers
    counts = np.bincount(speakers, minlength=len(data.speakers))
    place = np.arange(len(speakers)) - (np.cumsum(counts) - counts)[speakers]
    is_kept = place < np.round((1 - share) * counts)[speakers]
    return data._replace(
        train_sequences=data.train_sequences[is_kept],
        train_speakers=speakers[is_kept],
        test_sequences=data.train_sequences[~is_kept],
        test_speakers=speakers[~is_kept],
    )


def thinned(data: Text, most: int) -> Text:
    """Keep every k-th test sequence, so that there are at most `most`."""
    every = -(-len(data.test_sequences) // most)
    return data._replace(
        test_sequences=data.test_sequences[::every], test_speakers=data.test_speakers[::every]
    )


class Window(nn.Module):
    """A perceptron that sees the last characters (Bengio et al. 2003, JMLR 3).

    Inputs are codes `i[..., L]`, outputs the logits of the character that follows each of them,
    `[..., L, num_classes]`. Before the first character of a sequence the window has zeros.
    """

    num_classes: int
    seen: int = 6
    embedding: int = 8
    hidden: int = 64

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits."""
        codes = nn.Embed(self.num_classes, self.embedding)(x)
        length, around = x.shape[-1], [(0, 0)] * (x.ndim - 1)
        padded = jnp.pad(codes, [*around, (self.seen - 1, 0), (0, 0)])
        window = [padded[..., i : i + length, :] for i in range(self.seen)]
        wide = dense(self.hidden, self.seen * self.embedding, None)
        y = nn.relu(wide(jnp.concatenate(window, -1)))
        return dense(self.num_classes, self.hidden, None)(y)
