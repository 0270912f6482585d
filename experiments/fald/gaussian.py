"""FA-LD's Gaussian simulation and smaller problems: chains and exact laws.

See arXiv 2112.05120, Sec. 5.1. In the simulation 50 clients have 1000 points each in the plane;
chains start at 0 with exact gradients and temperature 1, and all chains share one draw of the data.
What the paper prints as gamma is its square at these numbers of points, which it does not state.
Distances are those of the normal law fitted to the chains (divisor R - 1), which for 300 chains
cannot fall below about 7e-4, from sampling. Chains run in float32: their rounding is about 1e-5, at
centers as far as 100, against distances of 1e-4 and more. Exact laws are in float64, for the same
numbers.

Dimension letters: `R` chains, `P` parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fedjax_sim
from experiments.fald.formulas import exact_laws as oracle
from experiments.fald.formulas.exact_laws import GaussianTarget
from fedjax_sim.problems import GaussianClients, make_gaussian_clients
from fedjax_sim.results.diagnostics import Gaussian, fit_gaussian, wasserstein2
from fedjax_sim.results.plots import look
from fedjax_sim.systems import langevin

COVARIANCE = np.array([[5.0, -2.0], [-2.0, 1.0]])
ALPHAS = (0.0, 1.0, 10.0, 100.0, 1000.0)
"""Variance of the clients' means."""
NUM_CLIENTS, DATA = 50, 0
"""Number of clients, and the seed of the data."""


def equal_problem(alpha: float) -> GaussianClients:
    """Make the paper's simulation, in which all clients have one Hessian."""
    return make_gaussian_clients(DATA, alpha=alpha, covariance=COVARIANCE, dtype="float32")


def unequal_problem(alpha: float) -> GaussianClients:
    """Make the simulation with each client's covariance turned at random and scaled by 0.6 to 1.6.

    The clients' Hessians are then unequal.
    """
    random = np.random.default_rng(1)
    angles, scales = (
        random.uniform(0, np.pi, NUM_CLIENTS),
        np.exp(random.uniform(-0.5, 0.5, NUM_CLIENTS)),
    )
    turns = np.stack(
        [
            np.stack([np.cos(angles), -np.sin(angles)], -1),
            np.stack([np.sin(angles), np.cos(angles)], -1),
        ],
        axis=1,
    )
    covariances = scales[:, None, None] * turns @ COVARIANCE @ np.swapaxes(turns, 1, 2)
    return make_gaussian_clients(DATA, alpha=alpha, covariance=covariances, dtype="float32")


def line(curvatures: Any, centers: Any, counts: Any = 1) -> GaussianClients:
    """Make clients on a line, started at 0."""
    centers = np.asarray(centers, "float32")[:, None]
    return GaussianClients.of(
        np.broadcast_to(np.asarray(curvatures, "float32"), len(centers)), centers, counts=counts
    )


def r1() -> GaussianClients:
    """Make two clients of curvatures 1 and 4 with optima -1 and 1."""
    return line([1.0, 4.0], [-1.0, 1.0])


def r2(counts: Any = 1) -> GaussianClients:
    """Make five clients of curvature 2 with optima from -1 to 1."""
    return line(2.0, np.linspace(-1, 1, 5), counts)


