"""An extension of griffe for the API reference, which is made from the source, without imports.

Settings structs get the table of their settings, which `settings.struct` adds to a docstring when
the class is made. Modules that export by `from x import y as y` get the list of these names, as if
they were in `__all__`.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

import griffe


class Reference(griffe.Extension):
    """Add settings to the docstrings of structs, and exports to modules."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Add a list of settings to a class that has some."""
        is_struct = any(str(decorator.value) == "struct" for decorator in cls.decorators)
        if not is_struct or cls.docstring is None:
            return
        from fedjax_sim.core.settings.names import describe

        owner = getattr(importlib.import_module(cls.module.path), cls.name)
        lines = ["", "", "Settings:", ""]
        for line in describe(owner):
            name, _, words = line.partition(": ")
            indent = " " * 2 * (len(name) - len(name.lstrip()))
            lines.append(f"{indent}- `{name.strip()}`: {words}")
        cls.docstring.value += "\n".join(lines)

    def on_module(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """List the names that a module exports, then its own; the root's are in its stub."""
        if mod.exports is not None or mod.filepath is None:
            return
        path = Path(str(mod.filepath))
        stub = path.with_suffix(".pyi")
        tree = ast.parse((stub if stub.exists() else path).read_text())
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        aliases = [alias for node in imports for alias in node.names]
        names = [alias.name for alias in aliases if alias.name == alias.asname]
        own = [name for name, member in mod.members.items() if not member.is_alias]
        if names:
            mod.exports = names + [name for name in own if not name.startswith("_")]
