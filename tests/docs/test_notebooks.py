"""The notebooks run as they are, each in a new kernel and an empty folder."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.filterwarnings("ignore")  # of the notebook's packages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """Every cell runs, and gives outputs of the kinds that are stored."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    stored = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    for was, now in zip(stored.cells, notebook.cells, strict=True):
        if was.cell_type == "code":
            assert kinds(now.outputs) == kinds(was.outputs)


def kinds(outputs: list) -> set[str]:
    """Name the kinds of a cell's outputs: pictures, tables, printed text."""
    return {name for output in outputs for name in output.get("data", {output.output_type: ""})}
