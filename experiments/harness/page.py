"""The pages of all claims: HTML files that need no network and no script.

`index.html` has the papers' claims, and `studies.html` those of our own.
"""

import html
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.harness import ledger
from experiments.harness.claims import ORIGINS, Claim, Verdict
from experiments.harness.ledger import Row, counts
from experiments.harness.statistics import HOLDS, PARTLY, VERDICTS
from fedjax_sim.core.lifecycle import write_whole

COLORS = {
    "holds": "#1b7f4b",
    "holds in part": "#8a6d00",
    "fails": "#b3261e",
    "not on the substitute": "#8d4b87",
    "undecided": "#5f6368",
    "not run": "#9aa0a6",
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem;
  color: #202124; background: #fff }
h1, h2 { line-height: 1.2 }
h2 { border-top: 2px solid #dadce0; padding-top: 1rem }
nav a { margin-right: 1rem }
div { overflow-x: auto }
table { border-collapse: collapse }
td, th { padding: .2rem .7rem; text-align: left; vertical-align: top }
.numbers td + td, .numbers th + th { text-align: right }
tr + tr td { border-top: 1px solid #dadce0 }
article { border: 1px solid #dadce0; border-radius: 6px; margin: 1rem 0; padding: .3rem 1rem 1rem }
article h3 { margin: .5rem 0 }
.badge { border-radius: 4px; color: #fff; font-size: .85rem; padding: .1rem .5rem }
dl { display: grid; gap: .2rem 1rem; grid-template-columns: 6rem minmax(0, 1fr); margin: .5rem 0 }
dt, summary { color: #5f6368 }
dd { margin: 0; overflow-wrap: anywhere }
figure { display: inline-block; margin: .5rem .5rem 0 0; max-width: 29rem; vertical-align: top }
img { border: 1px solid #dadce0; max-width: 100% }
figcaption { color: #5f6368; font-size: .85rem }
"""


PAPERS = {
    "favano": "FAVANO",
    "fald": "FA-LD",
    "fedem": "FedEM",
    "fedstaleweight": "FedStaleWeight",
    "hierarchical": "Hierarchical FL",
}
"""What the papers' systems are called."""
STUDIES = {
    "clocks": "Clocks against hardware",
    "robustness": "Robust rules",
    "selection": "Choosing clients",
}
"""What the studies are called that reproduce no paper."""


def write(out: Path, found: Sequence[Row], figures: Path) -> None:
    """Write the pages and copy the pictures that they show.

    Args:
      out: Folder of the pages, made if it is missing.
      found: All claims.
      figures: Folder of the committed pictures.
    """
    pages = (
        ("index.html", PAPERS, "Claims of five papers on federated learning"),
        ("studies.html", STUDIES, "Claims of our own on federated learning"),
    )
    for file, names, title in pages:
        rows = [row for row in found if row.paper in names]
        write_page(out, file, rows, figures, names, title)


def write_page(
    out: Path, file: str, found: Sequence[Row], figures: Path, names: Mapping[str, str], title: str
) -> None:
    """Write one page; see `write`.

    Args:
      out: Folder of the page, made if it is missing.
      file: Name of the page.
      found: The claims.
      figures: Folder of the committed pictures.
      names: What the papers' systems, or the studies, are called.
      title: The title.
    """
    (out / "figures").mkdir(parents=True, exist_ok=True)
    committed = sorted(file.name for file in figures.iterdir())
    sections, shown = [], set()
    for paper in dict.fromkeys(row.paper for row in found):
        mine = [row for row in found if row.paper == paper]
        articles = []
        for row in mine:
            pictures = [each for each in pictures_of(row, committed) if each in committed]
            shown.update(pictures)
            articles.append(article(row, pictures))
        name = html.escape(names.get(paper, paper))
        sections.append(
            f'<h2 id="{paper}">{name}</h2>\n{count_table({name: mine})}' + "\n".join(articles)
        )
    for picture in shown:
        copy = partial(shutil.copyfile, figures / picture)
        write_whole(out / "figures" / picture, copy, lasts=False)
    links = " ".join(f'<a href="#{paper}">{html.escape(name)}</a>' for paper, name in names.items())
    changed = [
        [f'<a href="#{row.claim.id}">{row.claim.id}</a>', html.escape(row.claim.changed)]
        for row in found
        if row.claim.changed
    ]
    mistakes = error_table(names)
    content = (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body>"
        f"<h1>{title}</h1><nav>{links} "
        + ('<a href="#errata">Errata</a> ' if mistakes else "")
        + '<a href="#changed">Changed</a> <a href="index.html">Papers</a> '
        '<a href="studies.html">Own studies</a></nav>\n'
        f"<p>{html.escape(headline(found))}</p>\n{count_table(by_origin(found), 'origin')}\n"
        "<p>Each claim has one deciding part, and is judged by the criterion that stands with it. "
        "It fails if that part is false, and holds in part if it is true and another part of the "
        "same sentence is false or open, or if the run has fewer than ten seeds or a smaller "
        "problem than the paper's. One that is false on other data or on a smaller problem is not "
        "contradicted, and is called so. A method is ahead from half a point of accuracy on. The "
        "papers' pictures were known to us as text alone: what they show was read from captions "
        "and sentences, and no curve was measured. "
        "Intervals are 95 % t intervals. A claim is undecided if "
        "an interval covers both outcomes, or if it was judged by an earlier criterion and not run "
        "since. Claims marked as algebra follow from formulas and do not count.</p>\n"
        + "\n".join(sections)
        + mistakes
        + '\n<h2 id="changed">Verdicts that have changed</h2>\n'
        + table(("claim", "before, and why it is another now"), changed)
        + "</body></html>\n"
    )
    write_whole(out / file, lambda path: path.write_text(content, encoding="utf-8"))


def error_table(names: Mapping[str, str]) -> str:
    """Lay out the papers' printed formulas that are wrong; nothing where there are none."""
    lines = [
        [*map(html.escape, (name, *each[:-1])), f"<code>{html.escape(each.test)}</code>"]
        for name, each in ledger.errata(names)
    ]
    if not lines:
        return ""
    heads = ("paper", "where", "printed", "right", "shown by", "test")
    return f'\n<h2 id="errata">Printed formulas that are wrong</h2>\n{table(heads, lines)}'


def by_origin(found: Sequence[Row]) -> dict[str, list[Row]]:
    """Group claims by their origin; those that cannot fail come last."""
    groups = {
        origin: [row for row in found if row.claim.counts and row.claim.origin == origin]
        for origin in ORIGINS
    }
    return {**groups, "algebra (not counted)": [row for row in found if not row.claim.counts]}


def headline(found: Sequence[Row]) -> str:
    """Say in a sentence how many of the papers' own claims have which verdict."""
    groups = {origin: rows for origin, rows in by_origin(found).items() if rows}
    if not groups.keys() & set(ORIGINS[:3]):
        verdicts = ", ".join(f"{number} {word}" for word, number in counts(found).items() if number)
        return f"Of {len(found)} claims {verdicts}."
    parts = [
        f"of {len(rows)} {origin}s "
        + ", ".join(f"{number} {word}" for word, number in counts(rows).items() if number)
        for origin, rows in groups.items()
        if origin in ORIGINS[:3]
    ]
    text = "; ".join(parts)
    corrected = [
        row.claim.id for row in found if row.claim.corrected and row.verdict in (HOLDS, PARTLY)
    ]
    held = sum(
        row.verdict in (HOLDS, PARTLY) and row.claim.origin in ORIGINS[:3] and row.claim.counts
        for row in found
    )
    counted = [row for row in found if row.claim.id in corrected and row.claim.counts]
    return (
        f"{text[:1].upper()}{text[1:]}. Of those that hold, at least in part, "
        f"{held - len(counted)} do so as printed and {len(counted)} only as corrected. With "
        f"algebra, these are corrected: {', '.join(corrected)}."
    )


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "text") -> str:
    """Lay out an HTML table of text, or of "numbers", which are flush right."""
    heads = "".join(f"<th>{each}</th>" for each in header)
    lines = "".join(f"<tr>{''.join(f'<td>{x}</td>' for x in row)}</tr>\n" for row in rows)
    return f'<div><table class="{kind}"><tr>{heads}</tr>\n{lines}</table></div>'


def count_table(blocks: Mapping[str, Sequence[Row]], first: str = "paper") -> str:
    """Lay out the numbers of verdicts."""
    lines = [
        [html.escape(name), *counts(rows).values(), len(rows)] for name, rows in blocks.items()
    ]
    return table((first, *VERDICTS, "claims"), lines, "numbers")


def pictures_of(row: Row, files: Iterable[str] = ()) -> list[str]:
    """Return the pictures that stand with a claim.

    They are those of the experiments that judge it, without those that its paper's claims give to
    other claims, and, if it is on figures of the paper, without those named after other figures. A
    figure of which none of them is has the pictures that are named after it.

    Args:
      row: The claim.
      files: Names of all pictures.
    """
    number = int(row.claim.id.rpartition("-")[2])
    shown_with = ledger.all_claims()[row.paper].pictures
    own = set(re.findall(r"\d+", row.claim.place.partition("Fig")[2]))
    found = []
    for _, entry in row.found:
        for file in entry["pictures"]:
            figures = re.findall(r"fig(\d+)", file)
            is_given = number in shown_with.get(file.removesuffix(".png"), (number,))
            if is_given and (not own or not figures or own & set(figures)):
                found.append(ledger.picture_of(ledger.name_of(entry), file))
    for figure in sorted(own - set(re.findall(r"fig(\d+)", " ".join(found)))):
        found += [each for each in files if re.match(rf"{row.paper}_fig{figure}(?!\d)", each)]
    return list(dict.fromkeys(found))


def article(row: Row, pictures: Sequence[str]) -> str:
    """Lay out one claim."""
    claim = row.claim
    color = COLORS[row.verdict]
    badge = f'<span class="badge" style="background:{color}">{row.verdict}</span>'
    facts = [("claim", claim.text)]
    facts.append(("where", f"{claim.place} ({claim.origin})"))
    facts.append(("paper's value", value_of(claim)))
    decide = claim.by or [ledger.name_of(entry) for _, entry in row.found[:1]]
    facts += [
        ("ours" if ledger.name_of(entry) in decide else "note", each.why)
        for each, entry in row.found
    ] or [("ours", f"not run; {claim.cost}" if claim.cost else "not run")]
    if row.scope:
        facts.append(("scope", row.scope))
    facts.append(("criterion", f"{claim.criterion}{told_criterion(row)}"))
    facts.append(("kind", claim.kind if claim.counts else f"algebra, not counted: {claim.follows}"))
    facts += [("changed", claim.changed)] if claim.changed else []
    for each, entry in row.found:
        facts.append(("run", f"{entry['command']} ({told_run(each, entry)}; {cost_of(entry)})"))
        facts += [("note", entry["note"])] if entry.get("note") else []
    rows = "".join(f"<dt>{name}</dt><dd>{html.escape(text)}</dd>" for name, text in facts)
    shown = "".join(
        f'<figure><img loading="lazy" src="figures/{file}" alt="{html.escape(claim.id)}: '
        f'{file}"><figcaption>{html.escape(caption(row, file))}</figcaption></figure>'
        for file in pictures
    )
    numbers = "".join(number_table(each, entry) for each, entry in row.found)
    return (
        f'<article id="{claim.id}"><h3>{claim.id} {badge}</h3><dl>{rows}</dl>{numbers}{shown}'
        "</article>"
    )


def caption(row: Row, picture: str) -> str:
    """Say how a picture differs from the paper's: its run, and what the paper says or shows."""
    ran = [
        f"our run: {told_run(each, entry)}"
        for each, entry in row.found
        if picture.startswith(ledger.name_of(entry).replace("/", "_"))
    ]
    ours = next(iter(ran), "a run of ours that does not judge the claim")
    claim = row.claim
    if claim.origin == "ours":
        return ours
    return f"{ours}; the paper: {claim.stated or claim.text}"


def value_of(claim: Claim) -> str:
    """Return what the paper states of a claim, or that the claim is not the paper's."""
    if claim.origin in ORIGINS[3:]:
        return f"{claim.origin}; {claim.stated}" if claim.stated else claim.origin
    return claim.stated or "as in the claim"


def number_table(verdict: Verdict, entry: Mapping[str, Any]) -> str:
    """Lay out all that was measured for a verdict, to be opened by the reader."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in _leaves(verdict.measured)
        if name and value
    )
    summary = f"<summary>numbers of {html.escape(ledger.name_of(entry))}</summary>"
    return (
        f'<details>{summary}<div><table class="numbers">{rows}</table></div></details>'
        if rows
        else ""
    )


def _leaves(content: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and values of nested mappings; a list of numbers is one value."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _leaves(value, f"{name}, {key}" if name else str(key))
    elif isinstance(content, list) and any(isinstance(each, Mapping | list) for each in content):
        for i, value in enumerate(content):
            yield from _leaves(value, f"{name}, {i + 1}")
    else:
        values = content if isinstance(content, list | tuple) else [content]
        yield name, ", ".join(map(_told, values)) if values else "none"


def _told(value: Any) -> str:
    return (
        "unknown" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
    )


def told_criterion(row: Row) -> str:
    """Say for which runs the criterion is later than the run."""
    late = [entry["date"] for _, entry in row.found if ledger.is_later(row.claim, entry)]
    runs = " and ".join(dict.fromkeys(late))
    return f" (Stated {row.claim.since}, later than the run of {runs}.)" if late else ""


def told_run(verdict: Verdict, entry: Mapping[str, Any]) -> str:
    """Describe the panel, size, seeds, date and machine of the run behind a verdict."""
    seeds = f", {verdict.seeds} seeds" if verdict.seeds else ""
    size = verdict.size or entry["size"]
    smaller = verdict.scope.partition("reduced: ")[2]
    size += f" ({smaller})" if smaller else " size"
    machine = entry["machine"]
    where = "an unknown machine"
    if machine != ledger.UNKNOWN:
        cores = f"{machine['cores']} cores of {machine['processor']}"
        where = cores if machine["device"] == "cpu" else machine["device"]
    panel = f"{entry['panel']}, " if entry.get("panel") else ""
    return f"{panel}{size}{seeds}, {entry['date']}, {where}"


def cost_of(entry: Mapping[str, Any]) -> str:
    """Describe what a run cost."""
    seconds, cpu = entry["cost"]["seconds"], entry["cost"]["cpu_seconds"]
    told = [f"{seconds:.0f} s" if seconds else "", f"{cpu:.0f} s of processor time" if cpu else ""]
    return ", ".join(filter(None, told)) or "cost not kept"
