"""Metrics with dimensions, which their names tell: "error[client]" is "error" along "client"."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import AnyProblem, DescribedProblem

if TYPE_CHECKING:
    import xarray as xr

LESS_IS_BETTER = "less_is_better"
"""Attribute of a variable: 1 if small values are good ones, as they are of a loss."""


def read_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Split a metric's name into the name of its variable and those of its dimensions."""
    variable, bracket, dims = name.partition("[")
    if not bracket:
        return name, ()
    return variable, tuple(dim.strip() for dim in dims.removesuffix("]").split(","))


def check_metrics(metrics: Mapping[str, jax.Array]) -> None:
    """Check that metrics have the dimensions that their names tell. Values may be traced.

    Raises:
      ConfigError: If they do not, or two of them have one name.
    """
    known = set()
    for name, value in metrics.items():
        variable, dims = read_name(name)
        if jnp.ndim(value) != len(dims):
            allowed = f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"
            if not dims:
                allowed += f'; if it has dimensions, name them, as in "{name}[client]"'
            raise ConfigError(f"shape of the metric {name}", jnp.shape(value), allowed)
        if variable in known:
            raise ConfigError("name of a metric", name, f"another one, as there is a {variable}")
        known.add(variable)


def scalars_of(metrics: Mapping[str, jax.Array]) -> list[jax.Array]:
    """List the metrics without dimensions."""
    return [value for name, value in metrics.items() if not read_name(name)[1]]


def describe_metrics(curves: "xr.Dataset", problems: Sequence[AnyProblem]) -> "xr.Dataset":
    """Label the dimensions of metrics as problems do, and mark those of which less is better.

    Args:
      curves: The curves of `label_curves` or `label_lanes`.
      problems: What was learnt, at least one problem. Labels on which not all agree are left out.
    """
    distinct = list({id(problem): problem for problem in problems}.values())
    described = [each for each in distinct if isinstance(each, DescribedProblem)]
    if not described:
        return curves
    first, labels = described[0], {}
    for dim, names in first.metric_labels.items():
        agree = all(list(each.metric_labels.get(dim, ())) == list(names) for each in described)
        if agree and curves.sizes.get(dim) == len(names):
            labels[dim] = _plain(names)
    curves = curves.assign_coords(labels)
    for name in first.less_is_better:
        if name in curves:
            curves[name].attrs[LESS_IS_BETTER] = 1
    return curves


def _plain(names: Sequence[Any]) -> np.ndarray:
    """Make an array of labels that a file can hold: numbers, or text."""
    kinds = {type(name) for name in names}
    return np.array(list(names) if kinds in ({int}, {float}, {str}) else [str(n) for n in names])
