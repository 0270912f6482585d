"""Call networks in training and in evaluation, whatever they call the switch between the two.

A network with dropout has a switch under one of the names in `SWITCHES`: an argument of its calls,
or an attribute of a flax module.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
from flax import linen as nn

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.trees import in_32_bits
from fedjax_sim.core.types import Array, Key, Params


class Model(Protocol):
    """A network: anything with `init` and `apply`, such as a flax module.

    If its calls (`__call__` of a flax module, otherwise `apply`) have a parameter `train`,
    `training`, `is_training`, `deterministic` or `inference`, it says whether this is a local step.
    Local steps then pass `rngs` too, a mapping from stream names to keys. A flax module may have
    such an attribute instead.
    """

    def init(self, key: Key, x: Array, /) -> Params:
        """Draw parameters for inputs of the shape of `x`.

        Args:
          key: A random key.
          x: A batch of inputs.

        Returns:
          Parameters.
        """

    def apply(self, params: Params, x: Array, /) -> Params:
        """Compute the logits of inputs.

        Args:
          params: Parameters, as `init` draws them.
          x: A batch of inputs, `[B, ...]`.

        Returns:
          Outputs `[B, ...]`, such as logits.
        """


SWITCHES = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "inference": False,
}
"""Names of the switch, with its value in training."""


def switches_of(call: Callable[..., Any], *, train: bool) -> dict[str, bool]:
    """Return the switches among the arguments of a call, with their values.

    Args:
      call: Something that can be called.
      train: Whether the values are those of training.
    """
    names = inspect.signature(call).parameters
    return {name: train is value for name, value in SWITCHES.items() if name in names}


def check_switches(call: Callable[..., Any]) -> None:
    """Refuse an unknown switch, with which dropout could be off in local steps without a word.

    Args:
      call: A call of a network that cannot be seen to use dropout.

    Raises:
      ConfigError: If an argument with a bool as its default is not in `SWITCHES`.
    """
    for name, argument in inspect.signature(call).parameters.items():
        if isinstance(argument.default, bool) and name not in SWITCHES:
            raise ConfigError("switch of the network", name, "one of " + ", ".join(SWITCHES))


PARAMETERS = "params"
"""The collection in which a network with several collections keeps its parameters."""


def state_of(model: Model, params: Params) -> tuple[str, ...]:
    """List the collections that a network changes in training, such as "batch_stats".

    A flax module has them, and any network whose parameters are a dict with the key "params" and
    others, and whose `apply` takes `mutable=`, names of collections: it then returns the pair of
    outputs and a dict with the new ones.

    Args:
      model: The network.
      params: Its parameters, or their shapes; what is frozen is left out.
    """
    can_change = "mutable" in inspect.signature(model.apply).parameters
    if not can_change or not isinstance(params, Mapping) or PARAMETERS not in params:
        return ()
    return tuple(sorted(k for k in params if k != PARAMETERS and jax.tree.leaves(params[k])))


def draw_params(model: Model, key: Key, x: Params) -> Params:
    """Draw a network's parameters.

    Args:
      model: The network.
      key: A random key.
      x: Inputs like those that it will be given, leaves `[B, ...]`.
    """
    network, options, _ = _called(model, train=False)
    return network.init(key, x, **(options if isinstance(model, nn.Module) else {}))


def outputs_of(
    model: Model,
    params: Params,
    x: Params,
    *,
    train: bool = False,
    rngs: Mapping[str, Key] | None = None,
    mutable: Sequence[str] = (),
) -> Params:
    """Compute a network's outputs.

    Args:
      model: The network.
      params: Its parameters.
      x: Inputs, leaves `[B, ...]`.
      train: Whether this is a local step.
      rngs: In training, random streams by name.
      mutable: Collections whose new values are wanted, see `state_of`.

    Returns:
      The outputs, leaves `[B, ...]`. Floating-point ones are of at least 32 bits, so that losses,
      metrics and their sums are too. With `mutable` a pair of them and the collections by name.
    """
    network, options, has_switch = _called(model, train=train)
    if train and has_switch:
        options["rngs"] = rngs
    if mutable:
        options["mutable"] = list(mutable)
    found = network.apply(params, x, **options)
    return (in_32_bits(found[0]), found[1]) if mutable else in_32_bits(found)


def has_switch(model: Model) -> bool:
    """Tell whether a network has a switch, as an argument of its calls or as an attribute."""
    return _called(model, train=True)[2]


def _called(model: Model, *, train: bool) -> tuple[Model, dict[str, Any], bool]:
    """Set the switches of a network.

    Returns:
      The network, with the switches among its attributes set; the switches among the arguments of
      its calls, with their values; and whether there is one of either kind.
    """
    call = model.__call__ if isinstance(model, nn.Module) else model.apply
    options: dict[str, Any] = switches_of(call, train=train)
    attributes: dict[str, Any] = {}
    if isinstance(model, nn.Module):
        names = {field.name for field in dataclasses.fields(model)} - {*options}
        attributes = {
            name: train is value
            for name, value in SWITCHES.items()
            if name in names and isinstance(getattr(model, name), bool | None)
        }
        model = model.clone(**attributes) if attributes else model
    return model, options, bool(options or attributes)
