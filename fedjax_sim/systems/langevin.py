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
losses of client c, is rho = 0 and one round of many steps (`num_ticks=1`). Theorem 5.8's falling
step size 1 / (2 L + m k / 12) is `step_size` 1 / (2 L) with `step_decay` m / 12.

Readings. Clients are selected before a round instead of after it. That has the same law and costs
the other clients nothing; uplink and downlink are counted for the selected clients. Under partial
participation the average has more noise than 2 eta tau: in the algorithm as printed
phi = 1 + (1 - rho^2) (N - 1) C_S / S times as much, where C_S is 1 for draws with replacement and
(N - S) / (N - 1) without. `noise_correction`, which is not in the paper, divides the private
variance by 1 + (N - 1) C_S / S. Mini-batches are drawn without replacement for each step; with
`gradient="exact"` they are all of a client's examples. A batch that is larger than a client's
examples runs through them again, so that some count once more than others: unbiased, with more
noise than necessary. Virtual time is the number of steps done, because clients act in lock-step;
the settings of the clock can make it FedAvg's.

Methods that share the kernel. Each is a setting, off by default, and they can be combined.

- `compression` Q: a client sends Q(theta_K^c - r - h_c), where r is the model that a client without
  data would reach, so that shared noise, which the server knows, costs nothing. With K = 1, rho = 1
  and h = 0 this is QLSD (Vono, Plassier, Durmus, Dieuleveut and Moulines 2022, arXiv 2106.00797),
  whose noise is the server's. `memory` alpha is the step size of its memories h_c, which follow the
  clients' progress; with `control="client"` this is QLSD++.
- `control`: mini-batch gradients are corrected by those of the same mini-batch at an anchor, the
  server's model of every `control_rounds`-th round, and by whole gradients there: of the client
  ("client": variance reduction, QLSD++), or of all clients ("global", which also takes away the
  drift of clients apart; the conducive gradients of FSGLD, el Mekkaoui et al. 2020, arXiv
  2004.11231, with densities that are linear in the parameters for surrogates).
- `friction` a < 1: SGHMC (Chen, Fox and Guestrin 2014, arXiv 1402.4102, eq. 15),
  v <- (1 - a) v - eta grad f^c + noise of temperature a tau, theta <- theta + v. Velocities are
  sent and averaged like models. a = 1 is FA-LD.
- `preconditioner="rmsprop"`: pSGLD (Li, Chen, Carlson and Carin 2016, arXiv 1512.07666) without
  its term Gamma, which its authors leave out too. Deviation: its preconditioner moves with every
  step; here all clients share one for a round, because the mean of noises that are scaled
  differently would have another temperature. It follows the square of the clients' mean gradient at
  the server's model, and begins with the first such square instead of 0.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.batching import look_ahead, replicate
from fedjax_sim.clients import (
    BatchGradient,
    LocalTraining,
    Training,
    add_langevin_noise,
    add_momentum,
    batch_gradient,
    check_exact,
    gradients_at,
    local_steps,
    precondition,
)
from fedjax_sim.clients.rows import read_rows, write_clients
from fedjax_sim.compression import Identity
from fedjax_sim.compression.messages import Compression, count_message_bits, decode_messages
from fedjax_sim.server import keep_if_empty, weighted_sum
from fedjax_sim.settings import (
    ConfigError,
    choice,
    count,
    fixed,
    is_known,
    real,
    redefault,
    static,
    struct,
    switch,
    whole,
)
from fedjax_sim.streams import stream
from fedjax_sim.timelines import WeightedRounds, schedule_weighted_rounds
from fedjax_sim.types import (
    EMPTY,
    Algorithm,
    Array,
    Event,
    Fit,
    Hints,
    Key,
    Leaf,
    Messages,
    Params,
    Plan,
    Problem,
    System,
    Timeline,
    Work,
    full_precision_bits,
)


def _makes_transformation(value: object) -> bool:
    try:
        return callable(value) and isinstance(value(), optax.GradientTransformation)
    except (TypeError, ValueError):
        return False


