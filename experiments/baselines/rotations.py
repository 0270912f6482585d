"""FedBN next to FedAvg where clients' images are turned by different angles, on the digits.

Every client holds images of all classes, turned by 0, 90, 180 or 270 degrees: features differ, and
labels do not. Both systems train one small network with batch normalisation; FedBN keeps each
client's normalisation layers. A quarter of every client's images are its test images. Learning
rates are chosen on a third of the others, with other seeds than those reported, for each system. As
images are dealt anew for each seed, those by which rates are chosen are also test images of some
reported seeds. Judged is the mean over clients of the accuracy on their own test images. No claim
of a paper is judged: Li et al. (2021, arXiv 2102.07623) use other data and other shifts.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn

import fedjax_sim
from experiments.baselines.setup import FIRST_TUNING_SEED, evaluated_by_client
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, lead, table
from fedjax_sim import SYSTEMS, datasets, problems, studies
from fedjax_sim.kernels.convolution import auto
from fedjax_sim.models import BatchNorm
from fedjax_sim.problems import Supervised
from fedjax_sim.results import plots

STUDY = Study(
    full=Sizes(10, clients=20, rounds=100, tuning_seeds=3, rates=(0.03, 0.1, 0.3, 1.0)),
    smoke=Sizes(2, clients=4, rounds=4, tuning_seeds=1, rates=(0.1, 0.3), words="4 clients"),
)
METRIC = "personal_accuracy"
"""Mean over clients of the accuracy of their models on their own test images."""


class Network(nn.Module):
    """Two convolutions with batch normalisation."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Compute logits `[..., 10]` of images `[..., 8, 8, 1]`."""
        for features, strides in ((16, 1), (32, 2)):
            x = nn.Conv(features, (3, 3), strides=strides, conv_general_dilated=auto)(x)
            x = nn.relu(BatchNorm()(x, train=train))
        return nn.Dense(10)(x.mean((-3, -2)))


def run(arguments: Arguments) -> Outcome:
    """Choose rates, run both systems at them, and compare."""
    sizes = STUDY.choose(arguments)
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    trials = [_problem(seed, sizes.clients, is_test=False) for seed in tuning]
    tests = [_problem(seed, sizes.clients, is_test=True) for seed in range(sizes.seeds)]
    shared = {"num_clients": sizes.clients, "num_selected": sizes.clients, "local_steps": 5}
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(sizes.rounds), "num_evals": 20}
    curves, rates, finals = {}, {}, {}
    for name in ("fedavg", "fedbn"):
        system = SYSTEMS[name] if name == "fedbn" else evaluated_by_client(SYSTEMS[name])
        hyper = system.Hyper(**shared, batch_size=16)
        criterion = studies.Criterion(METRIC)
        tuned, tested = studies.tune_and_run(
            studies.Contestant(system, hyper, {"lr": sizes.rates}),
            trials,
            tests,
            tuning_seeds=tuning,
            seeds=range(sizes.seeds),
            criterion=criterion,
            widenings=0 if arguments.smoke else 2,
            kept=lambda sweep, name=name: arguments.kept(f"{name}, {sweep}"),  # type: ignore[misc]
            options=options,
        )
        rates[name], curves[name] = tuned.choice["lr"], tested.curves
        finals[name] = Sample.of(100 * criterion.values(curves[name]).values)
    ahead = lead(finals["fedbn"], finals["fedavg"])
    rows = [[name, f"{rates[name]:g}", str(finals[name])] for name in finals]
    text = table(["system", "rate", "own test images, %"], rows) + f"\n\nFedBN - FedAvg: {ahead}"
    figure = plots.curves_figure(
        {name: each.assign(accuracy=each[METRIC]) for name, each in curves.items()},
        "accuracy",
        against="ticks",
        title="digits turned by client, own rates",
    )
    facts = sizes.config() | {"rates": rates, "finals": finals, "lead": str(ahead)}
    return Outcome(curves, {"accuracy.png": figure}, [], facts, text)


def _problem(seed: int, num_clients: int, *, is_test: bool) -> Supervised:
    """Make the problem of a seed, with the test images or with images of training to choose by."""
    digits = datasets.load("digits")
    images = np.concatenate([digits.train_images, digits.test_images]).astype("float32") / 255
    labels = np.concatenate([digits.train_labels, digits.test_labels]).astype("int32")
    order = np.random.default_rng(seed).permutation(len(labels))
    clients = np.arange(len(labels)) % num_clients
    turned = np.stack(
        [
            np.rot90(image, k=int(client % 4))
            for image, client in zip(images[order], clients, strict=True)
        ]
    )
    place = np.arange(len(labels)) // num_clients  # among the images of its client
    tested = place % 4 == 0
    kept = np.ones(len(labels), bool) if is_test else ~tested
    out = tested if is_test else place % 3 == 1

    def part(rows: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], Sequence[int]]:
        return (turned[rows], labels[order][rows]), clients[rows].tolist()

    (data, owners), (test, test_owners) = part(kept & ~out), part(kept & out)
    return problems.supervised(
        Network(),
        problems.cross_entropy,
        data,
        clients=owners,
        test=test,
        test_clients=test_owners,
        metrics={"accuracy": problems.is_right},
    )
