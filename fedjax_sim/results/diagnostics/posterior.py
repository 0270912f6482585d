"""Samples and predictions: ArviZ's groups and dimensions, scores, and averages over samples.

Each lane of a run is one chain: the seeds of a sweep are its chains. Samples are `Run.samples` of
`sweep(..., keep=Keep(models=True))`: a model whose leaves are `[L, V, ...]`, one for each
evaluation, with the initial model first.

For whole runs, start with `to_arviz`. Each swept setting has one dimension there, so that chains of
different settings are never pooled. The groups and dimensions are ArviZ's (`posterior`,
`sample_stats`, `posterior_predictive`, `log_likelihood`, `observed_data`; `chain` and `draw`), in
an `xarray.DataTree`. `tree.to_netcdf(path)` saves it, `xarray.open_datatree(path)` loads it, and
`tree.sel(temperature=1.0)` chooses one setting. Parameters are named by their path in the model's
pytree, joined by dots, with "|" for "/". The other functions take plain arrays.

Dimension letters: `L` lanes (chains), `V` evaluations of a lane, `s` samples of a lane that are
kept, `m` examples, `K` classes, `b` bins of confidence. The *confidence* of a prediction is the
probability of its most probable class.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import (
    ConfigError,
    Count,
    Limit,
    Seed,
    Whole,
    checked_all,
    shape,
)
from fedjax_sim.core.types import Array, Params

if TYPE_CHECKING:
    import xarray as xr

ONLY = "w"
"""Name of the parameters of a model that is one array."""
SAMPLE = ("chain", "draw")

Dims = dict[str, np.ndarray]
"""Coordinates of the leading dimensions of samples, by name."""
BINS = 15
"""Default number of bins of confidence."""

Probabilities = Annotated[Array, shape("m K"), Limit(least=0, most=1, may_be_nan=True)]
"""`f[m, K]`, those of models that diverged are nan."""
Labels = Annotated[Array, shape("m"), Limit(least=0, below="K", is_whole=True)]


class Reliability(NamedTuple):
    """How often predictions are right, by their confidence. Empty bins have zeros.

    Attributes:
      confidence: `f[b]`, mean confidence of the predictions in each bin.
      accuracy: `f[b]`, share of the predictions in each bin that are right.
      examples: `i32[b]`, number of predictions in each bin.
    """

    confidence: Array
    accuracy: Array
    examples: Array


def reliability(probabilities: Probabilities, labels: Labels, *, bins: Count = BINS) -> Reliability:
    """Group predictions by confidence, in the bins ((i - 1) / b, i / b] (Guo et al. 2017).

        probabilities, labels = jnp.array([[0.9, 0.1], [0.4, 0.6]]), jnp.array([0, 0])
        found = reliability(probabilities, labels, bins=2)  # both are in the upper bin
        assert found.examples.tolist() == [0, 2] and found.accuracy[1] == 1 / 2

    Args:
      probabilities: `f[m, K]`, probability of each class.
      labels: `i32[m]`, the right classes.
      bins: b, the number of bins.

    Returns:
      Confidence, accuracy and number of predictions of every bin.
    """
    confidence = jnp.max(probabilities, axis=-1)
    is_right = (jnp.argmax(probabilities, axis=-1) == labels).astype(confidence.dtype)
    place = jnp.clip(jnp.ceil(confidence * bins).astype("int32") - 1, 0, bins - 1)
    count = jnp.zeros(bins, "int32").at[place].add(1)
    divisor = jnp.maximum(count, 1)
    return Reliability(
        jnp.zeros(bins).at[place].add(confidence) / divisor,
        jnp.zeros(bins).at[place].add(is_right) / divisor,
        count,
    )


def score_predictions(probabilities: Probabilities, labels: Labels) -> dict[str, Array]:
    """Compute all scores of predictions.

        probabilities, labels = jnp.array([[0.9, 0.1], [0.4, 0.6]]), jnp.array([0, 0])
        scores = score_predictions(probabilities, labels)
        assert scores["accuracy"] == 1 / 2
        assert np.isclose(scores["nll"], -(np.log(0.9) + np.log(0.4)) / 2)
        assert np.isclose(scores["brier"], (2 * 0.1**2 + 2 * 0.6**2) / 2)
        assert np.isclose(scores["ece"], (0.1 + 0.6) / 2)  # each is alone in its bin

    Args:
      probabilities: `f[m, K]`, probability of each class.
      labels: `i32[m]`, the right classes.

    Returns:
      `f[]` each: "accuracy", the share of examples with the right class as the most probable one,
      nan if a probability is; "nll", the mean of -log p(right class) in nats, where a probability
      of 0 counts as the smallest positive number of the dtype; "brier", the mean over examples of
      sum_y (p(y) - 1[y is right])^2, from 0 to 2 and 1 - 1/K for a uniform guess; and "ece", the
      expected calibration error: the mean distance between confidence and accuracy of the bins of
      `reliability`, weighted by their number of predictions.
    """
    is_right = (jnp.argmax(probabilities, axis=-1) == labels).astype(probabilities.dtype)
    of_right = jnp.take_along_axis(probabilities, labels[:, None], axis=-1)
    distance = probabilities - jax.nn.one_hot(labels, probabilities.shape[-1])
    confidence, right, examples = reliability(probabilities, labels)
    is_known = ~jnp.isnan(probabilities.max(axis=-1))  # The largest of numbers with a nan is nan.
    return {
        "accuracy": jnp.mean(jnp.where(is_known, is_right, jnp.nan)),
        "nll": -jnp.mean(jnp.log(jnp.maximum(of_right, jnp.finfo(of_right.dtype).tiny))),
        "brier": jnp.mean(jnp.sum(jnp.square(distance), axis=-1)),
        "ece": jnp.sum(examples * jnp.abs(right - confidence)) / labels.shape[0],
    }


class Predictor(Protocol):
    """A problem with models that predict classes of test examples.

    Attributes:
      test_labels: `i32[m]`, the right classes.
    """

    test_labels: Array

    def predict(self, params: Params) -> Array:
        """Compute the class probabilities of all test examples: `f[m, K]`.

        Args:
          params: A model.
        """


class Predictive(NamedTuple):
    """Predictions averaged over samples.

    Attributes:
      curves: "accuracy", "nll", "brier" and "ece" of the running average after each sample, each
        `f[L, s]`.
      probabilities: `f[L, m, K]`, class probabilities averaged over all samples.
    """

    curves: dict[str, np.ndarray]
    probabilities: np.ndarray


def thin_samples(samples: Params, *, burn_in: Whole = 1, thin: Count = 1) -> Params:
    """Drop the first evaluations of each lane and keep every `thin`-th of the rest.

        samples = np.arange(10).reshape(1, 10)  # of one chain
        assert thin_samples(samples, burn_in=2, thin=3).tolist() == [[2, 5, 8]]

    Args:
      samples: A pytree of leaves `[L, V, ...]`.
      burn_in: Number of evaluations dropped, from 0 to V - 1. The default drops the initial model.
      thin: Distance between evaluations that are kept, from 1 to V. The first one after the burn-in
        is kept.

    Returns:
      The samples kept, a pytree of leaves `[L, s, ...]`.

    Raises:
      ConfigError: If `burn_in` or `thin` is out of range, or leaves differ in their first two
        dimensions.
    """
    shapes = {np.shape(leaf)[:2] for leaf in jax.tree.leaves(samples)}
    if len(shapes) != 1 or len(num_lanes_and_evals := shapes.pop()) != 2:
        found = [np.shape(leaf) for leaf in jax.tree.leaves(samples)]
        raise ConfigError("shapes of samples", found, "[L, V, ...] with one L and one V")
    check_kept(num_lanes_and_evals[1], burn_in, thin)
    return jax.tree.map(lambda leaf: leaf[:, burn_in::thin], samples)


def check_kept(num: int, burn_in: int, thin: int) -> None:
    """Check that some of so many evaluations are kept."""
    for name, value, least, most in (("burn_in", burn_in, 0, num - 1), ("thin", thin, 1, num)):
        if value > most:
            allowed = f"a whole number from {least} to {most}, as there are {num} evaluations"
            raise ConfigError(name, value, allowed)


def average_predictions(
    problem: Predictor, samples: Params, *, burn_in: Whole = 1, thin: Count = 1
) -> Predictive:
    """Average the predictions of each lane's samples, and score the average after each sample.

        samples = np.zeros((1, 3, 17), "float32")  # one chain of a logistic regression, all w = 0
        found = average_predictions(logistic, samples, burn_in=1)
        assert (found.probabilities == 1 / 2).all() and found.curves["accuracy"].shape == (1, 2)

    Args:
      problem: The problem whose test set is predicted.
      samples: A pytree of leaves `[L, V, ...]`.
      burn_in: Number of evaluations dropped, from 0 to V - 1. The default drops the initial model.
      thin: Distance between evaluations that are kept, from 1 to V.

    Returns:
      Scores of the running average, and the average over all samples kept.

    Raises:
      ConfigError: If `burn_in` or `thin` is out of range.
    """
    curves, probabilities = _predictive(problem, thin_samples(samples, burn_in=burn_in, thin=thin))
    return Predictive(
        {name: np.asarray(values) for name, values in curves.items()}, np.asarray(probabilities)
    )


@jax.jit
def _predictive(problem: Predictor, samples: Params) -> tuple[dict[str, Array], Array]:
    """Average and score the predictions of samples `[L, s, ...]`, lane after lane."""

    def average(samples: Params) -> tuple[dict[str, Array], Array]:
        def add(
            total: tuple[Array, Array], params: Params
        ) -> tuple[tuple[Array, Array], dict[str, Array]]:
            summed, num = total[0] + problem.predict(params), total[1] + 1
            return (summed, num), score_predictions(summed / num, problem.test_labels)

        first = jax.tree.map(lambda leaf: leaf[0], samples)
        one = jax.eval_shape(problem.predict, first)
        # Long sums are kept in at least 32 bits.
        zeros = jnp.zeros(one.shape, jnp.promote_types(one.dtype, "float32"))
        (summed, num), curves = jax.lax.scan(add, (zeros, jnp.zeros((), zeros.dtype)), samples)
        return curves, summed / num

    return jax.lax.map(average, samples)


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
    for name, leaf in named_leaves(samples, list(stats.coords)).items():
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
    names = list(named_leaves(like, list(posterior.coords)))
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


checked_all(__name__)
