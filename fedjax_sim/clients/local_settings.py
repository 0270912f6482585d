"""Settings of clients' local training, and their optimizer."""

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.core import settings
from fedjax_sim.core.schedules import CLOCKS, Constant, Schedule, schedule_of
from fedjax_sim.core.settings import Above0, AtLeast0, Checked, ConfigError, Count, setting, struct
from fedjax_sim.core.types import Array, Event, Params


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
      ConfigError: If there is none, or an argument has no name: the first one would be the rate.
    """
    if (known := name.partition(":")[0]) not in _optimizers():
        allowed = f"one of {', '.join(_optimizers())}, which are the optax optimizers"
        raise ConfigError("optimizer", known, allowed)
    found: Any = settings.parse_function(_optimizers(), name)
    if getattr(found, "args", ()):
        raise ConfigError("optimizer", name, "one with named arguments, as in sgd:momentum=0.9")
    return found


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
    return isinstance(value, Hashable) and _step_of(value) is not None


INSTEAD = "lr_schedule has cosines, warm-ups and other schedules"


@functools.lru_cache(maxsize=256)
def _step_of(value: Any) -> "jax.tree_util.PyTreeDef | None":
    """Trace one step of two numbers. Return the structure of the state; None if there is no step.

    Raises:
      ConfigError: If the function asks for the value of the rate, as a warm-up of optax does.
    """
    model = jax.ShapeDtypeStruct((2,), jnp.float32)

    def step(rate: Array, model: Params, gradient: Params) -> tuple[Params, Params]:
        made = value(rate)
        state = made.init(model)
        return made.update(gradient, state, model)[0], state

    try:
        update, state = jax.eval_shape(step, jax.ShapeDtypeStruct((), jnp.float32), model, model)
    except jax.errors.ConcretizationTypeError:
        allowed = f"one that does not ask for the value of the rate, which is traced; {INSTEAD}"
        raise ConfigError("optimizer", getattr(value, "__name__", value), allowed) from None
    except (AttributeError, TypeError, ValueError):
        return None
    return jax.tree.structure(state) if update.shape == model.shape else None


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
    lr_schedule: Schedule = schedule_of("lr", CLOCKS)
    proximal_schedule: Schedule = schedule_of("proximal", CLOCKS)

    def check_together(self) -> None:
        """Check that no schedule within the optimizer starts again with each update.

        Raises:
          ConfigError: If one does.
        """
        super().check_together()
        state = str(_step_of(self.optimizer))
        if self.optimizer_state == "fresh" and "ScaleByScheduleState" in state:
            name = getattr(self.optimizer, "__name__", self.optimizer)
            allowed = (
                "one that takes the rate as it is, unless its state is kept, because a schedule "
            )
            allowed += f"would start again with each update; {INSTEAD}"
            raise ConfigError("optimizer", name, allowed)


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
    proximal: AtLeast0 = setting(
        0.0, "Strength of the pull to where local training started, mu.", simpler_at=(0.0,)
    )
    training: ClientTraining = settings.group(
        ClientTraining(), ABOUT_TRAINING, without=("optimizer_state",)
    )

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        alone = {"training.proximal_schedule": "proximal 0"}
        return super().decided() | (alone if settings.is_known(self.proximal, 0) else {})

    @property
    def by_step(self) -> dict[str, Schedule]:
        """Schedules by local step, by the names of the settings that follow them."""
        return {name: each for name, each in self._schedules().items() if each.clock == "step"}

    def _schedules(self) -> dict[str, Schedule]:
        held = {"lr": self.training.lr_schedule, "proximal": self.training.proximal_schedule}
        return {name: each for name, each in held.items() if not each.is_constant}

    def of_slots(self, event: Event) -> dict[str, Array]:
        """Compute the settings with schedules in each slot: `f[S]` by name.

        Those with schedules by local step have the values without these.

        Args:
          event: The tick.
        """
        clocks = {"round": event.tick, "version": event.version}
        clocks |= {"client": event.clients, "work": event.steps}
        clocks |= {"staleness": event.tick - event.version}
        still, found = jnp.ones(event.clients.shape, event.weight.dtype), {}
        for name, each in self._schedules().items():
            rate, t = getattr(self, name) * still, clocks.get(each.clock)
            found[name] = rate if t is None else each.of(rate, t)
        return found

    def at_slot(self, values: Mapping[str, Array]) -> Self:
        """Replace settings by those of a slot, which only change with its local steps.

        Args:
          values: `f[]` by name, of `of_slots`.

        Returns:
          The settings.
        """
        kept = {f"{name}_schedule": Constant() for name in values.keys() - self.by_step.keys()}
        return self.replace(**values, **kept) if values else self  # type: ignore[attr-defined]

    def at_step(self, q: Array) -> Self:
        """Replace settings by those of a local step.

        Args:
          q: Its number in the update, `i32[]`.

        Returns:
          The settings.
        """
        found = {name: each.of(getattr(self, name), q) for name, each in self.by_step.items()}
        return self.replace(**found)  # type: ignore[attr-defined]

    def rate_sums(self, event: Event) -> Array:
        """Add up the learning rates of each slot's local steps, of one step if it has none.

        Args:
          event: The tick.

        Returns:
          `f[S]`.
        """
        steps, rates = jnp.maximum(event.steps, 1), self.of_slots(event).get("lr", self.lr)
        schedule = self.by_step.get("lr")
        if schedule is None:
            return rates * steps
        most = event.facts.most_steps

        def add(q: Array, total: Array) -> Array:
            return total + jnp.where(q < steps, schedule.of(rates, q), 0)

        return jax.lax.fori_loop(0, steps.max() if most is None else max(most, 1), add, 0 * rates)

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
