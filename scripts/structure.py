"""Measure the package: its rooms, the imports between them, and its lines of code.

    python scripts/structure.py [CHECKOUT] [--inside FOLDER]

A room is a top-level folder of `fedjax_sim`, or a file in its root. An arrow A -> B means that a
file of room A imports a module of room B, anywhere in its text. A room that imports nothing is on
floor 1; every other room is one floor above the highest room that it imports. Rooms that reach
each other form a circle and share a floor. An upward arrow is one that the table `ALLOWED` in the
checkout's `tests/test_imports.py` does not allow. For a checkout without this table, the arrows
that lie on circles are counted instead.

With `--inside engine` the level is that folder instead: its rooms are its folders and files, its
face (`__init__.py`) counts as none, and what is imported from outside does not count.

The face of the package (`fedjax_sim/__init__.py`) names every room in a block for type checkers,
as `from fedjax_sim import ROOM`. These lines use nothing of the rooms and count as no arrows,
except in "the whole house": there they count, and `experiments` and `scripts` are two rooms more.

Between files, an arrow leads to the file that defines the imported name, through all faces that
hand it on. An imported module leads to the files that define its attributes in use. Faces have no
arrows themselves.

A line of code holds a token that belongs to no comment and no docstring; any string that is a
statement is a docstring. Imports and exports are import statements and `__all__`. The name `Any`
counts outside imports. A body is a function's lines of code after its docstring, with the
functions inside it.
"""

