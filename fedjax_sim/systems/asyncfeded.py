"""AsyncFedED (Wang et al. 2022, arXiv 2205.13797), Algorithm 1: Euclidean staleness.

    x_t -> `state.server`    x_{t-tau} -> `start`    Delta_i(x_{t-tau}) -> `progress`
    gamma(i, tau) -> `gamma`    lambda -> `hyper.numerator`    epsilon -> `hyper.offset`

Every update that arrives moves the server's model, x_{t+1} = x_t + eta_g Delta_i. Its staleness is
the distance that the model has moved since the client began, relative to the update's length:
gamma(i, tau) = ||x_t - x_{t-tau}|| / ||Delta_i||, and eta_g = lambda / (gamma(i, tau) + epsilon).

Deviation: the paper also adapts a client's number of local steps K to gamma. Here K is constant,
because schedules are drawn before learning and gamma follows from learning.

Readings. An update of 0 counts as fresh. With a compressed downlink x_{t-tau} is what its client
knows of it, and x_t is the server's. The defaults lambda = epsilon = 1 make a fresh update count
as it is. All clients are always at work, and `paper` has the values of FAVANO's experiments, so
that it can be compared with other systems of arrivals.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.core.settings import Above0, fixed, redefault, setting, struct
from fedjax_sim.core.types import Algorithm, Event, Hints, Key, Plan, Problem, System, Work
from fedjax_sim.server import (
    ReportMessages,
    Reports,
    StalenessWeights,
    WeightedArrivals,
    Wire,
    staleness,
)
from fedjax_sim.server.versions import Versioned, stale_models
from fedjax_sim.timelines import ArrivalClock, arrivals_within, presets


@struct
class Hyper(WeightedArrivals, LocalTraining, Reports):
    """Settings of AsyncFedED: its clock, local training, messages, and the server's step."""

    buffer_size: int = fixed(1)
    staleness: StalenessWeights = fixed(StalenessWeights(rule="mean"))
    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="free"))
    numerator: Above0 = setting(1.0, "Scale of the server's steps, lambda.")
    offset: Above0 = setting(1.0, "What is added to an update's staleness, epsilon.")


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[Versioned, Work]:
    """Bind AsyncFedED to a problem."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, can_repeat=True)

    def init(key: Key) -> Versioned:
        return wire.first_version(problem.init(key))

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)  # x_{t-tau}, [1, ...]
        local, work = train(key, event, starts=start)
        reports, memo = wire.receive(key, event, state.memo, start, local)
        progress = optax.tree.sub(reports, start)
        gone = jax.tree.map(lambda x, old: x[None] - old, state.server, start)
        distance, length = jax.vmap(optax.tree.norm)(gone), jax.vmap(optax.tree.norm)(progress)
        gamma = jnp.where(length > 0, distance / jnp.where(length > 0, length, 1), 0)
        rate = hyper.numerator / (gamma + hyper.offset)  # eta_g
        change = wire.sum(key, event, progress, weight=rate * event.weight)
        server = optax.tree.add(state.server, change)
        return wire.next_version(key, event, state, memo, server), work

    return wire.algorithm(init, step)


paper = presets.preset(Hyper, presets.FAVANO)
system = System(
    "asyncfeded",
    Hyper,
    staleness.schedule_stale_arrivals,
    algorithm,
    "asynchronous steps along every update, shorter where the server's model has moved far",
    messages=ReportMessages(),
    hints=Hints(arrivals_within),
    weigh=staleness.weigh_arrivals,
    paper=paper,
)
