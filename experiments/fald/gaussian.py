"""FA-LD's Gaussian simulation and smaller problems: chains and exact laws.

See arXiv 2112.05120, Sec. 7.1. In the simulation 50 clients have 1000 points each in the plane;
chains start at 0 with exact gradients and temperature 1, and all chains share one draw of the data.
What the paper prints as gamma is its square at these numbers of points, which it does not state.
Distances are those of the normal law fitted to the chains (divisor R - 1), which for 300 chains
cannot fall below about 7e-4, from sampling. Chains run in float32: their rounding is about 1e-5, at
centers as far as 100, against distances of 1e-4 and more. Exact laws are in float64, for the same
numbers.

Dimension letters: `R` chains, `P` parameters.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fedjax_sim
from experiments.fald.formulas import exact_laws as oracle
from experiments.fald.formulas.exact_laws import GaussianTarget, Participation
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


def laws(clients: GaussianTarget, num_rounds: int, *, start: float = 0.0, **how: Any) -> Gaussian:
    """Compute the exact laws after 0, ..., R rounds.

    Args:
      clients: The clients.
      num_rounds: R.
      start: Every coordinate of the first model.
      **how: The other arguments of `one_round`; rho is 0 and everyone is averaged by default.
    """
    taken = oracle.one_round(clients, **{"rho": 0.0, **how})
    return oracle.iterate_rounds(taken, oracle.point(np.full(clients.shape[1], start)), num_rounds)


def exact_distances(clients: GaussianTarget, num_rounds: int, **how: Any) -> np.ndarray:
    """Return W2 of these laws to the target: `f64[R + 1]`."""
    return wasserstein2(*laws(clients, num_rounds, **how), *oracle.target_law(clients))


def at_rest(clients: GaussianTarget, **how: Any) -> Gaussian:
    """Compute the exact stationary law; how: as in `laws`."""
    return oracle.stationary(oracle.one_round(clients, **{"rho": 0.0, **how}))


def floor(clients: GaussianTarget, **how: Any) -> float:
    """Return W2 of the exact stationary law to the target; how: as in `laws`."""
    return float(wasserstein2(*at_rest(clients, **how), *oracle.target_law(clients)))


class Cell(NamedTuple):
    """Sets of chains of one problem at one choice of settings, next to their exact law.

    Attributes:
      clients: The problem.
      how: The settings, as `laws` takes them.
      models: `f[R, rounds + 1, P]`, the chains of the first set.
      distance: `f64[sets, rounds + 1]`, W2 to the target of the normal law fitted to each set.
    """

    clients: GaussianTarget
    how: Mapping[str, Any]
    models: np.ndarray
    distance: np.ndarray

    @property
    def exact(self) -> np.ndarray:
        """W2 of the exact law to the target: `f64[rounds + 1]`."""
        return exact_distances(self.clients, self.distance.shape[-1] - 1, **self.how)

    def off(self, at: Sequence[int] | None = None) -> float:
        """Return how far the first set's means and covariances are from the exact ones.

        If only some clients are averaged, laws are mixtures, and the error of their covariance
        comes from the chains' fourth moments.

        Args:
          at: Rounds at which they are compared; the first, the middle and the last by default.

        Returns:
          The largest deviation in standard errors; infinite if a distance of any set is not a
          number.
        """
        if not np.isfinite(self.distance).all():
            return np.inf
        last = self.distance.shape[-1] - 1
        chosen = [1, last // 2, last] if at is None else [*at]
        models, exact = self.models[:, chosen], laws(self.clients, last, **self.how)
        is_mixed = self.how.get("participation", oracle.FULL) != oracle.FULL
        far = deviations(
            fit_gaussian(np.moveaxis(models, 0, 1)),
            Gaussian(exact.mean[chosen], exact.covariance[chosen]),
            len(models),
            mixed_moments(models) if is_mixed else None,
        )
        return largest(*far.ravel())

    def draw(self, axes: Any, number: int, label: str | None, *, every: int = 1) -> None:
        """Draw the first set with the range of all, and the exact law without marks.

        `number` says which series of the panel it is, and `every` the local steps of a round.
        """
        at = every * np.arange(self.distance.shape[1])
        style = look(number, linestyle="-", linewidth=0.8)
        axes.semilogy(at, self.exact, **look(number, "none", linewidth=1))
        axes.semilogy(at, self.distance[0], label=label, **style)
        area = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
        axes.fill_between(at, self.distance.min(axis=0), self.distance.max(axis=0), **area)


def explain(axes: Any, first: str = "") -> None:
    """Use a panel for words on the lines of `Cell.draw` instead of data."""
    marks = "lines with marks: chains, with the range of all sets\nlines without: exact laws"
    axes.axis("off")
    axes.text(0.02, 0.02, first + marks, transform=axes.transAxes, va="bottom", fontsize=11)


def cells(
    problems: Sequence[GaussianClients],
    *,
    num_chains: int,
    num_rounds: int,
    sets: int = 1,
    first_seed: int = 0,
    options: Callable[[str], Mapping[str, Any]] = lambda name: {},
    name: str = "",
    vary: Mapping[str, Sequence[Any]] | None = None,
    participation: Participation = oracle.FULL,
    **how: Any,
) -> list[Cell]:
    """Run sets of chains on each problem at each combination of settings, as one program.

    Noise differs between chains, problems and sets, but is the same at all combinations of
    settings: curves of one call differ by less than their sampling error. Calls with different
    seeds share nothing.

    Args:
      problems: Problems with one number of clients and one dimension.
      num_chains: R, chains of a set.
      num_rounds: Rounds to run.
      sets: Number of sets.
      first_seed: The first seed; each chain of each problem of each set takes the next one.
      options: Returns the options of `sweep` for a run of some name.
      name: Name of the runs.
      vary: Settings that are swept.
      participation: Which clients are averaged.
      **how: Settings of FA-LD.

    Returns:
      A cell for every problem and combination of settings, problems first.
    """
    drawn = {} if participation == oracle.FULL else {"num_selected": participation.num_selected}
    hyper = langevin.paper(
        num_clients=len(problems[0].centers),
        gradient="exact",
        temperature=1.0,
        participants=participation.scheme,
        **drawn,
        **how,
    )
    size = len(problems) * num_chains

    def ran(i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a set's models, problems and settings first, and the distances of its laws."""
        run = fedjax_sim.sweep(
            langevin.system,
            [problem for problem in problems for _ in range(num_chains)],
            hyper,
            seeds=range(first_seed + i * size, first_seed + (i + 1) * size),
            settings=vary,
            budget=fedjax_sim.Ticks(num_rounds),
            num_evals=num_rounds,
            keep=fedjax_sim.Keep(models=True),
            layout=fedjax_sim.Layout(evals_per_chunk=min(num_rounds, 50)),
            **options(f"{name}, set {i}" if i else name),
        )
        models = np.asarray(run.samples)
        models = models.reshape(-1, len(problems), num_chains, num_rounds + 1, models.shape[-1])
        models = np.moveaxis(models, 1, 0)
        fits = zip(*fit_gaussian(np.moveaxis(models, -3, -2)), problems, strict=True)
        far = [wasserstein2(mean, spread, *each.posterior(1.0)) for mean, spread, each in fits]
        return models, np.stack(far)

    models, first = ran(0)  # One set's models are enough to keep.
    distance = np.stack([first, *(ran(i)[1] for i in range(1, sets))])
    common = {**how} if participation == oracle.FULL else {**how, "participation": participation}
    choices = [
        dict(zip(vary or {}, x, strict=True)) for x in itertools.product(*(vary or {}).values())
    ]
    return [
        Cell(clients_of(problem), {**common, **choice}, models[p, c], distance[:, p, c])
        for p, problem in enumerate(problems)
        for c, choice in enumerate(choices)
    ]


