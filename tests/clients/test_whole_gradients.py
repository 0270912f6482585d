"""Gradients of clients' losses at one model, and the systems that use them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Plan
from fedjax_sim.clients import LocalTraining, gradients_at
from tests.conftest import Regression
from tests.systems.hand_made import some_events


class Whole(Regression):
    """Least squares that can compute the loss of all of a client's examples, without noise."""

    def client_loss(self, params: jax.Array, client: jax.Array, key: jax.Array) -> jax.Array:
        is_there = jnp.arange(self.targets.shape[1]) < self.counts[client]
        residual = self.inputs[client] @ params - self.targets[client]
        return jnp.where(is_there, residual**2, 0).sum() / 2 / self.counts[client]


@pytest.fixture(scope="module")
def whole(regression: Callable) -> Any:
    return Whole(**vars(regression()))


def test_gradients_are_of_all_examples_or_of_the_next_batch(whole: Any) -> None:
    """A pass over m examples counts as ceil(m / b) evaluations; an empty slot needs none."""
    event = jax.tree.map(lambda leaf: leaf[1], some_events([[0] * 4, [6, 1, -1, 2]], [[3] * 4] * 2))
    hyper, plan = LocalTraining(batch_size=4), Plan(slots_at_once=4)
    model, key, counts = jnp.arange(3.0), jax.random.key(2), np.asarray(whole.counts)
    found, work = gradients_at(whole, hyper, plan, is_exact=True)(key, event, model)
    assert int(work.executed) == 4 * -(-counts.max() // 4)
    for slot, client in ((0, 6), (1, 1), (3, 2)):
        x, y = (
            np.asarray(leaf[client, : counts[client]]) for leaf in (whole.inputs, whole.targets)
        )
        expected = x.T @ (x @ np.arange(3.0) - y) / counts[client]
        np.testing.assert_allclose(found[slot], expected, rtol=1e-4)
    assert int(work.needed) == sum(-(-counts[[6, 1, 2]] // 4))

    batches, work = gradients_at(whole, hyper, plan, is_exact=False)(key, event, model)
    assert (int(work.executed), int(work.needed)) == (4, 3)
    one = event._replace(steps=jnp.ones_like(event.steps))
    steps = fedjax_sim.clients.local_training(whole, hyper, plan)
    ends, _ = steps(key, one, start=model)
    np.testing.assert_allclose(model[None] - hyper.lr * batches[:2], ends[:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "setting"), [("mimelite", "gradient"), ("scaffold", "control")])
def test_exact_gradients_need_a_problem_that_has_them(
    regression: Callable, whole: Any, name: str, setting: str
) -> None:
    system = fedjax_sim.SYSTEMS[name]
    hyper = system.paper(num_clients=7, **{setting: "exact"})
    assert system.fit.complete(hyper, whole) is hyper
    with pytest.raises(ConfigError, match=f"{setting} is 'exact', but must be .*has no client_los"):
        system.fit.complete(hyper, regression())
