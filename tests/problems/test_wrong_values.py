"""Numbers out of range get one sentence where a user gives them, and never a result."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, problems
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.missing_values import Matrix
from fedjax_sim.problems.latent.noisy_mean import Seen

SPLIT = Partition(np.array([0, 1, 2]), np.array([2, 1]))
LOGITS, CELLS = jnp.zeros((2, 3)), np.ones((3, 2, 3))
GAUSSIAN = problems.GaussianClients.of(1.0, np.zeros((2, 3)))
COUNTS = latent.MissingValues((2, 3), 1, family="poisson", method="alternating")
ODDS = latent.MissingValues((2, 3), 1, family="bernoulli", method="alternating")


def estimation(model: Any, data: Any) -> Callable[[], Any]:
    return partial(latent.make_estimation, model, data, SPLIT)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            partial(problems.cross_entropy, LOGITS, jnp.array([0, 9])),
            "largest number in the targets is 9, but must be at most 2",
        ),
        (
            partial(problems.is_right, LOGITS, jnp.array([-1, 0])),
            "smallest number in the targets is -1, but must be at least 0",
        ),
        (
            partial(problems.binary_cross_entropy, jnp.zeros((1, 2)), jnp.array([[0, 2]])),
            "largest number in the targets is 2, but must be at most 1",
        ),
        (
            partial(problems.accuracy_of_classes, -1),
            "num_classes is -1, but must be a whole number of at least 1",
        ),
        (
            partial(problems.check_partition, SPLIT, 3.5),
            "num_examples is 3.5, but must be a whole number",
        ),
        (
            partial(problems.hold, [SPLIT], float("nan")),
            "num_examples is nan, but must be a whole number",
        ),
        (
            partial(problems.LabelFlip().labels, np.array([0, 11]), 10),
            "largest number in labels is 11, but must be at most 9",
        ),
        (
            partial(problems.LabelFlip().labels, np.array([0, 1]), -1),
            "num_classes is -1, but must be a whole number of at least 1",
        ),
        (
            partial(GAUSSIAN.posterior, -1.0),
            "temperature is -1.0, but must be a finite number above 0",
        ),
        (partial(latent.principal_components, np.eye(4), -1), "dimensions is -1, but must be"),
        (partial(latent.principal_components, np.eye(4) * np.nan, 1), "images is"),
        (partial(latent.binary, np.full((1, 2), np.nan)), "images is"),
        (partial(latent.fitted, None, [], tolerance=-1), "tolerance is -1, but must be"),
        (
            estimation(latent.BernoulliMixture(2), np.array([[2.0, 0], [0, 1], [1, 0]])),
            "largest number in data is 2.0, but must be at most 1",
        ),
        (
            estimation(latent.NoisyMean(), Seen(np.ones((3, 2)), np.full(3, 7.0))),
            "largest number in kappa is 7.0, but must be at most 1",
        ),
        (
            estimation(latent.MissingValues((2, 3), 1), Matrix(CELLS, 2 * CELLS)),
            "largest number in seen is 2.0, but must be at most 1",
        ),
        (
            partial(estimation(latent.NoisyMean(), Seen(np.ones((3, 2)), np.ones(3))), start=[0.0]),
            "shape of start is (1,), but must be (2,), as of the statistics",
        ),
        (
            estimation(COUNTS, Matrix(-CELLS, CELLS)),
            "smallest number in values is -1.0, but must be at least 0",
        ),
        (
            estimation(ODDS, Matrix(2 * CELLS, CELLS)),
            "largest number in values is 2.0, but must be at most 1",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        call()


def test_cells_that_are_not_seen_may_hold_anything() -> None:
    latent.make_estimation(COUNTS, Matrix(-CELLS, np.zeros_like(CELLS)), SPLIT)


def test_constant_targets_of_a_traced_loss_are_checked() -> None:
    """A loss under `jax.jit` may close over its labels, which were refused with a traceback."""
    good, wrong = (
        jax.jit(lambda logits, labels=jnp.array(labels): problems.cross_entropy(logits, labels))
        for labels in ([0, 2], [0, 9])
    )
    np.testing.assert_allclose(good(LOGITS), np.log(3), rtol=1e-6)
    with pytest.raises(ConfigError, match="largest number in the targets is 9"):
        wrong(LOGITS)
