"""The Dirichlet split that FedMA's code has handed down (Wang et al. 2020, arXiv 2002.06440)."""

from typing import Any

import numpy as np

from fedjax_sim.core.settings import ConfigError

TRIES = 1_000


def capped_dirichlet(
    labels: np.ndarray, num_clients: int, alpha: float, rng: Any, *, least: int
) -> list[np.ndarray]:
    """Deal each class in Dirichlet shares, nothing to clients that have the mean number already.

    All is drawn again until everyone has enough.

    Args:
      labels: Classes from 0, `i[n]`.
      num_clients: Number of clients.
      alpha: Concentration.
      rng: A NumPy `RandomState` or `Generator`, which the source's code seeds.
      least: Least number of examples of a client.

    Returns:
      The examples of each client, class by class.

    Raises:
      ConfigError: If no draw gives everyone enough.
    """
    mean = len(labels) / num_clients
    for _ in range(TRIES):
        held = [np.zeros(0, int) for _ in range(num_clients)]
        for label in range(int(labels.max()) + 1):
            examples = np.flatnonzero(labels == label)
            rng.shuffle(examples)
            share = rng.dirichlet(np.full(num_clients, alpha)) * [len(each) < mean for each in held]
            ends = (np.cumsum(share / share.sum()) * len(examples)).astype(int)[:-1]
            pieces = np.split(examples, ends)
            held = [np.append(each, some) for each, some in zip(held, pieces, strict=True)]
        if min(map(len, held)) >= least:
            return held
    allowed = f"enough to split by Dirichlet({alpha:g})"
    raise ConfigError("number of training examples", len(labels), allowed)
