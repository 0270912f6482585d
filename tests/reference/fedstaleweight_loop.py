"""FedStaleWeight and FedAsync as one slow event loop in plain NumPy: clients pull a model, train, and send; the server buffers.

Written from the papers' algorithms (arXiv 2406.02877, Alg. 1 and 2, Eq. 8; arXiv 1903.03934, Alg. 1). Arrivals are taken one by one, and
the server acts within the receipt of the update that fills its buffer.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Record(NamedTuple):
    """What the server saw at one action."""

    time: float
    clients: list[int]
    versions: list[int]  # that each update started from
    weights: list[float]
    model: np.ndarray  # after the action
    client_variance: (
        float  # of the models that clients work from after the action, around the server's
    )


class Entry(NamedTuple):
    """One update in the buffer."""

    client: int
    version: int
    base: np.ndarray  # y_0, the model pulled
    end: np.ndarray  # y_Q


Step = Callable[[np.ndarray, int, list[Entry]], tuple[np.ndarray, list[float]]]
"""From the server's model and version and a full buffer to the next model, and the weights of the slots."""


@dataclass
class Client:
    """A client at work."""

    base: np.ndarray
    version: int = 0
    number: int = 0  # of the update in progress
    ever: int = 0  # local steps it has done


def run(
    *,
    start: np.ndarray,
    num_clients: int,
    num_actions: int,
    buffer_size: int,
    pull: str,
    num_steps: int,
    lr: float,
    proximal: float = 0.0,
    duration: Callable[[int, int], float],
    tie: Callable[[int, int], float] = lambda client, number: 0.0,
    gradient: Callable[[int, int, np.ndarray], np.ndarray],
    server_step: Step,
) -> list[Record]:
    """Simulate actions of the server.

    pull: "free", at once, after the action that the own update has caused; "before_aggregation", the same but with the model from before
    that action; "new_version", but only once there is a version newer than the one just trained on; "after_interaction", at the action
    that uses the update. proximal: strength of the pull to the base model in the local loss. duration(client, number): time of an update.
    tie(client, number): among arrivals at one time the lower comes first, then the client of the lower number. gradient(client, k, model):
    of the client's k-th local step ever.
    """
    server, version = start.copy(), 0
    clients = [Client(start.copy()) for _ in range(num_clients)]
    arrivals = [(duration(i, 0), tie(i, 0), i, 0) for i in range(num_clients)]
    heapq.heapify(arrivals)
    buffer: list[Entry] = []
    waiting: list[int] = []
    records: list[Record] = []

    def train(i: int) -> np.ndarray:
        model = clients[i].base.copy()
        for _ in range(num_steps):
            model = model - lr * (
                gradient(i, clients[i].ever, model) + proximal * (model - clients[i].base)
            )
            clients[i].ever += 1
        return model

    def send_out(i: int, now: float, model: np.ndarray, model_version: int) -> None:
        own = clients[i]
        own.base, own.version, own.number = model.copy(), model_version, own.number + 1
        heapq.heappush(arrivals, (now + duration(i, own.number), tie(i, own.number), i, own.number))

    while len(records) < num_actions:
        now, _, i, _ = heapq.heappop(arrivals)
        buffer.append(Entry(i, clients[i].version, clients[i].base, train(i)))
        old, old_version = server, version
        is_full = len(buffer) == buffer_size
        if is_full:
            server, weights = server_step(server, version, buffer)
            version += 1
        if pull == "before_aggregation":
            send_out(i, now, old, old_version)
        elif pull == "free" or (pull == "new_version" and clients[i].version < version):
            send_out(i, now, server, version)
        else:
            waiting.append(i)
        if is_full:
            for j in waiting:
                send_out(j, now, server, version)
            variance = sum(float(np.sum((each.base - server) ** 2)) for each in clients)
            seen = ([each.client for each in buffer], [each.version for each in buffer])
            records.append(Record(now, *seen, weights, server.copy(), variance))
            buffer, waiting = [], []
    return records


@dataclass
class Weigher:
    """FedStaleWeight's server: the statistics of every client's staleness, and the weights of a buffer."""

    weighting: str
    average: str = "window"  # or "cumulative", "exponential", "none"
    window: int = 5
    decay: float = 0.9
    exponent: float = 0.5
    normalised: bool = True
    num_clients: int = 1
    values: dict[int, Any] = field(default_factory=dict)

    def push(self, client: int, tau: int) -> None:
        if self.weighting == "code_exact":
            known = self.values.setdefault(client, deque())
            if len(known) == 5:
                known.pop()  # The newest: the defect of the public bench.
            known.append(tau)
        elif self.average == "window":
            self.values.setdefault(client, deque(maxlen=self.window)).append(tau)
        elif self.average == "cumulative":
            self.values.setdefault(client, []).append(tau)
        else:
            before = self.values.get(client, [tau])[0]
            self.values[client] = [self.decay * before + (1 - self.decay) * tau]

    def weigh(self, clients: list[int], taus: list[int]) -> list[float]:
        for client, tau in zip(clients, taus, strict=True):
            self.push(client, tau)
        is_averaged = self.weighting == "code_exact" or (
            self.weighting in ("eq8", "alg1", "code") and self.average != "none"
        )
        size = len(clients)
        raw = []
        for client, tau in zip(clients, taus, strict=True):
            that = float(np.mean(self.values[client])) if is_averaged else float(tau)
            formulas = {
                "eq8": (that * size + 1) / self.num_clients,
                "alg1": (that + 1) / self.num_clients,
                "code": that * size / self.num_clients,
                "code_exact": that,
                "mean": 1.0,
                "polynomial": (1 + that) ** -self.exponent,
            }
            raw.append(formulas[self.weighting])
        if not self.normalised:
            return [each / size for each in raw]
        total = sum(raw)
        return [each / total if total else 0.0 for each in raw]


def reweighted(weigher: Weigher, *, server_lr: float) -> Step:
    """The server step of FedStaleWeight and FedBuff: w + server_lr * sum of weights times (y_Q - y_0)."""

    def step(
        server: np.ndarray, version: int, buffer: list[Entry]
    ) -> tuple[np.ndarray, list[float]]:
        weights = weigher.weigh(
            [each.client for each in buffer], [version - each.version for each in buffer]
        )
        progress = sum(
            weight * (each.end - each.base) for weight, each in zip(weights, buffer, strict=True)
        )
        return server + server_lr * progress, weights

    return step


def mixed(discount: Callable[[int], float], *, mixing: float) -> Step:
    """The server step of FedAsync: (1 - a) w + a y, a = mixing * discount(staleness). The weight of the slot is the discount."""

    def step(
        server: np.ndarray, version: int, buffer: list[Entry]
    ) -> tuple[np.ndarray, list[float]]:
        (update,) = buffer
        weight = discount(version - update.version)
        share = mixing * weight
        return (1 - share) * server + share * update.end, [weight]

    return step
