"""Metrics with dimensions, which their names tell: "error[client]" is "error" along "client"."""

from collections.abc import Collection, Mapping, Sequence
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import ConfigError, plain
from fedjax_sim.core.types import AnyProblem

if TYPE_CHECKING:
    import xarray as xr


LESS_IS_BETTER = "less_is_better"
"""Attribute of a variable: 1 if small values are good ones, as they are of a loss."""


COORDINATES = ("time", "ticks", "local_steps", "uplink_bits", "downlink_bits")
"""The schedule's facts. A swept setting of the same name gets the dimension `NAME_setting`."""


RESERVED = {
    *COORDINATES,
    *("system", "lane", "seed", "eval", "finite", "failed", "failed_at", "collapsed_at"),
    *("stopped_at", "executed", "needed", "staleness_mean", "staleness_max", "client_variance"),
    *("epsilon", "client_uplink_bits", "client_downlink_bits", "ended", "energy"),
}
"""Names in the curves that no metric may have."""


def read_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Split a metric's name into the name of its variable and those of its dimensions."""
    variable, bracket, dims = name.partition("[")
    if not bracket:
        return name, ()
    return variable, tuple(dim.strip() for dim in dims.removesuffix("]").split(","))


def check_metrics(metrics: Sequence[tuple[str, jax.Array]], further: Collection[str]) -> None:
    """Check that metrics have the dimensions that their names tell. Values may be traced.

    Args:
      metrics: Names and values.
      further: Names that curves need for others, besides `RESERVED`.

    Raises:
      ConfigError: If they do not, or curves could not tell one of them from something else.
    """
    known = {dim for name, _ in metrics for dim in read_name(name)[1]}
    for name, value in metrics:
        variable, dims = read_name(name)
        for word in (variable, *dims):
            if not word or "/" in word:
                raise ConfigError("name of a metric", name, 'without "/", and not empty')
            if word in RESERVED or word in further:
                allowed = f"another one, as {word} already names a setting or a fact in the curves"
                raise ConfigError("name of a metric", name, allowed)
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
    # Looked up without a problem's `__getattr__`, which may raise anything.
    names = "metric_labels", "less_is_better"
    described: list[Any] = [
        each for each in distinct if all(getattr_static(each, name, None) for name in names)
    ]
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


def _plain(names: Sequence[object]) -> np.ndarray:
    """Make an array of labels that a file can hold: numbers, or text."""
    labels = [plain(name) for name in names]
    kinds = {type(label) for label in labels}
    return np.array(labels if kinds in ({int}, {float}, {str}) else [str(each) for each in labels])
