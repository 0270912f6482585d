"""QuAFL as a slow event loop in plain NumPy.

Clients mix the server's model into theirs. Messages are decoded with the receiver's model.
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
    code: Callable[..., np.ndarray] = lambda model, reference, *of_message: model,
) -> list[Record]:
    """Simulate one server action per cohort; the arguments are those of the FAVANO loop.

    `code` returns the decoded model, of a model, the receiver's model, the action, the client, and
    "up" or "down".

    The version of a client's work is the server version made at its last contact.
    """
    num_clients = 1 + max(max(cohort) for cohort in cohorts)
    server = start.copy()
    models = [start.copy() for _ in range(num_clients)]  # Advancing.
    mixed = [start.copy() for _ in range(num_clients)]  # After the last contact.
    steps, ever, contact, version = ([0] * num_clients for _ in range(4))
    restarted = [0] * num_clients  # Number of restarts, to recognise old events in the heap.
    events = [(runtime(i, 0, 0), i, 0) for i in range(num_clients)]
    heapq.heapify(events)
    records = []
    for action, cohort in enumerate(cohorts):
        clock = (action + 1) * period
        while events and events[0][0] <= clock:
            now, i, restart = heapq.heappop(events)
            if restart != restarted[i]:
                continue  # Interrupted by a contact.
            models[i] = models[i] - lr * gradient(i, ever[i], models[i])
            steps[i] += 1
            ever[i] += 1
            if steps[i] < max_steps:
                heapq.heappush(events, (now + runtime(i, contact[i], steps[i]), i, restart))
        s = len(cohort)
        old = server
        reports = [code(models[i], old, action, i, "up") for i in cohort]
        server = old / (s + 1) + sum(reports) / (s + 1)
        seen = ([steps[i] for i in cohort], [version[i] for i in cohort])
        for i in cohort:
            known = code(old, mixed[i], action, i, "down")
            models[i] = known / (s + 1) + s / (s + 1) * models[i]
            mixed[i] = models[i].copy()
            steps[i], version[i] = 0, action + 1
            contact[i] += 1
            restarted[i] += 1
            heapq.heappush(events, (clock + runtime(i, contact[i], 0), i, restarted[i]))
        variance = sum(float(np.sum((model - server) ** 2)) for model in mixed)
        records.append(Record(clock, list(cohort), *seen, server.copy(), variance))
    return records
