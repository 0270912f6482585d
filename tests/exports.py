"""The public names of packages, as their faces export them."""

import ast
import importlib
from pathlib import Path
from types import ModuleType


def names_in(path: Path) -> list[str] | None:
    """Read the names that a face exports, as `from x import y as y`; None if there are none."""
    stub = path.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else path).read_text())
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    aliases = [alias for node in nodes for alias in node.names]
    return [alias.name for alias in aliases if alias.name == alias.asname] or None


def exports_of(module: ModuleType | str) -> list[str] | None:
    """List the public names of a module; None if it exports none, such as rooms of the engine."""
    module = importlib.import_module(module) if isinstance(module, str) else module
    return getattr(module, "__all__", None) or names_in(Path(str(module.__file__)))
