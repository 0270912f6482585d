"""Compressors by name, and compressed models: the decoded message, and its number of bits.

Dimension letter: `S` slots of a tick.
"""

import chex
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedjax_sim.core.settings import (
    Checked,
    ConfigError,
    Named,
    parse_kind,
    setting,
    struct,
)
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import Array, Event, Key, Params, full_precision_bits
from fedjax_sim.server.compression import grids, sparse
from fedjax_sim.server.compression.base import Compressor, Identity

_KINDS = Identity, *grids.KINDS, *sparse.KINDS, grids.Luq, *sparse.BIASED
COMPRESSORS: Named[type[Compressor]] = Named.of(
    "compressor", *_KINDS, example="block:norm=2:block=4"
)
"""Every kind of compressor, by name."""


def parse_compressor(text: str) -> Compressor:
    """Read a compressor from text.

        assert parse_compressor("top_k:kept=100") == TopK(kept=100)

    Args:
      text: A name of `COMPRESSORS`, followed by values for its fields, such as
        "block:norm=inf:block=9". Other fields have their defaults.

    Returns:
      The compressor.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return parse_kind("compression", COMPRESSORS, text, last="compression")


@struct
class Compression(Checked):
    """Settings of systems that may compress messages, without bias."""

    compression: Compressor = setting(
        Identity(),
        "Compressor of what a client sends, taken as one vector.",
        allowed=COMPRESSORS,
        parse=parse_compressor,
    )

    def check_together(self) -> None:
        """Check that the compressor is unbiased.

        Raises:
          ConfigError: If it is not.
        """
        super().check_together()
        if not self.compression.has_omega:
            allowed = "an unbiased compressor here, such as block:norm=2:block=4"
            raise ConfigError("compression", str(self.compression), allowed)


def compress(compressor: Compressor, key: Key, message: Params) -> Params:
    """Compress a pytree as one vector of all its leaves.

    Args:
      compressor: Compressor.
      key: Key of its draws.
      message: Pytree of arrays.

    Returns:
      What the receiver decodes: a pytree of the same structure, shapes and dtypes. `Identity`
      returns the message itself.
    """
    if isinstance(compressor, Identity):
        return message
    vector, restored = ravel_pytree(message)
    return restored(compressor.apply(key, vector))


def decode_messages(
    compressor: Compressor,
    key: Key,
    event: Event,
    reference: Params,
    models: Params,
    *,
    way: str = "up",
    turns: Array | None = None,
) -> Params:
    """Decode models that are sent as compressed differences from a reference known to both sides.

    Args:
      compressor: Compressor Q.
      event: Tick, whose number and clients determine the draws.
      reference: Pytree with leaves `[S, ...]`, the reference of each slot.
      models: Pytree with leaves `[S, ...]`, the models sent.
      way: "up" for messages to the server or "down" for messages to clients; the two directions
        have independent draws.
      turns: `i32[S]`, numbers that differ between messages of one client in a tick; None if a
        client sends one message.

    Returns:
      reference + Q(model - reference) for every slot. Without compression these are the models
      themselves, bit for bit.

    Raises:
      AssertionError: If reference and models differ in shape, or do not have one entry per slot.
    """
    if isinstance(compressor, Identity):
        return models
    chex.assert_trees_all_equal_shapes(reference, models)
    chex.assert_tree_shape_prefix(models, event.clients.shape)
    way_key = (
        lane_stream(key, "compression up") if way == "up" else lane_stream(key, "compression down")
    )
    tick_key = jax.random.fold_in(way_key, event.tick)

    def slot(client: Array, turn: Array | None, reference: Params, model: Params) -> Params:
        slot_key = jax.random.fold_in(tick_key, client)
        if turn is not None:
            slot_key = jax.random.fold_in(slot_key, turn)
        difference = jax.tree.map(jnp.subtract, model, reference)
        return jax.tree.map(jnp.add, reference, compress(compressor, slot_key, difference))

    # An empty slot sends nothing; its client number only has to be a valid one.
    return jax.vmap(slot)(jnp.maximum(event.clients, 0), turns, reference, models)


def count_message_bits(compressor: Compressor, params: Params) -> int:
    """Count the bits of a compressed model.

    Args:
      compressor: Compressor.
      params: Model; its leaves may be arrays or `ShapeDtypeStruct`s.

    Returns:
      The bits of one message, where a float takes the widest type of the model's leaves. `Identity`
      sends each leaf in its own type.
    """
    if isinstance(compressor, Identity):
        return full_precision_bits(params)
    return compressor.bits(
        count_parameters(params), word=8 * jnp.result_type(*jax.tree.leaves(params)).itemsize
    )


def count_parameters(params: Params) -> int:
    """Count the numbers in a model.

    Args:
      params: Model; its leaves may be arrays or `ShapeDtypeStruct`s.

    Returns:
      The total size of all leaves.
    """
    return sum(leaf.size for leaf in jax.tree.leaves(params))
