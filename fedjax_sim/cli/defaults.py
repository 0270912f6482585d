"""Defaults of the command line for each data set."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_sim.datasets import is_text


class Defaults(NamedTuple):
    """Defaults of one data set.

    Settings that are not listed here keep the defaults of the systems, or the values of a preset.

    Attributes:
      model: Name of the network.
      time_budget: Virtual time to simulate.
      settings: Fields of `Hyper`; each system takes those that it has.
      paper: Further ones with the preset "paper".
      tuned: Fields of `Hyper` of single systems with that preset, under whose clock they were
        chosen.
      preset: Name of the preset that is used, or None.
      augmentation: Name of the augmentation of training images.
      mean: Subtracted from images scaled to [0, 1]: one number, or one per channel.
      std: Divisor of the difference: one number, or one per channel.
      em_time_budget: Virtual time for systems of expectation maximisation, whose rounds take 1.
      em_settings: Fields of `Hyper` for systems of expectation maximisation.
      partition: Name of the partition.
    """

    model: str
    time_budget: float
    settings: dict[str, Any]
    paper: Mapping[str, Any] = {}
    tuned: Mapping[str, Mapping[str, float]] = {}
    augmentation: str = "none"
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    em_time_budget: float = 2000.0
    em_settings: Mapping[str, Any] = {}
    partition: str = "classes"
    preset: str | None = None


PAPER_TIME = 5
"""Factor of time budgets with the preset "paper" of slower clients and servers.

Those of FAVANO's experiments follow."""

OTHERS = Defaults(model="mlp32", time_budget=1000.0, settings={"temperature": 0.05})
"""Defaults of any data set that is not listed: FAVANO's experiment on MNIST (arXiv 2305.16099,
Sec. 5), with FA-LD's temperature."""

CIFAR10 = Defaults(
    model="resnet20",
    time_budget=2000.0,
    settings={},
    paper={"lr": 0.005},
    augmentation="crop_flip",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)
"""FAVANO's experiment on CIFAR-10, with the public QuAFL code's crop, flip and normalisation."""

TINY_IMAGENET = Defaults(
    model="resnet18",
    time_budget=2000.0,
    settings={},
    paper={"lr": 0.1},
    augmentation="flip",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
"""FAVANO's experiment on TinyImageNet. The normalisation is the usual one of ImageNet, as the paper
only calls it "standard"."""

TEXT = Defaults(
    model="char_lstm",
    time_budget=200.0,
    settings={"num_clients": 40, "batch_size": 32},
    partition="natural",
)
"""Any text: the network and the number of clients of hierarchical FL's Fig. 11 (arXiv 2302.04851).
Learning rates have not been tuned."""

SYNTHETIC = Defaults(
    model="logistic",
    time_budget=4000.0,
    settings={"num_clients": 30, "batch_size": 10, "lr": 0.01, "temperature": 0.05},
    partition="natural",
)
"""FedProx's experiments on Synthetic(alpha, beta) (arXiv 1812.06127, Sec. 5.1): the model, the
number of clients, the batches and the learning rate."""

DEFAULTS: dict[str, Defaults] = {
    # 1437 training images are too few for the papers' 100 clients: with two classes each, a client
    # would hold 14 images. Kept from FAVANO's experiment are the time budget and the fifth of the
    # clients that is selected; sizes are smaller. With the preset "paper", learning rates, and
    # FedBuff's server learning rate, are those that `baselines/digits` of the experiments chooses
    # for each system on validation images. FA-LD's step size equals a learning rate of 0.07 divided
    # by n; 2e-5, 5e-5, 1e-4 and 2e-4 all reach 0.96 (two seeds), larger ones sooner.
    "digits": Defaults(
        model="mlp32",
        time_budget=1000.0,
        settings={
            "num_clients": 30,
            "num_selected": 6,
            "buffer_size": 5,
            "concurrency": 6,
            "num_tasks": 6,
            "local_steps": 10,
            "batch_size": 16,
            "step_size": 5e-5,
            "temperature": 0.05,
        },
        tuned={
            "fedavg": {"lr": 0.5},
            "quafl": {"lr": 0.5},
            "fedbuff": {"lr": 0.5, "server_lr": 1.0},
            "favano": {"lr": 0.7},
        },
        em_settings={"num_clients": 10},
    ),
    "cifar10": CIFAR10,
    "cifar10_jpeg": CIFAR10,
    "cifar100": CIFAR10._replace(partition="pachinko"),
    "tiny_imagenet": TINY_IMAGENET,
    "tinyimagenet_subset_jpeg": TINY_IMAGENET,
}


def defaults_of(dataset: str, preset: str | None = None) -> Defaults:
    """Look up the defaults of a data set, with those of a preset.

    Args:
      dataset: Its name on the command line. A user's own .npz file gets the defaults of the data
        set that is called like the file, without path and ending.
      preset: The name that the user gives, or None.
    """
    name = Path(dataset.removeprefix("npz:")).stem if dataset.endswith(".npz") else dataset
    found = SYNTHETIC if dataset.startswith("synthetic_") else DEFAULTS.get(name, OTHERS)
    found = TEXT if is_text(dataset) else found
    if preset is None:
        return found._replace(tuned={})
    settings, time = {**found.settings, **found.paper}, PAPER_TIME * found.time_budget
    return found._replace(settings=settings, time_budget=time, preset=preset)