def deviations(
    law: Gaussian, expected: Gaussian, num_chains: int, squares: np.ndarray | None = None
) -> np.ndarray:
    """Return how far fitted means and covariances are from exact ones, in standard errors.

    Args:
      law: The laws fitted to R chains.
      expected: The exact laws.
      num_chains: R.
      squares: What `mixed_moments` returns; None for normal laws.

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


def _far(found: np.ndarray, exact: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Divide distances by errors: 0 over 0 is 0, and what is not a number is infinite."""
    off = np.abs(found - exact)
    with np.errstate(invalid="ignore", divide="ignore"):
        far = np.where(off == 0, 0.0, off / error)
    return np.where(np.isnan(far), np.inf, far)


def largest(*numbers: float) -> float:
    """Return the largest value, or infinity if one of them is not a number."""
    return float(np.inf if np.isnan(numbers).any() else np.max(numbers))


def mixed_moments(models: np.ndarray) -> np.ndarray:
    """Return E[(x_i x_j)^2] of centred chains over the product of their variances.

    On the diagonal this is the kurtosis, 3 for normal laws. Models are `f[..., R, rounds, P]`, and
    the result is `f64[..., rounds, P, P]`.
    """
    centred = np.asarray(models, float)
    square = np.square(centred - centred.mean(axis=-3, keepdims=True))
    variance = square.mean(axis=-3)
    mixed = np.einsum("...rki,...rkj->...kij", square, square) / square.shape[-3]
    return mixed / (variance[..., :, None] * variance[..., None, :])


def first_within(distance: np.ndarray, accuracy: float) -> np.ndarray:
    """Return the first round within an accuracy, or infinity, of `f64[..., rounds + 1]`."""
    is_close = distance <= accuracy
    return np.where(is_close.any(axis=-1), is_close.argmax(axis=-1), np.inf)


def mean_of_finite(values: npt.ArrayLike) -> float:
    """Return the mean of the finite values, or infinity if there are none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else np.inf