def random_clients(seed: int) -> GaussianTarget:
    """Make two to five clients in the plane, with unequal weights and noisy gradients."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 6))
    turns, _ = np.linalg.qr(random.normal(size=(n, 2, 2)))
    values = np.exp(random.uniform(-1, 1.5, (n, 1, 2)))
    noise = random.choice([0.0, 1.0]) * np.broadcast_to(np.eye(2), (n, 2, 2))
    centers = random.normal(size=(n, 2)) * random.choice([0.1, 1.0, 5.0])
    return GaussianTarget(
        (turns * values) @ np.swapaxes(turns, 1, 2),
        centers,
        random.dirichlet(np.full(n, 3.0)),
        random.uniform(0.1, 2),
        noise,
    )


def clients_of(problem: GaussianClients, temperature: float = 1.0) -> GaussianTarget:
    """Return the numbers of a problem that the theory needs."""
    counts = np.asarray(problem.counts, float)
    factors = np.asarray(problem.noise, float)
    noise = factors @ np.swapaxes(factors, -1, -2)
    return GaussianTarget(
        np.asarray(problem.hessians, float),
        np.asarray(problem.centers, float),
        counts / counts.sum(),
        temperature,
        noise,
    )


def dissimilarity(clients: GaussianTarget) -> float:
    """Return gamma, the largest norm of a gradient of f^c at the optimum."""
    apart = oracle.target_law(clients).mean - clients.centers
    return float(np.linalg.norm(np.einsum("cij,cj->ci", clients.hessians, apart), axis=1).max())


def exact_distances(clients: GaussianTarget, num_rounds: int, **how: Any) -> np.ndarray:
    """Return W2 of the exact law to the target after 0, ..., R rounds from 0: `f64[R + 1]`.

    Args:
      clients: The clients.
      num_rounds: R.
      **how: The other arguments of `one_round`; rho is 0 and everyone is averaged by default.
    """
    taken = oracle.one_round(clients, **{"rho": 0.0, **how})
    laws = oracle.iterate_rounds(taken, oracle.point(np.zeros(clients.shape[1])), num_rounds)
    return wasserstein2(*laws, *oracle.target_law(clients))


def floor(clients: GaussianTarget, **how: Any) -> float:
    """Return W2 of the exact stationary law to the target; how: as in `exact_distances`."""
    taken = oracle.one_round(clients, **{"rho": 0.0, **how})
    return float(wasserstein2(*oracle.stationary(taken), *oracle.target_law(clients)))


class Chains(NamedTuple):
    """What chains returned: by problem, then swept settings, then round."""

    models: np.ndarray  # f[problems, settings..., R, rounds + 1, P]
    law: Gaussian  # fitted over chains: f64[problems, settings..., rounds + 1, P] and [..., P, P]
    distance: np.ndarray  # f64[problems, settings..., rounds + 1]  W2 of that law to the target


def chains(
    problems: Sequence[GaussianClients],
    *,
    num_chains: int,
    num_rounds: int,
    settings: Mapping[str, Sequence[Any]] | None = None,
    temperature: float = 1.0,
    options: Mapping[str, Any] | None = None,
    first_seed: int = 0,
    **hyper: Any,
) -> Chains:
    """Run chains on each problem for each combination of settings, as one compiled program.

    Noise differs between chains and between problems, but is the same at all combinations of
    settings, which share their seeds: curves of one call differ by less than their sampling error.
    Calls with different seeds share nothing.

    Args:
      problems: Problems with one number of clients and one dimension.
      num_chains: R.
      num_rounds: Rounds to run.
      settings: Settings that are swept.
      temperature: Temperature of the target.
      first_seed: The first seed; each chain of each problem takes the next one.
      options: Further options of `sweep`.
      **hyper: Settings of FA-LD.
    """
    each = langevin.paper(
        num_clients=problems[0].centers.shape[0], gradient="exact", temperature=temperature, **hyper
    )
    run = fedjax_sim.sweep(
        langevin.system,
        [problem for problem in problems for _ in range(num_chains)],
        each,
        seeds=range(first_seed, first_seed + len(problems) * num_chains),
        settings=settings,
        budget=fedjax_sim.Ticks(num_rounds),
        num_evals=num_rounds,
        keep=fedjax_sim.Keep(models=True),
        layout=fedjax_sim.Layout(evals_per_chunk=min(num_rounds, 50)),
        **(options or {}),
    )
    shape = [len(values) for values in (settings or {}).values()]
    models = np.asarray(run.samples).reshape(*shape, len(problems), num_chains, num_rounds + 1, -1)
    models = np.moveaxis(models, len(shape), 0)
    law = fit_gaussian(np.moveaxis(models, -3, -2))
    goals = [problem.posterior(temperature) for problem in problems]
    distance = np.stack(
        [
            wasserstein2(mean, covariance, *goal)
            for mean, covariance, goal in zip(*law, goals, strict=True)
        ]
    )
    return Chains(models, law, distance)


class Repeated(NamedTuple):
    """Several sets of chains, as the distances of a single one have an error."""

    first: Chains
    distance: np.ndarray  # f64[sets, problems, settings..., rounds + 1]


def repeated(
    problems: Sequence[GaussianClients],
    *,
    sets: int,
    num_chains: int,
    first_seed: int,
    options: Callable[[str], Mapping[str, Any]],
    name: str,
    **how: Any,
) -> Repeated:
    """Run sets of chains, all with different seeds, by one compiled program.

    Args:
      problems: As in `chains`.
      sets: Number of sets.
      options: Returns the options of `sweep` for a run of some name.
      name: Name of the runs.
      first_seed: As in `chains`.
      **how: The other arguments of `chains`.
    """
    size = len(problems) * num_chains

    def ran(i: int) -> Chains:
        kept_options = options(name if i == 0 else f"{name}, set {i}")
        return chains(
            problems,
            num_chains=num_chains,
            first_seed=first_seed + i * size,
            options=kept_options,
            **how,
        )

    first = ran(0)  # One set's models are enough to keep.
    return Repeated(first, np.stack([first.distance, *(ran(i).distance for i in range(1, sets))]))


def draw_sets(
    axes: Any, distance: np.ndarray, number: int, *, every: int = 1, label: str | None
) -> None:
    """Draw the first set's distances, and the range of all sets, against rounds times `every`.

    Args:
      axes: Where to draw.
      distance: `f64[sets, rounds + 1]`.
      number: Which series of the panel; the exact law's line has `look(number, "none")`.
      every: What a round counts.
      label: Name of the series.
    """
    at = every * np.arange(distance.shape[1])
    style = look(number, linestyle="-", linewidth=0.8)
    axes.semilogy(at, distance[0], label=label, **style)
    area = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
    axes.fill_between(at, distance.min(axis=0), distance.max(axis=0), **area)


def explain(axes: Any, text: str) -> None:
    """Use a panel for words instead of data."""
    axes.axis("off")
    axes.text(0.02, 0.02, text, transform=axes.transAxes, va="bottom", fontsize=11)


def deviations(
    law: Gaussian, expected: Gaussian, num_chains: int, squares: np.ndarray | None = None
) -> np.ndarray:
    """Return how far fitted means and covariances are from exact ones, in standard errors.

    Args:
      law: The fitted laws.
      expected: The exact laws.
      num_chains: R.
      squares: E[(x_i x_j)^2] over the product of the variances, `f64[..., P, P]`, as
        `mixed_moments` returns it; None for normal laws.

    Returns:
      The largest deviation of a mean or of an entry of the covariance, `f64[...]`. Equal values are
      off by 0, also where their error is 0; values that are not numbers are off by infinity.
    """
    variance = np.diagonal(expected.covariance, axis1=-2, axis2=-1)
    products = variance[..., :, None] * variance[..., None, :]
    square = np.square(expected.covariance)
    spread = products + square if squares is None else squares * products - square
    error = np.sqrt(np.maximum(spread, 0) / (num_chains - 1))
    return np.maximum(
        _far(law.mean, expected.mean, np.sqrt(variance / num_chains)).max(axis=-1),
        _far(law.covariance, expected.covariance, error).max(axis=(-2, -1)),
    )


def off_exact(
    ran: Chains,
    place: tuple[int, ...],
    clients: GaussianTarget,
    at: Sequence[int] | None = None,
    **how: Any,
) -> float:
    """Return how far chains' means and variances are from the exact ones, in standard errors.

    If only some clients are averaged, laws are mixtures, and the error of their variance comes from
    the chains' fourth moments.

    Args:
      ran: The chains.
      place: The problem and the values of the swept settings, by their places.
      clients: The problem's clients.
      at: Rounds at which they are compared; the first, the middle and the last one by default.
      **how: As in `exact_distances`.
    """
    num_rounds = ran.distance.shape[-1] - 1
    chosen = [1, num_rounds // 2, num_rounds] if at is None else [*at]
    taken = oracle.one_round(clients, **{"rho": 0.0, **how})
    exact = oracle.iterate_rounds(taken, oracle.point(np.zeros(clients.shape[1])), num_rounds)
    models = ran.models[place]
    is_mixed = how.get("participation", oracle.FULL) != oracle.FULL
    far = deviations(
        Gaussian(ran.law.mean[place][chosen], ran.law.covariance[place][chosen]),
        Gaussian(exact.mean[chosen], exact.covariance[chosen]),
        len(models),
        mixed_moments(models[:, chosen]) if is_mixed else None,
    )
    return largest(*far.ravel())


def _far(found: np.ndarray, exact: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Divide distances by errors: 0 over 0 is 0, and what is not a number is infinite."""
    off = np.abs(found - exact)
    with np.errstate(invalid="ignore", divide="ignore"):
        far = np.where(off == 0, 0.0, off / error)
    return np.where(np.isnan(far), np.inf, far)


