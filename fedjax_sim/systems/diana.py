"""DIANA (Mishchenko et al. 2019; Horvath et al. 2019, arXiv 1904.05115, Algorithm 1).

    x^k -> `state.server`    h_i^k, h^k -> `state.memory`    g_i^k -> `slopes`
    Q -> `hyper.memories.compression`    alpha, gamma -> `hyper.memories.alpha`, `hyper.lr`

A client sends Q(g_i - h_i), the compressed difference of its gradient to a memory that both sides
have, and h_i <- h_i + alpha Q(g_i - h_i). The server steps along the mean of what it decodes:
x <- x - gamma (h + (1/n) sum_i Q(g_i - h_i)). As h_i approaches the gradient at the minimum, the
error of compression vanishes, however much clients differ.

Readings. A round is one step, whose learning rate is gamma. With `participation` p below 1 the mean
message is divided by p, as in FedEM, whose memories these are. h_i^0 is 0, or the gradient at x^0
(`memory_start`). There is no proximal step.

VR-DIANA, whose gradients have the variance reduced, is here too.
"""

from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from fedjax_sim import clients
from fedjax_sim.clients import ClientTraining, LocalTraining, WholeGradients, rows
from fedjax_sim.core import batching, schedules, streams, trees, types
from fedjax_sim.core.settings import Count, Limit, fixed, group, redefault, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import keep_if_empty
from fedjax_sim.server.memories import Memories, Memory, MemoryMessages, exchange, first_memory
from fedjax_sim.timelines import CoinRounds, presets, schedule_coin_rounds

NO_LOCAL_STEPS = ("optimizer", "optimizer_state", "lr_schedule", "proximal_schedule")


@struct
class Hyper(CoinRounds, WholeGradients):
    """Settings of DIANA: participation, gradients, the server's step, and memories."""

    lr: float = redefault(LocalTraining, "lr", 0.1)
    lr_schedule: schedules.Schedule = schedules.schedule_of("lr")
    batch_size: Count = redefault(LocalTraining, "batch_size", 32)
    gradient: Literal["minibatch", "exact"] = setting(
        "minibatch", "Gradients of a mini-batch or of all examples, at the server's model."
    )
    training: ClientTraining = group(ClientTraining(), "mini-batches", without=NO_LOCAL_STEPS)
    memories: Memories = group(
        Memories(memory_start="zero"), "compression of messages, and its memories"
    )

    def completed(self, problem: Problem | None) -> "Hyper":
        """Check that the problem has the gradients that are asked for."""
        if self.memories.starts_known:
            others = "zero, or field_rule naive"
            clients.check_exact(problem, "memories.memory_start", "mean_field", others)
        done: Hyper = super().completed(problem)
        return done

    def after(
        self, key: Key, event: Event, server: Params, memory: Memory, slopes: Array
    ) -> tuple[Params, Memory]:
        """Model and memories after a round. slopes: g_i, `f[S, q]`."""
        field, memory = exchange(self, key, event, memory, slopes, event.weight > 0)
        step = ravel_pytree(server)[1](field)
        rate = self.lr_schedule.of(self.lr, event.tick)
        return optax.tree.add_scale(server, -rate, step), memory


class State(NamedTuple):
    """The state of DIANA and VR-DIANA.

    Attributes:
      server: The model x^k, leaves `[...]`.
      memory: The memories h_i^k and their mean, of models as vectors.
      anchor: VR-DIANA's w^k, leaves `[...]`; () in DIANA.
      slopes: Gradients of all examples at w^k, mu_i^k: `f[N, q]`; () in DIANA.
    """

    server: Params
    memory: Memory
    anchor: Params = ()
    slopes: Params = ()


def vectors(models: Params) -> Array:
    """Join the leaves of models, leaves `[S, ...]`, to vectors `f[S, q]`."""
    return jax.vmap(lambda model: ravel_pytree(model)[0])(models)


def first_state(problem: Problem, hyper: Hyper, key: Key, *, with_slopes: bool) -> State:
    """State before the first round, with the gradients of all examples where they are needed."""
    server, everyone = problem.init(key), jnp.arange(problem.counts.shape[0])
    if not (with_slopes or hyper.memories.starts_known):
        nothing = batching.replicate(ravel_pytree(server)[0], everyone.size)
        return State(server, first_memory(hyper.memories, jnp.zeros_like(nothing)))
    noise = streams.lane_stream(key, "first gradients")

    def of_client(client: Array) -> Array:
        first = jnp.int32(0)
        whole = clients.whole_gradient(problem, noise, client, first, most_steps=None)
        return ravel_pytree(whole(server, first))[0]

    slopes = jax.lax.map(of_client, everyone)
    memory = first_memory(hyper.memories, slopes)
    return State(server, memory, server, slopes) if with_slopes else State(server, memory)


