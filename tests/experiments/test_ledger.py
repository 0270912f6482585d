"""The ledger of claims: committed results, the tables and the page that are written from them."""

import ast
import html
import importlib
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from experiments.harness import (
    Interval,
    Ruling,
    Sample,
    begins,
    ledger,
    main,
    page,
    report,
    rule,
)
from experiments.harness.claims import KINDS, ORIGINS, Erratum, Verdict
from experiments.harness.command import parser
from experiments.harness.statistics import (
    VERDICTS,
    all_of,
    has_collapsed,
    reduction,
    unless_collapsed,
)
from fedjax_sim.core.lifecycle import seal_json
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.results.reports import to_json
from fedjax_sim.studies.statistics import difference, interval, interval_of_error, lead

ENTRIES = ledger.entries()
MOST_BYTES = 1_000_000


def test_every_claim_has_one_row() -> None:
    found = ledger.rows(ENTRIES)
    assert len(found) == len({row.claim.id for row in found}) == 214
    assert {row.verdict for row in found} <= set(VERDICTS)
    assert sum(ledger.counts(found).values()) == 214
    for row in found:
        assert row.claim.kind in KINDS and row.claim.origin in ORIGINS
        assert bool(row.found) == (row.verdict != "not run")
        assert bool(row.claim.cost) == (row.verdict == "not run")
        names = [ledger.name_of(entry) for _, entry in row.found]
        assert set(row.claim.by) <= set(names), row.claim.id
        assert all(ledger.is_by_todays_criterion(each) for each, _ in row.found), row.claim.id
        assert all(each.why for each, _ in row.found)
        _, arrow, now = row.claim.changed.rpartition("-> ")
        assert now.startswith(row.verdict) if arrow else not now.startswith("no row"), row.claim.id


def test_the_readmes_agree_with_the_results() -> None:
    """`python -m experiments report` writes what is committed."""
    for file, text in report.texts(ledger.rows(ENTRIES)).items():
        assert file.read_text() == text, f"run `python -m experiments report`: {file} is old"


@pytest.mark.parametrize("entry", ENTRIES, ids=ledger.name_of)
def test_entries_are_small_whole_and_judged_by_code(entry: dict) -> None:
    assert entry["size"] in ("full", "reduced")
    assert entry["command"].startswith(f"python -m experiments run {entry['experiment']}")
    assert entry["machine"] == ledger.UNKNOWN or {"jax", "cores", "instructions"} <= set(
        entry["machine"]
    )
    for each in entry["claims"]:
        assert set(each) == set(Verdict._fields)
        assert each["verdict"] in VERDICTS and each["size"] in ("full", "reduced")
    for file in entry["pictures"]:
        assert (ledger.FIGURES / ledger.picture_of(ledger.name_of(entry), file)).exists()
    plain = json.loads(to_json([each._asdict() for each in ledger.judged(entry)]))
    assert ledger.rounded(plain) == entry["claims"]


def test_docstrings_name_the_claims_that_are_judged() -> None:
    for entry in ENTRIES:
        name = entry["experiment"].replace("/", ".")
        words = str(importlib.import_module(f"experiments.{name}").__doc__)
        named = {int(number) for number in re.findall(r"\d+", words)}
        for first, last in re.findall(r"(\d+)\s+to\s+(\d+)", words):
            named.update(range(int(first), int(last) + 1))
        judged = {int(each["id"].rpartition("-")[2]) for each in entry["claims"]}
        if re.search(r"claims?\s+\d", words):
            assert judged <= named, (entry["experiment"], judged - named)


def test_results_stay_small() -> None:
    files = list(ledger.ROOT.glob("*/results/*.json"))
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    assert {ledger.file_of(ledger.name_of(entry)) for entry in ENTRIES} == set(files)


def test_every_committed_picture_is_of_an_entry() -> None:
    kept = {
        ledger.picture_of(ledger.name_of(entry), file)
        for entry in ENTRIES
        for file in entry["pictures"]
    }
    assert kept == {file.name for file in ledger.FIGURES.iterdir()}


