"""Recurrent networks for text: the logits of the next character after each character of a sequence.

Inputs are codes `i[..., L]`, outputs logits `[..., L, num_classes]`: those at a place are of what follows it. Initial weights are flax's,
but for the output layer's U(+-1 / sqrt(fan-in)).
"""

from flax import linen as nn
from flax.typing import Dtype

from fedjax_sim.models.mlp import dense
from fedjax_sim.types import Array

CELLS = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}


class CharacterRNN(nn.Module):
    """Embedding, layers of LSTM or GRU cells, and a dense layer.

    The default is the network of Reddi et al. (arXiv 2003.00295) for Shakespeare, which hierarchical FL takes over: 820,522 parameters
    with 90 codes.
    """

    num_classes: int
    embedding: int = 8
    hidden: tuple[int, ...] = (256, 256)
    cell: str = "lstm"
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits."""
        y = nn.Embed(self.num_classes, self.embedding, dtype=self.dtype)(x)
        for features in self.hidden:
            y = nn.RNN(CELLS[self.cell](features, dtype=self.dtype))(y)
        return dense(self.num_classes, y.shape[-1], self.dtype)(y)
