"""What to make of a sampler's samples: averaged predictions, and whether chains have mixed. Lanes are chains.

Samples are `Run.samples`, as `sweep(..., keep_models=True)` leaves them: leaves `[L, V, ...]`, the initial model first.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.diagnostics import predictions
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Params


class Predictor(Protocol):
    """A problem whose models predict classes."""

    test_labels: Array  # i32[n]

    def predict(self, params: Params) -> Array:
        """Probabilities of the classes of the test examples: `f[n, C]`."""


class Predictive(NamedTuple):
    """Predictions averaged over the samples so far. M samples."""

    curves: dict[
        str, np.ndarray
    ]  # f[L, M]  accuracy, nll, brier and ece of the running average, after each sample
    probabilities: np.ndarray  # f[L, n, C]  averages over all samples


class Mixing(NamedTuple):
    """Diagnostics of each parameter, in the structure of a model: leaves `f64[...]`."""

    rhat: Any  # split and rank-normalised; near 1 for chains that agree
    ess: Any  # effective number of independent samples behind the mean, all chains together


def thinned(samples: Any, *, burn_in: int = 1, thin: int = 1) -> Any:
    """Leave out the first `burn_in` evaluations, then take every `thin`-th, the first of them included: leaves `[L, M, ...]`."""
    num = jax.tree.leaves(samples)[0].shape[1]
    for name, value, least, most in (("burn_in", burn_in, 0, num - 1), ("thin", thin, 1, num)):
        if not isinstance(value, (int, np.integer)) or not least <= value <= most:
            raise ConfigError(
                name,
                value,
                f"a whole number from {least} to {most}, as there are {num} evaluations",
            )
    return jax.tree.map(lambda leaf: leaf[:, burn_in::thin], samples)


def predictive(problem: Predictor, samples: Any, *, burn_in: int = 1, thin: int = 1) -> Predictive:
    """Average the predictions of samples, lane by lane, and score the average after each. The initial model is left out by default."""
    curves, probabilities = _predictive(problem, thinned(samples, burn_in=burn_in, thin=thin))
    return Predictive(
        {name: np.asarray(values) for name, values in curves.items()}, np.asarray(probabilities)
    )


@jax.jit
def _predictive(problem: Predictor, samples: Any) -> tuple[dict[str, Array], Array]:
    def lane(samples: Any) -> tuple[dict[str, Array], Array]:
        def one(
            total: tuple[Array, Array], params: Params
        ) -> tuple[tuple[Array, Array], dict[str, Array]]:
            summed, num = total[0] + problem.predict(params), total[1] + 1
            return (summed, num), predictions.of_predictions(summed / num, problem.test_labels)

        first = jax.tree.map(lambda leaf: leaf[0], samples)
        nothing = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(problem.predict, first)
        )
        (summed, num), curves = jax.lax.scan(one, (nothing, jnp.zeros((), nothing.dtype)), samples)
        return curves, summed / num

    return jax.lax.map(lane, samples)


def mixing(samples: Any, *, burn_in: int = 1, thin: int = 1) -> Mixing:
    """Compare chains (Vehtari et al. 2021), by ArviZ. At least four samples a chain; a parameter that never moves has nan."""
    from arviz_stats.base import array_stats  # Slow to import, and only needed here.

    kept = thinned(samples, burn_in=burn_in, thin=thin)
    if jax.tree.leaves(kept)[0].shape[1] < 4:
        raise ConfigError(
            "number of samples", jax.tree.leaves(kept)[0].shape[1], "at least 4 a chain"
        )

    def of(statistic: str, **how: str) -> Any:
        compute = getattr(array_stats, statistic)
        return jax.tree.map(
            lambda leaf: np.asarray(compute(np.asarray(leaf), chain_axis=0, draw_axis=1, **how)),
            kept,
        )

    return Mixing(of("rhat"), of("ess", method="mean"))
