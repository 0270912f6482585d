"""Counts of sites x months for FedMissEM (arXiv 2111.02083, Sec. 4): made up.

The paper's data, eBird's counts of France, may not be redistributed. Synthetic ones have their
structure: observers at random servers, irregular visits to frequented sites, and seasonal
abundances with a trend. The abundances are exactly of rank 2 and known.

Dimension letters: `n` visits, `J` sites, `L` months.
"""

from typing import NamedTuple

import numpy as np

from experiments.harness import Sizes, Study
from fedjax_sim.problems.latent.missing_values import Matrix, make_matrices

SERVERS = 10


COUNTS = Study(
    full=Sizes(sites=200, months=60, observers=200, rounds=2000),
    smoke=Sizes(sites=40, months=24, observers=60, rounds=300),
)


class Visits(NamedTuple):
    """Counts, one for each visit."""

    server: np.ndarray  # i[n]
    site: np.ndarray  # i[n]
    time: np.ndarray  # i[n]
    value: np.ndarray  # f[n]
    shape: tuple[int, int]  # sites, times
    truth: np.ndarray  # f[J, L]
    num_servers: int = SERVERS

    @property
    def seen(self) -> np.ndarray:
        """Which cells somebody visited: `bool[J, L]`."""
        found = np.zeros(self.shape, bool)
        found[self.site, self.time] = True
        return found

    def recovered(self, matrix: np.ndarray) -> dict[str, float]:
        """Compare a matrix, and its totals by time, with the truth."""
        trend = np.corrcoef(matrix.sum(axis=0), self.truth.sum(axis=0))[0, 1]
        return {"RMSE": rms(matrix - self.truth), "trend": float(trend)}

    def matrices(self, *, is_pooled: bool = False) -> Matrix:
        """Return one matrix per server, or one of all, in which visits to a cell are averaged."""
        server, servers = (
            (np.zeros_like(self.server), 1) if is_pooled else (self.server, self.num_servers)
        )
        return make_matrices(
            server.tolist(),
            self.site.tolist(),
            self.time.tolist(),
            self.value.tolist(),
            (servers, *self.shape),
        )


def rms(values: np.ndarray) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(values**2)))


def synthetic(sizes: Sizes, seed: int = 0, *, noise: float = 0.5) -> Visits:
    """Make visits to seasonal abundances with a trend, seen with Gaussian noise.

    The abundances are exactly of rank 2. Sites with more of them are visited more often, and an
    observer stays with one server.
    """
    random = np.random.default_rng(seed)
    abundance, truth = abundances(sizes, random)
    visits = random.poisson(30, sizes.observers)
    server = np.repeat(random.integers(0, SERVERS, sizes.observers), visits)
    site = random.choice(sizes.sites, len(server), p=abundance / abundance.sum())
    return seen_at(truth, server, site, noise, random)


def abundances(sizes: Sizes, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the abundances of the sites, and those of the cells."""
    abundance, trend = (
        np.exp(0.6 * random.normal(size=sizes.sites)),
        0.5 * random.normal(size=sizes.sites),
    )
    month = np.arange(sizes.months)
    season = 2 + np.sin(2 * np.pi * month / 12)
    return abundance, np.outer(abundance, season) + 2 * np.outer(
        trend, (month - sizes.months / 2) / sizes.months
    )


def seen_at(
    truth: np.ndarray,
    server: np.ndarray,
    site: np.ndarray,
    noise: float,
    random: np.random.Generator,
) -> Visits:
    time = random.integers(0, truth.shape[1], len(server))
    value = truth[site, time] + noise * random.normal(size=len(server))
    return Visits(server, site, time, value, truth.shape, truth)
