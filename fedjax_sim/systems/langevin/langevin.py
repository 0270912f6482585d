"""FA-LD, federated averaging Langevin dynamics (arXiv 2112.05120), Algorithms 1 to 4.

    theta_k -> `state.server`    beta^c -> `local`        K -> `hyper.local_steps`
    eta -> `hyper.step_size`     rho -> `hyper.rho`       tau -> `hyper.temperature`
    p_c -> `hyper.client_weights`    S -> `hyper.num_selected`
    k -> tick * K + local step, never reset

By Deng, Zhang, Ma, Song and Lin. It samples from exp(-f / tau), where f is the sum (not the mean)
of all examples' losses, written as f = sum_c p_c f^c. So f^c is n_c / p_c times the mean loss of
client c, or n times if p_c = n_c / n, and a step size is 1 / n of FedAvg's learning rate. Every
step of client c is

    beta^c = theta^c - eta grad f^c
             + sqrt(2 eta tau rho^2) xi + sqrt(2 eta tau (1 - rho^2) / p_c) xi^c

with noise xi shared by all clients and private noise xi^c, so that the average over all clients has
noise of variance 2 eta tau a step. Private noise and mini-batches depend only on seed, client and
k, shared noise only on seed and k; neither depends on rho, K or who takes part.

Special cases. SGLD is K = 1 with everyone. FedAvg is temperature 0, with lr = n eta. The one-shot
average of samples from the local posteriors exp(-l^c / tau), where l^c = p_c f^c is the sum of the
losses of client c, is rho = 0 and one round of many steps (`budget=Ticks(1)`). Theorem 5.8's
falling step size 1 / (2 L + m k / 12) is `step_size` 1 / (2 L) with the schedule
`InverseTime(decay=m / (24 L), by="step")`.

Readings. Clients are selected before a round instead of after it. That has the same law and costs
the other clients nothing; uplink and downlink are counted for the selected clients. Under partial
participation the average has more noise than 2 eta tau: in the algorithm as printed
phi = 1 + (1 - rho^2) (N - 1) C_S / S times as much, where C_S is 1 for draws with replacement and
(N - S) / (N - 1) without. `noise_correction`, which is not in the paper, divides the private
variance by 1 + (N - 1) C_S / S. Mini-batches are drawn without replacement for each step; with
`gradient="exact"` they are all of a client's examples. A batch that is larger than a client's
examples runs through them again, so that some count once more than others: unbiased, with more
noise than necessary. With `paper` virtual time is the number of steps done, because clients act in
lock-step; by default their speeds differ, and a round lasts as long as its slowest client needs.

Methods that share the kernel. Each is a setting, off by default, and they can be combined.

- `compression` Q: a client sends Q(theta_K^c - r - h_c), where r is the model that a client without
  data would reach, so that shared noise, which the server knows, costs nothing. With K = 1, rho = 1
  and h = 0 this is QLSD (Vono, Plassier, Durmus, Dieuleveut and Moulines 2022, arXiv 2106.00797),
  whose noise is the server's. `memory` alpha is the step size of the memories h_c, which follow the
  clients' progress (`methods`); with `anchor="client"` this is QLSD++.
- `anchor`: mini-batch gradients are corrected by whole gradients at an anchor
  (`methods`): variance reduction, or the conducive gradients of FSGLD.
- `friction` a < 1: SGHMC (Chen, Fox and Guestrin 2014, arXiv 1402.4102, eq. 15),
  v <- (1 - a) v - eta grad f^c + noise of temperature a tau, theta <- theta + v. Velocities are
  sent and averaged like models. a = 1 is FA-LD.
- `preconditioner="rmsprop"`: pSGLD (`methods`, with its deviation).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim import clients
from fedjax_sim.clients import ClientTraining, Training, local_steps
from fedjax_sim.core import batching, settings, streams, types
from fedjax_sim.core.schedules import Schedule, schedule_of
from fedjax_sim.core.settings import Checked, ConfigError, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, Portion, Probability
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import keep_if_empty, mean_of
from fedjax_sim.server.compression import Identity, count_message_bits
from fedjax_sim.systems.langevin import methods
from fedjax_sim.systems.langevin.methods import Anchor, Controls, ModelMemories, Square
from fedjax_sim.timelines import WeightedRounds, presets, rounds_within, schedule_weighted_rounds


def _makes_transformation(value: object) -> bool:
    try:
        return callable(value) and isinstance(value(), optax.GradientTransformation)
    except (TypeError, ValueError):
        return False


@struct
class Dynamics(Checked):
    """Settings of the dynamics that Langevin steps follow."""

    noise_correction: bool = setting(
        False,
        "Whether private noise is scaled down so that partial participation keeps the temperature.",
    )
    transform: Callable[[], optax.GradientTransformation] = setting(
        optax.identity,
        "Applied to the gradients of f^c before each step, such as "
        "`partial(optax.clip_by_global_norm, 1.0)`.",
        allowed="a function that makes an optax gradient transformation",
        accepts=_makes_transformation,
        parse=lambda text: settings.parse_function(vars(optax), text),
    )
    friction: Portion = setting(
        1.0, "Friction a of SGHMC; 1 for none of its momentum.", simpler_at=(1.0,)
    )


@struct
class Hyper(WeightedRounds):
    """Settings of FA-LD: participation, clock, Langevin steps, and methods that share these."""

    step_size: Above0 = setting(1e-6, "Step size eta, of the order of 1 / n.")
    step_size_schedule: Schedule = schedule_of("step_size", ("round", "step"))
    temperature: AtLeast0 = setting(1.0, "Temperature tau.", simpler_at=(0.0,))
    # A mixing weight. The noise of clients i and j has the correlation rho^2 / (s_i s_j), with
    # s_c^2 = rho^2 + (1 - rho^2) / p_c.
    rho: Probability = setting(
        0.0,
        "Weight of the noise that all clients share (the correlation of their noise is smaller).",
        simpler_at=(0.0, 1.0),
        only_with={"temperature": settings.is_not(0)},
    )
    gradient: Literal["minibatch", "exact"] = setting(
        "minibatch", "Gradients of a mini-batch or of all examples."
    )
    batch_size: Count = setting(32, "Examples of a mini-batch.")
    training: ClientTraining = settings.group(
        ClientTraining(sampling="without_replacement"),
        "clipping of the gradients of single examples",
        without=("sampling", "optimizer", "optimizer_state", "lr_schedule", "proximal_schedule"),
    )
    dynamics: Dynamics = settings.group(
        Dynamics(), "momentum, transformed gradients, private noise"
    )
    control_variates: Controls = settings.group(
        Controls(), "anchors that lessen the gradients' noise"
    )
    preconditioning: methods.Preconditioning = settings.group(
        methods.Preconditioning(), "steps scaled by the gradients' size"
    )
    messages: ModelMemories = settings.group(
        ModelMemories(), "compression of messages, and its memories"
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If one setting has no use for another.
        """
        super().check_together()
        if self.gradient == "exact" and self.training.example_clip > 0:
            allowed = "0 with exact gradients; a batch_size as large as a client clips all examples"
            raise ConfigError("training.example_clip", self.training.example_clip, allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        found = super().decided()
        if self.participants == "full":
            found["dynamics.noise_correction"] = "full participation"
        return found

    @property
    def has_momentum(self) -> bool:
        """Whether clients have velocities, as far as is known."""
        return not settings.is_known(self.dynamics.friction, 1)

    @property
    def noise_inflation(self) -> float:
        """1 + (N - 1) C_S / S, the factor on the variance of the averaged private noise.

        It compares partial with full participation.
        """
        if self.participants == "full":
            return 1.0
        others = 1 if self.participants == "with_replacement" else self.num_selected
        return 1 + (self.num_clients - others) / self.num_selected


class State(NamedTuple):
    """The state of FA-LD; () for a part that is not used.

    Attributes:
      server: theta_k, leaves `[...]`.
      velocity: The mean of the clients' velocities v, leaves `[...]`.
      memory: What compressed messages are relative to, h_c, leaves `[N, ...]`.
      anchor: Where control variates are computed, and what they are.
      square: The preconditioner's V.
    """

    server: Params
    velocity: Params = ()
    memory: Params = ()
    anchor: Anchor = Anchor()
    square: Square = Square()


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind FA-LD to a problem; the arguments are those of `System.algorithm`."""
    share = hyper.shares(problem.counts)
    factor = problem.counts / share  # the gradient of f^c over that of the client's mean loss
    is_exact, has_momentum = hyper.gradient == "exact", hyper.has_momentum
    correction = hyper.noise_inflation if hyper.dynamics.noise_correction else 1.0
    counts, whole_at = problem.counts, clients.gradients_at(problem, hyper, plan, is_exact=True)
    slopes_at = clients.gradients_at(problem, hyper, plan, is_exact=is_exact)
    variates = methods.ControlVariates(hyper.control_variates, counts, factor, whole_at)
    scaling = methods.Preconditioner(hyper.preconditioning, counts, factor, slopes_at)

    def init(key: Key) -> State:
        server = problem.init(key)
        zero, memory = optax.tree.zeros_like(server), ()
        if not settings.is_known(hyper.messages.memory, 0):
            memory = batching.replicate((zero, zero) if has_momentum else zero, len(share))
        velocity = zero if has_momentum else ()
        return State(server, velocity, memory, variates.first(server), scaling.first(server))

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        # Before the steps: the anchor and the preconditioner of this round, and the
        # noise of all clients.
        first = event.tick * jnp.asarray(hyper.local_steps, "int32")  # k of the round's first step
        anchor, work_at_anchor = variates.move(key, event, state.anchor, state.server)
        square, work_of_scaling = scaling.move(key, event, state.square, state.server, first)
        root = scaling.root(square)
        if not event.facts.keeps("steps"):
            # Another number of steps than K would use a draw in two rounds.
            key = jax.random.fold_in(key, event.tick)
        shared = noise(hyper, streams.lane_stream(key, "shared noise"), first, hyper.rho**2)
        most_steps = event.facts.most_steps

        def training(start: Params, client: Array, offset: Array, *whole: Params) -> Training:
            client_key = jax.random.fold_in(streams.lane_stream(key, "local"), client)
            if is_exact:
                drawn = streams.lane_stream(client_key, "noise")
                mean = clients.whole_gradient(problem, drawn, client, first, most_steps=most_steps)
            else:
                mean = clients.batch_gradient(
                    problem, hyper, key, client, first, most_steps=most_steps, is_alone=True
                )
            gradient = variates.corrected(mean, anchor, factor[client], whole)  # of f^c
            own_key = streams.lane_stream(client_key, "private noise")
            weight = share[client] * correction
            private = noise(hyper, own_key, first, 1 - hyper.rho**2, weight)
            moves = langevin_steps(hyper, first, root, [*shared, *private])
            return Training(clients.of_pair(gradient) if has_momentum else gradient, moves)

        # K local steps of every slot.
        start = (state.server, state.velocity) if has_momentum else state.server
        whole = variates.of_slots(anchor, jnp.maximum(event.clients, 0))
        local, _, work = local_steps(plan, event, training, start=start, extras=whole)
        # p_c, 1/S, or j/S for a client drawn j times
        mean, memory = mean_of(event, start, local), state.memory
        if not isinstance(hyper.messages.compression, Identity):
            if not event.facts.keeps("steps"):
                allowed = "identity where a step changes how many local steps clients do"
                raise ConfigError("messages.compression", str(hyper.messages.compression), allowed)
            known = langevin_steps(hyper, first, root, shared)
            known = clients.without_gradients(known, start, hyper.local_steps)
            sent = hyper.messages, key, event, share, memory, known, local
            mean, memory = methods.decode_mean(*sent, is_full=hyper.participants == "full")
        # The round's state; an empty round changes nothing.
        server, velocity = mean if has_momentum else (mean, ())
        after = State(server, velocity, memory, anchor, square)
        per_step = 1 if hyper.control_variates.anchor == "none" else 2  # gradients of a step
        work = work.and_more(work_at_anchor, work_of_scaling, times=per_step)
        return keep_if_empty(event, after, state), work

    return Algorithm(init, step, lambda state: state.server, supports=dict(RELIED_ON))


def langevin_steps(
    hyper: Hyper, first: Array, root: Params, noises: list[optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Make the steps of one client from its noises: preconditioned and with momentum, if set."""
    drift = optax.scale_by_schedule(lambda q: -eta(hyper, first + q))
    moves = optax.chain(drift, *noises)
    if hyper.preconditioning.preconditioner != "none":
        moves = clients.precondition(moves, root)
    moves = optax.chain(hyper.dynamics.transform(), moves)
    return clients.add_momentum(moves, hyper.dynamics.friction) if hyper.has_momentum else moves


def eta(hyper: Hyper, k: Array) -> Array:
    """Compute the size of step k."""
    is_by_step = hyper.step_size_schedule.clock == "step"
    t = k if is_by_step else k // jnp.asarray(hyper.local_steps, "int32")
    return hyper.step_size_schedule.of(hyper.step_size, t)


def noise(
    hyper: Hyper, key: Key, first: Array, part: Array | float, weight: Array | float = 1.0
) -> list[optax.GradientTransformation]:
    """Make sqrt(2 eta tau part / weight) xi; no transformation if it is known to be 0."""
    if settings.is_known(hyper.temperature, 0) or settings.is_known(part, 0):
        return []
    variance = temperature(hyper) * part / weight
    return [clients.add_langevin_noise(key, lambda k: eta(hyper, k), variance, first=first)]


def temperature(hyper: Hyper) -> Array | float:
    """Compute the temperature of a step's noise, a tau with momentum."""
    return hyper.temperature * (hyper.dynamics.friction if hyper.has_momentum else 1)


RELIED_ON = (
    ("messages.compression", Identity()),
    ("control_variates.anchor", "none"),
    ("preconditioning.preconditioner", "none"),
    ("dynamics.friction", 1.0),
)
"""Settings by which messages are counted, with the values that add none."""


@jax.jit
def _first_model(problem: Problem) -> Params:
    return problem.init(jax.random.key(0))


class Messages(types.Messages):
    """The messages of FA-LD."""

    relies_on = RELIED_ON

    def bits(self, params: Params, hyper: Hyper) -> tuple[int, int]:
        """Count the bits of a model, with its velocity if there is one, up and down."""
        sent = (params, params) if hyper.has_momentum else params
        return count_message_bits(hyper.messages.compression, sent), types.full_precision_bits(sent)

    def per_tick(
        self, problem: Problem, hyper: Hyper, timeline: types.Timeline
    ) -> tuple[types.Leaf, types.Leaf] | None:
        """Count the bits of each tick, where clients send more than their models."""
        anchor, scaling = hyper.control_variates.anchor, hyper.preconditioning.preconditioner
        if anchor == scaling == "none":
            return None
        # Traced once for all lanes, of which there may be thousands.
        model = jax.eval_shape(_first_model, problem)
        senders = (timeline.clients != types.EMPTY).sum(axis=1, dtype=np.int64)
        up, down = self.bits(model, hyper)
        size = types.full_precision_bits(model)
        both_ways = senders * size * (scaling != "none")
        # Anchors go to all clients, of whom participants receive the server's model anyway. Global
        # control variates need a gradient of every client and go back to all.
        moves = methods.anchor_moves(hyper.control_variates, senders)
        slopes = size * hyper.num_clients * moves * (anchor == "global")
        anchors = size * (hyper.num_clients - senders) * moves
        return senders * up + both_ways + slopes, senders * down + both_ways + slopes + anchors

    def by_client(
        self, problem: Problem, hyper: Hyper, timeline: types.Timeline
    ) -> types.Leaf | None:
        """Count the bits that each client sends and receives at each tick, `i64[T, N]`.

        None without control variates, as only participants send and receive then.
        """
        if hyper.control_variates.anchor == "none":
            return None
        model = jax.eval_shape(_first_model, problem)
        takes_part = np.zeros((len(timeline.time), hyper.num_clients), bool)
        ticks, slots = np.nonzero(timeline.clients != types.EMPTY)
        takes_part[ticks, timeline.clients[ticks, slots]] = True
        size, senders = types.full_precision_bits(model), takes_part.sum(axis=1, dtype=np.int64)
        is_scaled = hyper.preconditioning.preconditioner != "none"
        own = sum(self.bits(model, hyper)) + 2 * size * is_scaled
        slopes = 2 * size * (hyper.control_variates.anchor == "global")
        moves = methods.anchor_moves(hyper.control_variates, senders)[:, None]
        return takes_part * own + moves * (slopes + size * ~takes_part)


def complete(hyper: Hyper, problem: Problem | None) -> Hyper:
    """Fill in clients' weights from their numbers of examples, unless they are given.

    Without a problem, weights are equal.

    Raises:
      ConfigError: If exact gradients are asked for and the problem has none.
    """
    if hyper.gradient == "exact":
        clients.check_exact(problem, "gradient", "exact", "minibatch")
    if (anchor := hyper.control_variates.anchor) != "none":
        clients.check_exact(problem, "control_variates.anchor", anchor, "none")
    counts = np.ones(hyper.num_clients) if problem is None else np.asarray(problem.counts, float)
    return hyper.weighted(counts)


paper = presets.preset(Hyper, presets.LOCK_STEP)
"""Its docstring names the experiments."""
system = types.System(
    "langevin",
    Hyper,
    schedule_weighted_rounds,
    algorithm,
    "federated averaging Langevin dynamics: averages of noisy local steps sample a posterior",
    messages=Messages(),
    hints=types.Hints(rounds_within),
    fit=types.Fit(complete=complete),
    paper=paper,
)
"""FA-LD under its name."""
