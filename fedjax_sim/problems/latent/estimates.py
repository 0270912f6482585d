"""Use of a fitted model: predict, score, compare, save and load.

    run = fedjax_sim.sweep(em.system, problem, hyper, seeds=5, budget=fedjax_sim.Ticks(200))
    fit = latent.fitted(run, problem, tolerance=1e-6)
    fit.predict(new), fit.score(new), fit.bic(new), fit.converged_
    fit.save("fit.npz"); latent.load_fit("fit.npz")

Names and results are those of scikit-learn. Its `n_init` is the number of seeds: every seed starts
from other parameters, and the best fit is kept. Its `init_params="k-means++"` is
`starts="k-means++"` of `GaussianMixture`. Its `tol` is on the likelihood's change; here it is on
the mean field h(S), which is 0 exactly at the fixed points of EM.

Letters: `n` examples, `D` coordinates of an example, `G` components.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.core.lifecycle import InputError, read_arrays, write_arrays
from fedjax_sim.core.settings import AtLeast0, ConfigError, Whole, check_file, checked
from fedjax_sim.core.types import Params
from fedjax_sim.problems.latent import factor_analysis, gaussian_mixture, mixtures
from fedjax_sim.problems.latent.estimation import Estimation

KINDS: dict[str, tuple[type, type]] = {
    "GaussianMixture": (gaussian_mixture.GaussianMixture, gaussian_mixture.Mixture),
    "BernoulliMixture": (mixtures.BernoulliMixture, mixtures.Mixture),
    "FactorAnalysis": (factor_analysis.FactorAnalysis, factor_analysis.Factors),
}
"""Models that can be scored, with the types of their parameters."""


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
        write_arrays(Path(path), entries)

    def _apply(self, function: Callable[..., jax.Array], examples: npt.ArrayLike) -> np.ndarray:
        """Apply a function of parameters and examples in the precision of the parameters."""
        dtype = jax.tree.leaves(self.params)[0].dtype
        with jax.enable_x64(dtype == np.float64):
            return np.asarray(function(self.params, jnp.asarray(examples, dtype)))


@checked
def fitted(
    run: Any,
    problem: Estimation | Sequence[Estimation],
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
    problems = [problem] if isinstance(problem, Estimation) else list(problem)
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
    return Fitted(
        chosen.model,
        params,
        lane,
        float(final[lane]),
        bool(converged),
        int(ticks[first] if converged else ticks[-1]),
    )


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
    check_file("file of the fit", path)
    try:
        entries = read_arrays(Path(path), trust=trust)
        model_type, params_type = KINDS[entries["kind"].item()]
        model = {
            name: _read(entries[f"model.{name}"])
            for name in _fields(model_type)
            if f"model.{name}" in entries
        }
        params = {name: entries[f"params.{name}"] for name in params_type._fields}  # type: ignore[attr-defined]
        rest = [entries[name].item() for name in Fitted._fields[2:]]
        return Fitted(model_type(**model), params_type(**params), *rest)
    except InputError:
        raise
    except Exception as error:  # Archives without SHA-256 raise errors of many kinds.
        allowed = f"an undamaged file that Fitted.save wrote ({error})"
        raise ConfigError("file of the fit", str(path), allowed) from None


def _fields(model: Any) -> list[str]:
    """List the fields of a model."""
    return [field.name for field in dataclasses.fields(model)]


def _read(entry: np.ndarray) -> object:
    """Return a number or a text as it was saved, and an array as it is."""
    return entry.item() if entry.ndim == 0 else entry
