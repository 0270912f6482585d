"""The server of expectation maximisation (FedEM, arXiv 2111.02083, Sec. 2; DIANA).

Each client has a memory V_i, which follows S_{k+1,i} - S_k: how far the client's new statistics are
from the server's. It sends the rest, compressed: Q(S_{k+1,i} - S_k - V_i). From messages and
memories the server makes the field H, along which its statistics move: S_{k+1} = S_k + gamma H.
Step sizes gamma, the choice between the last S and a random one, and the bits of a broadcast are
here too.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.rows import read_rows, write_clients
from fedjax_sim.core import schedules, settings, streams, trees, types
from fedjax_sim.core.types import Array, Event, Key, Leaf, Messages, Timeline
from fedjax_sim.server import aggregation, compression
from fedjax_sim.server.report_settings import Bits

WITH_MEMORIES = ("fedem", "local_memory")
"""Fields for which clients have memories."""


@settings.struct
class Memories(compression.Compression):
    """Settings of memories, and of the field that the server makes of messages.

    They are a group of the settings of FedEM, for example.

        memories = Memories(compression=parse_compressor("rand_k:kept=10"), memory_start="zero")
        hyper = fedjax_sim.SYSTEMS["fedem"].Hyper(memories=memories)
    """

    alpha: settings.AtLeast0 = settings.setting(
        0.0,
        "Step size of the memories; 0 stands for the theory's 1 / (1 + omega), with omega of the "
        "compressor alone.",
        only_with={"field_rule": WITH_MEMORIES},
    )
    memory_start: Literal["mean_field", "zero"] = settings.setting(
        "mean_field",
        "First memory V_{0,i}: h_i(S_0), or DIANA's gradient, for which every client evaluates all "
        "its examples once and sends one uncompressed message; or 0.",
        only_with={"field_rule": WITH_MEMORIES},
    )
    field_rule: Annotated[str, settings.OneOf((*WITH_MEMORIES, "naive"))] = settings.setting(
        "fedem",
        'The field H: "fedem" adds the server\'s memory and the mean message; "naive" has no '
        'memories (V = 0; dEM if nothing is compressed); "local_memory" averages the memories and '
        "messages of the senders alone, for which the server must know every memory.",
    )

    @property
    def starts_known(self) -> bool:
        """Whether V_{0,i} is h_i(S_0)."""
        return self.memory_start == "mean_field" and self.field_rule != "naive"


class Memory(NamedTuple):
    """The memories V.

    Attributes:
      clients: `f[N, q]`, the clients' memories V_i.
      server: `f[q]`, their mean, which the server updates separately.
    """

    clients: Array
    server: Array


def first_memory(hyper: Memories, fields: Array) -> Memory:
    """Begin with V_{0,i} and their mean. fields: h_i(S_0), `f[N, q]`.

        fields = jnp.array([[1.0], [3.0]])  # of two clients
        assert first_memory(Memories(), fields).server == (1 + 3) / 2
        assert first_memory(Memories(memory_start="zero"), fields).server == 0

    Args:
      fields: h_i(S_0), `f[N, q]`.

    Returns:
      The memories V_{0,i}, `f[N, q]`, and their mean.
    """
    clients = fields if hyper.starts_known else jnp.zeros_like(fields)
    return Memory(clients, clients.mean(axis=0))


def exchange(
    hyper: types.Settings, key: Key, event: Event, memory: Memory, target: Array, active: Array
) -> tuple[Array, Memory]:
    """Send Q(target - V_i) from the active slots, make H of the messages and update the memories.

    Both results use the old memories and the same messages; only in H are these divided by p_i.

        hyper = fedjax_sim.SYSTEMS["fedem"].Hyper(num_clients=2)  # nothing is compressed
        memory = first_memory(hyper.memories, jnp.array([[1.0], [3.0]]))
        everyone = event.within(clients=jnp.arange(2))
        target, active = jnp.array([[5.0], [7.0]]), jnp.ones(2, bool)
        field, memory = exchange(hyper, key, everyone, memory, target, active)
        assert field == (5 + 7) / 2 and memory.clients.ravel().tolist() == [5.0, 7.0]

    Args:
      hyper: Settings with the group `memories`, and clients' `chances` p_i to take part, or None
        where messages count by the weights of the tick.
      memory: The memories before.
      target: `f[S, q]`, what V_i should become, S_{k+1,i} - S_k.
      active: `bool[S]`, slots whose client takes part.

    Returns:
      H, `f[q]`, and the memories after.
    """
    memories, (num_clients, size) = hyper.memories, memory.clients.shape
    clients = jnp.maximum(event.clients, 0)
    tick_key = jax.random.fold_in(streams.lane_stream(key, "compression"), event.tick)
    known = read_rows(memory.clients, clients)

    def compress(client: Array, difference: Array) -> Array:
        return memories.compression.apply(jax.random.fold_in(tick_key, client), difference)

    messages = jnp.where(active[:, None], jax.vmap(compress)(clients, target - known), 0)
    mean = aggregation.weighted_sum(jnp.full(clients.shape, 1 / num_clients), messages)
    chances = hyper.chances(clients)
    # (1/n) sum_i B_i Q_i / p_i, unless weights are given.
    share = event.weight if chances is None else 1 / (num_clients * chances)
    senders = jnp.where(active, share, 0)
    has_one = chances is not None and np.ndim(chances) == 0
    heard = mean / chances if has_one else aggregation.weighted_sum(senders, messages)
    field = memory.server + heard
    if memories.field_rule == "naive":
        return field, memory
    if memories.field_rule == "local_memory":
        field = aggregation.weighted_sum(senders, known) + heard
    of_theory = 1 / (1 + memories.compression.omega(size))
    alpha = jnp.where(memories.alpha > 0, memories.alpha, of_theory)
    clients_after = write_clients(memory.clients, event.clients, known + alpha * messages)
    return field, Memory(clients_after, memory.server + alpha * mean)


class MemoryMessages(Messages):
    """The messages of systems with memories of clients."""

    relies_on = (
        ("memories.compression", compression.Identity()),
        ("memories.memory_start", "zero"),
        ("memories.field_rule", "fedem"),
    )

    def bits(self, params: types.Params, hyper: types.Settings) -> tuple[int, int]:
        """Count the bits by which a clock times messages; theta is taken for as long as S."""
        up = compression.count_message_bits(hyper.memories.compression, params)
        return up, 2 * types.full_precision_bits(params)

    def per_tick(self, problem: Any, hyper: types.Settings, timeline: Timeline) -> Bits:
        """Count the bits sent up and down at each tick: `i64[T]` each.

        Clients that take part send a compressed message; S and theta go to all, uncompressed.
        The first tick includes the means h_i(S_0) that memories start from.

        Args:
          timeline: One lane's schedule.
        """
        statistics = trees.shapes_of_model(problem)
        senders = ((timeline.clients >= 0) & (timeline.weight > 0)).sum(axis=1, dtype=np.int64)
        up = senders * compression.count_message_bits(hyper.memories.compression, statistics)
        first_means = hyper.num_clients * hyper.memories.starts_known
        up[:1] += types.full_precision_bits(statistics) * first_means
        return up, self.broadcast(problem, timeline)

    def broadcast(self, problem: Any, timeline: Timeline) -> Leaf:
        """Count the bits sent down at each tick: `i64[T]`."""
        return broadcast_bits(problem, timeline)


memory_messages = MemoryMessages()
"""The messages of systems with memories of statistics, for `System.messages`."""


@settings.struct
class Approximation:
    """Settings of the server's stochastic approximation, S <- S + gamma_k H.

    They are inherited by the settings of FedEM, for example.

        from fedjax_sim.core.schedules import InverseTime

        decaying = Approximation(gamma=0.5, gamma_schedule=InverseTime())
        assert decaying.step_size(event.within(tick=jnp.int32(1))) == 0.5 / 2  # of the second tick
        hyper = fedjax_sim.SYSTEMS["fedem"].Hyper(gamma=0.5, output="random")
    """

    gamma: settings.Above0 = settings.setting(0.01, "First step size of the server, gamma_1.")
    gamma_schedule: schedules.Schedule = schedules.schedule_of("gamma")
    output: Literal["last", "random"] = settings.setting(
        "last",
        "Which statistics are evaluated: the last S, or S_K with K uniform on the ticks so far, as "
        "in the theory.",
    )

    def step_size(self, event: Event) -> Array:
        """Compute gamma_{k+1}: `f[]`, 0 for an empty tick."""
        gamma = self.gamma_schedule.of(self.gamma, event.tick)
        return jnp.where(jnp.any(event.clients >= 0), gamma, 0)

    def result(self, state: Any) -> Array:
        """Choose the statistics that are evaluated, `f[q]`.

        Args:
          state: A state with the fields `server` and `random`.

        Returns:
          S, or S_K, as `output` says.
        """
        return state.random if self.output == "random" else state.server


def broadcast_bits(problem: types.LatentProblem, timeline: Timeline) -> Leaf:
    """Count the bits sent down at each tick: `i64[T]`.

    Every client of the tick receives S and theta without compression. If the problem has a method
    `unknown`, only the part of theta that it returns is sent: what clients cannot derive from S.

        bits = broadcast_bits(latent, run.timelines[0])  # S and theta are one number each
        assert (bits == 4 * (32 + 32)).all()  # four clients take part

    Args:
      timeline: One lane's schedule.
    """

    def sent(key: Key) -> Any:
        statistics = problem.init(key)
        params = problem.maximise(statistics)
        known = trees.has(problem, "unknown")
        return statistics, problem.unknown(params) if known else params  # type: ignore[attr-defined]

    bits = types.full_precision_bits(jax.eval_shape(sent, jax.random.key(0)))
    return (timeline.clients >= 0).sum(axis=1, dtype=np.int64) * bits


def keep_random(key: Key, event: Event, before: Array, now: Array) -> Array:
    """Keep S_K, with K uniform on the ticks 0..k.

        before, now = jnp.zeros(2), jnp.ones(2)
        assert (keep_random(key, event, before, now) == now).all()  # at tick 0 the chance is 1

    Args:
      event: Tick k.
      before: `f[q]`, the statistics kept so far.
      now: `f[q]`, the statistics of tick k, which are kept with probability 1 / (k + 1).

    Returns:
      `f[q]`.
    """
    output_key = jax.random.fold_in(streams.lane_stream(key, "output"), event.tick)
    draw = jax.random.uniform(output_key, dtype=before.dtype)
    is_taken = (draw * (event.tick + 1) < 1) & jnp.any(event.clients >= 0)
    return jnp.where(is_taken, now, before)
