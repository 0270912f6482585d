"""FedMissEM at the shape of the paper's counts, with the paper's settings (claim 25).

See arXiv 2111.02083, Sec. 4. The paper has 5,980 counts of the Common Buzzard at 9,721 sites in 525
months, by 2,465 observers dealt to ten servers, of eBird, which may not be passed on. Here counts
are made up as in fedem/fig2, at rank 2 and with a known truth, in the same numbers. Each count is
of an observer drawn at random, and sites with more birds are visited more often.

FedMissEM runs with the paper's settings: 150 epochs, gamma = 1e-4, alpha = 1e-3, mini-batches of 10
x 10 cells, rank 2, no ridge. The paper does not say where the server starts; here that is the mean
of the servers' matrices with 0 for cells that nobody visited. EM on the pooled cells, and means of
sites and months, show what the counts determine.
"""

from typing import Any

import numpy as np

from experiments import harness
from experiments.fedem import counts, fig2
from experiments.fedem.claims import CLAIMS, SMOKE
from experiments.fedem.counts import Visits
from experiments.harness import Arguments, Outcome, Sizes, Study

SHAPE = Study(
    full=Sizes(sites=9721, months=525, observers=2465, visits=5980, epochs=150, steps=300),
    smoke=Sizes(sites=60, months=24, observers=30, visits=80, epochs=20, steps=50),
)
"""`steps` are those of EM on the pooled cells."""
START, FEDMISSEM, POOLED, MEANS = "the start", "FedMissEM", "EM, pooled", "means"


def made_up(sizes: Sizes, seed: int = 0, *, noise: float = 0.5) -> Visits:
    """Make as many visits as the paper has counts, to abundances of rank 2."""
    random = np.random.default_rng(seed)
    abundance, truth = counts.abundances(sizes, random)
    of_observer = random.integers(0, counts.SERVERS, sizes.observers)
    server = of_observer[random.integers(0, sizes.observers, sizes.visits)]
    site = random.choice(sizes.sites, sizes.visits, p=abundance / abundance.sum())
    return counts.seen_at(truth, server, site, noise, random)


JUDGES = CLAIMS.declared(25)


def run(arguments: Arguments) -> Outcome:
    """Run FedMissEM with the paper's settings, and EM on the pooled cells."""
    sizes = SHAPE.choose(arguments)
    visits = made_up(sizes)
    pooled, _, steps = fig2.fixed_point(fig2.problem_of(visits, is_pooled=True), sizes.steps)
    start = fig2.filled_up(visits)
    problem = fig2.problem_of(visits, start=start)
    rounds = max(1, round(sizes.epochs * sizes.visits / (counts.SERVERS * 100)))
    fitted = fig2.fit(
        problem,
        visits,
        rounds=rounds,
        gamma=1e-4,
        alpha=1e-3,
        batch=fig2.batches(visits.shape)[fig2.PAPERS],
        kept=arguments.kept(fig2.PAPERS),
    )
    matrices = {
        FEDMISSEM: fitted.matrix,
        START: rank_two(start.reshape(visits.shape)),
        POOLED: pooled.reshape(visits.shape),
        MEANS: fig2.additive(visits),
    }
    recovered = {name: visits.recovered(matrix) for name, matrix in matrices.items()}
    totals = {
        name: matrix.sum(axis=0) for name, matrix in {"truth": visits.truth, **matrices}.items()
    }
    objective = fitted.curves.objective.values[0]
    moved = np.linalg.norm(fitted.matrix - matrices[START]) / np.linalg.norm(matrices[START])
    found: dict[str, Any] = {
        "sites": sizes.sites,
        "sites visited": len(np.unique(visits.site)),
        "visits": sizes.visits,
        "cells seen": float(visits.seen.mean()),
        "rounds": rounds,
        "steps": steps,
        "F at first": float(objective[0]),
        "F": float(objective[-1]),
        "moved": float(moved),
        **{what: {n: each[what] for n, each in recovered.items()} for what in ("trend", "RMSE")},
    }
    verdicts = harness.judge_all(JUDGES, {25: found}, SMOKE if arguments.smoke else "")
    title = f"{sizes.sites} sites by {sizes.months} months, {sizes.visits} counts, made up"
    return Outcome(
        {"FedMissEM, the paper's settings": fitted.curves},
        {"fig2_shape.png": fig2.trend_figure(totals, visits.seen, title)},
        verdicts,
        {**sizes.config(), "found": found},
    )


def rank_two(matrix: np.ndarray) -> np.ndarray:
    """Return the best approximation of rank 2, which is what the server's start stands for."""
    # By the small Gram matrix, as a whole decomposition would take minutes at the paper's size.
    _, vectors = np.linalg.eigh(matrix.T @ matrix)
    basis = vectors[:, -fig2.RANK :]
    return matrix @ basis @ basis.T
