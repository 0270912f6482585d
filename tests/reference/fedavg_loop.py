"""FedAvg as a slow loop in plain NumPy: the server waits for everyone in the cohort."""

from collections.abc import Callable

import numpy as np

from tests.reference.record import Record


def run(
    *,
    start: np.ndarray,
    num_clients: int,
    cohorts: list[list[int]],
    interact: float,
    num_steps: int,
    lr: float,
    runtime: Callable[[int, int, int], float],
    gradient: Callable[[int, int, np.ndarray], np.ndarray],
) -> list[Record]:
    """Simulate one round per cohort.

    Args:
      start: The initial model.
      num_clients: Number of clients.
      cohorts: Clients of each round.
      interact: Time of the exchange at the end of a round.
      num_steps: K.
      lr: Learning rate.
      runtime: From round, client and q to the time of local step q.
      gradient: As in the FAVANO loop.
    """
    server, clock = start.copy(), 0.0
    ever = [0] * num_clients
    received = [start.copy() for _ in range(num_clients)]
    records = []
    for number, cohort in enumerate(cohorts):
        models, finishes = [], []
        for i in cohort:
            received[i] = server.copy()
            model, finish = server.copy(), clock
            for q in range(num_steps):
                finish += runtime(number, i, q)
                model = model - lr * gradient(i, ever[i], model)
                ever[i] += 1
            models.append(model)
            finishes.append(finish)
        clock = max(finishes) + interact
        server = np.mean(models, axis=0)
        variance = sum(float(np.sum((model - server) ** 2)) for model in received)
        records.append(
            Record(
                clock,
                list(cohort),
                [num_steps] * len(cohort),
                [number] * len(cohort),
                server.copy(),
                variance,
            )
        )
    return records
