"""What an algorithm and its step must return, checked before anything is compiled."""

from typing import Any

import jax

from fedjax_sim.settings import ConfigError
from fedjax_sim.trees import typed_structure
from fedjax_sim.types import Algorithm


def check_algorithm(found: Any) -> None:
    """Check what a system's `algorithm` returned.

    Args:
      found: What it returned.

    Raises:
      ConfigError: If it is no `Algorithm`.
    """
    if not isinstance(found, Algorithm):
        raise ConfigError("result of algorithm", type(found).__name__, "a fedjax_sim.Algorithm")


def check_step(state: Any, result: Any) -> None:
    """Check that a step returns the next state, like the last one, and counts. Leaves are traced.

    Args:
      state: The state that the step was given.
      result: What it returned.

    Raises:
      ConfigError: If it is no pair, if the next state has another structure, or a leaf another
        shape or dtype, or if the counts are no NamedTuple.
    """
    if type(result) is not tuple or len(result) != 2:
        raise ConfigError("result of step", type(result).__name__, "the pair (state, info)")
    after, info = result
    if not hasattr(info, "_asdict"):
        allowed = "a NamedTuple of numbers, such as fedjax_sim.types.Work"
        raise ConfigError("info that step returns", type(info).__name__, allowed)
    had, has = typed_structure(state), typed_structure(after)
    if had != has:
        allowed = f"of the structure that init returns, {had.structure}"
        raise ConfigError("state that step returns", has.structure, allowed)
    leaves = zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(after), strict=True)
    for (path, before), leaf in leaves:
        was, now = jax.typeof(before), jax.typeof(leaf)
        # A scan promotes what has no definite type, such as a number that Python made.
        if was.shape != now.shape or (was.dtype != now.dtype and not was.weak_type):
            name = f"state{jax.tree_util.keystr(path)} that step returns"
            raise ConfigError(name, now.str_short(), f"{was.str_short()}, as init returns it")
