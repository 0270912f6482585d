"""Public names are documented: a first line, and every parameter and result.

The check reads the source, and imports nothing. Public are the names that a package lists in
`__all__`, the public modules in the root, and the public methods of public classes.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedjax_sim

ROOT = Path(fedjax_sim.__file__).parent
SINGLE_MODULES = ("types", "settings", "streams", "batching", "trees", "targets")
Definition = ast.FunctionDef | ast.ClassDef


def names_in(tree: ast.Module) -> list[str]:
    """Read `__all__`, or list the public definitions of a module without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return [
        node.name
        for node in tree.body
        if isinstance(node, Definition) and not node.name.startswith("_")
    ]


def definition_of(name: str, path: Path) -> tuple[str, Definition] | None:
    """Find where a name of a module is defined; None for modules, constants and aliases."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Definition) and node.name == name:
            return f"{path.relative_to(ROOT.parent)}: {name}", node
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedjax_sim"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    folder = ROOT.parent.joinpath(*str(node.module).split("."))
                    file = folder.with_suffix(".py")
                    found = file if file.exists() else folder / "__init__.py"
                    return definition_of(alias.name, found) if found != path else None
    return None


def public_definitions() -> dict[str, Definition]:
    """Collect public functions, classes and methods by place and name."""
    found: dict[str, Definition] = {}
    single = [ROOT / f"{name}.py" for name in SINGLE_MODULES]
    for path in [*sorted(ROOT.rglob("__init__.py")), *single]:
        for name in names_in(ast.parse(path.read_text())):
            if (entry := definition_of(name, path)) is None:
                continue
            found[entry[0]] = entry[1]
            for node in entry[1].body:
                is_method = isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
                if is_method and isinstance(entry[1], ast.ClassDef):
                    found[f"{entry[0]}.{node.name}"] = node
    return found


def faults_of(node: Definition) -> Iterator[str]:
    """Say what the docstring of a function, class or method lacks."""
    doc = ast.get_docstring(node) or ""
    if not doc:
        yield "has no docstring"
        return
    if not doc.partition("\n")[0].endswith((".", ":")):
        yield "has a first line that is no sentence"
    if isinstance(node, ast.ClassDef):
        return
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
    names = [name for name in names if name not in ("self", "cls")]
    section = re.search(r"^Args:\n((?:[ ].*\n|\n)*)", doc + "\n", flags=re.MULTILINE)
    told = section[1] if section else ""
    for name in names:
        if not re.search(rf"^  \*{{0,2}}(\w+, )*{name}(, \w+)*:", told, flags=re.MULTILINE):
            yield f"does not explain {name}"
    result = "None" if node.returns is None else ast.unparse(node.returns)
    is_told = re.match(r"(Return|Yield|Tell)\b", doc) or re.search(
        r"^(Returns|Yields):$", doc, flags=re.MULTILINE
    )
    if names and result != "None" and not is_told:
        yield "does not say what it returns"


DEFINITIONS = public_definitions()


def test_enough_is_found() -> None:
    """The names are those of the interface, not an empty list."""
    assert len(DEFINITIONS) > 500
    assert "fedjax_sim/engine/sweeps.py: sweep" in DEFINITIONS


@pytest.mark.parametrize("room", sorted({place.split("/")[1] for place in DEFINITIONS}))
def test_public_names_are_documented(room: str) -> None:
    """Each public name has a first line, its arguments and its result."""
    faults = [
        f"{place} {fault}"
        for place, node in DEFINITIONS.items()
        if place.split("/")[1] == room
        for fault in faults_of(node)
    ]
    assert not faults, "\n".join(faults)
