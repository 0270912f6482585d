"""What the command line fills in for a data set where the user says nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_sim.datasets import is_text


class Defaults(NamedTuple):
    """Defaults of one data set; fields of the systems' Hyper that do not stand here keep the systems' own values, the papers'."""

    model: str
    time_budget: float  # units of virtual time
    settings: dict[str, Any]  # fields of Hyper; every system takes those that it has
    augmentation: str = "none"
    mean: float | tuple[float, ...] = 0.0  # of images scaled to [0, 1]: one, or one per channel
    std: float | tuple[float, ...] = 1.0
    em_time_budget: float = 2000.0  # of systems of expectation maximisation, whose rounds take 1
    em_settings: Mapping[str, Any] = {}  # theirs
    partition: str = "classes"


OTHERS = Defaults(model="mlp32", time_budget=5000.0, settings={"temperature": 0.05})
"""Any data set without an entry of its own: FAVANO's experiment on MNIST (arXiv 2305.16099, Sec. 5); FA-LD's temperature there."""

CIFAR10 = Defaults(
    model="resnet20",
    time_budget=10_000.0,
    settings={"lr": 0.005},
    augmentation="crop_flip",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)
"""FAVANO's experiment on CIFAR-10, with the public QuAFL code's crop, flip and normalisation."""

TINY_IMAGENET = Defaults(
    model="resnet18",
    time_budget=10_000.0,
    settings={"lr": 0.1},
    augmentation="flip",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
"""FAVANO's experiment on TinyImageNet; the usual normalisation of ImageNet, as the paper only says "standard"."""

TEXT = Defaults(
    model="char_lstm",
    time_budget=1000.0,
    settings={"num_clients": 40, "batch_size": 32},
    partition="natural",
)
"""Any text: the network and the number of clients of hierarchical FL's Fig. 11 (arXiv 2302.04851); learning rates are untried."""

DEFAULTS: dict[str, Defaults] = {
    # 1437 training images are too few for the papers' 100 clients: two classes each would leave 14 images a client. Kept of FAVANO's
    # experiment are learning rate 0.5, time budget, speeds and the selected fifth; sizes are smaller. Learning rates 0.02, 0.05, 0.1, 0.2
    # and 0.5 were tried with three seeds: all four systems learn at all of them, and three of four best at 0.5 (final accuracy: fedavg
    # 0.87, quafl 0.86, fedbuff 0.96, favano 0.90; fedbuff reaches 0.97 at 0.2,
    # and at 0.5 two of twelve seeds collapse). FA-LD's step size is a learning rate of 0.07 over n;
    # 2e-5, 5e-5, 1e-4 and 2e-4 all reach 0.96 (two seeds), the larger the sooner.
    "digits": Defaults(
        model="mlp32",
        time_budget=5000.0,
        settings={
            "num_clients": 30,
            "num_selected": 6,
            "buffer_size": 5,
            "local_steps": 10,
            "batch_size": 16,
            "step_size": 5e-5,
            "temperature": 0.05,
        },
        em_settings={"num_clients": 10},
    ),
    "cifar10": CIFAR10,
    "cifar10_jpeg": CIFAR10,
    "tiny_imagenet": TINY_IMAGENET,
    "tinyimagenet_subset_jpeg": TINY_IMAGENET,
}


def defaults_of(dataset: str) -> Defaults:
    """The defaults of a data set by its name on the command line; an own .npz file has those of its name without path and ending."""
    if is_text(dataset):
        return TEXT
    name = Path(dataset.removeprefix("npz:")).stem if dataset.endswith(".npz") else dataset
    return DEFAULTS.get(name, OTHERS)
