"""An extension of griffe: settings structs in the API reference get the table of their settings.

The reference is made from the source, without importing it. The table that `settings.struct` adds
to a docstring when the class is made is therefore added here.
"""

import importlib
from typing import Any

import griffe


class SettingsTables(griffe.Extension):
    """Add settings to the docstrings of classes decorated by `struct`."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Add a list of settings to a class that has some."""
        is_struct = any(str(decorator.value) == "struct" for decorator in cls.decorators)
        if not is_struct or cls.docstring is None:
            return
        from fedjax_sim.settings import describe

        owner = getattr(importlib.import_module(cls.module.path), cls.name)
        lines = ["", "", "Settings:", ""]
        for line in describe(owner):
            name, _, words = line.partition(": ")
            indent = " " * 2 * (len(name) - len(name.lstrip()))
            lines.append(f"{indent}- `{name.strip()}`: {words}")
        cls.docstring.value += "\n".join(lines)
