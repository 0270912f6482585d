"""`fedjax-sim list`: the names that the command line knows, and a system's settings."""

import argparse
import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedjax_sim import datasets, models, partition, systems, timelines
from fedjax_sim.cli.tables import make_console, print_json
from fedjax_sim.core.settings import fields, groups, idle_of
from fedjax_sim.core.settings.names import written
from fedjax_sim.problems import latent
from fedjax_sim.server import attacks, compression, privacy, rules


def run(arguments: argparse.Namespace) -> None:
    """Print the settings of the systems named, or everything there is if none is named.

    Args:
      arguments: The parsed words of `list`.

    Raises:
      ConfigError: If there is no system of a name.
    """
    names = arguments.systems
    if names == ["datasets"]:
        rows = datasets.what_to_fetch()
        found: object = rows
        shown = [_table("data sets to fetch", [*rows[0]], [[*row.values()] for row in rows], 0)]
    elif names:
        found, shown = _settings(names), settings_tables(names)
    else:
        found = everything = _everything()
        shown = [_table(title, [], each.items()) for title, each in everything.items() if each]
        if everything["experiments"]:
            shown[-1].title = "experiments (python -m experiments run NAME)"
    if arguments.json:
        print_json(found)
        return
    for table in shown:
        make_console().print(table)


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 2
) -> Table:
    """Lay out rows of text under a title, with gaps of two spaces; without columns no heads."""
    gaps, heads = (0, 2, 0, left), bool(columns)
    table = Table(title=title, title_justify="left", box=None, show_header=heads, padding=gaps)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def settings_tables(names: Sequence[str]) -> list[Table]:
    """Tabulate the settings of systems: name, default, meaning and allowed values.

    A system's own settings come first, then its groups. Settings without effect at the defaults are
    only named, below the table.

    Args:
      names: Names of systems.

    Raises:
      ConfigError: If there is no system of a name.
    """
    tables = []
    for name, system in _settings(names).items():
        rows, idle, owner = [], [], ""
        for full, each in system["settings"].items():
            if not each["has_effect"]:
                idle.append(full)
                continue
            inside, _, last = full.rpartition(".")
            if inside != owner:
                owner = inside
                rows.append([f"\n{inside}:", "", f"\n{system['groups'][inside]}"])
            words = f"{each['meaning']} Allowed: {each['allowed']}."
            rows.append([f"  {last}" if inside else last, each["default"], words])
        if idle:
            rows.append(["\nno effect here:", "", "\n" + ", ".join(idle)])
        columns = ["setting", "default", "meaning and allowed values"]
        tables.append(_table(f"{name}: {system['summary']}", columns, rows))
    return tables


def _settings(names: Sequence[str]) -> dict[str, Any]:
    """Describe systems, their settings by full name, and their groups."""
    found = {}
    for name, system in [(name, systems.SYSTEMS[name]) for name in names]:
        idle = idle_of(system.Hyper())
        settings = {}
        for full, field in fields(system.Hyper).items():
            words = {key: field.metadata[key] for key in ("meaning", "allowed")}
            default = written(field.default) or repr(field.default)
            settings[full] = {"default": default, **words, "has_effect": full not in idle}
        about = {field.name: field.metadata["group"] for field in groups(system.Hyper)}
        found[name] = {"summary": system.summary, "settings": settings, "groups": about}
    return found


def _everything() -> dict[str, dict[str, str]]:
    """Collect everything that can be named, with a line about each."""
    return {
        "systems": {name: system.summary for name, system in systems.SYSTEMS.items()},
        "data sets": datasets.names(),
        "models": {name: entry.summary for name, entry in models.MODELS.items()},
        "latent-variable models": {name: entry.summary for name, entry in latent.MODELS.items()},
        "partitions": {name: partition.summary(name) for name in partition.PARTITIONS},
        "rules (aggregator)": _kinds(rules.RULES),
        "attacks (attack)": _kinds(attacks.ATTACKS),
        "compressors (compression, downlink)": _kinds(compression.COMPRESSORS),
        "delay laws (runtime_law)": _kinds(timelines.LAWS),
        "privacy": _kinds(privacy.PRIVACY),
        "local privacy": _kinds(privacy.LOCAL_PRIVACY),
        "experiments": _experiments(),
    }


def _kinds(kinds: Mapping[str, type]) -> dict[str, str]:
    """Describe the kinds of a setting: the first line about each, and its own settings."""
    values = {name: ", ".join(fields(kind)) for name, kind in kinds.items()}
    summaries = {name: (kind.__doc__ or "").partition("\n")[0] for name, kind in kinds.items()}
    return {
        name: summary.removesuffix(".") + f"; with {values[name]}" * bool(values[name])
        for name, summary in summaries.items()
    }


def _experiments() -> dict[str, str]:
    """Find the experiments of a clone, with the first lines of their docstrings; none in a wheel.

    Their packages list them in a tuple `EXPERIMENTS`. They are read, not imported.
    """
    found = {}
    for package in sorted((Path(__file__).parents[2] / "experiments").glob("*/__init__.py")):
        assigned = {
            ast.unparse(node.targets[0]): node.value
            for node in ast.parse(package.read_bytes()).body
            if isinstance(node, ast.Assign)
        }
        for name in ast.literal_eval(assigned.get("EXPERIMENTS", "()")):
            module = ast.parse((package.parent / f"{name}.py").read_bytes())
            summary = (ast.get_docstring(module) or "").partition("\n")[0]
            found[f"{package.parent.name}/{name}"] = summary
    return found
