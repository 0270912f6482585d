"""Hierarchical learning as a slow event loop in plain NumPy.

Every client takes its step on a separate model, and servers wait for all of their clients or
groups. Written from the algorithm's equations (arXiv 2302.04851, Eq. 5 to 13).
"""

import heapq
from collections.abc import Callable

import numpy as np

from tests.reference.record import Record


def run(
    *,
    start: np.ndarray,
    groups: list[list[int]],
    num_rounds: int,
    sync_time: Callable[[int], float],
    delay: Callable[[int, int, int], float],
    exchange: Callable[[int], float],
    combine: Callable[[np.ndarray, list[np.ndarray], list[int], list[float]], np.ndarray],
    lr: float,
    gradient: Callable[[int, int, np.ndarray], np.ndarray],
) -> list[Record]:
    """Simulate global rounds.

    Args:
      start: The initial model.
      groups: Clients of each group.
      num_rounds: Number of global rounds.
      sync_time: From a round's number, counted from 0, to its sync time.
      delay: From round, group and iteration to the time of that iteration.
      exchange: From a round's number to the time of its exchange.
      combine: From the server's model, the groups' models, numbers of iterations and shares of
        clients to the next global model.
      lr: Learning rate.
      gradient: From client, k and model to the gradient of the client's k-th local step so far.
    """
    server, clock = start.copy(), 0.0
    total = sum(len(group) for group in groups)
    ever = [0] * (1 + max(max(group) for group in groups))
    records = []
    for number in range(num_rounds):
        local = [server.copy() for _ in groups]
        counts = [0] * len(groups)
        finished = [0.0] * len(groups)
        events = [(delay(number, i, 0), i) for i in range(len(groups))]
        heapq.heapify(events)
        while events:
            now, i = heapq.heappop(events)
            reached = []
            for client in groups[i]:
                reached.append(local[i] - lr * gradient(client, ever[client], local[i]))
                ever[client] += 1
            local[i] = np.mean(reached, axis=0)
            counts[i] += 1
            finished[i] = now
            if now < sync_time(number):
                heapq.heappush(events, (now + delay(number, i, counts[i]), i))
        clock += max(finished) + exchange(number)
        server = combine(server, local, counts, [len(group) / total for group in groups])
        variance = sum(
            len(group) * float(np.sum((model - server) ** 2))
            for group, model in zip(groups, local, strict=True)
        )
        records.append(
            Record(
                clock,
                list(range(len(groups))),
                counts,
                [number] * len(groups),
                server.copy(),
                variance,
            )
        )
    return records


def divided_by_steps(
    server: np.ndarray, models: list[np.ndarray], counts: list[int], shares: list[float]
) -> np.ndarray:
    """Add the groups' progress, divided by their iterations (Eq. 10 and 12)."""
    return server + sum(
        share * (model - server) / count
        for share, model, count in zip(shares, models, counts, strict=True)
    )


def averaged(
    server: np.ndarray, models: list[np.ndarray], counts: list[int], shares: list[float]
) -> np.ndarray:
    """Average the groups' models."""
    return np.asarray(sum(share * model for share, model in zip(shares, models, strict=True)))


def fednova(
    server: np.ndarray, models: list[np.ndarray], counts: list[int], shares: list[float]
) -> np.ndarray:
    """Add the progress per iteration, times the mean number of iterations."""
    mean_count = sum(share * count for share, count in zip(shares, counts, strict=True))
    return server + mean_count * (divided_by_steps(server, models, counts, shares) - server)
