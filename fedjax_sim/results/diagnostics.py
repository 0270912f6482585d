"""Measures of results that are computed after a run or from its schedule alone.

Samples and predictions. Each lane of a run is one chain: the seeds of a sweep are its chains.
Samples are `Run.samples` of `sweep(..., keep=Keep(models=True))`: a model whose leaves are
`[L, V, ...]`, one for each evaluation, with the initial model first.

For whole runs, start with `to_arviz`. Each swept setting has one dimension there, so that chains of
different settings are never pooled. The groups and dimensions are ArviZ's (`posterior`,
`sample_stats`, `posterior_predictive`, `log_likelihood`, `observed_data`; `chain` and `draw`), in
an `xarray.DataTree`. `tree.to_netcdf(path)` saves it, `xarray.open_datatree(path)` loads it, and
`tree.sel(temperature=1.0)` chooses one setting. Parameters are named by their path in the model's
pytree, joined by dots, with "|" for "/". The other functions take plain arrays: accuracy,
likelihood, Brier score and calibration of class probabilities, averages over a sampler's samples,
and `wasserstein2`, the distance between two normal laws.

Fairness: how equally clients take part in a schedule. It is computed on the host from the timeline
of one lane, without any learning; only `group_accuracy`, `worst_decile` and `summarise_clients`
need metrics of models. The timeline must end where its lane ends, like those of
`fedjax_sim.Run`. Empty slots do not count. Symbols of FedStaleWeight (Ma, Tu, Chen, Reddi,
arXiv 2406.02877, Sec. 4), and the functions that compute them:

    I_i, alpha(p_i) p_i            `influence`
    p_i                            `update_share`
    sum_i |I_i - 1/n| (Eq. 3)      `deviation`

`influence` is the paper's weighted influence, measured rather than expected. The argument `skip` is
the share of the ticks that is left out at the beginning, because slow clients have not reported by
then.

Dimension letters: `L` lanes (chains), `V` evaluations of a lane, `s` samples of a lane that are
kept, `m` examples, `K` classes, `b` bins of confidence; `R` samples and `P` coordinates of a normal
law; `N` clients, `T` ticks, `S` slots, `G` groups, `U` updates received. The *confidence* of a
prediction is the probability of its most probable class.
"""

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.core import settings
from fedjax_sim.core.settings import ConfigError, Count, Limit, Seed, Share, Whole, shape
from fedjax_sim.core.types import EMPTY, Array, Params, Timeline

if TYPE_CHECKING:
    import xarray as xr

Numbers = npt.NDArray[np.float64]
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
Groups = Annotated[np.ndarray, shape("N"), Limit(least=0, is_whole=True)]
"""`i32[N]`, label of each client's group, from 0."""
Values = Annotated[np.ndarray, shape("N")]
"""`f64[N]`, one of each client."""


Mean = Annotated[npt.ArrayLike, shape("... P")]
Covariance = Annotated[npt.ArrayLike, shape("... P P")]


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
    _check_kept(num_lanes_and_evals[1], burn_in, thin)
    return jax.tree.map(lambda leaf: leaf[:, burn_in::thin], samples)


