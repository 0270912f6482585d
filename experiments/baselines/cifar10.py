"""The standard algorithms on CIFAR-10 with labels split by Dirichlet(0.1) and Dirichlet(1).

50 clients and LeNet-5 on normalised images, without augmentation. The protocol is that of
`experiments.harness.comparison`; no claim of a paper is judged.
"""

from experiments.baselines.setup import BOTH, ONE, RATES, Comparison, compare
from experiments.favano.setup import CIFAR10
from experiments.harness import Arguments, Outcome, Sizes, Study
from fedjax_sim import models

COMPARISON = Comparison(
    Study(
        full=Sizes(
            10,
            dataset="cifar10",
            time_budget=20_000.0,
            clients=50,
            tuning_seeds=2,
            batch=32,
            rates=RATES,
            splits=BOTH,
        ),
        reduced=Sizes(
            2,
            dataset="cifar10",
            time_budget=2500.0,
            clients=20,
            tuning_seeds=1,
            batch=32,
            rates=(0.02, 0.05, 0.1, 0.2),
            splits=ONE,
            words="Dirichlet(0.1) alone, 20 clients, an eighth of the virtual time, 2 seeds, four "
            "learning rates tuned on one seed",
        ),
        smoke=Sizes(
            2,
            dataset="digits",
            time_budget=300.0,
            clients=20,
            tuning_seeds=1,
            batch=8,
            rates=RATES,
            splits=ONE,
            words="handwritten digits, 20 clients",
        ),
    ),
    network=models.LeNet,
    targets=(0.3, 0.4, 0.5),
    mean=CIFAR10.mean,
    std=CIFAR10.std,
)


def run(arguments: Arguments) -> Outcome:
    """Tune and compare all methods."""
    return compare(COMPARISON, arguments)
