"""Comparing records of the bits of results."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.timelines import LAWS
from scripts.fingerprint import (
    compare_records,
    delay_cases,
    digest,
    is_wanted,
    main,
    of_json,
)

FACTS = {"jax": "0.10.2", "flags": {}, "processor": "any"}


def record(**entries: dict[str, str]) -> dict[str, Any]:
    return {"facts": FACTS, "commit": "", "entries": entries}


def test_equal_records_are_equal(tmp_path: Path, capsys: Any) -> None:
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for commit, path in zip(("one", "other"), paths, strict=True):
        path.write_text(json.dumps({**record(a={"x": "1", "y": "2"}, b={}), "commit": commit}))
    assert main(["compare", *map(str, paths)]) == 0
    expected = "2 of 2 entries are equal, and 2 of 2 arrays of the entries in both records.\n"
    assert capsys.readouterr().out == expected


def test_a_differing_array_is_named() -> None:
    before = record(a={"x": "1", "y": "2", "z": "3"}, b={"x": "1"})
    lines, code = compare_records(before, record(a={"x": "1", "y": "0", "new": "4"}, b={"x": "1"}))
    assert code == 1
    assert lines == [
        "a: new is only after",
        "a: y differs",
        "a: z is only before",
        "1 of 2 entries are equal, and 2 of 5 arrays of the entries in both records.",
    ]


def test_a_missing_entry_is_named() -> None:
    lines, code = compare_records(record(a={"x": "1"}, b={}), record(a={"x": "1"}, c={}))
    assert code == 1
    assert lines[:2] == ["b: only in the record before", "c: only in the record after"]


def test_records_of_other_versions_are_refused() -> None:
    after = record(a={"x": "1"}) | {"facts": {**FACTS, "jax": "0.11.0"}}
    lines, code = compare_records(record(a={"x": "1"}), after)
    assert code == 2
    assert lines[1:] == ["  jax: 0.10.2 and 0.11.0"]


def test_bits_types_and_shapes_decide() -> None:
    """Not only values: 0 and -0 differ, and so do floats of other widths."""
    zeros = [np.zeros(2), -np.zeros(2), np.zeros((1, 2)), np.zeros(2, "float32"), np.zeros(2, int)]
    assert len({digest(each) for each in zeros}) == len(zeros)
    assert digest(np.zeros(2)) == digest(np.zeros(4)[::2])


def test_times_and_paths_in_json_are_left_out() -> None:
    content = [
        {"id": "favano-1", "measured": {"mean": [0.5, 1.0], "seconds": 3.0}, "date": "today"}
    ]
    assert of_json("claims.json", content) == {
        "claims.json/favano-1/id": digest("favano-1"),
        "claims.json/favano-1/measured/mean": digest([0.5, 1.0]),
    }


def test_entries_are_chosen_by_their_first_parts() -> None:
    assert is_wanted("systems/fedavg", ["systems"]) and is_wanted("systems/fedavg", None)
    assert not is_wanted("systems/fedavgm", ["systems/fedavg", "layouts"])


def test_schedules_are_drawn_under_every_delay_law_that_a_system_has() -> None:
    """The laws are settings of a group, which FedEM has where its rounds are of cohorts."""
    assert delay_cases("favano").keys() == {"default", *LAWS, "breaks"}
    of_cohorts = delay_cases("fedem")
    assert of_cohorts.keys() == {"default", *LAWS, "breaks"} and of_cohorts["default"] == {}
    assert all(case["rounds"] == "cohorts" for case in [*of_cohorts.values()][1:])
