"""FAVANO (Leconte, Nguyen, Moulines, arXiv 2305.16099), Algorithm 1.

    w_t -> `state.server`         w_init^i -> `start`      w^i -> `local`        S_t -> `event.clients`
    E^i ^ K -> `event.steps`      K -> `hyper.local_steps` eta -> `hyper.lr`     1 / alpha^i -> `event.weight`

alpha depends on the clock alone, so it is part of the timeline (`inverse_alpha`). A selected client without a finished step reports
its stale `w_init` (0/0 := 0) and so pulls the server back towards it.

Readings. The paper leaves open which reweighting its experiments use; `reweight` is "stochastic" by default, alpha = P(E > 0) (E ^ K),
or "deterministic", alpha = E[E ^ K], both from the stationary law of the step count. "conditional_stochastic" and "conditional" are
the same given the window since the last contact; "estimated_stochastic" and "estimated" use the client's own history up to and
including this contact (all that a server which does not know the rates can do; needed with a recorded trace); "none" is alpha = 1.
`alpha_by_tick` replaces the stationary law by the exact one of server step t, which differs in the first ten or so. The running time
of a local step is geometric by default, see `timelines.Clients`; the switches of `timelines.Contacts` give the other clocks. Of these,
the conditional alphas follow all but `carry_residual`, the stationary ones follow `runtime_law` alone: what the paper's server can know.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.gradient_steps import LocalTraining, local_sgd
from fedjax_sim.server.aggregation import (
    base_model_variance,
    mean_with_server,
    read_rows,
    scaled_progress,
    store_of,
    write_row,
)
from fedjax_sim.settings import ConfigError, choice, struct, switch
from fedjax_sim.timelines import (
    STEP_COUNT_LAWS,
    Contacts,
    client_rates,
    schedule_contacts,
    step_counts,
)
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.types import (
    Algorithm,
    Array,
    Event,
    Key,
    Params,
    Plan,
    Problem,
    System,
    Timeline,
    Work,
)

REWEIGHTS = (
    "stochastic",
    "deterministic",
    "none",
    "conditional_stochastic",
    "conditional",
    "estimated_stochastic",
    "estimated",
)


@struct
class Hyper(Contacts, LocalTraining):
    """Settings of FAVANO: its clock's, its local training's and the reweighting."""

    reweight: str = choice("stochastic", REWEIGHTS, "Reweight.")
    alpha_by_tick: bool = switch(
        False,
        'Whether "stochastic" and "deterministic" use the law at the server step rather than the stationary one.',
    )

    def check_together(self) -> None:
        super().check_together()
        period = np.asarray(self.server_wait, float) + np.asarray(self.server_interact, float)
        closed_form = self.reweight in REWEIGHTS[:2] + REWEIGHTS[3:5]
        if closed_form and self.trace is not None:
            raise ConfigError(
                "reweight",
                self.reweight,
                "one of none, estimated_stochastic, estimated with a recorded trace",
            )
        if closed_form and self.runtime_law not in STEP_COUNT_LAWS:
            raise ConfigError(
                "reweight",
                self.reweight,
                f"one of none, estimated_stochastic, estimated under {self.runtime_law}",
            )
        if (
            closed_form
            and self.runtime_law == "runtime_geom"
            and np.any(period != np.round(period))
        ):
            raise ConfigError(
                "server_wait + server_interact",
                float(period.ravel()[0]),
                "whole under runtime_geom with this reweighting",
            )
        if self.alpha_by_tick and self.reweight not in REWEIGHTS[:2]:
            raise ConfigError(
                "alpha_by_tick", True, 'false unless reweight is "stochastic" or "deterministic"'
            )
        if self.alpha_by_tick and np.any(np.asarray(self.first_contact) != 1):
            raise ConfigError("alpha_by_tick", True, "false unless first_contact is 1")


class State(NamedTuple):
    server: Params  # [...]
    versions: Params  # [R, ...]  server models that clients still hold


def timeline(key: Key, hyper: Hyper, num_ticks: int) -> Timeline:
    """Schedule periodic contacts; the weight of a slot is 1 / alpha."""
    schedule, window = schedule_contacts(key, hyper, num_ticks)
    return schedule._replace(
        weight=inverse_alpha(schedule, window, client_rates(key, hyper), hyper)
    )


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm:
    """Bind FAVANO to a problem."""

    def init(key: Key) -> State:
        server = problem.init(key)
        return State(server, store_of(server, plan.rows))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        start = read_rows(state.versions, event.read)
        local, work = local_sgd(problem, hyper, plan, key, start, event)
        reports = scaled_progress(
            start, local, event.weight
        )  # u[i] = w_init[i] + (w[i] - w_init[i]) / alpha
        server = mean_with_server(
            state.server, reports, event.clients >= 0
        )  # w_t = (w_{t-1} + sum_i u[i]) / (s + 1)
        return State(server, write_row(state.versions, event.write, server)), work

    def report(state: State, holders: Array) -> dict[str, Array]:
        return {"client_variance": base_model_variance(state.versions, holders, state.server)}

    return Algorithm(init, step, lambda state: state.server, report)


def inverse_alpha(schedule: Timeline, window: Array, rate: Array, hyper: Hyper) -> Array:
    """1 / alpha of every slot, 0 where no step was done: `f64[T, S]`. window: `f64[T, S]`; rate: `f64[N]`."""
    steps = schedule.steps.astype(window.dtype)
    if hyper.reweight == "none":
        return jnp.ones_like(window)
    any_step, mean_steps = (
        _estimates(schedule)
        if "estimated" in hyper.reweight
        else _expectations(schedule, window, rate, hyper)
    )
    alpha = any_step * steps if "stochastic" in hyper.reweight else mean_steps
    return jnp.where(schedule.steps > 0, 1 / jnp.where(schedule.steps > 0, alpha, 1.0), 0.0)


def _expectations(
    schedule: Timeline, window: Array, rate: Array, hyper: Hyper
) -> tuple[Array, Array]:
    """P(E > 0) and E[E ^ K] of the client in every slot, from the law of the step count: `f64[T, S]` each."""
    clients = schedule.clients
    if "conditional" in hyper.reweight:
        if (
            hyper.runtime_law == "runtime_geom"
        ):  # Whole units of time, at whose ends a step may end.
            window = (
                jnp.maximum(jnp.ceil(window) - 1, 0) if hyper.strict_deadline else jnp.floor(window)
            )
        law = {"window": window, "law": hyper.runtime_law}
        any_step = step_counts.prob_any_given(rate[clients], **law)
        return any_step, step_counts.mean_steps_given(
            rate[clients], max_steps=hyper.local_steps, **law
        )
    # Clients of one speed have one law.
    if hyper.client_table is not None:
        speeds, speed = rate, clients
    else:
        speeds = jnp.stack(
            [jnp.asarray(hyper.rate_fast, float), jnp.asarray(hyper.rate_slow, float)]
        )
        speed = (rate == speeds[1]).astype("int32")[clients]
    law = {
        "contact_probability": hyper.num_selected / hyper.num_clients,
        "round_time": hyper.period,
        "law": hyper.runtime_law,
    }
    if hyper.alpha_by_tick:
        tick = jnp.arange(clients.shape[0])[:, None]
        any_step = step_counts.prob_any_by_tick(speeds, num_ticks=clients.shape[0], **law)[
            tick, speed
        ]
        mean_steps = step_counts.mean_steps_by_tick(
            speeds, num_ticks=clients.shape[0], max_steps=hyper.local_steps, **law
        )
        return any_step, mean_steps[tick, speed]
    any_step = step_counts.prob_any(speeds, **law)[speed]
    return any_step, step_counts.mean_steps(speeds, max_steps=hyper.local_steps, **law)[speed]


def _estimates(schedule: Timeline) -> tuple[Array, Array]:
    """The same, as means over the client's contacts so far, this one included."""
    flat, steps = schedule.clients.ravel(), schedule.steps.ravel()
    _, visit = previous_visits(schedule.clients)
    order = jnp.argsort(flat, stable=True)
    back = jnp.argsort(order)

    def running_mean(value: Array) -> Array:
        total = jnp.cumsum(value[order])
        visits = visit.ravel()[order]
        before = (total - value[order])[jnp.arange(total.size) - visits]
        return ((total - before) / (visits + 1))[back].reshape(schedule.clients.shape)

    return running_mean((steps > 0).astype(schedule.weight.dtype)), running_mean(
        steps.astype(schedule.weight.dtype)
    )


system = System(
    name="favano",
    summary="periodic contacts; clients' progress is divided by alpha, which makes it nearly independent of their speed",
    Hyper=Hyper,
    timeline=timeline,
    algorithm=algorithm,
    ticks_within=lambda hyper, time: time / hyper.period,
    overshoot=False,
)
