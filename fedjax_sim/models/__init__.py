"""Networks: flax modules, made for a number of classes.

Dense networks are in `mlp.py`, with the matrix products of `products.py`; convolutional ones in `cnn.py` and `resnet.py`, with the
convolutions of `convolution.py`; those for text in `recurrent.py`. Modules are stateless and hashable, and their `init` and `apply` are all
that the rest of the package uses.
"""

from collections.abc import Callable
from typing import NamedTuple

from flax import linen as nn

from fedjax_sim.models.cnn import DoubleConvNet, LeNet, SmallCNN
from fedjax_sim.models.convolution import CONVOLUTIONS
from fedjax_sim.models.mlp import MLP, LogisticRegression
from fedjax_sim.models.recurrent import CharacterRNN
from fedjax_sim.models.resnet import ResNet, resnet18, resnet20
from fedjax_sim.types import Array

__all__ = [
    "CONVOLUTIONS",
    "MLP",
    "MODELS",
    "CharacterRNN",
    "DoubleConvNet",
    "Entry",
    "LeNet",
    "LogisticRegression",
    "ResNet",
    "SmallCNN",
    "resnet18",
    "resnet20",
]

Convolution = Callable[..., Array]


class Entry(NamedTuple):
    """A network that the command line lists."""

    summary: str
    make: Callable[[int, Convolution], nn.Module]
    """From the number of classes and the convolution, which dense networks have no use for."""


MODELS: dict[str, Entry] = {
    "logistic": Entry(
        "logistic regression", lambda num_classes, _: LogisticRegression(num_classes)
    ),
    "mlp32": Entry(
        "perceptron with 32 hidden units, FAVANO's network for MNIST",
        lambda num_classes, _: MLP((32,), num_classes),
    ),
    "mlp50": Entry(
        "perceptron with 50 hidden units, hierarchical FL's network for MNIST",
        lambda num_classes, _: MLP((50,), num_classes),
    ),
    "mlp128": Entry(
        "perceptron with 128 hidden units", lambda num_classes, _: MLP((128,), num_classes)
    ),
    "lenet": Entry(
        "LeNet-5, the CNN of hierarchical FL", lambda num_classes, by: LeNet(num_classes, by)
    ),
    "cnn2": Entry(
        "two double-convolution blocks, FedStaleWeight's CNN for 28x28",
        lambda num, by: DoubleConvNet(num, (32, 64), by),
    ),
    "cnn3": Entry(
        "three double-convolution blocks, FedStaleWeight's CNN for 32x32",
        lambda num, by: DoubleConvNet(num, (32, 64, 128), by),
    ),
    "cnn_small": Entry(
        "two convolutions and one pooling, as in pfl's benchmark",
        lambda num_classes, by: SmallCNN(num_classes, by),
    ),
    "resnet20": Entry(
        "ResNet-20 with group normalisation, for 32x32",
        lambda num_classes, by: resnet20(num_classes, convolution=by),
    ),
    "resnet18": Entry(
        "ResNet-18 with group normalisation, for 64x64",
        lambda num_classes, by: resnet18(num_classes, convolution=by),
    ),
    "char_lstm": Entry(
        "two layers of 256 LSTM cells over characters, for text",
        lambda num_classes, _: CharacterRNN(num_classes),
    ),
    "char_gru": Entry(
        "the same with GRU cells", lambda num_classes, _: CharacterRNN(num_classes, cell="gru")
    ),
}
"""Networks by name."""
