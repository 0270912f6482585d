"""FAVANO (Leconte, Nguyen and Moulines, arXiv 2305.16099), Algorithm 1.

    w_t -> `state.server`         w_init^i -> `start`      w^i -> `local`    S_t -> `event.clients`
    min(E^i, K) -> `event.steps`  K -> `hyper.local_steps` eta -> `hyper.lr`
    1 / alpha^i -> `event.weight`

E^i is the number of local steps for which client i had time since its last contact.

alpha depends on the clock alone, so it is part of the timeline (`inverse_alpha`, by the closed
forms of `StepCounts`). A selected client that finished no step reports its stale `w_init` (0 / 0
:= 0) and so pulls the server back to it.

Readings. The paper leaves open which reweighting its experiments use. The default of `reweight` is
"stochastic", alpha = P(E > 0) min(E, K); with "deterministic" alpha is the mean of min(E, K). Both
use the stationary law of E. "estimated_stochastic" and "estimated" use the client's own history up
to and including this contact: all that a server can do that does not know the rates, and needed
with a recorded trace. "none" is alpha = 1. The running time of a local step is geometric in
`paper`, see `timelines.ClientDelays`; the switches of `timelines.Contacts` give other clocks. The
stationary alphas follow only `runtime_law`, which is what the paper's server can know.

Closed forms. Laws of the number of local steps that a client does between two contacts.

The setting is that of FAVANO (Leconte, Nguyen, Moulines, arXiv 2305.16099, App. C). The server acts
every `round_time` D and contacts each client with probability p = `contact_probability` (s out of
n), so the window between two contacts of a client lasts D R, where R is geometric. E counts the
local steps that the client could have done in the window, and X = min(E, K), with K = `max_steps`,
those that it did. The paper needs P(E > 0) and moments of X for its reweighting but gives no
formulas: all of them are derived here, over windows between contacts.

Windows are stationary long after the start of a run, when R has its full geometric law. At server
step t a window lasts min(R, t) rounds, because all clients start at time 0; in the first ten steps
or so the exact law differs.

Laws of the step count, by name:

- "runtime_geom": each local step takes a geometric number of time units, of mean 1/rate, so E is
  Binomial(window, rate). Windows must be whole numbers.
- "runtime_exp": each local step takes an exponential time of mean 1/rate, so E is
  Poisson(rate * window).
- "count_geom": E itself is geometric on {1, 2, ...} with mean 1/rate, whatever the window, as App.
  C.2 literally says.

Arguments that are numbers broadcast against each other, to the shape written `[...]`, and may be
traced. Results have JAX's default float type, which is 64-bit where that is enabled.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special, stats

from fedjax_sim import timelines
from fedjax_sim.clients import LocalTraining, local_training, rows
from fedjax_sim.core import batching, types
from fedjax_sim.core.settings import ConfigError, OneOf, is_known, setting, struct
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import ReportMessages, Reports, Robust, Wire, attacks, compression, stages
from fedjax_sim.server.aggregation import scaled_progress
from fedjax_sim.server.reports import Versioned, stale_models
from fedjax_sim.timelines import Contacts, cohorts, presets


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepCounts:
    """The law of E, and of X, over stationary windows between two contacts.

    Attributes:
      rate: Local steps per unit of virtual time, `f[...]`.
      contact_probability: Probability p that a round contacts the client, `f[...]`.
      round_time: Time D between two server actions, in units of virtual time, `f[...]`.
      law: A name from the list in this module's docstring.
    """

    rate: Array | float
    contact_probability: Array | float
    round_time: Array | float
    law: str = dataclasses.field(metadata={"static": True})

    @partial(jax.jit, static_argnames="num")
    def probabilities(self, num: int) -> Array:
        """Compute P(E = k) for k = 0, ..., num - 1. Derived.

        Let b_j be the probability of j steps in one round. The generating function of E,
        p b(u) / (1 - (1 - p) b(u)), gives the probabilities
        a_k = (p b_k + (1 - p) sum_{j=1}^k b_j a_{k-j}) / (1 - (1 - p) b_0).
        With p = 1 these are the b_k.

        Returns:
          Probabilities, `f[..., num]`.
        """

        def one_client(rate: Array, p: Array, round_time: Array) -> Array:
            counts = jnp.arange(num, dtype=float)
            if self.law == "count_geom":
                return jnp.where(counts == 0, 0.0, rate * (1 - rate) ** jnp.maximum(counts - 1, 0))
            if self.law == "runtime_geom":
                in_round = stats.binom.pmf(counts, round_time, rate)
            else:
                in_round = stats.poisson.pmf(counts, rate * round_time)

            def next_probability(recent: Array, in_this_round: Array) -> tuple[Array, Array]:
                """Compute a_k from `recent`: a_{k-1}, a_{k-2}, ... and zeros before a_0."""
                before = (1 - p) * jnp.sum(in_round[1:] * recent)
                this = (p * in_this_round + before) / (1 - (1 - p) * in_round[0])
                return jnp.concatenate([this[None], recent])[: num - 1], this

            return jax.lax.scan(next_probability, jnp.zeros(num - 1, counts.dtype), in_round)[1]

        arrays = self._arrays()
        found = jax.vmap(one_client)(*(array.ravel() for array in arrays))
        return found.reshape(*arrays[0].shape, num)

    @partial(jax.jit, static_argnames="max_steps")
    def at_least(self, max_steps: int) -> Array:
        """Compute P(E >= k) for k = 1, ..., K: `f[..., K]`, of sum E[X]. Derived."""
        above_zero = self.prob_any()[..., None]
        between = jnp.cumsum(self.probabilities(max_steps)[..., 1:], axis=-1)
        return jnp.concatenate([above_zero, jnp.maximum(above_zero - between, 0.0)], axis=-1)

    @jax.jit
    def prob_any(self) -> Array:
        """Compute P(E > 0), `f[...]`. Derived.

        It is (1 - z) / (1 - (1 - p) z), where z is the probability of no step in a round.
        """
        rate, p, round_time = self._arrays()
        any_in_round = {
            "runtime_geom": -jnp.expm1(special.xlog1py(round_time, -rate)),
            "runtime_exp": -jnp.expm1(-rate * round_time),
            "count_geom": jnp.ones_like(rate),
        }[self.law]
        return any_in_round / (p + (1 - p) * any_in_round)

    @partial(jax.jit, static_argnames="max_steps")
    def mean(self, max_steps: int) -> Array:
        """Compute E[X], `f[...]`: FAVANO's deterministic reweighting, eq. (3). Derived."""
        return jnp.sum(self.at_least(max_steps), axis=-1)

    def _arrays(self) -> Sequence[Array]:
        """Rate, contact probability and time of a round, as floats of one shape."""
        numbers = self.rate, self.contact_probability, self.round_time
        return jnp.broadcast_arrays(*(jnp.asarray(number, float) for number in numbers))


