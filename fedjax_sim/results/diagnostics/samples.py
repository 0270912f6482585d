"""Samples and predictions as data that ArviZ reads.

Each lane of a run is one chain: the seeds of a sweep are its chains, and each swept setting has one
dimension, so that chains of different settings are never pooled. Samples are those of
`sweep(..., keep=Keep(models=True))`. The groups and dimensions are ArviZ's (`posterior`,
`sample_stats`, `posterior_predictive`, `log_likelihood`, `observed_data`; `chain` and `draw`), in
an `xarray.DataTree`. `tree.to_netcdf(path)` saves it, `xarray.open_datatree(path)` loads it, and
`tree.sel(temperature=1.0)` chooses one setting.

Parameters are named by their path in the model's pytree, joined by dots, with "|" for "/".

Dimension letters: `L` lanes, `V` evaluations of a lane, `m` examples, `K` classes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import ConfigError, Count, Seed, Whole, checked
from fedjax_sim.core.types import Array, Params
from fedjax_sim.results.diagnostics.posterior import BINS, Reliability, check_kept, reliability

if TYPE_CHECKING:
    import xarray as xr

ONLY = "w"
"""Name of the parameters of a model that is one array."""
SAMPLE = ("chain", "draw")

Dims = dict[str, np.ndarray]
"""Coordinates of the leading dimensions of samples, by name."""


@checked
def to_arviz(
    run: Any, problem: Any = None, *, burn_in: Whole = 1, thin: Count = 1
) -> "xr.DataTree":
    """Return the samples of a run as ArviZ's groups.

        tree = to_arviz(run, burn_in=1)  # of a run with keep=Keep(models=True)
        assert tree["posterior"]["w"].shape == run.samples[:, 1:].shape

    Args:
      run: What `sweep` or `simulate` returned with `keep=Keep(models=True)`.
      problem: A problem with `log_likelihoods`, such as those of
        `fedjax_sim.problems.from_logdensity`. It adds the groups `log_likelihood`, which
        `arviz.loo` needs, of all its examples.
      burn_in: Evaluations dropped as warm-up. The default drops the initial model.
      thin: Distance between evaluations that are kept.

    Returns:
      `posterior` with variables of dimensions (settings..., chain, draw, ...), and `sample_stats`
      with the metrics of these evaluations (`lp` for the metric `log_density`) and `ticks`. Draws
      have the numbers of their evaluations. Parameters of a lane that ended before others are NaN
      from then on.

    Raises:
      ConfigError: If the run kept no models or is a part of a sweep, or a number is out of range.
    """
    import xarray as xr  # Slow to import.

    if not hasattr(run, "samples"):
        raise ConfigError("run", run, "a fedjax_sim.Run that has kept its models")
    curves, samples = run.curves, run.samples
    if samples is None:
        allowed = "kept: call sweep or simulate with keep=Keep(models=True)"
        raise ConfigError("samples", None, allowed)
    if "lane" in curves.dims:
        raise ConfigError("run", "a part of a sweep", "a whole one, see engine.sweeps.join_runs")
    if "seed" not in curves.dims:  # of simulate
        curves, samples = curves.expand_dims("seed"), jax.tree.map(lambda leaf: leaf[None], samples)
    settings = [str(name) for name in curves["failed"].dims if name != "seed"]
    lanes = [curves.sizes[name] for name in (*settings, "seed")]
    num = curves.sizes["eval"]
    check_kept(num, burn_in, thin)
    metrics = {str(name): curves[name] for name in curves if "eval" in curves[name].dims}
    stats = xr.Dataset(metrics).reset_coords(drop=True).assign(ticks=curves["ticks"].variable)
    stats = stats.rename({"log_density": "lp"} if "log_density" in stats else {})
    stats = stats.rename(seed="chain", eval="draw").transpose(*settings, *SAMPLE, ...)
    stats = stats.broadcast_like(stats["ticks"]).assign_coords(draw=np.arange(num))
    is_over = (stats["ticks"].diff("draw", label="upper") == 0).reindex(
        draw=stats["draw"], fill_value=False
    )
    leaves = {}
    for name, leaf in named_leaves(samples, stats.coords).items():
        value = np.asarray(leaf).reshape(*lanes, *leaf.shape[1:])
        further = [f"{name}_dim_{i}" for i in range(leaf.ndim - 2)]
        leaves[name] = xr.DataArray(value, dims=(*settings, *SAMPLE, *further))
    posterior = xr.Dataset(leaves, stats.coords)
    if is_over.any():
        posterior = posterior.where(~is_over)
    kept = slice(burn_in, None, thin)
    groups = {"posterior": posterior.isel(draw=kept), "sample_stats": stats.isel(draw=kept)}
    if problem is not None:
        _check_kind(problem)
        models, dims = _models(groups["posterior"], problem)
        groups["log_likelihood"] = _likelihoods(problem, models, dims)
    return xr.DataTree.from_dict(groups)


@checked
def predictive(
    run: Any,
    problem: Any,
    inputs: Params,
    targets: npt.ArrayLike | None = None,
    *,
    burn_in: Whole = 1,
    thin: Count = 1,
    seed: Seed = 0,
) -> "xr.DataTree":
    """Predict further examples by every sample.

    `burn_in` and `thin` are those of `to_arviz`.

        # Two samples in a tree of `to_arviz`, both w = 0.
        posterior, new_inputs = log_density_of(logistic), np.ones((6, 17), "float32")
        predicted = predictive(tree, posterior, new_inputs, [0, 1, 0, 1, 0, 1])
        assert (predicted["posterior_predictive"]["probability"] == 1 / 2).all()

    Args:
      run: What `sweep` or `simulate` returned with `keep=Keep(models=True)`, or the tree of
        `to_arviz`, whose samples are all used.
      problem: A problem of `fedjax_sim.problems.from_logdensity` with `probabilities` or
        `simulate`, whose examples are pairs (inputs, target), or `log_density_of` a problem of
        classes.
      inputs: Inputs of the examples, a pytree of leaves `[m, ...]`.
      targets: Their targets `[m, ...]`, if they are known.
      seed: Seed of the draws of targets.

    Returns:
      `posterior_predictive` with the draws `y` of targets, of dimensions (settings..., chain, draw,
      example), and for classes `probability`, with the further dimension class. Both are NaN for
      samples that are not finite. With targets also `log_likelihood` and `observed_data`, both `y`.

    Raises:
      ConfigError: If the problem has neither function, or the run kept no models.
    """
    import xarray as xr

    _check_kind(problem)
    if problem.probabilities is None and problem.simulate is None:
        raise ConfigError("problem", "without probabilities and simulate", "made with one of them")
    tree = run if isinstance(run, xr.DataTree) else to_arviz(run, burn_in=burn_in, thin=thin)
    posterior = tree["posterior"].to_dataset()
    models, dims = _models(posterior, problem)
    key = jax.random.key(seed)
    found = {}
    if problem.probabilities is not None:

        def probabilities(model: Params, problem: Any, inputs: Params) -> Array:
            return jax.vmap(problem.probabilities, (None, 0))(model, inputs)

        found["probability"] = _over_samples(probabilities, models, dims, problem, inputs)
        drawn = np.asarray(jax.random.categorical(key, jnp.log(found["probability"])))
    else:
        num = len(jax.tree.leaves(inputs)[0])

        def simulate(given: tuple[Params, Array], problem: Any, inputs: Params) -> Array:
            model, number = given
            keys = jax.random.split(jax.random.fold_in(key, number), num)
            return jax.vmap(problem.simulate, (0, None, 0))(keys, model, inputs)

        numbers = jnp.arange(int(np.prod(_sizes(dims))), dtype="int32")
        drawn = _over_samples(simulate, (models, numbers), dims, problem, inputs)
    y, is_number = drawn, xr.apply_ufunc(np.isfinite, posterior)
    exists = is_number.all([dim for dim in posterior.dims if dim not in dims]).to_array()
    exists = exists.all("variable").transpose(*dims).values
    if not exists.all():  # Whole numbers have no nan.
        y = np.where(exists.reshape(exists.shape + (1,) * (y.ndim - len(dims))), y, np.nan)
    groups = {"posterior_predictive": _dataset({**found, "y": y}, dims)}
    if targets is not None:
        examples = (inputs, jnp.asarray(targets))
        groups["log_likelihood"] = _likelihoods(problem, models, dims, examples)
        groups["observed_data"] = _dataset({"y": np.asarray(targets)}, {})
    return xr.DataTree.from_dict(groups)


def named_leaves(
    model: Params, taken: Iterable[Hashable], alone: str = ONLY
) -> dict[str, np.ndarray | Array]:
    """Name the leaves of a pytree by their paths, joined by dots, with "|" in place of "/".

    netCDF would make groups of names with slashes. A name that is taken gets a number.

    Args:
      model: The pytree.
      taken: Names that something else has, such as the dimensions of lanes.
      alone: Name of one array alone.
    """
    named: dict[str, np.ndarray | Array] = {}
    others = set(map(str, taken))
    for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".").replace("/", "|") or alone
        named[f"{name} ({len(named)})" if name in {*named, *others} else name] = leaf
    return named


def _models(posterior: "xr.Dataset", problem: Any) -> tuple[Params, Dims]:
    """Put the samples back into models, leaves `[R, ...]`, and return their dimensions.

    Dimensions are coordinates by name, in order; R samples are those of all of them, flattened.
    """
    like = jax.eval_shape(problem.init, jax.random.key(0))
    names = list(named_leaves(like, posterior.coords))
    missing = sorted(set(names) - set(map(str, posterior)))
    if missing:
        raise ConfigError("samples", ", ".join(map(str, posterior)), "with " + ", ".join(missing))
    further = [leaf.ndim for leaf in jax.tree.leaves(like)]
    first = posterior[names[0]]
    dims = {str(d): posterior[d].values for d in first.dims[: first.ndim - further[0]]}
    leaves = [
        jnp.asarray(posterior[name].values.reshape(-1, *leaf.shape), leaf.dtype)
        for name, leaf in zip(names, jax.tree.leaves(like), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), dims


def _check_kind(problem: Any) -> None:
    """Check that a problem knows the likelihoods of single examples."""
    if not hasattr(problem, "log_likelihoods"):
        allowed = "one of problems.from_logdensity or problems.log_density_of"
        raise ConfigError("problem", type(problem).__name__, allowed)


def _over_samples(
    compute: Callable[..., Array], models: Params, dims: Dims, *shared: Params
) -> np.ndarray:
    """Compute something of every model `[R, ...]`, one after another: `[*dims, ...]`.

    `shared` are further arguments, pytrees which the program would otherwise hold as constants.
    """

    def over(models: Params, *shared: Params) -> Array:
        return jax.lax.map(lambda model: compute(model, *shared), models)

    found = np.asarray(jax.jit(over)(models, *shared))
    return found.reshape(*_sizes(dims), *found.shape[1:])


def _likelihoods(problem: Any, models: Params, dims: Dims, examples: Params = None) -> "xr.Dataset":
    """Compute log-likelihoods of examples; ArviZ's Pareto smoothing needs 64 bits."""

    def of_model(model: Params, problem: Any, examples: Params) -> Array:
        return problem.log_likelihoods(model, examples)

    found = _over_samples(of_model, models, dims, problem, examples).astype("float64")
    return _dataset({"y": found}, dims)


