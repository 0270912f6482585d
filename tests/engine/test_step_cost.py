"""The estimated operations of a local step, compared with numbers worked out by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax import lax

from fedjax_sim import models, problems
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine.planning import placement
from fedjax_sim.partition import iid


def problem_of(network: Any, side: int, channels: int) -> problems.Classification:
    """Make a classification problem of 30 random images of side x side x channels."""
    random = np.random.default_rng(0)
    images, labels = (
        random.integers(0, 256, (40, side, side, channels), dtype=np.uint8),
        random.integers(0, 10, 40).astype("int32"),
    )
    data = Dataset(images[:30], labels[:30], images[30:], labels[30:], 10, "random")
    return problems.make_classification(
        network, data, iid(data.train_labels, num_clients=3, seed=0)
    )


def counted(problem: Any, batch_size: int) -> float:
    """Estimate the operations of a step of `batch_size` examples."""
    return placement.measure_step(problem, batch_size)[1].operations


@struct.dataclass
class Lossless:
    """A problem with a model of three numbers."""

    def init(self, key: Any) -> Any:
        return jnp.zeros(3)


def test_a_perceptron_takes_six_for_each_weight_and_example() -> None:
    problem = problem_of(models.MLP((5,), 10), side=4, channels=1)
    parameters = 16 * 5 + 5 + 5 * 10 + 10
    assert counted(problem, 7) == 6 * parameters * 7
    _, without_loss = placement.measure_step(Lossless(), 7, has_loss=False)
    assert without_loss == placement.StepCost(operations=6 * 3 * 7, bytes=2 * 4 * 3)


@pytest.mark.parametrize(
    "by", [lax.conv_general_dilated, models.CONVOLUTIONS["patches"]], ids=["lax", "patches"]
)
def test_a_convolution_counts_every_position_of_the_image(by: Any) -> None:
    """Two 3x3 convolutions without padding, of 32 and 64 channels, pooling, and dense layers.

    Convolutions by patches take the same products.
    """
    problem = problem_of(models.SmallCNN(10, by), side=12, channels=3)
    products = 10 * 10 * 9 * 3 * 32 + 8 * 8 * 9 * 32 * 64 + 4 * 4 * 64 * 128 + 128 * 10
    assert counted(problem, 6) == pytest.approx(6 * products * 6)


def test_a_scan_counts_once_for_each_iteration() -> None:
    @struct.dataclass
    class Looped:
        def init(self, key: Any) -> Any:
            return jnp.zeros((4, 4))

        def loss(self, params: Any, client: Any, examples: Any, key: Any) -> Any:
            powers = lax.scan(lambda x, _: (x @ params, None), jnp.ones((2, 4)), None, length=25)[0]
            twice = lax.cond(
                client > 0, lambda x: x @ params @ params, lambda x: x @ params, powers
            )
            return jax.jit(lambda x: (x @ params).sum())(twice)

    assert counted(Looped(), 1) == 3 * (25 + 2 + 1) * 2 * 2 * 4 * 4


def test_a_problem_may_hold_numpy_arrays() -> None:
    @struct.dataclass
    class Plain:
        inputs: Any

        def init(self, key: Any) -> Any:
            return jnp.zeros(3)

        def loss(self, params: Any, client: Any, examples: Any, key: Any) -> Any:
            return ((self.inputs[client, examples] @ params) ** 2).mean()

    assert counted(Plain(np.ones((4, 10, 3))), 5) == 6 * 3 * 5
