"""Recurrent networks for text, which predict the character that follows each character.

Inputs are character codes `i[..., L]`, outputs logits `[..., L, num_classes]`; the logits at a
position are those of the next character. Initial weights are flax's defaults, except in the output
layer, whose weights start as U(+-1 / sqrt(fan-in)).

Letters: `L` characters in a sequence.
"""

from typing import Annotated

from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.checking import Count, OneOf, checked
from fedjax_sim.models.mlp import dense
from fedjax_sim.types import Array

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