class _Page(HTMLParser):
    """Counts tags, and collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = dict(attrs)
        self.loads += [value for name in ("src", "href") if (value := given.get(name))]


def test_the_page_needs_no_network_and_no_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The repository stays as it is, as its tables agree with the results."""
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("214 claims: ")
    page = _Page()
    for file in ("index.html", "studies.html"):
        page.feed((tmp_path / file).read_text())
    assert page.tags["article"] == 214 and not page.tags["script"]
    assert page.tags["details"] > 100
    for target in page.loads:
        assert target.startswith(("#", "data:,")) or (tmp_path / target).is_file(), target
    assert page.tags["img"] > 20
    test_the_readmes_agree_with_the_results()


def test_kept_results_come_from_runs_that_are_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {**ENTRIES[0], "pictures": ["a.png"]}
    monkeypatch.setattr(ledger, "ROOT", tmp_path / "root")
    monkeypatch.setattr(ledger, "FIGURES", tmp_path)
    (tmp_path / "root" / entry["experiment"].split("/")[0]).mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.png").write_bytes(b"picture")
    (tmp_path / "run" / ledger.FILE).write_bytes(seal_json(entry))
    assert ledger.keep(tmp_path / "run") == entry["experiment"]
    assert json.loads(ledger.file_of(entry["experiment"]).read_text()) == entry
    assert (tmp_path / ledger.picture_of(entry["experiment"], "a.png")).read_bytes() == b"picture"
    panel = {**entry, "panel": "images"}
    (tmp_path / "run" / ledger.FILE).write_bytes(seal_json(panel))
    assert ledger.keep(tmp_path / "run") == f"{entry['experiment']}_images"
    assert json.loads(ledger.file_of(entry["experiment"]).read_text()) == entry
    assert json.loads(ledger.file_of(ledger.name_of(panel)).read_text()) == panel
    assert (tmp_path / ledger.picture_of(ledger.name_of(panel), "a.png")).exists()
    (tmp_path / "run" / ledger.FILE).write_bytes(seal_json({**entry, "size": "smoke"}))
    found = parser().parse_args(["report", "--keep", "A", "B", "--keep", "C"]).keep
    assert found == ["A", "B", "C"]
    for folder, word in ((tmp_path / "run", "smoke"), (tmp_path / "none", "finished run")):
        assert main(["report", "--keep", str(folder)]) == 2
        assert word in capsys.readouterr().err


TABLE = next(entry for entry in ENTRIES if entry["experiment"] == "favano/table2")


def added_run(values: list[float], first: int, method: str = "FedAvg") -> dict[str, Any]:
    """Make the entry of a run of further seeds of one cell of FAVANO's Table 2."""
    cells = {method: {"IID": ledger.plain_inputs(Sample.of(values))}}
    how = {"claims": [], "machine": {}, "cost": 1, "adds_from": first}
    return {**TABLE, "inputs": {**TABLE["inputs"], "cells": cells}, **how}


