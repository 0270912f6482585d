"""Networks as flax modules, and adapters for those of other libraries.

A network is stateless and hashable; the rest of the package only calls its `init` and `apply`. flax
linen modules have these. Where to look:

- `networks`: dense, convolutional and residual networks, networks for text, and the table of those
  that the command line knows by name.
- `quantized`: a wrapper that trains any of them with few bits.
- `adapters`: networks of flax nnx, equinox and haiku.
- `calls`: how a model is called in training.
"""

from fedjax_sim.kernels.convolution import CONVOLUTIONS as CONVOLUTIONS
from fedjax_sim.models.adapters import from_equinox as from_equinox
from fedjax_sim.models.adapters import from_haiku as from_haiku
from fedjax_sim.models.adapters import from_nnx as from_nnx
from fedjax_sim.models.networks import MLP as MLP
from fedjax_sim.models.networks import MODELS as MODELS
from fedjax_sim.models.networks import BatchNorm as BatchNorm
from fedjax_sim.models.networks import CharacterRNN as CharacterRNN
from fedjax_sim.models.networks import CharacterTransformer as CharacterTransformer
from fedjax_sim.models.networks import DoubleConvNet as DoubleConvNet
from fedjax_sim.models.networks import Entry as Entry
from fedjax_sim.models.networks import LeNet as LeNet
from fedjax_sim.models.networks import LogisticRegression as LogisticRegression
from fedjax_sim.models.networks import ResNet as ResNet
from fedjax_sim.models.networks import SmallCNN as SmallCNN
from fedjax_sim.models.networks import resnet18 as resnet18
from fedjax_sim.models.networks import resnet20 as resnet20
