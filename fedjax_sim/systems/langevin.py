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
  clients' progress; with `anchor="client"` this is QLSD++.
- `anchor`: mini-batch gradients are corrected by whole gradients at an anchor
  (below): variance reduction, or the conducive gradients of FSGLD.
- `friction` a < 1: SGHMC (Chen, Fox and Guestrin 2014, arXiv 1402.4102, eq. 15),
  v <- (1 - a) v - eta grad f^c + noise of temperature a tau, theta <- theta + v. Velocities are
  sent and averaged like models. a = 1 is FA-LD.
- `preconditioner="rmsprop"`: pSGLD (with the deviation below).
- `averaging="random"`: probabilistic averaging (Plassier, Moulines and Durmus 2022, arXiv
  2211.00100), after each local step with probability 1 / K in place of every K steps, by one coin
  for all clients. Their control variates are not part of it; `anchor` has others.

Control variates. A client's gradient is corrected by the gradient of the same mini-batch at the
anchor, and by a whole gradient there: of the client's examples ("client": variance reduction, as in
QLSD++), or of all clients' examples ("global", which also keeps clients from drifting apart; these
are the conducive gradients of FSGLD, el Mekkaoui et al. 2020, arXiv 2004.11231, with densities that
are linear in the parameters for surrogates). The anchor is the server's model of every
`control_rounds`-th round; of the next round with a report if nobody reports in that one.

Memories. A client sends Q(theta^c - r - h_c), where r is a model that both sides know and h_c is
its memory. Memories follow what was decoded with the step size alpha, as in QLSD++ (Vono, Plassier,
Durmus, Dieuleveut and Moulines 2022, arXiv 2106.00797) and DIANA.

Preconditioning, as in pSGLD, by 1 / (floor + sqrt(V)), where V follows the square of a gradient
(Li, Chen, Carlson and Carin 2016, arXiv 1512.07666) without their term Gamma, which they leave out
too.

Deviation: their preconditioner moves with every step. Here all clients share one for a round,
because the mean of noises that are scaled differently would have another temperature. V follows the
square of the clients' mean gradient at the server's model, and begins with the first such square
instead of 0.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim import clients
from fedjax_sim.clients import ClientTraining, Training, langevin_noise, local_steps, rows
from fedjax_sim.core import batching, schedules, settings, trees, types
from fedjax_sim.core.events import Timeline
from fedjax_sim.core.settings import Checked, ConfigError, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, Portion, Probability
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Params, Plan, Problem, Work
from fedjax_sim.server import aggregation, keep_if_empty, mean_of, weighted_sum
from fedjax_sim.server.compression import Compression, Identity, count_message_bits, decode_messages
from fedjax_sim.server.report_settings import Bits
from fedjax_sim.timelines import WeightedRounds, presets, rounds_within, schedule_weighted_rounds

SlopesAt = Callable[[Key, Event, Params], tuple[Params, Work]]
"""From a key, a tick and a model to the gradients of clients there, and the evaluations spent."""


@struct
class Controls(Checked):
    """Settings of control variates."""

    anchor: Literal["none", "client", "global"] = setting(
        "none",
        "Control variates of the gradients: whole gradients at an anchor, of the client or of all.",
    )
    control_rounds: Count = setting(
        1,
        "Rounds between two anchors of the control variates.",
        only_with={"anchor": ("client", "global")},
        traced=True,
    )


class Anchor(NamedTuple):
    """The anchors of control variates, and their gradients; () without control variates.

    Attributes:
      model: The anchor, leaves `[...]`.
      slopes: Gradients of the f^c there, leaves `[N, ...]`, or of f, leaves `[...]`.
      period: `i32[]`, how many times `control_rounds` rounds had passed then; -1 before the first.
    """

    model: Params = ()
    slopes: Params = ()
    period: Array | tuple[()] = ()