def are_numbers(*sets: Repeated) -> bool:
    """Return whether all distances of all sets are numbers."""
    return all(bool(np.isfinite(each.distance).all()) for each in sets)


def largest(*numbers: float) -> float:
    """Return the largest value, or infinity if one of them is not a number."""
    return float(np.inf if np.isnan(numbers).any() else np.max(numbers))


def mixed_moments(models: np.ndarray) -> np.ndarray:
    """Return E[(x_i x_j)^2] of centred chains over the product of their variances.

    On the diagonal this is the kurtosis, 3 for normal laws.

    Args:
      models: `f[..., R, rounds, P]`.

    Returns:
      `f64[..., rounds, P, P]`.
    """
    centred = np.asarray(models, float)
    square = np.square(centred - centred.mean(axis=-3, keepdims=True))
    variance = square.mean(axis=-3)
    mixed = np.einsum("...rki,...rkj->...kij", square, square) / square.shape[-3]
    return mixed / (variance[..., :, None] * variance[..., None, :])


def first_within(distance: np.ndarray, accuracy: float) -> np.ndarray:
    """Return the first round within an accuracy, or infinity.

    Args:
      distance: `f64[..., rounds + 1]`.
      accuracy: The accuracy.

    Returns:
      `f64[...]`.
    """
    is_close = distance <= accuracy
    return np.where(is_close.any(axis=-1), is_close.argmax(axis=-1), np.inf)


def mean_of_finite(values: npt.ArrayLike) -> float:
    """Return the mean of the finite values, or infinity if there are none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else np.inf
