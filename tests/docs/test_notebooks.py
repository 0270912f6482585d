"""The notebooks run as they are, each in an empty folder and without the names of the others."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
MOST_LINES = 25
BEFORE = """
%reset -f
import os
os.chdir({folder!r})
del os
"""
"""What the kernel runs before a notebook."""


@pytest.fixture(scope="module")
def execute() -> Iterator[Callable[[Path, Path], tuple[Any, Any]]]:
    """Return a function that runs a notebook in a folder: as it is stored, and with its outputs.

    All notebooks run in one kernel, which imports JAX once.
    """
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    new = nbformat.v4.new_notebook
    client = nbclient.NotebookClient(new(), timeout=300, kernel_name="python3")

    def run(path: Path, folder: Path) -> tuple[Any, Any]:
        first = nbformat.v4.new_code_cell(BEFORE.format(folder=str(folder)))
        notebook = nbformat.read(path, as_version=4)
        for part in (new(cells=[first]), notebook):
            client.nb = part
            client.reset_execution_trackers()
            for number, cell in enumerate(part.cells):
                client.execute_cell(cell, number)
        return nbformat.read(path, as_version=4), notebook

    with client.setup_kernel():
        yield run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the notebook's packages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, execute: Callable) -> None:
    """Every cell runs, and gives outputs of the kinds that are stored."""
    stored, notebook = execute(path, tmp_path)
    for was, now in zip(stored.cells, notebook.cells, strict=True):
        if was.cell_type == "code":
            assert kinds(now.outputs) == kinds(was.outputs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the notebook's packages
def test_a_notebook_shows_progress(tmp_path: Path, execute: Callable) -> None:
    """Executed headless; the line under the cell is that of the last evaluation."""
    _, notebook = execute(DOCS / "examples" / "progress.ipynb", tmp_path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (shown,) = cells[1].outputs
    line = shown["data"]["text/plain"]
    assert line.startswith("fedavg: 25 of 25 evaluations, ")
    assert "ticks/s, virtual time" in line and line.endswith("about 0 s left")
    assert "0.3" in cells[2].outputs[0]["data"]["text/plain"]
    assert len("".join(cell.source for cell in cells).splitlines()) <= MOST_LINES


def kinds(outputs: list) -> set[str]:
    """Name the kinds of a cell's outputs: pictures, tables, printed text."""
    return {name for output in outputs for name in output.get("data", {output.output_type: ""})}