def _check_kept(num: int, burn_in: int, thin: int) -> None:
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
    kept = thin_samples(samples, burn_in=burn_in, thin=thin)
    return Predictive(*jax.tree.map(np.asarray, _predictive(problem, kept)))


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
    swept = [str(name) for name in curves["failed"].dims if name != "seed"]
    lanes = [curves.sizes[name] for name in (*swept, "seed")]
    num = curves.sizes["eval"]
    _check_kept(num, burn_in, thin)
    metrics = {str(name): curves[name] for name in curves if "eval" in curves[name].dims}
    stats = xr.Dataset(metrics).reset_coords(drop=True).assign(ticks=curves["ticks"].variable)
    stats = stats.rename({"log_density": "lp"} if "log_density" in stats else {})
    stats = stats.rename(seed="chain", eval="draw").transpose(*swept, *SAMPLE, ...)
    stats = stats.broadcast_like(stats["ticks"]).assign_coords(draw=np.arange(num))
    is_over = (stats["ticks"].diff("draw", label="upper") == 0).reindex(
        draw=stats["draw"], fill_value=False
    )
    leaves = {}
    for name, leaf in named_leaves(samples, list(stats.coords)).items():
        value = np.asarray(leaf).reshape(*lanes, *leaf.shape[1:])
        further = [f"{name}_dim_{i}" for i in range(leaf.ndim - 2)]
        leaves[name] = xr.DataArray(value, dims=(*swept, *SAMPLE, *further))
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
      ConfigError: If the problem has neither function, the run kept no models, or the targets are
        not as many as the inputs, or not of the classes.
    """
    import xarray as xr

    _check_kind(problem)
    if problem.probabilities is None and problem.simulate is None:
        raise ConfigError("problem", "without probabilities and simulate", "made with one of them")
    num = len(jax.tree.leaves(inputs)[0])
    if targets is not None and np.shape(targets)[:1] != (num,):
        raise ConfigError("shape of targets", np.shape(targets), f"({num}, ...), as of inputs")
    tree = run if isinstance(run, xr.DataTree) else to_arviz(run, burn_in=burn_in, thin=thin)
    posterior = tree["posterior"].to_dataset()
    models, dims = _models(posterior, problem)
    key = jax.random.key(seed)
    found = {}
    if problem.probabilities is not None:

        def probabilities(model: Params, problem: Any, inputs: Params) -> Array:
            return jax.vmap(problem.probabilities, (None, 0))(model, inputs)

        found["probability"] = _over_samples(probabilities, models, dims, problem, inputs)
        classes = np.arange(found["probability"].shape[-1])
        # Another class would have the likelihood of the last one.
        if targets is not None and not (are_known := np.isin(targets, classes)).all():
            unknown = np.asarray(targets)[~are_known][0].item()
            raise ConfigError("one of targets", unknown, f"a class from 0 to {classes[-1]}")
        drawn = np.asarray(jax.random.categorical(key, jnp.log(found["probability"])))
    else:

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

    Returns:
      The leaves by name, in the order of the pytree.
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
    swept = [str(dim) for dim in found.dims if dim not in ("example", "class")]
    if swept:
        allowed = f"of one setting, such as predicted.sel({swept[0]}=...)"
        raise ConfigError("predictions", "of several of " + ", ".join(swept), allowed)
    labels: Any = predicted["observed_data"]["y"].values
    return jnp.asarray(found.values), jnp.asarray(labels, "int32")


@settings.checked
class Gaussian(NamedTuple):
    """A normal law in P dimensions, or the first two moments of another law.

        law = Gaussian(mean=np.zeros(2), covariance=np.eye(2))
        moved = law._replace(mean=np.array([3.0, 4.0]))
        assert wasserstein2(*law, *moved) == 5.0

    Attributes:
        mean: `f64[..., P]`.
        covariance: `f64[..., P, P]`, symmetric and positive semidefinite.
    """

    mean: Annotated[Numbers, shape("... P")]
    covariance: Annotated[Numbers, shape("... P P")]


def fit_gaussian(samples: Annotated[npt.ArrayLike, shape("... R P"), Limit()]) -> Gaussian:
    """Compute the mean and the covariance of samples.

        law = fit_gaussian(np.random.default_rng(0).normal(size=(100, 2)))

    Args:
        samples: `[..., R, P]`, R samples of P coordinates, R at least 2.

    Returns:
        The sample mean and the sample covariance, whose divisor is R - 1.
    """
    samples = np.asarray(samples, float)
    if samples.shape[-2] < 2:
        raise ConfigError("number of samples", samples.shape[-2], "at least 2")
    mean = samples.mean(axis=-2)
    centred = samples - mean[..., None, :]
    return Gaussian(mean, np.swapaxes(centred, -1, -2) @ centred / (samples.shape[-2] - 1))


def wasserstein2(mean1: Mean, cov1: Covariance, mean2: Mean, cov2: Covariance) -> Numbers:
    """Compute the 2-Wasserstein distance W2 (not its square) between two normal laws.

    The distance is symmetric, and 0 for equal laws up to the square root of rounding. Between laws
    that are not Gaussian but have these moments, it is a lower bound of W2 (Gelbrich 1990). Leading
    axes broadcast. A `Gaussian` can be passed as `*law`.

        assert wasserstein2(np.zeros(2), np.eye(2), np.array([3.0, 4.0]), np.eye(2)) == 5.0

    Args:
        mean1: `[..., P]`, mean of the first law.
        cov1: `[..., P, P]`, its covariance, symmetric and positive semidefinite. A point mass has
            the covariance 0.
        mean2: `[..., P]`, mean of the second law.
        cov2: `[..., P, P]`, its covariance.

    Returns:
        `f64[...]`, in the unit of the coordinates.
    """
    mean1, cov1, mean2, cov2 = (np.asarray(x, float) for x in (mean1, cov1, mean2, cov2))
    for name, covariance in (("cov1", cov1), ("cov2", cov2)):
        variances = np.diagonal(covariance, axis1=-2, axis2=-1)
        if (variances < 0).any():
            raise ConfigError(f"a variance in {name}", float(variances.min()), "at least 0")
    values, vectors = np.linalg.eigh(cov2)
    scaled = vectors * np.sqrt(np.clip(values, 0, None))[..., None, :]
    root = scaled @ np.swapaxes(vectors, -1, -2)  # The symmetric square root.
    cross = root @ cov1 @ root
    squares = np.linalg.eigvalsh((cross + np.swapaxes(cross, -1, -2)) / 2)
    overlap = np.sqrt(np.clip(squares, 0, None)).sum(axis=-1)
    traces = np.trace(cov1, axis1=-2, axis2=-1) + np.trace(cov2, axis1=-2, axis2=-1)
    shift = np.square(mean1 - mean2).sum(axis=-1)
    return np.sqrt(np.clip(shift + traces - 2 * overlap, 0, None))


class FairnessReport(NamedTuple):
    """How equally clients take part in a schedule. Fields of groups are empty without groups.

    Attributes:
      influence: `f64[N]`, mean weight of each client per tick.
      update_share: `f64[N]`, each client's share of all updates.
      time_to_first: `f64[N]`, virtual time of each client's first update with a positive weight,
        counted from the first tick even if ticks are skipped; inf for never.
      mean_staleness: `f64[N]`, in server steps; nan for a client without updates.
      largest_staleness: `f64[N]`, in server steps; nan for a client without updates.
      jain_index: Jain's index of the influence.
      entropy: Entropy of the influence, in nats.
      deviation: Sum of the absolute deviations of the influence from 1 / N.
      group_influence: `f64[G]`, influence of each group's clients together.
      group_update_share: `f64[G]`, update share of each group's clients together.
    """

    influence: np.ndarray
    update_share: np.ndarray
    time_to_first: np.ndarray
    mean_staleness: np.ndarray
    largest_staleness: np.ndarray

    jain_index: float
    entropy: float
    deviation: float

    group_influence: np.ndarray
    group_update_share: np.ndarray


def fairness_report(
    timeline: Timeline, num_clients: Count, groups: Groups | None = None, skip: Share = 0.0
) -> FairnessReport:
    """Compute all measures of this module that need only a timeline.

        report = fairness_report(run.timelines[0], num_clients=8)

    Args:
      timeline: Schedule of one lane.
      num_clients: N.
      groups: `i32[N]`, label of each client's group, from 0; None for no groups.
      skip: Share of the ticks left out at the beginning, from 0 to below 1.

    Returns:
      The report.

    Raises:
      ConfigError: If `groups` does not have one label per client.
    """
    if groups is not None and len(groups) != num_clients:
        raise ConfigError("number of groups' labels", len(groups), f"num_clients, {num_clients}")
    updates = received(timeline, skip, num_clients)
    each, share = (of(timeline, num_clients, skip=skip) for of in (influence, update_share))
    count = np.bincount(updates.client, minlength=num_clients)
    total = np.bincount(updates.client, updates.staleness, num_clients)
    largest = np.zeros(num_clients)
    np.maximum.at(largest, updates.client, updates.staleness)
    labels = np.zeros(0, int) if groups is None else np.asarray(groups)
    sums = [np.bincount(labels, values[: len(labels)]) for values in (each, share)]
    return FairnessReport(
        influence=each,
        update_share=share,
        time_to_first=time_to_first(timeline, num_clients),
        mean_staleness=np.where(count > 0, total / np.maximum(count, 1), np.nan),
        largest_staleness=np.where(count > 0, largest, np.nan),
        jain_index=jain_index(each),
        entropy=entropy(each),
        deviation=deviation(each),
        group_influence=sums[0],
        group_update_share=sums[1],
    )


def influence(timeline: Timeline, num_clients: Count, *, skip: Share = 0.0) -> np.ndarray:
    """Average each client's weight over ticks, where the weights of its slots in a tick add up.

        # Clients 0 and 1 report with weight 1/2, then client 0 alone with weight 1.
        assert influence(timeline, 3).tolist() == [(1 / 2 + 1) / 2, (1 / 2) / 2, 0]

    Args:
      timeline: Schedule of one lane.
      num_clients: N.
      skip: Share of the ticks left out at the beginning, from 0 to below 1.

    Returns:
      `f64[N]`. It sums to 1 if the weights of every tick do. With equal weights in full buffers it
      is the update share.
    """
    updates = received(timeline, skip, num_clients)
    return np.bincount(updates.client, updates.weight, num_clients) / updates.num_ticks


def update_share(timeline: Timeline, num_clients: Count, *, skip: Share = 0.0) -> np.ndarray:
    """Compute each client's share of all updates received.

        # Clients 0 and 1 report, then client 0 alone.
        assert update_share(timeline, 3).tolist() == [2 / 3, 1 / 3, 0]

    Args:
      timeline: Schedule of one lane.
      num_clients: N.
      skip: Share of the ticks left out at the beginning, from 0 to below 1.

    Returns:
      `f64[N]`, with sum 1, or all 0 if nothing was received.
    """
    updates = received(timeline, skip, num_clients)
    return np.bincount(updates.client, minlength=num_clients) / max(len(updates.client), 1)


def time_to_first(timeline: Timeline, num_clients: Count) -> np.ndarray:
    """Find when each client first changes the server's model, by an update with a weight above 0.

        # Clients 0 and 1 report at time 1, and client 0 at time 3.
        assert time_to_first(timeline, 3).tolist() == [1.0, 1.0, np.inf]

    Args:
      timeline: Schedule of one lane.
      num_clients: N.

    Returns:
      `f64[N]`, virtual time; inf for a client that never does.
    """
    updates = received(timeline, num_clients=num_clients)
    counts = updates.weight > 0
    first = np.full(num_clients, np.inf)
    np.minimum.at(first, updates.client[counts], np.asarray(timeline.time)[updates.tick[counts]])
    return first


def jain_index(values: Values) -> float:
    """Compute Jain's index (sum x)^2 / (N sum x^2).

        assert jain_index(np.array([1.0, 1.0, 1.0, 1.0])) == 1.0

    Args:
      values: `f64[N]`, x, at least 0.

    Returns:
      1 if all values are equal, k / N if k are equal and the rest 0, nan if all are 0.
    """
    values = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        return float(np.square(values.sum()) / (values.size * np.square(values).sum()))


def entropy(values: Values) -> float:
    """Compute the entropy of values taken as shares of their sum.

        assert np.isclose(entropy(np.ones(4)), np.log(4))

    Args:
      values: `f64[N]`, at least 0.

    Returns:
      Entropy in nats: log N if all values are equal, 0 if only one is not 0, nan if all are 0.
    """
    from scipy.special import entr  # Importing it takes longer than the rest of this module.

    values = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        return float(entr(values / values.sum()).sum())


def deviation(influence: Values, target: Values | None = None) -> float:
    """Sum the absolute deviations of the clients' influence from a target (Eq. 3).

        assert deviation(np.array([0.75, 0.25])) == (0.75 - 0.5) + (0.5 - 0.25)

    Args:
      influence: `f64[N]`, influence of each client.
      target: `f64[N]`, target of each client; None for 1 / N each.

    Returns:
      The sum over clients.

    Raises:
      ConfigError: If `target` does not have one value per client.
    """
    influence = np.asarray(influence, float)
    wanted = np.full(influence.shape, 1 / influence.size) if target is None else np.asarray(target)
    return float(np.abs(influence - wanted).sum())


def group_accuracy(
    per_class: Annotated[np.ndarray, shape("... K")],
    label_shares: Annotated[np.ndarray, shape("G K"), Limit(least=0, most=1)],
) -> np.ndarray:
    """Compute a model's expected accuracy for groups of clients with different label shares.

        per_class, shares = np.array([0.8, 0.4]), np.array([[1.0, 0.0], [0.5, 0.5]])
        assert np.allclose(group_accuracy(per_class, shares), [0.8, (0.8 + 0.4) / 2])

    Args:
      per_class: `f[..., K]`, accuracy on each class.
      label_shares: `f[G, K]`, share of each class among a group's examples; rows sum to 1.

    Returns:
      `f64[..., G]`. A class that a group does not have is ignored, even if its accuracy is nan.
      With equal shares this is the accuracy on a balanced test set.

    Raises:
      ConfigError: If the numbers of classes differ.
    """
    per_class, shares = np.asarray(per_class, float)[..., None, :], np.asarray(label_shares, float)
    return np.where(shares > 0, per_class * shares, 0).sum(axis=-1)


def worst_decile(values: np.ndarray, *, less_is_better: bool = False) -> np.ndarray:
    """Average the worst tenth of the clients, as q-FFL's Table 1 reports it.

    Source: Li, Sanjabi, Beirami and Smith 2020, arXiv 1905.10497.

    Args:
      values: `f[..., N]`, a metric of each client. Clients whose value is nan do not count.
      less_is_better: Whether the largest values are the worst ones.

    Returns:
      `f[...]`, the mean of the ceil(N / 10) worst values; nan if none counts.
    """
    values = np.asarray(values, float) * (1 if less_is_better else -1)
    worst_first = -np.sort(-np.where(np.isnan(values), -np.inf, values), axis=-1)
    num = np.ceil(np.sum(~np.isnan(values), axis=-1) / 10)
    counted = np.arange(values.shape[-1]) < num[..., None]
    with np.errstate(invalid="ignore"):
        mean = np.where(counted, worst_first, 0).sum(axis=-1) / num
    return mean if less_is_better else -mean


def summarise_clients(
    values: np.ndarray, *, less_is_better: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute mean, worst decile and spread of a metric over clients.

    Args:
      values: `f[..., N]`, a metric of each client; nan where there is none.
      less_is_better: Whether small values are good ones, as they are of a loss.

    Returns:
      The mean over clients, the mean of the worst tenth, see `worst_decile`, and the standard
      deviation over clients, `f64[...]` each.
    """
    values = np.asarray(values, float)
    worst = worst_decile(values, less_is_better=less_is_better)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # Without a number.
        return np.nanmean(values, axis=-1), worst, np.nanstd(values, axis=-1)


