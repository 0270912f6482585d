"""The numbered claims of a paper, the mark at which each one holds, and verdicts on them."""

import importlib
import itertools
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness import declared
from experiments.harness.statistics import FAILS, HOLDS, UNDECIDED, Ruling, begins, has_nan, rule
from fedjax_sim.studies.tables import table as table


class Criterion:
    """The mark at which a claim holds, in words that are filled from the numbers the code uses.

    The numbers are given once. The sentence is formatted from them and the code that judges the
    claim reads them as attributes, so that the two cannot differ:

    >>> mark = Criterion("S = 5 saves {least} to {most} % of the rounds.", least=12, most=21)
    >>> str(mark)
    'S = 5 saves 12 to 21 % of the rounds.'
    >>> mark.least <= 15 <= mark.most
    True

    Args:
      words: One sentence or more, with each number as a field of `str.format`.
      **numbers: The numbers, by the name of their field. Each must occur in the words.

    Raises:
      ValueError: If a number does not occur in the words. A `KeyError` is raised for a field
        without a number.
    """

    def __init__(self, words: str, **numbers: Any):
        unused = [name for name in numbers if "{" + name not in words]
        if unused:
            raise ValueError(f"the criterion {words!r} does not mention {', '.join(unused)}")
        self._text = words.format(**numbers)
        self._numbers = numbers

    def __getattr__(self, name: str) -> Any:
        numbers = self.__dict__.get("_numbers", {})
        if name not in numbers:
            raise AttributeError(f"criterion has no number {name!r}, but {', '.join(numbers)}")
        return numbers[name]

    def __str__(self) -> str:
        return self._text

    @property
    def marks(self) -> Mapping[str, Any]:
        """The numbers by name."""
        return self._numbers


ORIGINS = ("statement", "table", "figure", "derived", "ours")
"""Whose a claim is: a statement, table or figure of the paper, a number that follows from it, or a
claim of this project."""
KINDS = ("measured", "exact", "algebra")
"""The kinds of claims."""


class Claim(NamedTuple):
    """One testable claim, and the one criterion that decides it.

    Attributes:
      origin: One of `ORIGINS`.
      place: Where in the paper: section, equation, figure or table.
      text: What the paper says, quoted or in close paraphrase.
      criterion: When the deciding part counts as true.
      judged: The criterion as comparisons, all of which must be true, by name of the part of the
        claim; see `declared`. Empty if a function of the experiment judges the claim.
      deciding: How the names of the deciding parts begin; empty if all parts decide.
      told: The sentence that stands behind such a verdict, with fields for measured numbers.
      least: The least number of chains or the like, by its name among the measured numbers, with
        which the claim is judged.
      kind: "measured" (runs with sampling error), "exact" (numbers compared to rounding error) or
        "algebra" (follows from formulas, so that the test has one outcome but for a mistake in
        code; does not count).
      follows: Why a claim of kind "algebra" has one outcome; empty for all others.
      stated: The number or outcome that the paper states; empty if the text has it.
      by: The entries that decide, by name, if several judge the claim. The first one is the
        deciding part, the others are parts of the same sentence. Entries that are not named are
        notes.
      corrected: Whether what is judged is corrected, because the claim as printed is false.
      changed: The verdict before the last change of the criterion, and why it is another now.
      cost: What a run would cost, of a claim that was not run.
      id: Paper and number, such as "favano-9"; filled by `Claims`.
      since: Date of the criterion; filled by `Claims` where it is that of most of the paper's.
    """

    origin: str
    place: str
    text: str
    criterion: Criterion
    judged: Mapping[str, Sequence[str]] = {}
    deciding: str = ""
    told: str = ""
    least: Mapping[str, int] = {}
    kind: str = "measured"
    follows: str = ""
    stated: str = ""
    by: tuple[str, ...] = ()
    corrected: bool = False
    changed: str = ""
    cost: str = ""
    id: str = ""
    since: str = ""

    @property
    def counts(self) -> bool:
        """Whether the claim can fail as tested."""
        return self.kind != "algebra"


