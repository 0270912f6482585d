"""Metrics of predicted probabilities, predictions averaged over samples, and diagnostics of chains."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from sklearn.metrics import brier_score_loss, log_loss

from fedjax_sim import ConfigError
from fedjax_sim.diagnostics import posterior, predictions
from fedjax_sim.reporting.plots.posterior import reliability_figure


@pytest.fixture(scope="module")
def predicted() -> tuple[np.ndarray, np.ndarray]:
    """200 predictions of three classes, and labels that follow something else."""
    random = np.random.default_rng(0)
    probabilities = random.dirichlet((1.0, 0.5, 2.0), 200).astype("float32")
    return probabilities, random.integers(0, 3, 200).astype("int32")


def test_scores_are_those_of_scikit_learn(predicted: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, labels = predicted
    found = predictions.of_predictions(*map(jnp.asarray, predicted))
    np.testing.assert_allclose(
        found["accuracy"], np.mean(probabilities.argmax(axis=1) == labels), rtol=1e-6
    )
    np.testing.assert_allclose(found["nll"], log_loss(labels, probabilities), rtol=1e-5)
    np.testing.assert_allclose(
        found["brier"], brier_score_loss(labels, probabilities, scale_by_half=False), rtol=1e-5
    )


def test_calibration_by_hand(predicted: tuple[np.ndarray, np.ndarray]) -> None:
    """In a loop over bins; and the bins of single predictions, their upper edges included."""
    probabilities, labels = predicted
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected, bins = 0.0, predictions.reliability(*map(jnp.asarray, predicted))
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        assert bins.examples[b] == inside.sum()
        if inside.any():
            np.testing.assert_allclose(
                [bins.confidence[b], bins.accuracy[b]],
                [confidence[inside].mean(), right[inside].mean()],
                rtol=1e-5,
            )
            expected += inside.sum() / 200 * abs(right[inside].mean() - confidence[inside].mean())
    np.testing.assert_allclose(
        predictions.expected_calibration_error(*map(jnp.asarray, predicted)), expected, rtol=1e-5
    )
    halves = predictions.reliability(
        jnp.array([[0.5, 0.5], [0.25, 0.75], [0.0, 1.0]]), jnp.array([0, 1, 1]), bins=2
    )
    assert halves.examples.tolist() == [1, 2]
    assert halves.accuracy.tolist() == [1.0, 1.0]


def test_a_certain_mistake_costs_much_but_not_everything() -> None:
    assert 80 < predictions.negative_log_likelihood(jnp.array([[1.0, 0.0]]), jnp.array([1])) < 90
    assert predictions.brier_score(jnp.array([[1.0, 0.0]]), jnp.array([1])) == 2


@struct.dataclass
class Fixed:
    """A model is the logits of two test examples of two classes."""

    test_labels: jax.Array

    def predict(self, params: Any) -> jax.Array:
        return jax.nn.softmax(params["logits"].reshape(2, 2))


def test_predictions_are_averaged_sample_by_sample() -> None:
    """Probabilities, not parameters; without the burn-in, of every second sample, each lane by itself."""
    random = np.random.default_rng(1)
    logits = random.normal(size=(3, 9, 4)).astype("float32")
    labels = jnp.array([1, 0])
    found = posterior.predictive(Fixed(labels), {"logits": logits}, burn_in=2, thin=2)
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
    whole = posterior.predictive(Fixed(labels), {"logits": logits})
    np.testing.assert_allclose(whole.probabilities, each[:, 1:].mean(axis=1), rtol=1e-5)


def test_chains_that_agree_and_chains_that_do_not() -> None:
    """Independent draws have as many effective samples; an autoregression of coefficient a has (1 - a) / (1 + a) times as many."""
    random = np.random.default_rng(2)
    noise = random.normal(size=(4, 2001, 2))
    walk = noise.copy()
    for t in range(1, 2001):
        walk[:, t] = 0.8 * walk[:, t - 1] + 0.6 * noise[:, t]
    apart = noise + 3 * np.arange(4)[:, None, None]
    found = posterior.mixing({"iid": noise, "walk": walk, "apart": apart})
    assert found.rhat["iid"].shape == (2,)
    assert (np.abs(found.rhat["iid"] - 1) < 0.01).all()
    assert (found.rhat["apart"] > 2).all()
    np.testing.assert_allclose(found.ess["iid"], 8000, rtol=0.15)
    np.testing.assert_allclose(found.ess["walk"], 8000 / 9, rtol=0.25)
    assert (
        posterior.mixing({"walk": walk}, burn_in=1001).ess["walk"] < 0.7 * found.ess["walk"]
    ).all()


def test_what_is_left_of_samples() -> None:
    samples = {"w": np.arange(10)[None, :, None]}
    assert posterior.thinned(samples)["w"].ravel().tolist() == list(range(1, 10))
    assert posterior.thinned(samples, burn_in=3, thin=3)["w"].ravel().tolist() == [3, 6, 9]
    for options in ({"burn_in": 10}, {"burn_in": -1}, {"thin": 0}, {"thin": 1.5}):
        with pytest.raises(ConfigError, match="but must be a whole number from"):
            posterior.thinned(samples, **options)
    with pytest.raises(ConfigError, match="at least 4 a chain"):
        posterior.mixing(samples, burn_in=7)


def test_a_picture_of_calibration(predicted: tuple[np.ndarray, np.ndarray]) -> None:
    """A mark for each bin that is not empty, besides the diagonal."""
    bins = predictions.reliability(*map(jnp.asarray, predicted))
    axes = reliability_figure({"samples": bins}).axes[0]
    assert len(axes.lines[1].get_xdata()) == int((np.asarray(bins.examples) > 0).sum())
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), axes.lines[0].get_ydata())
