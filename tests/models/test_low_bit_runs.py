"""Whole runs of the systems with low-bit models."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Event, Layout, Plan
from fedjax_sim.clients.gradient_steps import local_training
from fedjax_sim.datasets import from_arrays
from fedjax_sim.models import MLP
from fedjax_sim.models.quantized import LowBit
from fedjax_sim.partition import iid
from fedjax_sim.problems import make_classification
from tests.conftest import slow_but


@struct.dataclass
class Blobs:
    """A problem of seven clients, classes around points, and a model that trains with a key.

    Attributes:
      inputs: `f[N, M, D]`.
      labels: `i32[N, M]`.
      model: The low-bit model.
    """

    inputs: jax.Array
    labels: jax.Array
    model: LowBit = struct.field(pytree_node=False)

    @property
    def counts(self) -> jax.Array:
        return jnp.full(self.inputs.shape[0], self.inputs.shape[1], "int32")

    def init(self, key: jax.Array) -> Any:
        return self.model.init(key, self.inputs[0, :1])

    def loss(
        self, params: Any, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        logits = self.model.apply(
            params, self.inputs[client, examples], train=True, rngs={"quantize": key}
        )
        return self._cross_entropy(logits, self.labels[client, examples])

    def evaluate(self, params: Any) -> Mapping[str, jax.Array]:
        inputs = self.inputs.reshape(-1, self.inputs.shape[-1])
        return {
            "loss": self._cross_entropy(self.model.apply(params, inputs), self.labels.reshape(-1))
        }

    @staticmethod
    def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.mean(
            jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
        )


KEY = jax.random.key(7)
TICKS = 12

LAYOUT = Layout(slots_at_once=4, lanes_at_once=False, lane_devices=1)


def blobs(**settings: Any) -> Blobs:
    random = np.random.default_rng(2)
    labels = random.integers(0, 4, (7, 12))
    inputs = random.normal(size=(4, 6))[labels] + 0.3 * random.normal(size=(7, 12, 6))
    return Blobs(
        jnp.asarray(inputs, "float32"),
        jnp.asarray(labels, "int32"),
        LowBit(MLP((5,), 4), **settings),
    )


@pytest.fixture(
    params=slow_but(
        ["scaffold", "hierarchical", "langevin"],
        ["fedavg", "scaffold", "favano", "fedasync", "hierarchical", "langevin"],
    )
)
def system(request: pytest.FixtureRequest) -> Any:
    """Yield a system of each kind of local steps; the steps of all others are among these."""
    return fedjax_sim.SYSTEMS[request.param]


def run(system: Any, problem: Any, hyper: Any) -> fedjax_sim.Run:
    return fedjax_sim.simulate(
        system, problem, hyper, budget=fedjax_sim.Ticks(TICKS), num_evals=3, layout=LAYOUT
    )


def distance(a: Any, b: Any) -> float:
    return float(
        np.sqrt(
            sum(
                np.sum((np.asarray(x) - np.asarray(y)) ** 2)
                for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
            )
        )
    )


@pytest.mark.few(1)
def test_every_kind_of_local_steps_trains_with_few_bits(system: Any, small: Callable) -> None:
    """The loss falls, and each slot of a tick sends a model of 59 numbers in full precision."""
    curves = run(system, blobs(), small(system, lr=0.3)).curves
    assert not curves.failed.any()
    loss = curves.loss.values.ravel()
    assert loss[-1] < 0.8 * loss[0]
    slots = {"fedasync": 1, "langevin": 7}.get(system.name, 4)
    sent = 2 if system.name == "scaffold" else 1  # with a control variate
    assert curves.uplink_bits.values.ravel()[-1] == TICKS * slots * sent * 59 * 32


@pytest.mark.slow
def test_favano_in_many_bits_tends_to_full_precision(small: Callable) -> None:
    """The distance to full precision falls with the number of bits.

    Gradients are not quantized, because they would stay equally noisy.
    """
    system = fedjax_sim.SYSTEMS["favano"]
    full = run(system, blobs(weights=None, activations=None, gradients=None), small(system)).models
    distances = []
    for bits in (4, 8, 12):
        low = run(
            system,
            blobs(weights=bits, activations=bits, gradients=None, scale="max"),
            small(system),
        ).models
        distances.append(distance(full, low))
    # Four bits more divide the rounding error by 16.
    assert (np.array(distances[1:]) < 0.25 * np.array(distances[:-1])).all()
    assert distances[0] > 1e-3


def test_classification_hands_over_the_key(small: Callable) -> None:
    """With different keys the loss has the same value but different gradients."""
    random = np.random.default_rng(2)
    images, labels = random.integers(0, 255, (80, 4, 4, 1), "uint8"), np.arange(80) % 4
    data = from_arrays(images, labels, images[:20], labels[:20])
    problem = make_classification(LowBit(MLP((5,), 4)), data, iid(labels, num_clients=4, seed=0))
    params = problem.init(KEY)
    losses, slopes = jax.jit(jax.vmap(jax.value_and_grad(problem.loss), (None, None, None, 0)))(
        params, jnp.int32(1), jnp.arange(6), jax.random.split(KEY, 3)
    )
    assert np.ptp(losses) == 0
    kernel = np.asarray(slopes["params"]["Dense_0"]["kernel"])
    assert distance(kernel[0], kernel[1]) > 0 < distance(kernel[0], kernel[2])


def test_no_key_is_used_twice(small: Callable, key_reuse_check: None) -> None:
    """Local work of two clients is traced only, because keys are checked while tracing."""
    problem, hyper = blobs(), small(fedjax_sim.SYSTEMS["favano"])
    slots = jnp.arange(2)
    event = Event(
        tick=jnp.int32(0),
        clients=slots,
        steps=slots + 2,
        version=slots,
        weight=slots.astype("float32"),
        offset=slots,
        read=slots,
        write=jnp.int32(0),
    )
    starts = jax.vmap(problem.init)(jax.random.split(KEY, 2))
    train = jax.jit(local_training(problem, hyper, Plan(slots_at_once=2)))
    jax.eval_shape(train, jax.random.key(1), event, starts=starts)