import argparse
import ast
import dataclasses
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PACKAGE = "fedjax_sim"
FACE = "__init__"
HOUSE = ("experiments", "scripts")
LONG_BODY = 60
UNPLAIN = re.compile(r"\b(what|whose|whom)\b", re.IGNORECASE)
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
Graph = Mapping[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules_of(package: Path) -> dict[str, Path]:
    """Find the files of a package by module name, such as "timelines.laws"; "" is the face."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names that a file imports from this house: by local and by full name.

    Full names lack the package, as in "timelines.laws"; relative ones are "." alone. The stub of
    a face counts as the face's text; it has relative imports.
    """
    stub = path.with_suffix(".pyi")
    room = "" if path.parent.name == PACKAGE else path.parent.name
    listed = ast.parse(stub.read_text()).body if stub.exists() else []
    for node in listed:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.name, ".".join(filter(None, (room, node.module, alias.name)))
    for node in ast.walk(ast.parse(path.read_text())):
        pairs = []
        if isinstance(node, ast.Import):
            pairs = [(alias.asname or alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield ".", "."
        elif isinstance(node, ast.ImportFrom):
            names = node.names
            pairs = [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in names]
        for local, full in pairs:
            if full.split(".")[0] in (PACKAGE, *HOUSE):
                yield local, full.removeprefix(PACKAGE).removeprefix(".")


def modules_among(names: Iterable[str], modules: Iterable[str]) -> set[str]:
    """List the modules that full names come from; "" for names of the face."""
    # "from fedjax_sim.timelines import laws" names a module, "... import Rounds" does not.
    return {name if name in modules else name.rpartition(".")[0] for name in names}


def imports_of(module: str, modules: Mapping[str, Path]) -> set[str]:
    """List the modules that one of the package imports, without the rooms that the face lists.

    Raises:
      ValueError: If the module has a relative import.
    """
    names = {full for _, full in imported_names(modules[module])}
    if "." in names:
        raise ValueError(f"{modules[module]} has a relative import.")
    if module == "":
        names = {name for name in names if name not in modules or "." in name}
    return modules_among(names, modules) - {module}


def room_of(module: str, folder: str = "") -> str:
    """Name the room of a module: its folder or file within a folder; by default in the root."""
    return module.removeprefix(f"{folder}." if folder else "").split(".")[0] or FACE


def arrows_of(package: Path, folder: str = "") -> dict[str, set[str]]:
    """Find which rooms each room of a package imports.

    Args:
      package: The package's folder.
      folder: A folder inside it, such as "engine" or "engine.planning", whose rooms are meant.
    """
    modules = modules_of(package)
    inside = {name for name in modules if name.startswith(f"{folder}.")} if folder else {*modules}
    arrows: dict[str, set[str]] = {room_of(module, folder): set() for module in inside}
    for module in inside:
        targets = imports_of(module, modules) & inside
        arrows[room_of(module, folder)] |= {room_of(name, folder) for name in targets}
    return {room: arrows[room] - {room} for room in sorted(arrows)}


def file_arrows_of(package: Path, folder: str) -> Graph:
    """Find which files below a folder of a package import each other; faces count as none."""
    modules = modules_of(package)
    inside = {
        name
        for name, path in modules.items()
        if name.startswith(f"{folder}.") and path.stem != FACE
    }
    return {module: imports_of(module, modules) & inside for module in inside}


def house_of(checkout: Path) -> Graph:
    """Find which rooms of the package, `experiments` and `scripts` import each other."""
    modules = modules_of(checkout / PACKAGE)
    files = [(room_of(name), path) for name, path in modules.items()]
    files += [(room, path) for room in HOUSE for path in (checkout / room).rglob("*.py")]
    house: dict[str, set[str]] = {room: set() for room, _ in files}
    for room, path in files:
        names = {full for _, full in imported_names(path)} - {"."}
        house[room] |= {room_of(name) for name in modules_among(names, modules)} - {room}
    return house


def defining_files_of(package: Path) -> Graph:
    """Find the files that define the names that each file of a package imports, except faces."""
    modules = modules_of(package)
    names = {module: dict(imported_names(path)) for module, path in modules.items()}

    def home(name: str) -> str:
        """Find the module that defines a full name, through modules that import it themselves."""
        if name in modules:
            return name
        before, _, last = name.rpartition(".")
        before = before if before in modules else home(before)
        handed_on = names[before].get(last, name)
        return before if handed_on == name else home(handed_on)

    found = {}
    for module, path in modules.items():
        if path.stem != FACE:
            used = {home(full) for full in names_used(path, names[module], modules)}
            found[module] = used - {module}
    return found


def names_used(path: Path, local: Mapping[str, str], modules: Iterable[str]) -> set[str]:
    """List the full names of the package that a file uses: of modules, the attributes in use."""
    tree = ast.parse(path.read_text())
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    of_modules = {name: full for name, full in local.items() if full in modules}
    used, touched = {*local.values()} - {*of_modules.values()}, set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node in inner:
            continue
        parts = ast.unparse(node).split(".")
        if parts[0] in of_modules:
            touched.add(of_modules[parts[0]])
            name = of_modules[parts[0]]
            for part in parts[1:]:
                if name in modules:
                    name = f"{name}.{part}".removeprefix(".")
            used.add(name)
    return used | {full for full in of_modules.values() if full not in touched}


def print_level(graph: Graph) -> None:
    """Print the floors of a level."""
    floors = floors_of(graph)
    for number in range(max(floors.values()), 0, -1):
        print(f"floor {number:2}: {', '.join(room for room in graph if floors[room] == number)}")


def print_inside(package: Path, folder: str) -> None:
    """Print the figures of a folder of a package."""
    level, files = arrows_of(package, folder), file_arrows_of(package, folder)
    print_level(level)
    num_arrows = sum(map(len, level.values()))
    rooms = (name for name in level if (package / folder.replace(".", "/") / name).is_dir())
    within = (arrows_of(package, f"{folder}.{name}") for name in rooms)
    num_within = sum(len(targets - {FACE}) for graph in within for targets in graph.values())
    print(
        f"rooms {len(level)}, arrows {num_arrows}, with those inside rooms "
        f"{num_arrows + num_within}, floors {max(floors_of(level).values())}, circles "
        f"{len(circles_of(level))}; files {len(files)}, arrows between files "
        f"{sum(map(len, files.values()))}, circles {len(circles_of(files))}"
    )


def reachable(graph: Graph) -> dict[str, set[str]]:
    """Find all nodes that can be reached from each node of a graph by one arrow or more."""
    found = {}
    for start in graph:
        seen: set[str] = set()
        queue = list(graph[start])
        while queue:
            node = queue.pop()
            if node not in seen:
                seen.add(node)
                queue += graph[node]
        found[start] = seen
    return found


def circles_of(graph: Graph) -> list[set[str]]:
    """Find the largest sets of nodes that all reach each other, of two nodes or more."""
    reach = reachable(graph)
    found = {frozenset({node} | {n for n in reach[node] if node in reach[n]}) for node in graph}
    return [set(circle) for circle in found if len(circle) > 1]


def floors_of(graph: Graph) -> dict[str, int]:
    """Number the floor of each node, from 1 at the bottom; the nodes of a circle share a floor."""
    together = {node: frozenset({node}) for node in graph}
    for circle in circles_of(graph):
        together |= {node: frozenset(circle) for node in circle}
    floors: dict[frozenset[str], int] = {}

    def floor(group: frozenset[str]) -> int:
        if group not in floors:
            below = {together[target] for node in group for target in graph[node]} - {group}
            floors[group] = 1 + max((floor(each) for each in below), default=0)
        return floors[group]

    return {node: floor(together[node]) for node in graph}


def allowed_in(checkout: Path) -> dict[str, set[str]] | None:
    """Read the table `ALLOWED` of a checkout's import test; None if it has no such table.

    Each line of the table names a room and the rooms that it may import; "*" stands for all rooms
    of the lines above.
    """
    path = checkout / "tests" / "test_imports.py"
    for node in ast.parse(path.read_text()).body if path.exists() else []:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ALLOWED":
            lines: dict[str, str] = ast.literal_eval(node.value)
            rooms = list(lines)
            return {
                room: set(rooms[: rooms.index(room)] if line == "*" else line.split())
                for room, line in lines.items()
            }
    return None


def upward_arrows(graph: Graph, allowed: Mapping[str, Iterable[str]] | None) -> list[str]:
    """List arrows that the table does not allow; without a table, those that lie on circles."""
    reach = reachable(graph)
    return sorted(
        f"{room} -> {target}"
        for room, targets in graph.items()
        for target in targets
        if (room in reach[target] if allowed is None else target not in allowed.get(room, ()))
    )


def lines_of(node: ast.stmt) -> set[int]:
    """List the numbers of a statement's lines."""
    return {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def is_docstring(node: ast.AST) -> bool:
    """Tell whether a node is a string that is a statement."""
    text = node.value if isinstance(node, ast.Expr) else None
    return isinstance(text, ast.Constant) and isinstance(text.value, str)


def code_lines(source: str) -> set[int]:
    """List the numbers of the lines of code in a file's text."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            found |= {*range(token.start[0], token.end[0] + 1)}
    strings = [node for node in ast.walk(ast.parse(source)) if is_docstring(node)]
    return found.difference(*(lines_of(node) for node in strings if isinstance(node, ast.Expr)))


@dataclasses.dataclass
class Measures:
    """Counts over files.

    Attributes:
      code: Lines of code.
      imports: Lines of code of imports and exports.
      num_any: Uses of the name `Any`.
      unplain: First lines of docstrings with one of the words of `UNPLAIN`.
      bodies: The lines of code of each function's body, with its file and name.
    """

    code: int = 0
    imports: int = 0
    num_any: int = 0
    unplain: int = 0
    bodies: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add(self, source: str, name: str) -> None:
        """Count a file's text."""
        code, nodes = code_lines(source), [*ast.walk(ast.parse(source))]
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        exports = [
            node
            for node in nodes
            if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "__all__"
        ]
        lines = {line for node in imports for line in lines_of(node)}
        self.code += len(code)
        self.imports += len(lines.union(*map(lines_of, exports)) & code)
        self.num_any += sum(
            token.string == "Any" and token.start[0] not in lines
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.NAME
        )
        for node in nodes:
            if is_docstring(node):
                self.unplain += bool(UNPLAIN.search(node.value.value.strip().split("\n")[0]))
            if isinstance(node, Function):
                body = set().union(*map(lines_of, node.body)) & code
                self.bodies.append((len(body), f"{node.name} in {name}"))


def print_measures(package: Path) -> None:
    """Print the counts over a package's files, stubs included, and the lines of code by room."""
    measures, rooms = Measures(), Counter[str]()
    for path in sorted(package.rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            before, name = measures.code, path.relative_to(package)
            measures.add(path.read_text(), str(name))
            rooms[name.parts[0].split(".")[0]] += measures.code - before
    lines, where = max(measures.bodies)
    long = sum(size > LONG_BODY for size, _ in measures.bodies)
    print(
        f"lines of code {measures.code}, imports and exports {measures.imports} "
        f"({measures.imports / measures.code:.1%}), Any {measures.num_any} "
        f"({1000 * measures.num_any / measures.code:.1f} per 1,000)\n"
        f"longest body {lines} ({where}), bodies over {LONG_BODY} lines {long}, "
        f"first lines of docstrings with what, whose or whom {measures.unplain}"
    )
    print("  " + ", ".join(f"{room} {size}" for room, size in rooms.most_common()))


def counts_of(graph: Graph, kind: str = "rooms") -> str:
    """Say how many nodes, arrows, floors and circles a graph has."""
    return (
        f"{kind} {len(graph)}, arrows {sum(map(len, graph.values()))}, "
        f"floors {max(floors_of(graph).values())}, circles {len(circles_of(graph))}"
    )


def main() -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkout", nargs="?", type=Path, default=here)
    parser.add_argument("--inside", metavar="FOLDER", help="a folder of the package")
    arguments = parser.parse_args()
    checkout = arguments.checkout
    if arguments.inside:
        print_inside(checkout / PACKAGE, arguments.inside)
        return
    graph, allowed = arrows_of(checkout / PACKAGE), allowed_in(checkout)
    print_level(graph)
    upward = upward_arrows(graph, allowed)
    kind = "upward arrows" if allowed is not None else "arrows on circles"
    print(f"{counts_of(graph)}, {kind} {len(upward)}")
    for arrow in upward:
        print(f"  {arrow}")
    print(f"the whole house: {counts_of(house_of(checkout))}")
    files = modules_of(checkout / PACKAGE)
    between = sum(map(len, defining_files_of(checkout / PACKAGE).values()))
    print(f"files {len(files)}, arrows between files {between}")
    print_measures(checkout / PACKAGE)


if __name__ == "__main__":
    main()