class Verdict(NamedTuple):
    """What an experiment says about one claim. Its fields are an entry of `claims.json`.

    Attributes:
      id: The claim's id.
      claim: What the paper claims.
      paper: Where in the paper.
      criterion: When the claim counts as holding, in words with numbers.
      measured: What was measured, as nested mappings and numbers; None if nothing was.
      verdict: One of `VERDICTS`.
      scope: Where the verdict holds, if that is narrower than the claim; otherwise empty.
      size: "full", "reduced" or "smoke"; filled by the harness.
      seeds: Number of independent repetitions, 0 if nothing is repeated. The harness fills it for
        claims of kind "measured" with that of the experiment.
      why: The measured numbers behind the verdict in a sentence, or why there is no verdict.
      kind: The claim's kind.
    """

    id: str
    claim: str
    paper: str
    criterion: str
    measured: Any
    verdict: str
    scope: str
    size: str
    seeds: int
    why: str
    kind: str

    @property
    def holds(self) -> bool | None:
        """Whether the claim holds or fails; None for every other verdict."""
        return {HOLDS: True, FAILS: False}.get(self.verdict)

    def undecided(self, reason: str) -> "Verdict":
        """Return the same measurement without a decision, with the reason before the numbers."""
        return self._replace(verdict=UNDECIDED, scope="", why=reason + self.why)


class Erratum(NamedTuple):
    """A printed formula or statement that is wrong.

    Attributes:
      where: Equation, lemma or section.
      printed: What the paper prints.
      right: What is right.
      shown: How that was shown: derivation, exact law or counterexample.
      test: The test that shows it, as "path::name"; it exists and passes.
    """

    where: str
    printed: str
    right: str
    shown: str
    test: str


Judges = Mapping[int, Callable[[Any], Verdict]]
"""Functions that judge claims from what was measured, by number of the claim."""


def judge_all(judges: Judges, measured: Mapping[int, Any], reason: str = "") -> list[Verdict]:
    """Judge each claim by its measurements; if there is a reason, none is decided."""
    found = [judge(measured[number]) for number, judge in judges.items()]
    return [each.undecided(f"{reason}; ") for each in found] if reason else found


