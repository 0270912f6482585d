"""The server's model with its old versions, against a loop that keeps every version."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import Event, Plan
from fedjax_sim.engine.planning.schedule import assign_rows
from fedjax_sim.server.reports import first_version, next_version, stale_models

# Ticks receive two slots each; tick t makes version t + 1.
VERSION = np.array([[0, 0], [1, 0], [1, 2], [3, 1], [0, 4]])


def model_of(version: int) -> dict[str, jax.Array]:
    """Make a model of two leaves, different for every version."""
    return {"kernel": jnp.full((2, 3), 1.0 + version), "scale": jnp.asarray(10.0 * version)}


def event_of(tick: int, read: np.ndarray, write: int) -> Event:
    """Make a tick that reads and writes these rows of the store."""
    filler = jnp.zeros(2, "int32")
    return Event(
        tick=jnp.int32(tick),
        clients=filler,
        steps=filler,
        version=jnp.asarray(VERSION[tick], "int32"),
        weight=filler.astype(float),
        offset=filler,
        read=jnp.asarray(read, "int32"),
        write=jnp.int32(write),
    )


def test_every_slot_starts_from_its_version() -> None:
    """With rows assigned by the engine, every read finds its version, as if all were kept."""
    last_read = np.full(len(VERSION) + 1, -1)
    for tick, versions in enumerate(VERSION):
        last_read[versions] = tick
    (row,), (rows,) = assign_rows(last_read[None])
    state = first_version(model_of(0), Plan(rows=int(rows)))
    assert state.versions["kernel"].shape == (rows, 2, 3)
    for tick, versions in enumerate(VERSION):
        event = event_of(tick, row[versions], row[tick + 1])
        expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(model_of, versions))
        chex.assert_trees_all_equal(stale_models(state, event), expected)
        state = next_version(state, event, model_of(tick + 1))
        chex.assert_trees_all_equal(state.server, model_of(tick + 1))


def test_the_newest_model_is_the_servers_even_if_nobody_reads_it() -> None:
    """A version that is written to the scratch row does not disturb other rows."""
    state = first_version(model_of(0), Plan(rows=2))
    state = next_version(state, event_of(0, np.array([0, 0]), 1), model_of(1))
    chex.assert_trees_all_equal(state.server, model_of(1))
    start = stale_models(state, event_of(1, np.array([0, 0]), 1))
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[1], start), model_of(0))
