"""The rooms of the package and the imports between them, which run one way, as the source says."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedjax_sim
from scripts.structure import (
    FACE,
    allowed_in,
    arrows_of,
    circles_of,
    floors_of,
    imports_of,
    modules_of,
    upward_arrows,
)
from tests.exports import names_in

# Each line names a room (a folder of the package or a file in its root) and the rooms that it may
# import, which stand above it. "*" stands for all of them.
ALLOWED = {
    "version": "",
    "core": "",
    "kernels": "core",
    "timelines": "core",
    "clients": "core",
    "server": "core kernels timelines clients",
    "models": "core kernels server",
    "datasets": "core",
    "partition": "core",
    "results": "core",
    "problems": "core server models datasets partition results",
    "systems": "core timelines clients server",
    "engine": "core kernels timelines clients results",
    "theory": "core timelines server systems",
    "__init__": "version core server systems engine results",
    "studies": "core timelines datasets engine partition results",
    "launch": "core engine results",
    "cli": "*",
    "__main__": "cli",
}
MOST_ROOT_FILES = 12
SLOW_TO_LOAD = ("jax", "xarray", "matplotlib", "tensorflow_datasets", "numpy")

USED_LATER = ("scipy.stats", "sklearn", "pandas", "xarray", "matplotlib", "rich.progress")
"""What takes longer to import than JAX, or is used in some calls only."""

ROOT = Path(fedjax_sim.__file__).parent
MODULES = modules_of(ROOT)
PACKAGES = [name for name, path in MODULES.items() if path.name == "__init__.py"]
ARROWS = arrows_of(ROOT)
TABLE = allowed_in(ROOT.parent) or {}


def tree_of(module: str) -> ast.Module:
    """Parse a module of the package."""
    return ast.parse(MODULES[module].read_text())


def public_names(module: str) -> list[str]:
    """Read what a face exports. These rooms are asked for their files by name."""
    if module == "systems":
        return [*fedjax_sim.systems.__all__]
    if (names := names_in(MODULES[module])) is not None:
        return names
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    if module.startswith(("engine.", "timelines.")) or module in (
        "core",
        "engine",
        "kernels",
        "results",
    ):
        return []
    raise AssertionError(f"{MODULES[module]} exports nothing")


def run_python(source: str) -> str:
    """Run source in a new process and return what it printed."""
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_room_has_a_line_and_every_line_a_room() -> None:
    assert set(ARROWS) == set(ALLOWED) == set(TABLE)


@pytest.mark.parametrize("room", ALLOWED)
def test_a_line_names_only_rooms_above_it(room: str) -> None:
    rooms = list(ALLOWED)
    assert TABLE[room] <= set(rooms[: rooms.index(room)])


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_its_line_allows(room: str) -> None:
    assert ARROWS[room] <= TABLE[room]


def test_the_script_counts_no_circle_and_no_upward_arrow() -> None:
    assert circles_of(ARROWS) == []
    assert upward_arrows(ARROWS, TABLE) == []
    floors = floors_of(ARROWS)
    assert (floors["core"], floors["timelines"], floors["server"]) == (1, 2, 3)
    assert max(floors, key=lambda room: floors[room]) == "__main__"


def test_the_script_finds_planted_mistakes(tmp_path: Path) -> None:
    """A circle of three rooms, an upward arrow, and the floors above and below the circle."""
    files = {
        "__init__.py": "from fedjax_sim import low as low\nfrom fedjax_sim.high import top",
        "low.py": "import os\n\ndef late():\n    import fedjax_sim.middle.one",
        "middle/__init__.py": "",
        "middle/one.py": "from fedjax_sim.middle import two\nfrom fedjax_sim.bottom import stone",
        "middle/two.py": "from fedjax_sim.high import top",
        "high.py": "from fedjax_sim import low\nimport fedjax_sim.middle",
        "bottom.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "fedjax_sim" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    arrows = arrows_of(tmp_path / "fedjax_sim")
    assert arrows == {
        FACE: {"high"},
        "bottom": set(),
        "high": {"low", "middle"},
        "low": {"middle"},
        "middle": {"bottom", "high"},
    }
    assert circles_of(arrows) == [{"low", "middle", "high"}]
    assert floors_of(arrows) == {"bottom": 1, "low": 2, "middle": 2, "high": 2, FACE: 3}
    allowed = {FACE: {"high"}, "high": {"low", "middle"}, "middle": {"bottom"}}
    assert upward_arrows(arrows, allowed) == ["low -> middle", "middle -> high"]
    assert len(upward_arrows(arrows, None)) == 4
    (tmp_path / "fedjax_sim" / "bottom.py").write_text("from . import high")
    with pytest.raises(ValueError, match="relative import"):
        arrows_of(tmp_path / "fedjax_sim")


def test_no_module_imports_in_a_circle() -> None:
    """Packages stand for their `__init__`."""
    assert circles_of({name: imports_of(name, MODULES) for name in MODULES}) == []


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("systems.")])
def test_systems_do_not_import_each_other(module: str) -> None:
    """But for these: a system may be their algorithm on another clock, scaled, or preset."""
    own = module.split(".")[1]
    imported = [name.split(".") for name in imports_of(module, MODULES)]
    others = {name[1] for name in imported if name[0] == "systems"} - {own}
    assert others <= {"fedavg", "fedbuff", "fedopt", "fedper"}


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("theory.")])
def test_the_theory_of_a_paper_does_not_import_that_of_another(module: str) -> None:
    papers = {".".join(name.split(".")[:2]) for name in imports_of(module, MODULES)}
    assert {name for name in papers if name.startswith("theory")} <= {
        ".".join(module.split(".")[:2])
    }


def test_other_rooms_take_nothing_from_the_face() -> None:
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if module and isinstance(node, ast.ImportFrom) and node.module == "fedjax_sim":
                names = {alias.name for alias in node.names}
                assert names <= {*MODULES}, MODULES[module]


def test_the_root_has_few_files() -> None:
    files = [path for path in ROOT.iterdir() if path.is_file()]
    assert len(files) <= MOST_ROOT_FILES, files
    assert ROOT / "py.typed" in files


def test_the_wheel_holds_this_package_alone() -> None:
    """`experiments`, `scripts` and `tests` run from a clone."""
    config = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert config["packages"]["find"]["include"] == ["fedjax_sim*"]
    assert config["package-data"] == {"fedjax_sim": ["py.typed", "__init__.pyi", "systems/*.pyi"]}
    assert config["dynamic"]["version"] == {"attr": "fedjax_sim.version.__version__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_holds_and_defines_nothing(package: str) -> None:
    """The face and `systems` load modules when they are asked for; the face knows old addresses."""
    tree = tree_of(package)
    assert ast.get_docstring(tree)
    names = public_names(package)
    assert len(set(names)) == len(names)
    definitions = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    allowed = {"": {"__getattr__", "_Moved", "find_spec"}, "systems": {"__getattr__", "__dir__"}}
    assert definitions == allowed.get(package, set())


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_hides_a_module(package: str) -> None:
    """A package that exports a function `sweep` cannot have a module `sweep`."""
    prefix = f"{package}." if package else ""
    here = f"fedjax_sim.{package}".rstrip(".")
    for node in ast.walk(tree_of(package)):
        if isinstance(node, ast.ImportFrom) and node.module != here:
            for alias in node.names:
                assert prefix + (alias.asname or alias.name) not in MODULES


def test_importing_the_package_loads_next_to_nothing() -> None:
    source = f"""