def test_further_seeds_are_judged_with_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other cells and the pictures stay, and the same seeds are not added twice."""
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    ledger.file_of("favano/table2").parent.mkdir(parents=True)
    ledger.write(TABLE)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ledger.FILE).write_bytes(seal_json(added_run([20.0] * 40, 10)))
    assert ledger.keep(tmp_path / "run") == "favano/table2"
    found = json.loads(ledger.file_of("favano/table2").read_text())
    before, after = (each["inputs"]["cells"]["FedAvg"]["IID"] for each in (TABLE, found))
    assert after["values"] == before["values"] + [20.0] * 40 and after["seeds"] == 50
    assert found["added"][:-1] == TABLE["added"] and found["added"][-1]["cost"] == 1
    assert found["seeds"] == 10
    assert found["pictures"] == TABLE["pictures"]
    (judged,) = (each for each in found["claims"] if each["id"] == "favano-11")
    parts = judged["measured"]["parts"]
    assert [value for name, value in parts.items() if name.startswith("all above")] == [False]
    assert "10 seeds, 50 of some cells" in judged["why"]
    with pytest.raises(ConfigError, match="must be 50, as the record has those before it of cells"):
        ledger.keep(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"adds_from": 11}, "first of the added seeds is 11, but must be 10"),
        ({"size": "reduced"}, "size of the added run is 'reduced', but must be full"),
        ({"experiment": "favano/fig3a"}, "one of an experiment with a record"),
        ({"inputs": {"words": "other"}}, "words of the added run is 'other'"),
        ({"inputs": {"FedSGD": {}}}, r"added numbers is \['FedSGD'\], but must be some of cells"),
    ],
)
def test_what_does_not_fit_the_record_is_not_added(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ledger.added({**added_run([20.0], 10), **changes})


def test_long_cells_are_cut_between_two_parts() -> None:
    parts = [f"part {number} is true" for number in range(40)]
    whole = "; ".join(parts)
    cut = report.shortened(whole)
    assert len(cut) <= report.MOST_LETTERS + 2 and cut.endswith(" …")
    assert set(cut.removesuffix(" …").split("; ")) < set(parts)
    assert report.shortened(parts[0]) == parts[0]
    assert len(report.shortened("x" * 2 * report.MOST_LETTERS)) == report.MOST_LETTERS + 2


def test_a_row_joins_what_decides() -> None:
    """The first entry is the deciding part, the others are parts of the same sentence."""
    claims = importlib.import_module("experiments.fald.claims").CLAIMS

    def said(*words: str) -> tuple[str, str]:
        verdicts = [claims.verdict(1, None, Ruling(word), "why") for word in words]
        return ledger.joined(verdicts, ["a", "b"][: len(words)])

    assert said() == ("not run", "")
    assert said("holds", "holds")[0] == "holds"
    assert said("holds", "fails") == ("holds in part", "a holds; b fails")
    assert said("holds", "undecided")[0] == "holds in part"
    assert said("holds in part", "fails")[0] == "holds in part"
    assert said("fails", "holds")[0] == "fails"
    assert said("undecided", "holds")[0] == "undecided"


def test_the_run_nearest_to_the_papers_decides() -> None:
    """Others are notes, unless the claim names the entries that are parts of its sentence."""
    claims = importlib.import_module("experiments.fald.claims").CLAIMS

    def entry(name: str, ruling: Ruling, number: int = 12) -> dict:
        verdict = claims.verdict(number, None, ruling, "why")
        return {"experiment": name, "claims": [verdict._asdict()]}

    def row_of(entries: list[dict], number: int = 12) -> ledger.Row:
        return next(row for row in ledger.rows(entries) if row.claim.id == f"fald-{number}")

    whole, small = Ruling("fails"), Ruling("holds in part", "reduced: one word, another")
    smaller = Ruling("holds in part", "true: a; reduced: one, two, three")
    entries = [entry("fald/c", smaller), entry("fald/b", small), entry("fald/a", whole)]
    assert [row_of(entries[:k]).verdict for k in (1, 2, 3)] == ["holds in part"] * 2 + ["fails"]
    assert [each["experiment"][-1] for _, each in row_of(entries).found] == ["a", "b", "c"]
    assert claims[8].by == ("fald/unequal", "fald/logistic")
    named = [entry("fald/other", whole, 8), entry("fald/unequal", Ruling("holds"), 8)]
    assert row_of(named, 8).verdict == "holds" and row_of(named[:1], 8).verdict == "not run"
    second = entry("fald/logistic", Ruling("holds"), 8)  # It decides nothing without the first.
    assert row_of([second], 8).verdict == "not run"


def test_the_page_calls_runs_that_do_not_decide_notes() -> None:
    row = next(row for row in ledger.rows(ENTRIES) if row.claim.id == "hierarchical-11")
    assert len(row.found) == 2 and not row.claim.by
    (first, _), (second, _) = row.found
    shown = page.article(row, ())
    for word, each in (("ours", first), ("note", second)):
        assert f"<dt>{word}</dt><dd>{html.escape(each.why)}</dd>" in shown


def test_the_headline_counts_by_origin_without_algebra() -> None:
    found = [row for row in ledger.rows(ENTRIES) if row.paper == "fedstaleweight"]
    groups = page.by_origin(found)
    assert sum(len(rows) for rows in groups.values()) == len(found)
    last = groups["algebra (not counted)"]
    assert {row.claim.kind for row in last} == {"algebra"} and len(last) > 3
    counted = [row for name, rows in groups.items() if name in ORIGINS for row in rows]
    assert "algebra" not in {row.claim.kind for row in counted}
    statements = ledger.counts(groups["statement"])
    assert f"Of {len(groups['statement'])} statements {statements['holds']} holds" in (
        page.headline(found)
    )


def test_a_criterion_later_than_the_run_is_marked() -> None:
    claims = importlib.import_module("experiments.fald.claims").CLAIMS
    verdict = claims.verdict(6, None, Ruling("holds"), "why")
    for date, is_late in (("2026-11-26", True), (claims[6].since, False)):
        entry = {"experiment": "fald/unequal", "date": date}
        row = ledger.Row("fald", claims[6], "holds", "", ((verdict, entry),))
        assert ledger.is_later(claims[6], entry) is is_late
        assert (f"later than the run of {date}" in page.told_criterion(row)) is is_late


ERRATA = {f"{name}, {each.where}": each for name, each in ledger.errata(page.PAPERS)}


@pytest.mark.parametrize("erratum", ERRATA.values(), ids=[*ERRATA])
def test_every_erratum_has_a_test(erratum: Erratum) -> None:
    """The test exists; it passes with the others."""
    file, _, name = erratum.test.partition("::")
    assert name.startswith("test_") and len(ERRATA) > 25
    tree = ast.parse((ledger.ROOT.parent / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_verdicts_by_an_earlier_criterion_count_as_undecided() -> None:
    claims = importlib.import_module("experiments.fedem.claims").CLAIMS
    now = claims.verdict(11, None, Ruling("holds"), "why")
    assert "‖h‖²" in now.criterion
    spelled = now._replace(criterion=now.criterion.replace("‖", "||").replace("²", "^2") + " ")
    other = now._replace(criterion=now.criterion.replace("1.5", "1.6"))
    for verdict, word in ((now, "holds"), (spelled, "holds"), (other, "undecided")):
        entry = {"experiment": "fedem/ablations", "claims": [verdict._asdict()]}
        (row,) = (row for row in ledger.rows([entry]) if row.claim.id == now.id)
        assert row.verdict == word and row.found[0][0].verdict == word
        assert row.found[0][0].why.startswith(ledger.OLD) == (word == "undecided")
    (row,) = (row for row in ledger.rows([]) if row.claim.id == now.id)
    assert row.verdict == "not run"


def test_a_claim_is_shown_with_pictures_of_its_own_figure() -> None:
    claims = importlib.import_module("experiments.hierarchical.claims").CLAIMS
    entry = {
        "experiment": "hierarchical/own",
        # The last one is given to claim 8 alone.
        "pictures": ["own_fig6.png", "own_fig10a.png", "own_choice.png", "corollary.png"],
    }
    files = ["hierarchical_fig12.png", "hierarchical_fig120.png", "hierarchical_fig6_other.png"]
    shown = {}
    for number in (8, 10, 14, 20, 22):
        verdict = claims.verdict(number, {}, Ruling("holds"), "why")
        row = ledger.Row("hierarchical", claims[number], "holds", "", ((verdict, entry),))
        shown[number] = [
            file.removeprefix("hierarchical_own_") for file in page.pictures_of(row, files)
        ]
    assert shown == {
        8: ["fig6.png", "fig10a.png", "choice.png", "corollary.png"],
        10: ["fig6.png", "fig10a.png", "choice.png"],  # Claims on equations.
        14: ["fig6.png", "choice.png"],
        20: ["fig10a.png", "choice.png"],
        22: ["choice.png", "hierarchical_fig12.png"],
    }


def test_all_numbers_of_a_verdict_are_on_the_page() -> None:
    claims = importlib.import_module("experiments.hierarchical.claims").CLAIMS
    measured = {"lead": {"mean": 1.0}, "by seed": [[1, 2], [3.123456, 4]], "a": [], "b": None}
    verdict = claims.verdict(14, measured, Ruling("holds"), "why")._replace(size="reduced", seeds=4)
    how = {"size": "full", "date": "today", "machine": ledger.UNKNOWN}
    entry = {"experiment": "hierarchical/fig6", **how}
    found = page.number_table(verdict, entry)
    known = {"lead, mean": "1", "by seed, 1": "1, 2", "by seed, 2": "3.1235, 4"}
    for name, value in {**known, "a": "none", "b": "unknown"}.items():
        assert f"<td>{name}</td><td>{value}</td>" in found
    assert found.count("<tr>") == 5 and "numbers of hierarchical/fig6" in found
    assert page.told_run(verdict, entry) == "reduced size, 4 seeds, today, an unknown machine"


def test_named_tuples_are_kept_by_name_at_every_depth() -> None:
    """A verdict function reads them from JSON again, in lists too."""
    found = ledger.plain_inputs({"leads": [Interval(1.0, 0.5), (Interval(2.0, 0.1),)]})
    assert found == {"leads": [{"mean": 1.0, "half": 0.5}, [{"mean": 2.0, "half": 0.1}]]}


@pytest.mark.parametrize(
    ("parts", "reduced", "verdict", "scope"),
    [
        ({"a": True, "b": True}, "", "holds", ""),
        ({"a": True, "b": True}, "3 seeds", "holds in part", "reduced: 3 seeds"),
        ({"a": True, "b": False}, "", "fails", "true: a; false: b"),
        ({"a": True, "b": None}, "", "undecided", "true: a; open: b"),
        ({"a": False, "b": False}, "", "fails", ""),
        ({"a": False, "b": None}, "", "fails", "false: a; open: b"),
        ({"a": None, "b": None}, "3 seeds", "undecided", ""),
        ({}, "", "undecided", ""),
    ],
)
def test_one_standard(parts: dict, reduced: str, verdict: str, scope: str) -> None:
    """All parts together decide if none is named."""
    assert rule(parts, reduced) == (verdict, scope)


@pytest.mark.parametrize(
    ("first", "other", "verdict"),
    [
        (True, True, "holds"),
        (True, False, "holds in part"),
        (True, None, "holds in part"),
        (False, True, "fails"),
        (None, True, "undecided"),
        (None, False, "undecided"),
    ],
)
def test_the_deciding_part_decides(first: Any, other: Any, verdict: str) -> None:
    parts = {"first": first, "other": other}
    assert rule(parts, deciding=begins("fir")).verdict == verdict
    assert rule(parts, deciding=begins("none of them")).verdict == "undecided"


def test_intervals_decide_only_if_all_of_them_agrees() -> None:
    assert [Interval(mean, 1.0).above() for mean in (1.1, 0.9, -0.9, -1.0)] == [
        True,
        None,
        None,
        False,
    ]
    assert [Interval(mean, 0.5).within(1.0) for mean in (0.4, -0.5, 0.6, -1.4, 1.6)] == [
        True,
        True,
        None,
        None,
        False,
    ]
    unknown = Interval(3.0, float("inf"))
    assert unknown.above() is None and unknown.within(1.0) is None
    assert (all_of([True, None]), all_of([None, False]), all_of([True])) == (None, False, True)
    assert interval([5.0]).half == float("inf")
    assert interval_of_error(1.0, 0.5, 5).half == pytest.approx(2.7764 * 0.5, rel=1e-4)


def test_leads_are_paired_where_single_runs_are_known() -> None:
    first, second = Sample.of([80.0, 70.0, 60.0]), Sample.of([79.0, 68.5, 59.0])
    assert lead(first, second).above() is True  # by 1, 1.5, 1
    by_moments = [each._replace(values=None) for each in (first, second)]
    assert lead(*by_moments).above() is None  # deviations of 10 hide it
    assert lead(first, second).mean == pytest.approx(lead(*by_moments).mean)
    # Welch: equal sizes and deviations have 2 (n - 1) degrees of freedom.
    same = Sample(0.0, 10.0, 3)
    assert lead(same, same).half == pytest.approx(2.7764 * 10 * (2 / 3) ** 0.5, rel=1e-4)
    assert difference((first, second), (first, second)) == (0.0, 0.0)
    assert difference((same, same), (same, same)).half == pytest.approx(
        2.306 * 20 / 3**0.5, rel=1e-3
    )


def test_chance_and_failed_runs_are_seen() -> None:
    collapsed, mixed = Sample.of([10.0, 11.0, 90.0]), Sample.of([10.0, 90.0, 90.0])
    assert has_collapsed(collapsed, 10) and not has_collapsed(mixed, 10)
    assert has_collapsed(Sample.of([float("nan")] * 3), 10)
    assert has_collapsed(Sample(float("nan"), 0.0, 3), 10)
    assert unless_collapsed(True, [mixed], 10) is True
    assert unless_collapsed(True, [mixed, collapsed], 10) is None
    found = Sample.of([10.0, 90.0, float("nan"), 95.0]).described(10.0)
    assert (found["median"], found["worst"], found["failed"], found["collapsed"]) == (90, 10, 1, 1)
    assert reduction(3, "digits") == "digits, 3 seeds in place of 10" and not reduction(10)
