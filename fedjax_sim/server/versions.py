"""A server model together with the old versions that clients still work from.

Asynchronous systems carry it as their state: clients that report now started from models that the
server made some ticks ago. The engine works out from the schedule how many rows are needed and
which row each version has (`fedjax_sim.engine.planning.schedule`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients.rows import read_rows
from fedjax_sim.core.types import Event, Params, Plan


class Memo(NamedTuple):
    """The memories of the stages of messages; () for a stage that remembers nothing.

    Attributes:
      estimates: Estimates of clients' progress d_i, leaves `[N, ...]`.
      known: The model v that clients know, leaves `[...]`.
      privacy: Bound of the norm of an update if it adapts, C, `f[]`; or the last noises on the sum
        if they are correlated, the newest first, leaves `[b - 1, ...]`.
      members: Estimates of the progress of clients behind local servers, leaves `[N, ...]`.
      attackers: What attackers remember of messages.
      own: Within a tick, the update that the server has made itself, leaves `[...]`, for rules that
        compare messages with it.
    """

    estimates: Params = ()
    known: Params = ()
    privacy: Params = ()
    members: Params = ()
    attackers: Params = ()
    own: Params = ()


class Versioned(NamedTuple):
    """The state of an asynchronous system.

    Attributes:
      server: The newest model, leaves `[...]`.
      versions: Server models that some client works from, leaves `[R, ...]`.
      memo: What both sides remember of messages.
      memory: What else the server keeps, such as its optimizer's state; () for nothing.
      clients: What is kept for every client, leaves `[N, ...]`; () for nothing.
    """

    server: Params
    versions: Params
    memo: Memo = Memo()
    memory: Params = ()
    clients: Params = ()


def first_version(model: Params, plan: Plan) -> Versioned:
    """Begin with a model in row 0. Other rows are written before they are read.

        state = first_version(model, Plan(rows=4))
        assert state.server.shape == (3,) and state.versions.shape == (4, 3)

    Args:
      model: Leaves `[...]`.

    Returns:
      The first state.
    """
    versions = jax.tree.map(
        lambda leaf: jnp.zeros((plan.rows, *leaf.shape), leaf.dtype).at[0].set(leaf), model
    )
    return Versioned(model, versions)


def stale_models(state: Any, event: Event) -> Params:
    """Read the server model that each slot's work started from: leaves `[S, ...]`.

        state = first_version(jnp.full(3, 5.0), Plan(rows=4))
        assert (stale_models(state, event) == 5.0).all()  # both slots read row 0

    Args:
      state: A state that keeps old versions, such as `Versioned`.

    Returns:
      Leaves `[S, ...]`.
    """
    return read_rows(state.versions, event.read)


def next_version(state: Any, event: Event, model: Params) -> Versioned:
    """Make a model the server's, and keep it in the store for clients that will start from it.

        state = next_version(first_version(model, Plan(rows=4)), event, model + 1)
        assert (state.server == 1).all() and (state.versions[event.write] == 1).all()

    Args:
      state: The state before the tick.
      model: The server's new model, leaves `[...]`.

    Returns:
      The next state.
    """
    # Settings have 32 bits, and what they are multiplied with too.
    model = jax.tree.map(lambda new, kept: new.astype(kept.dtype), model, state.versions)
    versions = jax.tree.map(
        lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, event.write, 0),
        state.versions,
        model,
    )
    return Versioned(model, versions)
