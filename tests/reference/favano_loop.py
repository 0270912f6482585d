"""FAVANO as a slow event loop in plain NumPy, written from the paper's Algorithm 1.

Every client advances in time, step by step.
"""

import heapq
from collections.abc import Callable

import numpy as np

from tests.reference.record import Record


def run(
    *,
    start: np.ndarray,
    cohorts: list[list[int]],
    period: float,
    max_steps: int,
    lr: float,
    runtime: Callable[[int, int, int], float],
    gradient: Callable[[int, int, np.ndarray], np.ndarray],
    alpha: Callable[[int, int, int], float],
) -> list[Record]:
    """Simulate one server action per cohort.

    Args:
      start: The initial model.
      cohorts: Clients of each action.
      period: Time between two actions.
      max_steps: K.
      lr: Learning rate.
      runtime: From client, contact and q to the time of local step q after the client's contact
        with that number; contact 0 is the start.
      gradient: From client, k and model to the gradient of the client's k-th local step so far.
      alpha: From action, client and steps to the reweighting.
    """
    num_clients = 1 + max(max(cohort) for cohort in cohorts)
    server = start.copy()
    base = [start.copy() for _ in range(num_clients)]
    local = [start.copy() for _ in range(num_clients)]
    steps = [0] * num_clients  # Since the last contact.
    ever = [0] * num_clients
    contact = [0] * num_clients
    version = [0] * num_clients
    finish = [(runtime(i, 0, 0), i) for i in range(num_clients)]
    heapq.heapify(finish)
    records = []
    for action, cohort in enumerate(cohorts):
        clock = (action + 1) * period
        # Local steps that end by now, in order of time. A client has one step in progress or idles.
        while finish and finish[0][0] <= clock:
            now, i = heapq.heappop(finish)
            local[i] = local[i] - lr * gradient(i, ever[i], local[i])
            steps[i] += 1
            ever[i] += 1
            if steps[i] < max_steps:
                heapq.heappush(finish, (now + runtime(i, contact[i], steps[i]), i))
        reports = []
        for i in cohort:
            if steps[i] > 0:
                reports.append(base[i] + (local[i] - base[i]) / alpha(action, i, steps[i]))
            else:
                reports.append(base[i])
        seen = ([steps[i] for i in cohort], [version[i] for i in cohort])
        server = (server + np.sum(reports, axis=0)) / (len(cohort) + 1)
        for i in cohort:
            base[i], local[i] = server.copy(), server.copy()
            steps[i], version[i] = 0, action + 1
            contact[i] += 1
            # The step in progress is dropped.
            finish = [(time, j) for time, j in finish if j != i]
            finish.append((clock + runtime(i, contact[i], 0), i))
        heapq.heapify(finish)
        variance = sum(float(np.sum((model - server) ** 2)) for model in base)
        records.append(Record(clock, list(cohort), *seen, server.copy(), variance))
    return records
