"""How models are called."""

import inspect

from flax import linen as nn

from fedjax_sim.types import Model


def takes_train(model: Model) -> bool:
    """Whether a model behaves otherwise in training, and its calls take `train` and `rngs` for it."""
    call = model.__call__ if isinstance(model, nn.Module) else model.apply
    return "train" in inspect.signature(call).parameters
