"""The opt-in metric `client_variance`: which versions clients hold, and how far they are away."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.clients import rows
from fedjax_sim.core.types import EMPTY
from fedjax_sim.engine.planning.schedule import held_versions
from fedjax_sim.engine.program.replay import client_variance

RANDOM = np.random.default_rng(0)


def models(*lead: int) -> dict[str, np.ndarray]:
    """Draw a stack of models with three leaves, one of them a number."""
    shapes = {"kernel": (2, 3), "bias": (3,), "scale": ()}
    return {
        name: RANDOM.normal(size=(*lead, *shape)).astype("float32")
        for name, shape in shapes.items()
    }


def test_the_variance_is_a_sum_over_clients() -> None:
    """Rows that nobody holds are ignored, even if they are nan, as a scratch row may be."""
    store, server = models(4), models()
    for name in store:
        store[name][2] = np.nan
    holders = np.array([2, 1, 0, 3])
    expected = sum(
        holders[r] * sum(np.sum((store[k][r] - server[k]) ** 2) for k in store) for r in (0, 1, 3)
    )
    found = client_variance(store, jnp.asarray(holders), server)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 3), st.integers(1, 4))
def test_every_evaluation_finds_the_models_that_clients_hold(
    seed: int, num_ticks: int, slots: int, num_evals: int
) -> None:
    """Against a loop that keeps every client's model, for two lanes of different length."""
    random = np.random.default_rng(seed)
    num_clients = 4
    clients = np.stack(
        [random.permuted(np.arange(-1, num_clients))[:slots] for _ in range(2 * num_ticks)]
    ).reshape(2, num_ticks, slots)
    # A client may hold any version that exists after its tick.
    holds = random.integers(np.arange(num_ticks)[None, :, None] + 2, size=clients.shape)
    lengths = np.array([num_ticks, random.integers(1, num_ticks + 1)])
    ends = np.stack([np.round(np.linspace(0, end, num_evals + 1)).astype(int) for end in lengths])
    found = held_versions(clients, holds, ends, num_clients)
    version_of_model = np.arange(num_ticks + 1.0)
    for lane in range(2):
        store = rows.first_rows(jnp.asarray(version_of_model[0]), found.holders.shape[2])
        held = np.zeros(num_clients, int)
        tick = 0
        for v, end in enumerate(ends[lane]):
            for t in range(tick, end):
                store = rows.write_row(store, found.write[lane, t], version_of_model[t + 1])
                present = clients[lane, t] != EMPTY
                held[clients[lane, t][present]] = holds[lane, t][present]
            tick = end
            found_here = np.repeat(np.asarray(store), found.holders[lane, v])
            np.testing.assert_array_equal(np.sort(found_here), np.sort(held))
