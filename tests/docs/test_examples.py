"""The examples of `docs/examples` run as they are written, and are short."""

import ast
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MOST_LINES = 25


def code_lines(text: str) -> int:
    """Count lines with code: no docstring, no comments, nothing empty."""
    docstring = ast.parse(text).body[0].end_lineno or 0
    rest = (line.strip() for line in text.splitlines()[docstring:])
    return sum(bool(line) and not line.startswith("#") for line in rest)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    """A posterior, from a log-density to LOO, may take some more."""
    most = MOST_LINES + 5 * path.stem.endswith("_posterior")
    assert 0 < code_lines(path.read_text()) <= most


def run_example(name: str) -> dict[str, Any]:
    """Run an example and return its variables."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.slow
def test_regression_on_a_dataframe() -> None:
    """Errors are labelled by the clinics' names, and learning makes them smaller."""
    scope = run_example("dataframe_regression")
    curves = scope["run"].curves
    assert set(curves.client.values) == {"Ghent", "Oslo", "Porto", "Turin", "Umeå"}
    assert float(curves.loss[-1]) < 0.8 < float(curves.loss[0])
    mae, problem = curves.client_mae.values[-1], scope["problem"]
    weights = np.asarray(problem.test_held.counts) / int(problem.num_tests)
    np.testing.assert_allclose(mae @ weights, curves.mae.values[-1], rtol=1e-5)


@pytest.mark.slow
def test_an_equinox_network() -> None:
    assert float(run_example("equinox_network")["run"].curves.accuracy[-1]) > 0.8


@pytest.mark.slow
def test_an_lstm() -> None:
    losses = run_example("lstm_sequences")["run"].curves.loss.values
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.slow
def test_low_rank_changes() -> None:
    """The second run starts at the loss of the first one's end, lowers it, and sends less."""
    scope = run_example("lora")
    losses, run = scope["run"].curves.loss.values, scope["run"]
    assert losses[0] < 3.5
    assert losses[-1] < losses[0]
    # In one block, two projections of rank 4, each with two matrices of 32 times 4.
    bits_of_model = 32 * 2 * 2 * 32 * 4
    assert int(run.curves.uplink_bits[-1]) == 8 * 2 * bits_of_model


@pytest.mark.slow
def test_a_histogram_of_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    curves = run_example("client_histogram")["run"].curves
    assert curves.client_accuracy.dims == ("eval", "client")
    # Each client's own model is better for it.
    own, common = curves.personal_client_accuracy[-1], curves.client_accuracy[-1]
    assert float(own.mean()) > float(common.mean())
    assert {path.name for path in tmp_path.iterdir()} == {
        "client_accuracy.png",
        "personal_client_accuracy.png",
    }
