"""Images for studies: files of packed JPEG, fewer pixels, and labels split over clients."""

import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim import datasets, partition, problems
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Classification


def load(name: str, data_dir: str | None = None) -> Dataset:
    """Load a data set; an .npz file may hold JPEG images, packed one after the other.

    Such a file has for each part, "train" and "test", the bytes of all images (`train_jpeg`), where
    each begins and the last one ends (`train_offsets`), and `train_labels`.
    """
    if not name.endswith(".npz"):
        return datasets.load(name, data_dir=data_dir)
    with np.load(name.removeprefix("npz:")) as file:
        if "train_jpeg" not in file.files:
            return datasets.load(name)
        parts = [
            part
            for which in ("train", "test")
            for part in (
                _decoded(file[f"{which}_jpeg"], file[f"{which}_offsets"]),
                file[f"{which}_labels"],
            )
        ]
    return datasets.from_arrays(*parts, name=Path(name).stem)


def _decoded(packed: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    from PIL import Image  # Only such files need it.

    pairs = itertools.pairwise(offsets)
    return np.stack(
        [np.asarray(Image.open(io.BytesIO(packed[a:b].tobytes())).convert("RGB")) for a, b in pairs]
    )


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
        network(data.num_classes), data, shares, mean=float(pixels.mean()), std=float(pixels.std())
    )