import sys
import fedjax_sim
from fedjax_sim.cli.commands import main
assert main(["--version"]) == 0
assert main(["nonsense"]) == 2
print([name for name in {SLOW_TO_LOAD!r} if name in sys.modules])
print([name for name in sys.modules if name.startswith("fedjax_sim.systems")])
"""
    version, loaded, systems = run_python(source).splitlines()
    assert version == fedjax_sim.__version__
    assert loaded == systems == "[]"


def test_importing_what_a_sweep_needs_loads_nothing_that_it_may_not_use() -> None:
    """Systems and the engine do without the library of networks, which takes a quarter second."""
    source = f"""
import sys
import fedjax_sim.systems, fedjax_sim.engine
print("flax" in sys.modules)
import fedjax_sim.problems, fedjax_sim.models, fedjax_sim.datasets
print([name for name in {USED_LATER!r} if name in sys.modules])
"""
    assert run_python(source).splitlines() == ["False", "[]"]


def test_a_first_sweep_loads_no_tests_and_no_pictures() -> None:
    source = f"""
import sys
import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.systems import fedavg
digits = datasets.load("digits")
split = partition.make("iid", digits.train_labels, num_clients=10, seed=0)
problem = problems.make_classification(models.MLP((4,), 10), digits, split)
print([name for name in {USED_LATER!r} if name in sys.modules])
hyper = fedavg.paper(num_clients=10, num_selected=2, local_steps=1, batch_size=4)
fedjax_sim.simulate(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(1), num_evals=1)
print([name for name in {(set(USED_LATER) - {"xarray", "pandas"})!r} if name in sys.modules])
"""
    assert run_python(source).split() == ["[]", "[]"]


def test_importing_the_engine_registers_no_listener() -> None:
    source = """
