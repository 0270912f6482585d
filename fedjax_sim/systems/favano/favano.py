"""FAVANO (Leconte, Nguyen and Moulines, arXiv 2305.16099), Algorithm 1.

    w_t -> `state.server`         w_init^i -> `start`      w^i -> `local`    S_t -> `event.clients`
    min(E^i, K) -> `event.steps`  K -> `hyper.local_steps` eta -> `hyper.lr`
    1 / alpha^i -> `event.weight`

E^i is the number of local steps for which client i had time since its last contact.

alpha depends on the clock alone, so it is part of the timeline (`inverse_alpha`, by the closed
forms of `step_counts`). A selected client that finished no step reports its stale `w_init` (0 / 0
:= 0) and so pulls the server back to it.

Readings. The paper leaves open which reweighting its experiments use. The default of `reweight` is
"stochastic", alpha = P(E > 0) min(E, K); with "deterministic" alpha is the mean of min(E, K). Both
use the stationary law of E. "estimated_stochastic" and "estimated" use the client's own history up
to and including this contact: all that a server can do that does not know the rates, and needed
with a recorded trace. "none" is alpha = 1. `alpha_by_tick` replaces the
stationary law by the exact law at server step t, which differs in the first ten steps or so. The
running time of a local step is geometric in `paper`, see `timelines.ClientDelays`; the switches of
`timelines.Contacts` give other clocks. The stationary alphas follow only `runtime_law`, which is
what the paper's server can know.
"""

from typing import Annotated

import jax.numpy as jnp
import numpy as np

from fedjax_sim import timelines
from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.core import types
from fedjax_sim.core.settings import ConfigError, OneOf, is_known, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Plan, Problem, Work
from fedjax_sim.server import ReportMessages, Reports, Wire, scaled_progress
from fedjax_sim.server.versions import Versioned, stale_models
from fedjax_sim.systems.favano import step_counts
from fedjax_sim.timelines import Contacts, cohorts, presets

REWEIGHTS = ("stochastic", "deterministic", "none", "estimated_stochastic", "estimated")
CLOSED_FORM = ("stochastic", "deterministic")
"""Reweightings that need a law of the step count."""


@struct
class Hyper(Contacts, LocalTraining, Reports):
    """Settings of FAVANO: its clock, local training, messages, and the reweighting."""

    reweight: Annotated[str, OneOf(REWEIGHTS)] = setting(
        "stochastic", "How alpha is computed, see the module."
    )
    alpha_by_tick: bool = setting(
        False,
        'Whether "stochastic" and "deterministic" use the law at the server step instead of the '
        "stationary one.",
        only_with={"reweight": CLOSED_FORM},
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        if self.reweight in CLOSED_FORM:
            self._check_law()
        if self.alpha_by_tick and np.any(np.asarray(self.clock.first_contact) != 1):
            raise ConfigError("alpha_by_tick", True, "false unless first_contact is 1")

    def _check_law(self) -> None:
        others = "one of none, estimated_stochastic, estimated"
        if self.delays.trace is not None:
            raise ConfigError("reweight", self.reweight, f"{others} with a recorded trace")
        table = self.delays.client_table
        is_always_there = not (self.delays.has_breaks or self.delays.loses_updates)
        if not is_always_there or (table is not None and table.has_bandwidth):
            words = f"{others} where clients have breaks, bandwidths or losses"
            raise ConfigError("reweight", self.reweight, words)
        law, period = self.delays.law.name, np.asarray(self.period, float)
        if law not in timelines.STEP_COUNT_LAWS:
            raise ConfigError("reweight", self.reweight, f"{others} under {law}")
        if law == "runtime_geom" and np.any(period != np.round(period)):
            allowed = "whole under runtime_geom with this reweighting"
            raise ConfigError("server_wait + server_interact", float(period.ravel()[0]), allowed)


def timeline(key: Key, hyper: Hyper, num_ticks: int) -> types.Timeline:
    """Schedule periodic contacts; the arguments are those of `System.timeline`.

    The weight of a slot is 1 / alpha.
    """
    schedule, _ = timelines.schedule_contacts(key, hyper, num_ticks)
    weight = inverse_alpha(schedule, timelines.draw_client_rates(key, hyper), hyper)
    return schedule._replace(weight=weight)


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[Versioned, Work]:
    """Bind FAVANO to a problem; the arguments are those of `System.algorithm`."""
    train = local_training(problem, hyper, plan)
    wire = Wire(problem, hyper, plan)

    def init(key: Key) -> Versioned:
        return wire.first_version(problem.init(key))

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)
        local, work = train(key, event, starts=start)
        local, memo = wire.receive(key, event, state.memo, start, local)
        # u[i] = w_init[i] + (w[i] - w_init[i]) / alpha[i]
        reports = scaled_progress(start, local, event.weight)
        # w_t = (w_{t-1} + sum_i u[i]) / (s + 1)
        server = wire.mean_with_server(key, event, state.server, reports)
        return wire.next_version(key, event, state, memo, server), work

    return wire.algorithm(init, step)


