"""The package and its pages are plain to read, and the check of it can fail."""

from pathlib import Path

import pytest

from scripts import words

CHECKOUT = Path(words.__file__).parents[1]
PAGE = f"- **Tick**: one.\n\n{words.HEADING}\n\n- **by itself**, **alone of all**: alone.\n"
LONG = "\n".join(f"    x{i} = {i}" for i in range(61))
FILE = f'''"""What clients do."""

LIMIT = 3
"""The limit, as long as it stands by
itself."""


def work():
    """Work by herself, whatever comes."""
    # Why: it is best alone
    # of all.
{LONG}
'''
PLACES = ("4: by itself", "10: alone of all")
"""Phrases in it, by their lines."""


def test_no_rule_has_more_findings_than_before() -> None:
    """`python -m scripts.words --all` lists them; lower `MOST` when there are fewer."""
    found = {rule: len(lines) for rule, lines in words.findings_in(CHECKOUT).items()}
    assert all(found[rule] <= most for rule, most in words.MOST.items()), found


def test_each_rule_finds_what_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Places are exact, phrases are found across line ends, and one finding too many fails."""
    for name, text in (
        ("docs/words.md", PAGE),
        ("README.md", "Fine.\nBy itself.\n"),
        ("fedjax_sim/a.py", FILE),
        ("fedjax_sim/b.py", FILE.replace("    x0 = 0\n", "    # And\n\n    # why\n")),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = words.findings_in(tmp_path)
    assert found == {
        "first lines": [f"fedjax_sim/{name}.py:1: What clients do." for name in "ab"],
        "phrases": [
            *(f"fedjax_sim/{name}.py:{place}" for name in "ab" for place in PLACES),
            "README.md:2: by itself",
        ],
        "comments": ["fedjax_sim/a.py:8: work has 61 lines and 2 with comments"],
    }
    monkeypatch.setattr("sys.argv", ["words", str(tmp_path)])
    monkeypatch.setattr(words, "MOST", {rule: len(lines) for rule, lines in found.items()})
    assert words.main() == 0
    monkeypatch.setitem(words.MOST, "phrases", 4)
    assert words.main() == 1
    assert "phrases: 5, at most 4\n  fedjax_sim/a.py:4: by itself\n" in capsys.readouterr().out
