"""A small transformer on Shakespeare's plays, by characters: a loss of 1.88 by nanoGPT.

One client with all text, one local step a round and AdamW on the server: FedOpt is then plain
training with AdamW, and every setting is the source's command for a computer without a GPU.

Deviation: the validation loss is that of all its windows of 64 characters that do not overlap,
not of 240 drawn ones, and the last one of the run, not the least one.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.reproductions import rows
from experiments.reproductions.rows import SMALL, Printed
from fedjax_sim import problems
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.problems import Supervised
from fedjax_sim.systems import fedavg

STUDY = Study(
    full=Sizes(3, dataset="tiny_shakespeare.txt", steps=2000, layers=4, width=128, warm=100),
    smoke=Sizes(
        2, dataset="a made-up play", steps=4, layers=1, width=8, warm=2, words="made-up text"
    ),
)
PRINTED = Printed(
    "nanoGPT, small Shakespeare",
    "karpathy/nanoGPT, README.md and config/train_shakespeare_char.py, "
    "commit 3adf61e1 of 2025-11-12",
    '"gets us a loss of only 1.88": context 64, batches of 12, 4 layers, 4 heads, 128 channels, '
    "2,000 steps, no dropout",
    number=1.88,
    digit=0.01,
    near=SMALL["near"],
    wide=SMALL["wide"],
)
CONTEXT, HEADS = 64, 4


class GPT(nn.Module):
    """GPT-2 without biases, with the weights of the embedding as those of the last layer.

    Attributes:
      letters: Number of different characters.
      layers: Number of blocks.
      width: Channels.
    """

    letters: int
    layers: int
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute logits `[..., T, letters]` of characters `i32[..., T]`."""
        normal = nn.initializers.normal
        embed = nn.Embed(self.letters, self.width, embedding_init=normal(0.02))
        place = self.param("place", normal(0.02), (CONTEXT, self.width))
        dense = partial(nn.Dense, use_bias=False, kernel_init=normal(0.02))
        last = partial(dense, kernel_init=normal(0.02 / np.sqrt(2 * self.layers)))
        norm = partial(nn.LayerNorm, epsilon=1e-5, use_bias=False)
        h = embed(x)
        h = h + jnp.broadcast_to(place[: x.shape[-1]], h.shape)
        is_before = nn.make_causal_mask(x)
        for _ in range(self.layers):
            parts = jnp.split(dense(3 * self.width)(norm()(h)), 3, axis=-1)
            q, k, v = (each.reshape(*each.shape[:-1], HEADS, -1) for each in parts)
            attended = nn.dot_product_attention(q, k, v, mask=is_before)
            h = h + last(self.width)(attended.reshape(h.shape))
            inner = nn.gelu(dense(4 * self.width)(norm()(h)), approximate=False)
            h = h + last(self.width)(inner)
        return embed.attend(norm()(h))


def optimizer_of(steps: int, warm: int) -> Callable[[Any], optax.GradientTransformation]:
    """Make nanoGPT's optimizer: AdamW at rates that warm up and follow a cosine, clipped."""

    def rate(step: jax.Array) -> jax.Array:
        share = jnp.clip((step - warm) / (steps - warm), 0, 1)
        later = 1e-4 + 0.5 * (1 + jnp.cos(jnp.pi * share)) * (1e-3 - 1e-4)
        return jnp.where(step < warm, 1e-3 * (step + 1) / (warm + 1), later)

    def matrices(params: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)

    def made(_: Any) -> optax.GradientTransformation:
        adamw = optax.adamw(rate, b1=0.9, b2=0.99, weight_decay=0.1, mask=matrices)
        return optax.chain(optax.clip_by_global_norm(1.0), adamw)

    return made


def text_of(arguments: Arguments, name: str) -> str:
    """Read the text; a smoke run makes one up.

    Raises:
      ConfigError: If the file is not there.
    """
    if arguments.smoke:
        return "To be, or not to be: that is the question. " * 60
    file = Path(arguments.data_dir or ".") / name
    if not file.is_file():
        allowed = f"a folder with the file {name} of the repository karpathy/char-rnn"
        raise ConfigError("data_dir", str(arguments.data_dir), allowed)
    return file.read_text(encoding="utf-8")


def problem_of(text: str, layers: int, width: int) -> Supervised:
    """Make the problem: examples are the first places of windows in the first 90 % of the text."""
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    codes = np.array([number[letter] for letter in text], "int32")
    cut = int(0.9 * len(codes))
    whole = jnp.asarray(codes)

    def windows(first: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = whole[first[:, None] + jnp.arange(CONTEXT + 1)]
        return found[:, :-1], found[:, 1:]

    first = np.arange(cut - CONTEXT, dtype="int32")
    return problems.supervised(
        GPT(len(letters), layers, width),
        lambda logits, targets: problems.cross_entropy(logits, targets).mean(-1),
        first,
        clients=np.zeros(len(first), int).tolist(),
        test=np.arange(cut, len(codes) - CONTEXT, CONTEXT, dtype="int32"),
        prepare=windows,
    )


def run(arguments: Arguments) -> Outcome:
    """Train with the source's settings."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    problem = problem_of(text_of(arguments, sizes.dataset), sizes.layers, sizes.width)
    settings: dict[str, Any] = {"local_steps": 1, "batch_size": 12, "lr": 1.0, "server_lr": 1.0}
    settings |= {"sampling": "with_replacement"}
    optimizer = optimizer_of(sizes.steps, sizes.warm)
    hyper = fedavg.FedOpt(num_clients=1, num_selected=1, server_optimizer=optimizer, **settings)
    run = fedjax_sim.sweep(
        fedavg.fedopt,
        problem,
        hyper,
        seeds=sizes.seeds,
        budget=fedjax_sim.Ticks(sizes.steps),
        num_evals=min(8, sizes.steps),
        **arguments.kept("fedopt"),
    )
    ours = Sample.of(run.curves.loss.isel(eval=-1).values.ravel())
    facts = sizes.config() | {"ours": ours}
    text = rows.report([(PRINTED, ours)], is_smoke=arguments.smoke)
    return Outcome({"fedopt": run.curves}, {}, [], facts, text)
