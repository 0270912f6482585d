"""Compressed messages of gradient systems: what a server decodes of a client's model, and what it costs."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedjax_sim.compression.base import Compressor, Identity
from fedjax_sim.compression.catalogue import parse_compressor
from fedjax_sim.settings import part, struct
from fedjax_sim.streams import stream
from fedjax_sim.types import Array, Event, Key, Params, full_precision_bits


@struct
class Compression:
    """Setting of systems whose clients' messages may be compressed."""

    compression: Compressor = part(
        Identity(),
        'a compressor such as identity, block:norm=2:block=4 or rounding:width=8, see "compression.py"',
        Compressor,
        parse_compressor,
        meaning="Applied to what a client sends, as one vector.",
    )


def compress(compressor: Compressor, key: Key, message: Params) -> Params:
    """Compress a pytree as one vector: its leaves one after the other."""
    if isinstance(compressor, Identity):
        return message
    vector, restored = ravel_pytree(message)
    return restored(compressor.apply(key, vector))


def received(
    compressor: Compressor,
    key: Key,
    event: Event,
    reference: Params,
    models: Params,
    *,
    way: str = "up",
) -> Params:
    """Decode models that are sent as compressed differences from a reference that sender and receiver both have.

    key: the lane's. reference, models: leaves `[S, ...]`. way: "up" or "down", of independent randomness. Returns reference +
    Q(model - reference) of every slot; without compression the models themselves, bit for bit.
    """
    if isinstance(compressor, Identity):
        return models
    chance = stream(key, "compression up") if way == "up" else stream(key, "compression down")
    own = jax.random.fold_in(chance, event.tick)

    def slot(client: Array, reference: Params, model: Params) -> Params:
        message = compress(
            compressor,
            jax.random.fold_in(own, client),
            jax.tree.map(jnp.subtract, model, reference),
        )
        return jax.tree.map(jnp.add, reference, message)

    # An empty slot sends nothing; its client index only has to be a valid one.
    return jax.vmap(slot)(jnp.maximum(event.clients, 0), reference, models)


def message_bits(compressor: Compressor, params: Params) -> int:
    """Count the bits of a compressed model; params may be arrays or `ShapeDtypeStruct`s."""
    if isinstance(compressor, Identity):
        return full_precision_bits(params)
    return compressor.bits(
        num_parameters(params), word=8 * jnp.result_type(*jax.tree.leaves(params)).itemsize
    )


def num_parameters(params: Params) -> int:
    """Count the numbers of a model."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
