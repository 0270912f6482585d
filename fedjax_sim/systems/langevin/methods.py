"""Methods that share the kernel of FA-LD: control variates, memories of models, preconditioning.

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

from fedjax_sim import server
from fedjax_sim.clients import rows
from fedjax_sim.clients.mini_batches import BatchGradient
from fedjax_sim.clients.rows import read_rows, write_clients
from fedjax_sim.core import batching
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.settings import Checked, is_known, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, Probability
from fedjax_sim.core.types import Array, Event, Facts, Key, Params, Work
from fedjax_sim.server import mean_of, weighted_sum
from fedjax_sim.server.compression import Compression, Compressor, Identity, decode_messages

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
            facts=Facts(all_filled=True, most_steps=1, same_steps=True),
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
                slopes = server.weighted_sum(self.counts, slopes)
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

    def of_slots(self, anchor: Anchor, clients: Array) -> tuple[Params, ...]:
        """Return the whole gradient of each slot, leaves `[S, ...]`; () without control variates.

        Args:
          anchor: The anchor.
          clients: `i32[S]`, not negative.
        """
        if not self.is_used:
            return ()
        if self.is_global:
            return (batching.replicate(anchor.slopes, len(clients)),)
        return (rows.read_rows(anchor.slopes, clients),)

    def corrected(
        self, slope_of: BatchGradient, anchor: Anchor, scale: Array, whole: tuple[Params, ...]
    ) -> BatchGradient:
        """Turn the gradient of a client's mean loss into a corrected one of f^c.

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


def _compresses(compression: Compressor) -> bool:
    return not isinstance(compression, Identity)


@struct
class ModelMemories(Compression):
    """Settings of compressed messages and of the memories that they are relative to."""

    memory: AtLeast0 = setting(
        0.0,
        "Step size alpha of the memories that compressed messages are relative to, such as "
        "1 / (1 + omega); 0 for none. They take the memory of a model for each client.",
        simpler_at=(0.0,),
        only_with={"compression": _compresses},
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
    references = replicate(reference, event.clients.shape[0])
    has_memory = not is_known(messages.memory, 0)
    known = read_rows(memory, jnp.maximum(event.clients, 0)) if has_memory else ()
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
    return mean, write_clients(memory, event.clients, moved)


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

    def __init__(
        self, settings: Preconditioning, counts: Array, factor: Array, slopes_at: SlopesAt
    ):
        """Bind it.

        Args:
          settings: The settings.
          counts: `i32[N]`, numbers of examples.
          factor: `f[N]`, the gradient of f^c over that of the mean loss of client c.
          slopes_at: Gradients of clients, by which steps are scaled.
        """
        self.is_used = settings.preconditioner != "none"
        self.decay, self.floor = settings.precondition_decay, settings.precondition_floor
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
        clients = jnp.maximum(event.clients, 0)
        slope = weighted_sum(event.weight * self.factor[clients] / self.counts.sum(), found)
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
