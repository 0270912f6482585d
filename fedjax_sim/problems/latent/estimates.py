"""Models by name, features of images for them, and use of a fitted model.

A fitted model predicts, scores, compares, and is saved and loaded:

    run = fedjax_sim.sweep(em.system, problem, hyper, seeds=5, budget=fedjax_sim.Ticks(200))
    fit = latent.fitted(run, problem, tolerance=1e-6)
    fit.predict(new), fit.score(new), fit.bic(new), fit.converged_
    fit.save("fit.npz"); latent.load_fit("fit.npz")

Names and results are those of scikit-learn. Its `n_init` is the number of seeds: every seed starts
from other parameters, and the best fit is kept. Its `init_params="k-means++"` is
`starts="k-means++"` of `GaussianMixture`. Its `tol` is on the likelihood's change; here it is on
the mean field h(S), which is 0 exactly at the fixed points of EM.

Letters: `n` examples or images, `D` coordinates of an example (features), `G` components.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, Limit, Whole, checked
from fedjax_sim.core.types import Params
from fedjax_sim.datasets import files
from fedjax_sim.problems.latent import estimation, factor_analysis, mixtures

KINDS: dict[str, tuple[type, type]] = {
    "GaussianMixture": (mixtures.GaussianMixture, mixtures.Mixture),
    "BernoulliMixture": (mixtures.BernoulliMixture, mixtures.Mixture),
    "FactorAnalysis": (factor_analysis.FactorAnalysis, factor_analysis.Factors),
}
"""Models that can be scored, with the types of their parameters."""


Images = Annotated[np.ndarray, Limit()]


@checked
def principal_components(images: Images, dimensions: Count) -> np.ndarray:
    """Project images on their first principal components.

    Images are centred but not scaled; bytes are divided by 255 first.

    Args:
      images: `[n, ...]`, bytes or floats.
      dimensions: D, at most the number of images and the number of pixels that are not 0 in all
        images.

    Returns:
      `f64[n, D]`.

    Raises:
      ConfigError: If `dimensions` is too large.
    """
    from sklearn.decomposition import PCA  # Slow to import, and only needed here.

    flat = images.reshape(len(images), -1)
    used = flat[:, (flat != 0).any(axis=0)]
    if dimensions > (most := min(used.shape)):
        allowed = f"at most {most}, the number of images or of pixels that are not 0 in all images"
        raise ConfigError("dimensions", dimensions, allowed)
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    return PCA(dimensions, svd_solver="full").fit_transform(used / scale)


@checked
def binary(images: Images) -> np.ndarray:
    """Turn images into black and white at the middle of the range of all their values.

    Args:
      images: `[n, ...]`, bytes or floats.

    Returns:
      `f64[n, D]`, 1 for pixels above the middle and 0 for the others.
    """
    flat = images.reshape(len(images), -1).astype(float)
    return (flat > (flat.min() + flat.max()) / 2).astype(float)


class Entry(NamedTuple):
    """A latent-variable model that the command line offers.

    Attributes:
      summary: One line about the model.
      make: Makes the model from the number of components.
      features: Makes features `f64[n, D]` from images `[n, ...]` and the number of dimensions.
    """

    summary: str
    make: Callable[[int], estimation.LatentModel]
    features: Callable[[np.ndarray, int], np.ndarray]


_with_prior = partial(mixtures.GaussianMixture, prior=1e-3, starts="k-means++")
_ENTRIES = {
    "gaussian_mixture": Entry(
        "Gaussians with one covariance, on the images' principal components",
        mixtures.GaussianMixture,
        principal_components,
    ),
    "gaussian_mixture_full": Entry(
        "Gaussians with different covariances and a prior of 0.001, on principal components",
        partial(_with_prior, covariance_type="full"),
        principal_components,
    ),
    "gaussian_mixture_diag": Entry(
        "Gaussians with different variances and a prior of 0.001, on principal components",
        partial(_with_prior, covariance_type="diag"),
        principal_components,
    ),
    "factor_analysis": Entry(
        "a Gaussian with factors (in place of components), on the images' principal components",
        factor_analysis.FactorAnalysis,
        principal_components,
    ),
    "bernoulli_mixture": Entry(
        "products of Bernoulli laws, on the images in black and white",
        mixtures.BernoulliMixture,
        lambda images, _: binary(images),
    ),
}
MODELS: settings.Named[Entry] = settings.Named("latent-variable model", _ENTRIES)
"""Latent-variable models, by their names on the command line."""


class Fitted(NamedTuple):
    """A model with fitted parameters.

    Attributes:
      model: The latent-variable model.
      params: Its parameters theta, leaves in the precision of the run.
      lane: Number of the lane that was chosen, in the order of settings and then seeds.
      objective: F(theta), the mean negative log-likelihood up to a constant plus the penalty.
      converged_: Whether the lane's mean field is within the tolerance at the end.
      n_iter_: Ticks after which it first was, and stayed; all ticks if it did not converge.
    """

    model: Any
    params: Params
    lane: int
    objective: float
    converged_: bool
    n_iter_: int

    def score_samples(self, examples: npt.ArrayLike) -> np.ndarray:
        """Compute the log-density of each example `[n, D]`: `[n]`.

        Args:
          examples: `[n, D]`, prepared like the training examples.
        """
        return self._apply(self.model.log_density, examples)

    def score(self, examples: npt.ArrayLike) -> float:
        """Compute the mean log-density of examples `[n, D]`.

        Args:
          examples: `[n, D]`.
        """
        return float(self.score_samples(examples).mean())

    def predict_proba(self, examples: npt.ArrayLike) -> np.ndarray:
        """Compute the probability of each component given each example `[n, D]`: `[n, G]`.

        Args:
          examples: `[n, D]`.
        """
        return self._apply(self.model.responsibilities, examples)

    def predict(self, examples: npt.ArrayLike) -> np.ndarray:
        """Find the most probable component of each example `[n, D]`: `i[n]`.

        Args:
          examples: `[n, D]`.

        Returns:
          `i[n]`, numbers of components.
        """
        return self.predict_proba(examples).argmax(axis=1)

    def transform(self, examples: npt.ArrayLike) -> np.ndarray:
        """Compute the means of the factors given each example `[n, D]`: `[n, k]`."""
        return self._apply(self.model.transform, examples)

    def bic(self, examples: npt.ArrayLike) -> float:
        """Compute the Bayesian information criterion on examples `[n, D]`; less is better.

        Args:
          examples: `[n, D]`.
        """
        scores = self.score_samples(examples)
        return float(self.model.num_free(self.params) * np.log(len(scores)) - 2 * scores.sum())

    def aic(self, examples: npt.ArrayLike) -> float:
        """Compute Akaike's information criterion on examples `[n, D]`; less is better.

        Args:
          examples: `[n, D]`.
        """
        return float(2 * self.model.num_free(self.params) - 2 * self.score_samples(examples).sum())

    def save(self, path: str | Path) -> None:
        """Write the model, its parameters and how the fit ended into an .npz file.

        Raises:
          StorageError: If the disk refuses. An older file is then kept.
        """
        entries: dict[str, object] = {"kind": type(self.model).__name__}
        for part, owner in (("model", self.model), ("params", self.params)):
            names = owner._fields if part == "params" else _fields(owner)
            for name in names:
                if (value := getattr(owner, name)) is not None:
                    entries[f"{part}.{name}"] = np.asarray(value)
        entries |= {name: np.asarray(getattr(self, name)) for name in self._fields[2:]}
        lifecycle.write_arrays(Path(path), entries)

    def _apply(self, function: Callable[..., jax.Array], examples: npt.ArrayLike) -> np.ndarray:
        """Apply a function of parameters and examples in the precision of the parameters."""
        dtype = jax.tree.leaves(self.params)[0].dtype
        with jax.enable_x64(dtype == np.float64):
            return np.asarray(function(self.params, jnp.asarray(examples, dtype)))


@checked
def fitted(
    run: Any,
    problem: estimation.Estimation | Sequence[estimation.Estimation],
    *,
    lane: Whole | None = None,
    tolerance: AtLeast0 = 1e-3,
) -> Fitted:
    """Take the fitted model out of a run.

    Args:
      run: What `sweep` or `simulate` returned for `em`, `fedem` or `vr_fedem`.
      problem: The problem that was learnt, or one per seed if they were given to `sweep`.
      lane: Number of the lane, settings first and then seeds. By default that with the least
        objective, so that several seeds are several starts; settings must then not be swept.
      tolerance: A lane has converged if the norm of its mean field is at most this.

    Returns:
      The fitted model.

    Raises:
      ConfigError: If the model cannot be scored, if `lane` is missing or does not exist, or if all
        lanes failed.
    """
    problems = [problem] if isinstance(problem, estimation.Estimation) else list(problem)
    kind = type(problems[0].model).__name__
    if kind not in KINDS:
        raise ConfigError("model", kind, "one of " + ", ".join(KINDS))
    seeds = run.curves.sizes.get("seed", 1)
    curves = {
        name: run.curves[name].values.reshape(-1, run.curves.sizes["eval"])
        for name in ("objective", "mean_field", "ticks")
    }
    final = np.where(np.isfinite(curves["objective"][:, -1]), curves["objective"][:, -1], np.inf)
    if lane is None:
        if len(final) > seeds:
            allowed = f"given, from 0 to {len(final) - 1}, as settings were swept"
            raise ConfigError("lane", None, allowed)
        if not np.isfinite(final.min()):
            raise ConfigError("run", "one whose lanes all failed", "one with a finite lane")
        lane = int(final.argmin())
    if not 0 <= lane < len(final):
        raise ConfigError("lane", lane, f"from 0 to {len(final) - 1}")
    chosen = problems[lane % seeds if len(problems) > 1 else 0]
    statistics = np.asarray(run.models).reshape(len(final), -1)[lane]
    with jax.enable_x64(statistics.dtype == np.float64):
        params = jax.tree.map(np.asarray, chosen.maximise(jnp.asarray(statistics)))
    is_far = ~(np.sqrt(curves["mean_field"][lane]) <= tolerance)
    converged = not is_far[-1]
    first = len(is_far) - int(np.argmin(~is_far[::-1])) if is_far.any() else 0
    ticks = curves["ticks"][lane]
    num_ticks = int(ticks[first] if converged else ticks[-1])
    return Fitted(chosen.model, params, lane, float(final[lane]), bool(converged), num_ticks)


@checked
def load_fit(path: str | Path, *, trust: bool = False) -> Fitted:
    """Read a fitted model that `Fitted.save` wrote.

    Args:
      trust: Whether a file that carries no SHA-256, such as one of another program, is taken as it
        is.

    Returns:
      The fitted model.

    Raises:
      ConfigError: If the file is missing, or of another kind.
      InputError: If it is damaged.
    """
    settings.check_file("file of the fit", path)
    with files.refusing("file of the fit", str(path), "an undamaged file that Fitted.save wrote"):
        entries = lifecycle.read_arrays(Path(path), trust=trust)
        model_type, params_type = KINDS[entries["kind"].item()]
        saved = [name for name in _fields(model_type) if f"model.{name}" in entries]
        model = {name: _read(entries[f"model.{name}"]) for name in saved}
        params = {name: entries.get(f"params.{name}") for name in params_type._fields}  # type: ignore[attr-defined]
        rest = [entries[name].item() for name in Fitted._fields[2:]]
        return Fitted(model_type(**model), params_type(**params), *rest)


def _fields(model: Any) -> list[str]:
    """List the fields of a model."""
    return [field.name for field in dataclasses.fields(model)]


def _read(entry: np.ndarray) -> object:
    """Return a number or a text as it was saved, and an array as it is."""
    return entry.item() if entry.ndim == 0 else entry