class Received(NamedTuple):
    """The updates received in filled slots, in the order of ticks and slots.

    Attributes:
      tick: `i64[U]`, counted from the first tick that is not skipped.
      client: `i32[U]`, the client's number.
      steps: `i32[U]`, the update's local steps.
      weight: `f64[U]`, the update's weight.
      staleness: `i64[U]`, in server steps.
      num_ticks: Number of ticks that are not skipped.
    """

    tick: np.ndarray
    client: np.ndarray
    steps: np.ndarray
    weight: np.ndarray
    staleness: np.ndarray
    num_ticks: int


def received(timeline: Timeline, skip: Share = 0.0, num_clients: int | None = None) -> Received:
    """List the updates that a timeline receives after its skipped ticks.

    Args:
      timeline: A schedule of one lane.
      skip: Share of the ticks at the beginning that are left out.
      num_clients: Number of clients N that there are; None does not check it.

    Raises:
      ConfigError: If it is that of several lanes, or has a client that there is not.
    """
    time, clients = np.asarray(timeline.time), np.asarray(timeline.clients)
    if time.ndim != 1 or clients.shape[:1] != time.shape or clients.ndim != 2:
        found = f"times {time.shape} and clients {clients.shape}"
        raise ConfigError("shapes of the timeline", found, "(T,) and (T, S), those of one lane")
    if num_clients is not None and clients.max(initial=-1) >= num_clients:
        allowed = f"above the largest client of the timeline, {clients.max()}"
        raise ConfigError("num_clients", num_clients, allowed)
    skipped = int(skip * len(time) + 1e-9)  # 0.29 * 100 is below 29 in floating point.
    tick, slot = np.nonzero(clients[skipped:] != EMPTY)
    client, steps, weight, version = (
        np.asarray(leaf)[skipped + tick, slot]
        for leaf in (clients, timeline.steps, timeline.weight, timeline.version)
    )
    staleness, num_ticks = skipped + tick - version, len(time) - skipped
    return Received(tick, client, steps, weight, staleness, num_ticks)


settings.checked_all(__name__)