class ControlVariates:
    """Control variates that are bound to a problem and settings."""

    def __init__(self, controls: Controls, counts: Array, factor: Array, slopes_at: SlopesAt):
        """Bind them.

        Args:
          controls: The settings.
          counts: `i32[N]`, numbers of examples.
          factor: `f[N]`, the gradient of f^c over that of the mean loss of client c.
          slopes_at: Gradients of all of the clients' examples.
        """
        anchor, self.rounds = controls.anchor, controls.control_rounds
        self.is_used, self.is_global = anchor != "none", anchor == "global"
        self.counts, self.factor, self.slopes_at = counts, factor, slopes_at

    def first(self, model: Params) -> Anchor:
        """Begin at a model, before any gradient is known.

        Args:
          model: The model, leaves `[...]`.
        """
        if not self.is_used:
            return Anchor()
        zero = optax.tree.zeros_like(model)
        slopes = zero if self.is_global else batching.replicate(zero, len(self.counts))
        return Anchor(model, slopes, jnp.int32(-1))

    def move(self, key: Key, event: Event, anchor: Anchor, model: Params) -> tuple[Anchor, Work]:
        """Move the anchor to the server's model if its round has come, and somebody reports.

        Args:
          anchor: The anchor before.
          model: The server's model, leaves `[...]`.

        Returns:
          The anchor, and the gradient evaluations spent by all clients.
        """
        if not self.is_used:
            return anchor, Work(jnp.int32(0), jnp.int32(0))
        num_clients = len(self.counts)
        rounds = jnp.asarray(self.rounds, "int32")
        period = event.tick // rounds
        everyone = event.within(
            facts=types.Facts(all_filled=True, most_steps=1, same_steps=True),
            clients=jnp.arange(num_clients, dtype="int32"),
            steps=jnp.ones(num_clients, "int32"),
            offset=jnp.zeros(num_clients, "int32"),
        )

        if event.facts.all_filled:
            has_come = event.tick % rounds == 0
        else:
            has_come = (period > anchor.period) & jnp.any(event.clients >= 0)

        def to_model() -> tuple[Anchor, Work]:
            slopes, work = self.slopes_at(key, everyone, model)
            if self.is_global:
                slopes = weighted_sum(self.counts, slopes)
            else:
                of_f = jax.vmap(lambda g, scale: optax.tree.scale(scale, g))(slopes, self.factor)
                slopes = jax.tree.map(lambda g, f: f.astype(g.dtype), slopes, of_f)
            moved = Anchor(model, slopes, period), work.needed
            stayed = anchor, jnp.zeros_like(work.needed)
            moved, needed = jax.tree.map(partial(jnp.where, has_come), moved, stayed)
            return moved, work._replace(needed=needed)

        def stay() -> tuple[Anchor, Work]:
            return anchor, optax.tree.zeros_like(jax.eval_shape(to_model)[1])

        return jax.lax.cond(batching.any_lane(has_come), to_model, stay)

    def of_slots(self, anchor: Anchor, who: Array) -> tuple[Params, ...]:
        """Return the whole gradient of each slot, leaves `[S, ...]`; () without control variates.

        Args:
          anchor: The anchor.
          who: `i32[S]`, the clients, not negative.
        """
        if not self.is_used:
            return ()
        if self.is_global:
            return (batching.replicate(anchor.slopes, len(who)),)
        return (rows.read_rows(anchor.slopes, who),)

    def corrected(
        self,
        slope_of: clients.BatchGradient,
        anchor: Anchor,
        scale: Array,
        whole: tuple[Params, ...],
    ) -> clients.BatchGradient:
        """Make the corrected gradient of f^c from that of a client's mean loss.

        Args:
          slope_of: The gradient of the client's mean loss on a mini-batch.
          anchor: The anchor.
          scale: `f[]`, the gradient of f^c over that of the mean loss.
          whole: The client's part of what `of_slots` returned.

        Returns:
          The gradient of f^c on a mini-batch, with its control variate if there is one.
        """

        def gradient(model: Params, q: Array) -> Params:
            slope = slope_of(model, q)
            if self.is_used:
                slope = jax.tree.map(jnp.subtract, slope, slope_of(anchor.model, q))
            slope = jax.tree.map(lambda g: g * scale.astype(g.dtype), slope)
            return jax.tree.map(jnp.add, slope, whole[0]) if self.is_used else slope

        return gradient


def anchor_moves(controls: Controls, senders: np.ndarray) -> np.ndarray:
    """Tell at which ticks the anchor moves: `bool[T]`.

    Args:
      controls: The settings.
      senders: `i64[T]`, participants of each tick.
    """
    if controls.anchor == "none":
        return np.zeros(senders.shape, bool)
    period = np.arange(len(senders)) // int(controls.control_rounds)
    latest = np.maximum.accumulate(np.where(senders > 0, period, -1))
    return np.diff(latest, prepend=-1) > 0


@struct
class ModelMemories(Compression):
    """Settings of compressed messages and of the memories that they are relative to."""

    memory: AtLeast0 = setting(
        0.0,
        "Step size alpha of the memories that compressed messages are relative to, such as "
        "1 / (1 + omega); 0 for none. They take the memory of a model for each client.",
        simpler_at=(0.0,),
        only_with={"compression": lambda kind: not isinstance(kind, Identity)},
    )


