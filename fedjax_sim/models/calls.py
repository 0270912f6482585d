"""Tell whether a model takes the argument `train`, as models with dropout do."""

import inspect

from flax import linen as nn

from fedjax_sim.types import Model


def takes_train(model: Model) -> bool:
    """Tell whether a model behaves differently in training, for example because it has dropout.

    Args:
      model: A flax module, or another object with `init` and `apply`.

    Returns:
      Whether calls of the model take the arguments `train` and `rngs`.
    """
    call = model.__call__ if isinstance(model, nn.Module) else model.apply
    return "train" in inspect.signature(call).parameters
