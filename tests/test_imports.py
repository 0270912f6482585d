"""Imports go one way, as read from the source: parts, then systems; the engine knows no system, systems not each other."""

import ast
from pathlib import Path

import pytest

import fedjax_sim

ROOT = Path(fedjax_sim.__file__).parent
MODULES = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in ROOT.rglob("*.py")
)

FRONT = {
    "__init__",
    "__main__",
    "cli",
    "cli_arguments",
    "comparison",
    "defaults",
    "incentives",
    "plots",
    "plots.__init__",
    "plots.fairness",
    "plots.posterior",
    "results",
    "schedule_report",
}
"""The package's face, its command line and its reports, which may import anything and which nothing else imports."""
SYSTEMS = {name for name in MODULES if name.startswith("systems")}
ENGINE = {"simulate", "sweep", "lanes", "schedule", "layout", "checkpoint", "progress", "curves"}
THEORY = {name for name in MODULES if name.startswith("theory")}
TIMELINES = {name for name in MODULES if name.startswith("timelines")}


def imports_of(module: str) -> set[str]:
    """Modules of the package that a module imports, anywhere in its source, `systems` for the package `systems` itself."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            # "from fedjax_sim.timelines import step_counts" imports a module or a name: a module if there is one.
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(
                    whole if whole.removeprefix("fedjax_sim.") in MODULES else str(node.module)
                )
    return {name.removeprefix("fedjax_sim.") for name in found if name.startswith("fedjax_sim.")}


def test_there_is_something_to_check() -> None:
    assert {
        "types",
        "simulate",
        "sweep",
        "systems.favano",
        "timelines.contacts",
        "theory.favano",
    } <= set(MODULES)
    assert "timelines" in imports_of("systems.favano")


def test_types_import_nothing() -> None:
    assert imports_of("types") == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name not in SYSTEMS | FRONT])
def test_only_the_front_knows_systems(module: str) -> None:
    assert not {name for name in imports_of(module) if name.startswith("systems")}


@pytest.mark.parametrize("module", sorted(SYSTEMS - {"systems.__init__"}))
def test_systems_know_neither_each_other_nor_the_engine(module: str) -> None:
    imported = imports_of(module)
    assert not imported & SYSTEMS
    assert "systems" not in imported
    assert not imported & (ENGINE | FRONT)


@pytest.mark.parametrize(
    "module", [name for name in MODULES if name not in ENGINE | FRONT | SYSTEMS]
)
def test_parts_do_not_know_the_engine(module: str) -> None:
    """But for local work of clients, gradient steps and E-steps, which lays its slots out."""
    allowed = {"layout"} if module in ("local", "expectation") else set()
    assert not imports_of(module) & (ENGINE - allowed | FRONT)


@pytest.mark.parametrize("module", sorted(ENGINE))
def test_the_engine_does_not_know_the_front(module: str) -> None:
    assert not imports_of(module) & FRONT


@pytest.mark.parametrize("module", sorted(THEORY))
def test_theory_knows_no_system_and_nothing_of_learning(module: str) -> None:
    assert not {
        name
        for name in imports_of(module)
        if not name.startswith(("theory", "timelines", "types", "gaussians"))
    }


@pytest.mark.parametrize("module", sorted(TIMELINES))
def test_timelines_know_nothing_of_learning(module: str) -> None:
    assert imports_of(module) <= TIMELINES | {
        "timelines",
        "participation",
        "settings",
        "streams",
        "types",
    }


def test_nothing_imports_in_a_circle() -> None:
    """Follow imports depth first; packages stand for their `__init__`."""
    names = {
        name: {n if n in MODULES else f"{n}.__init__" for n in imports_of(name)} for name in MODULES
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module in done:
            return
        for imported in names.get(module, set()):
            visit(imported, (*path, module))
        done.add(module)

    for module in MODULES:
        visit(module, ())
