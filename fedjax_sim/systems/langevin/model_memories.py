"""Compressed models, with memories of the clients' progress that messages are relative to.

A client sends Q(theta^c - r - h_c), where r is a model that both sides know and h_c is its memory.
Memories follow what was decoded with the step size alpha, as in QLSD++ (Vono, Plassier, Durmus,
Dieuleveut and Moulines 2022, arXiv 2106.00797) and DIANA.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.clients.rows import read_rows, write_clients
from fedjax_sim.core.batching import replicate
from fedjax_sim.core.checking import AtLeast0
from fedjax_sim.core.settings import is_known, setting, struct
from fedjax_sim.core.types import Array, Event, Key, Params
from fedjax_sim.server import mean_of, weighted_sum
from fedjax_sim.server.compression.base import Compressor, Identity
from fedjax_sim.server.compression.messages import Compression, decode_messages


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
    hyper: Any,
    key: Key,
    event: Event,
    share: Array,
    memory: Params,
    reference: Params,
    models: Params,
) -> tuple[Params, Params]:
    """Average the decoded messages, and move the memories h_c of those who send.

    Args:
      hyper: Settings of FA-LD.
      share: `f[N]`, the clients' weights p_c, of sum 1.
      memory: h_c, leaves `[N, ...]`; () without memories.
      reference: r, leaves `[...]`.
      models: The models sent, leaves `[S, ...]`.

    Returns:
      The mean, leaves `[...]`, and the memories after.
    """
    references = replicate(reference, event.clients.shape[0])
    if is_known(hyper.messages.memory, 0):
        models = decode_messages(hyper.messages.compression, key, event, references, models)
        return mean_of(event, reference, models), memory
    known = read_rows(memory, jnp.maximum(event.clients, 0))
    references = jax.tree.map(jnp.add, references, known)
    models = decode_messages(hyper.messages.compression, key, event, references, models)
    sent = jax.tree.map(jnp.subtract, models, references)
    mean = mean_of(event, reference, models)
    if hyper.participants != "full" or not event.facts.all_filled:
        # The server's memory is of all clients: sum_c p_c h_c in place of sum_c w_c h_c.
        kept = optax.tree.sub(weighted_sum(share, memory), weighted_sum(event.weight, known))
        mean = optax.tree.add(mean, kept)
    alpha = hyper.messages.memory
    moved = jax.tree.map(lambda h, u: h + jnp.asarray(alpha, h.dtype) * u, known, sent)
    return mean, write_clients(memory, event.clients, moved)
