"""CA2FL (Wang, Cao, Wu, Chen and Chen 2024, ICLR), Algorithm 2: cached update calibration.

    x_t -> `state.server`    h_t^i -> `state.cached`    h_t -> `state.mean`
    Delta_i -> `progress`    eta -> `hyper.server_lr`    S_t -> `event.clients`
    M -> `hyper.buffer_size`    M_c -> `hyper.concurrency`

The server of FedBuff keeps the last update of every client, h_t^i, 0 at first. When its buffer is
full, it steps along v_t = h_t + 1 / M sum over S_t of (Delta_i - h_t^i), where h_t is the mean of
all h_t^i, and then keeps the new Delta_i: clients who report seldom count as much as others.

Readings. Stale updates are not discounted, as in the paper; `staleness` offers discounts, with
weights in place of 1 / M. If a client has several updates in a buffer, all of them are compared
with h_t^i, and the last one is kept. The cache holds what the server decoded. Clocks and
`concurrency` are FedBuff's, see `fedjax_sim.systems.fedbuff`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from fedjax_sim.clients import LocalTraining, local_training, rows
from fedjax_sim.core import batching, types
from fedjax_sim.core.settings import Above0, redefault, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import Memo, ReportMessages, Reports, Wire, aggregation, staleness, versions
from fedjax_sim.server.staleness import StalenessWeights, WeightedArrivals
from fedjax_sim.timelines import ArrivalClock, arrivals_within, presets

UNDISCOUNTED = StalenessWeights(rule="mean")
"""Equal weights of all updates in a buffer."""


@struct
class Hyper(WeightedArrivals, LocalTraining, Reports):
    """Settings of CA2FL: its clock, discount, local training, messages, and the server's step."""

    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="replaced"))
    staleness: StalenessWeights = redefault(WeightedArrivals, "staleness", UNDISCOUNTED)
    server_lr: Above0 = setting(1.0, "Learning rate of the server, eta.")


class State(NamedTuple):
    """The state of CA2FL.

    Attributes:
      server: The newest model, leaves `[...]`.
      versions: Server models that some client works from, leaves `[R, ...]`.
      memo: What both sides remember of messages.
      cached: The last update of every client, leaves `[N, ...]`.
      mean: Their mean, leaves `[...]`.
    """

    server: Params
    versions: Params
    memo: Memo
    cached: Params
    mean: Params


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind CA2FL to a problem."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, can_repeat=True)

    def init(key: Key) -> State:
        first = wire.first_version(problem.init(key))
        zero = optax.tree.zeros_like(first.server)
        return State(*first, batching.replicate(zero, len(problem.counts)), zero)

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        start = versions.stale_models(state, event)
        local, work = train(key, event, starts=start)
        reports, memo = wire.receive(key, event, state.memo, start, local)
        progress = optax.tree.sub(reports, start)  # Delta_i
        gains = optax.tree.sub(progress, rows.read_clients(state.cached, event.clients))
        moved = optax.tree.add(state.mean, wire.sum(key, event, gains))  # v_t
        server = optax.tree.add_scale(state.server, hyper.server_lr, moved)
        server = aggregation.keep_if_empty(event, server, state.server)
        # Of a client's updates the last one stays, unless it is not finite.
        learns = wire.senders.finite_clients(event, progress)
        learns = jnp.where(jnp.triu(learns[:, None] == learns[None], 1).any(axis=1), EMPTY, learns)
        gains = aggregation.where_slots(learns != EMPTY, gains, optax.tree.zeros_like(gains))
        total = aggregation.weighted_sum(jnp.ones(learns.shape), gains)
        mean = optax.tree.add_scale(state.mean, 1 / len(problem.counts), total)
        cached = rows.write_clients(state.cached, learns, progress)
        return State(*wire.next_version(key, event, state, memo, server), cached, mean), work

    return wire.algorithm(init, step)


paper = presets.preset(Hyper, presets.FAVANO)
system = types.System(
    "ca2fl",
    Hyper,
    staleness.schedule_stale_arrivals,
    algorithm,
    "buffered asynchronous aggregation that keeps every client's last update",
    can_repeat=True,
    messages=ReportMessages(),
    hints=types.Hints(arrivals_within),
    weigh=staleness.weigh_arrivals,
    paper=paper,
)