import jax.monitoring

def refuse(*args, **kwargs):
    raise AssertionError("registered")

jax.monitoring.register_event_duration_secs_listener = refuse
jax.monitoring.register_event_listener = refuse
import fedjax_sim
fedjax_sim.sweep, fedjax_sim.SYSTEMS
"""
    run_python(source)


def test_the_face_loads_what_is_asked_for() -> None:
    rooms = set(ALLOWED) - {"__init__", "__main__", "version"}
    assert rooms | set(fedjax_sim.__all__) <= set(dir(fedjax_sim))
    for name in rooms:
        assert getattr(fedjax_sim, name).__name__ == f"fedjax_sim.{name}"
    for name in fedjax_sim.__all__:
        assert getattr(fedjax_sim, name) is getattr(fedjax_sim, name)
    with pytest.raises(AttributeError, match="'fedjax_sim' has no attribute 'swep'"):
        fedjax_sim.swep  # noqa: B018


def test_the_modules_of_the_core_are_loaded_from_the_face_first_of_all() -> None:
    script = "import fedjax_sim; print(*(getattr(fedjax_sim, each).__name__ for each in {}))"
    names = [name for name in ("types", *fedjax_sim.CORE) if name in fedjax_sim.__all__]
    found = run_python(script.format(names)).split()
    assert found == [f"fedjax_sim.core.{name}" for name in names]


@pytest.mark.parametrize("old", fedjax_sim.MOVED)
def test_an_old_address_gets_the_new_one(old: str) -> None:
    new = f"fedjax_sim.{fedjax_sim.MOVED[old]}"
    importlib.import_module(new)
    with pytest.raises(ModuleNotFoundError, match=f"'fedjax_sim.{old}': it is '{new}' now"):
        importlib.import_module(f"fedjax_sim.{old}")


def test_type_checkers_see_the_same_names_as_python() -> None:
    stub = ast.parse((ROOT / "__init__.pyi").read_text())
    homes = {
        alias.name: f"fedjax_sim.{node.module}" if node.module else ""
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    assert sorted(homes) == sorted(fedjax_sim.__all__)
    handed_on = {name: home for name, home in homes.items() if home}
    for name, home in handed_on.items():
        assert getattr(fedjax_sim, name) is getattr(importlib.import_module(home), name)
    assert set(homes) - set(handed_on) == set(ALLOWED) - {"__init__", "__main__", "version"}


@pytest.mark.parametrize("module", MODULES)
def test_no_argument_or_local_has_the_name_of_an_imported_module(module: str) -> None:
    tree = tree_of(module)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules = {
        alias.asname or alias.name
        for node in imports
        for alias in node.names
        if f"{node.module}.{alias.name}".removeprefix("fedjax_sim.") in MODULES
    }
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {line.target for each in classes for line in each.body if hasattr(line, "target")}
    bound |= {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node not in fields
    }
    assert not modules & bound
