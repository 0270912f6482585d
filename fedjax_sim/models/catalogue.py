"""Networks by name."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from flax import linen as nn

from fedjax_sim.core.settings import Named
from fedjax_sim.kernels.convolution import Convolution
from fedjax_sim.models import networks
from fedjax_sim.models.text import CharacterRNN


class Entry(NamedTuple):
    """A network that the command line lists.

    Attributes:
      summary: Description of one line.
      make: Makes the network from the number of classes and a convolution. Networks without
        convolutions ignore the second argument.
    """

    summary: str
    make: Callable[[int, Convolution], nn.Module]


def _plain(summary: str, make: Callable[[int], nn.Module]) -> Entry:
    """Enter a network without convolutions."""
    return Entry(summary, lambda num_classes, _: make(num_classes))


MODELS: Named[Entry] = Named(
    "model",
    {
        "logistic": _plain("logistic regression", networks.LogisticRegression),
        "mlp32": _plain(
            "perceptron with 32 hidden units, FAVANO's network for MNIST",
            partial(networks.MLP, (32,)),
        ),
        "mlp50": _plain(
            "perceptron with 50 hidden units, hierarchical FL's network for MNIST",
            partial(networks.MLP, (50,)),
        ),
        "mlp128": _plain("perceptron with 128 hidden units", partial(networks.MLP, (128,))),
        "lenet": Entry("LeNet-5, the CNN of hierarchical FL", networks.LeNet),
        "cnn2": Entry(
            "two double-convolution blocks, FedStaleWeight's CNN for 28x28",
            lambda num_classes, convolution: networks.DoubleConvNet(
                num_classes, (32, 64), convolution
            ),
        ),
        "cnn3": Entry(
            "three double-convolution blocks, FedStaleWeight's CNN for 32x32",
            lambda num_classes, convolution: networks.DoubleConvNet(
                num_classes, (32, 64, 128), convolution
            ),
        ),
        "cnn_small": Entry(
            "two convolutions and one pooling, as in pfl's benchmark", networks.SmallCNN
        ),
        "resnet20": Entry("ResNet-20 with group normalisation, for 32x32", networks.resnet20),
        "resnet18": Entry("ResNet-18 with group normalisation, for 64x64", networks.resnet18),
        "char_lstm": _plain("two layers of 256 LSTM cells over characters, for text", CharacterRNN),
        "char_gru": _plain(
            "two layers of 256 GRU cells over characters, for text",
            partial(CharacterRNN, cell="gru"),
        ),
    },
)
"""The networks that the command line lists."""
