"""Public names are documented: a first line, and every parameter and result.

The check reads the source, and imports nothing. Public are the names that a package lists in
`__all__`, the public modules in the root, and the public methods of public classes.

A parameter is explained under "Args:"; by its name in the text, as in "rows: `i32[S]`" or "of
`dim` entries"; in the symbols of its module, as in "alpha -> `lr`"; or, for a method, where a
protocol or another public class explains the same parameter of a method of the same name. Where a
docstring says that its arguments "are those of" another function, they are explained there. What
has one meaning everywhere (`CONVENTIONS`) is explained on the page of words. A result is explained
under "Returns:", or by a first line whose verb names it ("Compute E[t_i].").
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedjax_sim
from tests import exports

ROOT = Path(fedjax_sim.__file__).parent
SINGLE_MODULES = (
    *(
        f"core.{name}"
        for name in ("types", "problem", "options", "streams", "batching", "trees", "targets")
    ),
    *("theory.favano", "theory.fedem", "theory.fedstaleweight", "theory.hierarchical"),
    *("results.diagnostics", "results.plots"),
    *("server.attacks", "server.compression", "server.privacy", "server.rules"),
)
CONVENTIONS = ("hyper", "problem", "system", "key", "event", "plan", "state", "run")
"""Parameters that mean the same in all of the package; docs/words.md says what."""
SAID_BY_TYPE = {
    "path": ("Path", "str | Path"),
    "other": ("Self",),
    "devices": ("Devices",),
}
"""Parameters of which there is nothing to say if they have one of these types."""
Definition = ast.FunctionDef | ast.ClassDef


def names_in(path: Path) -> list[str]:
    """Read what a module exports, or list the public definitions of one that exports nothing."""
    if path.name == "__init__.py" and (names := exports.names_in(path)) is not None:
        return names
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            return importlib.import_module(module).__all__
    return [
        node.name
        for node in tree.body
        if isinstance(node, Definition) and not node.name.startswith("_")
    ]


def definition_of(name: str, path: Path) -> tuple[str, Definition | ast.Constant] | None:
    """Find where a name of a module is defined; None for modules and aliases.

    Returns:
      The place, and the definition; for a constant the text that follows it, or an empty one.
    """
    found_here: Definition | ast.Constant | None = None
    for found in in_module(path).get(name, []):
        if isinstance(found, tuple):
            other, file = found
            return definition_of(other, file) if file != path else None
        found_here = found  # The last one: overloads come first.
    return found_here and (f"{path.relative_to(ROOT.parent)}: {name}", found_here)


@functools.cache
def in_module(path: Path) -> dict[str, list[Definition | ast.Constant | tuple[str, Path]]]:
    """List what stands behind each name of a module: constants, then definitions and imports.

    An import is the name and the file that it is from.
    """
    entries: dict[str, list[Definition | ast.Constant | tuple[str, Path]]] = {}
    stub, here = path.with_suffix(".pyi"), ".".join(path.relative_to(ROOT.parent).parent.parts)
    tree = ast.parse((stub if stub.exists() else path).read_text())
    for node, after in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = after.value if is_text else ast.Constant("")
            entries.setdefault(ast.unparse(target), []).append(text)
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            entries.setdefault(node.name, []).append(node)
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        module = f"{here}.{module}" if getattr(node, "level", 0) else module
        if isinstance(node, ast.ImportFrom) and module.startswith("fedjax_sim"):
            folder = ROOT.parent.joinpath(*module.split("."))
            file = folder.with_suffix(".py")
            found = file if file.exists() else folder / "__init__.py"
            for alias in node.names:
                entries.setdefault(alias.asname or alias.name, []).append((alias.name, found))
    return entries


def public_definitions() -> dict[str, Definition | ast.Constant]:
    """Collect public functions, classes, methods and constants by place and name."""
    found: dict[str, Definition | ast.Constant] = {}
    single = [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in SINGLE_MODULES]
    for path in [*sorted(ROOT.rglob("__init__.py")), *single]:
        # Systems are described where their settings are, see `test_systems_are_described`.
        for name in names_in(path) if path.parent.name != "systems" else ():
            if (entry := definition_of(name, path)) is None:
                continue
            found[entry[0]] = entry[1]
            for node in entry[1].body if isinstance(entry[1], ast.ClassDef) else ():
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    found[f"{entry[0]}.{node.name}"] = node
    return found


NAMES_RESULT = (
    "Return|Yield|Tell|Compute|Count|Draw|List|Estimate|Approximate|Bound|Iterate|Look up|Declare"
)
"""First words of functions whose first line says what they return."""


def parameters_of(node: ast.FunctionDef) -> list[str]:
    """List the names of a function's parameters without `self` and `cls`."""
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
    return [name for name in names if name not in ("self", "cls")]


