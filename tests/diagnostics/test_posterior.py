"""Predictions averaged over samples, and diagnostics of chains."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from fedjax_sim import ConfigError
from fedjax_sim.results.diagnostics import posterior


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
    found = posterior.average_predictions(
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
    whole = posterior.average_predictions(LogitsAsModel(labels), {"logits": logits})
    np.testing.assert_allclose(whole.probabilities, each[:, 1:].mean(axis=1), rtol=1e-5)


def test_probabilities_of_few_bits_are_summed_in_32() -> None:
    """In bfloat16 a count of samples ends at 256."""

    @struct.dataclass
    class Few(LogitsAsModel):
        def predict(self, params: Any) -> jax.Array:
            return super().predict(params).astype("bfloat16")

    logits = np.zeros((1, 1001, 4), "float32")
    found = posterior.average_predictions(Few(jnp.array([1, 0])), {"logits": logits})
    np.testing.assert_array_equal(found.probabilities, np.full((1, 2, 2), 0.5))
    np.testing.assert_allclose(found.curves["nll"], np.log(2), rtol=1e-6)


def test_chains_that_agree_and_chains_that_do_not() -> None:
    """Effective sample sizes equal their exact values, and R-hat tells chains that disagree.

    Independent draws are all effective. Of an autoregression with coefficient a, a share
    (1 - a) / (1 + a) is.
    """
    random = np.random.default_rng(2)
    noise = random.normal(size=(4, 2001, 2))
    walk = noise.copy()
    for t in range(1, 2001):
        walk[:, t] = 0.8 * walk[:, t - 1] + 0.6 * noise[:, t]
    apart = noise + 3 * np.arange(4)[:, None, None]
    found = posterior.compare_chains({"iid": noise, "walk": walk, "apart": apart})
    assert found.rhat["iid"].shape == (2,)
    assert (np.abs(found.rhat["iid"] - 1) < 0.01).all()
    assert (found.rhat["apart"] > 2).all()
    np.testing.assert_allclose(found.ess["iid"], 8000, rtol=0.15)
    np.testing.assert_allclose(found.ess["walk"], 8000 / 9, rtol=0.25)
    assert (
        posterior.compare_chains({"walk": walk}, burn_in=1001).ess["walk"] < 0.7 * found.ess["walk"]
    ).all()


def test_effective_sample_sizes_are_those_of_the_mean() -> None:
    """The size is that of the mean of exp(1.5 x) and not that of its ranks.

    If a normal x has the autocorrelations a^k, exp(1.5 x) has the autocorrelations
    (exp(2.25 a^k) - 1) / (exp(2.25) - 1), while its ranks are those of x.
    """
    random, a, num = np.random.default_rng(2), 0.8, 20_000
    walk = random.normal(size=(4, num))
    for t in range(1, num):
        walk[:, t] = a * walk[:, t - 1] + np.sqrt(1 - a**2) * walk[:, t]
    correlations = np.expm1(2.25 * a ** np.arange(1, 200)) / np.expm1(2.25)
    expected = 4 * num / (1 + 2 * correlations.sum())
    assert expected > 1.5 * 4 * num / 9
    np.testing.assert_allclose(
        posterior.compare_chains(np.exp(1.5 * walk), burn_in=0).ess, expected, rtol=0.15
    )


def test_burn_in_and_thinning() -> None:
    """Samples are dropped as asked; a wrong number is refused."""
    samples = {"w": np.arange(10)[None, :, None]}
    assert posterior.thin_samples(samples)["w"].ravel().tolist() == list(range(1, 10))
    assert posterior.thin_samples(samples, burn_in=3, thin=3)["w"].ravel().tolist() == [3, 6, 9]
    for options in ({"burn_in": 10}, {"burn_in": -1}, {"thin": 0}, {"thin": 1.5}):
        with pytest.raises(ConfigError, match=r"but must be a whole number (from|of at least)"):
            posterior.thin_samples(samples, **options)
    with pytest.raises(ConfigError, match="at least 4 a chain"):
        posterior.compare_chains(samples, burn_in=7)
