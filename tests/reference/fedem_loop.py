"""FedEM and VR-FedEM as slow loops in plain NumPy.

Written from Algorithms 4 and 2 of arXiv 2111.02083.

Dimension letters: `n` clients, `b` examples, `D` coordinates, `q` expected statistics.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

EStep = Callable[[object, np.ndarray], np.ndarray]
"""From parameters and examples `[b, D]` to expected statistics `[b, q]`."""
MStep = Callable[[np.ndarray], object]
"""From expected statistics `[q]` to parameters."""
Quantize = Callable[[int, int, np.ndarray], np.ndarray]
"""From a tick, a client and a vector to the vector compressed with their random numbers."""
Batch = Callable[[int, int], np.ndarray]
"""From a client and j to the positions of its j-th mini-batch."""
Active = Callable[[int, int], bool]
"""From a tick and a client to whether it takes part."""


class Round(NamedTuple):
    """What is known after a server action.

    Attributes:
      server: S, `f[q]`.
      field: H, `f[q]`.
      memories: V_i, `f[n, q]`.
      server_memory: V, `f[q]`.
      evaluations: Statistics of single examples evaluated so far.
    """

    server: np.ndarray
    field: np.ndarray
    memories: np.ndarray
    server_memory: np.ndarray
    evaluations: int


def fedem(
    start: np.ndarray,
    data: list[np.ndarray],
    *,
    rounds: int,
    e_step: EStep,
    m_step: MStep,
    batch: Batch,
    active: Active,
    quantize: Quantize,
    gamma: Callable[[int], float],
    alpha: float,
    p: float | np.ndarray,
) -> list[Round]:
    """Run FedEM with memories that start at h_i(S_0)."""
    n = len(data)
    chances = np.broadcast_to(p, n)
    server, theta = start.copy(), m_step(start)
    memories = [e_step(theta, y).mean(axis=0) - server for y in data]
    evaluations = sum(len(y) for y in data)
    server_memory = sum(memories) / n
    drawn = [0] * n
    history = []
    for k in range(rounds):
        sent, heard = [], []
        for i in range(n):
            if not active(k, i):
                continue
            examples = data[i][batch(i, drawn[i])]
            drawn[i] += 1
            evaluations += len(examples)
            delta = e_step(theta, examples).mean(axis=0) - server - memories[i]
            message = quantize(k, i, delta)
            memories[i] = memories[i] + alpha * message
            sent.append(message)
            heard.append(message / chances[i])
        total = sum(sent, np.zeros_like(server))
        field = server_memory + sum(heard, np.zeros_like(server)) / n
        server = server + gamma(k) * field
        server_memory = server_memory + alpha * total / n
        theta = m_step(server)
        history.append(Round(server, field, np.array(memories), server_memory, evaluations))
    return history


class Message(NamedTuple):
    """A message that a schedule has.

    Attributes:
      client: Its client.
      weight: What it counts in H.
      version: Server actions before its client began.
    """

    client: int
    weight: float
    version: int


def scheduled_fedem(
    start: np.ndarray,
    data: list[np.ndarray],
    *,
    ticks: list[list[Message]],
    e_step: EStep,
    m_step: MStep,
    batch: Batch,
    quantize: Quantize,
    gamma: Callable[[int], float],
    alpha: float,
    inner: int = 0,
) -> list[Round]:
    """Run FedEM with given messages, H = V + sum of weighted messages; each from its version.

    With `inner` it is VR-FedEM, in whose whole passes only those take part who are heard of.
    """
    n = len(data)
    path, thetas = [start.copy()], [m_step(start)]
    oracles = [e_step(thetas[0], y).mean(axis=0) for y in data]
    seen = [thetas[0]] * n
    memories = [oracle - start for oracle in oracles]
    evaluations = sum(len(y) for y in data)
    server_memory = sum(memories) / n
    drawn = [0] * n
    history = []
    for k, messages in enumerate(ticks):
        total, field = np.zeros_like(start), server_memory.copy()
        for i, weight, version in messages:
            theta, rows = thetas[version], data[i][batch(i, drawn[i])]
            drawn[i] += 1
            if not inner:
                oracles[i] = e_step(theta, rows).mean(axis=0)
                evaluations += len(rows)
            elif k % inner == 0 and k > 0:
                oracles[i] = e_step(theta, data[i]).mean(axis=0)
                evaluations += len(data[i]) + 2 * len(rows)
            else:
                oracles[i] = oracles[i] + (e_step(theta, rows) - e_step(seen[i], rows)).mean(axis=0)
                evaluations += 2 * len(rows)
            seen[i] = theta
            message = quantize(k, i, oracles[i] - path[version] - memories[i])
            memories[i] = memories[i] + alpha * message
            total, field = total + message, field + weight * message
        server = path[-1] + gamma(k) * field if messages else path[-1]
        server_memory = server_memory + alpha * total / n
        path.append(server)
        thetas.append(m_step(server))
        history.append(Round(server, field, np.array(memories), server_memory, evaluations))
    return history


def vr_fedem(
    start: np.ndarray,
    data: list[np.ndarray],
    *,
    outer: int,
    inner: int,
    e_step: EStep,
    m_step: MStep,
    batch: Batch,
    active: Active,
    quantize: Quantize,
    gamma: Callable[[int], float],
    alpha: float,
    p: float | np.ndarray,
    freeze: bool,
) -> list[Round]:
    """Run VR-FedEM. Inactive clients send nothing; with `freeze` they only compute full passes."""
    n = len(data)
    chances = np.broadcast_to(p, n)
    server, theta = start.copy(), m_step(start)
    drawn = [0] * n
    history: list[Round] = []
    evaluations = 0
    memories: list[np.ndarray] = []
    for t in range(outer):
        seen = [theta] * n
        oracles = [e_step(theta, y).mean(axis=0) for y in data]
        evaluations += sum(len(y) for y in data)
        if t == 0:
            memories = [oracle - server for oracle in oracles]
            server_memory = sum(memories) / n
        for k in range(inner):
            total, heard = np.zeros_like(server), np.zeros_like(server)
            for i in range(n):
                is_active = active(t * inner + k, i)
                if is_active or not freeze:
                    examples = data[i][batch(i, drawn[i])]
                    drawn[i] += 1
                    evaluations += 2 * len(examples)
                    change = e_step(theta, examples) - e_step(seen[i], examples)
                    oracles[i] = oracles[i] + change.mean(axis=0)
                    seen[i] = theta
                if is_active:
                    message = quantize(t * inner + k, i, oracles[i] - server - memories[i])
                    memories[i] = memories[i] + alpha * message
                    total += message
                    heard += message / chances[i]
            field = server_memory + heard / n
            server = server + gamma(t * inner + k) * field
            server_memory = server_memory + alpha * total / n
            theta = m_step(server)
            history.append(Round(server, field, np.array(memories), server_memory, evaluations))
    return history


def spider_em(
    start: np.ndarray,
    y: np.ndarray,
    *,
    outer: int,
    inner: int,
    e_step: EStep,
    m_step: MStep,
    batch: Callable[[int], np.ndarray],
    gamma: float,
) -> list[np.ndarray]:
    """Run SPIDER-EM (Fort, Moulines and Wai 2020) on one machine: S <- S + gamma (oracle - S).

    Returns:
      S after every step.
    """
    path = [start]
    before = start
    for t in range(outer):
        oracle = e_step(m_step(path[-1]), y).mean(axis=0)
        for k in range(inner):
            now = path[-1]
            if k > 0:
                examples = y[batch(t * inner + k)]
                oracle = oracle + (
                    e_step(m_step(now), examples) - e_step(m_step(before), examples)
                ).mean(axis=0)
            path.append(now + gamma * (oracle - now))
            before = now
    return path[1:]
