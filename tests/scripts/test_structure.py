"""Counts over the package's source and over what a run executes."""

import importlib
from pathlib import Path

import pytest

from scripts.structure import (
    Measures,
    arrows_of,
    circles_of,
    code_lines,
    defining_files_of,
    floors_of,
    house_of,
    print_measures,
)

CLIENTS = '''"""What clients do,
in two lines."""

from typing import Any

__all__ = [
    "work",
]
LIMIT = 3
"""Whose limit it is."""


def work(task: Any) -> str:  # A comment.
    """Work."""

    def inner(other: "Any") -> Any:
        """
        To whom it may concern."""
        return other

    # Another one.
    return f"""{inner(task)}

    end"""
'''


def write(folder: Path, **files: str) -> Path:
    """Write files of a package; two underscores in a name stand for a folder."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("FACE", "__init__")
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_comments_docstrings_and_empty_lines_are_no_code() -> None:
    assert sorted(code_lines(CLIENTS)) == [4, 6, 7, 8, 9, 13, 16, 19, 22, 23, 24]


def test_counts_of_a_file() -> None:
    found = Measures()
    found.add(CLIENTS, "clients.py")
    assert (found.code, found.imports) == (11, 4)
    assert found.num_any == 2  # Not the one in quotes, nor the import.
    assert found.unplain == 3
    assert found.bodies == [(5, "work in clients.py"), (1, "inner in clients.py")]


def test_stubs_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (write(tmp_path, clients=CLIENTS) / "stub.pyi").write_text("from a import b as b\n")
    print_measures(tmp_path)
    head, middle, rooms = capsys.readouterr().out.splitlines()
    assert head.startswith("lines of code 12, imports and exports 5 (41.7%), Any 2 (166.7 per")
    assert middle.startswith("longest body 5 (work in clients.py), bodies over 60 lines 0,")
    assert rooms == "  clients 11, stub 1"


def test_arrows_between_files_lead_to_definitions(tmp_path: Path) -> None:
    """Through a face, by a name or by a module's attribute, it is the same arrow."""
    room = write(
        tmp_path,
        FACE="from fedjax_sim import low",
        low__FACE="from fedjax_sim.low.one import stone\nfrom fedjax_sim.low import two",
        low__one="stone = 1",
        low__two="from fedjax_sim.low.one import stone as pebble\nvalue = pebble",
        by_name="from fedjax_sim.low import stone",
        by_module="from fedjax_sim import low\nlow.stone.real\nlow.two.value\nlow.two.pebble",
        by_import="import fedjax_sim\nimport fedjax_sim.low.two\nfedjax_sim.low.stone",
        idle="from fedjax_sim.low import two as second",
    )
    assert defining_files_of(room) == {
        "low.one": set(),
        "low.two": {"low.one"},
        "by_name": {"low.one"},
        "by_module": {"low.one", "low.two"},
        "by_import": {"low.one", "low.two"},
        "idle": {"low.two"},
    }


def test_the_whole_house_counts_the_list_of_the_face(tmp_path: Path) -> None:
    write(
        tmp_path,
        fedjax_sim__FACE="from fedjax_sim import top as top",
        fedjax_sim__top="from fedjax_sim import __version__",
        experiments__one="from fedjax_sim.top import go\nfrom . import two",
        scripts__two="from experiments.one import three",
    )
    house = house_of(tmp_path)
    assert house == {
        "__init__": {"top"},
        "top": {"__init__"},
        "experiments": {"top"},
        "scripts": {"experiments"},
    }
    assert circles_of(house) == [{"__init__", "top"}]
    assert floors_of(house) == {"__init__": 1, "top": 1, "experiments": 2, "scripts": 3}


def test_the_stub_of_the_face_counts_as_its_text(tmp_path: Path) -> None:
    write(
        tmp_path,
        fedjax_sim__FACE="import os",
        fedjax_sim__low__FACE="",
        fedjax_sim__low__one="stone = 1",
        fedjax_sim__top="from fedjax_sim import stone",
    )
    stub = tmp_path / "fedjax_sim" / "__init__.pyi"
    stub.write_text("from . import top as top\nfrom .low.one import stone as stone\nx: str")
    arrows = {"__init__": {"low"}, "low": set(), "top": {"__init__"}}
    assert arrows_of(tmp_path / "fedjax_sim") == arrows
    assert house_of(tmp_path) == arrows | {"__init__": {"low", "top"}}
    assert defining_files_of(tmp_path / "fedjax_sim")["top"] == {"low.one"}


def test_what_a_run_executes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    executed = importlib.import_module("executed")
    run, bound = executed.simulated(), executed.bound()
    files = run.files()
    assert "systems/fedavg.py" in files and "systems/fedbuff.py" not in files
    names = {code.co_qualname for code in run.functions}
    assert {"simulate", "algorithm.<locals>.step"} <= names and "<module>" not in names
    lines = run.lines()
    file = Path(executed.PACKAGE) / "systems" / "fedavg.py"
    first = next(
        n for n, line in enumerate(file.read_text().splitlines(), 1) if "def step(" in line
    )
    assert (str(file), first) in lines and (str(file), 1) not in lines
    assert len(run.functions) < len(lines)
    through_bind = [code.co_qualname for code in bound.at_gradient]
    through_simulate = [code.co_qualname for code in run.at_gradient]
    assert through_bind[0] == through_simulate[0]
    assert "Bound.step" in through_bind and "Bound.step" not in through_simulate
    assert "simulate" in through_simulate and len(through_bind) < len(through_simulate)
