"""Scores of predicted class probabilities, against scikit-learn and by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from fedjax_sim import ConfigError
from fedjax_sim.results import diagnostics as predictions
from fedjax_sim.results.plots import reliability_figure


@pytest.fixture(scope="module")
def predicted() -> tuple[np.ndarray, np.ndarray]:
    """Draw 200 predictions of three classes, and labels that are independent of them."""
    random = np.random.default_rng(0)
    probabilities = random.dirichlet((1.0, 0.5, 2.0), 200).astype("float32")
    return probabilities, random.integers(0, 3, 200).astype("int32")


def test_scores_equal_those_of_scikit_learn(predicted: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, labels = predicted
    found = predictions.score_predictions(*map(jnp.asarray, predicted))
    np.testing.assert_allclose(
        found["accuracy"], np.mean(probabilities.argmax(axis=1) == labels), rtol=1e-6
    )
    np.testing.assert_allclose(found["nll"], log_loss(labels, probabilities), rtol=1e-5)
    np.testing.assert_allclose(
        found["brier"], brier_score_loss(labels, probabilities, scale_by_half=False), rtol=1e-5
    )


def test_calibration_by_hand(predicted: tuple[np.ndarray, np.ndarray]) -> None:
    """Reliability and calibration error equal those of a loop over bins.

    A bin includes its upper edge.
    """
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
        predictions.score_predictions(*map(jnp.asarray, predicted))["ece"], expected, rtol=1e-5
    )
    halves = predictions.reliability(
        jnp.array([[0.5, 0.5], [0.25, 0.75], [0.0, 1.0]]), jnp.array([0, 1, 1]), bins=2
    )
    assert halves.examples.tolist() == [1, 2]
    assert halves.accuracy.tolist() == [1.0, 1.0]


def test_models_that_diverged_have_no_score() -> None:
    """The largest of nan probabilities is the first, which is no prediction of class 0."""
    labels = jnp.array([0, 0, 1])
    scores = predictions.score_predictions(jnp.full((3, 2), jnp.nan), labels)
    assert all(np.isnan(score) for score in scores.values())


def test_a_certain_mistake_has_a_large_but_finite_loss() -> None:
    scores = predictions.score_predictions(jnp.array([[1.0, 0.0]]), jnp.array([1]))
    assert 80 < scores["nll"] < 90 and scores["brier"] == 2


def test_the_figure_of_calibration(predicted: tuple[np.ndarray, np.ndarray]) -> None:
    """It shows the diagonal and a mark for each bin that is not empty."""
    bins = predictions.reliability(*map(jnp.asarray, predicted))
    axes = reliability_figure({"samples": bins}).axes[0]
    assert len(axes.lines[1].get_xdata()) == int((np.asarray(bins.examples) > 0).sum())
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), axes.lines[0].get_ydata())


def test_labels_of_another_shape_are_refused(predicted: tuple[np.ndarray, np.ndarray]) -> None:
    """Labels `[m, 1]` would be compared with every prediction."""
    probabilities, labels = map(jnp.asarray, predicted)
    with pytest.raises(ConfigError, match="labels is an array of shape"):
        predictions.score_predictions(probabilities, labels[:, None])
