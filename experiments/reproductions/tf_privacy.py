"""DP-SGD on MNIST: accuracies and epsilons of TensorFlow Privacy's tutorial.

DP-SGD is FedAvg with Gaussian noise where every client has one example: 256 of 60,000 clients make
one step from the server's model, their progress is clipped to lr C, and the server adds noise
of standard deviation z lr C to the sum. Epsilons are those of Poisson sampling at rate 256 / 60,000
and delta = 1e-5, from Renyi divergences and by the tutorial's conversion. The simulator's own
conversion is tighter; its epsilons are printed below the table.

Deviation: mini-batches are drawn from all examples anew, not from a shuffled epoch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from scipy.special import gammaln, logsumexp

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study
from experiments.reproductions import rows
from experiments.reproductions.rows import SMALL, Printed
from fedjax_sim import datasets, problems
from fedjax_sim.kernels.convolution import auto
from fedjax_sim.problems import Supervised
from fedjax_sim.server.privacy import FixedClipping
from fedjax_sim.systems import fedavg

STUDY = Study(
    full=Sizes(3, dataset="mnist", batch=256, epochs=1.0),
    smoke=Sizes(2, dataset="digits", batch=16, epochs=0.001, words="handwritten digits, 2 steps"),
)
SOURCE = "tensorflow/privacy, tutorials/README.md, commit 03035d5 of 2026-04-06"
AVERAGED = "averaged over 10 runs, its standard deviation is less than .3% in all cases"


class Setting(NamedTuple):
    """A row of the tutorial's table.

    Attributes:
      lr: Learning rate.
      noise: Noise multiplier z; 0 for SGD without clipping.
      clip: Clipping threshold C.
      epochs: Number of epochs.
      epsilon: The printed epsilon; 0 if there is none.
      accuracy: The printed accuracy, in percent.
    """

    lr: float
    noise: float
    clip: float
    epochs: int
    epsilon: float
    accuracy: float


SETTINGS: Mapping[str, Setting] = {
    "no privacy": Setting(0.1, 0.0, 0.0, 20, 0.0, 99.0),
    "eps 1.19": Setting(0.25, 1.3, 1.5, 15, 1.19, 95.0),
    "eps 3.01": Setting(0.15, 1.1, 1.0, 60, 3.01, 96.6),
    "eps 7.10": Setting(0.25, 0.7, 1.5, 45, 7.10, 97.0),
}
ONLY = tuple(SETTINGS)
"""What `--only` may name."""
EXAMPLES, BATCH, DELTA = 60_000, 256, 1e-5


class Network(nn.Module):
    """The tutorial's network of two convolutions."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute logits `[..., 10]` of images `[..., H, W, 1]`."""
        small = x.shape[-2] < 28
        for features, size, padding in ((16, 8, "SAME"), (32, 4, "SAME" if small else "VALID")):
            window = (size, size)
            convolve = nn.Conv(features, window, 2, padding, conv_general_dilated=auto)
            x = nn.max_pool(nn.relu(convolve(x)), (2, 2), (1, 1))
        x = nn.relu(nn.Dense(32)(x.reshape(*x.shape[:-3], -1)))
        return nn.Dense(10)(x)


def epsilon_of(setting: Setting) -> float:
    """Compute the epsilon of a row as the tutorial did.

    Renyi divergences of the Poisson-sampled Gaussian mechanism at whole orders (Mironov et al.
    2019, arXiv 1908.10530, Sec. 3.3), converted by Mironov (2017, arXiv 1702.07476, Prop. 3).
    """
    rate, steps = BATCH / EXAMPLES, setting.epochs * (EXAMPLES // BATCH)
    found = []
    for order in range(2, 65):
        k = np.arange(order + 1)
        choices = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        drawn = k * np.log(rate) + (order - k) * np.log1p(-rate)
        divergence = logsumexp(choices + drawn + k * (k - 1) / (2 * setting.noise**2))
        found.append((steps * divergence - np.log(DELTA)) / (order - 1))
    return float(min(found))


def accounted_epsilon(setting: Setting) -> float:
    """Compute the epsilon of a row by the simulator, whose conversion is tighter."""
    private = FixedClipping(clip=setting.clip, noise=setting.noise, delta=DELTA)
    settings: dict[str, Any] = {"local_steps": 1, "sampling": "reshuffled", "privacy": private}
    settings |= {"num_selected": BATCH, "selection": "poisson"}
    hyper = fedavg.Hyper(num_clients=EXAMPLES, **settings)
    steps = setting.epochs * (EXAMPLES // BATCH)
    spent = private.epsilon_of(hyper, np.array([0, steps]), None)
    assert spent is not None
    return float(np.asarray(spent)[-1])


def problem_of(data: datasets.Dataset) -> Supervised:
    """Make the problem: one client for each training image."""
    images, labels = data.train_images.astype("float32") / 255, data.train_labels.astype("int32")
    tested = data.test_images.astype("float32") / 255, data.test_labels.astype("int32")
    return problems.supervised(
        Network(),
        problems.cross_entropy,
        (images, labels),
        clients=range(len(labels)),
        test=tested,
        metrics={"accuracy": problems.is_right},
    )


def run(arguments: Arguments) -> Outcome:
    """Compute the epsilons, and train with the settings of the rows that are asked for."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    problem = problem_of(data)
    found: list[tuple[Printed, Sample]] = []
    runs: dict[str, fedjax_sim.Run] = {}
    for name in arguments.chosen(ONLY):
        setting = SETTINGS[name]
        settings: dict[str, Any] = {"local_steps": 1, "batch_size": 1, "sampling": "reshuffled"}
        if setting.noise:
            private = FixedClipping(clip=setting.lr * setting.clip, noise=setting.noise)
            settings["privacy"] = private
        hyper = fedavg.Hyper(
            num_clients=len(data.train_labels), num_selected=sizes.batch, lr=setting.lr, **settings
        )
        steps = setting.epochs * (len(data.train_labels) // sizes.batch)
        runs[name] = fedjax_sim.sweep(
            fedavg.system,
            problem,
            hyper,
            seeds=sizes.seeds,
            budget=fedjax_sim.Ticks(max(2, round(steps * sizes.epochs))),
            num_evals=2 if arguments.smoke else setting.epochs,
            **arguments.kept(name),
        )
    curves = {name: run.curves for name, run in runs.items()}
    for name in curves:
        setting = SETTINGS[name]
        cells = f"{setting.lr:g} | {setting.noise:g} | {setting.clip:g} | 256 | {setting.epochs}"
        quote = f'"{cells} | {setting.epsilon or "no privacy"} | {setting.accuracy}%"'
        if setting.noise:
            exact = Printed(f"{name}: epsilon", SOURCE, quote, setting.epsilon, 0.01, 1, **SMALL)
            found.append((exact, rows.exact(epsilon_of(setting))))
        ours = Sample.of(100 * curves[name].accuracy.isel(eval=-1).values.ravel())
        row = Printed(name, SOURCE, f"{quote}, {AVERAGED}", setting.accuracy, 0.1, runs=10)
        found.append((row, ours))
    facts = sizes.config() | {"ours": {printed.name: sample for printed, sample in found}}
    facts["accounted"] = {
        name: accounted_epsilon(setting) for name, setting in SETTINGS.items() if setting.noise
    }
    own = ", ".join(f"{name}: {value:.2f}" for name, value in facts["accounted"].items())
    text = rows.report(found, is_smoke=arguments.smoke) + f"\n\nAccounted by the simulator: {own}"
    return Outcome(curves, {}, [], facts, text, panel=arguments.panel)
