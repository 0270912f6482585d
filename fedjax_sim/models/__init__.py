"""Networks: flax modules, made for a number of classes.

Dense networks are in `mlp.py`; convolutional ones belong in `conv.py` and join the registry here. Modules are stateless and hashable,
and their `init` and `apply` are all that the rest of the package uses.
"""

from collections.abc import Callable

from flax import linen as nn

from fedjax_sim.models.mlp import MLP, LogisticRegression

__all__ = ["MLP", "MODELS", "LogisticRegression"]

MODELS: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "logistic": (lambda num_classes: LogisticRegression(num_classes), "logistic regression"),
    "mlp32": (lambda num_classes: MLP((32,), num_classes), "perceptron with 32 hidden units, FAVANO's network for MNIST"),
    "mlp128": (lambda num_classes: MLP((128,), num_classes), "perceptron with 128 hidden units"),
}
"""Models by name: a function from the number of classes to the module, and one line of description."""
