"""The guides: their Python blocks run in order, and their commands are words that the CLI takes."""

import ast
import contextlib
import io
import re
import shlex
from pathlib import Path

import jax
import matplotlib
import pytest

from fedjax_sim.cli.arguments import read_settings
from fedjax_sim.cli.commands import main, make_parser

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
SLOW = (
    "adding_parts",
    "attacks_and_rules",
    "fair_comparisons",
    "from_other_simulators",
    "own_loop",
    "parts",
    "patterns",
    "precision_and_determinism",
    "question_to_table",
    "reading_a_timeline",
    "recorded_traces",
)
RUN_FIRST = ("question_to_table",)
"""Pages of which the shell commands run first: the Python blocks read the files they write."""
PAGES = [*GUIDES, ROOT / ".github" / "CONTRIBUTING.md", ROOT / "README.md"]
CODE_AND_OUTPUT = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", flags=re.DOTALL)
COMMAND = re.compile(r"^fedjax-sim (.*)$", flags=re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """List the fenced blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # of what a page shows on purpose
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in SLOW))
        for page in GUIDES
    ],
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks share one namespace; a text after a block is what the block prints."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    found = CODE_AND_OUTPUT.findall(page.read_text())
    assert found
    for line in commands(page) if page.stem in RUN_FIRST else ():
        assert main(shlex.split(line)) == 0, line
    scope: dict = {"__name__": page.stem}
    with jax.numpy_rank_promotion("allow"):  # users have JAX's defaults
        for number, (block, shown) in enumerate(found, start=1):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block, f"{page.name}, block {number}", "exec"), scope)
            assert shown in ("", out.getvalue()), f"{page.name}, block {number}"


def code_lines(node: ast.ClassDef | ast.FunctionDef) -> int:
    """Count the lines of a definition that are in the text of its program without docstrings."""
    for each in ast.walk(node):
        if isinstance(each, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(each):
            each.body = each.body[1:]
    placed = [each for each in ast.walk(node) if isinstance(each, ast.expr | ast.stmt)]
    ends = {each.end_lineno for each in placed if isinstance(each, ast.expr)}
    return len(ends | {each.lineno for each in placed})


def test_the_table_of_added_parts_counts_their_code() -> None:
    """Lines and imported names of each part, all of it from outside the package."""
    page = (ROOT / "docs" / "guides" / "adding_parts.md").read_text()
    counted = {}
    for section in page.split("\n## ")[1:]:
        code = "\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL))
        body = ast.parse(code).body
        made = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        asked = [node for node in body if isinstance(node, ast.ImportFrom)]
        named = [name for node in asked if node.module != "functools" for name in node.names]
        title = section.partition("\n")[0]
        counted[title[0].lower() + title[1:]] = sum(map(code_lines, made)), len(named)
    rows = re.findall(r"^\| (a[^|]*) \| (\d+) \| (\d+) \|$", page, flags=re.MULTILINE)
    assert {name: (int(lines), int(names)) for name, lines, names in rows} == counted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_understood(page: Path) -> None:
    """Every `fedjax-sim` line of a page has flags and settings in a form that the parser reads."""
    for line in commands(page):
        command, *words = shlex.split(line, comments=True)
        arguments = make_parser(command).read(words)
        if hasattr(arguments, "set"):
            read_settings(arguments)


def test_commands_are_found() -> None:
    """The page about clusters has some, so the pattern finds them."""
    found = {page.stem: len(commands(page)) for page in PAGES}
    assert found["clusters"] >= 5


def commands(page: Path) -> list[str]:
    """Return the words after `fedjax-sim` of every command of a page."""
    joined = [block.replace("\\\n", " ") for block in blocks(page, "(?:bash|sh)")]
    return [line for block in joined for line in COMMAND.findall(block)]


def test_pages_link_to_what_exists() -> None:
    """Relative links of the pages, and of the other texts for readers, lead to files."""
    others = [ROOT / ".github" / name for name in ("SECURITY.md", "CODE_OF_CONDUCT.md")]
    for page in [*PAGES, *others, ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