def taking_part(event: Event) -> Event:
    """The event with empty slots for clients that do not take part."""
    return event.within(clients=jnp.where(event.weight > 0, event.clients, EMPTY))


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind DIANA to a problem."""
    gradient_at = clients.gradients_at(problem, hyper, plan, is_exact=hyper.gradient == "exact")

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        slopes, work = gradient_at(key, taking_part(event), state.server)
        after = hyper.after(key, event, state.server, state.memory, vectors(slopes))
        return keep_if_empty(event, State(*after), state), work._replace(event=event.changed)

    first = partial(first_state, problem, hyper, with_slopes=False)
    return Algorithm(first, step, lambda state: state.server, supports=RELIED_ON)


class DianaMessages(MemoryMessages):
    """The messages of DIANA: compressed gradients up, models down."""

    def broadcast(self, problem: Problem, timeline: types.Timeline) -> types.Leaf:
        """Count the bits sent down at each tick: `i64[T]`."""
        model = types.full_precision_bits(trees.shapes_of_model(problem))
        return (timeline.clients != EMPTY).sum(axis=1, dtype=np.int64) * model


RELIED_ON = dict(DianaMessages.relies_on)
SOURCE = {"source": "DIANA's theory (arXiv 1904.05115), which takes one example at a time"}
system: types.System = types.System(
    "diana",
    Hyper,
    schedule_coin_rounds,
    algorithm,
    "distributed SGD on compressed differences of gradients to memories",
    overshoot=False,
    messages=DianaMessages(),
    hints=types.Hints(lambda hyper, time: time / hyper.round_length),
    fit=types.Fit(complete=lambda hyper, problem: hyper.completed(problem)),
    paper=presets.preset(Hyper, SOURCE | {"batch_size": 1}),
)
paper = system.paper


# VR-DIANA.


@struct
class VRDiana(Hyper):
    """VR-DIANA (Horvath et al. 2019, arXiv 1904.05115), Algorithm 3, Variant 1 (L-SVRG).

        w^k -> `state.anchor`    mu_i^k -> `state.slopes`    u^k -> `is_refreshed`

    A client's gradient is g_i = grad f_ij(x^k) - grad f_ij(w^k) + mu_i^k, with a random example j
    or a mini-batch, and mu_i^k the gradient of all its examples at w^k; the rest is DIANA. After
    a round w^{k+1} is x^k with probability 1/m, by one coin for all clients, and otherwise w^k.

    Readings. m is the mean number of a client's examples. Everyone computes mu_i as w changes, also
    who does not take part in the round.
    """

    gradient: Literal["exact"] = fixed("exact")
    refresh: Annotated[float, Limit(least=0, most=1)] = setting(
        0.0, "Probability that w moves to the model after a round; 0 stands for 1 / m."
    )


def reduced(problem: Problem, hyper: VRDiana, plan: Plan) -> Algorithm[State, Work]:
    """Bind VR-DIANA to a problem."""
    gradient_at = clients.gradients_at(problem, hyper, plan, is_exact=False)
    whole_at = clients.gradients_at(problem, hyper, plan, is_exact=True)
    chance = jnp.where(hyper.refresh > 0, hyper.refresh, 1 / problem.counts.mean())

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        part = taking_part(event)
        here, work = gradient_at(key, part, state.server)
        there, _ = gradient_at(key, part, state.anchor)
        known = rows.read_rows(state.slopes, jnp.maximum(event.clients, 0))  # mu_i^k
        slopes = vectors(optax.tree.sub(here, there)) + known
        server, memory = hyper.after(key, event, state.server, state.memory, slopes)
        coin = jax.random.fold_in(streams.lane_stream(key, "refresh"), event.tick)
        is_refreshed = jax.random.bernoulli(coin, chance) & jnp.any(event.clients >= 0)  # u^k
        passes = jnp.broadcast_to(is_refreshed, event.clients.shape)
        passing = event.within(
            clients=jnp.where(passes, event.clients, EMPTY), steps=passes.astype("int32")
        )
        whole, more = whole_at(key, passing, state.server)
        anchor = jax.tree.map(
            lambda x, w: jnp.where(is_refreshed, x, w), state.server, state.anchor
        )
        of_all = rows.write_clients(state.slopes, passing.clients, vectors(whole))
        after = State(server, memory, anchor, of_all)
        work = work.and_more(more, times=2)._replace(event=event.changed)
        return keep_if_empty(event, after, state), work

    first = partial(first_state, problem, hyper, with_slopes=True)
    return Algorithm(first, step, lambda state: state.server, supports=RELIED_ON)


vr_diana = system._replace(
    name="vr_diana",
    Hyper=VRDiana,
    algorithm=reduced,
    summary="DIANA with variance reduction: differences of gradients to those at an older model",
    paper=presets.preset(VRDiana, SOURCE | {"batch_size": 1}),
)