@struct
class Hyper(WeightedRounds, Compression):
    """Settings of FA-LD: participation, clock, Langevin steps, and messages."""

    step_size: float = real(1e-6, "Step size eta, of the order of 1 / n.", above=0)
    step_decay: float = real(
        0.0, "How much 1 / eta grows with every step; 0 for a constant step size.", least=0
    )
    temperature: float = real(1.0, "Temperature tau.", least=0, simpler_at=(0.0,))
    # A mixing weight; theory.langevin.bounds.noise_correlation computes the noise's correlation.
    rho: float = real(
        0.0,
        "Weight of the noise that all clients share (the correlation of their noise is smaller).",
        least=0,
        most=1,
        simpler_at=(0.0, 1.0),
    )
    gradient: str = choice(
        "minibatch", ("minibatch", "exact"), "Whether gradients use a mini-batch or all examples."
    )
    batch_size: int = count(200, "Examples of a mini-batch.")
    noise_correction: bool = switch(
        False,
        "Whether private noise is scaled down so that partial participation keeps the temperature.",
    )
    transform: Callable[[], optax.GradientTransformation] = static(
        optax.identity,
        "a function that makes an optax gradient transformation",
        _makes_transformation,
        meaning="Applied to the gradients of f^c before each step, such as "
        "`partial(optax.clip_by_global_norm, 1.0)`.",
    )
    example_clip: float = redefault(LocalTraining, "example_clip", 0.0)
    sampling: str = fixed("without_replacement")
    memory: float = real(
        0.0,
        "Step size alpha of the memories that compressed messages are relative to, such as "
        "1 / (1 + omega); 0 for none. They take the memory of a model for each client.",
        least=0,
        simpler_at=(0.0,),
    )
    control: str = choice(
        "none",
        ("none", "client", "global"),
        "Control variates of the gradients: whole gradients at an anchor, of the client or of all.",
    )
    control_rounds: int = whole(1, "Rounds between two anchors of the control variates.")
    friction: float = real(
        1.0, "Friction a of SGHMC; 1 for none of its momentum.", above=0, most=1, simpler_at=(1.0,)
    )
    preconditioner: str = choice(
        "none", ("none", "rmsprop"), "Preconditioner of steps and noise, 1 / (floor + sqrt(V))."
    )
    precondition_decay: float = real(
        0.99, "Share of V that a round keeps; 1 keeps the first one.", least=0, most=1
    )
    precondition_floor: float = real(
        1e-3, "Added to sqrt(V), in units of the gradient of the mean loss.", above=0
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If one setting has no use for another.
        """
        super().check_together()
        if isinstance(self.compression, Identity) and np.any(np.asarray(self.memory) > 0):
            allowed = "0 unless messages are compressed, such as compression = block"
            raise ConfigError("memory", self.memory, allowed)
        if self.gradient == "exact" and self.example_clip > 0:
            allowed = "0 with exact gradients; a batch_size as large as a client clips all examples"
            raise ConfigError("example_clip", self.example_clip, allowed)

    @property
    def noise_inflation(self) -> float:
        """1 + (N - 1) C_S / S, the factor on the variance of the averaged private noise.

        It compares partial with full participation.
        """
        num, selected = self.num_clients, self.num_selected
        extra = {
            "full": 0.0,
            "with_replacement": (num - 1) / selected,
            "without_replacement": (num - selected) / selected,
        }
        return 1 + extra[self.participation]


class State(NamedTuple):
    """What FA-LD carries from round to round; () for what is not used.

    Attributes:
      server: theta_k, leaves `[...]`.
      velocity: The mean of the clients' velocities v, leaves `[...]`.
      memory: What compressed messages are relative to, h_c, leaves `[N, ...]`.
      anchor: Model at which control variates are computed, leaves `[...]`.
      slopes: Gradients of the f^c there, leaves `[N, ...]`, or of f, leaves `[...]`.
      square: The preconditioner's V, leaves `[...]`.
    """

    server: Params
    velocity: Params = ()
    memory: Params = ()
    anchor: Params = ()
    slopes: Params = ()
    square: Params = ()


def algorithm(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm[State, Work]:
    """Bind FA-LD to a problem."""
    num_clients = problem.counts.shape[0]
    share = hyper.shares(problem.counts)
    factor = problem.counts / share  # the gradient of f^c over that of the client's mean loss
    correction = hyper.noise_inflation if hyper.noise_correction else 1.0
    is_exact = hyper.gradient == "exact"
    is_noisy = not is_known(hyper.temperature, 0)
    has_shared = is_noisy and not is_known(hyper.rho, 0)
    has_private = is_noisy and not is_known(hyper.rho, 1)
    has_momentum = not is_known(hyper.friction, 1)
    has_memory = not is_known(hyper.memory, 0)
    is_scaled = hyper.preconditioner != "none"
    batches: Any = hyper  # It has those settings of LocalTraining by which batches are drawn.
    slope_at = gradients_at(problem, batches, plan, is_exact=is_exact)
    whole_slope_at = gradients_at(problem, batches, plan, is_exact=True)
    tau = hyper.temperature * hyper.friction if has_momentum else hyper.temperature

    def eta(k: Array) -> Array:
        return hyper.step_size / (1 + hyper.step_size * hyper.step_decay * k)

    def noise(key: Key, tau: Array | float, first: Array) -> optax.GradientTransformation:
        return add_langevin_noise(key, eta, tau, first=first)

    def init(key: Key) -> State:
        server = problem.init(key)
        zero = optax.tree.zeros_like(server)
        sent = (zero, zero) if has_momentum else zero
        of_client = hyper.control == "client"
        return State(
            server,
            zero if has_momentum else (),
            replicate(sent, num_clients) if has_memory else (),
            server if hyper.control != "none" else (),
            () if hyper.control == "none" else replicate(zero, num_clients) if of_client else zero,
            zero if is_scaled else (),
        )

    def step(key: Key, state: State, event: Event) -> tuple[State, Work]:
        first = event.tick * jnp.asarray(hyper.local_steps, "int32")  # k of the round's first step
        anchor, slopes, spent = moved_anchor(key, state, event)
        square, more = moved_square(key, state, event, first)
        root = jax.tree.map(  # of the preconditioner
            lambda v: (hyper.precondition_floor + jnp.sqrt(v)).astype(v.dtype) ** -0.5, square
        )
        is_shared = [noise(stream(key, "shared noise"), tau * hyper.rho**2, first)] * has_shared

        def dynamics(*noises: optax.GradientTransformation) -> optax.GradientTransformation:
            moves = optax.chain(optax.scale_by_schedule(lambda q: -eta(first + q)), *noises)
            moves = precondition(moves, root) if is_scaled else moves
            moves = optax.chain(hyper.transform(), moves)
            return add_momentum(moves, hyper.friction) if has_momentum else moves

        def training(start: Params, client: Array, offset: Array, *control: Params) -> Training:
            client_key = jax.random.fold_in(stream(key, "local"), client)
            slope_of = (
                exact_gradient(client_key, client, first)
                if is_exact
                else batch_gradient(
                    problem, batches, key, client, first, most_steps=plan.most_steps, is_alone=True
                )
            )
            scale = factor[client]

            def gradient(theta: Params, q: Array) -> Params:  # of f^c
                theta = theta[0] if has_momentum else theta
                slope = slope_of(theta, q)
                if control:
                    slope = jax.tree.map(jnp.subtract, slope, slope_of(anchor, q))
                slope = jax.tree.map(lambda g: g * scale.astype(g.dtype), slope)
                slope = jax.tree.map(jnp.add, slope, control[0]) if control else slope
                return (slope, slope) if has_momentum else slope

            private = []
            if has_private:
                private_tau = tau * (1 - hyper.rho**2) / (share[client] * correction)
                private = [noise(stream(client_key, "private noise"), private_tau, first)]
            return Training(gradient, dynamics(*is_shared, *private))

        start = (state.server, state.velocity) if has_momentum else state.server
        clients = jnp.maximum(event.clients, 0)
        control: Any = ()
        if hyper.control != "none":
            is_own = hyper.control == "client"
            control = read_rows(slopes, clients) if is_own else replicate(slopes, len(clients))
            control = (control,)
        local, work = local_steps(plan, event, training, start=start, extras=control)
        if control:
            work = jax.tree.map(lambda evaluations: 2 * evaluations, work)
        # p_c, 1/S, or j/S for a client drawn j times
        mean, memory = weighted_sum(event.weight, local), state.memory
        if not isinstance(hyper.compression, Identity):
            reference = without_data(dynamics(*is_shared), start)
            mean, memory = decoded_mean(key, event, memory, reference, local)
        server, velocity = mean if has_momentum else (mean, ())
        after = State(server, velocity, memory, anchor, slopes, square)
        return keep_if_empty(plan, event, after, state), sum_of(work, spent, more)

    def exact_gradient(client_key: Key, client: Array, first: Array) -> BatchGradient:
        noises = stream(client_key, "noise")
        losses = problem.alone(client) if hasattr(problem, "alone") else problem
        keys = look_ahead(lambda q: jax.random.fold_in(noises, first + q), plan.most_steps)
        return lambda theta, q: jax.grad(losses.client_loss)(theta, client, keys(q))

    def moved_anchor(key: Key, state: State, event: Event) -> tuple[Params, Params, Work | None]:
        """Move the anchor to the server's model, and evaluate whole gradients there."""
        if hyper.control == "none":
            return (), (), None
        everyone = event._replace(
            clients=jnp.arange(num_clients, dtype="int32"),
            steps=jnp.ones(num_clients, "int32"),
            offset=jnp.zeros(num_clients, "int32"),
        )

        def move() -> tuple[Params, Params, Work]:
            found, work = whole_slope_at(key, everyone, state.server)
            if hyper.control == "global":
                return state.server, weighted_sum(problem.counts, found), work
            of_f = jax.vmap(lambda g, scale: optax.tree.scale(scale, g))(found, factor)
            return state.server, jax.tree.map(lambda g, f: f.astype(g.dtype), found, of_f), work

        def stay() -> tuple[Params, Params, Work]:
            shapes = jax.eval_shape(move)[2]
            return state.anchor, state.slopes, optax.tree.zeros_like(shapes)

        rounds = jnp.asarray(hyper.control_rounds, "int32")
        return jax.lax.cond(event.tick % rounds == 0, move, stay)

    def moved_square(
        key: Key, state: State, event: Event, first: Array
    ) -> tuple[Params, Work | None]:
        """Move V towards the square of the clients' mean gradient."""
        if not is_scaled:
            return (), None
        here = event._replace(offset=jnp.broadcast_to(first, event.offset.shape))
        found, work = slope_at(key, here, state.server)
        clients = jnp.maximum(event.clients, 0)
        slope = weighted_sum(event.weight * factor[clients] / problem.counts.sum(), found)
        decay = jnp.where(event.tick > 0, hyper.precondition_decay, 0)

        def move(v: Array, g: Array) -> Array:
            return decay.astype(v.dtype) * v + (1 - decay).astype(v.dtype) * jnp.square(g)

        return jax.tree.map(move, state.square, slope), work

    def decoded_mean(
        key: Key, event: Event, memory: Params, reference: Params, local: Params
    ) -> tuple[Params, Params]:
        """Average what the server decodes, and move the memories h_c of those who send."""
        references = replicate(reference, event.clients.shape[0])
        if not has_memory:
            local = decode_messages(hyper.compression, key, event, references, local)
            return weighted_sum(event.weight, local), memory
        known = read_rows(memory, jnp.maximum(event.clients, 0))
        references = jax.tree.map(jnp.add, references, known)
        local = decode_messages(hyper.compression, key, event, references, local)
        sent = jax.tree.map(jnp.subtract, local, references)
        mean = weighted_sum(event.weight, local)
        if hyper.participation != "full" or not plan.all_filled:
            # The server's memory is of all clients: sum_c p_c h_c in place of sum_c w_c h_c.
            kept = optax.tree.sub(weighted_sum(share, memory), weighted_sum(event.weight, known))
            mean = optax.tree.add(mean, kept)
        moved = jax.tree.map(lambda h, u: h + jnp.asarray(hyper.memory, h.dtype) * u, known, sent)
        return mean, write_clients(memory, event.clients, moved)

    def without_data(moves: optax.GradientTransformation, start: Params) -> Params:
        """Return the model that a client without data reaches, which the server knows."""
        still = optax.tree.zeros_like(start)

        def step(_: Array, carried: tuple[Params, Any]) -> tuple[Params, Any]:
            update, after = moves.update(still, carried[1], carried[0])
            return optax.apply_updates(carried[0], update), after

        steps = jnp.asarray(hyper.local_steps, "int32")
        return jax.lax.fori_loop(0, steps, step, (start, moves.init(start)))[0]

    return Algorithm(init, step, model=lambda state: state.server)


def sum_of(work: Work, *others: Work | None) -> Work:
    """Add up evaluations of gradients; None stands for none."""
    for other in others:
        work = work if other is None else jax.tree.map(jnp.add, work, other)
    return work


def traffic(problem: Problem, hyper: Hyper, timeline: Timeline) -> tuple[Leaf, Leaf] | None:
    """Count the bits sent up and down at each tick, where clients send more than their models.

    The preconditioner needs the participants' gradients and goes back to them. Anchors go to all
    clients; global control variates need a gradient of each and go back to all.
    """
    if hyper.control == "none" and hyper.preconditioner == "none":
        return None
    model = jax.eval_shape(problem.init, jax.random.key(0))
    senders = (timeline.clients != EMPTY).sum(axis=1, dtype=np.int64)
    up, down = (senders * bits for bits in message_bits(model, hyper))
    size = full_precision_bits(model)
    if hyper.preconditioner != "none":
        up, down = up + senders * size, down + senders * size
    if hyper.control != "none":
        has_moved = np.arange(len(senders)) % int(hyper.control_rounds) == 0
        everyone = size * hyper.num_clients * has_moved * (hyper.control == "global")
        up, down = up + everyone, down + everyone
        down = down + size * (hyper.num_clients - senders) * has_moved
    return up, down


def message_bits(params: Params, hyper: Hyper) -> tuple[int, int]:
    """Count the bits of a model, with its velocity if there is one, up and down."""
    sent = params if is_known(hyper.friction, 1) else (params, params)
    return count_message_bits(hyper.compression, sent), full_precision_bits(sent)


def complete(hyper: Hyper, problem: Problem | None) -> Hyper:
    """Fill in clients' weights from their numbers of examples, unless they are given.

    Without a problem, weights are equal.

    Raises:
      ConfigError: If exact gradients are asked for and the problem has none.
    """
    if hyper.gradient == "exact":
        check_exact(problem, "gradient", "exact", "minibatch")
    if hyper.control != "none":
        check_exact(problem, "control", hyper.control, "none")
    counts = np.ones(hyper.num_clients) if problem is None else np.asarray(problem.counts, float)
    return hyper.weighted(counts)


system = System(
    "langevin",
    Hyper,
    schedule_weighted_rounds,
    algorithm,
    "federated averaging Langevin dynamics: averages of noisy local steps sample a posterior",
    messages=Messages(message_bits, traffic),
    hints=Hints(
        lambda hyper, time: (
            time / (hyper.server_interact + hyper.times_per_update / hyper.largest_rate)
        )
    ),
    fit=Fit(complete=complete),
)