def is_explained(name: str, doc: str, symbols: str) -> bool:
    """Tell whether a docstring, or the symbols of its module, explain a parameter."""
    section = re.search(r"^Args:\n((?:[ ].*\n|\n)*)", doc + "\n", flags=re.MULTILINE)
    told = section[1] if section else ""
    return bool(
        re.search(rf"^  \*{{0,2}}(\w+, )*{name}(, \w+)*:", told, flags=re.MULTILINE)
        or re.search(rf"\b{name}: |`{name}`", doc)
        or re.search(rf"-> (`[^`]+`, )*`{name}`", symbols)
    )


def faults_of(place: str, node: Definition | ast.Constant) -> Iterator[str]:
    """Say what the docstring of a function, class, method or constant lacks."""
    doc = str(node.value) if isinstance(node, ast.Constant) else ast.get_docstring(node) or ""
    if not doc:
        yield "has no docstring"
        return
    if not doc.partition("\n")[0].endswith((".", ":")):
        yield "has a first line that is no sentence"
    if not isinstance(node, ast.FunctionDef):
        return
    names = [] if re.search(r"arguments (and errors )?are those of `", doc) else parameters_of(node)
    symbols = ast.get_docstring(ast.parse((ROOT.parent / place.partition(":")[0]).read_text()))
    owner, _, method = place.partition(": ")[2].rpartition(".")
    typed = {
        each.arg: ast.unparse(each.annotation)
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if each.annotation is not None
    }
    for name in [name for name in names if name not in CONVENTIONS]:
        if typed.get(name) in SAID_BY_TYPE.get(name, ()):
            continue
        is_elsewhere = bool(owner) and (method, name) in EXPLAINED
        if not is_elsewhere and not is_explained(name, doc, symbols or ""):
            yield f"does not explain {name}"
    result = "None" if node.returns is None else ast.unparse(node.returns)
    is_told = re.match(rf"({NAMES_RESULT})\b", doc) or re.search(
        r"^(Returns|Yields):$", doc, flags=re.MULTILINE
    )
    is_elsewhere = bool(owner) and (method, "") in EXPLAINED
    if names and result not in ("None", "Iterator[None]") and not is_told and not is_elsewhere:
        yield "does not say what it returns"


def explained_methods() -> set[tuple[str, str]]:
    """Collect pairs of a method and a parameter that a public class explains; "" for the result."""
    found = set()
    for place, node in DEFINITIONS.items():
        if "." in place.partition(": ")[2] and isinstance(node, ast.FunctionDef):
            doc = ast.get_docstring(node) or ""
            if "Args:\n" in doc:
                found |= {
                    (node.name, name) for name in parameters_of(node) if is_explained(name, doc, "")
                }
                found |= {(node.name, "")} if "Returns:\n" in doc else set()
    return found


DEFINITIONS = public_definitions()
EXPLAINED = explained_methods()


def test_systems_are_described() -> None:
    """By the docstring of their settings, or of their module if that is theirs alone."""
    for name, system in fedjax_sim.SYSTEMS.items():
        kind = system.Hyper
        module = importlib.import_module(kind.__module__)
        about = (kind if kind.__name__ != "Hyper" else module).__doc__ or ""
        assert re.search(r"\b(arXiv|ICLR|ICC|OSDI|Dempster)\b|systems.hierarchical", about), name


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
        for fault in faults_of(place, node)
    ]
    assert not faults, "\n".join(faults)


def test_conventions_are_explained_on_the_page_of_words() -> None:
    """Each has an entry there."""
    page = (ROOT.parent / "docs" / "words.md").read_text()
    assert all(f"- `{name}`: " in page for name in CONVENTIONS)
