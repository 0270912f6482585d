"""Compressed differences with memories: what FedEM's clients send, and what the server makes of it (arXiv 2111.02083, Sec. 2; DIANA).

Letters: `N` clients, `S` slots, `q` numbers of an expected statistic.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.compression.messages import Compression
from fedjax_sim.server.aggregation import read_rows, weighted_sum, write_clients
from fedjax_sim.server.approximation import broadcasts
from fedjax_sim.settings import choice, real, struct
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Event, Key, LatentProblem, Leaf, Timeline, full_precision_bits


@struct
class Memories(Compression):
    """Settings of memories and of the field that the server makes of messages."""

    alpha: float = real(
        0.0,
        "Step of the memories; 0 stands for the theory's 1 / (1 + omega), omega that of the compressor alone.",
        least=0,
    )
    memory_start: str = choice(
        "mean_field",
        ("mean_field", "zero"),
        "V_{0,i}: h_i(S_0), for which every client goes over its examples once and sends a message that is not compressed; or 0.",
    )
    aggregation: str = choice(
        "fedem",
        ("fedem", "naive", "local_memory"),
        "H: the server's memory and the mean of what is sent; without memories (V = 0 throughout; dEM if nothing is compressed); or the mean of the senders' own memories and what they send, for which the server must know them all.",
    )

    @property
    def starts_known(self) -> bool:
        """Whether V_{0,i} is h_i(S_0)."""
        return self.memory_start == "mean_field" and self.aggregation != "naive"


class Memory(NamedTuple):
    """V."""

    clients: Array  # f[N, q]  V_i
    server: Array  # f[q]     their mean, kept by itself


def first_memory(hyper: Any, fields: Array) -> Memory:
    """V_{0,i} and their mean. fields: h_i(S_0), `f[N, q]`."""
    clients = fields if hyper.starts_known else jnp.zeros_like(fields)
    return Memory(clients, clients.mean(axis=0))


def exchange(
    hyper: Any, key: Key, event: Event, memory: Memory, target: Array, active: Array
) -> tuple[Array, Memory]:
    """Send Q(target - V_i) for the clients of the active slots; make H of it, and go on with both memories.

    target: `f[S, q]`, what V_i should become, S_{k+1,i} - S_k. active: `bool[S]`. Returns H, `f[q]`, and the memories. Both use the
    old V and the same messages; only H has 1 / p.
    """
    num_clients, size = memory.clients.shape
    clients = jnp.maximum(event.clients, 0)
    own = jax.random.fold_in(stream(key, "compression"), event.tick)
    known = read_rows(memory.clients, clients)
    compress = jax.vmap(
        lambda client, delta: hyper.compression.apply(jax.random.fold_in(own, client), delta)
    )
    messages = jnp.where(active[:, None], compress(clients, target - known), 0)
    mean = weighted_sum(jnp.full(clients.shape, 1 / num_clients), messages)
    field = memory.server + mean / hyper.participation
    if hyper.aggregation == "naive":
        return field, memory
    if hyper.aggregation == "local_memory":
        senders = jnp.where(active, 1 / (num_clients * hyper.participation), 0)
        field = weighted_sum(senders, known) + mean / hyper.participation
    alpha = jnp.where(hyper.alpha > 0, hyper.alpha, 1 / (1 + hyper.compression.omega(size)))
    clients_after = write_clients(memory.clients, event.clients, known + alpha * messages)
    return field, Memory(clients_after, memory.server + alpha * mean)


def traffic(problem: LatentProblem, hyper: Any, timeline: Timeline) -> tuple[Leaf, Leaf]:
    """Bits sent at each tick, `i64[T]` each: up by the clients who take part, down S and theta, not compressed, to all.

    The first tick's include the means h_i(S_0) that memories start from.
    """
    statistics = jax.eval_shape(problem.init, jax.random.key(0))
    senders = ((timeline.clients >= 0) & (timeline.weight > 0)).sum(axis=1, dtype=np.int64)
    up = senders * hyper.compression.bits(statistics.size, word=8 * statistics.dtype.itemsize)
    up[:1] += full_precision_bits(statistics) * hyper.num_clients * hyper.starts_known
    return up, broadcasts(problem, timeline)
