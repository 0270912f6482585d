"""Asynchronous servers as slow loops in plain NumPy, written from their papers.

They replay the arrivals of a schedule: clients, and the server versions that they started from.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tests.reference.draws import Gradient


class Arrivals(NamedTuple):
    """What the loops are given.

    Attributes:
      start: The initial model.
      clients: Clients whose updates each server action uses, in order of arrival.
      versions: Server versions from which they started.
      num_clients: How many clients there are.
      num_steps: Local steps of an update.
      lr: Learning rate of local steps.
      gradient: From client, k and model to the gradient of the client's k-th local step so far.
    """

    start: np.ndarray
    clients: list[list[int]]
    versions: list[list[int]]
    num_clients: int
    num_steps: int
    lr: float
    gradient: Gradient

    def listed(self, models: list[np.ndarray]) -> Iterator[list[tuple[int, int, np.ndarray]]]:
        """List server actions: clients, versions and updates. models: those made so far."""
        ever = np.zeros(self.num_clients, int)
        for clients, versions in zip(self.clients, self.versions, strict=True):
            arrived = []
            for i, version in zip(clients, versions, strict=True):
                y = models[version]
                for k in range(ever[i], ever[i] + self.num_steps):
                    y = y - self.lr * self.gradient(i, k, y)
                ever[i] += self.num_steps
                arrived.append((i, version, y - models[version]))
            yield arrived


def ca2fl(arrivals: Arrivals, *, server_lr: float) -> Iterator[np.ndarray]:
    """Wang et al. 2024, Algorithm 2."""
    models = [arrivals.start]
    cached = np.zeros((arrivals.num_clients, len(arrivals.start)))
    for arrived in arrivals.listed(models):
        calibrated = sum(delta - cached[i] for i, _, delta in arrived) / len(arrived)
        models.append(models[-1] + server_lr * (cached.mean(axis=0) + calibrated))
        for i, _, delta in arrived:
            cached[i] = delta
        yield models[-1]


def fedbuff(arrivals: Arrivals, *, server_lr: float) -> Iterator[np.ndarray]:
    """Nguyen et al. 2022, Algorithm 1, without a discount."""
    models = [arrivals.start]
    for arrived in arrivals.listed(models):
        models.append(models[-1] + server_lr * np.mean([delta for *_, delta in arrived], axis=0))
        yield models[-1]


def adaptive_asyncfeded(
    arrivals: Arrivals, *, numerator: float, offset: float, wanted: float, gain: float, most: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Wang et al. 2022, Algorithm 1, with Eq. 8: models, and the steps behind each update."""
    models, ever = [arrivals.start], np.zeros(arrivals.num_clients, int)
    steps = np.full(arrivals.num_clients, arrivals.num_steps)
    for [i], [version] in zip(arrivals.clients, arrivals.versions, strict=True):
        y, did = models[version], steps[i]
        for k in range(ever[i], ever[i] + did):
            y = y - arrivals.lr * arrivals.gradient(i, k, y)
        ever[i] += did
        delta = y - models[version]
        gamma = np.linalg.norm(models[-1] - models[version]) / np.linalg.norm(delta)
        models.append(models[-1] + numerator / (gamma + offset) * delta)
        steps[i] = min(max(did + int(np.floor((wanted - gamma) * gain)), 1), most)
        yield models[-1], did


def asyncfeded(arrivals: Arrivals, *, numerator: float, offset: float) -> Iterator[np.ndarray]:
    """Wang et al. 2022, Algorithm 1, with a constant number of local steps."""
    models = [arrivals.start]
    for [(_, version, delta)] in arrivals.listed(models):
        gamma = np.linalg.norm(models[-1] - models[version]) / np.linalg.norm(delta)
        models.append(models[-1] + numerator / (gamma + offset) * delta)
        yield models[-1]
