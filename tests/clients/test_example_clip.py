"""Gradients of single examples that are clipped in local steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import Plan
from fedjax_sim.clients import LocalTraining
from fedjax_sim.clients.mini_batches import batch_gradient
from fedjax_sim.core.streams import stream
from fedjax_sim.server import Wire
from fedjax_sim.server.privacy import parse_privacy
from fedjax_sim.systems import fedavg
from tests.server.test_reports import event_of

CLIP, LR, STEPS = 0.3, 0.1, 4


@pytest.fixture(scope="module")
def found(regression: Callable) -> dict[str, Any]:
    """Gradients with and without clipping, at one model of client 2, and a clipped local path."""
    problem = regression(noise=0.0)
    model = jnp.array([1.0, -2.0, 0.5])

    @jax.jit
    def run() -> dict[str, Any]:
        def gradient_of(clip: float) -> Any:
            hyper = LocalTraining(batch_size=4, sampling="with_replacement", example_clip=clip)
            return batch_gradient(problem, hyper, jax.random.key(0), jnp.int32(2), jnp.int32(0))

        clipped, path = gradient_of(CLIP), [model]
        for q in range(STEPS):
            path.append(path[-1] - LR * clipped(path[-1], jnp.int32(q)))
        off = gradient_of(0.0)(model, jnp.int32(0))
        loose = gradient_of(1e6)(model, jnp.int32(0))
        return {"path": path, "loose": loose, "off": off}

    results = {k: np.asarray(v) for k, v in run().items()}
    client_key = jax.random.fold_in(stream(jax.random.key(0), "local"), 2)
    batch_key = jax.random.fold_in(stream(client_key, "batches"), 0)
    examples = np.asarray(jax.random.randint(batch_key, (4,), 0, problem.counts[2]))
    inputs, targets = (
        np.asarray(problem.inputs[2])[examples],
        np.asarray(problem.targets[2])[examples],
    )
    slopes = inputs * (inputs @ np.asarray(model) - targets)[:, None]
    return results | {"slopes": slopes}


def test_each_example_is_clipped_before_the_mean(found: dict[str, Any]) -> None:
    norms = np.linalg.norm(found["slopes"], axis=1)
    assert norms.min() < np.inf and norms.max() > CLIP
    clipped = found["slopes"] * np.minimum(1, CLIP / norms)[:, None]
    first = (found["path"][0] - found["path"][1]) / LR
    np.testing.assert_allclose(first, clipped.mean(axis=0), rtol=1e-4, atol=1e-6)


def test_without_clipping_it_is_the_gradient_of_the_mean(found: dict[str, Any]) -> None:
    """Also if the bound is never reached."""
    mean = found["slopes"].mean(axis=0)
    for name in ("loose", "off"):
        np.testing.assert_allclose(found[name], mean, rtol=1e-4, err_msg=name)


def test_an_update_is_no_longer_than_its_steps_allow(found: dict[str, Any]) -> None:
    """K steps with gradients of norm c cover at most lr K c, the bound that noise is scaled by."""
    assert np.linalg.norm(found["path"][-1] - found["path"][0]) <= LR * STEPS * CLIP * (1 + 1e-6)
    hyper = fedavg.paper(
        num_clients=4,
        num_selected=2,
        local_steps=STEPS,
        lr=LR,
        sampling="reshuffled",
        example_clip=CLIP,
        privacy=parse_privacy("examples"),
    )
    assert hyper.bound == pytest.approx(LR * STEPS * CLIP)


def test_what_goes_further_is_clipped(regression: Callable) -> None:
    """Another optimizer may leave the bound; the sum still has it."""
    hyper = fedavg.paper(
        num_clients=7,
        num_selected=2,
        local_steps=STEPS,
        lr=LR,
        sampling="reshuffled",
        example_clip=CLIP,
        privacy=parse_privacy("examples"),
    )
    wire = Wire(regression(), hyper, Plan())
    event = event_of(jnp.int32(0), [0, 1], weight=0.5)
    far = jnp.array([[100.0, 0, 0], [0.01, 0, 0]])
    state = wire.first_round(jnp.zeros(3))
    total = wire.advance(jax.random.key(0), event, state, far).server
    np.testing.assert_allclose(total, [(LR * STEPS * CLIP + 0.01) / 2, 0, 0], rtol=1e-6)
