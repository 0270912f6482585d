"""Count the rooms of the package and the imports between them, from the source alone.

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
as `from fedjax_sim import ROOM`. These lines use nothing of the rooms and count as no arrows.
"""

import argparse
import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

PACKAGE = "fedjax_sim"
FACE = "__init__"
Graph = Mapping[str, set[str]]


def modules_of(package: Path) -> dict[str, Path]:
    """Find the files of a package by module name, such as "timelines.laws"; "" is the face."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, modules: Mapping[str, Path]) -> set[str]:
    """List the modules of the package that one of them imports, by name; "" for names of the face.

    Raises:
      ValueError: If the module has a relative import.
    """
    found = set()
    for node in ast.walk(ast.parse(modules[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{modules[module]} has a relative import in line {node.lineno}.")
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] != PACKAGE:
                continue
            inner = name.removeprefix(PACKAGE).removeprefix(".")
            if module == "" and inner in modules and "." not in inner:
                continue
            # "from fedjax_sim.timelines import laws" names a module, "... import Rounds" does not.
            found.add(inner if inner in modules else inner.rpartition(".")[0])
    return found - {module}


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
    floors = floors_of(graph)
    print_level(graph)
    upward = upward_arrows(graph, allowed)
    kind = "upward arrows" if allowed is not None else "arrows on circles"
    print(
        f"rooms {len(graph)}, arrows {sum(map(len, graph.values()))}, "
        f"floors {max(floors.values())}, circles {len(circles_of(graph))}, {kind} {len(upward)}"
    )
    for arrow in upward:
        print(f"  {arrow}")


if __name__ == "__main__":
    main()
