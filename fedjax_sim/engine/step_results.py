"""What an algorithm and its step must return, checked before anything is compiled."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.settings import ConfigError
from fedjax_sim.trees import typed_structure
from fedjax_sim.types import Algorithm, Event


def check_algorithm(found: Any) -> None:
    """Check what a system's `algorithm` returned.

    Args:
      found: What it returned.

    Raises:
      ConfigError: If it is no `Algorithm`.
    """
    if not isinstance(found, Algorithm):
        raise ConfigError("result of algorithm", type(found).__name__, "a fedjax_sim.Algorithm")


def check_step(state: Any, event: Event, result: Any, changes: Collection[str] = ()) -> None:
    """Check that a step returns the next state, like the last one, and counts. Leaves are traced.

    Args:
      state: The state that the step was given.
      event: The tick that it was given.
      result: What it returned.
      changes: The fields of the event that it replaced.

    Raises:
      ConfigError: If it is no pair, if the next state has another structure, or a leaf another
        shape or dtype, if the counts are no NamedTuple, or if they do not tell who took part in a
        changed event.
    """
    if type(result) is not tuple or len(result) != 2:
        raise ConfigError("result of step", type(result).__name__, "the pair (state, info)")
    after, info = result
    if not hasattr(info, "_asdict"):
        allowed = "a NamedTuple of numbers, such as fedjax_sim.types.Work"
        raise ConfigError("info that step returns", type(info).__name__, allowed)
    changed, slots = getattr(info, "event", None), event.clients.shape
    if changes and not isinstance(changed, Event):
        allowed = (
            "the changed event, as in the Work of local training, because the step replaced "
            f"{' and '.join(sorted(changes))} of its event (event.within describes other work "
            "within a tick, which changes nothing that is counted)"
        )
        raise ConfigError("field event of the info that step returns", changed, allowed)
    if isinstance(changed, Event) and changed.clients.shape != slots:
        allowed = f"{list(slots)}, the slots of the tick"
        raise ConfigError("shape of the event in the info", list(changed.clients.shape), allowed)
    had, has = typed_structure(state), typed_structure(after)
    if had != has:
        allowed = f"of the structure that init returns, {had.structure}"
        raise ConfigError("state that step returns", has.structure, allowed)
    leaves = zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(after), strict=True)
    for (path, before), leaf in leaves:
        was, now = jax.typeof(before), jax.typeof(leaf)
        # A scan promotes what has no definite type, such as a number that Python made.
        is_alike = was.dtype == now.dtype or was.weak_type or is_narrow(was.dtype)
        if was.shape != now.shape or not is_alike:
            name = f"state{jax.tree_util.keystr(path)} that step returns"
            raise ConfigError(name, now.str_short(), f"{was.str_short()}, as init returns it")


def is_narrow(dtype: Any) -> bool:
    """Tell whether a type is of real numbers of fewer than 32 bits, such as bfloat16."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def keep_narrow(before: Any, after: Any) -> Any:
    """Round a state to the narrow types that it had before a step, as settings have 32 bits."""

    def kept(old: Any, new: Any) -> Any:
        return new.astype(old.dtype) if is_narrow(jax.typeof(old).dtype) else new

    return jax.tree.map(kept, before, after)
