"""Predictions averaged over samples, and the samples that are kept."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from fedjax_sim import ConfigError
from fedjax_sim.results import diagnostics


@struct.dataclass
class LogitsAsModel:
    """A problem whose models are the logits of two test examples of two classes."""

    test_labels: jax.Array

    def predict(self, params: Any) -> jax.Array:
        return jax.nn.softmax(params["logits"].reshape(2, 2))


def test_predictions_are_averaged_sample_by_sample() -> None:
    """Probabilities are averaged, not parameters, separately in each lane.

    The burn-in is left out, and with `thin` every second sample is used.
    """
    random = np.random.default_rng(1)
    logits = random.normal(size=(3, 9, 4)).astype("float32")
    labels = jnp.array([1, 0])
    found = diagnostics.average_predictions(
        LogitsAsModel(labels), {"logits": logits}, burn_in=2, thin=2
    )
    each = np.exp(logits.reshape(3, 9, 2, 2)) / np.exp(logits.reshape(3, 9, 2, 2)).sum(
        axis=-1, keepdims=True
    )
    kept = each[:, [2, 4, 6, 8]]
    average = np.cumsum(kept, axis=1) / np.arange(1, 5)[:, None, None]
    np.testing.assert_allclose(found.probabilities, average[:, -1], rtol=1e-5)
    assert {name: values.shape for name, values in found.curves.items()} == dict.fromkeys(
        ("accuracy", "nll", "brier", "ece"), (3, 4)
    )
    expected = -np.log(average[:, :, [0, 1], [1, 0]]).mean(axis=-1)
    np.testing.assert_allclose(found.curves["nll"], expected, rtol=1e-5)
    whole = diagnostics.average_predictions(LogitsAsModel(labels), {"logits": logits})
    np.testing.assert_allclose(whole.probabilities, each[:, 1:].mean(axis=1), rtol=1e-5)


def test_probabilities_of_few_bits_are_summed_in_32() -> None:
    """In bfloat16 a count of samples ends at 256."""

    @struct.dataclass
    class Few(LogitsAsModel):
        def predict(self, params: Any) -> jax.Array:
            return super().predict(params).astype("bfloat16")

    logits = np.zeros((1, 1001, 4), "float32")
    found = diagnostics.average_predictions(Few(jnp.array([1, 0])), {"logits": logits})
    np.testing.assert_array_equal(found.probabilities, np.full((1, 2, 2), 0.5))
    np.testing.assert_allclose(found.curves["nll"], np.log(2), rtol=1e-6)


def test_burn_in_and_thinning() -> None:
    """Samples are dropped as asked; a wrong number is refused."""
    samples = {"w": np.arange(10)[None, :, None]}
    assert diagnostics.thin_samples(samples)["w"].ravel().tolist() == list(range(1, 10))
    assert diagnostics.thin_samples(samples, burn_in=3, thin=3)["w"].ravel().tolist() == [3, 6, 9]
    for options in ({"burn_in": 10}, {"burn_in": -1}, {"thin": 0}, {"thin": 1.5}):
        with pytest.raises(ConfigError, match=r"but must be a whole number (from|of at least)"):
            diagnostics.thin_samples(samples, **options)
