"""Small images for studies with many runs: fewer pixels, and labels split over clients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_sim import partition, problems
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification


def pooled(data: Dataset, side: int) -> Dataset:
    """Average square blocks of pixels, so that images have `side` rows and columns."""

    def pool(images: np.ndarray) -> np.ndarray:
        number, rows, columns, channels = images.shape
        blocks = images.reshape(number, side, rows // side, side, columns // side, channels)
        return blocks.mean(axis=(2, 4)).round().astype(images.dtype)

    return data._replace(train_images=pool(data.train_images), test_images=pool(data.test_images))


def dirichlet_problems(
    network: Callable[[int], Any],
    data: Dataset,
    *,
    num_clients: int,
    alpha: float,
    seeds: Sequence[int],
) -> list[Classification]:
    """Make the problem of each seed. Inputs have mean 0 and standard deviation 1 over all.

    Args:
      network: From the number of classes to a network.
      data: The images.
      num_clients: Number of clients.
      alpha: Concentration of the Dirichlet distribution of labels over clients.
      seeds: Seeds of the split.
    """
    shares = [
        partition.dirichlet(data.train_labels, num_clients=num_clients, seed=seed, alpha=alpha)
        for seed in seeds
    ]
    pixels = data.train_images / 255
    return problems.make_classifications(
        network(data.num_classes),
        data,
        shares,
        mean=float(pixels.mean()),
        std=float(pixels.std()),
    )