def _sizes(dims: Dims) -> list[int]:
    return [len(values) for values in dims.values()]


def _dataset(found: Mapping[str, np.ndarray], dims: Dims) -> "xr.Dataset":
    """Label arrays `[*dims, example, ...]`; the last dimension of probabilities is the class."""
    import xarray as xr

    data = {}
    for name, value in found.items():
        further = [f"{name}_dim_{i}" for i in range(value.ndim - len(dims) - 1)]
        further = ["class"] if name == "probability" else further
        data[name] = ((*dims, "example", *further), value)
    return xr.Dataset(data, dims)


@checked
def calibration(predicted: "xr.DataTree", *, bins: Count = BINS) -> Reliability:
    """Group predictions, averaged over all samples, by confidence.

        # Two samples in a tree of `to_arviz`, both w = 0.
        posterior, new_inputs = log_density_of(logistic), np.ones((6, 17), "float32")
        predicted = predictive(tree, posterior, new_inputs, [0, 1, 0, 1, 0, 1])
        found = calibration(predicted, bins=2)
        assert found.examples.tolist() == [6, 0]  # all have confidence 1/2

    Args:
      predicted: What `predictive` returned for classes with targets, of one setting.
      bins: Number of bins.

    Returns:
      What `fedjax_sim.results.plots.reliability_figure` draws; `score_predictions` of the same
      averages has accuracy, likelihood, Brier score and expected calibration error.

    Raises:
      ConfigError: If there are no class probabilities or no targets, or several settings, which are
        never pooled.
    """
    return reliability(*averaged_predictions(predicted), bins=bins)


