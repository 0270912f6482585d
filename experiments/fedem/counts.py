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
SPARSE = Study(
    full=Sizes(sites=2000, months=100, observers=43, rounds=2000),
    smoke=COUNTS.smoke.replace(observers=2),
)
"""Sizes with fewer visits than sites.

J = 2000, L = 100 and about N = 1300 visits, with the paper's N / J of 0.6.
"""


class Visits(NamedTuple):
    """Counts, one for each visit."""

    server: np.ndarray  # i[n]
    site: np.ndarray  # i[n]
    time: np.ndarray  # i[n]
    value: np.ndarray  # f[n]
    shape: tuple[int, int]  # sites, times
    truth: np.ndarray | None = None  # f[J, L]
    num_servers: int = SERVERS
    family: str = "gaussian"  # of the noise, as in `latent.MissingValues`

    def part(self, chosen: np.ndarray) -> "Visits":
        """Return some of the visits."""
        return self._replace(
            **{name: getattr(self, name)[chosen] for name in ("server", "site", "time", "value")}
        )

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

    @property
    def cells(self) -> np.ndarray:
        """Return the cell of each visit, row by row."""
        return self.site * self.shape[1] + self.time


def synthetic(sizes: Sizes, seed: int = 0, *, noise: float = 0.5) -> Visits:
    """Make visits to seasonal abundances with a trend, seen with Gaussian noise.

    The abundances are exactly of rank 2. Sites with more of them are visited more often.
    """
    random = np.random.default_rng(seed)
    abundance, truth = abundances(sizes, random)
    server = _observers(sizes, random)
    site = random.choice(sizes.sites, len(server), p=abundance / abundance.sum())
    return seen_at(truth, server, site, noise, random)


def regional(sizes: Sizes, seed: int = 0, *, noise: float = 0.5, share: float = 0.2) -> Visits:
    """Make visits to the same abundances where each server sees a part of the sites only.

    The sites of a server are next to each other on a circle.
    """
    random = np.random.default_rng(seed)
    abundance, truth = abundances(sizes, random)
    server = _observers(sizes, random)
    site = np.empty_like(server)
    for number in range(SERVERS):
        near = (
            np.arange(round(share * sizes.sites)) + number * sizes.sites // SERVERS
        ) % sizes.sites
        is_own = server == number
        site[is_own] = random.choice(near, is_own.sum(), p=abundance[near] / abundance[near].sum())
    return seen_at(truth, server, site, noise, random)


def poisson(sizes: Sizes, seed: int = 0) -> Visits:
    """Make the same visits as `synthetic`, with Poisson counts.

    The logarithm of the mean is a third of the abundance; `truth` is the mean.
    """
    visits = synthetic(sizes, seed)
    assert visits.truth is not None
    mean = np.exp(visits.truth / 3)
    value = np.random.default_rng((seed, 1)).poisson(mean[visits.site, visits.time])
    return visits._replace(value=value.astype(float), truth=mean, family="poisson")


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


def _observers(sizes: Sizes, random: np.random.Generator) -> np.ndarray:
    """Draw the server of each visit; an observer stays with one server."""
    visits = random.poisson(30, sizes.observers)
    return np.repeat(random.integers(0, SERVERS, sizes.observers), visits)


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