class Claims(Mapping[int, Claim]):
    """The claims of one paper by number.

    Args:
      paper: The paper's short name, the first part of each claim's id.
      claims: The claims by number.
      since: Date, as YYYY-MM-DD, of those criteria that do not state one themselves. They were
        written after the runs of earlier dates.
      pictures: The numbers of the claims that a picture shows, by its name without ".png". A
        picture without numbers stands with every claim that its experiment judges.
      errata: The paper's printed formulas that this project found wrong.

    Raises:
      ValueError: If a claim is algebra without a reason, or has one and is not, or if the
        comparisons that judge it leave out one of its marks.
    """

    def __init__(
        self,
        paper: str,
        claims: Mapping[int, Claim],
        *,
        since: str,
        pictures: Mapping[str, Collection[int]] | None = None,
        errata: Collection[Erratum] = (),
    ):
        for number, claim in claims.items():
            if claim.counts == bool(claim.follows):
                raise ValueError(
                    f"{paper}-{number}: `follows` is given if, and only if, a claim is algebra, "
                    f"got {claim.follows!r} and {claim.kind!r}"
                )
            words = " ".join((*itertools.chain(*claim.judged.values()), claim.told))
            unused = [mark for mark in claim.criterion.marks if mark not in words]
            if claim.judged and unused:
                raise ValueError(f"{paper}-{number}: no comparison uses {', '.join(unused)}")
        self.pictures, self.errata = pictures or {}, errata
        self._claims = {
            number: claim._replace(id=f"{paper}-{number}", since=claim.since or since)
            for number, claim in claims.items()
        }

    @classmethod
    def read(cls, paper: str) -> "Claims":
        """Read the claims and errata of a paper from its `claims.toml`.

        A claim is a table with the fields of `Claim`, of which `criterion` has the words and
        `marks` their numbers. Texts may be wrapped anywhere between two words.
        """
        file = Path(__file__).parents[1] / paper / "claims.toml"
        content = _unwrapped(tomllib.loads(file.read_text(encoding="utf-8")))
        claims, errata = {}, [Erratum(**each) for each in content.pop("errata", ())]
        for number, row in content.pop("claims").items():
            criterion = Criterion(row.pop("criterion"), **row.pop("marks", {}))
            row["by"] = tuple(row.get("by", ()))
            if isinstance(row.get("judged"), list):  # There is one part.
                row["judged"] = {"": row["judged"]}
            claims[int(number)] = Claim(**row, criterion=criterion)
        return cls(paper, claims, errata=errata, **content)

    def __getitem__(self, number: int) -> Claim:
        return self._claims[number]

    def __iter__(self) -> Any:
        return iter(self._claims)

    def __len__(self) -> int:
        return len(self._claims)

    def declared(self, *numbers: int) -> Judges:
        """Return functions that judge claims by the comparisons that they state themselves.

        Raises:
          ValueError: If a claim states none.
        """
        for number in numbers:
            if not self[number].judged:
                raise ValueError(f"{self[number].id} states no comparisons by which it is judged")
        return {number: partial(self._judge, number) for number in numbers}

    def _judge(self, number: int, measured: Any) -> Verdict:
        claim = self[number]
        marks = claim.criterion.marks
        parts = {
            name: declared.all_hold(each, measured, marks) for name, each in claim.judged.items()
        }
        why = declared.sentence(claim.told, measured, marks)
        return self.verdict(number, measured, rule(parts, deciding=begins(claim.deciding)), why)

    def verdict(
        self, number: int, measured: Any, ruling: Ruling | bool | None, why: str, *, seeds: int = 0
    ) -> Verdict:
        """Give the verdict on one claim, undecided if there is less of something than it needs.

        Args:
          number: The claim's number in the paper.
          measured: What was measured; see `Verdict`.
          ruling: The ruling, or whether the claim meets its criterion; None if that is undecided.
            False counts as None if a number just measured is NaN, as nothing is contradicted then.
          why: The numbers behind the verdict, or why there is none.
          seeds: Number of independent repetitions, if it is not that of the experiment.
        """
        if not isinstance(ruling, Ruling):
            is_unknown = ruling is not None and not ruling and has_nan(measured)
            ruling = rule({"": None if is_unknown else ruling})
        claim = self[number]
        few = [
            f"{measured[name]} {name}"
            for name, needed in claim.least.items()
            if name in (measured or ()) and not measured[name] >= needed  # Nor if it is NaN.
        ]
        judged = Verdict(
            id=claim.id,
            claim=claim.text,
            paper=claim.place,
            criterion=str(claim.criterion),
            measured=measured,
            verdict=ruling.verdict,
            scope=ruling.scope,
            size="",
            seeds=seeds,
            why=why,
            kind=claim.kind,
        )
        return judged.undecided(f"not judged: {few[0]} are too few; ") if few else judged


def _unwrapped(content: Any) -> Any:
    """Join the lines of all texts of nested mappings and lists."""
    if isinstance(content, str):
        return " ".join(content.split())
    if isinstance(content, list):
        return [_unwrapped(each) for each in content]
    if isinstance(content, dict):
        return {name: _unwrapped(each) for name, each in content.items()}
    return content


def claims_of(paper: str) -> Claims:
    """Import the claims of a paper."""
    found: Claims = importlib.import_module(f"experiments.{paper}.claims").CLAIMS
    return found


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Lay out verdicts as a Markdown table of claim, verdict, scope and measured numbers."""
    return table(
        ["claim", "verdict", "measured"],
        [[each.id, worded(each.verdict, each.scope), each.why] for each in verdicts],
    )


def worded(verdict: str, scope: str) -> str:
    """Return a verdict with its scope."""
    return f"{verdict}: {scope}" if scope else verdict
