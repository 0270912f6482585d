"""JSON of a results folder that somebody wrote by hand: it is read, or refused in a sentence.

Its digests are right, so that nothing but the content is odd.
"""

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.lifecycle import InputError, digest_of, read_json
from fedjax_sim.launch.parts import read_parts
from fedjax_sim.results import kept_settings, reports, runs

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]
ODD = {
    "null": "null",
    "a number": "-3",
    "a number that is too large for a float": "1e999",
    "a number of many digits": "9" * 5000,
    "NaN": "NaN",
    "a text": '"x"',
    "a long text": f'"{"x" * 1_000_000}"',
    "a list": "[]",
    "a list of lists": '[[null, [{"a": []}]]]',
    "a long list": f"[{'0,' * 100_000}0]",
    "an object": "{}",
    "an object with an entry twice": '{"a": 1, "a": 2}',
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "a boolean": "true",
}


@pytest.fixture(scope="module")
def folder(regression: Callable, small: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the only part of a study."""
    run = fedjax_sim.sweep(
        FEDAVG,
        regression(),
        small(FEDAVG),
        seeds=1,
        settings={"lr": [0.1, 0.2]},
        budget=fedjax_sim.Ticks(2),
        num_evals=1,
        lanes=[0, 1],
    )
    path = tmp_path_factory.mktemp("part")
    run.save(path)
    facts = {"dataset": {"name": "a"}, "partition": {"name": "b"}, "model": "c", "part": "0/1"}
    replace(path, "config.json", json.dumps({**read_json(path / "config.json"), **facts}))
    return path


def replace(folder: Path, name: str, text: str) -> None:
    """Put a text in the place of a JSON file, with its digests."""
    start = text.rstrip()[:-1].rstrip().encode() + b',\n "sha256": "'
    digest = hashlib.sha256(start).hexdigest()
    (folder / name).write_bytes(start + f'{digest}"\n}}\n'.encode())
    if name != "config.json":
        config = read_json(folder / "config.json")
        config["files"][name] = digest_of(folder / name)
        replace(folder, "config.json", json.dumps(config))


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Iterate over places in a JSON value."""
    if at:
        yield at
    if isinstance(content, dict | list):
        inner = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in inner:
            yield from places(value, (*at, key))


def changed(content: Any, place: tuple[Any, ...], text: str) -> str:
    """Write JSON with another text in one place."""
    whole = copy.deepcopy(content)
    owner = whole
    for key in place[:-1]:
        owner = owner[key]
    owner[place[-1]] = "here"
    return json.dumps(whole).replace('"here"', text)


def is_read_or_refused(read: Callable[[], Any], what: Any) -> bool:
    """Tell whether something is read; a refusal is one sentence of no great length."""
    try:
        read()
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000, what
        return False
    return True


@pytest.mark.few(5)
@pytest.mark.parametrize("name", ["summary.json", "config.json", "settings.json"])
@pytest.mark.parametrize("odd", ODD)
def test_odd_entries_of_a_folder_are_read_or_refused(
    folder: Path, tmp_path: Path, name: str, odd: str
) -> None:
    """By what `load`, `plot` and `merge` do; one place is drawn at random."""
    content = read_json(folder / name)
    every = [*places(content)]
    random = np.random.default_rng([*map(ord, odd + name)])
    place = every[int(random.integers(len(every)))]
    shutil.copytree(folder, tmp_path / "a")
    replace(tmp_path / "a", name, changed(content, place, ODD[odd]))
    for read in (fedjax_sim.load, reports.load, lambda path: read_parts([path])):
        is_read = is_read_or_refused(lambda read=read: read(tmp_path / "a"), (place, odd))
        if name == "summary.json" and odd in ("NaN", "deep lists", "an object with an entry twice"):
            assert not is_read or read is fedjax_sim.load


def test_odd_entries_of_settings_are_read_or_refused(folder: Path) -> None:
    """At every place, in every way."""
    path = folder / "settings.json"
    content = read_json(path)["systems"]["fedavg"]
    num_refused = 0

    def read(odd: Any) -> None:
        with runs._reading(path, "settings"):
            kept_settings.read(odd, 2)
            kept_settings.read_containers(odd["model"])

    for place in places(content):
        for odd, text in ODD.items():
            if odd.startswith(("deep", "a long")) or odd == "a number of many digits":
                continue  # They are tried above, in one place each.
            whole = json.loads(changed(content, place, text))
            num_refused += not is_read_or_refused(lambda whole=whole: read(whole), (place, odd))
        whole = copy.deepcopy(content)
        owner = whole
        for key in place[:-1]:
            owner = owner[key]
        del owner[place[-1]]
        is_read_or_refused(lambda whole=whole: read(whole), (place, "missing"))
    assert num_refused > 100


@pytest.mark.few(20)
@pytest.mark.parametrize("odd", [odd for odd in ODD if not odd.startswith(("deep", "a long"))])
@pytest.mark.parametrize(
    "name", [*reports.FORMS, "versions", "files", "a name of no entry", "part_of"]
)
def test_odd_entries_of_config_are_read_or_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, odd: str
) -> None:
    content = read_json(folder / "config.json")
    shutil.copytree(folder, tmp_path / "a")
    curves = runs.read_arrays(folder / runs.CURVES)
    monkeypatch.setattr(runs, "read_arrays", lambda path: curves)  # Slow.
    monkeypatch.setattr("fedjax_sim.launch.parts.load_runs", lambda path, trust: {})
    replace(tmp_path / "a", "config.json", changed(content, (name,), ODD[odd]))
    for read in (reports.load, lambda path: read_parts([path])):
        is_read_or_refused(lambda read=read: read(tmp_path / "a"), (name, odd))


def test_names_that_are_there_twice_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "a")
    text = json.dumps(read_json(folder / "summary.json"))
    replace(tmp_path / "a", "summary.json", re.sub(r'"lanes": \d+', '"lanes": 2, "lanes": 3', text))
    with pytest.raises(InputError, match=r"summary\.json is damaged or was changed: it is not one"):
        reports.load(tmp_path / "a")
