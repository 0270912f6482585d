"""Noisy means, whose EM is known in closed form, and the replay of EM systems on them.

Dimension letters: `N` clients, `M` examples of a client, `D` coordinates, `T` ticks, `L` lanes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim
from fedjax_sim import Event, Plan
from fedjax_sim.core.streams import stream
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.server.compression import BlockQuantization

FEDEM, VR, EM = (fedjax_sim.SYSTEMS[name] for name in ("fedem", "vr_fedem", "em"))
N, M, D, RIDGE, KAPPA = 10, 20, 4, 0.25, 0.5
SLOPE = (RIDGE + KAPPA) / (1 + RIDGE)
GAMMA_MAX = 1 / (2 * SLOPE)  # v_min / (2 L_W), the smaller branch here
BLOCKS = BlockQuantization(block=4)  # omega = 1
FULL = {"num_clients": N, "batches": "full", "batch_size": M}


def noisy_mean(
    kappa: Any, *, spread: float = 2.0, examples: int = M, seed: int = 0, clients: int = N
) -> latent.Estimation:
    """Make clients whose means differ by `spread`.

    Toy A has one kappa for all examples, toy B one for each, see `latent.noisy_mean`.
    """
    random = np.random.default_rng(seed)
    y = (
        random.normal(size=(clients, examples, D))
        + spread * random.normal(size=(clients, 1, D))
        + np.array([1.0, -0.5, 0.3, 2.0])
    )
    if spread == 0:
        y -= y.mean(axis=1, keepdims=True) - y.mean(axis=(0, 1))
    data = Seen(y.reshape(-1, D), np.broadcast_to(kappa, clients * examples).astype(float))
    partition = Partition(np.arange(clients * examples), np.full(clients, examples))
    return latent.make_estimation(
        latent.NoisyMean(ridge=RIDGE), data, partition, start=np.full(D, 3.0)
    )


TICKS, LANES = 400, 20


class Path(NamedTuple):
    """What a replay of L lanes returns.

    Attributes:
      states: The initial state and those after every tick, leaves `[L, T + 1, ...]`.
      field: ||h(S)||^2 of these states, `f64[L, T + 1]`.
      events: The schedules, leaves `[L, T, ...]`.
    """

    states: Any
    field: np.ndarray
    events: Event

    def of(self, lane: int) -> "Path":
        """Return one lane."""
        return jax.tree.map(lambda leaf: leaf[lane], self)


def events_of(system: Any, hyper: Any, key: jax.Array, ticks: int) -> Event:
    """Make a schedule in the form in which the engine passes it to algorithms."""
    timeline = system.timeline(stream(key, "timeline"), hyper, ticks)
    steps, clients = timeline.steps.astype("int32"), timeline.clients.astype("int32")
    offset, zeros = jnp.cumsum(steps, axis=0, dtype="int32") - steps, jnp.zeros_like(steps)
    tick = jnp.arange(ticks, dtype="int32")
    return Event(
        tick, clients, steps, zeros, timeline.weight.astype("float32"), offset, zeros, tick
    )


def replay(system: Any, problem: Any, *hypers: Any) -> Path:
    """Run settings in turn, with seeds 0, 1, ..., until there are `LANES` lanes of `TICKS` ticks.

    The number of lanes is always the same, so settings of one structure share one program.
    """
    chosen = [hypers[lane % len(hypers)] for lane in range(LANES)]
    hyper = jax.tree.map(lambda *leaves: jnp.asarray(leaves, float), *chosen)
    keys = jnp.stack([jax.random.key(lane // len(hypers)) for lane in range(LANES)])
    return Path(*jax.tree.map(np.asarray, _replayed(system, problem, hyper, keys)))


def _lanes(system: Any, problem: Any, hypers: Any, keys: jax.Array) -> Any:
    def lane(inputs: Any) -> Any:
        hyper, key = inputs
        algorithm = system.algorithm(problem, hyper, Plan(slots_at_once=64))
        events = events_of(system, hyper, key, TICKS)

        def step(state: Any, event: Event) -> Any:
            after, _ = algorithm.step(key, state, event)
            return after, after

        first = algorithm.init(key)
        _, states = jax.lax.scan(step, first, events)
        states = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, states)
        return (
            states,
            jnp.sum(jnp.square(jax.vmap(problem.mean_field)(states.server)), axis=1),
            events,
        )

    return jax.lax.map(lane, (hypers, keys))


_replayed = jax.jit(_lanes, static_argnums=0)


def client_fields(problem: Any, server: Any) -> np.ndarray:
    """Compute the clients' fields h_i(S): `f[N, D]`."""
    return np.asarray(
        problem.client_statistics(problem.natural(problem.maximise(server))) - server[None]
    )


def root(problem: Any) -> np.ndarray:
    """Find s_*, where the linear mean field h is 0: `f[D]`."""
    zero = jnp.zeros(D)
    slope = -np.asarray(jax.jacobian(problem.mean_field)(zero))
    return np.linalg.solve(slope, np.asarray(problem.mean_field(zero)))
