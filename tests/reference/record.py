"""What most reference loops return for each server action."""

from typing import NamedTuple

import numpy as np


class Record(NamedTuple):
    """What the server saw at one action.

    Attributes:
      time: Time of the action.
      clients: Clients that report.
      steps: Local steps behind each report.
      versions: Server version that each client worked from.
      model: The server's model after the action.
      client_variance: Sum of squared distances of the models that clients hold after the action to
        the server's.
    """

    time: float
    clients: list[int]
    steps: list[int]
    versions: list[int]
    model: np.ndarray
    client_variance: float
