"""The standard algorithms on CIFAR-10 with labels split by Dirichlet(0.1) and Dirichlet(1).

50 clients and LeNet-5 on normalised images, without augmentation. The reduced size has 20 clients
and `PatchNet`, whose local step costs two fifths of LeNet-5's on a CPU. The protocol is that of
`fedjax_sim.studies.tuning`; no claim of a paper is judged.
"""

from collections.abc import Callable

from flax import linen as nn

from experiments.baselines import mnist
from experiments.baselines.setup import Comparison, compare
from experiments.favano.setup import CIFAR10
from experiments.harness import Arguments, Outcome, Study
from fedjax_sim import models
from fedjax_sim.core.types import Array
from fedjax_sim.kernels import convolution
from fedjax_sim.models.calls import Model


class PatchNet(nn.Module):
    """Two convolutions without overlap in the first: 25,834 parameters on 32x32x3.

    The first has 32 channels and takes patches of 4x4, the second has 64 channels, a window of
    3x3 and stride 2. Both are followed by ReLU, then comes the layer of logits.
    """

    num_classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Compute the logits `[..., num_classes]` of images `[..., H, W, C]`."""
        for features, window, stride in ((32, 4, 4), (64, 3, 2)):
            x = nn.Conv(
                features,
                (window, window),
                (stride, stride),
                padding="VALID",
                conv_general_dilated=convolution.auto,
            )(x)
            x = nn.relu(x)
        return nn.Dense(self.num_classes)(x.reshape(*x.shape[:-3], -1))


FULL = mnist.FULL.replace(dataset="cifar10", time_budget=20_000.0, clients=50)
COMPARISON = Comparison(
    Study(
        FULL,
        mnist.SMOKE.replace(time_budget=300.0),
        FULL.replace(
            seeds=2,
            time_budget=10_000.0,
            clients=20,
            tuning_seeds=1,
            rates=(0.02, 0.05, 0.1, 0.2),
            words="20 clients, half of the virtual time, a small network, 2 seeds, four learning "
            "rates tuned on one seed",
        ),
    ),
    network=models.LeNet,
    targets=(0.3, 0.4, 0.5),
    mean=CIFAR10.mean,
    std=CIFAR10.std,
)


def network_of(arguments: Arguments) -> Callable[[int], Model]:
    """Return the network of a size. LeNet-5 does not fit into the 8x8 images of a smoke run."""
    if arguments.smoke:
        return models.SmallCNN
    return PatchNet if arguments.reduced else COMPARISON.network


def run(arguments: Arguments) -> Outcome:
    """Tune and compare all methods."""
    return compare(COMPARISON._replace(network=network_of(arguments)), arguments)
