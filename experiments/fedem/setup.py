"""What FedEM's experiments share: data, starts, runs in float64, pictures against epochs.

See arXiv 2111.02083, Sec. 4. The paper leaves open the true parameters of the synthetic mixture,
the quantizer behind "omega = 1", the split and the seeds. Here the quantizer is block-2 in blocks
of 4, memories start at h_i(S_0), mini-batches are drawn with replacement, alpha = 0.01, and p =
0.75.

Dimension letters: `N` clients, `M` examples per client, `q` statistics, `V` evaluations.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

import fedjax_sim
from experiments.fedem.formulas import moments
from fedjax_sim.core.types import System
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.results.plots import LABELS, look, name_beside, styled
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.theory.fedem import FedEMSetup

BLOCKS = parse_compressor("block:norm=2:block=4")
"""The quantizer whose omega is 1."""
SPARSE = parse_compressor("sparsification:keep=0.5")
"""The quantizer by which omega is 1 for every vector."""
N, M, DIM, KAPPA, RIDGE, BATCH = 10, 20, 4, 0.5, 0.25, 5
"""Clients of toy A, examples of each, entries of these, kappa, ridge, and size of mini-batches."""


def exact_variance(compressor: Any, vector: Any) -> Any:
    """Compute E||Q(x) - x||^2 of a Q that rounds each entry of x to one of two neighbours."""
    unit, ratio, below, gap = compressor.around(jnp.abs(vector))
    return jnp.sum(jnp.square(unit) * (ratio - below) * (below + gap - ratio))


PAPER: dict[str, Any] = {"alpha": 0.01, "participation": 0.75, "compression": BLOCKS}


def even(num_clients: int, examples: int) -> Partition:
    """Give each client equally many consecutive examples."""
    return Partition(np.arange(num_clients * examples), np.full(num_clients, examples))


class Toy:
    """A mean seen through noise in float64, with its closed forms.

    See `fedjax_sim.problems.latent.noisy_mean`. Examples are `f64[N, M, q]` and kappa one
    number or `f64[N, M]`; `start` is every coordinate of S_0.
    """

    def __init__(self, y: np.ndarray, kappa: Any, *, ridge: float = RIDGE, start: float = 3.0):
        self.known = moments.describe_noisy_mean(y, kappa, ridge)
        self.start, self.num_examples = np.full(y.shape[2], start), y.shape[1]
        with jax.enable_x64(True):
            seen = Seen(
                jnp.asarray(y.reshape(-1, y.shape[2])),
                jnp.asarray(np.broadcast_to(kappa, y.shape[:2]).ravel(), float),
            )
            self.problem = latent.make_estimation(
                latent.NoisyMean(ridge), seen, even(*y.shape[:2]), start=self.start
            )

    @property
    def gap(self) -> float:
        """W(S_0) - min W."""
        return self.known.gap(self.start)

    @property
    def first_field(self) -> float:
        """‖h(S_0)‖²."""
        return self.known.slope**2 * float(np.sum((self.start - self.known.optimum) ** 2))

    def sigma2(self, batch: int) -> float:
        """sigma^2 of the clients' statistics on mini-batches of `batch` examples."""
        return float(self.known.noise.mean()) / batch

    def moments(
        self, setup: FedEMSetup, *, gamma: float, k_max: int, sigma2: float
    ) -> moments.Moments:
        """Compute the exact moments of FedEM from S_0, see `moments.exact_moments`."""
        first = self.first_field
        return moments.exact_moments(
            setup, slope=self.known.slope, gamma=gamma, k_max=k_max, sigma2=sigma2, mean_field=first
        )

    def curves(
        self,
        system: System,
        ticks: int,
        num_evals: int,
        *,
        batch: int | None = None,
        seeds: int,
        settings: Mapping[str, Any] | None = None,
        **chosen: Any,
    ) -> xr.Dataset:
        """Run a sweep and return its curves, on exact statistics unless `batch` is given."""
        exact = {"batches": "full", "batch_size": self.num_examples}
        batches = exact if batch is None else {"batch_size": batch}
        hyper = system.paper(num_clients=len(self.known.noise), **batches, **chosen)
        how: dict[str, Any] = {
            "budget": fedjax_sim.Ticks(ticks),
            "num_evals": num_evals,
            "seeds": seeds,
        }
        return curves_of(system, self.problem, hyper, settings=settings, **how)


def clients_apart(
    num_clients: int, examples: int, dim: int, *, spread: float, seed: int = 0
) -> np.ndarray:
    """Draw examples `f64[N, M, q]` of unit variance around centers that spread around 1/2."""
    random = np.random.default_rng(seed)
    return (
        random.normal(size=(num_clients, examples, dim))
        + spread * random.normal(size=(num_clients, 1, dim))
        + 0.5
    )


def toy_a(num_clients: int = N, *, spread: float = 2.0) -> Toy:
    """Make toy A: one kappa for all examples, which are equally noisy."""
    return Toy(clients_apart(num_clients, M, DIM, spread=spread), KAPPA)


def toy_b(examples: int = 100, most: int = 100) -> Toy:
    """Make toy B of unequally noisy examples, the first of `most` that are drawn."""
    kappa = 1 / (1 + np.random.default_rng(4).uniform(0, 3, (N, most)) ** 2)
    y = clients_apart(N, most, DIM, spread=2.0, seed=4)
    return Toy(y[:, :examples], kappa[:, :examples])


def curves_of(
    system: System, problem: Any, hyper: Any, *, wide: bool = True, **options: Any
) -> xr.Dataset:
    """Run a sweep and return its curves, in 64 bits unless `wide` is false."""
    with jax.enable_x64(wide):
        return fedjax_sim.sweep(system, problem, hyper, **options).curves


def mean_after(curves: xr.Dataset, metric: str, epochs: float) -> np.ndarray:
    """Average a metric over the evaluations from a number of epochs on, for each lane."""
    late = curves.epochs >= epochs  # A late value that is not a number counts, unlike in a mean.
    return (curves[metric].where(late, 0.0).sum("eval", skipna=False) / late.sum("eval")).values


def span(values: np.ndarray) -> str:
    """Describe values by the lowest and the highest."""
    return f"{np.min(values):.2g} to {np.max(values):.2g}"


MOST_MARKED = 16


@styled()
def figure_of(
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    x: str,
    y: str,
    title: str = "",
    log: bool = True,
) -> Figure:
    """Draw named lines of places and values `[V]`, on a logarithmic scale by default.

    A line of many places is a curve, which keeps each value until the next evaluation. Values that
    a logarithmic scale cannot show are left out.
    """
    figure = Figure(figsize=(8.5, 4.8))
    axes = figure.subplots()
    for i, (name, (places, given)) in enumerate(lines.items()):
        values = np.where(np.asarray(given) > 0, given, np.nan) if log else given
        if len(places) > MOST_MARKED:
            style = look(i, points=len(places), linewidth=1.2)
            axes.plot(places, values, label=name, drawstyle="steps-post", **style)
        else:
            axes.plot(places, values, label=name, **look(i, "all"))
    axes.set(xlabel=LABELS.get(x, x), ylabel=y, title=title, yscale="log" if log else "linear")
    if len(lines) > 1:
        name_beside(figure, axes)
    return figure
