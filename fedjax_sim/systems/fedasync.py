"""FedAsync (Xie, Koyejo, Gupta 2019, arXiv 1903.03934): each model that arrives is mixed into the server's at once.

    x_t -> `state.server`    alpha -> `hyper.mixing`    s(t - tau) -> `timeline.weight`    rho -> `hyper.proximal`

On receipt of y, reached from the server's model k: x_{v+1} = (1 - a) x_v + a y with a = alpha s(v - k). Models are mixed and not updates,
so that a stale base also pulls the server back. s is one of `weighting`: "polynomial" (1 + tau)^-exponent, "hinge", or "mean" for 1. The
local loss has the proximal term rho / 2 ||w - x_k||^2.

Readings. Clients and their clock are those of FedStaleWeight's experiments, in whose paper this is only described; mixing 0.6, exponent
0.5 and rho 0.005 are among the values of FedAsync's own experiments.
"""

from typing import NamedTuple

import jax

from fedjax_sim.clients.gradient_steps import LocalTraining, local_sgd
from fedjax_sim.server.aggregation import base_model_variance, read_rows, store_of, write_row
from fedjax_sim.server.buffer import StaleArrivals, schedule_stale_arrivals
from fedjax_sim.settings import ConfigError, fixed, real, redefault, struct
from fedjax_sim.timelines import arrivals_within
from fedjax_sim.types import Algorithm, Array, Event, Key, Params, Plan, Problem, System, Work

DISCOUNTS = ("polynomial", "hinge", "exponential", "mean")


@struct
class Hyper(StaleArrivals, LocalTraining):
    """Settings of FedAsync: its clock's and discount's, its local training's and how it mixes."""

    buffer_size: int = fixed(1)
    weighting: str = redefault(StaleArrivals, "weighting", "polynomial")
    normalised: bool = redefault(StaleArrivals, "normalised", False)
    lr: float = redefault(LocalTraining, "lr", 0.01)
    batch_size: int = redefault(LocalTraining, "batch_size", 32)
    sampling: str = redefault(LocalTraining, "sampling", "reshuffled")
    mixing: float = real(
        0.6,
        "alpha: share of the model received in the server's, if it is not stale.",
        above=0,
        most=1,
    )
    proximal: float = real(
        0.005, "rho: strength of the pull to where local training started.", least=0
    )

    def check_together(self) -> None:
        super().check_together()
        if self.buffer_size != 1:
            raise ConfigError(
                "buffer_size", self.buffer_size, "1, as every model is mixed in when it arrives"
            )
        if self.normalised:
            raise ConfigError(
                "normalised", True, "false, as the weight of a single update would be 1"
            )
        if self.weighting not in DISCOUNTS:
            raise ConfigError("weighting", self.weighting, "one of " + ", ".join(DISCOUNTS))


class State(NamedTuple):
    server: Params  # [...]
    versions: Params  # [R, ...]  server models that somebody works from


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind FedAsync to a problem."""

    def init(key: Key) -> State:
        server = problem.init(key)
        return State(server, store_of(server, plan.rows))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        start = read_rows(state.versions, event.read)  # a stale server model, [1, ...]
        local, work = local_sgd(problem, hyper, plan, key, start, event, proximal=hyper.proximal)
        share = hyper.mixing * event.weight[0]  # 0 in an empty slot
        server = jax.tree.map(
            lambda w, y: w + share.astype(w.dtype) * (y[0] - w), state.server, local
        )
        return State(server, write_row(state.versions, event.write, server)), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        return {"client_variance": base_model_variance(state.versions, holders, state.server)}

    return Algorithm(init, step, lambda state: state.server, report)


system = System(
    name="fedasync",
    summary="asynchronous mixing: every model that arrives is averaged into the server's, the less the staler it is",
    Hyper=Hyper,
    timeline=schedule_stale_arrivals,
    algorithm=algorithm,
    ticks_within=arrivals_within,
)
