"""Writes the ledger: tables of verdicts in the READMEs, and a page with all claims.

The tables stand between two comments in `experiments/README.md`, in `experiments/STUDIES.md` and in
each `experiments/PAPER/README.md`. A test compares them with the committed results.
"""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.harness import ledger, page, statistics
from experiments.harness.claims import worded
from experiments.harness.ledger import FIGURES, ROOT, Row, counts, rows
from fedjax_sim.results.reports import to_json
from fedjax_sim.studies import tables

BEGIN, END = "<!-- verdicts: begin -->", "<!-- verdicts: end -->"
"""Comments around what is written from the results."""
MOST_LETTERS = 320
"""Length of a cell of a README's table from which its end is left to the page."""


def write_report(out: Path) -> dict[str, int]:
    """Judge the committed results anew, and write the tables and the page.

    Args:
      out: Folder of the page.

    Returns:
      The number of claims by verdict.
    """
    judge_again()
    found = rows(ledger.entries())
    for file, text in texts(found).items():
        file.write_text(text, encoding="utf-8")
    page.write(out, found, FIGURES)
    return counts(found)


def judge_again() -> None:
    """Judge the numbers of every entry by today's criteria, and write it."""
    for entry in ledger.entries():
        claims = ledger.rounded(
            json.loads(to_json([each._asdict() for each in ledger.judged(entry)]))
        )
        ledger.write({**entry, "claims": claims})


def texts(found: Sequence[Row]) -> dict[Path, str]:
    """Return what the READMEs should be, by file."""
    made = {
        ROOT / file: summary([row for row in found if row.paper in names], names)
        for file, names in (("README.md", page.PAPERS), ("STUDIES.md", page.STUDIES))
    }
    for paper in ledger.all_claims():
        made[ROOT / paper / "README.md"] = ledger_table(
            [row for row in found if row.paper == paper]
        )
    return {file: between(file.read_text(encoding="utf-8"), text) for file, text in made.items()}


def between(text: str, inner: str) -> str:
    """Replace what stands between the two comments of a text."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    assert len(pattern.findall(text)) == 1, "the text needs the two comments once"
    return pattern.sub(lambda _: f"{BEGIN}\n\n{inner}\n\n{END}", text)


def summary(found: Sequence[Row], names: Mapping[str, str]) -> str:
    """Lay out the numbers of verdicts by origin and by paper, and the errata.

    Args:
      found: The claims.
      names: What their papers' systems, or the studies, are called.
    """
    groups = {origin: rows for origin, rows in page.by_origin(found).items() if rows}
    by_origin = [[origin, *counts(rows).values(), len(rows)] for origin, rows in groups.items()]
    by_paper = []
    for paper, name in names.items():
        rows = [row for row in found if row.paper == paper and row.claim.counts]
        by_paper.append([f"[{name}]({paper}/README.md)", *counts(rows).values(), len(rows)])
    header = [*statistics.VERDICTS, "claims"]
    parts = [textwrap.fill(page.headline(found), 100, break_on_hyphens=False)]
    if len(groups) > 1:
        parts += [tables.table(["origin", *header], by_origin), "By paper, algebra left out:"]
    parts.append(tables.table(["paper" if len(groups) > 1 else "study", *header], by_paper))
    errata = [
        (name, *each[:-1], f"`{each.test.removeprefix('tests/')}`")
        for name, each in ledger.errata(names)
    ]
    if errata:
        heads = ["paper", "where", "printed", "right", "shown by", "test (in `tests/`)"]
        parts += ["Printed formulas that this project found wrong:", rows_of(heads, errata)]
    return "\n\n".join(parts)


def ledger_table(found: Sequence[Row]) -> str:
    """Lay out one paper's claims: the claim, the paper's value, ours, and the verdict."""
    lines = []
    for row in found:
        claim = row.claim
        ours = "; ".join(each.why for each, _ in row.found[:1])
        kind = "" if claim.counts else ", algebra"
        lines.append(
            (
                claim.id,
                f"{claim.text} ({claim.place}; {claim.origin}{kind})",
                page.value_of(claim),
                shortened(ours or claim.cost or "no result"),
                shortened(worded(row.verdict, row.scope)),
            )
        )
    return rows_of(["number", "claim", "the paper's value", "ours", "verdict"], lines)


def rows_of(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table of long cells, which are not padded."""
    cells = [header, ["---"] * len(header), *lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells
    )


def shortened(text: str) -> str:
    """Cut a long text between two of its parts, and mark that it goes on."""
    if len(text) <= MOST_LETTERS:
        return text
    cut = max(text.rfind(mark, 0, MOST_LETTERS) for mark in ("; ", ", "))
    return f"{text[: max(cut, 0) or MOST_LETTERS]} …"


def told(found: dict[str, int]) -> str:
    """Describe the numbers of verdicts in a sentence."""
    parts = ", ".join(f"{number} {verdict}" for verdict, number in found.items())
    return f"{sum(found.values())} claims: {parts}\n"
