"""FedBuff as slow event loops in plain NumPy.

In `run` the server blocks reporting clients until it has acted; in `run_free` clients never wait.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Record(NamedTuple):
    """What the server saw at one action.

    Attributes:
      time: Time of the action.
      clients: Clients whose updates it used.
      versions: Server versions that these updates started from.
      model: The server's model after the action.
      client_variance: Sum of squared distances of the models that clients work from after the
        action to the server's.
    """

    time: float
    clients: list[int]
    versions: list[int]
    model: np.ndarray
    client_variance: float


class Update(NamedTuple):
    """A client's work in progress.

    Attributes:
      finish: Time at which it ends.
      lot: Number from 0 to 1; of updates that end at the same time the smallest comes first.
      base: Model that it started from.
      version: Server version of that model.
    """

    finish: float
    lot: float
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
    """Simulate a server that takes the earliest updates and blocks their clients meanwhile.

    Args:
      start: The initial model.
      num_clients: Number of clients.
      num_actions: Number of server actions.
      buffer_size: Z.
      interact: Time of the exchange.
      num_steps: K.
      lr: Learning rate of clients.
      server_lr: Learning rate of the server.
      restart: "after_interaction", when the exchange is over; "own_finish", when the update is done
        (clients are not blocked); or "fresh", when everyone begins again after the exchange.
      send_old_model: Whether clients get the model from before the action.
      duration: From client and number to the time of the client's update with that number; for
        "fresh", the number is that of the server action.
      tie: From client and number to a number from 0 to 1 by which equal finishes are ordered. The
        number of an update that joins others of which some were taken is scaled to the range above
        theirs.
      gradient: As in the FAVANO loop.
    """
    server, clock = start.copy(), 0.0
    ever, number = [0] * num_clients, [0] * num_clients
    work = [Update(duration(i, 0), tie(i, 0), start.copy(), 0) for i in range(num_clients)]
    last = (-1.0, 0.0)
    records = []
    for action in range(num_actions):
        queue = sorted(range(num_clients), key=lambda i: (work[i].finish, work[i].lot))
        reporting = queue[:buffer_size]
        buffer = []
        for i in reporting:
            model = work[i].base.copy()
            for _ in range(num_steps):
                model = model - lr * gradient(i, ever[i], model)
                ever[i] += 1
            buffer.append(work[i].base - model)
        last = max(last, max((work[i].finish, work[i].lot) for i in reporting))
        began = clock
        clock = max(clock, max(work[i].finish for i in reporting)) + interact
        old, server = server, server - server_lr * np.mean(buffer, axis=0)
        versions = [work[i].version for i in reporting]
        for i in reporting:
            number[i] += 1
            again = max(began, work[i].finish) if restart == "own_finish" else clock
            base, version = (old, action) if send_old_model else (server, action + 1)
            finish, lot = again + duration(i, number[i]), tie(i, number[i])
            if finish == last[0]:
                lot = last[1] + (1 - last[1]) * lot
            work[i] = Update(finish, lot, base.copy(), version)
        if restart == "fresh":
            work = [
                each._replace(finish=clock + duration(i, action + 1), lot=tie(i, action + 1))
                for i, each in enumerate(work)
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
    """Simulate clients that continue immediately, from the newest model.

    The arguments are those of `run`, except that `tie` is a function of client and number.
    """
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