@checked
def averaged_predictions(predicted: "xr.DataTree") -> tuple[Array, Array]:
    """Return class probabilities averaged over all samples `f[m, K]`, and targets `i32[m]`.

    The arguments and errors are those of `calibration`.

        # Two samples in a tree of `to_arviz`, both w = 0.
        posterior, new_inputs = log_density_of(logistic), np.ones((6, 17), "float32")
        predicted = predictive(tree, posterior, new_inputs, [0, 1, 0, 1, 0, 1])
        probabilities, labels = averaged_predictions(predicted)
        assert (probabilities == 1 / 2).all() and labels.tolist() == [0, 1, 0, 1, 0, 1]
    """
    if "probability" not in predicted["posterior_predictive"] or "observed_data" not in predicted:
        raise ConfigError("predictions", "without classes or targets", "of classes, with targets")
    found = predicted["posterior_predictive"]["probability"].mean(SAMPLE)
    settings = [str(dim) for dim in found.dims if dim not in ("example", "class")]
    if settings:
        allowed = f"of one setting, such as predicted.sel({settings[0]}=...)"
        raise ConfigError("predictions", "of several of " + ", ".join(settings), allowed)
    labels: Any = predicted["observed_data"]["y"].values
    return jnp.asarray(found.values), jnp.asarray(labels, "int32")