REWEIGHTS = ("stochastic", "deterministic", "none", "estimated_stochastic", "estimated")
CLOSED_FORM = ("stochastic", "deterministic")
"""Reweightings that need a law of the step count."""


@struct
class Hyper(Contacts, LocalTraining, Reports):
    """Settings of FAVANO: its clock, local training, messages, and the reweighting."""

    reweight: Annotated[str, OneOf(REWEIGHTS)] = setting(
        "stochastic", "How alpha is computed, see the module."
    )

    def check_together(self) -> None:
        """Check combinations of settings."""
        super().check_together()
        if self.reweight not in CLOSED_FORM:
            return
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

    def step(key: Key, state: Versioned, event: Event) -> tuple[Versioned, Work]:
        start = stale_models(state, event)
        local, work = train(key, event, starts=start)
        local, memo = wire.receive(key, event, state.memo, start, local)
        # u[i] = w_init[i] + (w[i] - w_init[i]) / alpha[i]
        reports = wire.of_trained(scaled_progress(start, local, event.weight), local)
        # w_t = (w_{t-1} + sum_i u[i]) / (s + 1)
        server = wire.mean_with_server(key, event, state.server, reports)
        return wire.next_version(key, event, state, memo, server), work

    return wire.algorithm(lambda key: wire.first_version(problem.init(key)), step)


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
    clients = schedule.clients
    speeds, speed = rate, clients
    if hyper.delays.client_table is None and is_known(hyper.delays.rate_spread, 0):
        # Clients of one speed share one law.
        rates = hyper.delays.rate_fast, hyper.delays.rate_slow
        speeds = jnp.stack([jnp.asarray(rate, float) for rate in rates])
        speed = (rate == speeds[1]).astype("int32")[clients]
    share, name = hyper.num_selected / hyper.num_clients, hyper.delays.law.name
    law = StepCounts(speeds, share, hyper.period, name)
    return law.prob_any()[speed], law.mean(hyper.local_steps)[speed]


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


# QuAFL.


@struct
class QuAFL(Contacts, LocalTraining, compression.Compression, Robust):
    """QuAFL (Zakerinia et al., arXiv 2206.10032), as FAVANO's paper describes and runs it.

        w_t -> `state.server`    w^i -> `state.clients[i]`    S_t -> `event.clients`
        min(E^i, K) -> `event.steps`    s -> cohort size

    Readings (FAVANO, arXiv 2305.16099, Sec. 5). Messages are sent in full precision, because the
    paper does not say that it quantizes them, unless `compression` is other than the identity. A
    client mixes in the server's model from *before* the contact, as written. QuAFL's public
    simulator multiplies `lr` by (s + 1) / s.

    As in the paper, messages may be quantized by a `Lattice`, which the receiver decodes with its
    own model: the server y[i] with w_{t-1}, and the client w_{t-1} with w^i as it was after the
    last contact.

    Deviation: Any unbiased compressor Q is allowed too, applied to differences from what both sides
    know: the server's model goes down as v[i] = r[i] + Q(w_{t-1} - r[i]) and the client's model
    comes up as v[i] + Q(y[i] - v[i]). The reference r[i] is w_0 at first and moves by
    Q(w_{t-1} - r[i]) / (1 + omega), like the memories of DIANA and FedEM.
    """

    has_references = True