def inverse_alpha(schedule: types.Timeline, rate: Array, hyper: Hyper) -> Array:
    """Compute 1 / alpha of every slot, 0 where no step was done.

    Args:
      schedule: The contacts.
      rate: `f64[N]`, local steps per unit of time.

    Returns:
      `f64[T, S]`.
    """
    if hyper.reweight == "none":
        return jnp.ones_like(schedule.weight)
    if "estimated" in hyper.reweight:
        any_step, mean_steps = _estimates(schedule)
    else:
        any_step, mean_steps = _expectations(schedule, rate, hyper)
    is_stochastic = "stochastic" in hyper.reweight
    alpha = any_step * schedule.steps.astype(any_step.dtype) if is_stochastic else mean_steps
    return jnp.where(schedule.steps > 0, 1 / jnp.where(schedule.steps > 0, alpha, 1.0), 0.0)


def _expectations(schedule: types.Timeline, rate: Array, hyper: Hyper) -> tuple[Array, Array]:
    """Compute P(E > 0) and E[E ^ K] from the law of the step count: `f64[T, S]` each."""
    clients, num_ticks = schedule.clients, schedule.clients.shape[0]
    speeds, speed = rate, clients
    if hyper.delays.client_table is None and is_known(hyper.delays.rate_spread, 0):
        # Clients of one speed share one law.
        rates = hyper.delays.rate_fast, hyper.delays.rate_slow
        speeds = jnp.stack([jnp.asarray(rate, float) for rate in rates])
        speed = (rate == speeds[1]).astype("int32")[clients]
    share, name = hyper.num_selected / hyper.num_clients, hyper.delays.law.name
    law = step_counts.StepCounts(speeds, share, hyper.period, name)
    if not hyper.alpha_by_tick:
        return law.prob_any()[speed], law.mean(hyper.local_steps)[speed]
    tick = jnp.arange(num_ticks)[:, None]
    any_step, mean = law.prob_any_by_tick(num_ticks), law.mean_by_tick(hyper.local_steps, num_ticks)
    return any_step[tick, speed], mean[tick, speed]


def _estimates(schedule: types.Timeline) -> tuple[Array, Array]:
    """Estimate the same by means over the client's contacts so far, this one included."""
    shape, dtype = schedule.clients.shape, schedule.weight.dtype
    steps = schedule.steps.ravel()
    visits = cohorts.previous_visits(schedule.clients)[1].ravel()
    order = jnp.argsort(schedule.clients.ravel(), stable=True)
    back, visits = jnp.argsort(order), visits[order]

    def running_mean(value: Array) -> Array:
        total = jnp.cumsum(value[order])
        before = (total - value[order])[jnp.arange(total.size) - visits]
        return ((total - before) / (visits + 1))[back].reshape(shape)

    return running_mean((steps > 0).astype(dtype)), running_mean(steps.astype(dtype))


paper = presets.preset(Hyper, presets.FAVANO)
"""Its docstring names the experiments."""
system = types.System(
    "favano",
    Hyper,
    timeline,
    algorithm,
    "periodic contacts; progress divided by alpha, which makes it nearly independent of speed",
    overshoot=False,
    messages=ReportMessages(has_weights=False),
    hints=types.Hints(lambda hyper, time: time / hyper.period),
    paper=paper,
)
"""FAVANO under its name."""
