"""Hierarchical learning as slow event loops in plain NumPy.

Every client takes its steps on a separate model. In `run` servers wait for all of their clients or
groups; it is written from the algorithm's equations (arXiv 2302.04851, Eq. 5 to 13). In `run_async`
the global server waits for a number of reports.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tests.reference.cohort_loops import PLAIN, Wire
from tests.reference.record import Record


class Group:
    """A local server with its clients, each of whom trains a separate model.

    Args:
      clients: The group's clients.
      lr: Learning rate.
      gradient: From client, k and model to the gradient of the client's k-th local step so far.
      steps: From a client to its local steps in an iteration, E.
      mu: Strength of the pull to the model that a client received.
      size: From a client to its weight in the group's mean, up to a common factor.
      send: From a client and its progress in an iteration to what its local server decodes.
      is_lost: From a client and the number of an iteration of the group, to whether the client's
        model is lost.
    """

    def __init__(
        self,
        clients: list[int],
        *,
        lr: float,
        gradient: Callable[[int, int, np.ndarray], np.ndarray],
        steps: Callable[[int], int] = lambda client: 1,
        mu: float = 0.0,
        size: Callable[[int], float] = lambda client: 1.0,
        send: Callable[[int, np.ndarray], np.ndarray] = lambda client, progress: progress,
        is_lost: Callable[[int, int], bool] = lambda client, iteration: False,
    ):
        self.clients, self.lr, self.gradient, self.steps, self.mu = clients, lr, gradient, steps, mu
        self.size, self.send, self.is_lost = size, send, is_lost
        self.iterations = 0
        self.ever = dict.fromkeys(clients, 0)
        self.messages = 0

    def iterate(self, edge: np.ndarray) -> np.ndarray:
        """Let every client train from the group's model, and return the mean of their models."""
        total, sizes = np.zeros_like(edge), 0.0
        for client in self.clients:
            model = edge.copy()
            for _ in range(self.steps(client)):
                slope = self.gradient(client, self.ever[client], model)
                model = model - self.lr * (slope + self.mu * (model - edge))
                self.ever[client] += 1
            self.messages += 1
            if not self.is_lost(client, self.iterations):
                sent = edge + self.send(client, model - edge)
                total, sizes = total + self.size(client) * sent, sizes + self.size(client)
        self.iterations += 1
        return total / sizes if sizes else edge


def run(
    *,
    start: np.ndarray,
    groups: list[Group],
    shares: list[float],
    num_rounds: int,
    sync_time: Callable[[int], float],
    delay: Callable[[int, int, int], float],
    exchange: Callable[[int, int], float],
    combine: Callable[[np.ndarray, list[np.ndarray], list[int], list[float]], np.ndarray],
    least: int = 1,
    wire: Wire = PLAIN,
) -> list[Record]:
    """Simulate global rounds.

    Args:
      start: The initial model.
      groups: The groups.
      shares: Weights of the groups, of sum 1.
      num_rounds: Number of global rounds.
      sync_time: From a round's number, counted from 0, to its sync time.
      delay: From round, group and iteration to the time of that iteration.
      exchange: From round and group to the time of the group's exchange.
      combine: From the server's model, the groups' models, numbers of iterations and weights to the
        next global model.
      least: Least number of iterations of a round.
      wire: The messages between groups and the global server.
    """
    server, clock = start.copy(), 0.0
    records = []
    for number in range(num_rounds):
        known = wire.known(server)
        local = [known.copy() for _ in groups]
        counts = [0] * len(groups)
        done = [0.0] * len(groups)
        events = [(delay(number, i, 0), i) for i in range(len(groups))]
        heapq.heapify(events)
        while events:
            now, i = heapq.heappop(events)
            local[i] = groups[i].iterate(local[i])
            counts[i] += 1
            done[i] = now + exchange(number, i)
            if counts[i] < least or now < sync_time(number):
                heapq.heappush(events, (now + delay(number, i, counts[i]), i))
        clock += max(done)
        reports = [known + wire.report(i, model - known) for i, model in enumerate(local)]
        server = server + combine(known, reports, counts, shares) - known
        wire.publish(server)
        variance = sum(
            len(group.clients) * float(np.sum((model - server) ** 2))
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


class Round(NamedTuple):
    """What an asynchronous group is doing: what it started from and what will come of it.

    Attributes:
      number: Number of its round.
      version: Global version that it started from.
      base: That version's model.
      model: The model that it will report.
      count: The iterations it takes.
    """

    number: int
    version: int
    base: np.ndarray
    model: np.ndarray
    count: int


def run_async(
    *,
    start: np.ndarray,
    groups: list[Group],
    shares: list[float],
    num_actions: int,
    buffer_size: int,
    sync_time: float,
    delay: Callable[[int, int, int], float],
    exchange: Callable[[int, int], float],
    discount: Callable[[int], float],
    server_lr: float,
    is_divided: bool,
    wire: Wire = PLAIN,
) -> list[Record]:
    """Simulate groups that report when they are done.

    Args:
      start: As in `run`.
      groups: As in `run`.
      shares: As in `run`.
      num_actions: Number of actions of the global server.
      buffer_size: Reports that it waits for.
      sync_time: The sync time.
      delay: From the number of a group's round, group and iteration to the time of that iteration.
      exchange: From the number of a group's round and the group to the time of the exchange.
      discount: From the staleness of a report to a factor on its weight.
      server_lr: Learning rate of the global server.
      is_divided: Whether progress is divided by the iterations, or taken whole.
      wire: The messages between groups and the global server.
    """
    server, version = start.copy(), 0
    events: list[tuple[float, int, Round]] = []

    def begin(i: int, number: int, now: float) -> None:
        known = wire.known(server)
        model, busy, count = known.copy(), 0.0, 0
        while count == 0 or busy < sync_time:
            model = groups[i].iterate(model)
            busy += delay(number, i, count)
            count += 1
        work = Round(number, version, known.copy(), model, count)
        heapq.heappush(events, (now + (busy + exchange(number, i)), i, work))

    for i in range(len(groups)):
        begin(i, 0, 0.0)
    held = [start.copy() for _ in groups]
    buffer: list[tuple[int, Round]] = []
    records: list[Record] = []
    while len(records) < num_actions:
        now, i, done = heapq.heappop(events)
        buffer.append((i, done))
        acts = len(buffer) == buffer_size
        if acts:
            step = np.zeros_like(server)
            for j, each in buffer:
                weight = len(groups) * shares[j] * discount(version - each.version) / buffer_size
                moved = wire.report(j, each.model - each.base)
                step += weight * moved / (each.count if is_divided else 1)
            server, version = server + server_lr * step, version + 1
            wire.publish(server)
        held[i] = wire.known(server).copy()
        begin(i, done.number + 1, now)
        if acts:
            records.append(
                Record(
                    now,
                    [j for j, _ in buffer],
                    [each.count for _, each in buffer],
                    [each.version for _, each in buffer],
                    server.copy(),
                    sum(float(np.sum((each - server) ** 2)) for each in held),
                )
            )
            buffer = []
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
