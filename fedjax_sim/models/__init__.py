"""Networks as flax modules, and adapters for those of other libraries.

A network is stateless and hashable; the rest of the package only calls its `init` and `apply`. flax
linen modules have these. Where to look:

- `catalogue`: the networks that the command line knows by name.
- `mlp`: dense networks; `products` is their matrix product.
- `cnn` and `resnet`: convolutional networks; `convolution` has their convolutions and pooling.
- `recurrent` and `transformer`: networks for text.
- `low_bit`: a wrapper that trains any of them with few bits.
- `adapters`: networks of flax nnx, equinox and haiku.
- `calls`: how a model is called in training.
"""

from fedjax_sim.models.adapters import from_equinox, from_haiku, from_nnx
from fedjax_sim.models.catalogue import MODELS, Entry
from fedjax_sim.models.cnn import DoubleConvNet, LeNet, SmallCNN
from fedjax_sim.models.convolution import CONVOLUTIONS
from fedjax_sim.models.mlp import MLP, LogisticRegression
from fedjax_sim.models.recurrent import CharacterRNN
from fedjax_sim.models.resnet import ResNet, resnet18, resnet20
from fedjax_sim.models.transformer import CharacterTransformer

__all__ = [
    "CONVOLUTIONS",
    "MLP",
    "MODELS",
    "CharacterRNN",
    "CharacterTransformer",
    "DoubleConvNet",
    "Entry",
    "LeNet",
    "LogisticRegression",
    "ResNet",
    "SmallCNN",
    "from_equinox",
    "from_haiku",
    "from_nnx",
    "resnet18",
    "resnet20",
]
