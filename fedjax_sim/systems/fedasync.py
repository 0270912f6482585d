"""FedAsync (Xie, Koyejo and Gupta 2019, arXiv 1903.03934): each arriving model is mixed in.

    x_t -> `state.server`    alpha -> `hyper.mixing`    s(t - tau) -> `event.weight`
    rho -> `hyper.proximal`

A client starts from version k of the server's model and reaches y. When y arrives, the server is at
version v and makes x_{v+1} = (1 - a) x_v + a y with a = alpha s(v - k). Models are mixed instead of
updates, so that a stale base also pulls the server back. The discount s(tau) is named by
`rule`: "polynomial" is (1 + tau)^-exponent; "hinge" is 1 up to `hinge_start` and then falls;
"exponential" is base^tau; "mean" is 1. The local loss has the proximal term rho / 2 ||w - x_k||^2.

Deviation: in Algorithm 1 t is the number of the model that is being made, so that a model from the
newest version has t - tau = 1 and is discounted too. Here its staleness is 0 and s = 1, because the
paper wants s to be 1 without staleness, and so that the word means the same in all systems.

Readings. All clients are always at work, as in the experiments of FedStaleWeight, whose paper only
describes FedAsync and whose clients `paper` has. With `restart="replaced"` only `concurrency` of
them are, and mean staleness is that number less one. Mixing 0.6, exponent 0.5 and rho 0.005 are
among the values of FedAsync's own experiments.
"""

import jax
import jax.numpy as jnp

from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.core.schedules import Schedule, schedule_of
from fedjax_sim.core.settings import ConfigError, Portion, fixed, redefault, setting, struct
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

DISCOUNTS = ("polynomial", "hinge", "exponential", "mean")


@struct
class Hyper(WeightedArrivals, LocalTraining, Reports):
    """Settings of FedAsync: its clock, discount, local training, and mixing."""

    buffer_size: int = fixed(1)
    staleness: StalenessWeights = redefault(
        WeightedArrivals, "staleness", StalenessWeights(rule="polynomial", normalised=False)
    )
    clock: ArrivalClock = redefault(WeightedArrivals, "clock", ArrivalClock(restart="free"))
    mixing: Portion = setting(
        0.6, "Share of a received model in the server's, alpha, if it is not stale."
    )
    mixing_schedule: Schedule = schedule_of("mixing")
    proximal: float = redefault(LocalTraining, "proximal", 0.005)

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        if self.staleness.normalised:
            allowed = "false, because the weight of a single update would be 1"
            raise ConfigError("staleness.normalised", True, allowed)
        if self.staleness.rule not in DISCOUNTS:
            allowed = "one of " + ", ".join(DISCOUNTS)
            raise ConfigError("staleness.rule", self.staleness.rule, allowed)


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[Versioned, Work]:
    """Bind FedAsync to a problem."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan, can_repeat=True)

    def init(key: Key) -> Versioned:
        return wire.first_version(problem.init(key))

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)  # x_k, [1, ...]
        local, work = train(key, event, starts=start)
        reports, memo = wire.receive(key, event, state.memo, start, local)
        mixing = hyper.mixing_schedule.of(hyper.mixing, event.tick)
        share = mixing * event.weight  # a; 0 in an empty slot
        moved = jax.tree.map(lambda x, y: y - x[None], state.server, reports)
        mixed = wire.sum(key, event, moved, weight=share)
        server = jax.tree.map(jnp.add, state.server, mixed)
        return wire.next_version(key, event, state, memo, server), work

    return wire.algorithm(init, step)


paper = presets.preset(Hyper, presets.STALENESS)
system = System(
    "fedasync",
    Hyper,
    staleness.schedule_stale_arrivals,
    algorithm,
    "asynchronous mixing: every arriving model is averaged into the server's, stale ones less",
    messages=ReportMessages(),
    hints=Hints(arrivals_within),
    weigh=staleness.weigh_arrivals,
    paper=paper,
)
