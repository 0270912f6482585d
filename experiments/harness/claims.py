"""The numbered claims of a paper, the mark at which each one holds, and verdicts on them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.tables import table


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


class Claim(NamedTuple):
    """One testable claim of a paper.

    Attributes:
      id: Paper and number, such as "favano-9".
      text: What the paper claims.
      place: Where in the paper: section, equation, figure or table.
      criterion: When the experiments here count the claim as holding.
    """

    id: str
    text: str
    place: str
    criterion: Criterion


class Verdict(NamedTuple):
    """What an experiment says about one claim. Its fields are an entry of `claims.json`.

    Attributes:
      id: The claim's id.
      claim: What the paper claims.
      paper: Where in the paper.
      criterion: When the claim counts as holding, in words with numbers.
      measured: What was measured, as nested mappings and numbers; None if nothing was.
      holds: Whether the claim holds; None if it was not judged.
      why: The measured numbers behind the verdict in a sentence, or why there is no verdict.
    """

    id: str
    claim: str
    paper: str
    criterion: str
    measured: Any
    holds: bool | None
    why: str


class Claims(Mapping[int, Claim]):
    """The claims of one paper by number.

    Args:
      paper: The paper's short name, the first part of each claim's id.
      claims: Text, place and criterion by number.
    """

    def __init__(self, paper: str, claims: Mapping[int, tuple[Any, ...]]):
        self._claims = {
            number: Claim(f"{paper}-{number}", *parts, *([Criterion("")] * (3 - len(parts))))
            for number, parts in claims.items()
        }

    def __getitem__(self, number: int) -> Claim:
        return self._claims[number]

    def __iter__(self) -> Any:
        return iter(self._claims)

    def __len__(self) -> int:
        return len(self._claims)

    def verdict(self, number: int, measured: Any, holds: bool | None, why: str) -> Verdict:
        """Give the verdict on one claim.

        Args:
          number: The claim's number in the paper.
          measured: What was measured; see `Verdict`.
          holds: Whether the claim meets its criterion; None if it was not judged.
          why: The numbers behind the verdict, or why there is none.
        """
        claim = self[number]
        return Verdict(
            claim.id, claim.text, claim.place, str(claim.criterion), measured, holds, why
        )


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Lay out verdicts as a Markdown table of claim, verdict and measured numbers."""
    words = {True: "holds", False: "fails", None: "not judged"}
    return table(
        ["claim", "verdict", "measured"],
        [[each.id, words[each.holds], each.why] for each in verdicts],
    )
