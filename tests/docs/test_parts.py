"""The page of parts names everything that the rooms of parts export."""

import importlib
import re
from pathlib import Path

import pytest

from tests.exports import exports_of

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "parts.md"
ROOMS = (
    "clients",
    "server.compression",
    "datasets",
    "results.diagnostics",
    "models",
    "partition",
    "server.privacy",
    "problems",
    "server",
    "timelines",
)


@pytest.mark.parametrize("room", ROOMS)
def test_page_names_all_parts(room: str) -> None:
    """A name that no page mentions is for nobody, and need not be exported."""
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", PAGE.read_text()))))
    module = importlib.import_module(f"fedjax_sim.{room}")
    own = {k for k, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__}
    exported = set(exports_of(module) or (name for name in own if name[0] != "_"))
    assert exported and not exported - named