RELIED_ON = (("compression", compression.Identity()), *stages.COMBINED)


class QuaflState(NamedTuple):
    """The state of QuAFL.

    Attributes:
      server: The server's model, leaves `[...]`.
      clients: Each client's model after its last contact, leaves `[N, ...]`.
      known: References r[i] that server and client both know, leaves `[N, ...]`; () without
        compression, or with a lattice.
    """

    server: Params
    clients: Params
    known: Params


def same_contacts(key: Key, hyper: QuAFL, num_ticks: int) -> types.Timeline:
    """Schedule periodic contacts, the same as FAVANO's from the same key."""
    return timelines.schedule_contacts(key, hyper, num_ticks)[0]


def with_own_models(problem: Problem, hyper: QuAFL, plan: Plan) -> Algorithm[QuaflState, Work]:
    """Bind QuAFL to a problem."""
    train = local_training(problem, hyper, plan)
    has_lattice = hyper.compression.needs_reference
    has_known = not (has_lattice or isinstance(hyper.compression, compression.Identity))
    senders = attacks.Senders(problem.counts.shape[0], hyper.adversary)
    forgery = stages.Forgery(hyper.adversary.attack, senders)
    rule = stages.Aggregation(hyper.aggregator, senders)

    def init(key: Key) -> QuaflState:
        server = problem.init(key)
        clients = batching.replicate(server, problem.counts.shape[0])
        return QuaflState(server, clients, clients if has_known else ())

    def step(key: Key, state: QuaflState, event: Event) -> tuple[QuaflState, Work]:
        is_present = event.clients >= 0
        who = jnp.maximum(event.clients, 0)
        start, known = rows.read_rows(state.clients, who), rows.read_rows(state.known, who)
        # y[i], after min(E, K) steps, not scaled
        local, work = train(key, event, starts=start, own=start)
        sent = batching.replicate(state.server, event.clients.shape[0])
        decode = partial(compression.decode_messages, hyper.compression, key, event)
        seen = decode(start if has_lattice else known, sent, way="down")  # v[i]
        claimed, _ = forgery.client(key, event, (), start, local)
        reports = decode(sent if has_lattice else seen, claimed)
        # w_t = (w_{t-1} + sum_i y[i]) / (s + 1)
        server = rule.mean_with_server(key, event, state.server, reports)
        # w[i] = w_{t-1} / (s + 1) + s / (s + 1) y[i]
        share = 1 / (1 + is_present.sum())
        mixed = jax.tree.map(lambda v, y: y + (v - y) * share.astype(y.dtype), seen, local)
        if has_known:
            pace = 1 / (1 + hyper.compression.omega(compression.count_parameters(state.server)))
            known = jax.tree.map(lambda r, v: r + (v - r) * jnp.asarray(pace, r.dtype), known, seen)
        clients = rows.write_clients(state.clients, event.clients, mixed)
        known = rows.write_clients(state.known, event.clients, known)
        return QuaflState(server, clients, known), work

    def client_models(state: QuaflState) -> tuple[Params, Array]:
        return state.clients, jnp.ones(problem.counts.shape)

    return Algorithm(
        init,
        step,
        lambda state: state.server,
        client_models=client_models,
        supports=dict(RELIED_ON),
    )


class QuaflMessages(types.Messages):
    """The messages of QuAFL, compressed both ways."""

    relies_on = RELIED_ON

    def bits(self, params: Params, hyper: QuAFL) -> tuple[int, int]:
        """Count the bits of a message to the server and of one from it."""
        up = hyper.aggregator.chosen.message_bits(hyper.compression, params)
        return up, compression.count_message_bits(hyper.compression, params)

    def check(self, hyper: QuAFL, timeline: types.Timeline) -> None:
        """Check numbers of messages; their weights are equal."""
        rule = hyper.aggregator.chosen
        rule.check_ticks(hyper, "aggregator", timeline, has_weights=False)


quafl: types.System = types.System(
    "quafl",
    QuAFL,
    same_contacts,
    with_own_models,
    "periodic contacts; clients mix the server's model into their own",
    overshoot=False,
    messages=QuaflMessages(),
    hints=types.Hints(lambda hyper, time: time / hyper.period),
    paper=presets.preset(QuAFL, presets.FAVANO),
)
