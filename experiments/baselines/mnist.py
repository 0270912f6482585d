"""The standard algorithms on MNIST with labels split by Dirichlet(0.1) and Dirichlet(1).

100 clients and a perceptron 784-32-10 on inputs in [0, 1]. The protocol is that of
`fedjax_sim.studies.tuning`; no claim of a paper is judged.
"""

from experiments.baselines.setup import BOTH, ONE, RATES, Comparison, compare
from experiments.harness import Arguments, Outcome, Sizes, Study
from fedjax_sim import models

FULL = Sizes(
    10,
    dataset="mnist",
    time_budget=10_000.0,
    clients=100,
    tuning_seeds=2,
    batch=32,
    rates=RATES,
    splits=BOTH,
)
SMOKE = FULL.replace(
    seeds=2,
    dataset="digits",
    time_budget=200.0,
    clients=20,
    tuning_seeds=1,
    batch=8,
    splits=ONE,
    words="handwritten digits, 20 clients",
)
COMPARISON = Comparison(
    Study(FULL, SMOKE),
    network=lambda num_classes: models.MLP((32,), num_classes),
    targets=(0.8, 0.9, 0.95),
)


def run(arguments: Arguments) -> Outcome:
    """Tune and compare all methods."""
    return compare(COMPARISON, arguments)
