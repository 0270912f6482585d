"""The page on the formulas names every public name of the room, each with an example."""

import importlib
import re
from pathlib import Path

import pytest

from fedjax_sim import theory
from tests.exports import exports_of

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


@pytest.mark.parametrize("name", exports_of(theory) or ())
def test_every_public_name_has_an_example(name: str) -> None:
    """The examples are Python blocks, which `tests/docs/test_site.py` runs."""
    module = importlib.import_module(f"fedjax_sim.theory.{name}")
    source = Path(str(module.__file__)).read_text()
    defined = re.findall(
        r"^(?:def |class |(?=[A-Z_]+ = ))([A-Za-z]\w*)", source, flags=re.MULTILINE
    )
    names = exports_of(module) or defined
    blocks = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    used = set(re.findall(rf"\b{name}\.(\w+)", blocks))
    assert len(names) > 4 and used >= set(names)
