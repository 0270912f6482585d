"""Check that docstrings, comments and pages are plain to read.

    python -m scripts.words [--all] [CHECKOUT]

Three rules. First lines of docstrings name a thing, and have none of the words of
`structure.UNPLAIN`. Docstrings and comments of the package, README and the pages have none of the
phrases that the page of words lists under `HEADING`. A body of more than `structure.LONG_BODY`
lines of code has at least `COMMENTS` lines of comments for each 100 of them.

The number of findings is printed by rule. With `--all`, or if a rule has more than `MOST` allows,
each is listed with its file and line. The exit code is 1 if a rule has more. The numbers in `MOST`
may only become smaller.
"""

import argparse
import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts import structure

MOST = {"first lines": 0, "phrases": 130, "comments": 2}
"""Findings of each rule that are left to mend."""
HEADING = "## Phrases to avoid"
COMMENTS = 5


def phrases_in(page: str) -> list[str]:
    """List the phrases of the page of words: those in bold type under the heading."""
    section = page.partition(HEADING)[2].partition("\n## ")[0]
    return re.findall(r"\*\*(.+?)\*\*", section)


@functools.lru_cache(maxsize=1)
def nodes_of(source: str) -> list[ast.AST]:
    """List the nodes of a Python file."""
    return [*ast.walk(ast.parse(source))]


@functools.lru_cache(maxsize=1)
def comments_of(source: str) -> list[tokenize.TokenInfo]:
    """List the comments of a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token for token in tokens if token.type == tokenize.COMMENT]


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a Python file and its blocks of comments, with their first lines."""
    for node in nodes_of(source):
        if structure.is_docstring(node):
            yield node.lineno, node.value.value
    block: list[str] = []
    begin = 0
    for token in comments_of(source):
        if token.start[0] != begin + len(block):
            yield begin, "\n".join(block)
            begin, block = token.start[0], []
        block.append(token.string.lstrip("# "))
    yield begin, "\n".join(block)


def find_phrases(text: str, phrases: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the phrases in a text, also across line ends, with the number of line ends before."""
    for phrase in phrases:
        words = r"\s+".join(map(re.escape, phrase.split()))
        for found in re.finditer(rf"\b{words}\b", text, flags=re.IGNORECASE):
            yield text.count("\n", 0, found.start()), phrase


def unplain_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first lines of docstrings that have an unplain word, with their numbers."""
    for node in nodes_of(source):
        if structure.is_docstring(node):
            first = node.value.value.strip().split("\n")[0]
            if structure.UNPLAIN.search(first):
                yield node.lineno, first


def bare_bodies(source: str) -> Iterator[tuple[int, str]]:
    """Yield the functions whose long bodies have too few lines of comments, with their lines."""
    code = structure.code_lines(source)
    comments = {token.start[0] for token in comments_of(source)}
    for node in nodes_of(source):
        if isinstance(node, structure.Function):
            size = len(set().union(*map(structure.lines_of, node.body)) & code)
            known = len(structure.lines_of(node) & comments)
            if size > structure.LONG_BODY and 100 * known < COMMENTS * size:
                yield node.lineno, f"{node.name} has {size} lines and {known} with comments"


def findings_in(checkout: Path) -> dict[str, list[str]]:
    """List the findings of each rule in a checkout, as "file:line: text"."""
    found: dict[str, list[str]] = {rule: [] for rule in MOST}

    def add(rule: str, path: Path, line: int, text: str) -> None:
        found[rule].append(f"{path.relative_to(checkout)}:{line}: {text}")

    glossary = checkout / "docs" / "words.md"
    phrases = phrases_in(glossary.read_text())
    for path in sorted((checkout / structure.PACKAGE).rglob("*.py")):
        source = path.read_text()
        for line, text in unplain_lines(source):
            add("first lines", path, line, text)
        for line, text in prose_of(source):
            for below, phrase in find_phrases(text, phrases):
                add("phrases", path, line + below, phrase)
        for line, text in bare_bodies(source):
            add("comments", path, line, text)
    pages = {checkout / "README.md", *(checkout / "docs").rglob("*.md")} - {glossary}
    for path in sorted(pages):
        for above, phrase in find_phrases(path.read_text(), phrases):
            add("phrases", path, 1 + above, phrase)
    return found


def main() -> int:
    """Print the findings; return 1 if a rule has too many."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkout", nargs="?", type=Path, default=here)
    parser.add_argument("--all", action="store_true", help="list all findings")
    given = parser.parse_args()
    has_too_many = False
    for rule, lines in findings_in(given.checkout).items():
        is_above = len(lines) > MOST[rule]
        has_too_many |= is_above
        listed = lines if given.all or is_above else []
        print(f"{rule}: {len(lines)}, at most {MOST[rule]}", *listed, sep="\n  ")
    return int(has_too_many)


if __name__ == "__main__":
    sys.exit(main())
