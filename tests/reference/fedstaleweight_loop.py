"""FedStaleWeight and FedAsync as one slow event loop in plain NumPy.

Clients pull a model, train and send an update; the server acts when the update that fills its
buffer arrives. Written from the papers' algorithms (arXiv 2406.02877, Alg. 1 and 2, Eq. 8;
arXiv 1903.03934, Alg. 1).
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Record(NamedTuple):
    """What the server saw at one action.

    Attributes:
      time: Time of the action.
      clients: Clients whose updates it used.
      versions: Server versions that these updates started from.
      weights: Weights of the updates.
      model: The server's model after the action.
      client_variance: Sum of squared distances of the models that clients work from after the
        action to the server's.
    """

    time: float
    clients: list[int]
    versions: list[int]
    weights: list[float]
    model: np.ndarray
    client_variance: float


class Entry(NamedTuple):
    """One update in the buffer.

    Attributes:
      client: The client.
      version: Server version that it pulled.
      base: y_0, the model of that version.
      end: y_Q, the model after training.
    """

    client: int
    version: int
    base: np.ndarray
    end: np.ndarray


Step = Callable[[np.ndarray, int, list[Entry]], tuple[np.ndarray, list[float]]]
"""From the server's model, its version and a full buffer to the next model and the weights."""


@dataclass
class Client:
    """A client at work.

    Attributes:
      base: Model that it works from.
      version: Server version of that model.
      number: Number of the update in progress.
      ever: Local steps it has done.
    """

    base: np.ndarray
    version: int = 0
    number: int = 0
    ever: int = 0


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

    Args:
      start: The initial model.
      num_clients: Number of clients.
      num_actions: Number of server actions.
      buffer_size: b.
      pull: When a client pulls a new model. "free": when it has sent its update, after the action
        that this update may cause; "before_aggregation": the same, but it pulls the model from
        before that action; "after_interaction": at the action that uses its update.
      num_steps: Q.
      lr: Learning rate of clients.
      proximal: Strength of the pull to the base model in the local loss.
      duration: From client and number to the time of the client's update with that number.
      tie: From client and number to a number by which arrivals at one time are ordered; equal ones
        are ordered by client.
      gradient: From client, k and model to the gradient of the client's k-th local step so far.
      server_step: What the server does with a full buffer.
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
        clients[i].base, clients[i].version = model.copy(), model_version
        number = clients[i].number = clients[i].number + 1
        heapq.heappush(arrivals, (now + duration(i, number), tie(i, number), i, number))

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
        elif pull == "free":
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
    """FedStaleWeight's server: staleness of every client, and the weights of a buffer.

    Attributes:
      rule: As in `StalenessWeights`, as are those up to `normalised`.
      average: "window", "cumulative", "exponential" or "none".
      window: Updates in the window.
      decay: Share of the past in the exponential average.
      exponent: Exponent of "polynomial".
      normalised: Whether weights sum to 1.
      num_clients: Number of clients.
      values: What is known of each client's staleness.
    """

    rule: str
    average: str = "window"
    window: int = 5
    decay: float = 0.9
    exponent: float = 0.5
    normalised: bool = True
    num_clients: int = 1
    values: dict[int, Any] = field(default_factory=dict)

    def push(self, client: int, tau: int) -> None:
        """Note the staleness of an update."""
        if self.rule == "code_exact":
            known = self.values.setdefault(client, deque())
            if len(known) == 5:
                known.pop()  # The newest, a defect of the authors' public code.
            known.append(tau)
        elif self.average == "window":
            self.values.setdefault(client, deque(maxlen=self.window)).append(tau)
        elif self.average == "cumulative":
            self.values.setdefault(client, []).append(tau)
        else:
            before = self.values.get(client, [tau])[0]
            self.values[client] = [self.decay * before + (1 - self.decay) * tau]

    def weigh(self, clients: list[int], taus: list[int]) -> list[float]:
        """Note the staleness of all updates of a buffer, and return their weights."""
        for client, tau in zip(clients, taus, strict=True):
            self.push(client, tau)
        is_averaged = self.rule == "code_exact" or (
            self.rule in ("eq8", "alg1", "code") and self.average != "none"
        )
        size = len(clients)
        raw = []
        for client, tau in zip(clients, taus, strict=True):
            stale = float(np.mean(self.values[client])) if is_averaged else float(tau)
            formulas = {
                "eq8": (stale * size + 1) / self.num_clients,
                "alg1": (stale + 1) / self.num_clients,
                "code": stale * size / self.num_clients,
                "code_exact": stale,
                "mean": 1.0,
                "polynomial": (1 + stale) ** -self.exponent,
            }
            raw.append(formulas[self.rule])
        if not self.normalised:
            return [each / size for each in raw]
        total = sum(raw)
        return [each / total if total else 0.0 for each in raw]


def reweighted(weigher: Weigher, *, server_lr: float) -> Step:
    """Return the server step of FedStaleWeight and FedBuff.

    It is w + server_lr * (sum of weights times y_Q - y_0).
    """

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
    """Return the server step of FedAsync: (1 - a) w + a y with a = mixing * discount(staleness).

    The weight of the slot is the discount.
    """

    def step(
        server: np.ndarray, version: int, buffer: list[Entry]
    ) -> tuple[np.ndarray, list[float]]:
        (update,) = buffer
        weight = discount(version - update.version)
        share = mixing * weight
        return (1 - share) * server + share * update.end, [weight]

    return step
