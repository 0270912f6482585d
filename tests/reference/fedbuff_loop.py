"""FedBuff as slow event loops in plain NumPy: one with a server that holds reporting clients back, one with clients that run free."""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Record(NamedTuple):
    """What the server saw at one action."""

    time: float
    clients: list[int]
    versions: list[int]
    model: np.ndarray
    client_variance: (
        float  # of the models that clients work from after the action, around the server's
    )


class Update(NamedTuple):
    """A client's work in progress."""

    finish: float
    base: np.ndarray
    version: int


def run(
    *,
    start: np.ndarray,
    num_clients: int,
    num_actions: int,
    buffer_size: int,
    interact: float,
    num_steps: int,
    lr: float,
    server_lr: float,
    restart: str,
    send_old_model: bool,
    duration: Callable[[int, int], float],
    tie: Callable[[int, int], float],
    gradient: Callable[[int, int, np.ndarray], np.ndarray],
) -> list[Record]:
    """Simulate a server that takes the earliest updates, and blocks their clients until the exchange is over.

    restart: "after_interaction", or "own_finish" for clients that are not blocked, or "fresh" if everybody begins anew when it is over.
    duration(client, number): time of the client's update of that number ("fresh": of that server action). tie(action, client): who comes
    first among equal finishes.
    """
    server, clock = start.copy(), 0.0
    ever, number = [0] * num_clients, [0] * num_clients
    work = [Update(duration(i, 0), start.copy(), 0) for i in range(num_clients)]
    records = []
    for action in range(num_actions):
        queue = sorted(
            range(num_clients), key=lambda i, action=action: (work[i].finish, tie(action, i))
        )
        reporting = queue[:buffer_size]
        buffer = []
        for i in reporting:
            model = work[i].base.copy()
            for _ in range(num_steps):
                model = model - lr * gradient(i, ever[i], model)
                ever[i] += 1
            buffer.append(work[i].base - model)
        began = clock
        clock = max(clock, max(work[i].finish for i in reporting)) + interact
        old, server = server, server - server_lr * np.mean(buffer, axis=0)
        versions = [work[i].version for i in reporting]
        for i in reporting:
            number[i] += 1
            again = max(began, work[i].finish) if restart == "own_finish" else clock
            base, version = (old, action) if send_old_model else (server, action + 1)
            work[i] = Update(again + duration(i, number[i]), base.copy(), version)
        if restart == "fresh":
            work = [
                each._replace(finish=clock + duration(i, action + 1)) for i, each in enumerate(work)
            ]
        variance = sum(float(np.sum((each.base - server) ** 2)) for each in work)
        records.append(Record(clock, reporting, versions, server.copy(), variance))
    return records


def run_free(
    *,
    start: np.ndarray,
    num_clients: int,
    num_actions: int,
    buffer_size: int,
    num_steps: int,
    lr: float,
    server_lr: float,
    duration: Callable[[int, int], float],
    tie: Callable[[int, int], float],
    gradient: Callable[[int, int, np.ndarray], np.ndarray],
) -> list[Record]:
    """Simulate clients that go on at once, from the model that is then current. tie(client, number): among equal finishes."""
    server, version = start.copy(), 0
    ever = [0] * num_clients
    bases = [(start.copy(), 0) for _ in range(num_clients)]
    arrivals = [(duration(i, 0), tie(i, 0), i, 0) for i in range(num_clients)]
    heapq.heapify(arrivals)
    buffer: list[np.ndarray] = []
    clients: list[int] = []
    versions: list[int] = []
    records: list[Record] = []
    while len(records) < num_actions:
        clock, _, i, number = heapq.heappop(arrivals)
        base, from_version = bases[i]
        model = base.copy()
        for _ in range(num_steps):
            model = model - lr * gradient(i, ever[i], model)
            ever[i] += 1
        buffer.append(base - model)
        clients.append(i)
        versions.append(from_version)
        acts = len(buffer) == buffer_size
        if acts:
            server, version = server - server_lr * np.mean(buffer, axis=0), version + 1
        bases[i] = (server.copy(), version)
        heapq.heappush(
            arrivals, (clock + duration(i, number + 1), tie(i, number + 1), i, number + 1)
        )
        if acts:
            variance = sum(float(np.sum((each - server) ** 2)) for each, _ in bases)
            records.append(Record(clock, clients, versions, server.copy(), variance))
            buffer, clients, versions = [], [], []
    return records
