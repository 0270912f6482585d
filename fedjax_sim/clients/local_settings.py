"""Settings of clients' local training, and their optimizer."""

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.core import settings
from fedjax_sim.core.checking import Above0, AtLeast0, Count
from fedjax_sim.core.settings import Checked, ConfigError, setting, struct
from fedjax_sim.core.types import Array, Params


@functools.cache
def _optimizers() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Find optax's optimizers: its functions of a learning rate."""
    return {
        name: each
        for name, each in vars(optax).items()
        if inspect.isfunction(each)
        and "learning_rate" in inspect.signature(each).parameters
        and not name.startswith(("_", "scale_by"))
    }


def optimizer_named(name: str) -> Callable[..., optax.GradientTransformation]:
    """Return optax's optimizer of a name.

    Args:
      name: The name, such as "adam", and arguments, as in "sgd:momentum=0.9".

    Raises:
      ConfigError: If there is none.
    """
    if (known := name.partition(":")[0]) not in _optimizers():
        allowed = f"one of {', '.join(_optimizers())}, which are the optax optimizers"
        raise ConfigError("optimizer", known, allowed)
    return settings.parse_function(_optimizers(), name)


def refuse_name(setting: str, value: object) -> None:
    """Refuse the name of an optimizer in the place of its function.

    Args:
      setting: The setting.
      value: What was given.

    Raises:
      ConfigError: If it is a text.
    """
    if isinstance(value, str):
        try:
            optimizer_named(value.partition(":")[0])
        except ConfigError as error:
            raise ConfigError(setting, value, error.parts[2]) from None
        allowed = f"a function such as optax.{value}; only the command line takes names"
        raise ConfigError(setting, value, allowed)


def _makes_optimizers(value: object) -> bool:
    refuse_name("optimizer", value)
    return isinstance(value, Hashable) and _makes_steps(value)


@functools.lru_cache(maxsize=256)
def _makes_steps(value: Any) -> bool:
    """Tell whether a function makes optimizers, by tracing one step of two numbers."""
    model = jax.ShapeDtypeStruct((2,), jnp.float32)

    def step(model: Params, gradient: Params) -> Params:
        made = value(0.1)
        return made.update(gradient, made.init(model), model)[0]

    try:
        return jax.eval_shape(step, model, model).shape == model.shape
    except (AttributeError, TypeError, ValueError):
        return False


class Descent(optax.GradientTransformation):
    """Plain gradient descent, `optax.sgd(rate)`: the update is -rate g and nothing else.

    Attributes:
      rate: The learning rate, a number.
    """

    rate: Array | float

    @classmethod
    def with_rate(cls, rate: Array | float) -> "Descent":
        """Make it."""
        found = cls(*optax.sgd(rate))
        found.rate = rate
        return found


@struct
class ClientTraining(Checked):
    """Settings of local steps apart from their size.

    An optimizer is any function from a learning rate, such as those of optax.

        momentum = partial(optax.sgd, momentum=0.9)
        hyper = fedavg.Hyper(training=ClientTraining(optimizer=momentum, optimizer_state="kept"))
    """

    sampling: Literal[
        "shuffled_epochs", "reshuffled", "without_replacement", "with_replacement"
    ] = setting(
        "shuffled_epochs",
        "How mini-batches are drawn: from epochs, each shuffled again, that continue from one "
        "update to the next; from a new shuffle for each update; without replacement for each "
        "step; or with replacement.",
    )
    example_clip: AtLeast0 = setting(
        0.0,
        "Largest L2 norm of the gradient of a single example's loss in local steps, which "
        "is clipped to it before the mean over the mini-batch; 0 does not clip.",
        traced=False,
    )
    optimizer: Callable[..., optax.GradientTransformation] = setting(
        optax.sgd,
        "Local optimizer.",
        allowed="the name of an optax optimizer, or a function from a learning rate to a gradient "
        "transformation",
        accepts=_makes_optimizers,
        parse=optimizer_named,
    )
    optimizer_state: Literal["fresh", "kept"] = setting(
        "fresh",
        "Whether the state of a client's optimizer, such as its momentum, starts afresh with each "
        "update, or is kept from one update of the client to its next.",
        only_with={"optimizer": lambda optimizer: optimizer is not optax.sgd},
    )


ABOUT_TRAINING = "mini-batches and the optimizer of local steps"
"""Meaning of the group `training`, for systems that restrict it."""


@struct
class LocalTraining(Checked):
    """Settings of clients' local training, with optimizers that start afresh with each update.

    Local steps are plain gradient descent by default.

        assert LocalTraining(lr=0.5).local_optimizer().rate == 0.5
    """

    lr: Above0 = setting(0.1, "Learning rate of local steps.")
    batch_size: Count = setting(32, "Examples of a mini-batch.")
    training: ClientTraining = settings.group(
        ClientTraining(), ABOUT_TRAINING, without=("optimizer_state",)
    )

    def local_optimizer(self) -> optax.GradientTransformation:
        """Make the optimizer of local steps."""
        if self.training.optimizer is optax.sgd:
            return Descent.with_rate(self.lr)
        return self.training.optimizer(self.lr)


@struct
class LastingTraining(LocalTraining):
    """Settings of clients' local training, with optimizers that may remember.

    They are inherited by the settings of systems whose clients keep momentum, for example.

        kept = ClientTraining(optimizer=optax.adam, optimizer_state="kept")
        hyper = LastingTraining(lr=0.01, training=kept)
    """

    training: ClientTraining = settings.group(ClientTraining(), ABOUT_TRAINING)