def decode_mean(
    messages: ModelMemories,
    key: Key,
    event: Event,
    share: Array,
    memory: Params,
    reference: Params,
    models: Params,
    is_full: bool,
) -> tuple[Params, Params]:
    """Average the decoded messages, and move the memories h_c of those who send.

    Args:
      messages: The settings.
      share: `f[N]`, the clients' weights p_c, of sum 1.
      memory: h_c, leaves `[N, ...]`; () without memories.
      reference: r, leaves `[...]`.
      models: The models sent, leaves `[S, ...]`.
      is_full: Whether everyone takes part.

    Returns:
      The mean, leaves `[...]`, and the memories after.
    """
    references = batching.replicate(reference, event.clients.shape[0])
    has_memory = not settings.is_known(messages.memory, 0)
    known = rows.read_rows(memory, jnp.maximum(event.clients, 0)) if has_memory else ()
    if has_memory:
        references = jax.tree.map(jnp.add, references, known)
    models = decode_messages(messages.compression, key, event, references, models)
    mean = mean_of(event, reference, models)
    if not has_memory:
        return mean, memory
    sent = jax.tree.map(jnp.subtract, models, references)
    if not (is_full and event.facts.all_filled):
        # The server's memory is of all clients: sum_c p_c h_c in place of sum_c w_c h_c.
        kept = optax.tree.sub(weighted_sum(share, memory), weighted_sum(event.weight, known))
        mean = optax.tree.add(mean, kept)
    alpha = messages.memory
    moved = jax.tree.map(lambda h, u: h + jnp.asarray(alpha, h.dtype) * u, known, sent)
    return mean, clients.write_clients(memory, event.clients, moved)


@struct
class Preconditioning(Checked):
    """Settings of the preconditioner."""

    preconditioner: Literal["none", "rmsprop"] = setting(
        "none", "Preconditioner of steps and noise, 1 / (floor + sqrt(V))."
    )
    precondition_decay: Probability = setting(
        0.99,
        "Share of V that a round keeps; 1 keeps the first one.",
        only_with={"preconditioner": ("rmsprop",)},
    )
    precondition_floor: Above0 = setting(
        1e-3,
        "Added to sqrt(V), in units of the gradient of the mean loss.",
        only_with={"preconditioner": ("rmsprop",)},
    )


class Square(NamedTuple):
    """The statistics of the preconditioner; () without one.

    Attributes:
      value: V, leaves `[...]`.
      is_known: `bool[]`, whether there was a gradient yet.
    """

    value: Params = ()
    is_known: Array | tuple[()] = ()


class Preconditioner:
    """A preconditioner that is bound to a problem and settings."""

    def __init__(self, scaling: Preconditioning, counts: Array, factor: Array, slopes_at: SlopesAt):
        """Bind it.

        Args:
          scaling: The settings.
          counts: `i32[N]`, numbers of examples.
          factor: `f[N]`, the gradient of f^c over that of the mean loss of client c.
          slopes_at: Gradients of clients, by which steps are scaled.
        """
        self.is_used = scaling.preconditioner != "none"
        self.decay, self.floor = scaling.precondition_decay, scaling.precondition_floor
        self.counts, self.factor, self.slopes_at = counts, factor, slopes_at

    def first(self, model: Params) -> Square:
        """Begin before any gradient is known.

        Args:
          model: The model, leaves `[...]`.
        """
        zero = optax.tree.zeros_like(model)
        return Square(zero, jnp.asarray(False)) if self.is_used else Square()

    def move(
        self, key: Key, event: Event, square: Square, model: Params, first_step: Array
    ) -> tuple[Square, Work]:
        """Move V towards the square of the clients' mean gradient.

        Args:
          square: V before.
          model: The server's model, leaves `[...]`.
          first_step: `i32[]`, number of the round's first local step, whose mini-batch is used.

        Returns:
          V after the tick, for ticks with a report, and the gradient evaluations spent.
        """
        if not self.is_used:
            return square, Work(jnp.int32(0), jnp.int32(0))
        here = event._replace(offset=jnp.broadcast_to(first_step, event.offset.shape))
        found, work = self.slopes_at(key, here, model)
        factor = self.factor[jnp.maximum(event.clients, 0)]
        slope = weighted_sum(event.weight * factor / self.counts.sum(), found)
        decay = jnp.where(jnp.asarray(square.is_known), self.decay, 0)

        def move(v: Array, g: Array) -> Array:
            return decay.astype(v.dtype) * v + (1 - decay).astype(v.dtype) * jnp.square(g)

        return Square(jax.tree.map(move, square.value, slope), jnp.asarray(True)), work

    def root(self, square: Square) -> Params:
        """Return the square root of the preconditioner; () without one.

        Args:
          square: V.
        """
        floor = self.floor
        return jax.tree.map(lambda v: (floor + jnp.sqrt(v)).astype(v.dtype) ** -0.5, square.value)


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
        accepts=aggregation.makes_transformation,
        parse=lambda text: settings.parse_function(vars(optax), text),
    )
    friction: Portion = setting(
        1.0, "Friction a of SGHMC; 1 for none of its momentum.", simpler_at=(1.0,)
    )


