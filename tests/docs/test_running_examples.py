"""The examples of `docs/examples` about running: watched, stopped, logged, kept, drawn."""

import ast
import csv
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MOST_LINES = 25


@pytest.fixture
def scope(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the example that a test names in an empty folder, and return its variables."""
    monkeypatch.chdir(tmp_path)
    path = EXAMPLES / f"{request.param}.py"
    text = path.read_text()
    begins = ast.parse(text).body[0].end_lineno or 0
    lines = [line for line in text.splitlines()[begins:] if line.strip()]
    assert len(lines) <= MOST_LINES
    return runpy.run_path(str(path))


def example(name: str) -> pytest.MarkDecorator:
    """Name the example of a test."""
    return pytest.mark.parametrize("scope", [name], indirect=True, ids=[name])


@pytest.mark.slow
@example("early_stopping")
def test_rates_that_are_behind_are_stopped(scope: Any) -> None:
    """The best rate goes on to the end, and the smallest one does not."""
    curves = scope["run"].curves.isel(seed=0)
    accuracy, stopped_at = curves.accuracy.values[:, -1], curves.stopped_at.values
    assert stopped_at[0] == 5 and (stopped_at == -1).any()
    assert accuracy[stopped_at == -1].max() == accuracy.max() > 0.8
    assert np.isfinite(curves.loss).all()


@pytest.mark.slow
@example("own_problem")
def test_components_explain_what_the_best_ones_explain(scope: Any) -> None:
    """The ten best ones come from a singular value decomposition of all images."""
    squares = np.linalg.svd(scope["images"].reshape(1400, 64), compute_uv=False) ** 2
    best = squares[:10].sum() / squares.sum()
    explained = scope["run"].curves.explained
    assert explained[0] < 0.3 and best - 0.01 < explained[-1] < best + 1e-6


@pytest.mark.slow
@example("logs_read_back")
def test_logs_have_what_the_run_returned(scope: Any) -> None:
    accuracy = scope["run"].curves.accuracy.sel(lr=0.3, seed=0)
    events = scope["events"].Scalars("accuracy")
    np.testing.assert_array_equal([event.value for event in events], accuracy)
    table = scope["table"].query("seed == 0 and settings == '{\"lr\": 0.3}'")
    np.testing.assert_allclose(table.value, accuracy, rtol=1e-6)
    with Path("log.csv").open() as file:
        assert {line["system"] for line in csv.DictReader(file)} == {"fedavg"}


@example("saved_models")
def test_models_are_saved_loaded_and_continued(scope: Any) -> None:
    loaded, longer, one = scope["loaded"], scope["longer"], scope["one"]
    np.testing.assert_array_equal(longer.curves.accuracy[:, :, 0], loaded.curves.accuracy[:, :, -1])
    assert longer.curves.loss[:, :, -1].mean() < loaded.curves.loss[:, :, -1].mean()
    np.testing.assert_allclose(scope["found"]["accuracy"], one.curves.accuracy[-1], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of pandas and seaborn
@example("rates_in_seaborn")
def test_a_sweep_becomes_a_figure(scope: Any) -> None:
    assert len(scope["last"]) == 8 * 5 * 3
    assert len(scope["axes"].get_lines()) >= 3
    assert Path("rates.png").stat().st_size > 10_000
