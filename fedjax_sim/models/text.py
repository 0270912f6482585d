"""Networks for text, which predict the character that follows each character.

Inputs are character codes `i[..., L]`, outputs logits `[..., L, num_classes]`; the logits at a
position are those of the next character.

Recurrent networks start with flax's default weights, except in the output layer, which starts as
U(+-1 / sqrt(fan-in)).

The small transformer normalises layers first, as GPT-2 does. With a rank, the projections of
queries and values have low-rank changes (LoRA, Hu et al. 2021, arXiv 2106.09685, Sec. 4.2,
W x + (alpha / r) B A x with alpha = r): A starts as a normal distribution and B as zero, so that
the network starts as the one without. To train the changes alone, start from parameters of the
network without rank and freeze all leaves but those whose paths contain "lora".

Letters: `L` characters in a sequence, `W` width, `H` heads.
"""

from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.core.settings import Count, OneOf, Whole, checked
from fedjax_sim.core.types import Array
from fedjax_sim.models.networks import dense

CELLS = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}
"""Recurrent cells by name."""


@checked
class CharacterRNN(nn.Module):
    """An embedding, layers of LSTM or GRU cells, and a dense layer.

    The default is the network of Reddi et al. (arXiv 2003.00295) for Shakespeare, which
    hierarchical FL uses too: 820,522 parameters with 90 codes.

        network, codes = CharacterRNN(90), jnp.zeros((1, 20), "int32")
        params = jax.eval_shape(network.init, key, codes)
        assert jax.eval_shape(network.apply, params, codes).shape == (1, 20, 90)

    Attributes:
      num_classes: Number of character codes.
      embedding: Dimension of the embedding.
      hidden: Number of cells of each recurrent layer.
      cell: A name in `CELLS`.
      dtype: Type of the computation, by default float32. Parameters are float32.
    """

    num_classes: Count
    embedding: Count = 8
    hidden: tuple[Count, ...] = (256, 256)
    cell: Annotated[str, OneOf(tuple(CELLS))] = "lstm"
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., L, num_classes]` of character codes `i[..., L]`."""
        y = nn.Embed(self.num_classes, self.embedding, dtype=self.dtype)(x)
        for features in self.hidden:
            y = nn.RNN(CELLS[self.cell](features, dtype=self.dtype))(y)
        return dense(self.num_classes, y.shape[-1], self.dtype)(y)


@checked
class CharacterTransformer(nn.Module):
    """Embeddings of characters and places, blocks of attention and dense layers, and logits.

        network, codes = CharacterTransformer(90, width=16, blocks=1), jnp.zeros((1, 20), "int32")
        params = jax.eval_shape(network.init, key, codes)
        assert jax.eval_shape(network.apply, params, codes).shape == (1, 20, 90)

    Attributes:
      num_classes: Number of character codes.
      width: Numbers that stand for a character, W; a multiple of the heads.
      blocks: Number of blocks.
      heads: Heads of attention in each, H.
      longest: Longest sequence.
      rank: Rank of the low-rank changes; 0 for none.
    """

    num_classes: Count
    width: Count = 64
    blocks: Count = 2
    heads: Count = 4
    longest: Count = 128
    rank: Whole = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., L, num_classes]` of character codes `i[..., L]`."""
        length = x.shape[-1]
        places = self.param("places", nn.initializers.normal(0.02), (self.longest, self.width))
        y = nn.Embed(self.num_classes, self.width)(x) + places[:length].reshape(
            (1,) * (x.ndim - 1) + (length, self.width)
        )
        for i in range(self.blocks):
            y = y + Attention(self.heads, self.rank, name=f"attention_{i}")(nn.LayerNorm()(y))
            wide = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(y)))
            y = y + nn.Dense(self.width)(wide)
        return nn.Dense(self.num_classes)(nn.LayerNorm()(y))


class Attention(nn.Module):
    """Causal attention: every place sees itself and those before it.

    Attributes:
      heads: Number of heads, H.
      rank: Rank of the changes to the projections of queries and values; 0 for none.
    """

    heads: int
    rank: int = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute `[..., L, W]` of the same shape."""
        length, width = x.shape[-2:]
        split = (*x.shape[:-1], self.heads, width // self.heads)
        query, key, value = (
            Adapted(width, rank, name=name)(x).reshape(split)
            for name, rank in (("query", self.rank), ("key", 0), ("value", self.rank))
        )
        is_seen = jnp.tril(jnp.ones((length, length), bool))
        is_seen = is_seen.reshape((1,) * (x.ndim - 1) + is_seen.shape)
        mixed = nn.dot_product_attention(query, key, value, mask=is_seen)
        return nn.Dense(width, name="out")(mixed.reshape(x.shape))


class Adapted(nn.Module):
    """A dense layer with a low-rank change.

    Attributes:
      features: Number of outputs.
      rank: Rank of the change; 0 for none.
    """

    features: int
    rank: int = 0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute `[..., features]` of inputs `[..., W]`."""
        y = nn.Dense(self.features, name="dense")(x)
        if self.rank == 0:
            return y
        down = self.param("lora_a", nn.initializers.normal(0.02), (x.shape[-1], self.rank))
        up = self.param("lora_b", nn.initializers.zeros, (self.rank, self.features))
        return y + (x @ down) @ up
