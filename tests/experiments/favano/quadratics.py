"""Quadratics under the algorithm that FAVANO's analysis is about, for the tests in this folder.

Dimension letters: `N` clients, `P` parameters, `K` most local steps between contacts.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.theory import favano as theory

Numbers = npt.NDArray[np.float64]
FAST, SLOW = 1 / 2, 1 / 16
"""Local steps per unit of time of the paper's fast and slow clients."""


def law_of(*rates: float, p: float = 0.2, max_steps: int = 20) -> Numbers:
    """Compute the law of X for clients of some rates that are contacted with probability p."""
    return theory.step_law(
        rates, contact_probability=p, round_time=7, max_steps=max_steps, law="runtime_geom"
    )


def draw_steps(
    random: np.random.Generator, law: Numbers, shape: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Draw X for each client from its law `f64[N, K + 1]`: `i64[*shape, N]`."""
    points = random.random((*shape, len(law)))
    return np.sum(points[..., None] > np.cumsum(law, axis=-1)[:, :-1], axis=-1)


def weights_of(steps: npt.NDArray[np.int64], law: Numbers, reweighting: str) -> Numbers:
    """Compute 1 / alpha, and 0 for clients without a step to report; shaped like `steps`."""
    moments = theory.step_moments(law)
    alpha = (
        moments.prob_any * steps
        if reweighting == "stochastic"
        else np.broadcast_to(moments.mean, steps.shape)
    )
    return np.where(steps > 0, 1 / np.where(steps > 0, alpha, 1), 0)


class Quadratics(NamedTuple):
    """The losses f_i(w) = L / 2 |w - c_i|^2 with normal gradient noise, and a run on them.

    Attributes:
        optima: `f64[N, P]`, c_i.
        start: `f64[P]`, the initial model of server and clients.
        law: `f64[N, K + 1]`, probabilities of X = 0, ..., K.
        smoothness: L.
        gradient_variance: sigma^2, summed over coordinates.
    """

    optima: Numbers
    start: Numbers
    law: Numbers
    smoothness: float
    gradient_variance: float

    def setup(self, num_contacted: int, reweighting: str) -> theory.FavanoSetup:
        """Collect the constants of the theory for this problem."""
        max_steps = self.law.shape[1] - 1
        a, b = theory.reweighting_constants(
            theory.step_moments(self.law), max_steps=max_steps, reweighting=reweighting
        )
        centre = self.optima.mean(0)
        return theory.FavanoSetup(
            num_clients=len(self.optima),
            num_contacted=num_contacted,
            max_steps=max_steps,
            smoothness=self.smoothness,
            gradient_variance=self.gradient_variance,
            dissimilarity=self.smoothness**2
            * float(np.mean(np.sum((self.optima - centre) ** 2, axis=1))),
            dissimilarity_factor=1.0,
            initial_gap=self.smoothness / 2 * float(np.sum((self.start - centre) ** 2)),
            noise_constant=float(a.mean()),
            drift_constant=b,
        )

    def gradient_square(self, mean_model: Numbers) -> Numbers:
        """Compute the squared norm of the gradient of f at models `f64[..., P]`: `f64[...]`."""
        return self.smoothness**2 * np.sum((mean_model - self.optima.mean(0)) ** 2, axis=-1)

    def progress(
        self,
        random: np.random.Generator,
        bases: Numbers,
        step_size: float,
        reweighting: str,
    ) -> Numbers:
        """Draw the reweighted progress of all clients from their base models `f64[..., N, P]`."""
        steps = draw_steps(random, self.law, bases.shape[:-2])
        noise_scale = np.sqrt(self.gradient_variance / bases.shape[-1])
        local, total = bases, np.zeros_like(bases)
        for done in range(self.law.shape[1] - 1):
            gradient = self.smoothness * (local - self.optima) + noise_scale * random.normal(
                size=bases.shape
            )
            gradient *= (done < steps)[..., None]
            local, total = local - step_size * gradient, total + gradient
        return total * weights_of(steps, self.law, reweighting)[..., None]


def small_quadratics(random: np.random.Generator, max_steps: int = 8) -> Quadratics:
    """Make a problem of ten clients, half of them fast, of whom three are contacted at a time."""
    n = 10
    law = law_of(*[FAST] * (n // 2), *[SLOW] * (n // 2), p=3 / n, max_steps=max_steps)
    return Quadratics(
        random.normal(size=(n, 5)), np.full(5, 3.0), law, smoothness=1.0, gradient_variance=0.25
    )
