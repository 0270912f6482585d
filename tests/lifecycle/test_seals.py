"""Sealed files: damage shows, and no file is without its digest, whenever its writer is killed."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from fedjax_sim.core.lifecycle import (
    InputError,
    check_seal,
    read_json,
    seal_json,
    write_sealed,
    write_whole,
)
from tests.kept_files import without_seal


def test_a_flipped_bit_in_every_byte_and_every_cut_show(tmp_path: Path) -> None:
    path, content = tmp_path / "a.json", {"a": [1, None], "b": {"c": "ä"}}
    sound = seal_json(content)
    assert json.loads(sound)["a"] == [1, None] and json.loads(seal_json({}))
    path.write_bytes(sound)
    assert read_json(path) == content
    damaged = [sound[:end] for end in range(len(sound))]
    for place in range(len(sound)):
        one = bytearray(sound)
        one[place] ^= 1 << place % 8
        damaged.append(bytes(one))
    for each in damaged:
        path.write_bytes(each)
        with pytest.raises(InputError, match=r"a\.json (is damaged|does not end with its SHA-256)"):
            read_json(path)


def test_a_sealed_file_has_its_digest_and_is_read_without_it_only_with_trust(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.bin"
    digest = write_sealed(path, lambda scratch: scratch.write_bytes(b"some\0content"))
    assert path.read_bytes().startswith(b"some\0content\n")
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest() == check_seal(path)
    path.write_bytes(without_seal(path.read_bytes()))
    assert path.read_bytes().startswith(b"some\0content\n")
    with pytest.raises(InputError, match="read it with trust=True, on the command line --trust"):
        check_seal(path)
    assert check_seal(path, trust=True) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_no_object_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in (b"", b"[]", b"3", b'"x"', b"null", b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.json"):
            read_json(path, trust=True)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is not a file"):
        read_json(path, trust=True)


def test_a_killed_writer_leaves_the_older_file_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is killed: what has the file's name has its digest."""
    path = tmp_path / "a.bin"

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("write_bytes", "open", "replace"):
        for before in (False, True):
            if before:
                write_sealed(path, lambda scratch: scratch.write_bytes(b"older"))
            with monkeypatch.context() as patch:
                patch.setattr(Path, name, killed)
                with pytest.raises(KeyboardInterrupt):
                    write_sealed(path, lambda scratch: scratch.write_bytes(b"newer"))
            assert path.exists() == before
            if before:
                check_seal(path)
                assert path.read_bytes().startswith(b"older")
        path.unlink()
    write_whole(path, lambda scratch: scratch.write_bytes(b"plain"))
    with pytest.raises(InputError, match="does not end with its SHA-256"):
        check_seal(path)
