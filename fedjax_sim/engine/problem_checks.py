"""What a problem must have and return, in particular one that a user wrote.

What shows without tracing is checked when a sweep begins; models, losses and metrics are checked
where they are traced anyway, before anything learns.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import System

STATISTICS = "batch_stats"
"""The collection of a flax module's variables with batch normalisation's running statistics."""


def check_problem(system: System, problem: Any) -> None:
    """Check that an object can be what a system learns, without calling it.

    Args:
      system: The system.
      problem: The object.

    Raises:
      ConfigError: If it lacks a field or method, a method takes other arguments, it is no pytree of
        arrays, or `counts` is not a whole number from 1 for each client.
    """
    kind = system.fit.learns
    name = (problem if isinstance(problem, type) else type(problem)).__name__
    members = [member for member in vars(kind) if not member.startswith("_")]
    lacking = [member for member in members if not hasattr(problem, member)]
    if lacking or isinstance(problem, type):
        allowed = f"a {kind.__name__} (see fedjax_sim/types.py) for {system.name}"
        if isinstance(problem, type):
            allowed += ", not a class"
        elif len(lacking) < len(members):
            allowed += f"; it lacks {' and '.join(lacking)}"
        raise ConfigError("problem", name, allowed)
    for member in members:
        if callable(asked := getattr(kind, member)):
            _check_arguments(f"{member} of {name}", getattr(problem, member), asked)
    for leaf in jax.tree.leaves(problem):
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)):
            allowed = "a pytree of arrays, such as a class with @flax.struct.dataclass"
            if leaf is not problem:
                allowed += f"; it holds {type(leaf).__name__!r}"
            raise ConfigError("problem", name, allowed)
    counts = problem.counts
    if np.ndim(counts) != 1 or not jnp.issubdtype(getattr(counts, "dtype", object), np.integer):
        raise ConfigError("counts", _form(counts), "an array i32[N], the examples of each client")
    if (least := int(np.asarray(counts).min(initial=1))) < 1:
        raise ConfigError("counts", least, "at least 1, for every client")


def _form(value: Any) -> str:
    """Return dtype and shape of an array, such as "float32[3]", or else the name of the type."""
    if hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def _check_arguments(field: str, method: Callable[..., Any], asked: Callable[..., Any]) -> None:
    names = list(inspect.signature(asked).parameters)[1:]
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # Not everything that is callable tells.
        return
    try:
        signature.bind(*names)
    except TypeError:
        allowed = f"a method that can be called with ({', '.join(names)})"
        raise ConfigError(f"signature of {field}", str(signature), allowed) from None


def check_model(model: Any) -> None:
    """Check that all leaves of a model can be learnt. It may be described or traced.

    Raises:
      ConfigError: If a leaf does not hold real or complex numbers, or there is no leaf, or flax's
        running statistics are among them.
    """
    if isinstance(model, Mapping) and jax.tree.leaves(model.get(STATISTICS)):
        allowed = "left out or frozen: they are no parameters, and their gradient means nothing"
        raise ConfigError("statistics in the model that init returns", STATISTICS, allowed)
    leaves = jax.tree_util.tree_leaves_with_path(model)
    if not leaves:
        raise ConfigError("model that init returns", model, "a pytree with at least one array")
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, np.inexact):
            field = f"model{jax.tree_util.keystr(path)} that init returns"
            raise ConfigError(field, _form(leaf), "an array of floating-point numbers")


def check_loss(values: list[Any]) -> None:
    """Check the loss of a mini-batch.

    Args:
      values: The leaves that the loss returns, described or traced.

    Raises:
      ConfigError: If it is not one real number.
    """
    if len(values) != 1 or values[0].shape or not jnp.issubdtype(values[0].dtype, np.floating):
        found = ", ".join(map(_form, values))
        raise ConfigError("loss of a mini-batch", found, "one real number, f[], such as a mean")


def read_metrics(found: Any) -> dict[str, jax.Array]:
    """Check the metrics that `evaluate` returned. Values may be traced.

    Args:
      found: What it returned.

    Raises:
      ConfigError: If they are no mapping from names to numbers or arrays.
    """
    if not isinstance(found, Mapping):
        raise ConfigError("result of evaluate", _form(found), "a mapping from names to numbers")
    for name, value in found.items():
        if not isinstance(name, str):
            raise ConfigError("name of a metric", name, "a string")
        if not isinstance(value, (jax.Array, np.ndarray, np.generic, int, float)):
            allowed = "a number, or an array of numbers"
            raise ConfigError(f"metric {name}", _form(value), allowed)
    return dict(found)
