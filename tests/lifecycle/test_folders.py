"""Records of JSON with a digest."""

import json
from pathlib import Path
from typing import Any

from fedjax_sim.lifecycle import read_record, write_record


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    """Every bit of a record is flipped once, and the record cut at every place."""
    path = tmp_path / "run.json"
    content: dict[str, Any] = {"seeds": [0, 12], "lr": 0.5, "part": None, "of": {"b": "ä", "a": 1}}
    assert read_record(path) is None
    write_record(path, content)
    whole = path.read_bytes()
    assert read_record(path) == content
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            assert read_record(path) in (None, content), (at, bit)
        path.write_bytes(whole[:at])
        assert read_record(path) is None
    for other in ("[]", "3", "null", json.dumps(content), '{"sha256": 1}', "[" * 100_000):
        path.write_text(other)
        assert read_record(path) is None