@struct
class Hyper(WeightedRounds):
    """Settings of FA-LD: participation, clock, Langevin steps, and methods that share these."""

    step_size: Above0 = setting(1e-6, "Step size eta, of the order of 1 / n.")
    step_size_schedule: schedules.Schedule = schedules.schedule_of("step_size", ("round", "step"))
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
    preconditioning: Preconditioning = settings.group(
        Preconditioning(), "steps scaled by the gradients' size"
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
      taken: Local steps k so far, `i32[]`, if the rounds have random numbers of them.
    """

    server: Params
    velocity: Params = ()
    memory: Params = ()
    anchor: Anchor = Anchor()
    square: Square = Square()
    taken: Params = ()


def algorithm(problem: Problem, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind FA-LD to a problem; the arguments are those of `System.algorithm`."""
    share = hyper.shares(problem.counts)
    factor = problem.counts / share  # the gradient of f^c over that of the client's mean loss
    is_exact, is_random = hyper.gradient == "exact", hyper.averaging == "random"
    has_momentum = hyper.has_momentum
    correction = hyper.noise_inflation if hyper.dynamics.noise_correction else 1.0
    counts, whole_at = problem.counts, clients.gradients_at(problem, hyper, plan, is_exact=True)
    slopes_at = clients.gradients_at(problem, hyper, plan, is_exact=is_exact)
    variates = ControlVariates(hyper.control_variates, counts, factor, whole_at)
    scaling = Preconditioner(hyper.preconditioning, counts, factor, slopes_at)

    def init(key: Key) -> State:
        server = problem.init(key)
        zero, memory = optax.tree.zeros_like(server), ()
        if not settings.is_known(hyper.messages.memory, 0):
            memory = batching.replicate((zero, zero) if has_momentum else zero, len(share))
        velocity = zero if has_momentum else ()
        taken = jnp.int32(0) if is_random else ()
        return State(server, velocity, memory, variates.first(server), scaling.first(server), taken)

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        # Before the steps: the anchor and the preconditioner of this round, and the
        # noise of all clients.
        number = event.steps.max() if is_random else jnp.asarray(hyper.local_steps, "int32")
        first = state.taken if is_random else event.tick * number  # k of the round's first step
        anchor, work_at_anchor = variates.move(key, event, state.anchor, state.server)
        square, work_of_scaling = scaling.move(key, event, state.square, state.server, first)
        root = scaling.root(square)
        if not event.facts.keeps("steps"):
            # Another number of steps than K would use a draw in two rounds.
            key = jax.random.fold_in(key, event.tick)
        eta, most_steps = partial(step_size, hyper, event.tick), event.facts.most_steps
        of_noise = partial(noise, hyper, eta, first=first)
        shared = of_noise(lane_stream(key, "shared noise"), hyper.rho**2)

        def training(start: Params, client: Array, offset: Array, *whole: Params) -> Training:
            client_key = jax.random.fold_in(lane_stream(key, "local"), client)
            if is_exact:
                drawn = lane_stream(client_key, "noise")
                mean = clients.whole_gradient(problem, drawn, client, first, most_steps=most_steps)
            else:
                mean = clients.batch_gradient(
                    problem, hyper, key, client, first, most_steps=most_steps, is_alone=True
                )
            gradient = variates.corrected(mean, anchor, factor[client], whole)  # of f^c
            own_key, weight = lane_stream(client_key, "private noise"), share[client] * correction
            private = of_noise(own_key, 1 - hyper.rho**2, weight)
            moves = langevin_steps(hyper, eta, first, root, [*shared, *private])
            return Training(langevin_noise.of_pair(gradient) if has_momentum else gradient, moves)

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
            known = langevin_steps(hyper, eta, first, root, shared)
            known = langevin_noise.without_gradients(known, start, number)
            sent = hyper.messages, key, event, share, memory, known, local
            mean, memory = decode_mean(*sent, is_full=hyper.participants == "full")
        # The round's state; an empty round changes nothing.
        (server, velocity), taken = mean if has_momentum else (mean, ()), first + number
        after = State(server, velocity, memory, anchor, square, taken if is_random else ())
        per_step = 1 if hyper.control_variates.anchor == "none" else 2  # gradients of a step
        work = work.and_more(work_at_anchor, work_of_scaling, times=per_step)
        return keep_if_empty(event, after, state), work

    return Algorithm(init, step, lambda state: state.server, supports=dict(RELIED_ON))


def langevin_steps(
    hyper: Hyper,
    eta: Callable[[Array], Array],
    first: Array,
    root: Params,
    noises: list[optax.GradientTransformation],
) -> optax.GradientTransformation:
    """Make the steps of one client from its noises: preconditioned and with momentum, if set."""
    drift = optax.scale_by_schedule(lambda q: -eta(first + q))
    moves = optax.chain(drift, *noises)
    if hyper.preconditioning.preconditioner != "none":
        moves = langevin_noise.precondition(moves, root)
    moves = optax.chain(hyper.dynamics.transform(), moves)
    return (
        langevin_noise.add_momentum(moves, hyper.dynamics.friction) if hyper.has_momentum else moves
    )


def step_size(hyper: Hyper, tick: Array, k: Array) -> Array:
    """Compute the size of step k, in the round of a tick."""
    is_by_step = hyper.step_size_schedule.clock == "step"
    return hyper.step_size_schedule.of(hyper.step_size, k if is_by_step else tick)


def noise(
    hyper: Hyper,
    eta: Callable[[Array], Array],
    key: Key,
    part: Array | float,
    weight: Array | float = 1.0,
    *,
    first: Array,
) -> list[optax.GradientTransformation]:
    """Make sqrt(2 eta tau part / weight) xi; no transformation if it is known to be 0."""
    if settings.is_known(hyper.temperature, 0) or settings.is_known(part, 0):
        return []
    # With momentum, the temperature of a step's noise is a tau.
    scale = hyper.dynamics.friction if hyper.has_momentum else 1
    variance = hyper.temperature * scale * part / weight
    return [clients.add_langevin_noise(key, eta, variance, first=first)]


RELIED_ON = (
    ("messages.compression", Identity()),
    ("control_variates.anchor", "none"),
    ("preconditioning.preconditioner", "none"),
    ("dynamics.friction", 1.0),
)
"""Settings by which messages are counted, with the values that add none."""


class Messages(types.Messages):
    """The messages of FA-LD."""

    relies_on = RELIED_ON

    def bits(self, params: Params, hyper: Hyper) -> tuple[int, int]:
        """Count the bits of a model, with its velocity if there is one, up and down."""
        sent = (params, params) if hyper.has_momentum else params
        return count_message_bits(hyper.messages.compression, sent), types.full_precision_bits(sent)

    def per_tick(self, problem: Problem, hyper: Hyper, timeline: Timeline) -> Bits | None:
        """Count the bits of each tick, where clients send more than their models."""
        anchor, scaling = hyper.control_variates.anchor, hyper.preconditioning.preconditioner
        if anchor == scaling == "none":
            return None
        # Traced once for all lanes, of which there may be thousands.
        model = trees.shapes_of_model(problem)
        senders = (timeline.clients != types.EMPTY).sum(axis=1, dtype=np.int64)
        up, down = self.bits(model, hyper)
        size = types.full_precision_bits(model)
        both_ways = senders * size * (scaling != "none")
        # Anchors go to all clients, of whom participants receive the server's model anyway. Global
        # control variates need a gradient of every client and go back to all.
        moves = anchor_moves(hyper.control_variates, senders)
        slopes = size * hyper.num_clients * moves * (anchor == "global")
        anchors = size * (hyper.num_clients - senders) * moves
        return senders * up + both_ways + slopes, senders * down + both_ways + slopes + anchors

    def by_client(self, problem: Problem, hyper: Hyper, timeline: Timeline) -> types.Leaf | None:
        """Count the bits that each client sends and receives at each tick, `i64[T, N]`.

        None without control variates, as only participants send and receive then.
        """
        if hyper.control_variates.anchor == "none":
            return None
        model = trees.shapes_of_model(problem)
        takes_part = np.zeros((len(timeline.time), hyper.num_clients), bool)
        ticks, slots = np.nonzero(timeline.clients != types.EMPTY)
        takes_part[ticks, timeline.clients[ticks, slots]] = True
        size, senders = types.full_precision_bits(model), takes_part.sum(axis=1, dtype=np.int64)
        is_scaled = hyper.preconditioning.preconditioner != "none"
        own = sum(self.bits(model, hyper)) + 2 * size * is_scaled
        slopes = 2 * size * (hyper.control_variates.anchor == "global")
        moves = anchor_moves(hyper.control_variates, senders)[:, None]
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
