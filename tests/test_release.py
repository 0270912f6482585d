"""What a release says about itself is the same everywhere."""

import inspect
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import fedjax_sim
from fedjax_sim.systems import SYSTEMS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lower_bounds() -> dict[str, str]:
    """Read the lower bounds of the packages that are always installed."""
    found = {}
    for requirement in PROJECT["dependencies"]:
        match = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement)
        assert match, requirement
        found[match[1]] = match[2]
    return found


def test_versions_and_dates_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[([\d.]+)\] - ([\d-]+)$", changelog, flags=re.MULTILINE)
    assert newest and newest[1] == fedjax_sim.__version__
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {newest[1]}\n" in citation and f'date-released: "{newest[2]}"' in citation


def test_the_five_papers_are_named_wherever_they_should_be() -> None:
    """The index page links to them and the citation lists them, those that the systems cite."""
    linked = set(PROJECT["urls"].values())
    citation = (ROOT / "CITATION.cff").read_text()
    assert set(re.findall(r"https://arxiv.org/abs/[\d.]+", citation)) == linked
    systems = ("favano", "fedstaleweight", "langevin", "fedem", "hierarchical")
    for system, url in zip(systems, PROJECT["urls"].values(), strict=True):
        own = SYSTEMS[system].Hyper
        number = url.removeprefix("https://arxiv.org/abs/")
        title = inspect.getdoc(own if own.__name__ != "Hyper" else inspect.getmodule(own)) or ""
        assert f"arXiv {number}" in title.splitlines()[0]
        assert f"10.48550/arXiv.{number}" in citation


def test_the_top_level_holds_nothing_else() -> None:
    """A test or a call in the clone's own folder may have left files that were then committed."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tops = {line.partition("/")[0] for line in done.stdout.splitlines()}
    allowed = {"pyproject.toml", "fedjax_sim", "experiments", "tests", "scripts", "docs"}
    allowed |= {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    assert {name for name in tops if name[0] != "."} <= allowed


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / "scripts" / "constraints_oldest.txt").read_text().splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    pinned = dict(line.split("==") for line in wanted if "==" in line)
    assert pinned == lower_bounds()
    # The others are required by packages that are required here, and have upper limits.
    others = [line.split("<") for line in wanted if "==" not in line]
    assert all(len(parts) == 2 and parts[0] not in pinned for parts in others)


def test_the_page_on_installation_names_the_tested_versions() -> None:
    """Of JAX, those of both files of constraints."""
    page = (ROOT / "docs" / "installation.md").read_text()
    for name in ("constraints.txt", "constraints_oldest.txt"):
        pins = (ROOT / "scripts" / name).read_text()
        pinned = re.search(r"^jax==([\d.]+)$", pins, flags=re.MULTILINE)
        assert pinned and re.search(rf"\b{re.escape(pinned[1])}\b", page)


def test_the_oldest_and_the_newest_versions_are_tested() -> None:
    """On the oldest and the newest Python that the classifiers name."""
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    jobs = re.findall(r'python: "([\d.]+)", command: (.*)\}', text)
    versions = [each.rsplit(" ", 1)[1] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    versions.sort(key=lambda version: [int(part) for part in version.split(".")])
    assert [python for python, _ in jobs] == [versions[0], versions[0], versions[-1]]
    assert [command for _, command in jobs] == [
        "./scripts/test",
        "./scripts/test --oldest",
        "./scripts/test --newest",
    ]


def test_the_index_page_has_the_sentences_of_the_readme() -> None:
    """It has no relative links, which lead nowhere there, and no picture."""
    first = (ROOT / "README.md").read_text().split("\n\n")[1]
    page = PROJECT["readme"]["text"]
    assert first in page and "](" not in page
    assert first.count(". ") + first.count(".\n") == 2  # three sentences


def test_the_front_page_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    block = re.search(r"```python\n(.*?)```", "\n".join(lines), flags=re.DOTALL)
    assert block and len(block[1].splitlines()) <= 15


def test_the_peers_table_has_the_measured_numbers() -> None:
    """Every number of the README's table stands in the stored results, the best of plain JAX."""
    stored = (ROOT / "scripts" / "benchmark_peers.md").read_text()
    front = (ROOT / "README.md").read_text()
    table = re.search(r"\| rounds per second \|.*?\n\n", front, flags=re.DOTALL)
    assert table
    measured: dict[str, list[set[str]]] = {}
    for line in stored.split("\n\n")[3].splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        name = "plain JAX, hand-written" if name.startswith("plain JAX") else name
        columns = measured.setdefault(name, [set() for _ in cells])
        for column, cell in zip(columns, cells, strict=True):
            column.add(cell.replace("*", "").split(" ")[0])
    rows = table[0].strip().splitlines()[2:]
    assert {row.strip("|").split("|")[0].strip() for row in rows} == set(measured)
    for row in rows:
        name, *cells = (cell.strip().replace("*", "") for cell in row.strip("|").split("|"))
        for column, cell in zip(measured[name], cells, strict=True):
            assert cell in column
            others = [float(each.replace(",", "")) for each in column - {"-"}]
            assert float(cell.replace(",", "")) == max(others)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_notebook_installs_only_what_is_missing(path: Path) -> None:
    """The first cell of code is skipped where the package is, and outputs are stored."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    first = "".join(cells[0]["source"])
    assert 'find_spec("fedjax_sim") is None' in first and "pip install" in first
    assert "index" not in first and "://" not in first
    assert all(cell["execution_count"] == n for n, cell in enumerate(cells, start=1))
    assert not any(out["output_type"] == "error" for cell in cells for out in cell["outputs"])
