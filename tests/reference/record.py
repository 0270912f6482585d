"""What the reference loops of all but FedBuff leave of each server action."""

from typing import NamedTuple

import numpy as np


class Record(NamedTuple):
    """What the server saw at one action."""

    time: float
    clients: list[int]
    steps: list[int]
    versions: list[int]  # server version that each client worked from
    model: np.ndarray  # after the action
    client_variance: float  # of the models that clients hold after the action, around the server's
