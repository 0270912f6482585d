"""Numbers of committed verdicts, and the same numbers with one of them changed."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from experiments.harness import Verdict, ledger
from experiments.harness.statistics import VERDICTS

Path = tuple[Any, ...]
"""Keys and positions that lead to a number in nested mappings and lists."""


class Case(NamedTuple):
    """A verdict function with what the committed entry lacks.

    Attributes:
      judge: The verdict function.
      not_kept: Numbers behind the verdict that the entry lacks.
      told: Names of numbers that stand in the sentence only, or of counts.
      is_made_up: Whether all numbers are made up, such that the claim holds.
    """

    judge: Callable[[Any], Verdict]
    not_kept: dict[str, Any]
    told: tuple[str, ...] = ()
    is_made_up: bool = False


def committed(experiment: str) -> dict[str, dict[str, Any]]:
    """Read the claims of a committed entry by id."""
    entry = json.loads(ledger.file_of(experiment).read_text())
    return {each["id"]: each for each in entry["claims"]}


@cache
def kept(paper: str, name: str) -> Verdict:
    """Read the committed verdict of an experiment on a claim, such as "laws 9"."""
    experiment, number = name.split()
    return Verdict(**committed(f"{paper}/{experiment}")[f"{paper}-{number}"])


def assert_all_are_tried(
    claims: Mapping[int, Any], elsewhere: Mapping[str, Any], cases: Mapping[str, Case], rows: Any
) -> None:
    """Check that every claim without costs has a case, and each case a row that fails."""
    run = {n for n, claim in claims.items() if not claim.cost and claim.id not in elsewhere}
    assert {int(name.split()[1]) for name in cases} == run
    assert {row[0] for row in rows if row[3].startswith("fails")} == {*cases}


def changed(measured: Mapping[str, Any], path: Path, value: Any) -> Any:
    """Copy nested numbers with another value in one place."""
    made: Any = copy.deepcopy(measured)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


def numbers(measured: Any, path: Path = ()) -> Iterator[Path]:
    """List the places of all numbers, truth values left out."""
    if isinstance(measured, Mapping | list | tuple):
        pairs = measured.items() if isinstance(measured, Mapping) else enumerate(measured)
        for key, value in pairs:
            yield from numbers(value, (*path, key))
    elif isinstance(measured, float | int) and not isinstance(measured, bool):
        yield path


def assert_verdict(found: Verdict, expected: str) -> None:
    """Check a verdict, or a verdict with some words of its scope, such as "fails, false: one"."""
    verdict, _, words = expected.partition(", ")
    assert verdict in VERDICTS
    assert found.verdict == verdict and words in found.scope
