"""Logistic regression on MNIST of 1,000 clients with two digits each: "about 81 %" by FLUTE.

FLUTE's comparison of simulators (cv_lr_mnist) takes FedML's data, which are those of FedProx: all
70,000 images of MNIST, every pixel standardised, ten to each client, five of each of two digits,
and the others in shares that follow a log-normal law. A tenth of every client's images are tested
on. The outputs pass a sigmoid before the softmax.

Deviation: images come in the order of `datasets.load`, not in that of the file "MNIST original",
which can no longer be fetched; random numbers are this project's.
"""

from typing import Any

import jax
import numpy as np
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.reproductions import rows
from experiments.reproductions.rows import Printed
from fedjax_sim import datasets, problems
from fedjax_sim.problems import Supervised
from fedjax_sim.systems import fedavg

STUDY = Study(
    full=Sizes(5, dataset="mnist", clients=1000, rounds=100),
    smoke=Sizes(2, dataset="digits", clients=20, rounds=3, words="digits, 20 clients"),
)
PRINTED = Printed(
    "FLUTE, LR_MNIST",
    "microsoft/msrflute, README.md and experiments/cv_lr_mnist, commit 8bfe085 of 2023-08-23",
    '"LR_MNIST ... ~81": 1000 clients, 10 a round, batches of 10, SGD, lr 0.03, 1 epoch, 100 '
    "rounds",
    number=81.0,
    digit=1.0,
)
CLASSES = 10


class Sigmoids(nn.Module):
    """A linear layer whose outputs pass a sigmoid, with the first weights of torch's."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute outputs `[..., 10]` of pixels `[..., D]`."""
        first = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        return nn.sigmoid(nn.Dense(CLASSES, kernel_init=first, bias_init=_first_bias(x))(x))


def _first_bias(x: jax.Array) -> Any:
    bound = 1 / np.sqrt(x.shape[-1])
    return lambda key, shape, dtype=np.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


def owners(labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Deal images as FedProx does: the client of each of n images, -1 for those left over.

    Client u has digits u and u + 1 modulo 10: first five images of each, then, as far as they
    last, a share of the others that is log-normal with standard deviation 2 of its logarithm.
    """
    of_digit = [np.flatnonzero(labels == digit) for digit in range(CLASSES)]
    dealt, owner = np.zeros(CLASSES, int), np.full(len(labels), -1)

    def deal(user: int, digit: int, number: int) -> None:
        owner[of_digit[digit][dealt[digit] : dealt[digit] + number]] = user
        dealt[digit] += number

    pairs = [(user, j, (user + j) % CLASSES) for user in range(num_clients) for j in range(2)]
    for user, _, digit in pairs:
        deal(user, digit, 5)
    left = np.array([len(each) for each in of_digit]) - num_clients
    shares = rng.lognormal(0.0, 2.0, (CLASSES, num_clients // CLASSES, 2))
    shares *= (left / shares.sum(axis=(1, 2)))[:, None, None]
    for user, j, digit in pairs:
        number = int(shares[digit, user // CLASSES, j])
        if dealt[digit] + number < len(of_digit[digit]):
            deal(user, digit, number)
    return owner


def problem_of(data: datasets.Dataset, num_clients: int, seed: int) -> Supervised:
    """Make the problem of a seed, which draws the shares and the images that are tested on."""
    rng = np.random.default_rng(seed)
    images = np.concatenate([data.train_images, data.test_images]).astype("float32")
    images = images.reshape(len(images), -1)
    images = (images - images.mean(0)) / (images.std(0) + 0.001)
    labels = np.concatenate([data.train_labels, data.test_labels]).astype("int32")
    owner = owners(labels, num_clients, rng)
    is_test = np.zeros(len(labels), bool)
    for user in range(num_clients):
        held = rng.permutation(np.flatnonzero(owner == user))
        is_test[held[int(0.9 * len(held)) :]] = True
    train, test = (owner >= 0) & ~is_test, (owner >= 0) & is_test
    return problems.supervised(
        Sigmoids(),
        problems.cross_entropy,
        (images[train], labels[train]),
        clients=owner[train].tolist(),
        test=(images[test], labels[test]),
        metrics={"accuracy": problems.is_right},
    )


def run(arguments: Arguments) -> Outcome:
    """Run the source's settings."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    settings: dict[str, Any] = {"local_epochs": 1, "batch_size": 10, "lr": 0.03}
    settings |= {"weighting": "examples", "sampling": "reshuffled"}
    hyper = fedavg.Hyper(num_clients=sizes.clients, num_selected=10, **settings)
    run = fedjax_sim.sweep(
        fedavg.system,
        [problem_of(data, sizes.clients, seed) for seed in range(sizes.seeds)],
        hyper,
        seeds=sizes.seeds,
        budget=fedjax_sim.Ticks(sizes.rounds),
        num_evals=5,
        **arguments.kept("fedavg"),
    )
    ours = Sample.of(100 * run.curves.accuracy.isel(eval=-1).values.ravel())
    facts = sizes.config() | {"ours": ours}
    text = rows.report([(PRINTED, ours)], is_smoke=arguments.smoke)
    return Outcome({"fedavg": run.curves}, {}, [], facts, text)
