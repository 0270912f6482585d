"""Numbers of committed verdicts, and the same numbers with one of them changed."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.harness import Verdict, ledger
from experiments.harness.statistics import VERDICTS

Path = tuple[Any, ...]
"""Keys and positions that lead to a number in nested mappings and lists."""


def committed(experiment: str) -> dict[str, dict[str, Any]]:
    """Read the claims of a committed entry by id."""
    entry = json.loads(ledger.file_of(experiment).read_text())
    return {each["id"]: each for each in entry["claims"]}


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
