"""The public names of packages, as their faces export them."""

import ast
import importlib
from pathlib import Path
from types import ModuleType


def names_in(path: Path) -> list[str] | None:
    """Read the names that a face exports, as `from x import y as y`; None if there are none."""
    if path.name != "__init__.py":
        return None
    stub = path.with_suffix(".pyi")
    body = ast.parse((stub if stub.exists() else path).read_text()).body
    for node in [node for node in body if isinstance(node, ast.If)]:
        body += node.body  # For type checkers, where names are loaded when they are asked for.
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names]
    names = [alias.name for alias in aliases if alias.name == alias.asname]
    if names and not stub.exists():
        declared = [n for n in body if isinstance(n, ast.AnnAssign) and n.value is None]
        names += [ast.unparse(node.target) for node in declared]
    return names or None


def exports_of(module: ModuleType | str) -> list[str] | None:
    """List the public names of a module; None if it exports none, such as rooms of the engine."""
    module = importlib.import_module(module) if isinstance(module, str) else module
    return getattr(module, "__all__", None) or names_in(Path(str(module.__file__)))
